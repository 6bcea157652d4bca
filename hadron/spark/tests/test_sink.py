"""Writing from Spark, through a real node: what is written is there once, whatever is repeated, and
nothing of what is not committed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hadron
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.processes import wait_until
from hadron.spark.tests.sinks import SOURCES, Crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Cluster:
    """A node, and what is in its streams."""

    def __init__(self, url: str, client: Any) -> None:
        self.url = url
        self.client = client
        self._made = 0

    def stream(self) -> str:
        """A new one."""
        self._made += 1
        name = f"s{self._made}"
        self.client.create_stream(name)
        return name

    def records(self, stream: str) -> list[Any]:
        return list(self.client.read(stream))

    def values(self, stream: str) -> list[Any]:
        return [record.value for record in self.records(stream)]

    def write(self, frame: DataFrame, stream: str, /, **options: Any) -> None:
        writer = frame.write.format("hadron").mode("append").option("server", self.url)
        writer.options(**{"stream": stream, **options}).save()

    def staged(self, stream: str) -> list[Any]:
        known = self.client.stream(stream).id
        return [each for each in self.client.staged() if each.stream_id == known]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("node")
    with (
        LocalCluster(directory, nodes=1, durability="os") as running,
        hadron.connect_sync(running.url) as client,
    ):
        yield Cluster(running.url, client)


@pytest.fixture(scope="module", autouse=True)
def sources(spark: SparkSession) -> None:
    for each in SOURCES:
        spark.dataSource.register(each)


# --- a batch --------------------------------------------------------------------------------------


def test_every_column_arrives_as_it_was_written(spark: SparkSession, cluster: Cluster) -> None:
    stream = cluster.stream()
    frame = spark.sql(
        "SELECT concat('v', id) AS value, IF(id % 2 = 0, concat('k', id), null) AS key,"
        " IF(id % 3 = 0, null, 't.made') AS type,"
        " timestamp_millis(1357000000000 + id) AS timestamp,"
        " IF(id % 5 = 0, null, map('n', CAST(id AS STRING))) AS headers,"
        " IF(id = 1, 'local/p0', null) AS partition FROM range(0, 1000, 1, 3)"
    )
    cluster.write(frame, stream)
    records = cluster.records(stream)
    assert len(records) == 1_000
    found = {record.value: record for record in records}
    for n in range(1_000):
        record = found[f"v{n}"]
        assert record.key == (None if n % 2 else f"k{n}")
        assert record.type == ("t.made" if n % 3 else "")
        assert record.timestamp_ms == 1_357_000_000_000 + n
        assert dict(record.headers) == ({"n": str(n)} if n % 5 else {})
    assert cluster.staged(stream) == []


def test_values_are_bytes_text_or_json(spark: SparkSession, cluster: Cluster) -> None:
    for sql, expected in (
        ("CAST('ab' AS BINARY)", b"ab"),
        ("'ab'", "ab"),
        ("named_struct('a', 1, 'b', null)", {"a": 1}),
        ("array(1, null)", [1, None]),
        ("7", 7),
        ("CAST(null AS STRING)", None),
        ("CAST(null AS STRUCT<a: INT>)", None),
    ):
        stream = cluster.stream()
        cluster.write(spark.sql(f"SELECT {sql} AS value"), stream)
        assert cluster.values(stream) == [expected], sql


def test_a_struct_becomes_what_to_json_makes_of_it(spark: SparkSession, cluster: Cluster) -> None:
    row = (
        "named_struct('t', timestamp'2013-01-01 05:00:00.123456',"
        " 'n', timestamp_ntz'2013-01-01 05:00:00', 'd', date'2013-01-01', 'f', CAST(0.1 AS FLOAT),"
        " 'g', 1e20D, 'i', CAST('NaN' AS DOUBLE), 'dec', 1.10BD, 'b', CAST('ab' AS BINARY),"
        " 'nul', CAST(null AS INT), 'arr', array(1, null), 'm', map('k', CAST(null AS INT)),"
        " 'm2', map(1, 2.0D), 'e', named_struct('q', CAST(null AS INT)), 'byte', 1Y,"
        " 'bool', true, 'u', 'ü\"/', 'in', array(named_struct('x', null, 'y', -1)),"
        # Python has neither these years nor these zones.
        " 'late', timestamp_seconds(253402300800 + 86400 * 200), 'later', timestamp_seconds(1e12),"
        " 'early', timestamp_seconds(-62135596801), 'bc', array(timestamp_seconds(-1e11)),"
        " 'lmt', timestamp_seconds(-3e9), 'ln', CAST(timestamp_seconds(1e12) AS TIMESTAMP_NTZ),"
        " 'dl', date_add(date'9999-12-31', 1), 'de', array(date_sub(date'0001-01-01', 1)),"
        " 'dm', map('k', date_add(date'9999-12-31', 100000000)))"
    )
    for zone in ("UTC", "America/New_York", "GMT+3", "-05:30", "Z"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            stream = cluster.stream()
            frame = spark.sql(f"SELECT {row} AS value, to_json({row}) AS expected")
            expected = frame.select("expected").first()
            assert expected is not None
            cluster.write(frame.select("value"), stream)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert cluster.values(stream) == [json.loads(expected.expected)]


def test_nothing_is_written_of_a_job_that_fails(spark: SparkSession, cluster: Cluster) -> None:
    stream = cluster.stream()
    frame = spark.sql(
        "SELECT IF(id = 90000, CAST(raise_error('no') AS STRING), repeat('x', 100)) AS value"
        " FROM range(0, 100000, 1, 2)"
    )
    with pytest.raises(Exception, match="no"):
        cluster.write(frame, stream)
    assert cluster.values(stream) == []


def test_a_named_batch_is_published_once(spark: SparkSession, cluster: Cluster) -> None:
    stream = cluster.stream()
    frame = spark.sql("SELECT 'x' AS value")
    for batch, count in ((0, 1), (0, 1), (3, 2), (2, 2), (3, 2), (4, 3)):
        cluster.write(frame, stream, txnId=f"nightly-{stream}", batchId=batch)
        assert len(cluster.values(stream)) == count
    assert cluster.staged(stream) == []


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("1 AS valeu", {}, "column 'valeu' cannot be written"),
        ("1 AS key", {}, "column 'key' is int, not binary or string"),
        ("'a' AS key", {}, "there is no column 'value'"),
        ("'a' AS value, 1 AS headers", {}, r"is int, not map<string,string>"),
        ("interval 1 day AS value", {}, "column 'value' is interval day, not"),
        ("'a' AS value", {"txnid": "a b"}, "is not a valid name"),
        ("'a' AS value", {"stream": "nothing"}, "nothing"),
        ("'a' AS value", {"topic": "x"}, "unknown option 'topic'"),
        ("'a' AS value", {"batchId": "1"}, "it is of a write that has a txnId"),
        ("'a' AS value", {"txnId": "nightly"}, "'batchId' is missing"),
        ("'a' AS value", {"stagingTimeout": "soon"}, "option 'stagingTimeout' is 'soon'"),
        ("'a' AS value, 'mars' AS partition", {}, "no partition 'mars'"),
        ("'a' AS value, 'a b' AS type", {}, "'a b' is not a type"),
        ("'a' AS value, map('a', null) AS headers", {}, "is map<string,void>"),
        ("'a' AS value, map('a', string(null)) AS headers", {}, "header 'a' is null"),
        ("named_struct('n', 1, 'n', 2) AS value", {}, "column 'value' has the member 'n' twice"),
        ("string(x'ff') AS value", {}, "column 'value' has the string .*which is not UTF-8"),
        ("array(string(x'ff')) AS value", {}, "column 'value' has the string"),
        ("'a' AS value, string(x'ff') AS key", {}, "column 'key' has the string"),
        ("'a' AS value, string(x'ff') AS type", {}, "column 'type' has the string"),
        ("'a' AS value, string(x'ff') AS partition", {}, "column 'partition' has the string"),
        ("'a' AS value, map('a', string(x'ff')) AS headers", {}, "column 'headers' has the"),
        ("repeat('x', 2000000) AS value", {}, "makes a record of 2000016 bytes"),
    ],
)
def test_what_cannot_be_written_is_told_in_a_sentence(
    spark: SparkSession, cluster: Cluster, select: str, options: dict[str, str], message: str
) -> None:
    stream = cluster.stream()
    with pytest.raises(Exception, match=message):
        cluster.write(spark.sql(f"SELECT {select}"), stream, **options)
    assert cluster.values(stream) == []
    assert cluster.staged(stream) == []


def test_a_stream_is_not_overwritten(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'a' AS value")
    with pytest.raises(Exception, match="a stream cannot be overwritten"):
        frame.write.format("hadron").mode("overwrite").option("stream", "s").save()


# --- a streaming query ----------------------------------------------------------------------------


class Query:
    """From a directory of numbers to a stream, as often as it is started."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.stream = cluster.stream()
        self.source = directory / "in"
        self.checkpoint = directory / "checkpoint"
        self.source.mkdir()
        self._files = 0

    def put(self, *numbers: int) -> None:
        self._files += 1
        text = "".join(f"{n}\n" for n in numbers)
        path = self.source / f"{self._files:04d}.txt"
        path.write_text(text)
        # Spark takes the oldest first.
        os.utime(path, (self._files * 100, self._files * 100))

    def run(self, form: str = "hadron", **options: Any) -> str:
        """What it fails with; "" when it does not."""
        rows = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        writer = rows.load(str(self.source)).writeStream.format(form)
        query = (
            writer.option("server", self.cluster.url)
            .option("stream", self.stream)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        self.id = query.id
        try:
            assert query.awaitTermination(120)
        except Exception as error:
            return str(error)
        return ""

    @property
    def numbers(self) -> list[int]:
        return sorted(map(int, self.cluster.values(self.stream)))


@pytest.fixture
def query(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Query:
    return Query(spark, cluster, tmp_path)


def test_a_query_writes_each_record_once(query: Query) -> None:
    query.put(1, 2, 3)
    query.put(4)
    assert query.run() == ""
    assert query.numbers == [1, 2, 3, 4]
    query.put(5)
    assert query.run() == ""
    assert query.numbers == [1, 2, 3, 4, 5]
    (sink,) = (each for each in query.cluster.client.sinks() if each.name == query.id)
    assert (sink.query, sink.batch) == (query.id, 2)


@pytest.mark.parametrize("form", [each.name() for each in SOURCES])
def test_a_query_that_fails_around_its_commit_writes_each_record_once(
    query: Query, form: str
) -> None:
    """It fails between staging and commit, within the commit, behind it, and aborts after it."""
    query.put(1, 2)
    query.put(3)
    with Crash(at_batch=1) as crash:
        assert query.run(form)
        assert crash.happened
    assert query.numbers in ([1, 2], [1, 2, 3])
    assert query.run() == ""
    assert query.numbers == [1, 2, 3]


def test_a_lost_checkpoint_does_not_publish_again(query: Query, tmp_path: Path) -> None:
    name = f"flights-{query.stream}"
    query.put(1)
    assert query.run(txnId=name) == ""
    first = query.id
    query.checkpoint = tmp_path / "another"
    failure = query.run(txnId=name)
    assert f"is query {first}'s, at batch 0, and not query {query.id}'s" in failure
    assert query.numbers == [1]
    assert query.cluster.staged(query.stream) == []
    assert "is query" in query.run(txnId=name, reset="someone")
    assert query.run(txnId=name, reset=first) == ""
    assert query.numbers == [1, 1]
    query.put(2)
    assert query.run(txnId=name, reset=first) == ""
    assert query.numbers == [1, 1, 2]


def test_a_query_that_goes_on_elsewhere_is_refused(query: Query) -> None:
    query.put(1)
    assert query.run() == ""
    query.put(2)
    name = f"new-{query.stream}"
    assert "goes on with batch 1 at sink" in query.run(txnId=name)
    assert query.run(txnId=name, reset="none") == ""
    assert query.numbers == [1, 2]


@pytest.mark.long
def test_what_a_dead_query_has_staged_expires(query: Query) -> None:
    query.put(1, 2)
    with Crash(at_batch=0):
        query.run("staged_and_lost", stagingTimeout="8s")
    staged = query.cluster.staged(query.stream)
    assert [each.records for each in staged] == [2]
    assert query.id in staged[0].label
    assert wait_until(lambda: not query.cluster.staged(query.stream), 60)
    assert query.run() == ""
    assert query.numbers == [1, 2]
