"""Reads the keys of triggers that its leader does not have at hand: of records that are started by
hand, and of instances that are retried, and wait now for records with these keys.

Of what is read only hashes are kept: a thousand records that lie apart are a thousand reads.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from hadron.model.batch import StampedBatch, key_hashes
from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, PeerError
from hadron.model.ids import NO_BALLOT
from hadron.pipelines.sources import READ_BYTES, Gap, Others, RemoteSource
from hadron.serving.catalog import Catalog
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines.views import OutputRef


class TriggerKeys:
    """Of the records of any stream.

    Args:
        home: the replica set whose leader this is.
        others: the leaders of the others; None without any.
    """

    def __init__(
        self, home: str, catalog: Catalog, visible: VisibleStreams, others: Others | None
    ) -> None:
        self._home = home
        self._catalog = catalog
        self._visible = visible
        self._others = others

    async def of(self, records: Iterable[OutputRef]) -> dict[OutputRef, int]:
        """The hash of each one's key, 0 without one; those that are gone are left out. Raises
        `HadronError` and `OSError` while a partition is away."""
        offsets: dict[tuple[int, str], set[int]] = defaultdict(set)
        for each in records:
            offsets[each.stream_id, each.partition].add(each.offset)
        return {
            OutputRef(stream_id, partition, offset): key_hash
            for (stream_id, partition), some in offsets.items()
            for offset, key_hash in (await self._look(stream_id, partition, sorted(some))).items()
        }

    async def _look(self, stream_id: int, partition: str, offsets: Sequence[int]) -> dict[int, int]:
        """In one partition; `offsets` are sorted."""
        found: dict[int, int] = {}

        async def look(source: RemoteSource | None) -> None:
            end = 0
            for offset in offsets:
                if offset < end:
                    continue
                there = await self._read(stream_id, offset, source)
                if isinstance(there, Gap):
                    end = there.next_offset
                elif there:
                    end = there[-1].next_offset
                    found.update(_hashes(there, offsets))

        # Where the stream is gone, or its partition there, so are the records.
        with contextlib.suppress(NotFoundError):
            item = self._catalog.by_id(stream_id)
            if partition == self._home:
                await look(None)
            elif self._others is None:
                raise PeerError(f"nobody here knows who leads {partition}")
            else:
                await self._others.converse(partition, stream_id, item.metadata_index, look)
        return found

    async def _read(
        self, stream_id: int, offset: int, source: RemoteSource | None
    ) -> list[StampedBatch] | Gap:
        if source is not None:
            return await source.read(offset, NO_BALLOT)
        try:
            return await self._visible.read(stream_id, offset, READ_BYTES)
        except OffsetOutOfRangeError:
            return []


def _hashes(batches: Sequence[StampedBatch], offsets: Sequence[int]) -> dict[int, int]:
    """Of those of `offsets`, which are sorted, that are in there."""
    found = {}
    for batch in batches:
        inside = offsets[
            bisect_left(offsets, batch.base_offset) : bisect_left(offsets, batch.next_offset)
        ]
        hashes = key_hashes(batch.data) if inside else ()
        for offset in inside:
            # A batch in which no record has a key has none at all.
            found[offset] = hashes[offset - batch.base_offset] if len(hashes) else 0
    return found
