"""How pipelines with `mode: stream` are doing: the sink's row, and the checkpoint where it is
here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject
    from hadron.spark.checkpoint import Checkpoint


def find_streaming(url: str, name: str) -> SchemaObject | None:
    """The pipeline called `name`, where it is a streaming query."""
    from hadron.cli.patience import connected_sync

    with connected_sync(url) as client:
        return next(iter(_declared(client, name)), None)


def rows(client: SyncClient, name: str) -> list[dict[str, Any]]:
    """Of the streaming query `name`, or of all when it is ""; none where there is no such one."""
    return [row_of(client, found) for found in _declared(client, name)]


def row_of(client: SyncClient, found: SchemaObject) -> dict[str, Any]:
    """How far a streaming query is; what is not known is None."""
    from hadron.model.pipelines import StreamPipelineSpec, sink_of

    assert isinstance(found.spec, StreamPipelineSpec)
    sink = client.sink(sink_of(found.name, found.id)).progress()
    checkpoint = checkpoint_of(client, found, None)
    lag = None
    if is_here := sink is not None and checkpoint.query == sink.query:
        lag = _lag(client, found.spec.source.stream, checkpoint, sink.batch)
    return {
        "namespace": found.namespace,
        "name": found.name,
        "id": found.id,
        "mode": "stream",
        "input": found.spec.source.stream,
        "output": found.spec.to.stream,
        "query": sink.query if sink else None,
        "batch": sink.batch if sink else None,
        "published_ms": sink.published_ms if sink else None,
        "input_lag": lag,
        "checkpoint": str(checkpoint.directory) if is_here else None,
    }


def sentence(row: dict[str, Any]) -> str:
    """A row, for people."""
    from hadron.model.units import format_time

    way = f"{row['name']}: one streaming query, {row['input']} → {row['output']}: "
    if row["batch"] is None:
        return f"{way}nothing is published yet; `hadron pipeline run {row['name']}` runs it"
    told = f"{way}batch {row['batch']:,} published {format_time(row['published_ms'])}"
    if row["input_lag"] is None:
        return (
            f"{told}; how much is to come is known on the machine of its runner, with "
            "HADRON_CHECKPOINTS=DIR where that has `--checkpoints DIR`"
        )
    return f"{told}, {counted(row['input_lag'], 'record')} of the input to come"


def checkpoint_of(client: SyncClient, found: SchemaObject, root: Path | None) -> Checkpoint:
    """Where a pipeline's checkpoint is, or would be, on this machine."""
    from hadron.spark.checkpoint import Checkpoint, default_directory

    topology = client.topology()
    (cluster,) = (each.uuid for each in topology.replica_sets if each.name == topology.metadata)
    given = os.environ.get("HADRON_CHECKPOINTS")
    directory = root or (Path(given) if given else default_directory())
    return Checkpoint.of(directory, found.name, found.id, cluster)


def _declared(client: SyncClient, name: str) -> list[SchemaObject]:
    from hadron.model.pipelines import StreamPipelineSpec

    found = client.objects("Pipeline", client.namespace, name)
    return [each for each in found if isinstance(each.spec, StreamPipelineSpec)]


def _lag(client: SyncClient, stream: str, checkpoint: Checkpoint, published: int) -> int | None:
    """Records of the input that are there, and in no published batch."""
    there = client.offsets(stream)
    cursors = checkpoint.cursors(there[0].stream_id, published) if there else None
    if cursors is None:
        return None
    lag = 0
    for each in there:
        cursor = cursors.get(each.partition)
        lag += max(0, each.next_offset - (cursor.offset if cursor else each.first_offset))
    return lag
