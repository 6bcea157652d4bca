"""Batches that one group keeps at hand, and the hashes of their keys."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import Final

import trio

from hadron.delivery.keys import BatchKeys
from hadron.model.batch import StampedBatch, key_hashes
from hadron.model.errors import NotReadyError, OffsetOutOfRangeError
from hadron.serving.visible import STAMPED_BATCH_BYTES, VisibleStreams

_READ_BYTES: Final = 1 << 20

_AGAIN_S: Final = 0.05
"""Before records are read again that retention is just dropping: the time of a commit."""

_KEPT_BYTES: Final = 4 << 20
"""Batches that one group keeps at hand; older ones are read again."""

MAX_SHELVED_BYTES: Final = 128 << 20
"""Batches that all groups of a leader keep at hand, and hashes of keys: what 32 groups do that lag
far behind. With more of them, each reads again what the others have pushed out."""

_HASH_BYTES: Final = 8
"""Of the hashes of the batch that a group's cursor is in: 512 KiB for a largest one."""


class Shelves:
    """Of all groups of a leader, bounded together: whoever has read least recently lets go first.
    *(A group whose member is stuck keeps what was read for it, and there are a thousand.)*"""

    def __init__(self) -> None:
        self.bytes = 0
        self._sizes: OrderedDict[Shelf, int] = OrderedDict()

    def note(self, shelf: Shelf, size: int) -> None:
        """So much is on the shelf now."""
        self.bytes += size - self._sizes.pop(shelf, 0)
        if size:
            self._sizes[shelf] = size
        while self.bytes > MAX_SHELVED_BYTES and len(self._sizes) > 1:
            oldest, gone = self._sizes.popitem(last=False)
            self.bytes -= gone
            oldest.drop()


class Shelf:
    """Of one group."""

    def __init__(self, visible: VisibleStreams, stream_id: int, all_shelves: Shelves) -> None:
        self._all = all_shelves
        self._visible = visible
        self._stream_id = stream_id
        self._batches: list[StampedBatch] = []
        self._size = 0
        """Of the batches."""
        self._keys: BatchKeys | None = None
        """Of the batch that the cursor is in: no other's are asked for any more."""

    def clear(self) -> None:
        if self._batches or self._keys is not None:
            self.drop()
            self._note()

    def drop(self) -> None:
        """Let go of everything; `Shelves` knows."""
        self._batches.clear()
        self._size, self._keys = 0, None

    def _note(self) -> None:
        hashes = len(self._keys.hashes) if self._keys is not None else 0
        self._all.note(self, self._size + _HASH_BYTES * hashes)

    def at(self, offset: int) -> StampedBatch | None:
        """The batch that holds `offset`, if it is in memory."""
        index = bisect_right(self._batches, offset, key=lambda batch: batch.base_offset) - 1
        if index >= 0 and offset < self._batches[index].next_offset:
            return self._batches[index]
        recent = self._visible.recent(self._stream_id, offset, 1)
        return recent[0] if recent else None

    async def read(self, offset: int) -> list[StampedBatch]:
        """What there is from `offset` on; nothing where retention has just taken that: the machine
        passes over it, and nobody needs to join anew."""
        try:
            return await self._visible.read(self._stream_id, offset, _READ_BYTES)
        except OffsetOutOfRangeError:
            return []
        except NotReadyError:
            await trio.sleep(_AGAIN_S)
            return []

    def keep(self, batches: list[StampedBatch]) -> None:
        """Keep these at hand, for what is delivered next, and of the others what there is room
        for: were the newest let go for older ones, the same would be read again and again."""
        new = {batch.base_offset: batch for batch in batches}
        size = sum(map(_footprint, batches))
        for known in reversed(self._batches):
            size += _footprint(known)
            if size > _KEPT_BYTES:
                break
            new.setdefault(known.base_offset, known)
        self._batches = [new[base_offset] for base_offset in sorted(new)]
        self._size = sum(map(_footprint, self._batches))
        self._note()

    def keys(self, batch: StampedBatch) -> BatchKeys:
        """From its index section; the body is not opened."""
        if self._keys is None or self._keys.base_offset != batch.base_offset:
            # A copy, so that remembering the hashes does not keep the whole batch; as numbers of 8
            # bytes, which are 44 as Python's.
            self._keys = BatchKeys(batch.base_offset, array("Q", key_hashes(batch.data)))
            self._note()
        return self._keys


def _footprint(batch: StampedBatch) -> int:
    """Bytes of memory that a batch takes, about."""
    return len(batch.data) + STAMPED_BATCH_BYTES
