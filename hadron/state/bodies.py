"""Bodies that several batches share, or that are kept for later: who still needs them.

Most bodies are one batch, of the entry that brought them, and go when it goes: nothing is written
of them here. A *counted* body is one of several batches, or of none yet: it is held by whoever will
append it later, an intent. It goes when no batch and nobody else needs it any more.

Safety rule: a body is dropped here and nowhere else, in the entry that takes its last batch away,
or, where nobody ever appended it, by `DropBodies`, which waits for members that do not have it yet.
Until then each of its batches can be repaired by the whole of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from hadron.model.errors import NotFoundError
from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state.events import BodyReleased
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.slices import SLICE_BATCHES, SLICE_BYTES, Dropped

COUNTED_BODY: Final = PREFIX + "counted_body"
_IDLE: Final = PREFIX + "counted_body_idle"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {COUNTED_BODY}(
    lsn INTEGER PRIMARY KEY,            -- of the entry that brought it
    bytes INTEGER NOT NULL,
    batches INTEGER NOT NULL,           -- of streams, that are parts of it
    holds INTEGER NOT NULL,             -- of those who may append it later
    append_ms INTEGER NOT NULL,
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS {_IDLE} ON {COUNTED_BODY}(lsn) WHERE batches = 0 AND holds = 0;
"""

_COUNT: Final = f"INSERT INTO {COUNTED_BODY} VALUES(?, ?, ?, 0, ?, ?, ?) ON CONFLICT DO NOTHING"
_HOLD: Final = (
    f"INSERT INTO {COUNTED_BODY} VALUES(?, ?, 0, 1, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET holds = holds + 1"
)
_RELEASE: Final = (
    f"UPDATE {COUNTED_BODY} SET holds = holds - 1 WHERE lsn = ? AND holds > 0"
    " RETURNING batches + holds"
)
_TAKE: Final = (
    f"UPDATE {COUNTED_BODY} SET batches = batches + 1 WHERE lsn = ? AND bytes >= ? + ?"
    " RETURNING batches"
)
_TAKE_ALL: Final = (
    f"UPDATE {COUNTED_BODY} SET batches = batches + ?"
    " WHERE lsn = ? AND bytes >= ? RETURNING batches"
)
_LET_GO: Final = (
    f"UPDATE {COUNTED_BODY} SET batches = batches - ? WHERE lsn = ? RETURNING batches + holds"
)
_FORGET: Final = f"DELETE FROM {COUNTED_BODY} WHERE lsn = ?"
_GET: Final = f"SELECT bytes, append_ms, epoch, incarnation FROM {COUNTED_BODY} WHERE lsn = ?"
_GET_IDLE: Final = (
    f"SELECT lsn, bytes FROM {COUNTED_BODY} INDEXED BY {_IDLE}"
    " WHERE batches = 0 AND holds = 0 AND lsn <= ? ORDER BY lsn LIMIT ?"
)
_UNNAMED: Final = (
    f"SELECT 1 FROM {COUNTED_BODY} INDEXED BY {_IDLE} WHERE batches = 0 AND holds = 0 LIMIT 1"
)


class Place(NamedTuple):
    """Where a batch's bytes begin: in the counted body of entry `lsn`."""

    lsn: int
    start: int


class DropBodies(Command[Dropped], frozen=True, array_like=True, tag=25):
    """Drop bodies that nobody needs and no stream ever had: one slice of them.

    Attributes:
        until_lsn: those of entries above it may still be needed by a member.
    """

    uses_reserve: ClassVar[bool] = True

    until_lsn: int


def count(context: Context, size: int, *, batches: int = 0) -> None:
    """From here on it is counted who needs this entry's body, of so many bytes: its command appends
    it in parts, or keeps it. So many `batches` are parts of it from the beginning."""
    context.db.execute(_COUNT, (context.lsn, size, batches, context.now_ms, *context.ballot))


def count_batch(context: Context, batch: KnownBody, lsn: int) -> None:
    """The same of a body that is all of one batch of entry `lsn`, which is kept."""
    context.db.execute(_COUNT, (lsn, batch.size, 0, batch.append_ms, *batch.ballot))
    take(context, Place(lsn, 0), batch.size)


def hold(context: Context, size: int) -> int:
    """Keep this entry's body for later; returns its lsn, to append it by, and to `release`."""
    context.db.execute(_HOLD, (context.lsn, size, context.now_ms, *context.ballot))
    return context.lsn


def release(context: Context, lsn: int) -> None:
    """Whoever has held a body does not need it any more: once for each `hold`. What it is appended
    to comes before this, in the same entry."""
    row = context.db.execute(_RELEASE, (lsn,)).fetchone()
    if row is None:
        raise NotFoundError(f"nobody holds the body of entry {lsn}")
    if not row[0]:
        context.emit(BodyReleased(lsn))


def take(context: Context, place: Place, size: int) -> None:
    """One more batch is in a counted body, from `place` on.

    Raises `NotFoundError` when there is no such body, or none so long.
    """
    if context.db.execute(_TAKE, (place.lsn, place.start, size)).fetchone() is None:
        raise NotFoundError(
            f"entry {place.lsn} has no counted body with {size} bytes from {place.start} on"
        )


def take_all(context: Context, lsn: int, *, batches: int, end: int) -> None:
    """So many more batches are in a counted body, the last of which ends there.

    Raises `NotFoundError` as `take` does.
    """
    if context.db.execute(_TAKE_ALL, (batches, lsn, end)).fetchone() is None:
        raise NotFoundError(f"entry {lsn} has no counted body with {end} bytes")


def let_go(context: Context, lsns: Sequence[int]) -> None:
    """Batches are no more, each by the lsn of its counted body; the caller has seen to it that no
    member lacks one."""
    db = context.db
    gone: list[int] = []
    for lsn, batches in Counter(lsns).items():
        row = db.execute(_LET_GO, (batches, lsn)).fetchone()
        if row is not None and not row[0]:
            gone.append(lsn)
    _drop(context, gone)


def _drop(context: Context, lsns: Sequence[int]) -> None:
    context.drop_bodies(context.db, lsns)
    context.db.executemany(_FORGET, [(lsn,) for lsn in lsns])


def apply_drop_bodies(context: Context, command: DropBodies) -> Dropped:
    lsns: list[int] = []
    size = 0
    for lsn, body_bytes in context.db.execute(_GET_IDLE, (command.until_lsn, SLICE_BATCHES)):
        if size >= SLICE_BYTES:
            break
        lsns.append(lsn)
        size += body_bytes
    if not lsns:
        raise NoChange(Dropped(0, is_done=not has_unnamed(context.db)))
    _drop(context, lsns)
    return Dropped(len(lsns), size, is_done=not has_unnamed(context.db))


FEATURE: Final = Feature(name="bodies", tables=_TABLES, commands={DropBodies: apply_drop_bodies})


# --- reading ------------------------------------------------------------------------------------


class KnownBody(NamedTuple):
    """What is known of a body beside its bytes, by the entry that brought it."""

    size: int
    append_ms: int
    ballot: Ballot


def find(db: Database, lsn: int) -> KnownBody | None:
    """None for a body that is not counted."""
    row = db.execute(_GET, (lsn,)).fetchone()
    return KnownBody(row[0], row[1], Ballot(row[2], row[3])) if row is not None else None


def has_unnamed(db: Database) -> bool:
    """Whether there is something for `DropBodies`, now or later."""
    return db.execute(_UNNAMED).fetchone() is not None
