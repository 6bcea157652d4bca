"""Follows one partition that a pipeline reads, on the pipeline's leader: in this log, or at another
set's leader, which is dialed again for as long as it is away.

Safety rule: each partition has a cursor in the log of the pipeline's home, and every entry that
moves it says where it was. So whoever else has read there meanwhile, here or under another leader,
nothing is done twice, and nothing is passed over (PIPELINES P5, P14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from hadron.model.backoff import Backoff
from hadron.model.batch import StampedBatch
from hadron.model.errors import (
    FencedError,
    HadronError,
    NotFoundError,
    PeerError,
    ShuttingDownError,
)
from hadron.model.ids import Ballot
from hadron.model.ports import Random
from hadron.pipelines.sources import Gap, LocalSource, Others, RemoteSource, Source
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines.views import InputCursor
from hadron.state.pipelines.wait_inputs import WaitCursor

_log = logging.getLogger(__name__)

_LASTING_S: Final = 10.0
"""Trouble that is over by then, as when a leader begins, is nobody's business."""


Cursor = InputCursor | WaitCursor
"""How far a partition was looked at, as the log says."""


class Reading(Protocol):
    """What a pipeline does with one partition's records."""

    @property
    def label(self) -> str:
        """Whose it is, for people: "… does not read <partition>"."""
        ...

    def stream(self) -> tuple[int, int] | None:
        """The stream's id, and what a leader must know of the schema to be asked; None once it is
        gone for good. Raises `NotFoundError` while nothing has its name."""
        ...

    async def is_wanted(self) -> bool:
        """Whether its records are of use to anybody now."""
        ...

    async def cursor(self) -> Cursor | None:
        """None before it is read, and where nobody wants it any more."""
        ...

    async def begin(self, source: RemoteSource) -> None:
        """Log a cursor at where the pipeline starts there."""
        ...

    async def take(
        self, batches: Sequence[StampedBatch], offset: int, ballot: Ballot
    ) -> tuple[int, Ballot] | None:
        """Do it with some of these, from `offset` on, behind what has this ballot; returns where
        the cursor is then, or None where it had moved and nothing was done."""
        ...

    async def pass_gap(self, offset: int, gap: Gap) -> None:
        """Tell people that something is not there, and move the cursor over it."""
        ...


class Reach(NamedTuple):
    """What a pipeline's leader can read.

    Attributes:
        home: the partition that is in this log.
        others: None where the cluster has no other sets.
    """

    home: str
    visible: VisibleStreams
    others: Others | None
    random: Random


class Follower:
    """Of one partition. `run` must be running.

    Args:
        looked: called whenever `offset` has moved.

    Attributes:
        offset: how far it was looked at; -1 before it was.
        source: the partition, once it was read.
        trouble: why it is not read now; "" where it is.
    """

    def __init__(
        self,
        reading: Reading,
        partition: str,
        reach: Reach,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self.offset = -1
        self.source: Source | None = None
        self.trouble = ""
        self._since = 0.0
        self._reading = reading
        self._partition = partition
        self._reach = reach
        self._looked = looked
        self._declared = trio.Event()

    def wake(self) -> None:
        """Something was declared."""
        self._declared.set()
        self._declared = trio.Event()

    @property
    def lasting_trouble(self) -> str:
        """What people must know: why it could not be read for a while; "" where it can."""
        if not self.trouble or trio.current_time() - self._since <= _LASTING_S:
            return ""
        return f"{self._reading.label} does not read {self._partition}: {self.trouble}"

    async def run(self) -> None:
        """Until its stream is gone."""
        is_here = self._partition == self._reach.home
        await (self._follow_here() if is_here else self._follow_there())

    async def _follow_here(self) -> None:
        while True:
            declared = self._declared
            cursor = await self._reading.cursor()
            if cursor is None:
                # Declared, and not adopted yet; or nobody wants it any more.
                await declared.wait()
                continue
            with LocalSource(self._reach.visible, cursor.stream_id) as source:
                await self._follow(source, cursor)

    async def _follow_there(self) -> None:
        backoff = Backoff(self._reach.random)

        async def conversation(source: RemoteSource) -> None:
            cursor = await self._reading.cursor()
            while cursor is None:
                await self._reading.begin(source)
                cursor = await self._reading.cursor()
            self.trouble = ""
            backoff.reset()
            await self._follow(source, cursor)

        while True:
            declared = self._declared
            try:
                stream = self._reading.stream()
                if stream is None:
                    self.trouble = ""
                    return
                if not await self._reading.is_wanted():
                    self.trouble = ""
                    await declared.wait()
                    continue
                if self._reach.others is None:
                    raise PeerError(f"nobody here knows who leads {self._partition}")
                await self._reach.others.converse(self._partition, *stream, conversation)
            except (FencedError, ShuttingDownError):
                raise
            except (HadronError, OSError) as error:
                if not self.trouble:
                    self._since = trio.current_time()
                self.trouble = str(error) or type(error).__name__
                _log.debug("%s cannot read %s: %s", self._reading.label, self._partition, error)
            await trio.sleep(backoff.next_s())

    async def _follow(self, source: Source, cursor: Cursor | None) -> None:
        """Returns once there is no cursor any more."""
        self.source = source
        while cursor is not None:
            try:
                await self._take_all(source, cursor.next_offset, cursor.ballot)
            except NotFoundError:
                if await self._reading.cursor() is not None:
                    raise
            cursor = await self._reading.cursor()

    async def _take_all(self, source: Source, offset: int, ballot: Ballot) -> None:
        """Returns when somebody else has moved the cursor: the entry that drops records, for one;
        or a gap was passed."""
        while True:
            self._look(offset)
            found = await source.read(offset, ballot)
            if isinstance(found, Gap):
                await self._reading.pass_gap(offset, found)
                return
            while found and found[-1].next_offset > offset:
                following = await self._reading.take(found, offset, ballot)
                if following is None:
                    return
                assert following[0] >= offset, "a cursor that goes back"
                offset, ballot = following
                self._look(offset)

    def _look(self, offset: int) -> None:
        self.offset = offset
        self._looked()


def ballot_before(offset: int, batches: Sequence[StampedBatch]) -> Ballot:
    """Whose the record before `offset` is, which is in one of these."""
    (last,) = (each for each in batches if each.base_offset < offset <= each.next_offset)
    return Ballot(last.epoch, last.incarnation)
