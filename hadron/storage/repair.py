"""Putting entries back into a log that has lost them: what is wrong, and whose copy fits.

A copy fits when the hash chain says so. Its own content gives its chain, and that chain is the one
that this log goes on from: by the row that follows, by the head, or by what is left of the row
itself. So neither a damaged copy nor another leader's entry of the same number gets in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from hadron.model.errors import CorruptionError
from hadron.model.ids import LogPosition
from hadron.storage.bodies import BODY, reading_entry
from hadron.storage.log import (
    LOG,
    NO_BODY,
    Entry,
    Log,
    chain_of_row,
    hash_body,
    is_well_formed,
    position_at,
    verify_chain,
)

_ROW = f"SELECT lsn, epoch, incarnation, now_ms, command, body_hash, chain FROM {LOG} WHERE lsn = ?"


class NotFittingError(CorruptionError):
    """A copy of an entry does not continue the hash chain that this log has."""


def is_logged(log: Log, lsn: int) -> bool:
    """Whether this log should have a row at `lsn`."""
    return log.anchor.lsn < lsn <= log.head.lsn


def wrong_with(connection: apsw.Connection, lsn: int) -> str:
    """What is wrong with an entry that this log should have; "" when nothing is."""
    try:
        if position_at(connection, lsn) is None:
            return f"entry {lsn} is missing"
        with reading_entry(lambda: lsn):
            row = connection.execute(
                f"SELECT body_hash FROM {LOG} WHERE lsn = ?", (lsn,)
            ).fetchone()
            body = connection.execute(f"SELECT bytes FROM {BODY} WHERE lsn = ?", (lsn,)).fetchone()
    except CorruptionError as error:
        return error.message
    if row is None:
        # Trimmed meanwhile.
        return f"entry {lsn} is missing"
    if row[0] == NO_BODY:
        return "" if body is None else f"entry {lsn} has a body that it should not have"
    if body is None:
        return f"the body of entry {lsn} is missing"
    if body[0] != b"" and (type(body[0]) is not bytes or hash_body(body[0]) != row[0]):
        return f"the body of entry {lsn} does not match its hash"
    return ""


def put_back(
    connection: apsw.Connection, log: Log, before: LogPosition, entries: Sequence[Entry]
) -> list[int]:
    """Write `entries` anew where they belong; returns the lsns of those that do.

    Whatever stands there: the connection may see what its cache has, and not what the disk has. The
    caller owns the transaction, and has seen to it that the pages are sound (`storage.pages`).

    Args:
        before: the position that the first of them continues, where they come from.
        entries: in order, without gaps.

    Raises `NotFittingError` when they are not what this log has lost.
    """
    end = verify_chain(entries, before)
    if not _fits(connection, log, end):
        raise NotFittingError(
            f"the copy of entry {end.lsn} has chain {end.chain.hex()}, which is not the one that "
            "this log goes on from"
        )
    return [entry.lsn for entry in entries if _write(connection, log, entry)]


def _fits(connection: apsw.Connection, log: Log, end: LogPosition) -> bool:
    if end.lsn == log.head.lsn:
        return end == log.head
    own = _row(connection, end.lsn)
    if own is not None and own[6] == end.chain:
        return True
    following = _row(connection, end.lsn + 1)
    return (
        following is not None
        and is_well_formed(following)
        and chain_of_row(end.chain, following) == following[6]
    )


def _write(connection: apsw.Connection, log: Log, entry: Entry) -> bool:
    """Whether there is a place for the entry here."""
    if not is_logged(log, entry.lsn):
        return False
    # Deleted first: to replace a row by an equal one writes nothing.
    connection.execute(f"DELETE FROM {LOG} WHERE lsn = ?", (entry.lsn,))
    connection.execute(
        f"INSERT INTO {LOG} VALUES(?, ?, ?, ?, ?, ?, ?)",
        (entry.lsn, *entry.ballot, entry.now_ms, entry.command, hash_body(entry.body), entry.chain),
    )
    dropped = connection.execute(
        f"SELECT 1 FROM {BODY} WHERE lsn = ? AND length(bytes) = 0", (entry.lsn,)
    ).fetchone()
    if dropped is None or not len(entry.body):
        # One that retention has dropped here nobody wants back.
        put_back_body(connection, entry.lsn, entry.body)
    return True


def put_back_body(connection: apsw.Connection, lsn: int, body: bytes | memoryview) -> None:
    """Write a body anew, whatever stands there; the caller has checked that it fits."""
    connection.execute(f"DELETE FROM {BODY} WHERE lsn = ?", (lsn,))
    if len(body):
        connection.execute(f"INSERT INTO {BODY} VALUES(?, ?)", (lsn, body))


def _row(connection: apsw.Connection, lsn: int) -> tuple[Any, ...] | None:
    with reading_entry(lambda: lsn):
        return connection.execute(_ROW, (lsn,)).fetchone()


def read_body(connection: apsw.Connection, lsn: int) -> bytes | None:
    """The bytes of a body whatever became of its log row; None where there are none."""
    with reading_entry(lambda: lsn):
        row: Any = connection.execute(f"SELECT bytes FROM {BODY} WHERE lsn = ?", (lsn,)).fetchone()
    return row[0] if row is not None and type(row[0]) is bytes and row[0] else None
