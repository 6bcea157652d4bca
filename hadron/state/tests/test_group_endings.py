"""Attempts, dead letters, resets and deletions of groups; windows of what they have acknowledged.

Held against models: sets of offsets, and a dictionary of attempts.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.fakes.tables import SET, Replicated
from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.model.ids import Ballot
from hadron.model.ranges import Range
from hadron.model.schema import StreamSpec
from hadron.state.features import MACHINE
from hadron.state.groups import attempts
from hadron.state.groups import changes as group_changes
from hadron.state.groups import progress as groups
from hadron.state.groups import views as group_views
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.checks import GroupsCheck
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import (
    ORDER_KEY,
    AckRecords,
    CreateGroup,
    GroupOptions,
    Progress,
    Window,
)
from hadron.state.machine import Context
from hadron.state.slices import Portion
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.storage.log import drop_bodies
from hadron.storage.report import Report

LETTERS = GroupOptions(max_attempts=3, dead_letter_stream_id=2)


@pytest.fixture
def tables() -> Replicated:
    tables = Replicated()
    tables.declare(
        ("Stream", "flights", StreamSpec(partitions=(SET,))),
        ("Stream", "letters", StreamSpec(partitions=(SET,))),
    )
    tables.submit(AppendBatch(1, 60, 600, b"", 0, -1))
    tables.submit(AppendBatch(1, 40, 400, b"", 0, -1))
    return tables


@pytest.fixture
def group(tables: Replicated) -> int:
    made = tables.submit(CreateGroup(1, "billing", 0, LETTERS))
    assert isinstance(made, Progress)
    return made.group_id


def found(tables: Replicated) -> Progress:
    progress = groups.find(tables.db, 1, "billing")
    assert progress is not None
    return progress


def rows(tables: Replicated, sql: str) -> list[tuple[object, ...]]:
    return tables.db.execute(sql).fetchall()


class TestOptions:
    def test_they_are_kept(self, tables: Replicated) -> None:
        options = GroupOptions(ORDER_KEY, 30_000, 5, 2)
        tables.submit(CreateGroup(1, "billing", 0, options))
        again = tables.submit(CreateGroup(1, "billing", 0))
        assert (again.options, found(tables).options) == (options, options)
        (summary,) = group_views.summaries(tables.db, 1, "billing")
        assert summary.options == options


class TestAttempts:
    def test_they_are_known_until_the_acknowledgement(self, tables: Replicated, group: int) -> None:
        tables.submit(EndDeliveries(group, ((4, 9, 1), (20, 20, 3))))
        assert found(tables).window == Window(None, (), ((4, 9, 1), (20, 20, 3)))
        tables.submit(AckRecords(group, ((6, 7),)))
        assert found(tables).window == Window(None, ((6, 7),), ((4, 5, 1), (8, 9, 1), (20, 20, 3)))
        tables.submit(AckRecords(group, ((0, 30),)))
        assert found(tables).window == Window()
        assert rows(tables, "SELECT * FROM hadron_group_attempt") == []

    def test_what_is_acknowledged_in_the_same_round_was_tried_before(
        self, tables: Replicated, group: int
    ) -> None:
        floor = tables.submit(EndDeliveries(group, ((0, 3, 1), (9, 9, 2)), ((0, 1), (9, 9))))
        assert floor == 2
        assert found(tables).window == Window(None, ((9, 9),), ((2, 3, 1),))

    def test_what_is_acknowledged_already_is_not_counted(
        self, tables: Replicated, group: int
    ) -> None:
        """A dead letter overtakes the attempt that it had: nobody would ever clear that."""
        tables.submit(AckRecords(group, ((4, 5), (8, 8), (12, 20))))
        tables.submit(EndDeliveries(group, ((3, 14, 3), (5, 5, 3), (20, 21, 1))))
        assert found(tables).window.attempts == ((3, 3, 3), (6, 7, 3), (9, 11, 3), (21, 21, 1))

    def test_below_the_floor_there_are_none(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, ((0, 5),)))
        tables.submit(EndDeliveries(group, ((0, 3, 1), (4, 8, 2))))
        assert found(tables).window.attempts == ((6, 8, 2),)

    def test_retention_takes_them_along(self, tables: Replicated, group: int) -> None:
        tables.submit(EndDeliveries(group, ((50, 70, 1),)))
        tables.submit(AckRecords(group, ((10, 20), (55, 65))))
        tables.submit(TrimStream(1, 60))
        assert (found(tables).floor, found(tables).window) == (66, Window(None, (), ((66, 70, 1),)))

    def test_without_the_group_it_is_refused(self, tables: Replicated) -> None:
        with pytest.raises(NotFoundError, match="group 77"):
            tables.submit(EndDeliveries(77, ((0, 0, 1),)))

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 3)), max_size=25),
        st.integers(0, 30),
    )
    def test_ranges_stand_for_what_was_recorded(
        self, steps: list[tuple[int, int, int]], offset: int
    ) -> None:
        db = Replicated().db
        model: dict[int, int] = {}
        attempts.record(db, 8, 0, 99, 7)
        for first, length, number in steps:
            offsets = range(first, first + length + 1)
            if number:
                attempts.record(db, 9, first, offsets[-1], number)
                model.update(dict.fromkeys(offsets, number))
            else:
                attempts.clear(db, 9, first, offsets[-1])
                for gone in offsets:
                    model.pop(gone, None)
        kept = attempts.from_offset(db, 9, 0, 100)
        assert {n: number for a, b, number in kept for n in range(a, b + 1)} == model
        assert all(a[1] < b[0] for a, b in itertools.pairwise(kept))
        touching = [(a, b) for a, b in itertools.pairwise(kept) if a[1] + 1 == b[0]]
        assert all(a[2] != b[2] for a, b in touching), "neighbours with one number are one row"
        upper = attempts.from_offset(db, 9, offset, 100)
        assert {n: number for a, b, number in upper for n in range(a, b + 1)} == {
            n: number for n, number in model.items() if n >= offset
        }
        assert attempts.any_of(db, 9) == bool(model)


class TestDeadLetters:
    def test_one_entry_moves_the_record(self, tables: Replicated, group: int) -> None:
        tables.submit(EndDeliveries(group, ((7, 8, 3),)))
        result = tables.submit(DeadLetterRecords(group, 2, ((0, 0), (7, 8)), 333))
        assert (result.appended.base_offset, result.appended.count, result.floor) == (0, 3, 1)
        assert found(tables).window == Window(None, ((7, 8),))
        assert streams.bounds(tables.db, 2) == (0, 3)
        (summary,) = group_views.summaries(tables.db, 1)
        assert summary.dead_lettered == 3

    @pytest.mark.parametrize("ranges", [((4, 4),), ((9, 12),), ((6, 7), (12, 14))])
    def test_what_is_acknowledged_is_no_dead_letter(
        self, tables: Replicated, group: int, ranges: tuple[Range, ...]
    ) -> None:
        tables.submit(AckRecords(group, ((0, 4), (10, 12))))
        with pytest.raises(RequestError, match="no dead letters"):
            tables.submit(DeadLetterRecords(group, 2, ranges, 10))
        assert streams.bounds(tables.db, 2) == (0, 0)

    def test_without_the_stream_it_is_refused(self, tables: Replicated, group: int) -> None:
        with pytest.raises(NotFoundError):
            tables.submit(DeadLetterRecords(group, 9, ((0, 0),), 10))
        assert found(tables).floor == 0


class TestReset:
    def test_it_is_another_group_of_the_same_name(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, ((0, 30), (40, 50))))
        tables.submit(EndDeliveries(group, ((33, 33, 2),)))
        tables.ballot = Ballot(2, 4)
        new = tables.submit(ResetGroup(group, 12, 99))
        progress = found(tables)
        assert (progress.group_id, progress.floor, progress.window) == (new, 12, Window())
        assert (progress.fence, progress.options) == ((2, 4, 99), LETTERS)
        for late in (AckRecords(group, ((12, 20),)), EndDeliveries(group, ((12, 20, 1),))):
            with pytest.raises(NotFoundError):
                tables.submit(late)

    @pytest.mark.parametrize("floor", [101, -1])
    def test_outside_of_the_stream_it_is_refused(
        self, tables: Replicated, group: int, floor: int
    ) -> None:
        with pytest.raises(OffsetOutOfRangeError, match="the stream has 0 to 100"):
            tables.submit(ResetGroup(group, floor, 0))

    def test_an_unknown_group_is_refused(self, tables: Replicated) -> None:
        with pytest.raises(NotFoundError):
            tables.submit(ResetGroup(77, 0, 0))
        with pytest.raises(NotFoundError):
            tables.submit(DeleteGroup(77))


class TestGarbage:
    def test_it_goes_in_slices(
        self, tables: Replicated, group: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_changes, "SLICE_ROWS", 10)
        tables.submit(AckRecords(group, tuple((n, n) for n in range(1, 60, 2))))
        tables.submit(EndDeliveries(group, ((2, 2, 1), (4, 4, 2))))
        tables.submit(DeleteGroup(group))
        assert groups.find(tables.db, 1, "billing") is None
        again = tables.submit(CreateGroup(1, "billing", 3)).group_id
        tables.submit(AckRecords(again, ((8, 8),)))
        report = Report()
        check = GroupsCheck(report)
        while not check.step(tables.db):
            pass
        assert report.problems == []
        left = []
        while tables.submit(CollectGroups()):
            (count,) = rows(
                tables, f"SELECT count(*) FROM hadron_group_ack WHERE group_id = {group}"
            )
            left.append(count[0])
        assert left == [20, 10, 0, 0]
        assert rows(tables, "SELECT group_id FROM hadron_group_ack") == [(again,)]
        assert rows(tables, "SELECT * FROM hadron_group_attempt") == []
        tables.submit(CollectGroups())
        assert tables.again

    def test_a_deleted_stream_takes_its_groups_along(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, tuple((n, n) for n in range(1, 60, 2))))
        tables.submit(CreateGroup(1, "audit", 0))
        other = tables.submit(CreateGroup(2, "other", 0)).group_id
        tables.submit(EndDeliveries(group, ((2, 2, 1), (4, 4, 2))))
        context = Context(
            machine=MACHINE,
            db=tables.db,
            lsn=1_000,
            now_ms=0,
            drop_bodies=drop_bodies,
            replica_set=SET,
            ballot=tables.ballot,
        )
        turns = [groups.FEATURE.leftovers["Stream"](context, 1, Portion(10, 0)) for _ in range(5)]
        assert [each.is_done for each in turns] == [False, False, False, True, True]
        assert turns[-1].rows == 0
        assert rows(tables, "SELECT group_id FROM hadron_group") == [(other,)]
        for table in ("hadron_group_ack", "hadron_group_attempt"):
            assert rows(tables, f"SELECT * FROM {table}") == []


class TestWindows:
    @pytest.mark.parametrize("seed", range(20))
    def test_windows_side_by_side_are_everything(self, tables: Replicated, seed: int) -> None:
        """Whatever the windows' size, together they say what the tables hold."""
        dice = random.Random(seed)
        group = tables.submit(CreateGroup(1, "billing", 0)).group_id
        offsets = range(1, 100)
        acknowledged = set(dice.sample(offsets, dice.randint(0, 60)))
        tried = {n: dice.randint(1, 2) for n in offsets if n not in acknowledged and n % 3}
        for n in sorted(acknowledged, key=lambda _: dice.random()):
            tables.submit(AckRecords(group, ((n, n),)))
        tables.submit(EndDeliveries(group, tuple((n, n, tried[n]) for n in tried)))
        seen: set[int] = set()
        counted: dict[int, int] = {}
        start = dice.randint(0, 40)
        offset: int | None = start
        while offset is not None:
            part = groups.window(tables.db, group, offset, rows=dice.randint(1, 9))
            assert part.end is None or part.end > offset
            seen |= {n for a, b in part.acknowledged for n in range(a, b + 1)}
            counted |= {n: number for a, b, number in part.attempts for n in range(a, b + 1)}
            offset = part.end
        assert seen == {n for n in acknowledged if n >= start}
        assert counted == {n: number for n, number in tried.items() if n >= start}
