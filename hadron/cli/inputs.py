"""Turning arguments, files and stdin into records, in chunks that keep the pace of their source.

Lines from a pipe are passed on as soon as they are there, so that `tail -f | hadron pub` lags by
nothing; whole files go in chunks large enough to batch well.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import click
import msgspec

from hadron.cli.rows import TOO_LARGE, Row, bursts, csv_bursts, not_utf8
from hadron.cli.standard_streams import is_stdin_closed, open_stdin
from hadron.client.producing.new_records import check_record
from hadron.model.batch_building import BatchBuilder
from hadron.model.cloudevents import from_members, to_record
from hadron.model.errors import InvalidRecordError, RequestError
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record import NewRecord

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OTHER_DELIMITERS: Final = ";\t|"
NAMED_DELIMITERS: Final = {"\t": "\\t"}
"""What a command line can hardly have as it is."""
_SUFFIXES: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv"}
_WHOLE: Final = ("json", "raw")
"""Forms of which an input is one record."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What every record gets besides its value."""

    key: str | bytes | None
    key_field: str | None
    event_type: str
    headers: Mapping[str, str]
    id: str = ""
    timestamp_ms: int | None = None
    expected: tuple[int | None, int | None] = (None, None)
    """The one record's offset, and that of its key's latest record."""

    def event(self, line: bytes, where: str) -> NewRecord:
        """The record of a CloudEvent in JSON. Raises `InvalidRecordError` naming `where`."""
        members = _parse_json(line, where)
        if isinstance(members, dict) and not isinstance(members.get("data", ""), str):
            # As it is written: a number that is decoded may lose digits.
            members["data"] = _as_written(line)["data"]
        try:
            record = to_record(from_members(members))
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{where}: {error.message}", error.hint) from error
        headers = {**(record.headers or {}), **self.headers}
        key = record.key if self.key is None else self.key
        changed = msgspec.structs.replace(
            record,
            key=key,
            headers=headers,
            expect_offset=self.expected[0],
            expect_key_offset=self.expected[1],
        )
        return _checked(changed, where)

    def document(self, data: bytes, fields: Any, where: str) -> NewRecord:
        """The record whose value is the JSON text `data`, which says `fields`; the text goes out as
        it is, so that no digit of a number is lost. Raises `InvalidRecordError` naming `where`."""
        key = self.key
        if self.key_field is not None:
            if not isinstance(fields, dict) or self.key_field not in fields:
                there = ", ".join(map(repr, fields)) if isinstance(fields, dict) else "no fields"
                raise InvalidRecordError(
                    f"{where} has no field {self.key_field!r}",
                    f"name one that it has with --key-field; it has {there or 'none'}",
                )
            field = fields[self.key_field]
            is_key = field is None or isinstance(field, str)
            key = field if is_key else _key(data, self.key_field, where)
        return self.record(msgspec.Raw(data), where, key)

    def record(self, value: Any, where: str, key: str | bytes | None = None) -> NewRecord:
        """Raises `InvalidRecordError` naming `where` when it is too large."""
        return _checked(
            NewRecord(
                value=value,
                key=self.key if key is None else key,
                type=self.event_type,
                headers=self.headers or None,
                id=self.id,
                timestamp_ms=self.timestamp_ms,
                expect_offset=self.expected[0],
                expect_key_offset=self.expected[1],
            ),
            where,
        )


def _checked(record: NewRecord, where: str) -> NewRecord:
    """The record, which a batch takes. Raises `InvalidRecordError` when none does: here it is known
    where it stands, and none of its chunk is published yet."""
    try:
        BatchBuilder().add(check_record(record), 0)
    except RequestError as error:
        raise InvalidRecordError(f"{where} cannot be sent: {error.message}", error.hint) from error
    return record


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from.

    Attributes:
        form: "lines", "jsonl", "csv", "cloudevents", or of what is one record in all "json", "raw".
        values: from the command line, when there is no file.
        path: a file's path, "-" for stdin, or None.
        delimiter: between the fields of csv.
        leaves_last: whether a last line, or row, that has no end yet is left out, and told: it may
            still be written.
    """

    form: str
    values: tuple[str, ...]
    path: str | None
    delimiter: str = ","
    leaves_last: bool = False

    @classmethod
    def choose(
        cls,
        values: tuple[str, ...],
        path: str | None,
        form: str | None,
        delimiter: str | None = None,
        *,
        leaves_last: bool = False,
    ) -> Source:
        """Decide from what was given. Raises `click.UsageError` when that is contradictory."""
        if values == ("-",):
            if path not in (None, "-"):
                raise click.UsageError("give - for stdin or --file, not both")
            values, path = (), "-"
        if values and path:
            raise click.UsageError("give VALUEs or --file, not both")
        if values and form == "csv":
            raise click.UsageError("--format csv needs --file or stdin")
        if not values and path is None:
            if is_stdin_closed() or sys.stdin.isatty():
                raise click.UsageError("nothing to publish: give a VALUE, --file, or pipe into it")
            path = "-"
        if form is None and path is not None:
            suffixes = [each for each in Path(path.lower()).suffixes if each != ".gz"]
            form = _SUFFIXES.get(suffixes[-1] if suffixes else "")
        if delimiter is not None and form != "csv":
            raise click.UsageError("--delimiter is for --format csv")
        return cls(form or "lines", values, path, delimiter or ",", leaves_last)

    @property
    def is_one(self) -> bool:
        """Whether it is one record, whatever stands in it."""
        return len(self.values) == 1 if self.values else self.form in _WHOLE

    def chunks(self, recipe: Recipe) -> Iterator[list[NewRecord]]:
        """Records in order; what is wrong with values, or with a file as a whole, is raised at
        once. Raises `InvalidRecordError` naming the line of a malformed one, or the input that can
        be read no further; before the first one `OSError`."""
        if self.path is None:
            encoded = [_argument_bytes(value) for value in self.values]
            records = list(_records(encoded, self.form, recipe, "value", itertools.count(1)))
            return iter([records])
        if self.path != "-":
            with open(self.path, "rb"):
                pass
        return self._read(recipe)

    def _read(self, recipe: Recipe) -> Iterator[list[NewRecord]]:
        assert self.path is not None
        named = self._unit("") or "stdin"
        leave = self._tell_left if self.leaves_last else None
        try:
            with _open(self.path, unpacks=self.form != "raw") as file:
                if self.form == "raw":
                    yield [recipe.record(_whole(file, named), named)]
                    return
                if self.form == "json":
                    yield [_document(_whole(file, named), recipe, named)]
                    return
                if self.form == "csv":
                    rows = csv_bursts(file, self._unit, self.delimiter, leave)
                    yield from _csv_chunks(rows, recipe, self._unit)
                    return
                numbers = itertools.count(1)
                for lines in bursts(file, leave):
                    whole = [line.removesuffix(b"\r") for line in lines]
                    yield list(_records(whole, self.form, recipe, self._unit("line"), numbers))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRecordError(
                f"{self.path} is not a whole gzip file: {error}", "unpack it, or copy it again"
            ) from error
        except OSError as error:
            # As of a malformed line it is told what was published before.
            raise InvalidRecordError(
                f"{named} cannot be read: {error.strerror or error}",
                "copy it again, and publish what is left",
            ) from error

    def _tell_left(self, line: int) -> None:
        click.echo(
            f"note: {self._unit(f'line {line}')} has no end yet: left for the next run; "
            "--take-last takes it as it is",
            err=True,
        )

    def _unit(self, unit: str) -> str:
        """What a record is called in messages: with the file that it stands in."""
        if self.path is None or self.path == "-":
            return unit
        return f"{self.path}, {unit}" if unit else self.path


def _open(path: str, *, unpacks: bool) -> BinaryIO:
    if path == "-":
        return open_stdin().buffer
    if unpacks and path.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def _whole(file: BinaryIO, where: str) -> bytes:
    """Raises `InvalidRecordError` rather than read more than a record may have."""
    data = file.read(MAX_RECORD_BYTES + 1)
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidRecordError(
            f"{where} has more than the {MAX_RECORD_BYTES} bytes that one record may have",
            TOO_LARGE,
        )
    return data


def _document(data: bytes, recipe: Recipe, where: str) -> NewRecord:
    """The record of one JSON value, whose lines are joined: readers print a value a line."""
    data = data.removeprefix(_BYTE_ORDER_MARK).strip()
    try:
        fields = _parse_json(data, where)
    except InvalidRecordError as error:
        first, *more = data.splitlines()[:2] or [b""]
        if not more or not _is_json(first):
            raise
        hint = "--format jsonl takes a JSON value a line"
        raise InvalidRecordError(error.message, hint) from error
    if b"\n" in data:
        data = msgspec.json.format(data, indent=-1)
    return recipe.document(data, fields, where)


def _records(
    lines: Iterable[bytes], form: str, recipe: Recipe, unit: str, numbers: Iterator[int]
) -> Iterator[NewRecord]:
    for line, number in zip(lines, numbers, strict=False):
        where = f"{unit} {number}"
        if form == "json":
            yield _document(line, recipe, where)
        elif form == "jsonl":
            if data := line.removeprefix(_BYTE_ORDER_MARK).strip():
                yield recipe.document(data, _parse_json(data, where), where)
        elif form == "cloudevents":
            if line.strip():
                yield recipe.event(line, where)
        else:
            yield recipe.record(line if form == "raw" else _text(line), where)


def argument(value: str) -> str | bytes:
    """An argument of the command line: text, or bytes that are none."""
    return _text(_argument_bytes(value))


def one_value(text: str, form: str | None) -> Any:
    """What an argument is as a value, as a producer takes it: of `form`, or without one JSON where
    it looks like some, else text. Raises `InvalidRecordError`."""
    meant = form or ("json" if looks_like_json(text) else "lines")
    ((record,),) = Source(meant, (text,), None).chunks(Recipe(None, None, "", {}))
    return record.value


def looks_like_json(value: Any) -> bool:
    """An object or a list: other values may well be meant as text."""
    try:
        is_meant = isinstance(value, str) and value[:1] in ("{", "[")
        return is_meant and msgspec.json.decode(value) is not None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def _argument_bytes(value: str) -> bytes:
    return value.encode(errors="surrogateescape")


def _text(line: bytes) -> str | bytes:
    """Text where it is text; other bytes are sent as they are."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


_as_written: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _key(data: bytes, name: str, where: str) -> str:
    """A field that is no text, spaced the same however it was: of two numbers that are as large as
    floats the keys are still two."""
    try:
        return msgspec.json.format(bytes(_as_written(data)[name]), indent=0).decode()
    except RecursionError:
        raise InvalidRecordError(
            f"{where} has a key that is nested too deeply", "name a field that is flatter"
        ) from None


def _parse_json(line: bytes, where: str) -> Any:
    """What a JSON text says. Raises `InvalidRecordError` where it is none, or readers could not
    decode it, or a part of it would be lost to them."""

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            doubled = _first_doubled([name for name, _ in pairs])
            raise InvalidRecordError(
                f"{where} has the field {doubled!r} twice", "readers would see the last one only"
            )
        return found

    def no_number(name: str) -> None:
        raise ValueError(f"JSON has no {name}")

    try:
        # As readers do it; this one is stricter with numbers and with half characters.
        msgspec.json.decode(line)
        return json.loads(line, object_pairs_hook=fields, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as other:
            raise not_utf8(line, other.start, where) from error
        if re.search(rb"\b(NaN|Infinity)\b", line):
            reason, hint = "it has neither NaN nor infinities", "write null, or a string"
        else:
            reason = str(error).removeprefix("JSON is malformed: ")
            hint = "--format lines and --format raw take anything"
        raise InvalidRecordError(f"{where} is not JSON: {reason}", hint) from error


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _first_doubled(names: Sequence[str]) -> str:
    return next(name for index, name in enumerate(names) if name in names[:index])


def _csv_chunks(
    chunks: Iterable[list[Row]], recipe: Recipe, unit: Callable[[str], str]
) -> Iterator[list[NewRecord]]:
    names: list[str] | None = None
    for chunk in chunks:
        rows = chunk
        if names is None:
            (_, names), *rows = chunk
            _check_heading(names, unit("line 1"))
        yield [_row_record(recipe, names, row, unit(f"line {line}")) for line, row in rows if row]


def _check_heading(names: list[str], where: str) -> None:
    if not names:
        raise InvalidRecordError(f"{where} is empty", "the first line of CSV names the fields")
    if len(names) == 1:
        _warn_of_delimiter(names[0], where)
    if len(set(names)) < len(names):
        raise InvalidRecordError(
            f"{where} names {_first_doubled(names)!r} twice",
            "each field of a record needs a name of its own",
        )


def _warn_of_delimiter(name: str, where: str) -> None:
    """Of a heading with one name that looks like several: each row would be one text."""
    found = next((each for each in _OTHER_DELIMITERS if each in name), None)
    if found is not None:
        click.echo(
            f"warning: {where} names one field, {name!r}; if it is several, say --delimiter "
            f"'{NAMED_DELIMITERS.get(found, found)}'",
            err=True,
        )


def _row_record(recipe: Recipe, names: list[str], row: list[str], where: str) -> NewRecord:
    fields = _row(names, row, where)
    return recipe.document(msgspec.json.encode(fields), fields, where)


def _row(names: list[str], row: list[str], where: str) -> dict[str, str]:
    if len(row) != len(names):
        raise InvalidRecordError(
            f"{where} has {len(row)} fields, the heading has {len(names)}",
            "every row needs a field for every name in the first line",
        )
    return dict(zip(names, row, strict=True))
