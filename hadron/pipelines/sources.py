"""Where a pipeline reads a partition of its input: this log, or another set's leader.

Whatever is read is visible there, so it is on a majority of that set's disks (PROTOCOL A2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

import trio

from hadron.model.batch import StampedBatch
from hadron.model.ids import Ballot
from hadron.serving.visible import VisibleStreams

READ_BYTES: Final = 1 << 20


class Gap(NamedTuple):
    """A partition does not have what follows a cursor: go on at `next_offset`."""

    next_offset: int
    ballot: Ballot
    is_truncated: bool


class Source(Protocol):
    """A partition, for one reader."""

    @property
    def next_offset(self) -> int:
        """Where it ended when it was last looked at."""
        ...

    async def end(self) -> int:
        """Where it ends now."""
        ...

    async def read(self, offset: int, after: Ballot) -> list[StampedBatch] | Gap:
        """Batches from the one that holds `offset` on, `READ_BYTES` or one; [] after a while
        without any. `after` is the ballot of what was read before it, if known."""
        ...


class RemoteSource(Source, Protocol):
    """A partition of another set, whose leader is asked. Raises `HadronError`."""

    async def start(self, pipeline_id: int, *, awaited: int = 0) -> int:
        """Where a pipeline starts there, or where the awaited stream of this id begins for it."""
        ...


class Others(Protocol):
    """The leaders of the cluster's other replica sets."""

    async def converse(
        self,
        partition: str,
        stream_id: int,
        metadata_index: int,
        conversation: Callable[[RemoteSource], Awaitable[None]],
    ) -> None:
        """Read a stream's partition on a connection of its own, until `conversation` ends; raises
        what ends it, `HadronError` or `OSError`.

        Args:
            metadata_index: what its leader must know of the schema.
        """
        ...


class LocalSource:
    """A partition of this log. Use as a context manager."""

    def __init__(self, visible: VisibleStreams, stream_id: int) -> None:
        self._visible = visible
        self._stream_id = stream_id
        self._moved = trio.Event()

    @property
    def next_offset(self) -> int:
        return self._visible.bounds(self._stream_id).next_offset

    def __enter__(self) -> LocalSource:
        self._unwatch = self._visible.watch(self._stream_id, lambda: self._moved.set())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._unwatch()

    async def end(self) -> int:
        return self.next_offset

    async def read(self, offset: int, after: Ballot) -> list[StampedBatch]:  # noqa: ARG002
        # A cursor is in the same log: it cannot be of another history.
        moved = self._moved
        # The entry that drops records moves the cursor over them.
        offset = max(offset, self._visible.bounds(self._stream_id).first_offset)
        batches = await self._visible.read(self._stream_id, offset, READ_BYTES)
        if not batches:
            await moved.wait()
            self._moved = trio.Event()
        return batches
