"""Batches that one group keeps at hand, and the hashes of their keys."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from hadron.delivery.keys import BatchKeys
from hadron.model.batch import StampedBatch, key_hashes
from hadron.partition.visible import STAMPED_BATCH_BYTES, VisibleStreams

_KEPT_BYTES: Final = 4 << 20
"""Batches that one group keeps at hand; older ones are read again."""

_KEPT_KEYS: Final = 64
"""Batches whose hashes are remembered: 8 bytes a record, and they are wanted again for every
record that waited."""


class Shelf:
    def __init__(self, visible: VisibleStreams, stream_id: int) -> None:
        self._visible = visible
        self._stream_id = stream_id
        self._batches: list[StampedBatch] = []
        self._keys: OrderedDict[int, BatchKeys] = OrderedDict()

    def clear(self) -> None:
        self._batches.clear()

    def at(self, offset: int) -> StampedBatch | None:
        """The batch that holds `offset`, if it is in memory."""
        index = bisect_right(self._batches, offset, key=lambda batch: batch.base_offset) - 1
        if index >= 0 and offset < self._batches[index].next_offset:
            return self._batches[index]
        recent = self._visible.recent(self._stream_id, offset, 1)
        return recent[0] if recent else None

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

    def keys(self, batch: StampedBatch) -> BatchKeys:
        """From its index section; the body is not opened."""
        known = self._keys.get(batch.base_offset)
        if known is None:
            # A copy, so that remembering the hashes does not keep the whole batch.
            known = BatchKeys(batch.base_offset, tuple(key_hashes(batch.data)))
            self._keys[batch.base_offset] = known
            if len(self._keys) > _KEPT_KEYS:
                self._keys.popitem(last=False)
        return known


def _footprint(batch: StampedBatch) -> int:
    """Bytes of memory that a batch takes, about."""
    return len(batch.data) + STAMPED_BATCH_BYTES
