"""Writes that race for one batch, without Spark: one is published, and the other leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hadron
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.processes import wait_until
from hadron.spark.source.writers import BatchWriter


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
