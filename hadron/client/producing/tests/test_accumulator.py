"""The accumulator against a model of the network and of the server's dedupe."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hadron.client.producing.accumulator import PartitionAccumulator
from hadron.client.producing.failover import may_move
from hadron.client.producing.outgoing_batch import BatchState, OutgoingBatch
from hadron.client.tests.fake_node import Partition
from hadron.model.batch import read_head
from hadron.model.errors import (
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    HadronError,
    InvalidRecordError,
    NotReadyError,
    OutcomeUnknownError,
    OverloadedError,
    RecordTooLargeError,
    RequestError,
    SequenceError,
)
from hadron.model.limits import PRODUCER_WINDOW
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch


def make(
    on_resolved: Callable[[OutgoingBatch], None] = lambda _: None, **options: Any
) -> PartitionAccumulator:
    counter = itertools.count(1)
    return PartitionAccumulator(
        "s",
        "p",
        new_producer_id=lambda: next(counter).to_bytes(16, "big"),
        on_resolved=on_resolved,
        batch_bytes=options.pop("batch_bytes", 100),
        **options,
    )


def put(accumulator: PartitionAccumulator, value: bytes) -> OutgoingBatch:
    return accumulator.add(NewRecord(value=value), 1, 0.0)[0]


def take(accumulator: PartitionAccumulator) -> OutgoingBatch:
    batch = accumulator.next_batch(eager=True)
    assert batch is not None
    return batch


def numbered(batch: OutgoingBatch) -> tuple[bytes, int, int]:
    head = read_head(batch.data)
    return head.pid, head.seq, head.n


# --- examples -----------------------------------------------------------------------------------


def test_a_lone_record_leaves_at_once_and_others_gather_behind_it() -> None:
    accumulator = make()
    first = put(accumulator, b"1")
    assert accumulator.next_batch() is first
    second = put(accumulator, b"2")
    assert put(accumulator, b"3") is second
    assert accumulator.next_batch() is None
    accumulator.acked(first, 0, 5, False)
    assert accumulator.next_batch() is second
    assert numbered(second)[1:] == (1, 2)


def test_a_batch_that_no_encoder_takes_fails_by_itself() -> None:
    resolved: list[OutgoingBatch] = []
    accumulator = make(resolved.append)
    first = put(accumulator, b"1")
    assert take(accumulator) is first
    # As only a bug lets it through: the client looks at each record before.
    odd = NewRecord(value=b"2", timestamp_ms=object())  # type: ignore[arg-type]
    bad, _ = accumulator.add(odd, 1, 0.0)
    accumulator.seal()
    good = put(accumulator, b"3")
    assert take(accumulator) is good
    assert resolved == [bad]
    with pytest.raises(InvalidRecordError, match="1 record to s/p cannot be encoded: TypeError"):
        raise bad.failure()
    assert numbered(good)[1:] == (1, 1)


def test_a_full_batch_leaves_while_another_is_under_way() -> None:
    accumulator = make(batch_bytes=100)
    put(accumulator, b"1")
    take(accumulator)
    full = put(accumulator, b"x" * 100)
    assert accumulator.next_batch() is full


def test_no_more_than_the_window_is_under_way() -> None:
    accumulator = make()
    for index in range(PRODUCER_WINDOW + 2):
        accumulator.add_values([b"%d" % index], 1, 1, 0.0)
    sent = [take(accumulator) for _ in range(PRODUCER_WINDOW)]
    assert accumulator.next_batch(eager=True) is None
    accumulator.acked(sent[0], 0, 0, False)
    assert accumulator.next_batch(eager=True) is not None
    assert accumulator.next_batch(eager=True) is None


def test_batches_of_a_lost_connection_are_sent_again_with_identical_bytes() -> None:
    accumulator = make()
    batches = [accumulator.add_values([b"a"], 1, 1, 0.0) for _ in range(3)]
    before = [take(accumulator).data for _ in batches]
    for batch in batches:
        accumulator.refused(batch, ConnectionLostError("gone"))
    assert accumulator.next_batch() is None
    assert accumulator.needs_patience
    accumulator.resume()
    assert [take(accumulator) for _ in batches] == batches
    assert [batch.data for batch in batches] == before


def test_what_follows_a_refused_batch_gets_a_new_producer_id() -> None:
    accumulator = make()
    batches = [accumulator.add_values([b"a", b"b"], 2, 1, 0.0) for _ in range(3)]
    old = [numbered(take(accumulator)) for _ in batches]
    accumulator.refused(batches[0], RequestError("no"))
    accumulator.refused(batches[1], SequenceError("gap"))
    accumulator.refused(batches[2], SequenceError("gap"))
    assert batches[0].error is not None
    assert not accumulator.needs_patience
    accumulator.resume()
    new = [numbered(take(accumulator)) for _ in batches[1:]]
    assert [sequence for _, sequence, _ in new] == [0, 2]
    assert {pid for pid, _, _ in new}.isdisjoint({pid for pid, _, _ in old})
    assert decode_batch(batches[1].data).value_bytes() == [b"a", b"b"]


def test_a_batch_that_a_transaction_holds_off_goes_alone_until_it_is_logged() -> None:
    """Else those behind it would be refused with it, again and again, and given up."""
    accumulator = make()
    batches = [accumulator.add_values([b"a", b"b"], 2, 1, 0.0) for _ in range(3)]
    first, *others = batches
    old = [numbered(take(accumulator)) for _ in batches]
    accumulator.refused(first, ConflictError("transaction x/1.1/5 holds its key"))
    for each in others:
        accumulator.refused(each, SequenceError("gap"))
    for _ in range(10):
        assert accumulator.needs_patience
        accumulator.resume()
        assert take(accumulator) is first
        assert accumulator.next_batch(eager=True) is None
        accumulator.refused(first, ConflictError("transaction x/1.1/5 holds its key"))
    assert not first.doubtful
    accumulator.resume()
    accumulator.acked(take(accumulator), 0, 0, False)
    assert [take(accumulator) for _ in others] == others
    assert [numbered(each) for each in others] == old[1:]
    assert [each.refusals for each in others] == [0, 0]


def test_a_batch_that_is_held_off_to_the_end_is_not_in_the_log() -> None:
    accumulator = make()
    batch = accumulator.add_values([b"a"], 1, 1, 0.0)
    take(accumulator)
    accumulator.refused(batch, ConflictError("transaction x/1.1/5 holds its key", "try again"))
    accumulator.expire(1.0)
    assert isinstance(batch.error, DeadlineExceededError)
    assert "x/1.1/5" in batch.error.message
    assert batch.error.hint == "try again"


def test_a_server_that_forgot_the_producer_gets_the_batch_under_a_new_id() -> None:
    accumulator = make()
    first = accumulator.add_values([b"a"], 1, 1, 0.0)
    accumulator.acked(take(accumulator), 0, 0, False)
    second = accumulator.add_values([b"b"], 1, 1, 0.0)
    take(accumulator)
    accumulator.refused(second, SequenceError("unknown producer"))
    accumulator.resume()
    assert numbered(take(accumulator))[1] == 0
    assert first.state is BatchState.ACKED


def test_a_server_that_refuses_every_sequence_does_not_loop_for_ever() -> None:
    accumulator = make()
    batch = accumulator.add_values([b"a"], 1, 1, 0.0)
    for _ in range(10):
        if accumulator.is_empty:
            break
        take(accumulator)
        accumulator.refused(batch, SequenceError("no"))
        accumulator.resume()
    assert isinstance(batch.error, SequenceError)


def test_expiry_tells_apart_unsent_refused_and_doubtful() -> None:
    accumulator = make(window=2)
    lost, refused, queued = (accumulator.add_values([b"a"], 1, 1, 0.0) for _ in range(3))
    take(accumulator), take(accumulator)
    accumulator.refused(lost, ConnectionLostError("gone"))
    accumulator.refused(refused, NotReadyError("starting"))
    assert accumulator.expire(1.0) == []
    assert isinstance(lost.error, OutcomeUnknownError)
    assert isinstance(refused.error, DeadlineExceededError)
    assert "starting" in refused.error.message
    assert isinstance(queued.error, DeadlineExceededError)


def test_a_call_under_way_expires_as_unknown_and_is_to_be_cancelled() -> None:
    accumulator = make()
    batch = accumulator.add_values([b"a"], 1, 1, 0.0)
    later = accumulator.add_values([b"b"], 1, 1, 5.0)
    take(accumulator)
    assert accumulator.expire(1.0) == [batch]
    assert isinstance(batch.error, OutcomeUnknownError)
    accumulator.resume()
    assert accumulator.next_batch() is later
    assert numbered(later)[1] == 0


def test_a_doubtful_batch_behind_a_hole_is_never_renumbered() -> None:
    accumulator = make()
    first = accumulator.add_values([b"a"], 1, 1, 0.0)
    second = accumulator.add_values([b"b"], 1, 1, 5.0)
    take(accumulator), take(accumulator)
    for batch in (first, second):
        accumulator.refused(batch, ConnectionLostError("gone"))
    accumulator.expire(1.0)
    accumulator.resume()
    before = numbered(second)
    assert take(accumulator) is second
    assert numbered(second) == before
    accumulator.refused(second, SequenceError("gap"))
    accumulator.resume()
    assert isinstance(second.error, OutcomeUnknownError)


def test_a_batch_that_cannot_be_encoded_fails_alone() -> None:
    accumulator = make(batch_bytes=1 << 20)
    bad = accumulator.add_values([b"x" * (3 << 20)], 1, 1, 0.0)
    good = accumulator.add_values([b"y"], 1, 1, 0.0)
    assert accumulator.next_batch() is good
    assert isinstance(bad.error, RecordTooLargeError)
    assert numbered(good)[1] == 0


def test_nothing_new_overtakes_what_is_still_in_doubt() -> None:
    accumulator = make()
    lost = accumulator.add_values([b"a"], 1, 1, 9.0)
    take(accumulator)
    accumulator.refused(lost, ConnectionLostError("gone"))
    accumulator.resume()
    refused = accumulator.add_values([b"b"], 1, 1, 9.0)
    later = accumulator.add_values([b"c"], 1, 1, 9.0)
    assert [take(accumulator), take(accumulator)] == [lost, refused]
    accumulator.refused(refused, RequestError("no"))
    accumulator.refused(lost, OverloadedError("busy"))
    accumulator.resume()
    assert take(accumulator) is lost
    assert accumulator.next_batch(eager=True) is None
    accumulator.acked(lost, 0, 0, False)
    assert take(accumulator) is later


def test_what_moves_to_another_partition_is_numbered_there() -> None:
    here, there = make(), make()
    refused, lost, queued = (here.add_values([b"a"], 1, 1, 0.0) for _ in range(3))
    opened = put(here, b"open")
    assert [take(here), take(here)] == [refused, lost]
    here.refused(refused, OverloadedError("busy"))
    here.refused(lost, ConnectionLostError("gone"))
    taken, under_way = here.take(lambda batch: may_move(batch, twice=False))
    assert (taken, under_way) == ([refused, queued, opened], [])
    there.partition = "q"
    for batch in taken:
        there.adopt(batch)
    assert [numbered(take(there))[1:] for _ in taken] == [(0, 1), (1, 1), (2, 1)]
    assert {batch.partition for batch in taken} == {"q"}
    here.resume()
    assert take(here) is lost
    assert lost.doubtful


def test_a_copy_of_what_was_in_doubt_stays_in_doubt() -> None:
    here, there = make(), make()
    sent = here.add_values([b"a"], 1, 1, 0.0)
    take(here)
    assert here.take(lambda batch: may_move(batch, twice=True)) == ([sent], [sent])
    there.adopt(sent)
    there.expire(1.0)
    assert isinstance(sent.error, OutcomeUnknownError)


# --- the model ----------------------------------------------------------------------------------


class ProducerAndServer(RuleBasedStateMachine):
    """Sends through connections that break, to a server that refuses, forgets nothing and reads
    what dead connections still hold whenever it pleases."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Partition()
        self.accumulator = make(lambda _: None, batch_bytes=60)
        self.batches: dict[OutgoingBatch, list[bytes]] = {}
        self.wire: list[tuple[OutgoingBatch, bytes]] = []
        self.answers: list[tuple[OutgoingBatch, Any]] = []
        self.ghosts: list[bytes] = []
        self.values = (b"%d" % number for number in itertools.count())
        self.now_s = 0.0
        self.bytes_by_number: dict[tuple[bytes, int], bytes] = {}
        self.elsewhere: list[OutgoingBatch] = []

    # The program.

    @rule()
    def send(self) -> None:
        value = next(self.values)
        batch, index = self.accumulator.add(NewRecord(value=value), 1, self.now_s)
        assert index == len(self.batches.setdefault(batch, []))
        self.batches[batch].append(value)

    @rule(count=st.integers(1, 4))
    def send_values(self, count: int) -> None:
        values = [next(self.values) for _ in range(count)]
        self.batches[self.accumulator.add_values(values, count, 1, self.now_s)] = values

    @rule(eager=st.sampled_from([True, True, False]))
    def pump(self, eager: bool) -> None:
        if self.accumulator.stalled and self.accumulator.in_flight == 0:
            self.accumulator.resume()
        while (batch := self.accumulator.next_batch(eager=eager)) is not None:
            pid, sequence, _ = numbered(batch)
            known = self.bytes_by_number.setdefault((pid, sequence), batch.data)
            assert known == batch.data, "one sequence stood for two contents"
            self.wire.append((batch, batch.data))

    @rule(age_s=st.sampled_from([1.0, 3.0]))
    def time_passes(self, age_s: float) -> None:
        self.now_s += age_s
        for batch in self.accumulator.expire(self.now_s - 5.0):
            self.answers = [entry for entry in self.answers if entry[0] is not batch]
            for other, data in self.wire:
                if other is batch:
                    self.ghosts.append(data)
            self.wire = [entry for entry in self.wire if entry[0] is not batch]

    @rule()
    def move_elsewhere(self) -> None:
        taken, under_way = self.accumulator.take(lambda batch: may_move(batch, twice=False))
        assert not under_way
        self.elsewhere.extend(taken)

    # The server.

    @precondition(lambda self: self.wire)
    @rule(
        troubles=st.lists(
            st.sampled_from([None, None, None, RequestError, OverloadedError]), min_size=1
        ),
        answered=st.booleans(),
    )
    def serve_some(self, troubles: list[type[HadronError] | None], answered: bool) -> None:
        for trouble in troubles:
            if self.wire:
                self.serve(trouble)
        while answered and self.answers:
            self.answer()

    def serve(self, trouble: type[HadronError] | None) -> None:
        batch, data = self.wire.pop(0)
        try:
            if trouble is not None:
                raise trouble("no")
            self.answers.append((batch, self.server.append(data)))
        except HadronError as error:
            self.answers.append((batch, error))

    @precondition(lambda self: self.ghosts)
    @rule(count=st.integers(1, 5))
    def serve_ghosts(self, count: int) -> None:
        for _ in range(min(count, len(self.ghosts))):
            with contextlib.suppress(SequenceError):
                self.server.append(self.ghosts.pop(0))

    def answer(self) -> None:
        batch, answer = self.answers.pop(0)
        if isinstance(answer, HadronError):
            self.accumulator.refused(batch, answer)
        else:
            self.accumulator.acked(batch, answer.base_offset, answer.append_ms, answer.duplicate)

    # The network.

    @precondition(lambda self: self.wire or self.answers)
    @rule()
    def lose_connection(self) -> None:
        lost = [batch for batch, _ in (*self.answers, *self.wire)]
        self.ghosts.extend(data for _, data in self.wire)
        self.wire, self.answers = [], []
        for batch in lost:
            self.accumulator.refused(batch, ConnectionLostError("gone"))

    # What must hold.

    def log(self) -> list[bytes]:
        return [
            value
            for _, _, data, _ in self.server.batches
            for value in decode_batch(data).value_bytes()
        ]

    @invariant()
    def nothing_is_doubled_lost_or_reordered(self) -> None:
        log = self.log()
        assert len(set(log)) == len(log), "a record was logged twice"
        logged = set(log)
        acked: list[bytes] = []
        for batch, values in self.batches.items():
            if batch.state is BatchState.ACKED:
                at = batch.base_offset
                assert log[at : at + len(values)] == values
                acked.extend(values)
            elif batch.is_done and not isinstance(batch.error, OutcomeUnknownError):
                assert logged.isdisjoint(values), "a record was said not to be in the log"
        for batch in self.elsewhere:
            assert logged.isdisjoint(self.batches[batch]), "a record that moved is in the log"
        wanted = set(acked)
        assert [value for value in log if value in wanted] == sorted(acked, key=int)

    @invariant()
    def the_window_is_kept(self) -> None:
        states = (BatchState.SENT, BatchState.UNANSWERED)
        here = self.batches.keys() - set(self.elsewhere)
        under_way = [batch for batch in here if batch.state in states]
        assert len(under_way) <= PRODUCER_WINDOW
        assert self.accumulator.in_flight == len(self.wire) + len(self.answers)

    def teardown(self) -> None:
        """A healthy network resolves everything."""
        for _ in range(100):
            if self.accumulator.is_empty:
                break
            self.pump(True)
            while self.wire:
                self.serve(None)
            while self.answers:
                self.answer()
        assert self.accumulator.is_empty, "records were left behind"
        assert all(batch.is_done or batch in self.elsewhere for batch in self.batches)
        self.nothing_is_doubled_lost_or_reordered()


TestProducerAndServer = ProducerAndServer.TestCase
TestProducerAndServer.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("reason", ["the producer was closed"])
def test_closing_fails_everything_with_the_reason(reason: str) -> None:
    accumulator = make()
    sent = accumulator.add_values([b"a"], 1, 1, 0.0)
    take(accumulator)
    open_batch = put(accumulator, b"b")
    assert accumulator.close(reason) == [sent]
    assert isinstance(sent.error, OutcomeUnknownError)
    assert isinstance(open_batch.error, DeadlineExceededError)
    assert reason in open_batch.error.message
    assert accumulator.is_empty
