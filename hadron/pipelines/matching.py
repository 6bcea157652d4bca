"""Which records trigger a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hadron.model.batch import StampedBatch, key_hashes, matching_indexes, read_head
from hadron.model.pipelines import PipelineSpec, matches_type
from hadron.state.pipelines.wait_inputs import awaits


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


def packed_keys(
    spec: PipelineSpec, batches: Sequence[StampedBatch], offsets: Sequence[int]
) -> bytes:
    """The hashes of these records' keys, uint64, little-endian, 0 for none: what instances are made
    with where a stage waits for records. Empty where none does."""
    if not offsets or not awaits(spec.stages):
        return b""
    found: dict[int, int] = {}
    for batch in batches:
        found.update(enumerate(key_hashes(batch.data), batch.base_offset))
    return packed(found.get(at, 0) for at in offsets)


def packed(hashes: Iterable[int]) -> bytes:
    """As commands have hashes of keys: uint64, little-endian, 0 for none."""
    return b"".join(each.to_bytes(8, "little") for each in hashes)


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
