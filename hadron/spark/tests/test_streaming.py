"""Pipelines that are one streaming query, on a real Spark, against a real node."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hadron
from hadron.model.errors import ConfigurationError, HadronError, RequestError
from hadron.model.pipelines import StreamInput, StreamOutput, StreamPipelineSpec, sink_of
from hadron.model.schema import SchemaObject
from hadron.node.supervision.cluster import LocalCluster
from hadron.spark.checkpoint import Checkpoint
from hadron.spark.failures import StageError
from hadron.spark.functions import StageCodeError
from hadron.spark.streaming import Batch, StreamRunner
from hadron.spark.tests.streams import EACH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAMS = "hadron.spark.tests.streams"
SCHEMA = "s BIGINT, kind STRING, amount BIGINT"


class Scene:
    """A node with a stream `in`, and pipelines that read it."""

    def __init__(self, url: str, client: Any, spark: SparkSession, root: Path) -> None:
        self.url = url
        self.client = client
        self.spark = spark
        self.root = root
        self.sent: list[dict[str, Any]] = []
        self._made = 0
        client.create_stream("in")

    def send(self, first: int, last: int) -> None:
        """An event for each number: they come in disorder, by up to four seconds."""
        made = [
            {"s": 1_000 + (n // 20) + (n * 7) % 5, "kind": f"k{n % 4}", "amount": n % 97}
            for n in range(first, last)
        ]
        with self.client.producer("in") as producer:
            producer.send_many(made)
        self.sent += made

    def declare(self, function: str, **fields: Any) -> SchemaObject:
        self._made += 1
        name, output = f"p{self._made}", f"out{self._made}"
        self.client.create_stream(output)
        source = StreamInput("in", fields.pop("start", "earliest"), fields.pop("schema", SCHEMA))
        spec = StreamPipelineSpec(
            source=source, run=f"{STREAMS}:{function}", to=StreamOutput(output), **fields
        )
        self.client.apply([SchemaObject(kind="Pipeline", name=name, spec=spec)])
        found: list[SchemaObject] = self.client.objects("Pipeline", "default", name)
        return found[0]

    def checkpoint(self, pipeline: SchemaObject, root: str = "a") -> Checkpoint:
        return Checkpoint.of(self.root / root, pipeline.name, pipeline.id, b"cluster")

    def sink(self, pipeline: SchemaObject) -> Any:
        return self.client.sink(sink_of(pipeline.name, pipeline.id)).progress()

    def runner(self, pipeline: SchemaObject, root: str = "a", **given: Any) -> StreamRunner:
        checkpoint = self.checkpoint(pipeline, root)
        if "follows" not in given:
            given["follows"] = checkpoint.follows(self.sink(pipeline), "earliest")
        return StreamRunner(self.url, pipeline, self.spark, checkpoint, **given)

    def run(self, pipeline: SchemaObject, root: str = "a", **given: Any) -> StreamRunner:
        """Until all is read."""
        runner = self.runner(pipeline, root, until_idle=True, **given)
        runner.run()
        return runner

    def values(self, pipeline: SchemaObject) -> list[Any]:
        assert isinstance(pipeline.spec, StreamPipelineSpec)
        return [record.value for record in self.client.read(pipeline.spec.to.stream)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("streaming")
    with (
        LocalCluster(root / "node", nodes=1, durability="os") as running,
        hadron.connect_sync(running.url) as client,
    ):
        yield Scene(running.url, client, spark, root)


def test_a_group_shows_how_far_a_query_is(scene: Scene, tmp_path: Path) -> None:
    scene.client.create_stream("shown")
    reader = scene.spark.readStream.format("hadron").option("server", scene.url)
    frame = reader.options(
        stream="shown", groupId="of-the-query", startingOffsets="earliest", maxOffsetsPerTrigger=4
    ).load()
    with scene.client.producer("shown") as producer:
        producer.send_many(range(10))

    def run() -> None:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        if (error := query.exception()) is not None:
            raise error

    run()
    (shown,) = scene.client.groups("shown")
    assert (shown.group, shown.floor, shown.next_offset) == ("of-the-query", 10, 10)
    with scene.client.producer("shown") as producer:
        producer.send_many(range(3))
    (shown,) = scene.client.groups("shown")
    assert (shown.floor, shown.next_offset) == (10, 13)
    with (
        scene.client.subscribe("shown", group="of-the-query"),
        pytest.raises(Exception, match="group 'of-the-query' cannot be reset: 1 member is"),
    ):
        run()


def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of windows that end before the watermark: the latest event's time less five seconds."""
    watermark = max(each["s"] for each in events) - 5
    counts, amounts = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for each in events:
        key = each["s"] // 10 * 10, each["kind"]
        counts[key] += 1
        amounts[key] += each["amount"]
    return [
        {"start": start, "kind": kind, "count": counts[start, kind], "amount": amounts[start, kind]}
        for start, kind in sorted(counts)
        if start + 10 <= watermark
    ]


def test_windows_are_what_plain_python_makes_of_them(scene: Scene) -> None:
    pipeline = scene.declare("totals", options={"maxOffsetsPerTrigger": "1500"})
    scene.send(0, 2_000)
    told: list[Batch] = []
    runner = scene.run(pipeline, on_batch=told.append)
    assert (runner.rows, runner.batches) == (sum(each.rows for each in told), len(told))
    assert [each.number for each in told] == list(range(len(told)))
    # Rows are as Spark counts them, which may read some again; lags are of offsets.
    assert (told[0].lag, told[-1].lag) == (500, 0)
    assert runner.rows >= 2_000, told
    assert told[0].rows >= 1_500, told
    scene.send(2_000, 4_000)
    assert scene.run(pipeline).rows >= 2_000
    found = sorted(scene.values(pipeline), key=lambda each: (each["start"], each["kind"]))
    assert found == expected(scene.sent)
    assert len(found) > 50
    sink, checkpoint = scene.sink(pipeline), scene.checkpoint(pipeline)
    assert sink.query == checkpoint.query
    (there,) = scene.client.offsets("in")
    cursors = checkpoint.cursors(there.stream_id)
    assert cursors is not None
    assert cursors["local/p0"].offset == there.next_offset


@pytest.mark.long
def test_state_of_records_that_come_again_is_kept_over_runs(scene: Scene) -> None:
    pipeline = scene.declare("once", options={"maxOffsetsPerTrigger": "1500"})
    began = len(scene.sent)
    for first in (began, began + 500):
        scene.send(first, first + 500)
        scene.run(pipeline)
    pairs = {(each["s"], each["kind"]) for each in scene.sent}
    assert len(pairs) < len(scene.sent) // 2
    found = [(each["s"], each["kind"]) for each in scene.values(pipeline)]
    assert sorted(found) == sorted(pairs)


@pytest.mark.long
def test_state_of_ones_own_is_kept_over_runs(scene: Scene) -> None:
    pipeline = scene.declare("milestones")
    for _ in range(3):
        scene.send(len(scene.sent), len(scene.sent) + 180)
        scene.run(pipeline)
    counts = Counter(each["kind"] for each in scene.sent)
    passed = [
        f"{kind} {each}" for kind, count in counts.items() for each in range(EACH, count + 1, EACH)
    ]
    assert len(passed) >= 7
    assert sorted(scene.values(pipeline)) == sorted(passed)


def test_its_runner_needs_not_be_the_thread_that_has_started_spark(scene: Scene) -> None:
    pipeline = scene.declare("copies")
    scene.send(0, 10)
    failures: list[Exception] = []

    def run() -> None:
        try:
            scene.run(pipeline)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []
    assert scene.sink(pipeline) is not None


@pytest.mark.parametrize("root", ["my own", "jörg", "50%25 #1: a?"])
def test_a_checkpoint_is_where_it_was_asked_for(scene: Scene, root: str) -> None:
    """Elsewhere, no runner would find it again."""
    pipeline = scene.declare("copies")
    scene.send(0, 3)
    scene.run(pipeline, root)
    assert scene.checkpoint(pipeline, root).query == scene.sink(pipeline).query
    count = len(scene.values(pipeline))
    assert scene.run(pipeline, root).rows == 0
    scene.checkpoint(pipeline, root).begin_anew(scene.sink(pipeline))
    assert scene.run(pipeline, root).rows >= count


def test_a_directory_that_java_does_not_find_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it has no words for the letters of its name."""
    pipeline = scene.declare("copies")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(ConfigurationError, match=r"'.*/j\\xf6rg2/.*Java.* UTF-8.*LC_ALL"):
        scene.run(pipeline, "jörg2")


def test_who_is_to_stop_waits_for_no_trigger(scene: Scene) -> None:
    pipeline = scene.declare("copies", trigger_ms=3_600_000)
    scene.send(0, 3)
    told = threading.Event()
    runner = scene.runner(pipeline, on_batch=lambda _: told.set())
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert told.wait(60)
    runner.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.long
def test_a_deleted_checkpoint_is_recognised_and_begins_anew_when_asked(scene: Scene) -> None:
    pipeline = scene.declare("copies")
    count = len(scene.sent)
    scene.run(pipeline)
    shutil.rmtree(scene.checkpoint(pipeline).directory)
    with pytest.raises(RequestError, match="was it deleted") as caught:
        scene.runner(pipeline)
    assert "--reset" in str(caught.value)
    assert "start: earliest" in caught.value.hint
    assert len(scene.values(pipeline)) == count
    # Whoever gets so far nevertheless is refused by the sink.
    with pytest.raises(RequestError, match="another runner has taken pipeline"):
        scene.run(pipeline, "b", follows="")
    assert len(scene.values(pipeline)) == count
    checkpoint = scene.checkpoint(pipeline)
    checkpoint.begin_anew(scene.sink(pipeline))
    assert scene.run(pipeline).rows >= count
    assert len(scene.values(pipeline)) == 2 * count
    assert scene.run(pipeline).rows == 0


# As `session` has it; pytest puts filters of its own in place of those.
@pytest.mark.filterwarnings("ignore:Cannot infer the eval type from type hints")
@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("nothing", StageCodeError, r"of pipeline 'p\d+' returned nothing \(None\)"),
        ("another", StageCodeError, "column 'valeu' cannot be written"),
        ("still", StageCodeError, "returned a DataFrame that is not streaming"),
        ("misspelt", StageCodeError, r"is wrong, whatever its input: .*amuont.*streams.py, line"),
        ("without_watermark", StageCodeError, "watermark"),
        ("raises", StageCodeError, r"ValueError: not today \(.*streams.py, line \d+, in raises\)"),
        ("cancelled", StageCodeError, r"CancelledError \(.*streams.py, line \d+, in cancelled\)"),
        ("raises_for_a_record", StageError, r"ValueError: no k3 here \(.*, line \d+, in picky\)"),
        ("absent", StageCodeError, "'hadron.spark.tests.streams:absent' of pipeline .* not exist"),
    ],
)
def test_a_wrong_function_is_told_in_a_line(
    scene: Scene, function: str, kind: type[HadronError], message: str
) -> None:
    pipeline = scene.declare(function)
    scene.send(0, 8)
    with pytest.raises(kind) as caught:
        scene.run(pipeline)
    assert re.search(message, caught.value.message)
    assert "\n" not in str(caught.value)
    assert not caught.value.retryable
    assert scene.values(pipeline) == []


def test_a_schema_that_is_no_ddl_is_told_and_no_function_is_blamed(scene: Scene) -> None:
    for schema, why in (("s STRIN", 'Unsupported data type "STRIN"'), ("BIGINT", "Syntax error")):
        pipeline = scene.declare("nothing", schema=schema)
        told = rf"^the schema '{schema}' of pipeline '{pipeline.name}' is not DDL: .*{why}"
        with pytest.raises(StageCodeError, match=told) as caught:
            scene.run(pipeline)
        assert caught.value.hint == "write it as name TYPE, name TYPE"
