"""Staged records and sinks: what is seen of them, what is published once, what is dropped, and what
is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hadron.fakes.tables import dump
from hadron.model.errors import ConflictError, NotFoundError, RequestError
from hadron.model.record_batch import decode_batch
from hadron.model.sinks import UNKNOWN, SinkProgress
from hadron.model.transactions import DELETED, DONE, StatementResult, TransactionId
from hadron.state import schema
from hadron.state.bodies import COUNTED_BODY, DropBodies
from hadron.state.events import BatchAppended
from hadron.state.machine import BatchShape, encode
from hadron.state.schema import DeleteObjects
from hadron.state.sinks import progress as sinks
from hadron.state.sinks import staging
from hadron.state.sinks.progress import SINK_IDLE_MS, AdvanceSink
from hadron.state.sinks.staging import DropStaged, GiveUpStaged, PublishStaged, StageBatches
from hadron.state.slices import SLICE_BATCHES, Dropped
from hadron.state.streams import partitions as streams
from hadron.state.tests.parted import BALLOT, SET, a_batch
from hadron.state.tests.transacting import Transacting, transacting
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents

W, V = b"w" * 16, b"v" * 16
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HOUR_MS = 3_600_000


@pytest.fixture
def file() -> Iterator[Transacting]:
    with transacting() as found:
        yield found


def stage(
    file: Transacting,
    attempt: bytes,
    *texts: str,
    write: bytes = W,
    first: int = 0,
    stream: int = 1,
    kept_ms: int = HOUR_MS,
) -> int:
    batches = [a_batch(text) for text in texts]
    shapes = tuple(BatchShape(1, len(each)) for each in batches)
    command = StageBatches(file.streams[stream], write, attempt, first, shapes, kept_ms, "label")
    found: int = file.result(command, b"".join(batches))
    return found


def publication(file: Transacting, *attempts: tuple[bytes, int], write: bytes = W) -> PublishStaged:
    return PublishStaged(file.streams[1], write, attempts)


def decide(file: Transacting, number: int, *commands: Any) -> tuple[StatementResult, ...]:
    transaction = TransactionId.of(SET, BALLOT, number)
    decided = file.result(Decide(transaction, (), tuple(map(encode, commands))))
    results: tuple[StatementResult, ...] = decided.results
    return results


def other(number: int) -> TransactionId:
    return TransactionId("eu/p0", 1, 4, number)


def read(file: Transacting) -> list[str]:
    """The texts in the stream, and that a replica that has run the same commands is the same."""
    check(file)
    batches = (decode_batch(each, base_offset=0, stream="", partition="") for each in file.read(1))
    return [record.value for batch in batches for record in batch.records()]


def check(file: Transacting) -> None:
    assert file.problems() == []
    assert file.replica() == dump(file.db)


def parts(file: Transacting) -> int:
    row: Any = file.db.execute(f"SELECT count(*) FROM {staging.STAGED_PART}").fetchone()
    return int(row[0])


# --- published once, whole ------------------------------------------------------------------------


def test_staged_records_are_in_no_stream_until_they_are_published(file: Transacting) -> None:
    assert stage(file, A, "a0", "a1") == 2
    assert stage(file, A, "a2", first=2) == 3
    assert stage(file, B, "b0") == 1
    assert read(file) == []
    assert not [event for event in file.events if isinstance(event, BatchAppended)]
    file.result(*file.publish(1, "other"))

    results = decide(file, 1, publication(file, (B, 1), (A, 3)))
    assert results == (StatementResult(1, 4, results[0].append_ms),)
    assert read(file) == ["other", "b0", "a0", "a1", "a2"]
    assert staging.all_staged(file.db) == []
    assert parts(file) == 0
    check(file)


def test_what_is_staged_is_published_once(file: Transacting) -> None:
    stage(file, A, "a")
    decide(file, 1, publication(file, (A, 1)))
    with pytest.raises(NotFoundError, match="is not staged on some/where"):
        decide(file, 2, publication(file, (A, 1)))
    assert read(file) == ["a"]


def test_an_attempt_is_published_whole_or_not_at_all(file: Transacting) -> None:
    stage(file, A, "a0", "a1")
    stage(file, B, "b0", write=V)
    wrong: list[tuple[tuple[bytes, int], ...]] = [((A, 1),), ((A, 3),), ((A, 2), (B, 1)), ((C, 1),)]
    for attempts in (*wrong, (), ((A, 2), (A, 2))):
        with pytest.raises(RequestError):
            decide(file, 1, publication(file, *attempts))
    assert read(file) == []
    decide(file, 2, publication(file, (A, 2)))
    assert read(file) == ["a0", "a1"]


def test_what_is_sent_again_is_known_and_nothing_is_passed_over(file: Transacting) -> None:
    stage(file, A, "a0", "a1")
    before = file.number
    assert stage(file, A, "a0", "a1") == 2
    assert file.number == before, "nothing was logged"
    for texts, first in ((("longer than it was",), 0), (("a3",), 3), (("a1",), 1)):
        with pytest.raises(RequestError, match="number batches in order"):
            stage(file, A, *texts, first=first)
    with pytest.raises(RequestError, match="has expired, or was given up"):
        stage(file, C, "c1", first=1)


def test_attempts_that_lost_are_given_up_by_the_publication(file: Transacting) -> None:
    stage(file, A, "a")
    stage(file, B, "the same, by a task that was slow")
    stage(file, C, "of another write", write=V)
    decide(file, 1, publication(file, (A, 1)))
    assert file.result(DropStaged(0)) == Dropped(1, is_done=True)
    assert [each.attempt for each in staging.all_staged(file.db)] == [C]
    check(file)


def test_a_prepared_publication_is_finished_whatever_others_do(file: Transacting) -> None:
    stage(file, A, "a", kept_ms=1)
    prepared = file.result(WriteIntents(other(7), 0, (encode(publication(file, (A, 1))),)))
    with pytest.raises(ConflictError, match=r"eu/p0/1\.4/7 holds staged"):
        file.result(GiveUpStaged(W))
    with pytest.raises(ConflictError):
        stage(file, A, "more", first=1)
    with pytest.raises(ConflictError):
        decide(file, 1, publication(file, (A, 1)))
    file.result(DropStaged(10**9))
    results = file.result(FinishTransaction(other(7), *prepared))
    assert results[0].count == 1
    assert read(file) == ["a"]
    check(file)


def test_what_an_aborted_transaction_wanted_to_publish_stays_staged(file: Transacting) -> None:
    stage(file, A, "a")
    file.result(WriteIntents(other(7), 0, (encode(publication(file, (A, 1))),)))
    file.result(AbortTransaction(other(7)))
    decide(file, 1, publication(file, (A, 1)))
    assert read(file) == ["a"]


def test_a_stream_that_was_deleted_meanwhile_gets_nothing(file: Transacting) -> None:
    stage(file, A, "a")
    prepared = file.result(WriteIntents(other(7), 0, (encode(publication(file, (A, 1))),)))
    file.result(DeleteObjects(schema.current_index(file.db), (file.streams[1],)))
    assert file.result(FinishTransaction(other(7), *prepared)) == (DELETED,)
    assert file.result(DropStaged(0)).is_done
    assert parts(file) == 0


# --- given up, expired ----------------------------------------------------------------------------


def test_giving_up_never_undoes_what_is_published(file: Transacting) -> None:
    stage(file, A, "a")
    decide(file, 1, publication(file, (A, 1)))
    assert file.result(GiveUpStaged(W)) == 0
    file.result(DropStaged(10**12))
    file.result(DropBodies(file.number))
    assert read(file) == ["a"]
    check(file)


def test_what_is_given_up_cannot_be_published_and_goes(file: Transacting) -> None:
    stage(file, A, "a")
    assert file.result(GiveUpStaged(W)) == 1
    with pytest.raises(NotFoundError):
        decide(file, 1, publication(file, (A, 1)))
    with pytest.raises(RequestError, match="is given up"):
        stage(file, A, "more", first=1)
    assert staging.next_expiry(file.db) == -1
    assert file.result(DropStaged(0)) == Dropped(1, is_done=True)
    assert file.result(DropBodies(file.number)).rows == 1
    assert file.db.execute(f"SELECT count(*) FROM {COUNTED_BODY}").fetchone() == (0,)
    assert staging.next_expiry(file.db) is None


def test_orphans_expire_and_others_are_kept_by_their_latest_batch(file: Transacting) -> None:
    stage(file, A, "a0", kept_ms=5)
    stage(file, B, "b0", kept_ms=5)
    stage(file, A, "a1", first=1, kept_ms=1_000)
    (kept,) = (each for each in staging.all_staged(file.db) if each.attempt == A)
    assert file.result(DropStaged(kept.expires_ms)) == Dropped(1, is_done=True)
    assert [each.attempt for each in staging.all_staged(file.db)] == [A]
    decide(file, 1, publication(file, (A, 2)))
    assert read(file) == ["a0", "a1"]


def test_much_goes_in_slices_and_what_is_partial_is_never_published(file: Transacting) -> None:
    for first in range(SLICE_BATCHES + 2):
        stage(file, A, "a", first=first, kept_ms=1)
    assert file.result(DropStaged(10**9)) == Dropped(1)
    with pytest.raises(NotFoundError):
        decide(file, 1, publication(file, (A, SLICE_BATCHES + 2)))
    check(file)
    assert file.result(DropStaged(0)) == Dropped(1, is_done=True)
    assert file.result(DropStaged(0)) == Dropped(0, is_done=True)


def test_what_cannot_be_staged_is_refused_in_words(file: Transacting) -> None:
    with pytest.raises(RequestError, match="has an index of keys"):
        stage(file, A, "a", stream=3)
    with pytest.raises(RequestError, match="16 random bytes"):
        stage(file, b"short", "a")
    with pytest.raises(RequestError, match="nothing is staged for 0 ms"):
        stage(file, A, "a", kept_ms=0)
    with pytest.raises(RequestError, match="number them from 0"):
        stage(file, A, "a", first=staging.MAX_STAGED_BATCHES)
    batch = a_batch("a")
    shape = (BatchShape(1, len(batch)),)
    with pytest.raises(NotFoundError):
        file.result(StageBatches(999, W, A, 0, shape, HOUR_MS), batch)
    with pytest.raises(RequestError, match="put it into one"):
        file.result(publication(file, (A, 1)))
    assert streams.bounds(file.db, file.streams[1]) == (0, 0)


# --- sinks ----------------------------------------------------------------------------------------


def advance(batch: int, query: str = "q", follows: str = "") -> AdvanceSink:
    return AdvanceSink("default/s", query, batch, follows)


def test_a_batch_is_published_once_however_often_its_query_repeats_it(file: Transacting) -> None:
    stage(file, A, "first try")
    stage(file, B, "second try", write=V)
    assert decide(file, 1, publication(file, (A, 1)), advance(0))[1] == DONE
    with pytest.raises(RequestError, match=r"batch 0 .* is published already"):
        decide(file, 2, publication(file, (B, 1), write=V), advance(0))
    assert read(file) == ["first try"]
    assert sinks.find(file.db, "default/s") == SinkProgress(
        "default/s", "q", 0, 1_000 + file.number - 1
    )
    decide(file, 3, publication(file, (B, 1), write=V), advance(5))
    assert read(file) == ["first try", "second try"]


def test_of_two_transactions_that_publish_a_batch_one_commits(file: Transacting) -> None:
    prepared = file.result(WriteIntents(other(7), 0, (encode(advance(0)),)))
    with pytest.raises(ConflictError, match="holds sink"):
        decide(file, 1, advance(0))
    file.result(FinishTransaction(other(7), *prepared))
    with pytest.raises(RequestError, match="already"):
        decide(file, 1, advance(0))


def test_a_query_that_is_not_the_sinks_is_refused_unless_it_follows_it(file: Transacting) -> None:
    with pytest.raises(RequestError, match=r"not known.*"):
        decide(file, 1, advance(3))
    decide(file, 1, advance(3, follows=UNKNOWN))
    for batch, follows in ((0, ""), (4, "someone"), (4, UNKNOWN)):
        with pytest.raises(RequestError, match="is query q's, at batch 3, and not query r's"):
            decide(file, 2, advance(batch, "r", follows))
    decide(file, 2, advance(0, "r", "q"))
    decide(file, 3, advance(1, "r", "q"))
    with pytest.raises(RequestError, match="already"):
        decide(file, 4, advance(1, "r", "q"))
    with pytest.raises(RequestError, match="is query r's"):
        decide(file, 4, advance(4, "q"))
    assert sinks.all_sinks(file.db)[0][1:3] == ("r", 1)


def test_a_program_without_a_query_begins_anywhere(file: Transacting) -> None:
    decide(file, 1, advance(20_260_105, ""))
    with pytest.raises(RequestError, match="already"):
        decide(file, 2, advance(20_260_105, ""))
    with pytest.raises(RequestError, match=r"is query \(none\)'s"):
        decide(file, 2, advance(20_260_106))


def test_sinks_that_are_idle_for_long_are_known_while_there_is_room(file: Transacting) -> None:
    """A batch that is repeated after months is published already: of a monthly job, say."""
    decide(file, 1, advance(0))
    decide(file, 2, AdvanceSink("default/monthly", "", 20_260_105))
    file.db.execute(f"UPDATE {sinks.SINK} SET published_ms = published_ms - {2 * SINK_IDLE_MS}")
    decide(file, 3, AdvanceSink("default/t", "q", 0))
    for command in (advance(0), AdvanceSink("default/monthly", "", 20_260_105)):
        with pytest.raises(RequestError, match="is published already"):
            decide(file, 4, command)


def test_sinks_that_are_idle_for_long_are_forgotten_for_new_ones(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "MAX_SINKS", 1)
    decide(file, 1, advance(0))
    with pytest.raises(RequestError, match="1 sinks are known"):
        decide(file, 2, AdvanceSink("default/t", "q", 0))
    file.db.execute(f"UPDATE {sinks.SINK} SET published_ms = published_ms - {2 * SINK_IDLE_MS}")
    decide(file, 2, AdvanceSink("default/t", "q", 0))
    assert [each.name for each in sinks.all_sinks(file.db)] == ["default/t"]


def test_only_so_many_sinks_are_known_whoever_brings_them(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one transaction, and of those that are prepared: a finish is not refused."""
    monkeypatch.setattr(sinks, "MAX_SINKS", 3)
    new = [AdvanceSink(f"default/{name}", "q", 0) for name in range(5)]
    with pytest.raises(RequestError, match="3 sinks are known"):
        decide(file, 1, *new)
    prepared = file.result(WriteIntents(other(7), 0, (encode(new[0]), encode(new[1]))))
    with pytest.raises(RequestError, match="0 sinks are known"):
        file.result(WriteIntents(other(8), 0, (encode(new[2]), encode(new[3]))))
    with pytest.raises(RequestError, match="1 sinks are known"):
        decide(file, 2, new[2], new[3])
    decide(file, 3, new[2])
    with pytest.raises(RequestError, match="1 sinks are known"):
        decide(file, 4, new[3])
    file.result(FinishTransaction(other(7), *prepared))
    assert len(sinks.all_sinks(file.db)) == 3
    decide(file, 5, AdvanceSink("default/0", "q", 1))


def test_only_so_many_sinks_are_prepared(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_MAX_PREPARED", 1)
    prepared = file.result(WriteIntents(other(7), 0, (encode(advance(0)),)))
    with pytest.raises(RequestError, match="1 transactions that are prepared") as caught:
        decide(file, 1, AdvanceSink("default/t", "q", 0))
    assert caught.value.retryable
    file.result(FinishTransaction(other(7), *prepared))
    decide(file, 1, AdvanceSink("default/t", "q", 0))


@pytest.mark.parametrize("command", [advance(-1), advance(0, "none"), AdvanceSink("", "q", 0)])
def test_what_is_no_sink_is_refused(file: Transacting, command: AdvanceSink) -> None:
    with pytest.raises(RequestError):
        decide(file, 1, command)


def test_a_transaction_advances_a_sink_and_publishes_a_write_once(file: Transacting) -> None:
    stage(file, A, "a")
    stage(file, B, "b")
    with pytest.raises(RequestError, match="with another statement already"):
        decide(file, 1, advance(5, ""), advance(3, ""))
    for attempts in (((A, 1),), ((B, 1),)):
        with pytest.raises(RequestError, match="with another statement already"):
            decide(file, 1, publication(file, (A, 1)), publication(file, *attempts))
    assert sinks.all_sinks(file.db) == []
    assert read(file) == []
    decide(file, 1, publication(file, (A, 1), (B, 1)), advance(5, ""))
    assert read(file) == ["a", "b"]
