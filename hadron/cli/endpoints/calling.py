"""What `hadron call` does: one value for one, or streams of lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import trio

from hadron.cli.endpoints.values import declared, first_of, line, parse, written
from hadron.cli.patience import connected
from hadron.cli.printing import as_shown
from hadron.cli.standard_streams import Stdout, open_stdin_apart
from hadron.client.client import CONNECT_TIMEOUT_S
from hadron.client.endpoints.calls import NOTHING
from hadron.model.errors import (
    CallFailedError,
    DeadlineExceededError,
    InvalidRecordError,
    RequestError,
)
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.services import STREAM

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.client.endpoints.stream import CallStream

_MOST_BYTES: Final = 4 * MAX_CALL_MESSAGE_BYTES
"""Of what a value is read from: JSON may have blanks and escapes that are not sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for; see the options of `hadron call`."""

    endpoint: str
    values: Sequence[str]
    form: str
    timeout_s: float
    region: str
    headers: dict[str, str] = field(default_factory=dict)


async def run(url: str, asked: Asked) -> None:
    """Call, and print what is answered. The timeout is of all of it: reaching a node, hearing what
    the endpoint is and reading the value are in it. Raises `DeadlineExceededError`."""
    for text in asked.values:
        if text != "-":
            # What is wrong with it is told before anybody is asked.
            _given(text, asked)
    out = Stdout()
    deadline_s = trio.current_time() + asked.timeout_s
    async with connected(url, min(asked.timeout_s, CONNECT_TIMEOUT_S)) as client:
        with trio.move_on_at(deadline_s):
            spec = await declared(client, asked.endpoint)
            value = NOTHING if spec.input == STREAM else await _one_value(asked)
        left_s = deadline_s - trio.current_time()
        if left_s <= 0:
            raise DeadlineExceededError(
                f"the call of {asked.endpoint!r} had not begun after {asked.timeout_s:g} s",
                "give more time (`timeout_s`), or see `hadron status`; it was not run",
            )
        how: dict[str, Any] = {
            "timeout_s": left_s,
            "region": asked.region,
            "headers": asked.headers,
        }
        try:
            if STREAM in (spec.input, spec.output):
                await _print_stream(client, asked, out, value, how)
            else:
                _print(out, await client.call(asked.endpoint, value, **how), asked.form)
        except CallFailedError as error:
            raise _for_people(asked.endpoint, error) from error


def _for_people(endpoint: str, error: CallFailedError) -> CallFailedError:
    """The same, as one line and a hint tell it: a program has attributes, people have these."""
    hints = [error.hint] if error.hint else []
    if error.retryable:
        hints.append("the same command may succeed when it is repeated")
    return CallFailedError(
        f"endpoint {endpoint!r} failed: {error.type}: {error.message}",
        "; ".join(hints),
        retryable=error.retryable,
        type=error.type,
    )


def _given(text: str, asked: Asked) -> Any:
    """The value that an argument stands for."""
    return parse(text.encode(errors="surrogateescape"), asked.form, "VALUE")


async def _one_value(asked: Asked) -> Any:
    if len(asked.values) > 1:
        raise RequestError(
            f"endpoint {asked.endpoint!r} takes one value, {len(asked.values)} are given",
            "quote it for the shell",
        )
    if not asked.values:
        return None
    text = asked.values[0]
    if text != "-":
        return _given(text, asked)
    return parse(await _taken(open_stdin_apart().read, "stdin"), asked.form, "stdin")


async def _taken(read: Callable[[int], bytes], where: str) -> bytes:
    """What is read in a thread, which is left alone with it when this is cancelled. Raises
    `InvalidRecordError` rather than take more than a value can be made of."""
    data = await trio.to_thread.run_sync(read, _MOST_BYTES + 1, abandon_on_cancel=True)
    if len(data) > _MOST_BYTES:
        raise InvalidRecordError(
            f"{where} has more than {_MOST_BYTES} bytes, and a value {MAX_CALL_MESSAGE_BYTES} at "
            "most",
            "send what is large in parts, to an endpoint with a streamed input",
        )
    return data


async def _print_stream(
    client: Client, asked: Asked, out: Stdout, value: Any, how: dict[str, Any]
) -> None:
    try:
        async with (
            client.call_stream(asked.endpoint, value, **how) as call,
            trio.open_nursery() as nursery,
        ):
            if value is NOTHING:
                nursery.start_soon(_send, call, asked)
            async for answer in call:
                await out.write_apart(line(answer))
            nursery.cancel_scope.cancel()
    except ExceptionGroup as errors:
        raise first_of(errors) from None


async def _send(call: CallStream, asked: Asked) -> None:
    """The values that are given, or lines of stdin as they come."""
    if asked.values and list(asked.values) != ["-"]:
        for text in asked.values:
            await call.send(_given(text, asked))
    else:
        file = open_stdin_apart()
        for number in itertools.count(1):
            where = f"line {number} of stdin"
            data = await _taken(file.readline, where)
            if not data:
                break
            await call.send(parse(data.rstrip(b"\r\n"), asked.form, where))
    await call.end()


def _print(out: Stdout, value: Any, form: str) -> None:
    data = written(value, form)
    if form == "auto":
        data = as_shown(data)
    # Bytes go out as they are: somebody may pipe an image.
    out.write(data if isinstance(value, bytes) or data.endswith(b"\n") else data + b"\n")
