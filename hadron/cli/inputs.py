"""Turning arguments, files and stdin into records, in chunks that keep the pace of their source.

Lines from a pipe are passed on as soon as they are there, so that `tail -f | hadron pub` lags by
nothing; whole files go in chunks large enough to batch well.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import click
import msgspec

from hadron.model.cloudevents import from_json, to_record
from hadron.model.errors import InvalidRecordError
from hadron.model.record import NewRecord

_CHUNK_BYTES: Final = 1 << 20
_CHUNK_ROWS: Final = 2_000
_SUFFIXES: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What every record gets besides its value."""

    key: str | None
    key_field: str | None
    event_type: str
    headers: Mapping[str, str]
    id: str = ""
    timestamp_ms: int | None = None

    def event(self, line: bytes, where: str) -> NewRecord:
        """The record of a CloudEvent in JSON. Raises `InvalidRecordError` naming `where`."""
        try:
            record = to_record(from_json(line))
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{where}: {error.message}", error.hint) from error
        headers = {**(record.headers or {}), **self.headers}
        key = record.key if self.key is None else self.key
        return msgspec.structs.replace(record, key=key, headers=headers)

    def record(self, value: Any, where: str) -> NewRecord:
        """Raises `InvalidRecordError` naming `where` when the key's field is missing."""
        key = self.key
        if self.key_field is not None:
            if not isinstance(value, dict) or self.key_field not in value:
                raise InvalidRecordError(
                    f"{where} has no field {self.key_field!r}", "see --key-field"
                )
            field = value[self.key_field]
            key = None if field is None else field if isinstance(field, str) else json.dumps(field)
        return NewRecord(
            value=value, key=key, type=self.event_type, headers=self.headers or None,
            id=self.id, timestamp_ms=self.timestamp_ms,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from.

    Attributes:
        form: "lines", "jsonl", "csv" or "cloudevents".
        values: from the command line, when there is no file.
        path: a file's path, "-" for stdin, or None.
    """

    form: str
    values: tuple[str, ...]
    path: str | None

    @classmethod
    def choose(cls, values: tuple[str, ...], path: str | None, form: str | None) -> Source:
        """Decide from what was given. Raises `click.UsageError` when that is contradictory."""
        if values == ("-",):
            values, path = (), path or "-"
        if values and path:
            raise click.UsageError("give VALUEs or --file, not both")
        if values and form == "csv":
            raise click.UsageError("--format csv needs --file or stdin")
        if not values and path is None:
            if sys.stdin.isatty():
                raise click.UsageError("nothing to publish: give a VALUE, --file, or pipe into it")
            path = "-"
        if form is None and path is not None:
            suffixes = [suffix for suffix in Path(path).suffixes if suffix != ".gz"]
            form = _SUFFIXES.get(suffixes[-1] if suffixes else "")
        return cls(form or "lines", values, path)

    def chunks(self, recipe: Recipe) -> Iterator[list[NewRecord]]:
        """Records in order. Raises `InvalidRecordError` naming the line of a malformed one."""
        if self.path is None:
            encoded = [value.encode(errors="surrogateescape") for value in self.values]
            yield list(_records(encoded, self.form, recipe, "value", itertools.count(1)))
            return
        with _open(self.path) as file:
            if self.form == "csv":
                yield from _csv_chunks(file, recipe, self._unit(""))
                return
            numbers = itertools.count(1)
            for lines in _bursts(file):
                yield list(_records(lines, self.form, recipe, self._unit("line"), numbers))

    def _unit(self, unit: str) -> str:
        """What a record is called in messages: with the file that it stands in."""
        return unit if self.path in (None, "-") else f"{self.path}, {unit}"


def _open(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def _bursts(file: BinaryIO) -> Iterator[list[bytes]]:
    """Lists of whole lines, without their ends: what one read of the file had."""
    read = getattr(file, "read1", file.read)
    rest = b""
    while data := read(_CHUNK_BYTES):
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _records(
    lines: Iterable[bytes], form: str, recipe: Recipe, unit: str, numbers: Iterator[int]
) -> Iterator[NewRecord]:
    for line, number in zip(lines, numbers, strict=False):
        where = f"{unit} {number}"
        if form == "jsonl":
            if line.strip():
                yield recipe.record(_parse_json(line, where), where)
        elif form == "cloudevents":
            if line.strip():
                yield recipe.event(line, where)
        else:
            yield recipe.record(_text(line), where)


def _text(line: bytes) -> str | bytes:
    """Text where it is text; other bytes are sent as they are."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _parse_json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidRecordError(f"{where} is not JSON: {error}", "use --format lines") from error


def _csv_chunks(file: BinaryIO, recipe: Recipe, prefix: str) -> Iterator[list[NewRecord]]:
    rows = csv.reader((line.decode() for line in file), strict=True)
    try:
        names = next(rows, None)
        if names is None:
            return
        names[0] = names[0].removeprefix("\ufeff")
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            after = rows.line_num - len(chunk)
            yield [
                recipe.record(
                    _row(names, row, f"{prefix}line {after + index + 1}"),
                    f"{prefix}row {after + index + 1}",
                )
                for index, row in enumerate(chunk)
                if row
            ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRecordError(f"{prefix}line {rows.line_num} is not CSV: {error}") from error


def _row(names: list[str], row: list[str], where: str) -> dict[str, str]:
    if len(row) != len(names):
        raise InvalidRecordError(
            f"{where} has {len(row)} fields, the heading has {len(names)}",
            "every row needs a field for every name in the first line",
        )
    return dict(zip(names, row, strict=True))
