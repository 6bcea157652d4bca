"""The connector inside Spark: batch and streaming reads over the wire from an in-memory node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal
from pyspark.errors import ParseException

from hadron.client.tests.fake_node import FakeNode
from hadron.model.record import NewRecord
from hadron.spark.tests.fakes import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
P0, P1 = "local/p0", "local/p1"


class Served:
    """A node in a thread, with records in two partitions."""

    def __init__(self, node: FakeNode, url: str) -> None:
        self.node = node
        self.url = url

    def publish(self, partition: str, first: int, count: int, per_batch: int = 10) -> None:
        log = self.node.partition("s", partition)
        for start in range(first, first + count, per_batch):
            log.append(
                build(
                    [
                        NewRecord(
                            value={"n": n},
                            key=f"k{n}" if n % 2 else None,
                            type="t.made",
                            timestamp_ms=1_357_000_000_000 + n,
                            headers={"n": str(n)},
                        )
                        for n in range(start, min(start + per_batch, first + count))
                    ]
                )
            )

    def publish_values(self, values: list[Any]) -> None:
        self.node.partition("s", P0).append(build([NewRecord(value=each) for each in values]))

    def trim(self, partition: str, offset: int) -> None:
        log = self.node.partition("s", partition)
        log.first_offset = offset

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        reader = spark.read.format("hadron").option("server", self.url).option("stream", "s")
        return reader.options(**options).load()

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        reader = spark.readStream.format("hadron").option("server", self.url).option("stream", "s")
        return reader.options(**options).load()


@contextmanager
def serving() -> Iterator[Served]:
    node = FakeNode(partitions=(P0, P1))
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(node.listen()) as url,
    ):
        yield Served(node, url)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as made:
        made.publish(P0, 0, 95)
        made.publish(P1, 1_000, 30)
        yield made


def places(frame: DataFrame) -> list[tuple[str, int]]:
    rows = frame.select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def spans(**parts: tuple[int, int]) -> list[tuple[str, int]]:
    return [(f"local/{name}", o) for name, (a, b) in sorted(parts.items()) for o in range(a, b)]


def test_a_batch_read_gives_every_record_as_it_was_sent(
    spark: SparkSession, served: Served
) -> None:
    frame = served.read(spark, includeHeaders="true")
    assert frame.columns == [
        "key",
        "value",
        "stream",
        "partition",
        "offset",
        "timestamp",
        "type",
        "headers",
    ]
    rows = frame.selectExpr(
        "CAST(key AS STRING) AS key",
        "CAST(value AS STRING) AS value",
        "stream",
        "partition",
        "offset",
        "unix_millis(timestamp) AS ms",
        "type",
        "headers",
    ).collect()
    found = {(row.partition, row.offset): row for row in rows}
    assert sorted(found) == spans(p0=(0, 95), p1=(0, 30))
    for (partition, offset), row in found.items():
        n = offset if partition == P0 else offset + 1_000
        assert json.loads(row.value) == {"n": n}
        assert row.key == (f"k{n}" if n % 2 else None)
        assert (row.stream, row.type, row.headers) == ("s", "t.made", {"n": str(n)})
        assert row.ms == 1_357_000_000_000 + n


def test_offsets_partitions_and_tasks_of_a_batch_read(spark: SparkSession, served: Served) -> None:
    some = served.read(
        spark,
        partitions=P0,
        startingOffsets=f'{{"{P0}": 17}}',
        endingOffsets=f'{{"{P0}": 61}}',
        minPartitions=4,
    )
    assert places(some) == spans(p0=(17, 61))
    assert some.rdd.getNumPartitions() == 4
    timed = served.read(spark, startingTimestamp=1)
    assert len(places(timed)) == 125


def test_a_schema_of_the_users_own_picks_columns(spark: SparkSession, served: Served) -> None:
    reader = spark.read.format("hadron").option("server", served.url).option("stream", "s")
    frame = reader.schema("offset BIGINT, value BINARY").load()
    row = frame.orderBy("offset").first()
    assert row is not None
    assert json.loads(row.value)["n"] in (0, 1_000)
    with pytest.raises(Exception, match="there is no column topic string"):
        reader.schema("topic STRING").load().collect()


def test_values_are_parsed_where_a_schema_says_what_they_have(
    spark: SparkSession, served: Served
) -> None:
    frame = served.read(spark, schema="n INT, missing ARRAY<STRING>")
    rows = frame.select("offset", "partition", "value.*").collect()
    assert sorted((row.partition, row.offset, row.n, row.missing) for row in rows) == [
        (name, offset, offset if name == P0 else offset + 1_000, None)
        for name, offset in spans(p0=(0, 95), p1=(0, 30))
    ]
    wrong = served.read(spark, schema="n BOOLEAN").where("value IS NULL")
    assert wrong.count() == 125
    with pytest.raises(Exception, match="a value is not parsed to interval"):
        served.read(spark, schema="n INTERVAL DAY").collect()
    with pytest.raises(Exception, match="the schema of values has 'n' twice"):
        served.read(spark, schema="n INT, n INT").collect()


def test_a_schema_that_is_no_ddl_is_shown_where_it_is_wrong(
    spark: SparkSession, served: Served
) -> None:
    """Spark spoke of the first column's type instead, which nobody has written."""
    for schema, why in (
        ("carrier STRIN", 'Unsupported data type "STRIN"'),
        ("a b c d", "near '<'"),
        ("a INT, b", "near '<'"),
    ):
        with pytest.raises(ParseException, match=why) as caught:
            served.read(spark, schema=schema)
        assert f"the option schema, below, is to be DDL: name TYPE, name TYPE\n{schema}\n" in str(
            caught.value
        )
    frame = served.read(spark, schema="n INT -- of each\n, `m n` INT COMMENT 'x>y'")
    assert frame.schema["value"].dataType.simpleString() == "struct<n:int,m n:int>"


TIMES = [
    "2013-01-01 05:00:00", "2013-07-01T05:00:00.123456", "2013-07-01", "2013-01-01T05",
    "2013-01-01T05:00:00Z", "2013-01-01 05:00:00+05:30", "2013-01-01T05:00:00-0500",
    # Twice there, and skipped: New York, Berlin, Lord Howe (half an hour), Apia (a day).
    "2013-11-03 01:30:00", "2013-03-10 02:30:00", "2013-10-27 02:30:00", "2013-03-31 02:00:00",
    "2013-04-07 01:45:00", "2013-10-06 02:15:00", "2011-12-30 12:00:00", "2011-12-31 00:00:00",
    # Of before there were zones, of the first year and the last, and by the rules of today.
    "1800-05-05 01:02:03", "1883-11-18 12:02:00", "0000-01-01", "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999", "2500-07-01 00:00:00", "no time", None,
]  # fmt: skip
ZONES = (
    "UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe",
    "Pacific/Apia", "EST", "GMT+3", "-05:30", "Z",
)  # fmt: skip


@contextmanager
def in_zone(spark: SparkSession, zone: str | None) -> Iterator[None]:
    """As a session of the user's own is, which has set its zone to this, or has not."""
    if zone is None:
        spark.conf.unset("spark.sql.session.timeZone")
    else:
        spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def micros(frame: DataFrame, value: str = "value") -> list[tuple[int | None, list[int] | None]]:
    """What a value has in `t`, and in an array's structs, by offset."""
    nested = f"transform({value}.a, each -> unix_micros(each.t))"
    rows = frame.selectExpr("offset", f"unix_micros({value}.t) AS t", f"{nested} AS a").collect()
    return [(row.t, row.a) for row in sorted(rows)]


def test_timestamps_without_a_zone_are_of_the_sessions(spark: SparkSession) -> None:
    schema = "t TIMESTAMP, a ARRAY<STRUCT<t: TIMESTAMP>>"
    with serving() as served:
        served.publish_values([{"t": each, "a": [{"t": each}]} for each in TIMES])
        for zone in ZONES:
            with in_zone(spark, zone):
                by_spark = micros(
                    served.read(spark), f"from_json(CAST(value AS STRING), '{schema}')"
                )
                found = micros(served.read(spark, schema=schema))
            assert found[:-2] == by_spark[:-2], zone
            assert found[-2:] == [(None, None), (None, [None])], "what is no time is no value"


def test_a_zone_that_spark_does_not_tell_is_named_by_an_option(spark: SparkSession) -> None:
    with serving() as served:

        def seconds(**options: Any) -> DataFrame:
            frame = served.read(spark, schema="t TIMESTAMP", **options)
            return frame.selectExpr("unix_seconds(value.t) AS t").orderBy("t")

        with in_zone(spark, None):
            served.publish_values([{"t": "2013-01-01T05:00:00Z"}])
            assert [row.t for row in seconds().collect()] == [1_357_016_400]
            served.publish_values([{"t": "2013-01-01 05:00:00"}])
            with pytest.raises(Exception, match="or the reader's option timeZone"):
                seconds().collect()
            named = seconds(timeZone="Asia/Tokyo").collect()
            assert [row.t for row in named] == [1_356_984_000, 1_357_016_400]
        with pytest.raises(Exception, match="a timestamp without a zone, and Spark does not tell"):
            seconds().rdd.collect()
        assert [row.t for row in seconds(timeZone="Asia/Tokyo").rdd.collect()] == [
            1_356_984_000,
            1_357_016_400,
        ]


def test_a_query_reads_timestamps_in_its_sessions_zone(spark: SparkSession) -> None:
    with serving() as served, in_zone(spark, "America/New_York"):
        served.publish_values([{"t": "2013-01-01 05:00:00"}])
        frame = served.stream(spark, schema="t TIMESTAMP", startingOffsets="earliest")
        query = frame.selectExpr("unix_seconds(value.t) AS t").writeStream.format("memory")
        started = query.queryName("zoned").trigger(availableNow=True).start()
        assert started.awaitTermination(60)
        assert [row.t for row in spark.table("zoned").collect()] == [1_357_034_400]


def test_sql_selects_from_a_view_of_a_stream(spark: SparkSession, served: Served) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW flights USING hadron"
        f" OPTIONS (server '{served.url}', stream 's', schema 'n INT')"
    )
    row = spark.sql("SELECT count(*) AS n, max(value.n) AS top FROM flights").first()
    assert row is not None
    assert tuple(row) == (125, 1_029)


def test_filters_are_taken_over(spark: SparkSession, served: Served) -> None:
    frame = served.read(spark).where(f"partition = '{P0}' AND offset >= 90")
    before = served.node.fetches
    assert places(frame) == spans(p0=(90, 95))
    assert served.node.fetches - before == 1
    by_time = served.read(spark).where("timestamp >= timestamp_millis(1357000000093)")
    assert places(by_time) == spans(p0=(93, 95), p1=(0, 30))


def test_filters_work_where_pushdown_is_off(spark: SparkSession, served: Served) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert places(served.read(spark).where("offset < 3")) == spans(p0=(0, 3), p1=(0, 3))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_an_empty_stream_is_an_empty_table(spark: SparkSession) -> None:
    with serving() as empty:
        assert empty.read(spark).count() == 0


def test_deleted_records_fail_the_read_or_are_skipped(spark: SparkSession, served: Served) -> None:
    served.trim(P0, 40)
    start = f'{{"{P0}": 5, "{P1}": 0}}'
    with pytest.raises(Exception, match="keeps nothing before offset 40; offset 5 was asked for"):
        served.read(spark, startingOffsets=start).collect()
    skipping = served.read(spark, startingOffsets=start, failOnDataLoss="false")
    assert places(skipping) == spans(p0=(40, 95), p1=(0, 30))
    assert places(served.read(spark)) == spans(p0=(40, 95), p1=(0, 30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strem": "s"}, "unknown option 'strem'"),
        ({"stream": "nothing"}, "nothing"),
        ({"partitions": "mars/p0"}, "no partition 'mars/p0'"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, served: Served, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        served.read(spark, **options).collect()


class Query:
    """A streaming query into memory, one row per record, with its checkpoint kept."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.batches: list[list[tuple[str, int]]] = []
        self._writer = (
            frame.writeStream.foreachBatch(lambda each, _: self.batches.append(places(each)))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )

    def run(self) -> list[list[tuple[str, int]]]:
        query = self._writer.start()
        assert query.awaitTermination(60)
        error = query.exception()
        if error is not None:
            raise error
        return self.batches


def test_available_now_reads_what_there_is_in_limited_steps_and_goes_on_later(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50, "minPartitions": 3}
    steps = Query(served.stream(spark, **options), tmp_path).run()
    assert [len(step) for step in steps] == [50, 50, 25]
    assert {partition for partition, _ in steps[0]} == {P0, P1}, "the limit is shared"
    assert sorted(place for step in steps for place in step) == spans(p0=(0, 95), p1=(0, 30))
    offsets = (tmp_path / "offsets" / "2").read_text().splitlines()[-1]
    cursor = {"epoch": 1, "incarnation": 1, "stream_id": 1}
    assert json.loads(offsets) == {P0: {"offset": 95, **cursor}, P1: {"offset": 30, **cursor}}, (
        "people can read a checkpoint"
    )

    served.publish(P1, 1_030, 7)
    steps = Query(served.stream(spark, **options), tmp_path).run()
    assert steps == [spans(p1=(30, 37))]


def test_a_query_is_not_started_again_over_another_stream_of_the_name(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest"}
    Query(served.stream(spark, **options), tmp_path).run()
    served.node.objects["Stream", "s"].id += 10
    served.node.logs.clear()
    served.publish(P0, 0, 200)
    with pytest.raises(Exception, match=r"deleted and created again: .* new checkpointLocation"):
        Query(served.stream(spark, **options), tmp_path).run()


def test_a_stream_starts_at_its_end_by_default(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    assert not any(Query(served.stream(spark), tmp_path).run())
    served.publish(P0, 95, 5)
    assert Query(served.stream(spark), tmp_path).run() == [spans(p0=(95, 100))]


def test_a_running_query_follows_the_stream(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    query = (
        served.stream(spark, startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        assert spark.table("followed").count() == 125
        served.publish(P1, 1_030, 5)
        query.processAllAvailable()
        assert places(spark.table("followed")) == spans(p0=(0, 95), p1=(0, 35))
    finally:
        query.stop()


@pytest.mark.parametrize("forgiving", [False, True])
def test_a_stream_that_lost_records_fails_or_goes_on(
    spark: SparkSession, served: Served, tmp_path: Path, forgiving: bool
) -> None:
    options = {"startingOffsets": "earliest", "failOnDataLoss": str(not forgiving)}
    Query(served.stream(spark, **options), tmp_path).run()
    served.publish(P0, 95, 20)
    served.trim(P0, 105)
    query = Query(served.stream(spark, **options), tmp_path)
    if forgiving:
        assert query.run() == [spans(p0=(105, 115))]
    else:
        with pytest.raises(Exception, match="keeps nothing before offset 105"):
            query.run()
