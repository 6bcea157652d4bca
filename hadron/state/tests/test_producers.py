"""Names of producers: who has one, and what is known by it."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch import producer_id_of
from hadron.model.errors import NotFoundError, ProducerFencedError, RequestError, SequenceError
from hadron.model.limits import (
    MAX_PRODUCER_NAMES,
    PRODUCER_IDLE_MS,
    PRODUCER_IDLE_STEP_MS,
    PRODUCER_NAME_IDLE_MS,
)
from hadron.model.schema import StreamSpec
from hadron.state.dropping import DropObject
from hadron.state.schema import DeleteObjects
from hadron.state.streams import partitions as streams
from hadron.state.streams import producers
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import NO_CLAIM, Claimed, ClaimProducer, claim_of

NAME = "billing-3"
PID = producer_id_of(NAME)


@pytest.fixture
def tables() -> Replicated:
    tables = Replicated()
    tables.declare(("Stream", "s", StreamSpec(partitions=(SET,))))
    return tables


def claim(tables: Replicated, token: bytes, name: str = NAME, after: int | None = None) -> Claimed:
    if after is None:
        after = claim_of(tables.db, 1, name).claim
    claimed: Claimed = tables.submit(ClaimProducer(1, name, after, token))
    return claimed


def batch(epoch: int, sequence: int, count: int = 1) -> AppendBatch:
    return AppendBatch(1, count, 100, PID, epoch, sequence)


def numbered(epoch: int, sequence: int, last: int, count: int = 1) -> AppendGuarded:
    return AppendGuarded(1, count, 100, PID, epoch, sequence, last_sequence=last)


def names(tables: Replicated) -> set[str]:
    return {row[0] for row in tables.rows("SELECT name FROM hadron_producer_name")}


def test_a_name_is_claimed_and_its_producer_begins_at_0(tables: Replicated) -> None:
    assert claim_of(tables.db, 1, NAME) == Claimed(NO_CLAIM, -1)
    first = claim(tables, b"t1")
    assert claim_of(tables.db, 1, NAME) == first
    assert tables.submit(batch(first.claim, 0)).base_offset == 0
    assert tables.submit(batch(first.claim, 1)).base_offset == 1


def test_the_next_one_shuts_it_out(tables: Replicated) -> None:
    """Also what it sends again, and what it has sent before the next one has sent anything."""
    first = claim(tables, b"t1")
    tables.submit(batch(first.claim, 0))
    second = claim(tables, b"t2")
    assert second.claim > first.claim
    for sequence in (0, 1, 7):
        with pytest.raises(ProducerFencedError, match="'billing-3' was opened again") as caught:
            tables.submit(batch(first.claim, sequence))
        assert not caught.value.retryable
    assert tables.submit(batch(second.claim, 0)).base_offset == 1
    with pytest.raises(ProducerFencedError):
        tables.submit(numbered(first.claim, 1, 5))
    assert streams.bounds(tables.db, 1).next_offset == 2


def test_a_claim_that_is_repeated_is_the_same(tables: Replicated) -> None:
    first = claim(tables, b"t1")
    assert claim(tables, b"t1", after=NO_CLAIM) == first
    assert tables.again


def test_a_claim_that_comes_late_shuts_nobody_out(tables: Replicated) -> None:
    first = claim(tables, b"t1")
    second = claim(tables, b"t2")
    for after in (NO_CLAIM, first.claim):
        with pytest.raises(ProducerFencedError):
            claim(tables, b"t1", after=after)
    assert tables.submit(batch(second.claim, 0)).base_offset == 0


def test_a_refused_claim_keeps_no_statement_open(tables: Replicated) -> None:
    """Who asked is told once all before it is committed, and checkpoints are made until then: one
    was refused by SQLite, as "database table is locked", and the node ended itself."""
    first = claim(tables, b"t1")
    with pytest.raises(ProducerFencedError) as refusal:
        claim(tables, b"t0", after=NO_CLAIM)
    assert first.claim != NO_CLAIM
    # This, too, only works while no statement is open.
    tables.db.execute("VACUUM")
    assert refusal.value.__traceback__ is not None


def test_what_its_program_has_numbered_outlives_it(tables: Replicated) -> None:
    first = claim(tables, b"t1")
    tables.submit(numbered(first.claim, 0, 17, 3))
    assert tables.submit(numbered(first.claim, 0, 17, 3)).duplicate
    assert claim(tables, b"t2").last_sequence == 17
    second = claim_of(tables.db, 1, NAME)
    with pytest.raises(RequestError, match="gives the sequence 17 where it was at 17"):
        tables.submit(numbered(second.claim, 0, 17))
    tables.submit(numbered(second.claim, 0, 18))
    tables.submit(batch(second.claim, 1))
    assert claim(tables, b"t3").last_sequence == 18


def test_a_sequence_is_a_named_producers(tables: Replicated) -> None:
    with pytest.raises(RequestError, match="has no name here"):
        tables.submit(AppendGuarded(1, 1, 100, b"x" * 16, 0, 0, last_sequence=1))


def test_names_are_apart(tables: Replicated) -> None:
    first = claim(tables, b"t1")
    claim(tables, b"t1", "billing-4")
    assert tables.submit(batch(first.claim, 0)).base_offset == 0
    assert names(tables) == {NAME, "billing-4"}


def test_without_a_partition_there_is_no_name(tables: Replicated) -> None:
    with pytest.raises(NotFoundError):
        tables.submit(ClaimProducer(9, NAME, NO_CLAIM, b"t"))


class TestEviction:
    def test_a_name_is_kept_longer_than_others(self, tables: Replicated) -> None:
        first = claim(tables, b"t1")
        tables.submit(numbered(first.claim, 0, 17))
        tables.now_ms += PRODUCER_IDLE_MS * 2
        tables.submit(AppendBatch(1, 1, 100, bytes(16), 0, 0))
        assert tables.submit(numbered(first.claim, 1, 18)).base_offset > 0

    def test_and_forgotten_when_another_comes(self, tables: Replicated) -> None:
        first = claim(tables, b"t1")
        tables.submit(numbered(first.claim, 0, 17))
        tables.now_ms += PRODUCER_NAME_IDLE_MS + PRODUCER_IDLE_STEP_MS
        claim(tables, b"t", "second")
        assert names(tables) == {NAME, "second"}
        tables.now_ms += 1
        claim(tables, b"t", "third")
        assert names(tables) == {"second", "third"}
        with pytest.raises(SequenceError):
            tables.submit(numbered(first.claim, 1, 18))
        assert claim(tables, b"t2").claim > first.claim

    def test_there_may_be_so_many(
        self, tables: Replicated, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert MAX_PRODUCER_NAMES >= 255
        monkeypatch.setattr(producers, "MAX_PRODUCER_NAMES", 3)
        for number in range(3):
            claim(tables, b"t", f"n{number}")
        with pytest.raises(RequestError, match="knows 3 names of producers"):
            claim(tables, b"t", "n3")
        claim(tables, b"t2", "n1")

    def test_names_go_with_their_stream(self, tables: Replicated) -> None:
        claim(tables, b"t1")
        tables.submit(DeleteObjects(1, (1,)))
        assert tables.submit(DropObject(1, 1 << 40)).is_done
        assert names(tables) == set()
