"""Commands that wait for the next group commit, so that neither producers nor groups wait for all
of the others. Pure.

What consumer groups end has a line of its own: a commit takes a bounded part of it, and then
everything else as far as there is room. Safety rule: commands of one line are run in the order in
which they came, so a group is made before it is acknowledged, and a producer's batches stay in
their order; no command depends on one of the other line that is not committed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from hadron.model.limits import GROUP_COMMIT_BYTES, GROUP_COMMIT_COMMANDS
from hadron.partition.submission import Submission

GROUPS_ROWS: Final = 512
"""Rows that groups may change in one commit, about: 5 ms of the writer's time at most. A batch of
records costs 40 µs."""

_GROUPS_BYTES: Final = GROUP_COMMIT_BYTES // 2
"""Dead letters come as whole batches."""


class Lines:
    """All commands that wait."""

    def __init__(self) -> None:
        self._of_groups: deque[Submission] = deque()
        self._others: deque[Submission] = deque()

    def __bool__(self) -> bool:
        return bool(self._others or self._of_groups)

    def append(self, submission: Submission) -> None:
        line = self._of_groups if submission.command.is_of_groups else self._others
        line.append(submission)

    def take(self) -> Iterator[Submission]:
        """Those of the next commit: of each line at least one."""
        rows = size = count = 0
        line = self._of_groups
        while line and rows < GROUPS_ROWS and size < _GROUPS_BYTES:
            submission = line.popleft()
            rows += max(1, submission.command.rows)
            size += submission.size
            count += 1
            yield submission
        line = self._others
        while line and size < GROUP_COMMIT_BYTES and count < GROUP_COMMIT_COMMANDS:
            submission = line.popleft()
            size += submission.size
            count += 1
            yield submission

    def clear(self) -> list[Submission]:
        """Take out all of them."""
        left = [*self._of_groups, *self._others]
        self._of_groups.clear()
        self._others.clear()
        return left
