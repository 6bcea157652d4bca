"""Transactions at a participant: what is refused early, what is locked, what a finish does, and
what comes late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hadron.fakes.tables import dump, locked
from hadron.model.errors import ConflictError, NotFoundError, RequestError, StaleCompletionError
from hadron.model.limits import MAX_SET_STATEMENTS
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import spec_to_json
from hadron.model.transactions import (
    DELETED,
    DELIVERIES,
    DONE,
    STAGES,
    Lock,
    StatementResult,
    TransactionId,
)
from hadron.state import bodies, schema
from hadron.state.bodies import COUNTED_BODY, DropBodies
from hadron.state.dropping import DropObject
from hadron.state.events import BatchAppended, BodyReleased
from hadron.state.features import FEATURES
from hadron.state.groups import attempts
from hadron.state.groups import progress as groups
from hadron.state.groups.changes import ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import CreateGroup
from hadron.state.machine import Command, Context, Feature, StateMachine, Statement, encode
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.stage_runs import Completed, CompleteStages, FailStages
from hadron.state.schema import ApplySchema, DeleteObjects, ObjectChange
from hadron.state.slices import Dropped
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.state.tests.parted import SET, a_batch
from hadron.state.tests.transacting import RECORDS, Transacting, joined, transacting
from hadron.state.together import DoTogether
from hadron.state.transactions import intents, participations
from hadron.state.transactions.events import (
    IntentsWritten,
    RecordsAcknowledged,
    TransactionAborted,
    TransactionFinished,
)
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    Prepared,
    WriteIntents,
)

T, OTHER = TransactionId("eu/p0", 1, 4, 7), TransactionId("eu/p0", 1, 4, 8)


@pytest.fixture
def file() -> Iterator[Transacting]:
    with transacting() as found:
        yield found


def write(
    file: Transacting, *parts: tuple[Command, bytes], tx: TransactionId = T, first: int = 0
) -> Prepared:
    statements, body = joined(parts)
    found: Prepared = file.result(WriteIntents(tx, first, statements), body)
    return found


def finish(
    file: Transacting, prepared: Prepared, tx: TransactionId = T
) -> tuple[StatementResult, ...]:
    found: tuple[StatementResult, ...] = file.result(FinishTransaction(tx, *prepared))
    return found


def delete(file: Transacting, object_id: int) -> None:
    file.result(DeleteObjects(schema.current_index(file.db), (object_id,)))


# --- what nobody sees before the finish, and everybody after it -----------------------------------


def test_an_intent_is_in_no_stream_until_its_transaction_is_finished(file: Transacting) -> None:
    a, b, c = file.publish(1, "a"), file.publish(2, "b"), file.publish(1, "c")
    prepared = write(file, a, b, c)
    assert file.read(1) == file.read(2) == []
    assert streams.bounds(file.db, file.streams[1]) == (0, 0)
    assert not [event for event in file.events if isinstance(event, BatchAppended)]
    later = file.publish(1, "later")
    file.result(*later)
    results = finish(file, prepared)
    now_ms = results[0].append_ms
    assert results == tuple(StatementResult(base, 1, now_ms) for base in (1, 0, 2))
    assert file.read(1) == [later[1], a[1], c[1]], "an offset is given when all is finished"
    assert [type(event) for event in file.events] == [BatchAppended] * 3 + [TransactionFinished]
    assert file.problems() == []


def test_bytes_are_written_once_and_found_where_they_came(file: Transacting) -> None:
    a, b = file.publish(1, "a"), file.publish(2, "b")
    prepared = write(file, a, b)
    known = file.bodies()
    finish(file, prepared)
    assert file.bodies() == known
    assert file.db.execute(f"SELECT batches, holds FROM {COUNTED_BODY}").fetchall() == [(2, 0)]
    for number, (_, data) in ((1, a), (2, b)):
        file.result(TrimStream(file.streams[number], 1))
        assert (prepared.prepared_lsn in file.bodies()) == (data is a[1])


def test_statements_are_done_in_their_order_however_they_came(file: Transacting) -> None:
    write(file, file.publish(1, "third"), first=2)
    prepared = write(file, first := file.publish(1, "first"), second := file.publish(1, "second"))
    finish(file, prepared)
    assert file.read(1)[:2] == [first[1], second[1]]


def test_an_acknowledgement_and_outputs_are_one(file: Transacting) -> None:
    prepared = write(file, file.publish(1, "out"), file.ack(0, 1, 2), file.complete(1, 2))
    assert groups.reach(file.db, file.group)[0] == 0
    results = finish(file, prepared)
    assert groups.reach(file.db, file.group)[0] == 3
    assert results[1] == DONE
    assert results[2] == StatementResult(0, 2, results[2].append_ms)
    (told,) = (each for each in file.events if isinstance(each, RecordsAcknowledged))
    assert (told.group_id, told.ranges, told.floor) == (file.group, ((0, 2),), 3)
    assert file.result(*file.complete(1)).stale == (1,)


def test_an_abort_leaves_nothing(file: Transacting) -> None:
    before = dump(file.db)
    prepared = write(file, file.publish(1, "a"), file.ack(3), file.fail(4))
    assert [type(each) for each in file.events] == [IntentsWritten]
    file.result(AbortTransaction(T))
    assert [type(each) for each in file.events] == [BodyReleased, TransactionAborted]
    assert participations.find(file.db, T) is None
    assert file.problems() == []
    file.result(DropBodies(file.number))
    assert prepared.prepared_lsn not in file.bodies()
    assert dump(file.db) == before


def test_a_stream_that_is_trimmed_or_read_does_not_wait_for_an_intent(file: Transacting) -> None:
    prepared = write(file, a := file.publish(0, "a"), file.ack(0))
    assert file.result(TrimStream(file.streams[0], RECORDS)).first_offset == RECORDS
    assert finish(file, prepared)[0].base_offset == RECORDS
    assert file.read(0) == [a[1]]
    assert file.problems() == []


# --- what is refused when it is prepared ----------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda _: (AppendBatch(99, 1, 9, b"", 0, -1), b""), NotFoundError, "no partition"),
        (
            lambda f: (AppendBatch(f.streams[1], 1, 9, b"p" * 16, 0, 0), b""),
            RequestError,
            "number statements instead",
        ),
        (lambda f: f.ack(0, group=99), NotFoundError, "group 99 does not exist"),
        (lambda f: f.ack(RECORDS), RequestError, f"stream ends at {RECORDS}"),
        (lambda f: f.ack(1, 2), RequestError, "has acknowledged some"),
        (lambda f: f.complete(1, attempt=2), StaleCompletionError, "instance 1 of pipeline"),
        (lambda f: f.complete(99), StaleCompletionError, "instance 99"),
        (lambda f: f.fail(1, 99), StaleCompletionError, "instance 99"),
        (lambda _: (CreateGroup(1, "g", 0), b""), RequestError, "CreateGroup cannot stand in a"),
        (
            lambda _: (DoTogether(()), b""),
            RequestError,
            "these can: AckRecords, AdvanceSink, AppendBatch",
        ),
    ],
)
def test_what_could_be_refused_later_is_refused_now(
    file: Transacting, make: object, kind: type[Exception], message: str
) -> None:
    assert callable(make)
    file.result(*file.ack(2))
    before = dump(file.db)
    with pytest.raises(kind, match=message):
        write(file, file.publish(1, "good"), make(file))
    assert dump(file.db) == before


def test_a_transaction_has_limits(file: Transacting) -> None:
    command, data = file.publish(1, "a")
    with pytest.raises(RequestError, match=r"cannot be of transaction eu/p0/1\.4/7"):
        file.result(WriteIntents(T, MAX_SET_STATEMENTS, (encode(command),)), data)
    with pytest.raises(RequestError, match="0 statements"):
        file.result(WriteIntents(T, 0, ()))
    large = AppendBatch(file.streams[1], 1, 65 << 20, b"", 0, -1)
    with pytest.raises(RequestError, match="commit more often"):
        file.result(WriteIntents(T, 0, (encode(large),)))


@pytest.mark.parametrize("change", [{"number": -1}, {"epoch": 1 << 63}, {"replica_set": "a/b/c"}])
def test_what_is_no_id_is_refused(file: Transacting, change: dict[str, object]) -> None:
    command, data = file.publish(1, "a")
    with pytest.raises(RequestError, match="is not a transaction's id"):
        file.result(WriteIntents(T._replace(**change), 0, (encode(command),)), data)  # type: ignore[arg-type]


# --- locks ----------------------------------------------------------------------------------------


def test_who_ends_what_a_transaction_holds_is_told_whose_it_is(file: Transacting) -> None:
    write(file, file.ack(2, 3, 4), file.complete(5, 6))
    letter = a_batch("letter")
    others: list[tuple[Command, bytes]] = [
        file.ack(0, 1, 2),
        (EndDeliveries(file.group, ((0, 0, 1),), ((3, 9),)), b""),
        (DeadLetterRecords(file.group, file.streams[1], ((4, 4),), len(letter)), letter),
        file.complete(4, 5),
        file.fail(6),
    ]
    for command, data in others:
        with pytest.raises(ConflictError, match=r"transaction eu/p0/1\.4/7 holds") as refused:
            file.result(command, data)
        assert refused.value.retryable
    for part in (file.ack(4, 5), file.fail(5)):
        with pytest.raises(ConflictError, match=r"transaction eu/p0/1\.4/7 holds"):
            write(file, part, tx=OTHER)
    assert locked(file.db, DELIVERIES, file.group) == [(2, 4)]
    assert locked(file.db, STAGES, file.pipeline, "one") == [(5, 6)]
    file.result(*file.ack(0, 1, 5))
    file.result(*file.complete(4, 7))
    write(file, file.ack(6), file.fail(8), tx=OTHER)


def test_attempts_before_a_transaction_are_counted_whenever_they_are_logged(
    file: Transacting,
) -> None:
    """One member's deadline has passed, another acknowledges in a transaction, and what is logged
    of the first one comes behind it: refused, it would end the group."""
    write(file, file.ack(4))
    file.result(EndDeliveries(file.group, ((4, 4, 1),)))
    file.result(AbortTransaction(T))
    assert attempts.from_offset(file.db, file.group, 0, 9) == [(4, 4, 1)]
    prepared = write(file, file.ack(4), tx=OTHER)
    finish(file, prepared, OTHER)
    assert attempts.from_offset(file.db, file.group, 0, 9) == []


def test_an_instance_that_has_ended_is_kept_while_a_transaction_ends_a_stage_of_it(
    file: Transacting,
) -> None:
    """The finish would find one stale stage, and leave out all that the statement completes."""
    once = Retry(1, 100)
    stages = (
        StageSpec(name="a", run="m:f", retry=once, output=Output("s2")),
        StageSpec(name="b", run="m:f", retry=once),
    )
    spec = PipelineSpec(replica_set=SET, input="s0", stages=stages, start="earliest")
    change = ObjectChange("Pipeline", "default", "q", spec_to_json(spec).decode())
    (pipeline,) = file.result(ApplySchema(schema.current_index(file.db), (change,)))
    file.result(TriggerInstances(pipeline.id, SET, 0, RECORDS, tuple(range(RECORDS))))
    data = a_batch("out", 3)
    completion = CompleteStages(pipeline.id, "a", (1, 2, 3), (1, 1, 1), file.streams[2], len(data))
    prepared = write(file, (completion, data))
    file.result(FailStages(pipeline.id, "b", (1,), (1,), "why"))
    assert file.result(DropInstances(pipeline.id, 1 << 60)) == Dropped(0, is_done=True)
    assert [(each.count, each.is_deleted) for each in finish(file, prepared)] == [(3, False)]
    assert file.result(DropInstances(pipeline.id, 1 << 60)) == Dropped(1, is_done=True)


def test_locks_go_with_an_abort_and_with_a_finish(file: Transacting) -> None:
    write(file, file.ack(2), file.fail(5))
    file.result(AbortTransaction(T))
    prepared = write(file, file.ack(2), file.fail(5), tx=OTHER)
    finish(file, prepared, OTHER)
    assert locked(file.db, DELIVERIES, file.group) == []
    assert file.result(*file.ack(2)) == 0, "acknowledged twice is acknowledged once"
    file.result(*file.complete(5, attempt=2))


def test_a_transaction_meets_itself(file: Transacting) -> None:
    """What it acknowledges twice it acknowledges once; a stage has one end."""
    write(file, file.ack(3, 4))
    prepared = write(file, file.ack(2, 3, 4, 5), first=1)
    assert locked(file.db, DELIVERIES, file.group) == [(2, 2), (3, 4), (5, 5)]
    write(file, file.fail(5), first=2)
    with pytest.raises(RequestError, match="with another statement already"):
        write(file, file.complete(5), first=3)
    assert finish(file, prepared._replace(statements=3)) == (DONE, DONE, DONE)
    assert groups.unacknowledged(file.db, file.group, 0, 6) == [(0, 1), (6, 6)]


def test_there_is_nothing_to_wait_for_so_nobody_waits(file: Transacting) -> None:
    """Each has what the other wants next: both are refused, and may roll back."""
    write(file, file.ack(1))
    write(file, file.ack(2), tx=OTHER)
    with pytest.raises(ConflictError):
        write(file, file.ack(2), first=1)
    with pytest.raises(ConflictError):
        write(file, file.ack(1), tx=OTHER, first=1)


class Cross(Command, frozen=True, array_like=True, tag=125):
    """A later feature's command: cross a bridge."""

    bridge: int


def test_a_later_feature_has_statements_of_its_own(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossed: list[int] = []

    def cross(_context: Context, command: Cross) -> StatementResult:
        crossed.append(command.bridge)
        return DONE

    feature = Feature(
        name="bridges",
        commands={Cross: cross},
        statements={
            Cross: Statement(
                check=lambda _context, _command: None,
                apply=cross,
                locks=lambda command: (Lock("bridge", 3, "", ((command.bridge, command.bridge),)),),
            )
        },
    )
    machine = StateMachine((*FEATURES, feature), version=1)
    monkeypatch.setattr("hadron.state.tests.parted.MACHINE", machine)
    prepared = write(file, (Cross(7), b""), file.publish(1, "a"))
    with pytest.raises(ConflictError, match="holds bridge 7 of 3"):
        write(file, (Cross(7), b""), tx=OTHER)
    with pytest.raises(RequestError, match="ends bridge 7 of 3 with another statement"):
        write(file, (Cross(7), b""), first=2)
    assert finish(file, prepared)[0] == DONE
    assert crossed == [7]


# --- a second time, and late ----------------------------------------------------------------------


def test_intents_that_come_again_are_known(file: Transacting) -> None:
    part = file.publish(1, "a")
    prepared = write(file, part)
    assert file.run(WriteIntents(T, 0, joined([part])[0]), part[1]).command is None
    finish(file, prepared)
    again = file.run(WriteIntents(T, 0, joined([part])[0]), part[1])
    assert (again.command, again.result) == (None, prepared)
    for first, parts in ((0, [part, part]), (1, [part])):
        with pytest.raises(RequestError, match="was finished without them"):
            write(file, *parts, first=first)


def test_other_statements_under_known_numbers_are_refused(file: Transacting) -> None:
    write(file, file.publish(1, "a"), file.publish(1, "b"))
    for first in (0, 1):
        with pytest.raises(RequestError, match="has other statements than these"):
            write(file, file.publish(1, "other"), first=first)


def test_a_finish_is_done_once_and_answers_as_it_did_then(file: Transacting) -> None:
    prepared = write(file, a := file.publish(1, "a"), file.ack(0))
    results = finish(file, prepared)
    again = file.run(FinishTransaction(T, *prepared))
    assert (again.command, again.result) == (None, results)
    assert file.read(1) == [a[1]]
    with pytest.raises(RequestError, match="was committed"):
        file.result(AbortTransaction(T))
    assert participations.results(file.db, T) == results
    file.result(ForgetTransactions((T,)))
    assert participations.find(file.db, T) is None
    assert file.run(ForgetTransactions((T,))).command is None
    with pytest.raises(NotFoundError, match="nothing is known"):
        finish(file, prepared)


def test_several_are_forgotten_at_once_but_what_is_not_finished(file: Transacting) -> None:
    one, open_, two, unknown = (T._replace(number=each) for each in (1, 2, 3, 4))
    for tx in (one, two):
        finish(file, write(file, file.publish(1, "a"), tx=tx), tx=tx)
    write(file, file.publish(1, "b"), tx=open_)
    command = ForgetTransactions((one, unknown, open_, two))
    assert file.result(command) == (open_,)
    again = file.run(command)
    assert (again.command, again.result) == (None, (open_,))
    held = participations.held(file.db, after_lsn=0, limit=9)
    assert [each.transaction for each in held] == [open_]
    assert dump(file.db) == file.replica()


def test_copies_that_come_after_all_was_forgotten_are_not_done(file: Transacting) -> None:
    """The intents, and then the finish: both were sent twice, on a connection that was slow."""
    parts = [file.publish(1, "a"), file.ack(0)]
    prepared = write(file, *parts)
    finish(file, prepared)
    file.result(ForgetTransactions((T,)))
    orphan = write(file, file.publish(1, "a"))
    with pytest.raises(RequestError, match="copies that came late"):
        finish(file, prepared)
    with pytest.raises(RequestError, match="copies that came late"):
        finish(file, prepared._replace(statements=1))
    assert len(file.read(1)) == 1
    (held,) = participations.held(file.db, after_lsn=0, limit=9)
    assert (held.transaction, held.prepared_lsn) == (T, orphan.prepared_lsn)
    file.result(AbortTransaction(T))
    assert file.problems() == []


def test_a_finish_that_names_another_number_of_statements_is_refused(file: Transacting) -> None:
    prepared = write(file, file.publish(1, "a"))
    write(file, file.publish(1, "c"), first=2)
    with pytest.raises(RequestError, match="has 2 statements"):
        finish(file, prepared)
    with pytest.raises(RequestError, match=r"of the 2 statements .* one has number 2"):
        finish(file, prepared._replace(statements=2))
    again = file.run(ForgetTransactions((T,)))
    assert (again.command, again.result) == (None, (T,)), "it is not finished"
    assert file.read(1) == []


def test_what_is_unknown_is_aborted_already(file: Transacting) -> None:
    for command in (AbortTransaction(T), ForgetTransactions((T,))):
        assert file.run(command).command is None


# --- what was deleted meanwhile -------------------------------------------------------------------


def test_what_was_deleted_meanwhile_is_said_and_the_rest_is_done(file: Transacting) -> None:
    prepared = write(
        file,
        file.publish(1, "gone"),
        kept := file.publish(2, "kept"),
        file.ack(0),
        file.complete(1),
        file.fail(2),
    )
    delete(file, file.streams[1])
    delete(file, file.pipeline)
    file.result(ResetGroup(file.group, 0, 0))
    assert file.problems() == []
    for each in (file.pipeline, file.streams[1]):
        file.result(DropObject(each, file.number))
    results = finish(file, prepared)
    assert results == (
        DELETED,
        StatementResult(0, 1, results[1].append_ms),
        DELETED,
        DELETED,
        DELETED,
    )
    assert file.read(2) == [kept[1]]
    assert file.problems() == []
    assert dump(file.db) == file.replica()


def test_a_body_of_which_nothing_is_left_goes(file: Transacting) -> None:
    prepared = write(file, file.publish(1, "gone"))
    delete(file, file.streams[1])
    finish(file, prepared)
    assert [type(each) for each in file.events] == [BodyReleased, TransactionFinished]
    assert bodies.has_unnamed(file.db)
    file.result(DropBodies(file.number))
    assert prepared.prepared_lsn not in file.bodies()


def test_outputs_whose_stream_was_deleted_leave_the_stage_as_it_was(file: Transacting) -> None:
    prepared = write(file, file.complete(1, out=1))
    delete(file, file.streams[1])
    assert finish(file, prepared) == (DELETED,)
    done: Completed = file.result(*file.complete(1))
    assert not done.stale


# --- what a verification sees ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM hadron_participation", "are of no transaction"),
        ("DELETE FROM hadron_participation", "is of no transaction that is prepared"),
        ("UPDATE hadron_participation SET statements = 9", "not 9 with"),
        ("UPDATE hadron_participation SET results = x'90'", "is finished, and has 3 intents"),
        ("UPDATE hadron_counted_body SET holds = 0", "is held 0 times, by 1 that will append"),
        ("DELETE FROM hadron_intent", "is held 1 times, by 0 that will append"),
        ("DELETE FROM hadron_body WHERE lsn > 2", "have lost their bytes"),
        ("UPDATE hadron_intent SET bytes = 3", "have 3 bytes, its body"),
        ("UPDATE hadron_lock SET last = 99 WHERE first = 3", "reaches into the next one, from 5"),
    ],
)
def test_a_verification_sees_what_does_not_fit(file: Transacting, damage: str, said: str) -> None:
    write(file, file.publish(1, "a"), file.ack(3, 5), file.fail(1))
    assert file.problems() == []
    file.db.execute(damage)
    assert [each for each in file.problems() if said in each]


def test_intents_are_listed_for_people(file: Transacting) -> None:
    parts = [file.publish(1, "a"), file.ack(3), file.fail(1)]
    prepared = write(file, *parts)
    found = intents.statements(file.db, prepared.prepared_lsn, after=0, limit=1)
    assert found == [(1, encode(parts[1][0]))]
