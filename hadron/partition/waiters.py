"""Answers that wait for their lsn: nothing leaves before it may (PROTOCOL A2). Pure."""

from __future__ import annotations

from collections import deque

from hadron.model.errors import HadronError
from hadron.partition.submission import Submission

MAJORITY, LEADER, ALL = 0, 1, 2
"""What an answer waits for; the numbers are those of `hadron.v1.Acks`."""


class Waiters:
    """Judged submissions in the order of their lsns, one line per level of acknowledgement."""

    def __init__(self) -> None:
        self._lines: tuple[deque[Submission], deque[Submission], deque[Submission]] = (
            deque(),
            deque(),
            deque(),
        )

    def _line_of(self, submission: Submission) -> deque[Submission]:
        """Only a logged command may be answered before it is committed: what is refused or known
        already was judged from state that may yet be lost."""
        level = submission.acks
        if level == LEADER and not submission.logged:
            level = MAJORITY
        return self._lines[level]

    def add(self, submission: Submission) -> None:
        line = self._line_of(submission)
        assert not line or line[-1].lsn <= submission.lsn, (line[-1].lsn, submission.lsn)
        line.append(submission)

    def waiting_with(self, acks: int) -> int:
        """How many answers wait where one of this level may have to."""
        return len(self._lines[ALL if acks == ALL else MAJORITY])

    def take(self, *, committed: int, persisted: int, on_all: int) -> deque[Submission]:
        """Those whose time has come; they wait here no longer."""
        taken: deque[Submission] = deque()
        reached = (committed, persisted, min(on_all, committed))
        assert committed <= persisted, (committed, persisted)
        for line, lsn in zip(self._lines, reached, strict=True):
            while line and line[0].lsn <= lsn:
                taken.append(line.popleft())
        return taken

    def put_back(self, taken: deque[Submission]) -> None:
        """Nobody could answer these."""
        while taken:
            submission = taken.pop()
            self._line_of(submission).appendleft(submission)

    def fail(self, error: HadronError) -> None:
        """Nobody will be answered any more."""
        for line in self._lines:
            while line:
                line.popleft().done(None, error)
