"""What is kept of batches costs what it is said to."""

from __future__ import annotations

import tracemalloc
from typing import Any

from hadron.delivery.shelf import Shelf, Shelves
from hadron.model.batch import StampedBatch, key_hash
from hadron.model.batch_building import BatchBuilder
from hadron.model.record import NewRecord


def test_hashes_of_keys_cost_eight_bytes_a_record() -> None:
    """One batch of each group is remembered, and may have 65,536 records."""
    count = 20_000
    builder = BatchBuilder()
    for number in range(count):
        builder.add(NewRecord(value=b"", key=b"%d" % number), 1)
    batch = StampedBatch(100, count, 1, 1, 1, builder.build())
    nothing: Any = None
    shelf = Shelf(nothing, 1, Shelves())
    tracemalloc.start()
    try:
        keys = shelf.keys(batch)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 9 * count
    assert [keys.of(100 + number) for number in (0, 7, count - 1)] == [
        key_hash(b"%d" % number) for number in (0, 7, count - 1)
    ]
    assert shelf.keys(batch) is keys
