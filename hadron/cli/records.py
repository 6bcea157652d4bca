"""Printing records: kcat's format tokens, one JSON object or CloudEvent per line, or columns.

Values go out as the bytes that are stored, so text and JSON cost no decoding and binary values
survive a pipe. A terminal without a format gets escapes for what it would obey.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from hadron.cli.printing import as_shown, on_one_line, output_of
from hadron.cli.standard_streams import Stdout
from hadron.model.errors import DamagedRecordError, InvalidRecordError
from hadron.model.record import Record

if TYPE_CHECKING:
    from hadron.client.exchanges.message import Message

_Part = Callable[[Record], bytes]


def _key_bytes(record: Record) -> bytes:
    key = record.key
    return b"" if key is None else key if isinstance(key, bytes) else key.encode()


def _headers_bytes(record: Record) -> bytes:
    return ",".join(f"{name}={value}" for name, value in record.headers.items()).encode()


TOKENS: Final[dict[str, _Part]] = {
    "s": lambda record: record.value_bytes,
    "S": lambda record: b"%d" % len(record.value_bytes),
    "k": _key_bytes,
    "K": lambda record: b"%d" % len(_key_bytes(record)),
    "o": lambda record: b"%d" % record.offset,
    "p": lambda record: record.partition.encode(),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": _headers_bytes,
    "t": lambda record: record.stream.encode(),
    "y": lambda record: record.type.encode(),
    "i": lambda record: record.id.encode(),
    "%": lambda _record: b"%",
}
"""kcat's tokens, %y for the event type, and %i for the id."""

CLOUDEVENTS: Final = "cloudevents"
"""Instead of tokens: what `hadron pub --format cloudevents` takes."""

TOKENS_HELP: Final = (
    f"{CLOUDEVENTS}: a CloudEvent in JSON a line. Else: %s value, %S its length, %k key, %K its "
    "length, %o offset, %p partition, %T timestamp in ms, %h headers, %t stream, %y type, %i id, "
    "%% a percent sign; \\n \\r \\t \\0 \\\\ as in C"
)
records_output_option: Final = output_of(
    "table",
    "json",
    default=None,
    help="Columns, or a JSON object a line. Default: the values, one a line.",
)
_OPTION: Final = "'--format' / '-f'"
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def compile_format(text: str) -> _Part:
    """Turn a format string into a function. Raises `click.BadParameter` for an unknown token, and
    for a string without any: who writes `json` means a form, not this word for each record."""
    if text == CLOUDEVENTS:
        return event_line
    parts: list[_Part] = []
    has_field = False
    characters = iter(text)
    for character in characters:
        if character == "%":
            token = next(characters, "")
            if token not in TOKENS:
                raise click.BadParameter(
                    f"unknown token '%{token}'; known: {TOKENS_HELP}", param_hint=_OPTION
                )
            has_field = has_field or token != "%"
            parts.append(TOKENS[token])
        elif character == "\\":
            parts.append(_constant(_escape(next(characters, ""))))
        else:
            parts.append(_constant(character.encode()))
    if not has_field:
        raise click.BadParameter(
            f"{text!r} names no field of a record; -o json prints JSON. Known: {TOKENS_HELP}",
            param_hint=_OPTION,
        )
    return lambda record: b"".join([part(record) for part in parts])


def _escape(character: str) -> bytes:
    if character not in _ESCAPES:
        raise click.BadParameter(
            f"unknown escape '\\{character}'; known: \\n \\r \\t \\0 \\\\", param_hint=_OPTION
        )
    return _ESCAPES[character]


def _constant(data: bytes) -> _Part:
    return lambda _record: data


def json_line(record: Record) -> bytes:
    """One record as a JSON object on a line; a value that is no text is given as base64."""
    shown = {
        "stream": record.stream,
        "partition": record.partition,
        "offset": record.offset,
        "id": record.id,
        "timestamp_ms": record.timestamp_ms,
        "type": record.type,
        **shown_as_json("key", record.key),
        **shown_as_json("value", exact_value(record)),
        "headers": dict(record.headers),
    }
    return one_json_line(shown)


def one_json_line(shown: Mapping[str, Any]) -> bytes:
    """An object as JSON, parts of which may be JSON already."""
    return msgspec.json.format(msgspec.json.encode(shown), indent=0) + b"\n"


def exact_value(record: Record | Message) -> Any:
    """The value; JSON as its text, without blanks, since a number that is decoded and written again
    may have other digits. Raises `DamagedRecordError`."""
    value = record.value
    if isinstance(value, bytes | str):
        return value
    return msgspec.Raw(msgspec.json.format(record.value_bytes, indent=-1))


def event_line(record: Record) -> bytes:
    """One record as a CloudEvent in the JSON event format, on a line."""
    from hadron.model.cloudevents import ABSENT, from_record, to_json

    event = from_record(record)
    if event.data is not ABSENT:
        event = msgspec.structs.replace(event, data=exact_value(record))
    return to_json(event) + b"\n"


def shown_as_json(name: str, value: Any) -> dict[str, Any]:
    """A field for JSON; bytes that are no text are given as base64, under a name that says so."""
    if not isinstance(value, bytes):
        return {name: value}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _value_line(record: Record) -> bytes:
    return as_shown(record.value_bytes) + b"\n"


def _table_line(record: Record) -> bytes:
    value = exact_value(record)
    data = value.encode() if isinstance(value, str) else bytes(value)
    text = on_one_line(data.decode(errors="backslashreplace"))
    key = on_one_line(_key_bytes(record).decode(errors="backslashreplace")) or "-"
    return (
        f"{record.partition:<20} {record.offset:>10} {record.type or '-':<24} {key:<16} {text}\n"
    ).encode()


_TABLE_HEADING: Final = (
    f"{'PARTITION':<20} {'OFFSET':>10} {'TYPE':<24} {'KEY':<16} VALUE\n"
).encode()


class _PassedOver:
    """Records that cannot be read: one line for those that stand together for one reason."""

    def __init__(self) -> None:
        self._first: Record | None = None
        self._count = 0
        self._reason = ""

    def add(self, record: Record, reason: str) -> None:
        first = self._first
        if first is None or (
            reason != self._reason
            or record.partition != first.partition
            or record.offset != first.offset + self._count
        ):
            self.tell()
            self._first, self._count, self._reason = record, 0, reason
        self._count += 1

    def tell(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        where = f"{first.stream}/{first.partition}/{first.offset}"
        which = (
            f"record {where} is"
            if self._count == 1
            else f"{self._count} records from {where} on are"
        )
        click.echo(f"passed over: {which} damaged at the source: {self._reason}", err=True)


class RecordPrinter:
    """Writes records to stdout until a limit is reached.

    Args:
        form: a format string, or None.
        output: "json", "table" or None for values by line, when there is no format string.
        limit: how many records, or None for all.
    """

    def __init__(self, form: str | None, output: str | None, limit: int | None) -> None:
        if form is not None and output is not None:
            raise click.UsageError("--format and --output exclude each other")
        if form is not None:
            self._line = compile_format(form)
        elif output == "json":
            self._line = json_line
        elif output == "table":
            self._line = _table_line
        else:
            self._line = _value_line
        self._out = Stdout()
        self._heading = _TABLE_HEADING if form is None and output == "table" else b""
        self._left = limit

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self._left is not None and self._left <= 0

    def print(self, records: Iterable[Record]) -> None:
        """Print; records past the limit are left out, and those that cannot be read are passed over
        with a word on stderr."""
        self._out.write(self._lines(records))

    async def print_apart(self, records: Iterable[Record]) -> None:
        """The same, while the event loop goes on: a member of a group whose reader is slow is heard
        of all the same. One call at a time."""
        await self._out.write_apart(self._lines(records))

    def _lines(self, records: Iterable[Record]) -> bytes:
        lines: list[bytes] = []
        passed_over = _PassedOver()
        if self._heading:
            lines.append(self._heading)
            self._heading = b""
        for record in records:
            if self._left is not None and self._left <= 0:
                break
            try:
                lines.append(self._line(record))
            except DamagedRecordError as error:
                passed_over.add(record, error.reason)
                continue
            except (InvalidRecordError, RecursionError):
                # It was read, with less of the stack in use.
                passed_over.add(record, "its value is nested too deeply")
                continue
            if self._left is not None:
                self._left -= 1
        passed_over.tell()
        return b"".join(lines)
