"""Whole lines of a file, and rows of CSV, each passed on as soon as it has its end.

A row is read once its last line is there: `csv.reader` forgets half a row when it is given no more
lines, so those of a row that is still open are kept here, and given to it together.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final

from hadron.model.errors import InvalidRecordError
from hadron.model.limits import MAX_RECORD_BYTES

TOO_LARGE: Final = "store large objects elsewhere and send a reference"

_READ_BYTES: Final = 1 << 20
_FIELD_CHARACTERS: Final = 4 * MAX_RECORD_BYTES
"""More than a row's lines can have here: what is too large is told as of any other record."""

_BYTE_ORDER_MARK: Final = "\ufeff"

Row = tuple[int, list[str]]
"""The number of a row's first line, and its fields."""

Leave = Callable[[int], None]
"""Is told the line that begins what has no end yet at the end of the file, and is left out."""


def bursts(file: BinaryIO, leave: Leave | None = None) -> Iterator[list[bytes]]:
    """Lists of whole lines, without their newlines: what one read of the file had. A last line
    without one is a line, too, but where there is `leave`. Raises `InvalidRecordError` rather than
    read more of a line than a record may have."""
    read = getattr(file, "read1", file.read)
    rest, count = b"", 0
    while data := read(_READ_BYTES):
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if lines:
            count += len(lines)
            yield lines
        if len(rest) > MAX_RECORD_BYTES:
            raise _too_large(f"line {count + 1}")
    if rest and leave is not None:
        leave(count + 1)
    elif rest:
        yield [rest]


def csv_bursts(
    file: BinaryIO, unit: Callable[[str], str], delimiter: str, leave: Leave | None = None
) -> Iterator[list[Row]]:
    """Lists of rows: those that one read of the file has completed. Raises `InvalidRecordError`
    naming the line of what is none, with the words that `unit` puts around it."""
    csv.field_size_limit(_FIELD_CHARACTERS)
    unended: list[int] = []
    held: list[str] = []
    held_characters, first, count = 0, 1, 0
    for burst in bursts(file, None if leave is None else unended.append):
        lines = [_text(line, unit, count + at) for at, line in enumerate(burst, 1)]
        count += len(lines)
        is_open = bool(held) and all(_stays_open(line, delimiter) for line in lines)
        held += lines
        held_characters += sum(map(len, lines))
        if not is_open:
            rows, ended = _rows(held, first, unit, delimiter)
            first += ended
            held = held[ended:]
            held_characters = sum(map(len, held))
            if rows:
                yield rows
        if held_characters > MAX_RECORD_BYTES:
            raise _too_large(unit(f"the row from line {first}"))
    if leave is not None and (held or unended):
        leave(first)
    elif held:
        raise InvalidRecordError(
            f"{unit(f'line {first}')} is not CSV: a quoted field that begins in its row has no end",
            'it ends with a "; one that is part of a quoted field is written twice',
        )


def _rows(
    lines: list[str], first: int, unit: Callable[[str], str], delimiter: str
) -> tuple[list[Row], int]:
    """The rows that are whole, and how many lines they have; `first` is the first one's number."""
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    rows: list[Row] = []
    ended = 0
    try:
        for fields in reader:
            rows.append((first + ended, fields))
            ended = reader.line_num
    except csv.Error as error:
        if reader.line_num == len(lines) and _is_open(lines[ended:], delimiter):
            return rows, ended
        within = f", in the row from line {first + ended}" if reader.line_num > ended + 1 else ""
        where = f"{unit(f'line {first + reader.line_num - 1}')}{within}"
        raise InvalidRecordError(f"{where} is not CSV: {error}") from error
    return rows, ended


def _is_open(lines: Iterable[str], delimiter: str) -> bool:
    """Whether these are the beginning of a row, which goes on behind them."""
    is_over = False

    def given() -> Iterator[str]:
        nonlocal is_over
        yield from lines
        is_over = True

    try:
        next(csv.reader(given(), strict=True, delimiter=delimiter), None)
    except csv.Error:
        return is_over
    return False


def _stays_open(line: str, delimiter: str) -> bool:
    """Whether a quoted field is open behind this line, as one is before it."""
    return '"' not in line or _is_open([f'"{line}'], delimiter)


def _text(line: bytes, unit: Callable[[str], str], number: int) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(line, error.start, unit(f"line {number}")) from error
    return f"{text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text}\n"


def not_utf8(line: bytes, start: int, where: str) -> InvalidRecordError:
    """What is raised of a line that has no text from `start` on."""
    meant = "UTF-16" if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "LATIN1"
    return InvalidRecordError(
        f"{where} is not UTF-8: it has the byte 0x{line[start]:02x} at position {start}",
        f"convert the file, as with `iconv -f {meant} -t UTF-8`",
    )


def _too_large(where: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"{where} cannot be sent: it has more than the {MAX_RECORD_BYTES} bytes that one record "
        "may have",
        TOO_LARGE,
    )
