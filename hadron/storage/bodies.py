"""Bodies: the bytes that came with entries, each by its entry's number.

A module of its own because who reads a body need not know the log: a body outlives its log row, and
tables that stand in a file without a log have bodies, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hadron.model.errors import CorruptionError
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.storage.database import READ_ERRORS, in_words, is_damage

BODY: Final = PREFIX + "body"

TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {BODY}(
    lsn INTEGER PRIMARY KEY,
    bytes BLOB NOT NULL               -- what the producer sent, untouched; empty once retention
                                      -- has dropped it, for as long as its log row is here
) STRICT;
"""

_INSERT: Final = f"INSERT INTO {BODY} VALUES(?, ?)"
_DELETE: Final = f"DELETE FROM {BODY} WHERE lsn = ?"


def insert(db: Database, lsn: int, body: bytes | memoryview) -> None:
    """Inside the caller's transaction, like all that writes here."""
    db.execute(_INSERT, (lsn, body))


def delete(db: Database, lsns: Sequence[int]) -> None:
    """Drop bodies without leaving a trace: of entries that are in no log."""
    db.executemany(_DELETE, [(lsn,) for lsn in lsns])


def damaged_entry(lsn: int, text: str, hint: str = "") -> CorruptionError:
    """The error for an entry of this node's own log, which can be repaired."""
    error = CorruptionError(
        text, hint or "another member may have it whole; `hadron verify` shows all that is damaged"
    )
    error.lsn = lsn
    return error


@contextlib.contextmanager
def reading_entry(lsn: Callable[[], int]) -> Iterator[None]:
    """Turn what a damaged page, or row, makes of a read into an error about the entry on it."""
    try:
        yield
    except READ_ERRORS as error:
        if not is_damage(error):
            raise
        number = lsn()
        what = in_words(error)
        raise damaged_entry(
            number, f"entry {number} cannot be read: {what}" if number else what
        ) from None
