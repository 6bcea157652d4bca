"""State digests: a bounded slice of the replicated tables, compared wherever the log is applied.

The chain shows that two nodes hold the same commands; this shows that the commands did the same to
both (PROTOCOL A5). The leader fills the digest in, in the transaction that logs it, so it is of the
tables as they are at that very entry; a replica that finds something else there has diverged, and
takes a snapshot. Slices go round all tables in the order of their keys, from where the entry before
left off, whoever leads: a row that two nodes have differently is met after so many entries, however
little each of them reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
import xxhash

from hadron.model.errors import CorruptionError
from hadron.model.tables import PREFIX
from hadron.state import rows
from hadron.state.machine import Command, Context, Feature

DIGEST_CURSOR: Final = PREFIX + "digest_cursor"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {DIGEST_CURSOR}(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    table_name TEXT NOT NULL,           -- of the latest slice
    last_key BLOB NOT NULL,             -- MessagePack: its last row's key; empty at the table's end
    lsn INTEGER NOT NULL
) STRICT;
"""

SLICE_ROWS: Final = 500
SLICE_BYTES: Final = 256 << 10
"""What one entry makes every node read: about a millisecond of its writer's time."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class StateDigest(Command["Compared"], frozen=True, array_like=True, tag=9):
    """Rows of one table, and what they come to. The leader submits an empty one.

    Attributes:
        after: MessagePack, the key that the slice begins behind; empty for the first row.
        count: how many rows.
        is_last: no row follows them.
        digest: xxh3-128 over the rows and `is_last`.
    """

    uses_reserve: ClassVar[bool] = True

    table: str = ""
    after: bytes = b""
    count: int = 0
    is_last: bool = False
    digest: bytes = b""


def seal_state_digest(context: Context, _command: StateDigest) -> StateDigest:
    """The next slice, as this node has it."""
    name, after = _next(context)
    table = rows.table(context.db, name)
    assert table is not None, name
    found = table.after(context.db, _key(after), SLICE_ROWS + 1)
    count = size = 0
    while count < min(len(found), SLICE_ROWS) and size < SLICE_BYTES:
        size += len(_encode(found[count]))
        count += 1
    is_last = count == len(found)
    return StateDigest(name, after, count, is_last, _digest(found[:count], is_last))


@dataclass(frozen=True, slots=True)
class Compared:
    """What one digest covers."""

    lsn: int
    rows: int
    is_last: bool
    """No row of its table follows."""


def apply_state_digest(context: Context, command: StateDigest) -> Compared:
    """Raises `CorruptionError` when the rows here come to something else."""
    table = rows.table(context.db, command.table)
    last_key = b""
    # A table that only a newer version has is not touched by commands that this one knows.
    if table is not None:
        found = table.after(context.db, _key(command.after), command.count + 1)
        is_last = len(found) <= command.count
        found = found[: command.count]
        digest = _digest(found, is_last)
        if (is_last, digest) != (command.is_last, command.digest):
            raise CorruptionError(
                f"table {command.table} differs: {command.count} rows {_where(table, command)} "
                f"come to {digest.hex()} here, to {command.digest.hex()} at the leader",
                "`hadron verify` on both nodes' directories re-applies their logs and names the "
                "rows that are wrong",
            )
        if not is_last:
            last_key = _encode(table.key_of(found[-1]))
    context.db.execute(
        f"INSERT INTO {DIGEST_CURSOR} VALUES(1, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " table_name = excluded.table_name, last_key = excluded.last_key, lsn = excluded.lsn",
        (command.table, last_key, context.lsn),
    )
    return Compared(context.lsn, command.count, command.is_last)


def _next(context: Context) -> tuple[str, bytes]:
    """Where the next slice begins: behind the latest one, or with the next table."""
    names = context.machine.table_names
    row = context.db.execute(f"SELECT table_name, last_key FROM {DIGEST_CURSOR}").fetchone()
    if row is None:
        return names[0], b""
    if row[1] and row[0] in names:
        return row[0], row[1]
    return next((name for name in names if name > row[0]), names[0]), b""


def _key(packed: bytes) -> rows.Key | None:
    return tuple(_decode(packed)) if packed else None


def _digest(found: list[rows.Row], is_last: bool) -> bytes:
    hasher = xxhash.xxh3_128(b"\x01" if is_last else b"\x00")
    for row in found:
        hasher.update(_encode(row))
    return hasher.digest()


def _where(table: rows.Table, command: StateDigest) -> str:
    key = _key(command.after)
    if key is None:
        return "from the first one on"
    shown = ", ".join(
        f"{name} {value.hex() if isinstance(value, bytes) else value!r}"
        for name, value in zip(table.key, key, strict=True)
    )
    return f"after {shown}"


FEATURE: Final = Feature(
    name="digests",
    tables=_TABLES,
    commands={StateDigest: apply_state_digest},
    seals={StateDigest: seal_state_digest},
)
