"""What must be true of transactions' tables, whatever was logged: for those who verify a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from hadron.state.bodies import COUNTED_BODY
from hadron.state.machine import Feature
from hadron.state.sinks.staging import STAGED, STAGED_PART
from hadron.state.transactions.decisions import DECISION, DECISION_PART
from hadron.state.transactions.intents import INTENT
from hadron.state.transactions.key_locks import KEY_LOCK
from hadron.state.transactions.locks import LOCK
from hadron.state.transactions.participations import PARTICIPATION
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words
from hadron.storage.report import SLICE_ROWS, Report

_PARTICIPATIONS: Final = (
    "SELECT p.prepared_lsn, p.statements, p.bytes, p.results IS NOT NULL,"
    f" (SELECT coalesce(sum(count), 0) FROM {INTENT} i WHERE i.prepared_lsn = p.prepared_lsn),"
    f" (SELECT coalesce(sum(bytes), 0) FROM {INTENT} i WHERE i.prepared_lsn = p.prepared_lsn)"
    f" FROM {PARTICIPATION} p WHERE p.prepared_lsn > ? ORDER BY 1 LIMIT ?"
)
_INTENTS: Final = (
    "SELECT i.lsn, i.prepared_lsn, i.bytes, p.prepared_lsn, c.bytes, length(b.bytes)"
    f" FROM {INTENT} i LEFT JOIN {PARTICIPATION} p USING (prepared_lsn)"
    f" LEFT JOIN {COUNTED_BODY} c ON c.lsn = i.lsn LEFT JOIN {BODY} b ON b.lsn = i.lsn"
    " WHERE i.lsn > ? ORDER BY 1 LIMIT ?"
)
_HOLDS: Final = (
    "SELECT c.lsn, c.holds, (i.bytes IS NOT NULL AND i.bytes > 0) + (s.lsn IS NOT NULL)"
    f" FROM {COUNTED_BODY} c LEFT JOIN {INTENT} i USING (lsn) LEFT JOIN {STAGED_PART} s USING (lsn)"
    " WHERE c.lsn > ? ORDER BY 1 LIMIT ?"
)
_LOCKS: Final = (
    "SELECT l.kind, l.owner_id, l.name, l.first, l.last, l.prepared_lsn,"
    " p.prepared_lsn IS NULL OR p.results IS NOT NULL,"
    f" (SELECT min(first) FROM {LOCK} n WHERE n.kind = l.kind AND n.owner_id = l.owner_id"
    "  AND n.name = l.name AND n.first > l.first)"
    f" FROM {LOCK} l LEFT JOIN {PARTICIPATION} p USING (prepared_lsn)"
    " WHERE (l.kind, l.owner_id, l.name, l.first) > (?, ?, ?, ?) ORDER BY 1, 2, 3, 4 LIMIT ?"
)
_STAGED: Final = (
    "SELECT s.staged_lsn, s.expires_ms, s.batches, s.bytes,"
    " coalesce(max(p.first_number), -1) AS last, coalesce(sum(p.bytes), 0),"
    f" count(p.lsn) - count(c.lsn) FROM {STAGED} s LEFT JOIN {STAGED_PART} p USING (staged_lsn)"
    f" LEFT JOIN {COUNTED_BODY} c ON c.lsn = p.lsn AND c.bytes = p.bytes"
    " WHERE s.staged_lsn > ? GROUP BY 1 ORDER BY 1 LIMIT ?"
)
_KEY_LOCKS: Final = (
    "SELECT k.stream_id, k.key_hash, k.prepared_lsn"
    f" FROM {KEY_LOCK} k LEFT JOIN {PARTICIPATION} p USING (prepared_lsn)"
    " WHERE (k.stream_id, k.key_hash, k.prepared_lsn) > (?, ?, ?)"
    " AND (p.prepared_lsn IS NULL OR p.results IS NOT NULL) ORDER BY 1, 2, 3 LIMIT ?"
)
_DECISIONS: Final = (
    "SELECT d.id, d.lsn, d.finished_ms IS NOT NULL,"
    f" (SELECT count(*) FROM {DECISION_PART} p WHERE p.id = d.id AND p.results IS NULL)"
    f" FROM {DECISION} d WHERE d.id > ? ORDER BY 1 LIMIT ?"
)
_PARTS: Final = (
    f"SELECT p.id, p.position, p.replica_set, d.id FROM {DECISION_PART} p"
    f" LEFT JOIN {DECISION} d USING (id) WHERE (p.id, p.position) > (?, ?)"
    " ORDER BY 1, 2 LIMIT ?"
)


class TransactionsCheck:
    """Each intent has its transaction and its bytes, each lock an intent's transaction, each hold
    its intent or staged part, each attempt that is staged its bytes; what is decided is finished
    when all have, and not before."""

    name = "transactions"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._passes: list[tuple[str, tuple[Any, ...], Callable[..., None]]] = [
            (_PARTICIPATIONS, (-1,), self._participation),
            (_INTENTS, (-1,), self._intent),
            (_HOLDS, (-1,), self._hold),
            (_STAGED, (-1,), self._staged),
            (_LOCKS, ("", -1, "", -1), self._lock),
            (_KEY_LOCKS, (-1, -1, -1), self._key_lock),
            (_DECISIONS, (-1,), self._decision),
            (_PARTS, (-1, -1), self._part),
        ]
        self._after: tuple[Any, ...] = ()

    def step(self, db: apsw.Connection) -> bool:
        query, first, check = self._passes[0]
        after = self._after or first
        try:
            rows: list[Any] = db.execute(query, (*after, SLICE_ROWS)).fetchall()
        except READ_ERRORS as error:
            self._report.add(
                f"the transactions' tables cannot be read: {in_words(error)}",
                table=INTENT,
                is_unreadable=True,
            )
            return True
        for row in rows:
            check(*row)
        if len(rows) == SLICE_ROWS:
            self._after = tuple(rows[-1][: len(first)])
            return False
        self._passes.pop(0)
        self._after = ()
        return not self._passes

    def _participation(
        self, lsn: int, said: int, size: int, is_finished: int, statements: int, found: int
    ) -> None:
        if is_finished and statements:
            self._problem(
                f"the transaction of entry {lsn} is finished, and has {statements} intents",
                PARTICIPATION,
                lsn,
            )
        elif not is_finished and (said, size) != (statements, found):
            self._problem(
                f"the transaction of entry {lsn} has {statements} intents with {found} bytes, not "
                f"{said} with {size}",
                PARTICIPATION,
                lsn,
            )

    def _intent(
        self,
        lsn: int,
        of: int,
        size: int,
        known: int | None,
        counted: int | None,
        length: int | None,
    ) -> None:
        if known is None:
            self._problem(f"the intents of entry {lsn} are of no transaction, {of}", INTENT, lsn)
        if not size:
            return
        if length is None:
            self._problem(f"the intents of entry {lsn} have lost their bytes", BODY, lsn)
        elif not size == counted == length:
            self._problem(
                f"the intents of entry {lsn} have {size} bytes, its body {length}", INTENT, lsn
            )

    def _hold(self, lsn: int, holds: int, wanted: int) -> None:
        if holds != wanted:
            self._problem(
                f"the body of entry {lsn} is held {holds} times, by {wanted} that will append it",
                COUNTED_BODY,
                lsn,
            )

    def _staged(
        self, lsn: int, expires_ms: int, batches: int, size: int, last: int, found: int, lost: int
    ) -> None:
        if lost:
            self._problem(f"what is staged from entry {lsn} on has lost bytes", STAGED, lsn)
        if expires_ms >= 0 and (found != size or not last < batches):
            self._problem(
                f"what is staged from entry {lsn} on has {found} bytes, not {size}", STAGED, lsn
            )

    def _lock(
        self,
        kind: str,
        owner: int,
        name: str,
        first: int,
        last: int,
        lsn: int,
        is_of_none: int,
        following: int | None,
    ) -> None:
        what = f"the lock of {first} to {last} of {kind} {owner}{name and f', {name}'}"
        if is_of_none:
            self._problem(f"{what} is of no transaction that is prepared, {lsn}", LOCK, lsn)
        if first > last or (following is not None and following <= last):
            self._problem(f"{what} reaches into the next one, from {following} on", LOCK, lsn)

    def _key_lock(self, stream_id: int, key_hash: int, lsn: int) -> None:
        self._problem(
            f"the lock of key {key_hash} of stream {stream_id} is of no transaction that is "
            f"prepared, {lsn}",
            KEY_LOCK,
            lsn,
        )

    def _decision(self, _id: int, lsn: int, is_finished: int, waiting: int) -> None:
        if bool(is_finished) == bool(waiting):
            self._problem(
                f"the decision of entry {lsn} is {'' if is_finished else 'not '}finished, "
                f"{waiting} participants are not",
                DECISION,
                lsn,
            )

    def _part(self, of: int, _position: int, replica_set: str, known: int | None) -> None:
        if known is None:
            text = f"{replica_set} is a participant of no decision, number {of}"
            self._report.add(text, table=DECISION_PART)

    def _problem(self, text: str, table: str, lsn: int) -> None:
        self._report.add(text, table=table, lsn=lsn)


FEATURE: Final = Feature(name="transaction checks", checks=(TransactionsCheck,))
