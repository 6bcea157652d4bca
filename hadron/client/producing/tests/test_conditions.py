"""Records that expect something, or have a sequence of their program's, over several partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadron.client.producing.accumulator import NOT_KNOWN, Claim, PartitionAccumulator
from hadron.client.producing.outgoing_batch import BatchState, Identity, OutgoingBatch
from hadron.client.producing.settings import ProducerSettings
from hadron.client.producing.tests.test_failover import EU, US, declared, in_doubt, key_of, logged
from hadron.model.batch import key_hash, partition_of, read_head
from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRecordError,
    NotReadyError,
    OffsetMismatchError,
    OutcomeUnknownError,
    ProducerFencedError,
    RequestError,
    SequenceError,
)
from hadron.model.limits import PRODUCER_WINDOW
from hadron.model.record import NewRecord
from hadron.model.schema import INDEXED, SchemaObject, StreamSpec
from hadron.partition.controller import Controller

PID = b"n" * 16


def accumulator(claim: Claim | None = None, done: Any = lambda _: None) -> PartitionAccumulator:
    return PartitionAccumulator(
        "s",
        "p",
        new_producer_id=lambda: b"r" * 16,
        claim=claim,
        on_resolved=done,
        batch_bytes=1_000,
    )


def named(last_sequence: int = -1, epoch: int = 7, done: Any = lambda _: None) -> Any:
    return accumulator(Claim(Identity(PID, epoch), last_sequence), done)


def put(to: PartitionAccumulator, sequence: int) -> OutgoingBatch:
    return to.add_numbered(NewRecord(b"v", sequence=sequence), sequence, 1, 0.0)[0]


def take(of: PartitionAccumulator) -> OutgoingBatch:
    batch = of.next_batch(eager=True)
    assert batch is not None
    return batch


# --- conditions ---------------------------------------------------------------------------------


def test_a_record_that_expects_something_is_a_batch_of_its_own() -> None:
    to = accumulator()
    before, _ = to.add(NewRecord(b"1"), 1, 0.0)
    special = to.add_conditional(NewRecord(b"2", expect_offset=1), 1, 0.0)
    after, _ = to.add(NewRecord(b"3"), 1, 0.0)
    assert [take(to) for _ in range(3)] == [before, special, after]
    assert [read_head(each.data).seq for each in (before, special, after)] == [0, 1, 2]
    assert (special.expect_offset, special.is_plain, before.is_plain) == (1, False, True)


@pytest.mark.parametrize("first_told_last", [False, True])
def test_whatever_is_refused_ahead_disturbs_nobody(first_told_last: bool) -> None:
    """Each refusal has the node refuse all that is under way behind it."""
    done: list[OutgoingBatch] = []
    to = accumulator(done=done.append)
    expecting = [
        to.add_conditional(NewRecord(b"v", key="k", expect_key_offset=9), 1, 0.0)
        for _ in range(3 * PRODUCER_WINDOW)
    ]
    plain, _ = to.add(NewRecord(b"w"), 1, 0.0)
    for batch in expecting:
        assert take(to) is batch
        behind = list(iter(lambda: to.next_batch(eager=True), None))
        if not first_told_last:
            to.refused(batch, OffsetMismatchError("no", expected=9, actual=3))
        for each in behind:
            to.refused(each, SequenceError("gap"))
        if first_told_last:
            to.refused(batch, OffsetMismatchError("no", expected=9, actual=3))
        to.resume()
    assert take(to) is plain
    to.acked(plain, 0, 0, False)
    assert done == [*expecting, plain]
    assert {type(each.error) for each in expecting} == {OffsetMismatchError}


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        ({"expect_offset": 5}, 9, OffsetMismatchError),
        ({"expect_offset": 5}, 2, OutcomeUnknownError),
        ({"key": "k", "expect_key_offset": 5}, 9, OffsetMismatchError),
        ({"key": "k", "expect_key_offset": 5}, -1, OutcomeUnknownError),
        # Retention may drop what is there, before the copy comes.
        ({"key": "k", "expect_key_offset": -1}, 5, OutcomeUnknownError),
    ],
)
def test_a_refusal_is_final_where_the_offset_is_higher(
    expected: dict[str, Any], actual: int, error: Any
) -> None:
    """Another copy of it is on its way: it may still find what it expects."""
    to = accumulator()
    wanted = int(expected.get("expect_offset", expected.get("expect_key_offset", 0)))
    batch = to.add_conditional(NewRecord(b"v", **expected), 1, 0.0)
    take(to)
    to.refused(batch, ConnectionLostError("lost"))
    to.resume()
    assert take(to) is batch
    to.refused(batch, OffsetMismatchError("no", expected=wanted, actual=actual))
    failure = batch.failure()
    assert type(failure) is error
    if isinstance(failure, OffsetMismatchError):
        assert (failure.expected, failure.actual) == (wanted, actual)


@pytest.mark.long
async def test_a_condition_keeps_its_record_in_its_partition(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", failover="any", delivery_timeout_s=2) as producer:
            key = key_of(producer, US)
            assert (await producer.send(b"1", key=key, expect_offset=0)).partition == US
            with pytest.raises(InvalidRecordError, match="may go to any of several"):
                await producer.send(b"no", expect_offset=0)
            assert (await producer.send(b"2", partition=EU, expect_offset=0)).partition == EU
            await cluster.crash(US)
            with pytest.raises((OutcomeUnknownError, DeadlineExceededError)):
                await producer.send(b"no", key=key, expect_offset=1)
        assert await logged(client, EU) == [b"2"]


async def test_an_answer_that_is_lost_is_asked_for_again(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client), client.producer("s") as producer:
        key = key_of(producer, US)
        pending = await in_doubt(cluster, producer, key)
        again = await producer.send_soon(b"next", key=key, expect_offset=1)
        await cluster.start(US)
        assert (await pending.wait()).offset == 0
        assert (await again.wait()).offset == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"failover": "any"}, "failover='any'"),
        ({"failover": "duplicate"}, "failover='duplicate'"),
        ({"partitioner": "round_robin"}, "partitioner='round_robin'"),
        ({"region": "eu"}, "region='eu'"),
    ],
)
def test_keys_that_are_indexed_lie_in_one_partition(settings: dict[str, Any], message: str) -> None:
    spec = StreamSpec(partitions=(EU, US), keys=INDEXED)
    stream = SchemaObject(kind="Stream", name="s", spec=spec)
    wanted = ProducerSettings(**settings).checked()
    with pytest.raises(RequestError, match=message):
        wanted.check_keys(stream, wanted.choose(stream))
    alone = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=(EU,), keys=INDEXED))
    wanted.check_keys(alone, wanted.choose(alone))
    for fine in (ProducerSettings(), ProducerSettings(partition=EU)):
        fine.checked().check_keys(stream, fine.choose(stream))


def test_a_keys_partition() -> None:
    names = [EU, US, "us/p1"]
    assert partition_of("k", names) == partition_of(b"k", names) == names[key_hash(b"k") % 3]


# --- names --------------------------------------------------------------------------------------


def test_batches_have_the_claim_as_their_epoch() -> None:
    to = named()
    batch, _ = to.add(NewRecord(b"1"), 1, 0.0)
    head = read_head(take(to).data)
    assert (head.pid, head.pep, head.seq) == (PID, 7, 0)
    assert batch.is_plain


def test_what_is_known_is_not_sent() -> None:
    to = named(last_sequence=5)
    for sequence in (0, 5):
        known = put(to, sequence)
        assert (known.state, known.duplicate) == (BatchState.ACKED, True)
        assert known.base_offset == NOT_KNOWN
    assert to.is_empty
    assert to.next_batch(eager=True) is None
    new = put(to, 6)
    assert put(to, 9) is new
    assert take(to).last_sequence == 9
    to.acked(new, 0, 0, False)
    assert to.last_sequence == 9


def test_the_first_sequence_is_0() -> None:
    to = named()
    put(to, 0)
    with pytest.raises(InvalidRecordError, match="comes behind 0"):
        put(to, 0)
    assert take(to).last_sequence == 0


def test_after_a_failure_the_name_is_claimed_again() -> None:
    to = named()
    first = put(to, 1)
    take(to)
    second = put(to, 2)
    to.seal()
    to.refused(first, RequestError("no"))
    to.resume()
    assert to.needs_claim
    assert to.next_batch(eager=True) is None
    to.claimed(Claim(Identity(PID, 9), -1))
    assert to.next_batch(eager=True) is None
    assert second.error is not None
    again = put(to, 1)
    assert take(to) is again
    head = read_head(again.data)
    assert (head.pep, head.seq) == (9, 0)


def test_nothing_goes_on_behind_a_record_that_has_failed() -> None:
    """It would be known as the last one, and what has failed be taken for logged."""
    to = named()
    failed = put(to, 4)
    take(to)
    behind = put(to, 5)
    to.refused(failed, RequestError("never"))
    to.resume()
    to.claimed(Claim(Identity(PID, 9), -1))
    assert to.next_batch(eager=True) is None
    assert behind.error is not None
    assert "the sequence 4, before it, has failed" in str(behind.error)
    with pytest.raises(InvalidRecordError, match="the sequence 6 comes behind 4, which has failed"):
        put(to, 6)
    assert put(to, 4) is take(to)


@pytest.mark.parametrize("together", [False, True])
def test_all_that_has_failed_comes_before_what_is_new(together: bool) -> None:
    """What is new would be known as the last one, and each of these be taken for logged."""
    to = named(last_sequence=4)
    failed = []
    for sequence in (5, 7, 8):
        failed.append(put(to, sequence))
        if not together:
            to.seal()
    sent = take(to)
    to.refused(sent, RequestError("never"))
    to.resume()
    to.claimed(Claim(Identity(PID, 9), 4))
    assert to.next_batch(eager=True) is None
    assert all(each.error is not None for each in failed)
    for again, missing in ((5, 7), (7, 8)):
        put(to, again)
        with pytest.raises(InvalidRecordError, match=f"9 comes behind {missing}, which has failed"):
            put(to, 9)
    put(to, 8)
    put(to, 9)
    to.seal()
    while (batch := to.next_batch(eager=True)) is not None:
        to.acked(batch, 0, 0, False)
    assert to.last_sequence == 9


def test_what_was_in_doubt_is_known_by_the_claim() -> None:
    """It was given up, and given again before the name was claimed again."""
    resolved: list[OutgoingBatch] = []
    to = named(done=resolved.append)
    lost = put(to, 1)
    take(to)
    to.refused(lost, ConnectionLostError("lost"))
    to.expire(1.0)
    with pytest.raises(OutcomeUnknownError):
        raise lost.failure()
    again, other = put(to, 1), put(to, 2)
    assert again is not other
    to.resume()
    assert to.needs_claim
    to.claimed(Claim(Identity(PID, 9), 1))
    assert (again.state, again.duplicate) == (BatchState.ACKED, True)
    assert resolved == [lost, again]
    assert take(to) is other
    assert to.held_bytes == other.size


def test_who_is_shut_out_sends_nothing_more() -> None:
    to = named()
    first, behind = put(to, 1), None
    take(to)
    behind = put(to, 2)
    to.refused(first, ProducerFencedError("gone"))
    to.resume()
    to.refuse_all(ProducerFencedError("gone"))
    for batch in (first, behind):
        with pytest.raises(ProducerFencedError):
            raise batch.failure()
    assert to.is_empty
    assert to.held_bytes == 0


def test_what_waits_for_another_claim_is_not_claimed_while_something_is_in_doubt() -> None:
    to = named()
    first = put(to, 1)
    take(to)
    second = put(to, 2)
    take(to)
    put(to, 3)
    to.refused(first, RequestError("no"))
    to.refused(second, NotReadyError("later"))
    assert not to.needs_claim
    to.resume()
    assert to.needs_claim
    assert [each.last_sequence for each in to.unresolved()] == [2, 3]


@pytest.mark.parametrize("failover", ["unkeyed", "none"])
def test_records_of_a_name_stay_in_their_partitions(failover: str) -> None:
    assert ProducerSettings(name="n", failover=failover).checked().failover == "none"


async def test_a_name_is_claimed_at_every_partition(tmp_path: Path) -> None:
    async with declared(tmp_path) as (_, client):
        async with client.producer("s", name="n") as first:
            keys = {name: key_of(first, name) for name in (EU, US)}
            for number, name in enumerate((EU, US, EU)):
                receipt = await first.send(b"%d" % number, key=keys[name], sequence=number)
                assert receipt.partition == name
            with pytest.raises(InvalidRecordError, match="may go to any of several"):
                await first.send(b"no", sequence=9)
            assert await first.last_sequences() == {EU: 2, US: 1}
            async with client.producer("s", name="n") as second:
                for key in keys.values():
                    with pytest.raises(ProducerFencedError):
                        await first.send(b"zombie", key=key)
                assert await second.last_sequence() == 1
                assert (await second.send(b"2", key=keys[EU], sequence=2)).duplicate
                assert (await second.send(b"2", key=keys[US], sequence=2)).offset == 1
        assert await logged(client, EU) == [b"0", b"2"]
        assert await logged(client, US) == [b"1", b"2"]


async def test_numbered_records_do_not_gather_for_longer_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is not answered: `acks="all"`, say, and a node is away."""
    async with declared(tmp_path, (EU,)) as (cluster, client):
        opening = client.producer("s", name="n", delivery_timeout_s=2)
        producer = await opening.__aenter__()
        accumulator = producer._publisher._router.senders[0].accumulator
        monkeypatch.setattr(Controller, "_release", lambda _: None)
        publisher = producer._publisher
        await cluster.wait_for("nothing gathers", lambda: publisher._lingering is not None)
        await producer.send_soon(b"1", sequence=1)
        assert accumulator.in_flight == 1
        await producer.send_soon(b"2", sequence=2)
        await cluster.wait_for("sent", lambda: accumulator.in_flight == 2, patience_s=1)
        with pytest.raises(OutcomeUnknownError):
            await opening.__aexit__(None, None, None)
