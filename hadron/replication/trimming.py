"""How long a log stays: what its leader lets go, and each node's own dropping of its rows.

Only replication reads log rows by lsn (PROTOCOL A7), so a row may go once it is committed and every
member has it. A member that is away holds rows back for as long as the log above them is within a
limit; beyond it, it needs a snapshot. The leader decides, because only it knows what all have; its
word travels with every append, and each node drops its own rows, which are not replicated state.

Safety rule: a node never drops what it does not know to be committed and has not applied, nor what
somebody here still reads (a pin).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import apsw
import trio

from hadron.model.errors import CorruptionError
from hadron.replication.ballot import run_on_writer
from hadron.replication.follower import FollowerLog
from hadron.storage.database import transaction
from hadron.storage.log import set_meta
from hadron.storage.store import Store

_SLICE_ROWS: Final = 1_000
"""Dropped in one transaction: commits wait for no more than that (PROTOCOL F3). Measured: 1,000
rows of single records take 1 ms."""

_BUCKETS: Final = 64
_LARGEST_BUCKET_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _Bucket:
    """Neighbouring entries; `end` counts the bytes of the log up to its last one."""

    last_lsn: int
    end: int


class LogHorizon:
    """On a leader: up to where all members may trim. Pure, O(1) per entry.

    Entries are counted in buckets, so the horizon moves in steps of at most a 64th of
    `keep_bytes`, or 1 MiB.
    """

    def __init__(self, *, keep_bytes: int, max_lag_bytes: int) -> None:
        """
        Args:
            keep_bytes: kept also when every member has it: one that comes back from a short
                absence is then fed from the log.
            max_lag_bytes: kept for members that lack it.
        """
        self._keep_bytes = keep_bytes
        self._max_lag_bytes = max(keep_bytes, max_lag_bytes)
        self._bucket_bytes = max(1, min(_LARGEST_BUCKET_BYTES, keep_bytes // _BUCKETS))
        self._buckets: deque[_Bucket] = deque()
        self._end = 0
        self._open_bytes = 0
        self._lagging = 0
        """How many of the oldest buckets are beyond the lag limit."""
        self.lsn = 0
        """Everything up to here may be trimmed. Never goes back."""

    def add(self, lsn: int, size: int) -> None:
        """The log has one more entry; `lsn` follows the one before."""
        self._end += size
        self._open_bytes += size
        if self._open_bytes >= self._bucket_bytes:
            self._open_bytes = 0
            self._buckets.append(_Bucket(lsn, self._end))

    def prepend(self, older: LogHorizon) -> None:
        """Take over, once, what was in the log before the first `add`: it was added to `older`,
        which has the same limits and is done with."""
        for bucket in reversed(older._buckets):
            if bucket.last_lsn > self.lsn:
                bucket.end -= older._end
                self._buckets.appendleft(bucket)
        self._lagging = 0

    @property
    def lag_lsn(self) -> int:
        """Entries up to here are beyond the lag limit: nobody who lacks them is waited for."""
        while (
            self._lagging < len(self._buckets)
            and self._end - self._buckets[self._lagging].end >= self._max_lag_bytes
        ):
            self._lagging += 1
        return self._buckets[self._lagging - 1].last_lsn if self._lagging else self.lsn

    def move(self, *, committed: int, on_all: int) -> bool:
        """Let go what may go; returns whether `lsn` moved."""
        before = self.lsn
        limit = min(committed, max(on_all, self.lag_lsn))
        while (
            self._buckets
            and self._buckets[0].last_lsn <= limit
            and self._end - self._buckets[0].end >= self._keep_bytes
        ):
            self.lsn = self._buckets.popleft().last_lsn
            self._lagging = max(0, self._lagging - 1)
        return self.lsn != before


class LogTrimmer:
    """On every node: drops the rows that the leader lets go, in slices, when there are any."""

    def __init__(
        self,
        store: Store,
        follower: FollowerLog,
        heal: Callable[[CorruptionError], Awaitable[bool]],
    ) -> None:
        """`heal`: has a damaged entry repaired, if it can (`repair.Repairer`)."""
        self._heal = heal
        self._store = store
        self._follower = follower
        self._allowed_lsn = 0
        self._wanted = trio.Event()
        self._pins: dict[int, int] = {}
        self._pin_numbers = itertools.count()

    def allow(self, lsn: int) -> None:
        """The leader says that nobody needs the entries up to `lsn` any more."""
        if lsn > self._allowed_lsn:
            self._allowed_lsn = lsn
            self._wanted.set()

    def pin(self, lsn: int) -> Callable[[], None]:
        """Keep `lsn` and what follows it until the returned function is called. Look where the log
        begins after this, not before."""
        number = next(self._pin_numbers)
        self._pins[number] = lsn

        def release() -> None:
            if self._pins.pop(number, None) is not None:
                self._wanted.set()

        return release

    def _until(self) -> int:
        # The pins in one step: the loop may add one meanwhile.
        pins = tuple(self._pins.values())
        return min(
            self._allowed_lsn,
            self._follower.committed_lsn,
            self._follower.applied_lsn,
            *(lsn - 1 for lsn in pins),
        )

    async def run(self) -> None:
        """Trim, for ever. What is allowed before it is applied here goes with the next word."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._until() > self._store.log.anchor.lsn:
                try:
                    await run_on_writer(self._store, self._trim)
                except CorruptionError as error:
                    # An anchor is never made of a damaged entry.
                    if not error.lsn:
                        raise
                    if not await self._heal(error):
                        break
                await trio.lowlevel.checkpoint()

    def _trim(self, connection: apsw.Connection) -> None:
        # Once, and first: this is the writer's thread, and the loop may raise the watermark between
        # two looks at it.
        until = self._until()
        # Nobody would miss it, and it is flushed like every commit (PROTOCOL B4): the next one's
        # frames must not reach the disk before its own.
        try:
            with transaction(connection):
                # A leader writes its watermark down nowhere else, and it must not be below the
                # anchor after a restart.
                set_meta(connection, "committed_lsn", self._follower.committed_lsn)
                self._store.log.trim(until, max_rows=_SLICE_ROWS)
        except BaseException:
            self._store.log.reload()
            raise
