"""What a commit takes of what waits: a share for each, in the order in which it came."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hadron.model.limits import GROUP_COMMIT_BYTES, GROUP_COMMIT_COMMANDS
from hadron.partition.lines import RATION_ROWS, Lines
from hadron.partition.submission import Submission
from hadron.partition.waiters import MAJORITY
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import Command
from hadron.state.streams.partitions import AppendBatch


def nobody(_result: Any, _error: Any) -> None:
    pass


def submit(lines: Lines, command: Command, body: bytes = b"") -> None:
    lines.append(Submission(command, body, MAJORITY, nobody))


def commit(lines: Lines) -> list[Command]:
    return [submission.command for submission in lines.take()]


def batch(number: int) -> Command:
    return AppendBatch(1, 1, 10, b"", number, -1)


def ack(group: int, ranges: int) -> Command:
    return AckRecords(group, tuple((4 * n, 4 * n) for n in range(ranges)))


def test_a_producer_waits_for_a_bounded_part_of_what_groups_do() -> None:
    lines = Lines()
    for group in range(10_000):
        submit(lines, ack(group, 100))
    submit(lines, batch(0))
    first = commit(lines)
    assert first[-1] == batch(0), "in the very next commit"
    assert sum(command.rows for command in first[:-1]) < RATION_ROWS + 100


def test_groups_wait_for_no_producers() -> None:
    lines = Lines()
    for number in range(3 * GROUP_COMMIT_COMMANDS):
        submit(lines, batch(number))
    submit(lines, ack(1, 1))
    first = commit(lines)
    assert first[0] == ack(1, 1)
    assert len(first) == GROUP_COMMIT_COMMANDS
    assert commit(lines)[0] == batch(GROUP_COMMIT_COMMANDS - 1)


def test_batches_of_dead_letters_leave_room_for_others() -> None:
    lines = Lines()
    for _ in range(20):
        submit(lines, DeadLetterRecords(1, 2, ((0, 0),), 500_000), b"x" * 500_000)
    submit(lines, batch(0), b"x" * 500_000)
    first = commit(lines)
    assert first[-1] == batch(0)
    assert len(first) < 5


def test_dead_letters_that_fill_a_commit_leave_room_for_one() -> None:
    lines = Lines()
    for size in (GROUP_COMMIT_BYTES // 2 - 1_000, GROUP_COMMIT_BYTES):
        submit(lines, DeadLetterRecords(1, 2, ((0, 0),), size), b"x" * size)
    for number in range(2):
        submit(lines, batch(number))
    assert commit(lines)[2:] == [batch(0)]


def test_what_is_larger_than_its_share_goes_alone() -> None:
    lines = Lines()
    submit(lines, CollectGroups())
    submit(lines, ack(1, 2 * RATION_ROWS))
    submit(lines, batch(0), b"x" * GROUP_COMMIT_BYTES)
    submit(lines, batch(1))
    assert [type(each) for each in commit(lines)] == [CollectGroups, AppendBatch]
    assert [type(each) for each in commit(lines)] == [AckRecords, AppendBatch]
    assert not lines


def test_whose_commands_are_the_groups() -> None:
    of_groups = (
        CreateGroup,
        AckRecords,
        EndDeliveries,
        DeadLetterRecords,
        ResetGroup,
        DeleteGroup,
        CollectGroups,
    )
    assert {each for each in Command.__subclasses__() if each.is_rationed} == set(of_groups)


@given(st.lists(st.one_of(st.integers(0, 900), st.just(None)), max_size=60))
def test_each_line_keeps_its_order_and_nothing_is_left_behind(sizes: list[int | None]) -> None:
    lines, sent = Lines(), []
    for number, size in enumerate(sizes):
        command = batch(number) if size is None else ack(number, size)
        sent.append(command)
        submit(lines, command)
    taken: list[Command] = []
    while lines:
        some = commit(lines)
        assert some
        taken += some
    for kind in (AppendBatch, AckRecords):
        assert [each for each in taken if isinstance(each, kind)] == [
            each for each in sent if isinstance(each, kind)
        ]
