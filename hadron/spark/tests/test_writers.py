"""Writes that race for one batch, without Spark: one is published, and the other leaves nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import hadron
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_ITEMS
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.processes import wait_until
from hadron.spark.source.options import parse_sink_options
from hadron.spark.source.writers import BatchWriter, _Task
from hadron.spark.written import TARGET_BYTES, Packer


@pytest.mark.parametrize("late", ["first", "second"])
def test_who_loses_a_race_leaves_nothing_staged(tmp_path: Path, late: str) -> None:
    with (
        LocalCluster(tmp_path, nodes=1, durability="os") as running,
        hadron.connect_sync(running.url) as client,
    ):
        client.create_stream("out")
        given = {"server": running.url, "stream": "out", "txnId": "nightly", "batchId": "7"}
        writers = {name: BatchWriter(given) for name in ("first", "second")}
        written = {
            name: writer.write(iter([pa.RecordBatch.from_pydict({"value": [name, name]})]))
            for name, writer in writers.items()
        }
        (early,) = set(writers) - {late}
        # The winner's commit comes twice: its answer was lost.
        for name in (early, late, early):
            writers[name].commit([written[name]])
        assert wait_until(lambda: not client.staged(), 20)
        assert [record.value for record in client.read("out")] == [early, early]


def test_headers_are_counted_in_bytes() -> None:
    """A batch of them has room at a leader, in whichever script they are."""
    rows, headers = 2_000, pa.map_(pa.string(), pa.string())
    batch = pa.record_batch(
        {
            "value": pa.array(["x"] * rows),
            "headers": pa.array([[("note", "か" * 350)]] * rows, headers),
        }
    )
    packer = Packer("s", ["p0"], first=0, now_ms=1)
    made = [*packer.add(batch), *packer.finish()]
    assert sum(count for _, _, count in made) == rows
    assert max(len(data) for _, data, _ in made) < 2 * TARGET_BYTES


def test_what_is_staged_at_once_is_bounded_in_batches() -> None:
    """However small they are made by compression."""
    staged: list[int] = []

    def stage(_stream: str, _partition: str, batches: list[bytes], **_told: object) -> None:
        staged.append(len(batches))

    sink: Any = SimpleNamespace(stage=stage)
    task = _Task(parse_sink_options({"stream": "out"}, streaming=False), b"w" * 16, "", 0)
    for _ in range(MAX_ITEMS + 1):
        task._take(sink, "p0", b"x", 1)
    task._stage(sink, "p0")
    assert staged == [MAX_ITEMS, 1]


def test_a_partition_that_is_not_there_is_told_with_the_stream() -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["{}"], "partition": ["local/p9"]})
    packer = Packer("orders", ["local/p0"], first=0, now_ms=1)
    with pytest.raises(RequestError, match="stream 'orders' has no partition 'local/p9'"):
        list(packer.add(rows))
