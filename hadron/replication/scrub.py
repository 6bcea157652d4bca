"""Reads what a disk holds before somebody needs it: slowly, a slice at a time, for ever.

Damage that nobody meets is repaired by nobody, until the other copies are gone as well. Each pass
makes all the checks of `verification` that a running node can afford. What they find in an entry is
handed to whoever repairs entries. A page that cannot be read makes the node take a snapshot, and on
a replica so does a row that should not be; a leader has nobody's rows to believe more than its own,
and says so. After an unclean stop the first pass begins at once.
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

_SLICE_BYTES: Final = 64 << 10
"""What a slice that counts no bytes is taken for: rows of tables, and the reading itself."""


class Scrubber:
    """Scrubs one store. `run` must be running.

    Args:
        interval_s: from one pass to the next, on average; 0 for never.
        bytes_per_s: read on average during a pass.
        found: told of a damaged entry, on the event loop.
        found_tables: told what is wrong with the rest, and whether SQLite cannot even read it.
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
    ) -> None:
        self._found_tables = found_tables
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
            suspicion, self._suspicion = self._suspicion, None
            if self._interval_s or suspicion is not None:
                await self._pass(suspicion)
            await self._wait(0.5, 1.5)

    async def _wait(self, low: float, high: float) -> None:
        """For a share of the interval, or until somebody is in a hurry."""
        interval_s = self._random.uniform(low * self._interval_s, high * self._interval_s)
        with trio.move_on_after(interval_s or math.inf):
            await self._hurried.wait()

    async def _pass(self, suspicion: CorruptionError | None) -> None:
        try:
            report = await self.check(bytes_per_s=_IN_A_HURRY if suspicion is not None else 0)
        except HadronError as error:
            _log.error("a pass over this node's file ended early: %s", error)
            return
        self.passes += 1
        _log.log(
            logging.INFO if report.ok else logging.ERROR, "looked through %s: %d problems",
            f"entries {report.first_lsn} to {report.last_lsn} ({report.bytes} bytes)"
            if report.entries else "a log without entries", report.problem_count,
        )
        if suspicion is not None and report.ok:
            # On a page that no table uses, or none that is looked at on a running node.
            self._found_tables(suspicion.message, True)

    async def check(
        self, *, until_lsn: int = 0, bytes_per_s: int = 0,
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
            self._follower.machine, live=True, replay=False,
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
        # Tables that do not fit a damaged entry may well fit the one that comes in its place.
        if report.problems and not any(map(_is_about_entry, report.problems)):
            worst = max(report.problems, key=lambda problem: problem.is_unreadable)
            self._found_tables(worst.text, worst.is_unreadable)
        return report


def _is_about_entry(problem: Problem) -> bool:
    return bool(problem.lsn) and problem.table in _ENTRIES
