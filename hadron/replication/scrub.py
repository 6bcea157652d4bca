"""Reads what a disk holds before somebody needs it: slowly, a slice at a time, for ever.

Damage that nobody meets is repaired by nobody, until the other copies are gone as well. Each pass
makes all the checks of `verification` that a running node can afford. What they find in an entry is
handed to whoever repairs entries. A page that cannot be read makes the node take a snapshot, and on
a replica so does a row that should not be; a leader has nobody's rows to believe more than its own,
and says so. After an unclean stop the first pass begins at once. Tables are not judged beside
damaged entries: they may well fit what comes in their place; so a pass that finds both is followed
by another one as soon as the entries are repaired, and until then the node says what it has found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

import trio

from hadron.model.errors import CorruptionError, HadronError
from hadron.model.ports import Random
from hadron.replication.follower import FollowerLog
from hadron.replication.verification import Verification
from hadron.storage.bodies import BODY, damaged_entry
from hadron.storage.log import LOG
from hadron.storage.report import Problem, Report
from hadron.storage.store import Store

_log = logging.getLogger(__name__)

_ENTRIES: Final = frozenset({LOG, BODY})

_IN_A_HURRY: Final = 128 << 20
"""Bytes per second, when somebody waits for what is damaged."""

_LOOK_AGAIN_S: Final = 1.0
"""Between two looks whether entries are repaired, after which their tables are judged."""

_MOST_HURRIES: Final = 5
"""Passes that follow at once, in a row: entries may be damaged that the one before has not seen;
where repairs do not help, the next pass is as soon as any."""

_SLICE_BYTES: Final = 64 << 10
"""What a slice that counts no bytes is taken for: rows of tables, and the reading itself."""


class Scrubber:
    """Scrubs one store. `run` must be running.

    Args:
        interval_s: from one pass to the next, on average; 0 for never.
        bytes_per_s: read on average during a pass.
        found: told of a damaged entry, on the event loop.
        found_tables: told what is wrong with the rest, and whether SQLite cannot even read it.
        is_repairing: whether something that was found is not what it was yet.
    """

    def __init__(
        self,
        store: Store,
        follower: FollowerLog,
        random: Random,
        *,
        interval_s: float,
        bytes_per_s: int,
        found: Callable[[CorruptionError], object],
        found_tables: Callable[[str, bool], None],
        is_repairing: Callable[[], bool],
    ) -> None:
        self._found_tables = found_tables
        self._is_repairing = is_repairing
        self._unjudged = ""
        """What is wrong beside damaged entries, as a pass has found it; "" for nothing."""
        self._put_off = 0
        """Passes in a row that found both."""
        self._store = store
        self._follower = follower
        self._random = random
        self._interval_s = interval_s
        self._bytes_per_s = bytes_per_s
        self._found = found
        self._suspicion: CorruptionError | None = None
        self._hurried = trio.Event()
        self.passes = 0
        """Completed since the start."""

    @property
    def trouble(self) -> str:
        """For people; "" while nothing is known that nobody mends yet."""
        if self._suspicion is not None:
            return f"looking for what is damaged: {self._suspicion.message}"
        if self._unjudged:
            return f"found beside damaged entries, and looked at again after them: {self._unjudged}"
        return ""

    def hurry(self, suspicion: CorruptionError) -> None:
        """Look through everything at once: somewhere a page cannot be read."""
        self._suspicion = suspicion
        self._hurried.set()

    async def run(self) -> None:
        """Pass after pass, for ever."""
        if not self._store.began_unclean:
            # Nodes that were started together do not read at the same time.
            await self._wait(0.0, 1.0)
        while True:
            self._hurried = trio.Event()
            suspicion, unjudged = self._suspicion, self._unjudged
            if self._interval_s or suspicion is not None or unjudged:
                await self._pass(suspicion, in_a_hurry=bool(unjudged))
            if self._suspicion is suspicion:
                self._suspicion = None
            await self._wait(0.5, 1.5)

    async def _wait(self, low: float, high: float) -> None:
        """For a share of the interval, or until somebody is in a hurry."""
        interval_s = self._random.uniform(low * self._interval_s, high * self._interval_s)
        with trio.move_on_after(interval_s or math.inf):
            await self._hurried.wait()
            # Repairs may take minutes; who is in a hurry does not wait for them.
            while (  # noqa: ASYNC110
                self._unjudged and self._suspicion is None and self._is_repairing()
            ):
                await trio.sleep(_LOOK_AGAIN_S)

    async def _pass(self, suspicion: CorruptionError | None, *, in_a_hurry: bool) -> None:
        in_a_hurry = in_a_hurry or suspicion is not None
        try:
            report = await self.check(bytes_per_s=_IN_A_HURRY if in_a_hurry else 0)
        except HadronError as error:
            _log.error("a pass over this node's file ended early: %s", error)
            return
        self.passes += 1
        _log.log(
            logging.INFO if report.ok else logging.ERROR,
            "looked through %s: %d problems",
            f"entries {report.first_lsn} to {report.last_lsn} ({report.bytes} bytes)"
            if report.entries
            else "a log without entries",
            report.problem_count,
        )
        if suspicion is not None and report.ok:
            # On a page that no table uses, or none that is looked at on a running node.
            self._found_tables(suspicion.message, True)

    async def check(
        self,
        *,
        until_lsn: int = 0,
        bytes_per_s: int = 0,
        on_slice: Callable[[int], None] = lambda _lsn: None,
    ) -> Report:
        """One pass. Raises `StorageError` when the file cannot be read.

        Args:
            until_lsn: where to stop; 0, and at most, the watermark.
            bytes_per_s: 0 for what background passes take.
            on_slice: told how far it has got in the log.
        """
        committed = self._follower.committed_lsn
        rate = bytes_per_s or self._bytes_per_s
        verification = Verification(
            self._follower.machine,
            live=True,
            replay=False,
            until_lsn=min(until_lsn or committed, committed),
        )
        report = verification.report
        known = size = 0
        ended = False
        while not ended:
            ended = await self._store.readers.run_cold(verification.step)
            for problem in report.problems[known:]:
                if _is_about_entry(problem):
                    self._found(damaged_entry(problem.lsn, problem.text))
            known = len(report.problems)
            read, size = max(report.bytes - size, _SLICE_BYTES), report.bytes
            on_slice(verification.reached_lsn)
            await trio.sleep(read / rate)
        # The node knows more than its file: the watermark is written down now and then.
        report.committed_lsn = max(report.committed_lsn, self._follower.committed_lsn)
        others = [problem for problem in report.problems if not _is_about_entry(problem)]
        worst = max(others, key=lambda problem: problem.is_unreadable, default=None)
        # Tables that do not fit a damaged entry may well fit the one that comes in its place.
        if worst is None or len(others) == len(report.problems):
            self._put_off, self._unjudged = 0, ""
            if worst is not None:
                self._found_tables(worst.text, worst.is_unreadable)
        else:
            self._put_off, self._unjudged = self._put_off + 1, worst.text
            if self._put_off <= _MOST_HURRIES:
                self._hurried.set()
        return report


def _is_about_entry(problem: Problem) -> bool:
    return bool(problem.lsn) and problem.table in _ENTRIES
