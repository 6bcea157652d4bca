"""Commands that wait for the next group commit, so that nobody waits for all others. Pure.

Those that come as fast as records are read (what consumer groups end) are rationed: they have a
line of their own, of which a commit takes a bounded part, and then everything else as far as there
is room. Safety rule: commands of one line are run in the order in
which they came, so a group is made before it is acknowledged, and a producer's batches stay in
their order; no command depends on one of the other line that is not committed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from hadron.model.limits import GROUP_COMMIT_BYTES, GROUP_COMMIT_COMMANDS
from hadron.partition.submission import Submission

RATION_ROWS: Final = 512
"""Rows that rationed commands may change in one commit, about: 5 ms of the writer's time at most. A
batch of records costs 40 µs."""

_RATION_BYTES: Final = GROUP_COMMIT_BYTES // 2
"""Dead letters come as whole batches."""


class Lines:
    """All commands that wait."""

    def __init__(self) -> None:
        self._rationed: deque[Submission] = deque()
        self._others: deque[Submission] = deque()
        self.urgent = 0
        """Of them, those that are not patient."""

    def __bool__(self) -> bool:
        return bool(self._others or self._rationed)

    def append(self, submission: Submission) -> None:
        line = self._rationed if submission.command.is_rationed else self._others
        line.append(submission)
        self.urgent += not submission.is_patient

    def take(self) -> Iterator[Submission]:
        """Those of the next commit: of each line at least one."""
        rows = size = count = 0
        line = self._rationed
        while line and rows < RATION_ROWS and size < _RATION_BYTES:
            submission = self._pop(line)
            rows += max(1, submission.command.rows)
            size += submission.size
            count += 1
            yield submission
        line = self._others
        first = count
        while line and (
            count == first or (size < GROUP_COMMIT_BYTES and count < GROUP_COMMIT_COMMANDS)
        ):
            submission = self._pop(line)
            size += submission.size
            count += 1
            yield submission

    def _pop(self, line: deque[Submission]) -> Submission:
        submission = line.popleft()
        self.urgent -= not submission.is_patient
        return submission

    def clear(self) -> list[Submission]:
        """Take out all of them."""
        left = [*self._rationed, *self._others]
        self._rationed.clear()
        self._others.clear()
        self.urgent = 0
        return left
