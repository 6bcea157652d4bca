"""Printing the messages of an exchange as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio
import click

from hadron.cli.patience import connected
from hadron.cli.printing import as_shown, on_one_line
from hadron.cli.records import exact_value, one_json_line, shown_as_json
from hadron.cli.standard_streams import Stdout, watch_reader
from hadron.client.exchanges.message import Message
from hadron.client.exchanges.messages import Messages, take_ready
from hadron.model.errors import DamagedRecordError
from hadron.model.words import counted

_AT_ONCE: Final = 1_000
"""Messages that are written together, at most."""


async def follow(
    url: str, name: str, patterns: Sequence[str], group: str | None, output: str, limit: int | None
) -> None:
    """Until so many, or an interrupt."""
    out = Stdout()
    line = _LINES[output]
    left = limit
    async with connected(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(watch_reader)
        exchange = client.exchange(name)
        async with exchange.subscribe(patterns or ">", group=group) as messages:
            async for first in messages:
                room = _AT_ONCE if left is None else min(left, _AT_ONCE)
                found = [first, *take_ready(messages, room - 1)]
                if left is not None:
                    left -= len(found)
                # In no thread: a client that reads nothing is cut off and comes back by itself, a
                # subscription of which nothing is taken for as long ends.
                out.write(_lines(found, line))
                if left == 0:
                    break
            _sum_up(messages)
        tasks.cancel_scope.cancel()


def _lines(found: Sequence[Message], line: Callable[[Message], bytes]) -> bytes:
    lines: list[bytes] = []
    for message in found:
        if message.interrupted:
            click.echo("the leader was away: what was published meanwhile was missed", err=True)
        if message.missed:
            were = counted(message.missed, "message was", "messages were")
            click.echo(f"{were} missed here: they came faster than they were taken", err=True)
        try:
            lines.append(line(message))
        except DamagedRecordError as error:
            click.echo(f"passed over a message on {message.topic}: {error.message}", err=True)
        except RecursionError:
            why = "its value is nested too deeply"
            click.echo(f"passed over a message on {message.topic}: {why}", err=True)
    return b"".join(lines)


def _sum_up(messages: Messages) -> None:
    if messages.missed:
        click.echo(f"missed in all: {messages.missed}", err=True)


def _value_line(message: Message) -> bytes:
    return as_shown(message.value_bytes) + b"\n"


def _table_line(message: Message) -> bytes:
    text = on_one_line(message.value_bytes.decode(errors="backslashreplace"))
    return f"{message.topic:<30} {text}\n".encode()


def json_line(message: Message) -> bytes:
    """One message as a JSON object on a line; a value that is no text is given as base64."""
    shown = {
        "topic": message.topic,
        **shown_as_json("key", message.key),
        **shown_as_json("value", exact_value(message)),
        "headers": dict(message.headers),
        "timestamp_ms": message.timestamp_ms,
        "missed": message.missed,
        "interrupted": message.interrupted,
    }
    return one_json_line(shown)


_LINES: Final[dict[str, Callable[[Message], bytes]]] = {
    "value": _value_line,
    "table": _table_line,
    "json": json_line,
}
