"""Progress of consumer groups: the floor, and what is acknowledged above it."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.model.ranges import Range
from hadron.model.schema import StreamSpec
from hadron.state.groups import progress as groups
from hadron.state.groups import views as group_views
from hadron.state.groups.progress import AckRecords, CreateGroup, Progress, Window
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream


@pytest.fixture
def tables() -> Replicated:
    tables = Replicated()
    tables.declare(("Stream", "flights", StreamSpec(partitions=(SET,))))
    tables.submit(AppendBatch(1, 100, 1_000, b"", 0, -1))
    return tables


@pytest.fixture
def group(tables: Replicated) -> int:
    progress = tables.submit(CreateGroup(1, "billing", 0))
    assert isinstance(progress, Progress)
    return progress.group_id


def progress(tables: Replicated) -> tuple[int, tuple[Range, ...]]:
    found = groups.find(tables.db, 1, "billing")
    assert found is not None
    return found.floor, found.window.acknowledged


class TestCreateGroup:
    @pytest.mark.parametrize("floor", [0, 40, 100])
    def test_it_starts_where_it_is_told(self, tables: Replicated, floor: int) -> None:
        made = tables.submit(CreateGroup(1, "billing", floor))
        expected = Progress(3, 1, "billing", floor, fence=(*tables.ballot, 0))
        assert made == groups.find(tables.db, 1, "billing") == expected

    @pytest.mark.parametrize("floor", [101, 1 << 63, (1 << 64) - 1, -1])
    def test_outside_of_the_stream_it_is_refused(self, tables: Replicated, floor: int) -> None:
        with pytest.raises(OffsetOutOfRangeError, match="the stream has 0 to 100"):
            tables.submit(CreateGroup(1, "billing", floor))

    def test_tokens_from_before_it_are_void(self, tables: Replicated) -> None:
        made = tables.submit(CreateGroup(1, "billing", 0, last_delivery=7))
        assert made == groups.find(tables.db, 1, "billing")
        assert made.fence[2] == 7
        assert made.fence[:2] > (0, 0)
        assert tables.submit(CreateGroup(1, "billing", 0, last_delivery=9)).fence == made.fence

    def test_a_known_one_keeps_its_progress(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, ((0, 4), (10, 12))))
        again = tables.submit(CreateGroup(1, "billing", 60))
        assert tables.again
        assert (again.group_id, again.floor) == (group, 5)
        assert again.window == Window(None, ((10, 12),))

    @pytest.mark.parametrize("rows", [1, 2, 500])
    def test_a_window_tells_of_what_the_floor_has_passed(
        self, tables: Replicated, group: int, rows: int
    ) -> None:
        tables.submit(AckRecords(group, ((1, 3), (5, 9), (12, 14))))
        tables.submit(AckRecords(group, ((0, 0), (4, 4))))
        end = 15 if rows == 1 else None
        assert groups.window(tables.db, group, 4, rows) == Window(end, ((4, 9), (12, 14)))

    def test_without_the_stream_it_is_refused(self, tables: Replicated) -> None:
        with pytest.raises(NotFoundError):
            tables.submit(CreateGroup(7, "billing", 0))


class TestAckRecords:
    @pytest.mark.parametrize(
        ("acks", "floor", "above"),
        [
            ([((0, 0),)], 1, ()),
            ([((3, 3),)], 0, ((3, 3),)),
            ([((3, 3), (5, 5), (4, 4))], 0, ((3, 5),)),
            ([((3, 3),), ((0, 2),)], 4, ()),
            ([((5, 9), (0, 6))], 10, ()),
            ([((10, 20), (0, 3), (4, 9))], 21, ()),
            ([((1, 1), (3, 3), (5, 5), (0, 0))], 2, ((3, 3), (5, 5))),
            ([((1, 1), (3, 3), (5, 5), (2, 4))], 0, ((1, 5),)),
            ([((4, 6), (1, 9))], 0, ((1, 9),)),
            ([((1, 9), (4, 6))], 0, ((1, 9),)),
            ([((0, 9),), ((0, 9),), ((3, 5),)], 10, ()),
            ([((0, 99),)], 100, ()),
        ],
    )
    def test_ranges_melt(
        self,
        tables: Replicated,
        group: int,
        acks: list[tuple[Range, ...]],
        floor: int,
        above: tuple[Range, ...],
    ) -> None:
        for ranges in acks:
            reached = tables.submit(AckRecords(group, ranges))
        assert reached == floor
        assert progress(tables) == (floor, above)

    @pytest.mark.parametrize("bad", [(100, 100), (0, 100), (5, 4), (-1, 3), (1 << 63, 1 << 63)])
    def test_what_is_not_there_cannot_be_acknowledged(
        self, tables: Replicated, group: int, bad: Range
    ) -> None:
        with pytest.raises(RequestError, match="cannot be acknowledged, the stream ends at 100"):
            tables.submit(AckRecords(group, ((0, 9), bad)))
        assert progress(tables) == (0, ()), "all or nothing"

    def test_to_melt_with_what_is_at_the_floor_is_a_mistake_of_ours(
        self, tables: Replicated, group: int
    ) -> None:
        tables.db.execute("INSERT INTO hadron_group_ack VALUES(?, 0, 3)", (group,))
        with pytest.raises(AssertionError):
            tables.submit(AckRecords(group, ((4, 5),)))

    @pytest.mark.parametrize("mistake", [(0, 99), (0, 1), (90, 120)])
    def test_retention_finds_nothing_acknowledged_at_the_floor_or_twice(
        self, tables: Replicated, group: int, mistake: Range
    ) -> None:
        tables.submit(AckRecords(group, ((1, 98),)))
        tables.db.execute("INSERT INTO hadron_group_ack VALUES(?, ?, ?)", (group, *mistake))
        with pytest.raises(AssertionError):
            tables.submit(TrimStream(1, 100))

    def test_a_range_that_the_floor_has_not_reached_is_not_absorbed(
        self, tables: Replicated, group: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = groups._ACK_BELOW.replace("first <= ?", "first <= 5 + ?")
        monkeypatch.setattr(groups, "_ACK_BELOW", wrong)
        tables.submit(AckRecords(group, ((4, 5),)))
        with pytest.raises(AssertionError):
            tables.submit(AckRecords(group, ((0, 1),)))

    def test_an_unknown_group_is_refused(self, tables: Replicated) -> None:
        with pytest.raises(NotFoundError, match="consumer group 77"):
            tables.submit(AckRecords(77, ((0, 0),)))

    def test_groups_do_not_share_progress(self, tables: Replicated, group: int) -> None:
        other = tables.submit(CreateGroup(1, "audit", 0)).group_id
        tables.submit(AckRecords(group, ((4, 6),)))
        tables.submit(AckRecords(other, ((0, 9),)))
        assert progress(tables) == (0, ((4, 6),))

    def test_summaries(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, ((0, 4), (10, 19), (30, 30))))
        (found,) = group_views.summaries(tables.db, 1)
        assert (found.floor, found.acknowledged_above, found.next_offset) == (5, 11, 100)
        assert group_views.summaries(tables.db) == [found]
        assert group_views.summaries(tables.db, 2) == []

    def test_ranges_are_counted_in_slices(self, tables: Replicated, group: int) -> None:
        tables.submit(AckRecords(group, ((0, 0), (2, 2), (4, 6), (8, 8), (10, 10))))
        counted, after, parts = 0, -1, 0
        while True:
            more, reached = group_views.count_above(tables.db, group, after, rows=2)
            counted, parts = counted + more, parts + 1
            if reached is None:
                break
            after = reached
        assert (counted, parts) == (6, 3)

    def test_summaries_by_pages(self, tables: Replicated) -> None:
        for name in ("z", "é", "a", "b"):
            tables.submit(CreateGroup(1, name, 0))
        whole = group_views.summaries(tables.db)
        names = [found.name for found in whole]
        assert names == sorted(names)
        assert len(names) == 4
        for limit in (1, 3):
            pages, after = [], (0, "")
            while some := group_views.summaries(tables.db, after=after, limit=limit):
                pages += some
                after = some[-1].stream_id, some[-1].name
            assert pages == whole
