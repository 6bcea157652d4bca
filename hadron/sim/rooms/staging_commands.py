"""What bulk writers do, by chance: beside `random_commands`, for the same tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import msgpack

from hadron.fakes.tables import SET, Replicated
from hadron.model.sinks import UNKNOWN
from hadron.model.transactions import Participant, TransactionId
from hadron.state.machine import BatchShape, Command, encode
from hadron.state.sinks.progress import SINK_IDLE_MS, AdvanceSink
from hadron.state.sinks.staging import DropStaged, GiveUpStaged, PublishStaged, StageBatches
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents

STAGES_EVERY: Final = 5
"""Seeds: the others leave room for all else."""

_SINKS: Final = ("default/s", "default/t", "default/u")
_QUERIES: Final = ("q", "r", "")
_KEPT_MS: Final = (1, 1_000, 3_600_000, 100_000_000)
_KEPT: Final = "SELECT attempt, write_id, stream_id, batches, expires_ms FROM hadron_staged"


class StagingCommands:
    """Of several writes at once. `stream` says which stream one is for, `others` what else stands
    in its transaction."""

    def __init__(
        self,
        seed: int,
        tables: Replicated,
        stream: Callable[[], int],
        others: Callable[[], Sequence[bytes]],
    ) -> None:
        self._random = random.Random(f"{seed} staging")
        self._tables = tables
        self._stream = stream
        self._others = others
        self._stages = seed % STAGES_EVERY == 2
        self._writes = [self._random.randbytes(16)]
        self._gone: list[tuple[bytes, bytes]] = [(bytes(16), bytes(16))]

    def following(self) -> Command | None:
        """The next one, if one is due."""
        rng = self._random
        if not self._stages or rng.random() > 0.4:
            return None
        chance = rng.random()
        if chance < 0.01:
            self._tables.now_ms += SINK_IDLE_MS
        if chance < 0.45:
            return self._stage()
        if chance < 0.5:
            return GiveUpStaged(self._write())
        if chance < 0.58:
            return DropStaged(self._tables.now_ms - rng.choice((0, 0, 3_600_000)))
        if chance < 0.62:
            # No client can send these alone.
            return rng.choice((self._publication, self._advance))()
        if chance < 0.74 and (ending := self._end()) is not None:
            return ending
        if chance < 0.87:
            tx = TransactionId("eu/p0", 1, rng.randint(1, 2), len(self._tables.log))
            return WriteIntents(tx, 0, self._statements())
        number = (rng.randint(0, 3) << 20) + len(self._tables.log)
        parts = rng.choice(((), (Participant("eu/p0", rng.randint(1, 99), 1),)))
        return Decide(TransactionId.of(SET, self._tables.ballot, number), parts, self._statements())

    def _rows(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        return self._tables.rows(sql, *bindings)

    def _write(self) -> bytes:
        if self._random.random() < 0.25:
            self._writes = [*self._writes[-2:], self._random.randbytes(16)]
        return self._random.choice(self._writes)

    def _stage(self) -> StageBatches:
        """More of an attempt, some of it again, or another attempt; seldom what does not fit."""
        rng = self._random
        known = self._rows(f"{_KEPT} ORDER BY staged_lsn")
        attempt, write, stream_id, first = rng.randbytes(16), self._write(), self._stream(), 0
        shapes = [
            BatchShape(rng.randint(1, 3), rng.choice((9, 90))) for _ in range(rng.choice((1, 1, 3)))
        ]
        if known and rng.random() < 0.6:
            living = [each for each in known if each[4] >= 0]
            some = living if living and rng.random() < 0.9 else known
            attempt, write, stream_id, first, _ = rng.choice(some)
            parts = self._rows(
                "SELECT p.first_number, p.batches FROM hadron_staged_part p"
                " JOIN hadron_staged s USING (staged_lsn) WHERE attempt = ? ORDER BY p.lsn",
                attempt,
            )
            chance = rng.random()
            if chance < 0.2 and parts:
                first, packed = rng.choice(parts)
                shapes = [BatchShape(*each) for each in msgpack.decode(packed)]
            elif chance < 0.3:
                first = max(0, first + rng.choice((-1, 1)))
            elif chance < 0.36:
                write, stream_id = rng.choice(((self._write(), stream_id), (write, self._stream())))
        elif rng.random() < 0.1:
            # Of one that was here before, or never.
            attempt, write = rng.choice(self._gone)
            first = rng.randint(0, 1)
        elif rng.random() < 0.05:
            attempt, shapes = rng.choice(((b"short", shapes), (attempt, [])))
        kept_ms = rng.choice(_KEPT_MS) if rng.random() < 0.97 else 0
        label = rng.choice(("", "query q batch 1"))
        return StageBatches(stream_id, write, attempt, first, tuple(shapes), kept_ms, label)

    def _end(self) -> Command | None:
        """Of a transaction that is prepared and publishes something."""
        known = self._rows(
            "SELECT DISTINCT p.replica_set, p.epoch, p.incarnation, p.number, prepared_lsn,"
            " statements FROM hadron_lock JOIN hadron_participation p USING (prepared_lsn)"
            " WHERE kind IN ('staged', 'sink') ORDER BY prepared_lsn"
        )
        if not known:
            return None
        *name, lsn, count = self._random.choice(known)
        tx = TransactionId(*name)
        finish = FinishTransaction(tx, lsn, count)
        return self._random.choice((finish, finish, AbortTransaction(tx)))

    def _statements(self) -> tuple[bytes, ...]:
        """A publication, how far its sink is, or both, with others; sometimes one comes twice."""
        rng = self._random
        count = rng.choice((1, 1, 1, 1, 1, 2))
        found: list[Command] = [self._publication() for _ in range(count)]
        if rng.random() < 0.7:
            found.append(self._advance())
        if rng.random() < 0.05:
            found = [self._advance(), self._advance()]
        rng.shuffle(found)
        others = self._others() if rng.random() < 0.15 else ()
        return (*map(encode, found), *others)

    def _publication(self) -> PublishStaged:
        """Of some attempts of one write, mostly of such as may be published."""
        rng = self._random
        known = self._rows(f"{_KEPT} ORDER BY staged_lsn")
        whole = [each for each in known if each[4] >= 0]
        if not known or rng.random() < 0.05:
            attempt, write = rng.choice(self._gone)
            return PublishStaged(self._stream(), write, ((attempt, 1),))
        _, write, stream_id, _, _ = rng.choice(whole or known)
        some = known if rng.random() < 0.1 else whole or known
        fitting = [each for each in some if each[1:3] == (write, stream_id)]
        if rng.random() < 0.05:
            fitting = known
        chosen = rng.sample(fitting, rng.randint(min(1, len(fitting)), len(fitting)))
        self._gone = [*self._gone[-3:], *((each[0], each[1]) for each in chosen[:1])]
        attempts = [(each[0], each[3]) for each in chosen]
        if attempts and rng.random() < 0.08:
            attempts[0] = attempts[0][0], attempts[0][1] + rng.choice((-1, 1))
        if rng.random() < 0.03:
            attempts = [*attempts, *attempts[:1]]
        return PublishStaged(stream_id, write, tuple(attempts))

    def _advance(self) -> AdvanceSink:
        """To the next batch, to one that is published, and of queries that have no right to."""
        rng = self._random
        name = (
            rng.choice(_SINKS)
            if rng.random() < 0.9
            else rng.choice((f"default/{rng.random()}", ""))
        )
        found = self._rows("SELECT query, batch FROM hadron_sink WHERE name = ?", name)
        query, batch = found[0] if found else (rng.choice(_QUERIES), -1)
        follows = rng.choice(("", "", UNKNOWN, "q"))
        if rng.random() < 0.25:
            follows = rng.choice((query, UNKNOWN, ""))
            query = rng.choice((*_QUERIES, UNKNOWN))
        batch = max(batch + rng.choice((1, 1, 1, 1, 4, 0, -1)), -(rng.random() < 0.03))
        return AdvanceSink(name, query, batch, follows)
