"""Methods and what serves them: a handler is registered with the messages that it hears and says,
so that types are checked where it is written, and nothing is for each message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hadron.wire.calls import Call, Handler
from hadron.wire.messages import Method, method

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Served:
    """A method, and what serves it at any node."""

    method: Method
    handle: Handler


def served(
    name: str,
    request: type[_Request],
    response: type[_Response],
    handle: Callable[[Call[_Request, _Response], _Request, memoryview], None],
) -> Served:
    """The method called `name`, served by `handle`; `request` and `response` are its messages."""
    return Served(method_of(name, request, response), handle)


def method_of(name: str, request: type[object], response: type[object]) -> Method:
    """The method called `name`, whose messages these must be."""
    found = method(name)
    assert (found.request, found.response) == (request, response), (
        f"{found} hears {found.request.__name__} and says {found.response.__name__}, not "
        f"{request.__name__} and {response.__name__}"
    )
    return found
