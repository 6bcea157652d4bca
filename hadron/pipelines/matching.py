"""Which records trigger a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hadron.model.batch import StampedBatch, matching_indexes, read_head
from hadron.model.pipelines import matches_type


def matched(
    triggers: tuple[str, ...], batches: Sequence[StampedBatch], offset: int, room: int
) -> tuple[list[int], int]:
    """Offsets of matching records from `offset` on, `room` at most, and how far was looked."""
    offsets: list[int] = []
    for batch in batches:
        head = read_head(batch.data)
        for index in matching_indexes(head, lambda name: matches_type(triggers, name)):
            at = batch.base_offset + index
            if at < offset:
                continue
            if len(offsets) == room:
                return offsets, at
            offsets.append(at)
    return offsets, batches[-1].next_offset


def untyped(
    triggers: tuple[str, ...], batches: Sequence[StampedBatch], offset: int, to_offset: int
) -> int:
    """How many records from `offset` on, before `to_offset`, are passed over for want of a type."""
    if matches_type(triggers, ""):
        return 0
    return sum(
        offset <= batch.base_offset + index < to_offset
        for batch in batches
        for index in matching_indexes(read_head(batch.data), lambda name: not name)
    )
