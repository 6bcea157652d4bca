"""Intents, finishes, aborts and all else in any order, repeated, late and wrong, against sets and
dicts; and a replica that replays the log has the same tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hadron.fakes.tables import dump, locked
from hadron.model.transactions import DELIVERIES, STAGES, Participant, TransactionId
from hadron.state import schema
from hadron.state.bodies import DropBodies
from hadron.state.dropping import DropObject
from hadron.state.groups import progress as groups
from hadron.state.groups.changes import ResetGroup
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Command
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.schema import DeleteObjects
from hadron.state.streams.retention import TrimStream
from hadron.state.tests.parted import BALLOT, SET
from hadron.state.tests.transacting import Known, Model, Refused, Transacting, joined, transacting
from hadron.state.transactions import participations
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.transactions.key_locks import KEY_LOCK

_STEPS = 250

Parts = list[tuple[Command, bytes]]


class Play:
    """One file, one model, and one thing after the other that happens to both."""

    def __init__(self, seed: int, file: Transacting) -> None:
        self.random = random.Random(seed)
        self._keys = random.Random(f"{seed} keys")
        self.file = file
        self.model = Model(file)
        self.counts: Counter[str] = Counter()
        self.sent: dict[TransactionId, list[tuple[int, Parts]]] = {}
        self._text = 0

    def step(self) -> None:
        rng = self.random
        ways = [
            (self.write, 30),
            (self.write_again, 12),
            (self.finish, 16),
            (self.abort, 6),
            (self.forget, 8),
            (self.decide, 10),
            (self.alone, 12),
            (self.change, 2),
        ]
        rng.choices([way for way, _ in ways], [weight for _, weight in ways])[0]()

    def _both(self, name: str, command: Command, body: bytes, expected: Callable[[], Any]) -> None:
        """Run it, and hold what it came to against the model."""
        outcome = self.file.run(command, body)
        found = "done" if outcome.command is not None else "known"
        if outcome.error is not None:
            found = type(outcome.error).__name__
        try:
            wanted, result = "done", expected()
        except Refused as refused:
            wanted, result = refused.kind.__name__, None
        except Known as known:
            wanted, result = "known", known.result
        assert found == wanted, (name, command, outcome.error)
        if not outcome.error and result is not None:
            given = outcome.result
            assert (given.results if isinstance(command, Decide) else given) == result, command
        self.counts[f"{name} {wanted}"] += 1
        if (name, wanted) == ("finish", "done"):
            self.counts["deleted"] += sum(each.is_deleted for each in outcome.result)

    @property
    def _lsn(self) -> int:
        return self.file.number + 1

    @property
    def _now_ms(self) -> int:
        return 1_000 + self.file.number

    def _transaction(self) -> TransactionId:
        rng = self.random
        if self.sent and rng.random() < 0.8:
            return rng.choice(sorted(self.sent)[-6:])
        return TransactionId("eu/p0", 1, rng.randint(1, 2), len(self.sent))

    def _parts(self) -> Parts:
        rng, file, model = self.random, self.file, self.model
        parts: Parts = []
        for _ in range(rng.randint(1, 3)):
            kind = rng.random()
            if kind < 0.5:
                self._text += 1
                parts.append(self._publish(f"t{self._text}"))
            elif kind < 0.75:
                group = model.group if rng.random() < 0.9 else file.group
                end = model.end(file.streams[0])
                offsets = [rng.randint(0, end) for _ in range(rng.randint(1, 3))]
                free = [each for each in offsets if each not in model.acked or rng.random() < 0.1]
                parts.append(file.ack(*(free or offsets), group=group))
            else:
                waiting = [each for each in model.attempts if each not in model.ended]
                pool = waiting if waiting and rng.random() < 0.9 else list(model.attempts)
                ids = rng.sample(pool, min(len(pool), rng.randint(1, 2)))
                attempt = model.attempts[ids[0]]
                of = [each for each in ids if model.attempts[each] == attempt]
                make = rng.choice((file.complete, file.fail))
                parts.append(make(*of, attempt=attempt))
        return parts

    def _publish(self, text: str) -> tuple[Command, bytes]:
        stream, rng = self.random.randint(0, 2), self._keys
        if rng.random() < 0.7:
            return self.file.publish(stream, text)
        key = rng.randint(1, 8)
        latest = self.model.latest(key)
        after = rng.choice((None, latest, latest, latest, latest + 1))
        return self.file.publish_keyed(key, text, after)

    # --- what happens -----------------------------------------------------------------------------

    def write(self) -> None:
        tx = self._transaction()
        known = self.model.known.get(tx)
        first = known.count if known is not None else 0
        if self.random.random() < 0.15:
            first = max(0, first + self.random.randint(-2, 2))
        self._write(tx, first, self._parts())

    def write_again(self) -> None:
        """A copy that comes late, whatever has become of the transaction."""
        if self.sent:
            tx = self.random.choice(sorted(self.sent))
            self._write(tx, *self.random.choice(self.sent[tx]))

    def _write(self, tx: TransactionId, first: int, parts: Parts) -> None:
        statements, body = joined(parts)
        self.sent.setdefault(tx, []).append((first, parts))
        self._both(
            "write",
            WriteIntents(tx, first, statements),
            body,
            lambda: self.model.write(self._lsn_before, tx, first, parts),
        )

    @property
    def _lsn_before(self) -> int:
        """Of what was run just now: the file has logged it by the time the model is asked."""
        return self.file.number

    def finish(self) -> None:
        tx = self._transaction()
        known = self.model.known.get(tx)
        lsn, count = (known.lsn, known.count) if known is not None else (1, 1)
        if self.random.random() < 0.1:
            lsn, count = lsn - self.random.randint(0, 1), count + self.random.randint(-1, 1)
        now_ms = self._now_ms
        self._both(
            "finish",
            FinishTransaction(tx, lsn, count),
            b"",
            lambda: self.model.finish(now_ms, tx, lsn, count),
        )

    def abort(self) -> None:
        tx = self._transaction()
        self._both("abort", AbortTransaction(tx), b"", lambda: self.model.abort(tx))

    def forget(self) -> None:
        tx = self._transaction()
        self._both("forget", ForgetTransactions((tx,)), b"", lambda: self.model.forget(tx))

    def decide(self) -> None:
        parts, now_ms = self._parts(), self._now_ms
        statements, body = joined(parts)
        tx = TransactionId.of(SET, BALLOT, self.file.number)
        others = self.random.choice(((), (Participant("eu/p0", 7, 1),)))
        self._both(
            "decide", Decide(tx, others, statements), body, lambda: self.model.decide(now_ms, parts)
        )

    def alone(self) -> None:
        """A statement that is no transaction's: for locks the same rules hold."""
        (command, data), *_ = self._parts()
        now_ms, model = self._now_ms, self.model

        def expected() -> None:
            model.check_free(command)
            if isinstance(command, FailStages) and len(command.instance_ids) > 1:
                # Alone it passes over those that do not wait.
                both = zip(command.instance_ids, command.attempts, strict=True)
                ones = [self.file.fail(each, attempt=attempt)[0] for each, attempt in both]
                waiting = [one for one in ones if model.waits_for(one)]
                if not waiting:
                    raise Known(None)
                for one in waiting:
                    model.do(now_ms, one, b"")
                return
            if isinstance(command, CompleteStages | FailStages) and not model.waits_for(command):
                raise Known(None)
            try:
                model.check(command)
            except Refused:
                is_ack = isinstance(command, AckRecords) and command.group_id == model.group
                if not is_ack or is_beyond:
                    raise
            model.do(now_ms, command, data)

        is_beyond = isinstance(command, AckRecords) and command.ranges[-1][1] >= model.end(
            self.file.streams[0]
        )

        if model.has_pipeline or not isinstance(command, CompleteStages | FailStages):
            self._both("alone", command, data, expected)

    def change(self) -> None:
        rng, file, model = self.random, self.file, self.model
        stream_id = rng.choice(file.streams[:3])
        if self._keys.random() < 0.2:
            stream_id = file.streams[3]
        chance = rng.random()
        if chance < 0.4 and stream_id in model.batches:
            below = rng.randint(0, model.end(stream_id))
            file.result(TrimStream(stream_id, below))
            model.trim(stream_id, below)
        elif chance < 0.55 and self.counts["change"] > 2:
            end = model.end(file.streams[0])
            floor = rng.randint(model.first[file.streams[0]], end)
            model.group = file.result(ResetGroup(model.group, floor, 9))
            model.acked = set(range(floor))
        elif chance < 0.7 and self.counts["change"] > 3:
            gone = rng.choice((file.pipeline, file.streams[1]))
            if gone == file.pipeline and model.has_pipeline:
                model.has_pipeline = False
            elif gone in model.batches:
                del model.batches[gone]
            else:
                return
            file.result(DeleteObjects(schema.current_index(file.db), (gone,)))
        else:
            file.run(DropBodies(file.number))
            file.run(DropObject(rng.choice((file.pipeline, *file.streams)), file.number))
        self.counts["change"] += 1

    # --- what is seen -----------------------------------------------------------------------------

    def look(self) -> None:
        file, model = self.file, self.model
        for number, stream_id in enumerate(file.streams):
            if stream_id in model.batches:
                assert file.read(number) == model.shown(stream_id)
        floor, end = groups.reach(file.db, model.group)
        left = groups.unacknowledged(file.db, model.group, floor, end - 1) if floor < end else []
        waiting = {each for first, last in left for each in range(first, last + 1)}
        assert waiting == set(range(end)) - model.acked
        offsets = {
            (AckRecords, group, each)
            for group in {owner for kind, owner, _ in model.locks if kind is AckRecords}
            for first, last in locked(file.db, DELIVERIES, group)
            for each in range(first, last + 1)
        }
        stages = {
            (CompleteStages, file.pipeline, each)
            for first, last in locked(file.db, STAGES, file.pipeline, "one")
            for each in range(first, last + 1)
        }
        assert offsets | stages == set(model.locks)
        assert {
            (key, (lsn, bool(alone)))
            for key, lsn, alone in file.db.execute(
                f"SELECT key_hash, prepared_lsn, is_alone FROM {KEY_LOCK}"
            )
        } == {(key, (model.known[tx].lsn, alone)) for (key, tx), alone in model.key_locks.items()}
        held = participations.held(file.db, after_lsn=0, limit=10_000)
        assert {
            each.transaction: (each.prepared_lsn, each.statements, each.is_finished)
            for each in held
        } == {
            tx: (known.lsn, known.count, known.results is not None)
            for tx, known in model.known.items()
        }
        assert file.problems() == []

    def end(self) -> None:
        """All transactions end, and everything that they have kept goes."""
        for tx, known in list(self.model.known.items()):
            if known.results is None:
                self.file.result(AbortTransaction(tx))
                self.model.abort(tx)
            else:
                self.file.result(ForgetTransactions((tx,)))
                self.model.forget(tx)
        self.look()
        self.file.run(DropBodies(self.file.number))
        for table in ("participation", "intent", "lock", "key_lock"):
            assert not self.file.db.execute(f"SELECT * FROM hadron_{table}").fetchall()
        assert not self.file.db.execute(
            "SELECT * FROM hadron_counted_body WHERE batches = 0 OR holds > 0"
        ).fetchall()
        assert dump(self.file.db) == self.file.replica()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_in_whatever_order(seed: int) -> None:
    with transacting() as file:
        play = Play(seed, file)
        for number in range(_STEPS):
            play.step()
            if number % 5 == 0:
                play.look()
        play.end()


@pytest.mark.long
def test_chance_comes_by_all_of_it() -> None:
    """Else the test above would show less than it says."""
    counts: Counter[str] = Counter()
    for seed in range(16):
        with transacting() as file:
            play = Play(seed, file)
            for _ in range(_STEPS):
                play.step()
            counts += play.counts
    for name in (
        "write done",
        "write known",
        "write ConflictError",
        "write RequestError",
        "write NotFoundError",
        "write StaleCompletionError",
        "write OffsetMismatchError",
        "decide OffsetMismatchError",
        "alone OffsetMismatchError",
        "finish done",
        "finish known",
        "finish NotFoundError",
        "finish RequestError",
        "abort done",
        "abort known",
        "abort RequestError",
        "forget done",
        "forget known",
        "decide done",
        "decide ConflictError",
        "decide RequestError",
        "alone done",
        "alone ConflictError",
        "deleted",
    ):
        assert counts[name] > 0, (name, counts)
