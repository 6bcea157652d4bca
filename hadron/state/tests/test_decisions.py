"""What drivers of transactions decide: all of it or none, once, by the leadership whose it is; and
how long it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from hadron.fakes.tables import dump
from hadron.model.errors import ConflictError, NotFoundError, RequestError, StaleCompletionError
from hadron.model.transactions import (
    BLOCK_BITS,
    DELETED,
    DONE,
    Note,
    Participant,
    StatementResult,
    TransactionId,
)
from hadron.state import schema
from hadron.state.events import BatchAppended
from hadron.state.groups import progress as groups
from hadron.state.machine import Command, encode
from hadron.state.schema import DeleteObjects
from hadron.state.slices import SLICE_ROWS, Dropped
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.retention import TrimStream
from hadron.state.tests.parted import BALLOT, MACHINE, SET, a_batch
from hadron.state.tests.transacting import Transacting, joined, transacting
from hadron.state.transactions import decisions
from hadron.state.transactions.checks import TransactionsCheck
from hadron.state.transactions.decisions import Decide, Decided, ForgetDecisions, NoteFinished
from hadron.state.transactions.events import RecordsAcknowledged
from hadron.state.transactions.intents import WriteIntents
from hadron.state.transactions.joint_decisions import DecideAppends, DecideRun
from hadron.storage.report import Report

T = TransactionId.of(SET, BALLOT, 7)
EU, US = Participant("eu/p0", 40, 2), Participant("us/p0", 50, 1)


@pytest.fixture
def file() -> Iterator[Transacting]:
    with transacting() as found:
        yield found


def decide(
    file: Transacting,
    *parts: tuple[Command, bytes],
    tx: TransactionId = T,
    others: tuple[Participant, ...] = (),
) -> Decided:
    statements, body = joined(parts)
    found: Decided = file.result(Decide(tx, others, statements), body)
    return found


def test_one_replica_set_is_one_entry(file: Transacting) -> None:
    a, b = file.publish(1, "a"), file.publish(2, "b")
    before = file.number
    done = decide(file, a, file.ack(0, 1), b, file.complete(3), file.fail(4))
    assert file.number == before + 1
    now_ms = done.decided_ms
    assert done.results == (
        StatementResult(0, 1, now_ms),
        DONE,
        StatementResult(0, 1, now_ms),
        StatementResult(1, 1, now_ms),
        DONE,
    )
    assert done.unfinished == ()
    assert file.read(1) == [a[1]]
    assert file.read(2)[0] == b[1]
    assert groups.reach(file.db, file.group)[0] == 2
    told = [event for event in file.events if isinstance(event, BatchAppended)]
    assert [bytes(event.data) for event in told][:2] == [a[1], b[1]], "no reader goes to the disk"
    assert [each.ranges for each in file.events if isinstance(each, RecordsAcknowledged)] == [
        ((0, 1),)
    ]
    assert decisions.find(file.db, T) == done
    assert file.problems() == []
    assert dump(file.db) == file.replica()


def test_one_batch_alone_is_a_body_like_any(file: Transacting) -> None:
    decide(file, a := file.publish(1, "a"), file.ack(0))
    assert file.read(1) == [a[1]]
    assert not file.db.execute("SELECT * FROM hadron_counted_body").fetchall()


def test_all_of_a_transaction_or_nothing(file: Transacting) -> None:
    file.result(*file.ack(5))
    before = dump(file.db)
    missing = AppendBatch(99, 1, 9, b"", 0, -1), b""
    refused: list[tuple[tuple[Command, bytes], type[Exception]]] = [
        (missing, NotFoundError),
        (file.ack(5), RequestError),
        (file.complete(99), StaleCompletionError),
    ]
    for part, kind in refused:
        with pytest.raises(kind):
            decide(file, file.publish(1, "a"), file.complete(1), part)
        assert dump(file.db) == before
    with pytest.raises(RequestError, match="with another statement already"):
        decide(file, file.complete(1, 2), file.publish(1, "a"), file.fail(1, 3))
    assert dump(file.db) == before
    assert decisions.find(file.db, T) is None


def test_what_others_hold_is_not_ended(file: Transacting) -> None:
    statements, body = joined([file.ack(3), file.fail(4)])
    file.result(WriteIntents(TransactionId("eu/p0", 1, 1, 1), 0, statements), body)
    for part in (file.ack(2, 3), file.complete(4)):
        with pytest.raises(ConflictError, match=r"transaction eu/p0/1\.1/1 holds"):
            decide(file, file.publish(1, "a"), part)


def test_a_decision_is_made_once(file: Transacting) -> None:
    part = file.publish(1, "a")
    done = decide(file, part, others=(EU,))
    again = file.run(Decide(T, (EU,), joined([part])[0]), part[1])
    assert (again.command, again.result) == (None, done)
    assert len(file.read(1)) == 1


@pytest.mark.parametrize(
    "tx",
    [
        T._replace(incarnation=BALLOT.incarnation - 1),
        T._replace(epoch=BALLOT.epoch + 1),
        T._replace(replica_set="eu/p0"),
        T._replace(number=0, epoch=1 << 62),
    ],
)
def test_no_leadership_decides_what_another_drives(file: Transacting, tx: TransactionId) -> None:
    """Or what a new leader has called aborted is committed by a copy that comes late."""
    with pytest.raises(RequestError, match="is not driven by the leadership"):
        decide(file, file.publish(1, "a"), tx=tx)
    assert streams.bounds(file.db, file.streams[1]).next_offset == 0


@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_a_number_that_no_driver_gives_is_refused(file: Transacting, number: int) -> None:
    with pytest.raises(RequestError, match="is not a transaction's id"):
        decide(file, file.publish(1, "a"), tx=T._replace(number=number))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ((EU, EU), "names a participant twice"),
        (tuple(Participant(f"p{each}", 1, 1) for each in range(257)), "the limit is 256"),
        ((), "has no statement"),
    ],
)
def test_participants_are_looked_at(
    file: Transacting, others: tuple[Participant, ...], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        decide(file, others=others)


def test_the_own_set_is_prepared_or_does_it_in_the_decision(file: Transacting) -> None:
    """Its results would be one's or the other's."""
    own = (Participant(SET, 1, 1),)
    with pytest.raises(RequestError, match="some/where for statements that it has prepared"):
        decide(file, file.publish(1, "a"), others=own)
    assert decide(file, others=own).unfinished == own


def test_a_decision_is_over_when_all_have_finished(file: Transacting) -> None:
    first = decide(file, file.publish(1, "a"), others=(EU, US))
    assert first.unfinished == (EU, US)
    assert decisions.unfinished(file.db, SET, after_lsn=0, limit=9) == [first]
    results = (StatementResult(4, 1, 9), DELETED)
    assert file.result(NoteFinished((Note(T, "eu/p0", results),))) == (False,)
    again = file.run(NoteFinished((Note(T, "eu/p0", results),)))
    assert (again.command, again.result) == (None, (False,))
    known = decisions.find(file.db, T)
    assert known is not None
    assert (known.finished, known.unfinished) == ({"eu/p0": results}, (US,))
    assert file.problems() == []
    assert file.result(NoteFinished((Note(T, "us/p0", (DONE,)),))) == (True,)
    assert file.run(NoteFinished((Note(T, "us/p0", (DONE,)),))).result == (True,)
    assert decisions.unfinished(file.db, SET, after_lsn=0, limit=9) == []
    assert dump(file.db) == file.replica()


def test_what_several_have_finished_is_one_entry(file: Transacting) -> None:
    other = T._replace(number=T.number + 1)
    decide(file, others=(EU, US))
    decide(file, tx=other, others=(EU,))
    first = Note(T, "eu/p0", (DONE, DONE))
    notes = (first, Note(other, "eu/p0", (DONE, DELETED)), Note(T, "us/p0", (DONE,)))
    file.result(NoteFinished((first,)))
    assert file.result(NoteFinished(notes)) == (False, True, True), "one of them was noted before"
    assert file.run(NoteFinished(notes)).command is None
    assert decisions.unfinished(file.db, SET, after_lsn=0, limit=9) == []
    known = decisions.find(file.db, other)
    assert known is not None
    assert known.finished == {"eu/p0": (DONE, DELETED)}
    assert file.problems() == []
    assert dump(file.db) == file.replica()


def test_one_note_that_does_not_fit_takes_the_others_with_it(file: Transacting) -> None:
    decide(file, others=(EU,))
    fits = Note(T, "eu/p0", (DONE, DONE))
    with pytest.raises(NotFoundError, match="was not decided"):
        file.result(NoteFinished((fits, fits._replace(transaction=T._replace(number=99)))))
    assert len(decisions.unfinished(file.db, SET, after_lsn=0, limit=9)) == 1


def test_who_finishes_what_is_looked_at(file: Transacting) -> None:
    with pytest.raises(NotFoundError, match="was not decided"):
        file.result(NoteFinished((Note(T, "eu/p0", (DONE,)),)))
    decide(file, others=(EU,))
    for participant, results in (("us/p0", (DONE,)), ("eu/p0", (DONE,))):
        with pytest.raises(RequestError, match="has no 1 statements"):
            file.result(NoteFinished((Note(T, participant, results),)))


def test_what_is_finished_is_forgotten_in_time_and_that_is_known(file: Transacting) -> None:
    """An outcome that is not known any more is not taken for an abort."""
    old, waits, young = (T._replace(number=each) for each in (7, 8, 9))
    decide(file, file.publish(1, "a"), tx=old)
    decide(file, tx=waits, others=(EU,))
    file.number += 1_000
    decide(file, file.publish(1, "c"), tx=young)
    before_ms = 1_000 + file.number - 500
    assert file.result(ForgetDecisions(before_ms)) == Dropped(1, is_done=True)
    assert file.run(ForgetDecisions(before_ms)).command is None
    assert [decisions.find(file.db, each) is not None for each in (old, waits, young)] == [
        False,
        True,
        True,
    ]
    assert [decisions.is_forgotten(file.db, old._replace(number=n)) for n in (6, 7, 8)] == [
        True,
        True,
        False,
    ]
    assert not decisions.is_forgotten(file.db, old._replace(number=1 << BLOCK_BITS))
    assert not decisions.is_forgotten(file.db, old._replace(incarnation=BALLOT.incarnation + 1))
    file.result(NoteFinished((Note(waits, "eu/p0", (DONE, DONE)),)))
    assert file.run(ForgetDecisions(before_ms)).command is None, "it counts from the finish on"
    assert file.result(ForgetDecisions(1 << 60)).rows == 2
    assert file.problems() == []


def test_what_is_forgotten_goes_in_slices(file: Transacting) -> None:
    file.db.executemany(
        "INSERT INTO hadron_decision VALUES(?, ?, 3, 2, ?, 1, 1, x'90', ?)",
        [(each + 1, 1_000 + each, each, each) for each in range(SLICE_ROWS + 1)],
    )
    assert file.result(ForgetDecisions(5)) == Dropped(SLICE_ROWS)
    assert file.result(ForgetDecisions(5)) == Dropped(1, is_done=True)


def test_of_very_many_clients_the_first_are_not_told_apart(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FORGOTTEN_BLOCKS", 3)
    for block in range(5):
        decide(file, file.publish(1, "a"), tx=T._replace(number=(block << BLOCK_BITS) + 5))
    file.result(ForgetDecisions(1 << 60))
    assert len(file.db.execute("SELECT * FROM hadron_decision_forgotten").fetchall()) == 4
    for block in range(5):
        later = T._replace(number=(block << BLOCK_BITS) + 6)
        assert decisions.is_forgotten(file.db, later) == (block < 2)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE hadron_decision SET finished_ms = 1", "is finished, 1 participants are not"),
        ("UPDATE hadron_decision_part SET results = x'90'", "is not finished, 0 participants"),
        ("DELETE FROM hadron_decision", "eu/p0 is a participant of no decision"),
    ],
)
def test_a_verification_sees_what_does_not_fit(file: Transacting, damage: str, said: str) -> None:
    decide(file, file.publish(1, "a"), others=(EU,))
    file.db.execute(damage)
    assert [each for each in file.problems() if said in each]


def test_a_verification_goes_on_where_a_slice_has_ended(
    file: Transacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadron.state.transactions.checks.SLICE_ROWS", 2)
    for number in range(5):
        decide(file, tx=T._replace(number=number), others=(EU, US))
    file.db.execute("UPDATE hadron_decision SET finished_ms = 1")
    report, steps = Report(), 1
    check = TransactionsCheck(report)
    while not check.step(file.db):
        steps += 1
    assert len(report.problems) == 5
    assert steps > 9


# --- several that wait at the same time -----------------------------------------------------------


def together(*of_each: Sequence[tuple[Command, bytes]], first: int = 7) -> tuple[Command, bytes]:
    """What the group commit makes of decisions, and its body."""
    commands = [
        Decide(T._replace(number=first + at), (), joined(parts)[0])
        for at, parts in enumerate(of_each)
    ]
    gather = MACHINE.gather(commands[0])
    assert gather is not None
    assert len({gather.key(each) for each in commands}) == 1
    return gather.join(commands), b"".join(joined(parts)[1] for parts in of_each)


def test_decisions_that_wait_are_one_entry(file: Transacting) -> None:
    parts = [[file.publish(1, "a")], [file.publish(1, "b"), file.publish(2, "c")]]
    (command, body), before = together(*parts), file.number
    decided = file.result(command, body)
    assert file.number == before + 1
    assert [[each.base_offset for each in one.results] for one in decided] == [[0], [1, 0]]
    assert [decisions.find(file.db, T._replace(number=n)) for n in (7, 8)] == list(decided)
    assert file.read(1) == [parts[0][0][1], parts[1][0][1]]
    assert file.read(2) == [parts[1][1][1]]
    told = [each for each in file.events if isinstance(each, BatchAppended)]
    assert b"".join(bytes(each.data) for each in told) == body, "no reader goes to the disk"
    assert file.problems() == []
    assert dump(file.db) == file.replica()
    file.result(TrimStream(file.streams[1], 2))
    assert file.read(2) == [parts[1][1][1]], "a body stays for as long as a batch of it does"
    assert file.problems() == []


def test_one_that_is_refused_takes_the_others_with_it(file: Transacting) -> None:
    good, gone = file.publish(1, "a"), file.publish(2, "b")
    command, body = together([good], [gone])
    file.result(DeleteObjects(schema.current_index(file.db), (file.streams[2],)))
    with pytest.raises(NotFoundError):
        file.result(command, body)
    assert file.read(1) == []
    assert decisions.find(file.db, T) is None


def test_one_that_was_decided_is_not_decided_again(file: Transacting) -> None:
    decide(file, file.publish(1, "a"), tx=T._replace(number=8))
    command, body = together([file.publish(1, "a")], [file.publish(1, "b")])
    with pytest.raises(RequestError, match=r"of 2 transactions .* 1 were decided before"):
        file.result(command, body)
    assert len(file.read(1)) == 1
    command, body = together([file.publish(1, "c")], [file.publish(1, "d")], first=20)
    assert isinstance(command, DecideAppends)
    other = DecideAppends(SET, BALLOT._replace(incarnation=1), command.transactions)
    with pytest.raises(RequestError, match="is not driven by the leadership"):
        file.result(other, body)


def test_those_that_others_take_part_in_are_decided_together_too(file: Transacting) -> None:
    ids = [T._replace(number=n) for n in (7, 8, 9)]
    part = file.publish(1, "a")
    statements, body = joined([part])
    commands = [Decide(ids[0], (EU, US), ()), Decide(ids[1], (), statements)]
    commands.append(Decide(ids[2], (US,), statements))
    gather = MACHINE.gather(commands[0])
    assert gather is not None
    assert len({gather.key(each) for each in commands}) == 1
    decided = file.result(gather.join(commands), body + body)
    assert [each.unfinished for each in decided] == [(EU, US), (), (US,)]
    assert [decisions.find(file.db, each) for each in ids] == list(decided)
    found = decisions.unfinished(file.db, SET, after_lsn=0, limit=1)
    assert found == [decided[0], decided[2]], "an entry's are one page"
    assert decisions.unfinished(file.db, SET, after_lsn=found[-1].lsn, limit=1) == []
    assert file.result(NoteFinished((Note(ids[2], "us/p0", (DONE,)),))) == (True,)
    assert file.problems() == []
    assert dump(file.db) == file.replica()


def test_participants_of_each_are_looked_at(file: Transacting) -> None:
    statements, body = joined([file.publish(1, "a")])
    here = (Participant(SET, 7, 1),)
    for command in (Decide(T, here, statements), Decide(T, (EU, EU), statements)):
        gather = MACHINE.gather(command)
        assert gather is not None
        with pytest.raises(RequestError, match="names a participant twice"):
            file.result(gather.join([command]), body)
    gather = MACHINE.gather(Decide(T, (), ()))
    assert gather is not None
    with pytest.raises(RequestError, match="has no statement"):
        file.result(gather.join([Decide(T, (), ())]), b"")


@pytest.mark.parametrize("what", ["participants", "ack", "many"])
def test_what_does_more_than_append_is_an_entry_of_its_own(file: Transacting, what: str) -> None:
    publish = file.publish(1, "a")
    parts: list[tuple[Command, bytes]] = [publish] * (9 if what == "many" else 1)
    if what == "ack":
        parts.append(file.ack(1))
    others = tuple(Participant(f"eu/p{n}", 7, 1) for n in range(9))
    command = Decide(T, others if what == "participants" else (), joined(parts)[0])
    gather = MACHINE.gather(command)
    assert gather is not None
    assert gather.key(command) is None


def test_those_that_a_client_commits_together_share_a_batch(file: Transacting) -> None:
    body = a_batch("abc", 3)
    append = AppendBatch(file.streams[1], 3, len(body), b"", 0, -1)
    command = DecideRun(T, (1, 2), encode(append))
    guarded = AppendGuarded(file.streams[1], 3, len(body), b"", 0, -1)
    for other, words in (
        (DecideRun(T, (1, 1), encode(append)), f"2 .* from {T} on have 2 records, .* has 3"),
        (DecideRun(T, (0, 3), encode(append)), "2 .* on have 3 records"),
        (DecideRun(T, (), encode(append)), "0 .* on have 0 records"),
        (DecideRun(T, (1, 2), encode(guarded)), "2 .* cannot share an AppendGuarded"),
        (DecideRun(T._replace(incarnation=9), (1, 2), encode(append)), "9"),
        (DecideRun(T._replace(number=(1 << 63) - 1), (1, 2), encode(append)), "not a transaction"),
    ):
        with pytest.raises(RequestError, match=words):
            file.result(other, body)
    decided = file.result(command, body)
    assert [(each.base_offset, each.count) for each in decided.results] == [(0, 3)]
    found = [decisions.find(file.db, T._replace(number=T.number + at)) for at in (0, 1)]
    assert [
        [(each.base_offset, each.count) for each in one.results] for one in found if one is not None
    ] == [[(0, 1)], [(1, 2)]]
    assert file.read(1) == [body]
    with pytest.raises(RequestError, match="were decided before"):
        file.result(DecideRun(T._replace(number=T.number + 1), (1, 2), encode(append)), body)
    assert file.read(1) == [body]
    assert file.problems() == []
    assert dump(file.db) == file.replica()


# --- how many are kept ----------------------------------------------------------------------------


def test_of_too_many_decisions_the_oldest_are_forgotten_first(file: Transacting) -> None:
    decide(file, tx=T._replace(number=1), others=(EU,))
    for number in range(2, 8):
        decide(file, file.publish(1, "a"), tx=T._replace(number=number))
    assert file.run(ForgetDecisions(0, max_rows=7)).command is None
    assert file.result(ForgetDecisions(0, max_rows=4)) == Dropped(2, is_done=True)
    kept = [n for n in range(1, 8) if decisions.find(file.db, T._replace(number=n)) is not None]
    assert kept == [1, 4, 5, 6, 7], "what others have to finish stays, however old"
    assert decisions.is_forgotten(file.db, T._replace(number=3))
    assert file.problems() == []
    assert dump(file.db) == file.replica()


def test_what_large_decisions_came_to_is_bounded(file: Transacting) -> None:
    for number in range(2, 6):
        decide(file, *[file.publish(1, "a")] * 50, tx=T._replace(number=number))
    rows = file.db.execute("SELECT length(results) FROM hadron_decision ORDER BY id")
    *_, third, fourth = (size for (size,) in rows)
    assert file.run(ForgetDecisions(0, max_bytes=4 * fourth)).command is None
    assert file.result(ForgetDecisions(0, max_bytes=third + fourth)).rows == 2
    assert decisions.find(file.db, T._replace(number=4)) is not None


def test_forgetting_too_many_goes_in_slices(file: Transacting) -> None:
    file.db.executemany(
        "INSERT INTO hadron_decision VALUES(?, ?, 3, 2, ?, 1, 1, x'90', ?)",
        [(each + 1, 1_000 + each, each, each) for each in range(SLICE_ROWS + 5)],
    )
    assert file.result(ForgetDecisions(0, max_rows=2)) == Dropped(SLICE_ROWS)
    assert file.result(ForgetDecisions(0, max_rows=2)) == Dropped(3, is_done=True)
