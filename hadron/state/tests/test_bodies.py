"""Entries with several batches, and batches whose bytes an earlier entry brought: what is read,
what goes, and what stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hadron.model.errors import CorruptionError, NotFoundError, RequestError
from hadron.state import bodies, schema
from hadron.state.bodies import COUNTED_BODY, DropBodies
from hadron.state.dropping import DropObject
from hadron.state.events import BatchAppended, BodyReleased
from hadron.state.execute import execute_logged
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import BatchShape, Context, encode
from hadron.state.schema import DeleteObjects
from hadron.state.slices import Dropped
from hadron.state.streams import partitions as streams
from hadron.state.streams.checks import BodiesCheck, StreamsCheck
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION
from hadron.state.tests.parted import (
    BALLOT,
    MACHINE,
    SET,
    AppendAgain,
    AppendKept,
    GiveUp,
    KeepBody,
    Parted,
    a_batch,
    parted,
)
from hadron.state.together import DoTogether
from hadron.storage import bodies as stored
from hadron.storage.report import Report

A, B, C = a_batch("a"), a_batch("bb"), a_batch("ccc")
PID = bytes(range(16))


@pytest.fixture
def file() -> Iterator[Parted]:
    with parted() as found:
        yield found


def problems(db: apsw.Connection) -> list[str]:
    report = Report()
    for check in (StreamsCheck(report), BodiesCheck(report)):
        while not check.step(db):
            pass
    return [problem.text for problem in report.problems]


def counted(file: Parted) -> list[Any]:
    """(lsn, batches, holds)."""
    return file.db.execute(f"SELECT lsn, batches, holds FROM {COUNTED_BODY}").fetchall()


def kept(*parts: bytes) -> KeepBody:
    return KeepBody(tuple(BatchShape(1, len(part)) for part in parts))


def appended(file: Parted, stream: int, data: bytes) -> AppendBatch:
    return AppendBatch(file.streams[stream], 1, len(data), b"", 0, -1)


# --- several batches ------------------------------------------------------------------------------


def test_an_entry_appends_to_several_streams(file: Parted) -> None:
    lsn = file.append(0, A, B, C)
    assert [file.read(each) for each in range(3)] == [[A], [B], [C]]
    assert counted(file) == [(lsn, 3, 0)]
    events = [event for event in file.events if isinstance(event, BatchAppended)]
    assert [(each.stream_id, bytes(each.data), each.size) for each in events] == [
        (stream_id, data, len(data))
        for stream_id, data in zip(file.streams, (A, B, C), strict=True)
    ]
    assert problems(file.db) == []


def test_an_entry_appends_to_one_stream_more_than_once(file: Parted) -> None:
    commands = [appended(file, 0, A), appended(file, 1, B), appended(file, 0, C)]
    results = file.result(DoTogether.of(*commands), A + B + C)
    assert [each.base_offset for each in results] == [0, 0, 1]
    assert file.read(0) == [A, C]
    (found,) = streams.read_batches(file.db, file.streams[0], 1, below=2, max_bytes=1)
    assert bytes(found.data) == C


def test_one_batch_with_others_that_have_none_is_a_body_like_any(file: Parted) -> None:
    """The usual case costs nothing: nobody is counted."""
    file.append(0, A)
    group = file.result(CreateGroup(file.streams[0], "g", 0))
    ack = AckRecords(group.group_id, ((0, 0),))
    file.result(DoTogether.of(ack, appended(file, 1, B)), B)
    assert file.read(1) == [B]
    assert counted(file) == []
    assert file.db.execute(f"SELECT body_lsn, start FROM {STREAM_BATCH}").fetchall() == [
        (None, None),
        (None, None),
    ]


def test_all_of_an_entry_or_nothing(file: Parted) -> None:
    missing = AppendBatch(999, 1, len(B), b"", 0, -1)
    with pytest.raises(NotFoundError):
        file.result(DoTogether.of(appended(file, 0, A), missing), A + B)
    assert streams.bounds(file.db, file.streams[0]).next_offset == 0
    assert counted(file) == []
    assert file.bodies() == []


def test_what_was_sent_together_is_known_when_it_is_sent_again(file: Parted) -> None:
    commands = [AppendBatch(each, 1, len(A), PID, 0, 0) for each in file.streams[:2]]
    first = file.result(DoTogether.of(*commands), A + A)
    again = file.run(DoTogether.of(*commands), A + A)
    assert again.command is None
    assert [each.base_offset for each in again.result] == [each.base_offset for each in first]
    assert all(each.duplicate for each in again.result)
    assert len(counted(file)) == 1


def test_what_was_done_in_part_is_refused(file: Parted) -> None:
    """What is new would be logged with bytes that are nobody's, and be half of what was sent."""
    known, new = (AppendBatch(each, 1, len(A), PID, 0, 0) for each in file.streams[:2])
    file.result(known, A)
    for commands in ((known, new), (new, known)):
        with pytest.raises(RequestError, match="1 were done before"):
            file.result(DoTogether.of(*commands), A + A)
    assert streams.bounds(file.db, file.streams[1]).next_offset == 0
    assert counted(file) == []


@pytest.mark.parametrize("command", [TrimStream(1, 1), DoTogether(()), DropBodies(9)])
def test_what_is_an_entry_of_its_own(file: Parted, command: Any) -> None:
    with pytest.raises(RequestError, match="an entry of its own"):
        file.result(DoTogether.of(appended(file, 0, A), command), A)


# --- bytes of an earlier entry --------------------------------------------------------------------


def test_a_kept_body_becomes_the_streams(file: Parted) -> None:
    lsn = file.result(kept(A, B), A + B)
    assert counted(file) == [(lsn, 0, 1)]
    file.result(AppendKept(file.streams[0], 1, len(A), lsn, 0, is_last=False))
    (event,) = file.events
    assert isinstance(event, BatchAppended)
    assert event.data == b"", "its bytes are on the disk"
    file.result(AppendKept(file.streams[1], 1, len(B), lsn, len(A), is_last=True))
    assert (file.read(0), file.read(1)) == ([A], [B])
    assert counted(file) == [(lsn, 2, 0)]
    assert file.bodies() == [lsn], "nothing was copied"
    assert not any(isinstance(event, BodyReleased) for event in file.events)
    rows = file.db.execute(f"SELECT lsn, append_ms FROM {STREAM_BATCH}").fetchall()
    assert rows == [(lsn + 1, 1_000 + lsn), (lsn + 2, 1_001 + lsn)], "offsets and times are new"
    assert problems(file.db) == []


def test_kept_bodies_are_appended_together_with_own_bytes(file: Parted) -> None:
    lsn = file.result(kept(A), A)
    file.result(
        DoTogether.of(
            appended(file, 0, B),
            AppendKept(file.streams[0], 1, len(A), lsn, 0, is_last=True),
            appended(file, 0, C),
        ),
        B + C,
    )
    assert file.read(0) == [B, A, C]
    shown = [bytes(event.data) for event in file.events if isinstance(event, BatchAppended)]
    assert shown == [B, b"", C]
    assert counted(file) == [(lsn, 1, 0), (lsn + 1, 2, 0)]


def test_a_body_that_was_kept_for_nothing_goes_when_all_have_it(file: Parted) -> None:
    first = file.result(kept(A), A)
    second = file.result(kept(B), B)
    for lsn in (second, first):
        file.result(GiveUp(lsn))
        assert file.events == [BodyReleased(lsn)]
    assert file.bodies() == [first, second], "a member may not have the entries yet"
    assert bodies.has_unnamed(file.db)
    assert file.result(DropBodies(first)) == Dropped(1, len(A), is_done=False)
    assert file.bodies() == [second]
    assert file.run(DropBodies(first)).command is None, "nothing to do"
    assert file.result(DropBodies(second)) == Dropped(1, len(B), is_done=True)
    assert file.bodies() == []
    assert counted(file) == []
    assert file.run(DropBodies(second)).result.is_done


def test_what_nobody_holds_is_not_appended(file: Parted) -> None:
    file.append(0, A)
    lsn = file.result(kept(B), B)
    for command in (
        AppendKept(file.streams[0], 1, len(A), 2, 0, is_last=False),
        AppendKept(file.streams[0], 1, len(B), lsn, 1, is_last=False),
        AppendKept(file.streams[0], 1, len(B), lsn + 9, 0, is_last=False),
        GiveUp(2),
    ):
        with pytest.raises(NotFoundError):
            file.result(command)
    file.result(GiveUp(lsn))
    with pytest.raises(NotFoundError):
        file.result(GiveUp(lsn))


def test_a_batch_is_in_several_streams_once(file: Parted) -> None:
    lsn = file.append(0, A)
    for stream in (1, 2, 1):
        file.result(AppendAgain(file.streams[0], 0, file.streams[stream]))
    assert [file.read(each) for each in range(3)] == [[A], [A, A], [A]]
    assert file.bodies() == [lsn]
    assert counted(file) == [(lsn, 4, 0)]
    file.append(0, B, C)
    file.result(AppendAgain(file.streams[1], 2, file.streams[0]))
    assert file.read(0) == [A, B, C]
    with pytest.raises(NotFoundError):
        file.result(AppendAgain(file.streams[0], 99, file.streams[1]))
    assert problems(file.db) == []


# --- dropping -------------------------------------------------------------------------------------


def test_a_body_goes_with_the_last_batch_in_it(file: Parted) -> None:
    lsn = file.append(0, A, B, C)
    for left, stream_id in ((2, file.streams[1]), (1, file.streams[0])):
        file.result(TrimStream(stream_id, 1))
        assert counted(file) == [(lsn, left, 0)]
        assert file.bodies() == [lsn]
    assert file.read(2) == [C]
    file.result(TrimStream(file.streams[2], 1))
    assert (counted(file), file.bodies()) == ([], [])


def test_two_batches_of_one_body_go_in_one_slice(file: Parted) -> None:
    file.result(DoTogether.of(*[appended(file, 0, A)] * 3), A * 3)
    trimmed = file.result(TrimStream(file.streams[0], 2))
    assert (trimmed.batches, trimmed.bytes) == (2, 2 * len(A))
    assert file.read(0) == [A]
    file.result(TrimStream(file.streams[0], 3))
    assert (counted(file), file.bodies()) == ([], [])


def test_retention_leaves_a_body_that_is_held(file: Parted) -> None:
    lsn = file.result(kept(A), A)
    file.result(AppendKept(file.streams[0], 1, len(A), lsn, 0, is_last=False))
    file.result(TrimStream(file.streams[0], 1))
    assert file.bodies() == [lsn]
    file.result(AppendKept(file.streams[1], 1, len(A), lsn, 0, is_last=True))
    assert file.read(1) == [A]


def test_a_deleted_stream_lets_go_of_its_parts(file: Parted) -> None:
    lsn = file.append(0, A, B)
    file.append(1, C)
    index = schema.current_index(file.db)
    file.result(DeleteObjects(index, (file.streams[1],)))
    while not file.run(DropObject(file.streams[1], file.number)).result.is_done:
        pass
    assert file.bodies() == [lsn]
    assert counted(file) == [(lsn, 1, 0)]
    assert file.read(0) == [A]
    assert problems(file.db) == []


# --- damage ---------------------------------------------------------------------------------------


def test_damage_in_a_shared_body_is_named_by_its_entry_and_hits_only_its_parts(
    file: Parted,
) -> None:
    lsn = file.append(0, A, B)
    file.result(AppendAgain(file.streams[1], 0, file.streams[2]))
    damaged = bytearray(A + B)
    damaged[-1] ^= 1
    file.db.execute(f"UPDATE {stored.BODY} SET bytes = ? WHERE lsn = ?", (bytes(damaged), lsn))
    assert file.read(0) == [A]
    for stream in (1, 2):
        with pytest.raises(CorruptionError) as caught:
            file.read(stream)
        assert caught.value.lsn == lsn, "repaired once, for both"


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        (f"DELETE FROM {stored.BODY}", "has lost its bytes"),
        (f"DELETE FROM {stored.BODY}", "the body of entry 2 is missing"),
        (f"UPDATE {stored.BODY} SET bytes = substr(bytes, 2)", "of a body of"),
        (f"UPDATE {COUNTED_BODY} SET batches = 3", "is in 2 batches, not 3"),
        (f"UPDATE {COUNTED_BODY} SET bytes = bytes + 1", "bytes, not"),
        (f"DELETE FROM {COUNTED_BODY}", "which is not counted"),
        (f"UPDATE {STREAM_BATCH} SET start = start + 1 WHERE start > 0", "of a body of"),
    ],
)
def test_a_verification_finds_what_does_not_fit(file: Parted, sql: str, what: str) -> None:
    assert file.append(0, A, B) == 2
    assert problems(file.db) == []
    file.db.execute(sql)
    assert any(what in each for each in problems(file.db))


# --- whatever comes -------------------------------------------------------------------------------

STEP = st.tuples(
    st.sampled_from(["append", "append", "keep", "finish", "give up", "again", "trim", "drop"]),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(0, 7),
)


@dataclasses.dataclass
class Naive:
    """Streams as lists of bytes, and by lsn who needs what."""

    streams: list[list[tuple[int, bytes]]]
    first: list[int]
    held: dict[int, list[bytes]]
    idle: set[int]

    @classmethod
    def of(cls, file: Parted) -> Naive:
        return cls([[] for _ in file.streams], [0] * len(file.streams), {}, set())

    def needed(self) -> set[int]:
        in_streams = {
            lsn
            for first, each in zip(self.first, self.streams, strict=True)
            for lsn, _ in each[first:]
        }
        return in_streams | self.held.keys() | self.idle


def step_of(file: Parted, naive: Naive, step: tuple[str, int, int, int], number: int) -> None:
    what, a, b, c = step
    there = len(file.streams)
    data = [a_batch(f"{number}-{each}") for each in range(1 + b % 3)]
    stream = a % there
    if what == "append":
        targets = [(a + c * each) % there for each in range(len(data))]
        commands = [appended(file, at, part) for at, part in zip(targets, data, strict=True)]
        file.result(DoTogether.of(*commands), b"".join(data))
        for at, part in zip(targets, data, strict=True):
            naive.streams[at].append((file.number, part))
    elif what == "keep":
        naive.held[file.result(kept(*data), b"".join(data))] = data
    elif what in ("finish", "give up") and naive.held:
        lsn = sorted(naive.held)[b % len(naive.held)]
        parts = naive.held.pop(lsn)
        if what == "give up":
            file.result(GiveUp(lsn))
        else:
            start = 0
            commands_of_it = []
            for at, part in enumerate(parts):
                to = (a + c * at) % there
                is_last = at == len(parts) - 1
                commands_of_it.append(
                    AppendKept(file.streams[to], 1, len(part), lsn, start, is_last)
                )
                start += len(part)
                naive.streams[to].append((lsn, part))
            file.result(DoTogether.of(*commands_of_it))
        if lsn not in naive.needed():
            naive.idle.add(lsn)
    elif what == "again" and len(naive.streams[stream]) > naive.first[stream]:
        of = naive.first[stream] + b % (len(naive.streams[stream]) - naive.first[stream])
        file.result(AppendAgain(file.streams[stream], of, file.streams[c % there]))
        naive.streams[c % there].append(naive.streams[stream][of])
    elif what == "trim":
        naive.first[stream] = max(
            naive.first[stream], min(naive.first[stream] + 2 * b, len(naive.streams[stream]))
        )
        file.run(TrimStream(file.streams[stream], naive.first[stream]))
    elif what == "drop":
        file.run(DropBodies(file.number))
        naive.idle.clear()


def check(file: Parted, naive: Naive) -> None:
    for at, batches in enumerate(naive.streams):
        assert file.read(at) == [data for _, data in batches[naive.first[at] :]]
    assert set(file.bodies()) == naive.needed()


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=10, max_size=40))
def test_what_is_read_is_what_was_written_and_nothing_leaks(
    steps: list[tuple[str, int, int, int]],
) -> None:
    with parted() as file:
        naive = Naive.of(file)
        for number, step in enumerate(steps):
            step_of(file, naive, step, number)
            check(file, naive)
        assert problems(file.db) == []
        _assert_a_replica_is_the_same(file)


def _assert_a_replica_is_the_same(file: Parted) -> None:
    """Tables that are made from the log alone, with no bytes at hand."""
    db = apsw.Connection("")
    db.execute(stored.TABLES + MACHINE.tables)
    dropped: list[int] = []
    for lsn, command, _ in file.log:
        context = Context(
            machine=MACHINE,
            db=db,
            lsn=lsn,
            now_ms=999 + lsn,
            replica_set=SET,
            ballot=BALLOT,
            drop_bodies=lambda _db, lsns: dropped.extend(lsns),
        )
        execute_logged(context, encode(command))
    for table in (STREAM_BATCH, COUNTED_BODY, STREAM_PARTITION):
        sql = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert db.execute(sql).fetchall() == file.db.execute(sql).fetchall()
    assert len(dropped) == len(set(dropped)), "nothing goes twice"
    brought = {lsn for lsn, _, body in file.log if body}
    assert brought - set(dropped) == set(file.bodies())
    db.close()
