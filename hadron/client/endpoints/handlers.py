"""Functions that serve endpoints: what they take and give, by their annotations. Pure.

The first argument is the value, decoded into what it is annotated with; where the input is a
stream, an iterator of values. A second one, if there is one, gets the `IncomingCall`.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hadron.client.endpoints.calls import converted, decoded
from hadron.client.endpoints.items import Packed
from hadron.client.endpoints.shapes import described, why_unusable
from hadron.model.errors import CallFailedError, RequestError
from hadron.model.services import STREAM, EndpointSpec

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_ITERATORS: Final = ("AsyncIterator", "AsyncIterable", "Iterator", "Iterable", "AsyncGenerator")

_F = TypeVar("_F", bound=Callable[..., Any])


def undecoded(function: _F) -> _F:
    """It is given what came, `Packed`, in place of values: who hands them on keeps them as they
    are."""
    function.is_undecoded = True  # type: ignore[attr-defined]
    return function


class Handler:
    """A function that serves an endpoint.

    Attributes:
        function: called with the value, or the iterator of values, and maybe with the call.
        takes: how many arguments it is given, 0 to 2.
        decodes: they are values, and not `undecoded`.
        is_async: it runs in the client's event loop; else in a thread.
        gives_stream: the answer is what it yields, or what the iterable has that it returns.
        takes_stream: its argument is an iterator.
    """

    __slots__ = ("decodes", "function", "gives_stream", "is_async", "kind", "takes", "takes_stream")

    def __init__(self, function: Callable[..., Any], spec: EndpointSpec) -> None:
        """Raises `RequestError` for what cannot serve an endpoint that is declared so."""
        self.function = function
        self.decodes = getattr(function, "is_undecoded", False) is not True
        inner = _routine(function)
        self.gives_stream = spec.output == STREAM
        self.takes_stream = spec.input == STREAM
        is_generator = inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
        if is_generator and not self.gives_stream:
            raise RequestError(
                f"{_name(function)} yields values, and the endpoint answers with one",
                "return it; or declare `output: stream`",
            )
        self.is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
        self.takes, self.kind = _parameters(function)

    def decode(self, packed: Packed) -> Any:
        """Raises `CallFailedError` that tells the caller what of its value is wrong."""
        if not self.decodes:
            return packed
        kind = self.kind
        try:
            return decoded(packed) if kind is None else converted(*packed, kind)
        except RequestError as error:
            takes = "bytes, text and JSON" if kind is None else described(kind)
            raise CallFailedError(
                error.message, f"{_name(self.function)} takes {takes}", type="ValidationError"
            ) from None


def _parameters(function: Callable[..., Any]) -> tuple[int, Any]:
    """How many arguments it takes, and what type the value is to have; None for any."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return 1, None
    parameters = list(signature.parameters.values())
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    required = [each for each in positional if each.default is each.empty]
    if len(required) > 2:
        raise RequestError(
            f"{_name(function)} takes {len(required)} arguments",
            "a handler takes the value, and, if it likes, the call",
        )
    if not positional:
        rest = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        return (1 if rest else 0), None
    # A second one that has a default is the function's own affair.
    takes = max(1, len(required))
    return takes, _kind_of(function, positional[0].name)


def _kind_of(function: Callable[..., Any], name: str) -> Any:
    try:
        kind = typing.get_type_hints(_routine(function), include_extras=True).get(name)
    except (NameError, TypeError):
        # Written for type checkers only.
        return None
    origin = typing.get_origin(kind)
    if getattr(origin, "__name__", "") in _ITERATORS:
        arguments = typing.get_args(kind)
        kind = arguments[0] if arguments else None
    if kind in (Any, object, None, inspect.Parameter.empty) or isinstance(kind, typing.TypeVar):
        return None
    if why := why_unusable(kind):
        raise RequestError(
            f"{_name(function)} takes {kind}, which no value can be made into: {why}",
            "annotate it with a dataclass, a msgspec.Struct, a model of pydantic, or plain types",
        )
    return kind


def _routine(function: Callable[..., Any]) -> Any:
    """The function itself; of an object that can be called, its method, which has the code."""
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    if isinstance(function, functools.partial):
        return _routine(function.func)
    return type(function).__call__


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
