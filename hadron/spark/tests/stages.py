"""Stage functions of the tests, good and bad."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

NOT_A_FUNCTION = 3


def passing(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.col("root").alias("value"))


def last_dependency(frame: DataFrame) -> DataFrame:
    # Between the dependencies and these there is nothing.
    name = frame.columns[frame.columns.index("key") - 1]
    return frame.select("instance_id", F.col(f"`{name}`").alias("value"))


def shouting(frame: DataFrame) -> DataFrame:
    return frame.select(
        "instance_id", F.upper("root").alias("value"), "key", F.lit("test.shouted").alias("type")
    )


def describing(frame: DataFrame) -> DataFrame:
    """A struct of everything that a stage is told."""
    return frame.select(
        "instance_id",
        F.struct("root", "key", "type", "timestamp", "partition", "offset", "headers").alias(
            "value"
        ),
    )


def joining(frame: DataFrame) -> DataFrame:
    """Uses a dependency and a declared schema."""
    return frame.select(
        "instance_id",
        F.struct(
            F.col("root.carrier").alias("carrier"),
            (F.col("root.delay") * 2).alias("doubled"),
            F.col("enrich.airport").alias("airport"),
            F.col("root.note").alias("note"),
        ).alias("value"),
    )


def enriching(frame: DataFrame) -> DataFrame:
    airports = frame.sparkSession.createDataFrame(
        [("JFK", "Kennedy"), ("EWR", "Newark")], "origin string, airport string"
    )
    return (
        frame.withColumn("origin", F.get_json_object("root", "$.origin"))
        .join(F.broadcast(airports), "origin", "left")
        .select("instance_id", F.to_json(F.struct("airport")).alias("value"))
    )


def numbering(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.col("offset").alias("value"))


def spreading(frame: DataFrame) -> DataFrame:
    return frame.select(
        "instance_id",
        F.col("root").alias("value"),
        F.when(F.col("offset") % 2 == 0, "local/p0").otherwise("local/p1").alias("partition"),
    )


def silent(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id")


def raising(frame: DataFrame) -> DataFrame:
    raise ValueError(f"no luck with {len(frame.columns)} columns")


def exiting(_frame: DataFrame) -> DataFrame:
    sys.exit(3)


def failing_later(frame: DataFrame) -> DataFrame:
    return frame.select(
        "instance_id", F.raise_error(F.lit("bad weather")).cast("string").alias("value")
    )


def calling(frame: DataFrame) -> DataFrame:
    """Does something elsewhere for each record, in a function of Python."""
    call = F.udf(lambda root: int(f"called with {root}"))
    return frame.select("instance_id", call("root").alias("value"))


def choking(frame: DataFrame) -> DataFrame:
    """Raises when it meets the second record, whatever comes with it."""
    bad = F.col("offset") == 1
    return frame.select(
        "instance_id",
        F.when(bad, F.raise_error(F.lit("indigestible")).cast("string"))
        .otherwise(F.col("root"))
        .alias("value"),
    )


def returning_none(frame: DataFrame) -> None:
    del frame


def returning_pandas(frame: DataFrame) -> object:
    return frame.toPandas()


def without_an_id(frame: DataFrame) -> DataFrame:
    return frame.select(F.col("root").alias("value"))


def mistyping(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.upper("rooot").alias("value"))


def looking(frame: DataFrame) -> DataFrame:
    """Collects its rows while it plans, and raises when it finds the second record."""
    if any(row.offset == 1 for row in frame.select("offset").collect()):
        raise ValueError("the second record")
    return passing(frame)


def exiting_at_the_second(frame: DataFrame) -> DataFrame:
    if any(row.offset == 1 for row in frame.select("offset").collect()):
        sys.exit("the second record")
    return passing(frame)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def mute(_frame: DataFrame) -> DataFrame:
    raise MuteError


def mute_at_the_second(frame: DataFrame) -> DataFrame:
    if any(row.offset == 1 for row in frame.select("offset").collect()):
        raise MuteError
    return passing(frame)


def cancelled(_frame: DataFrame) -> DataFrame:
    raise asyncio.CancelledError


def cancelled_at_the_second(frame: DataFrame) -> DataFrame:
    if any(row.offset == 1 for row in frame.select("offset").collect()):
        raise asyncio.CancelledError("the second record")
    return passing(frame)


def interrupted(_frame: DataFrame) -> DataFrame:
    raise KeyboardInterrupt


def naming_twice(frame: DataFrame) -> DataFrame:
    """A value of which JSON could tell one half."""
    twice = F.struct(F.lit(1).alias("a"), F.lit(2).alias("a"))
    return frame.select("instance_id", F.struct(F.array(twice).alias("all")).alias("value"))


def wrong_columns(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.col("root").alias("valeu"))


def wrong_type(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.col("root").alias("value"), F.lit(1).alias("key"))


def dropping(frame: DataFrame) -> DataFrame:
    return passing(frame.where("instance_id != 2"))


def doubling(frame: DataFrame) -> DataFrame:
    return passing(frame.unionAll(frame.where("instance_id = 3")))


def inventing(frame: DataFrame) -> DataFrame:
    return passing(frame.withColumn("instance_id", F.col("instance_id") + 1))


def choking_on_many(frame: DataFrame) -> DataFrame:
    """A function of Python that raises for each record whose number ends in 7."""

    def check(root):  # type: ignore[no-untyped-def]
        if root.endswith("7"):
            raise ValueError(f"{root} is indigestible")
        return root

    return frame.select("instance_id", F.udf(check)("root").alias("value"))


def choking_on_many_backwards(frame: DataFrame) -> DataFrame:
    """The same, of rows that come in another order."""
    return choking_on_many(frame.sortWithinPartitions(F.desc("root")))


def choking_in_pandas(frame: DataFrame) -> DataFrame:
    """The same with a function of pandas series, which raises for a batch."""

    @F.pandas_udf("string")  # type: ignore[attr-defined,untyped-decorator]
    def check(roots: pd.Series) -> pd.Series:
        if (bad := roots[roots.str.endswith("7")]).any():
            raise ValueError(f"{bad.iloc[0]} is indigestible")
        return roots

    return frame.select("instance_id", check("root").alias("value"))


def choking_in_frames(frame: DataFrame) -> DataFrame:
    """The same with a function of pandas frames, in which none is known to stand for which row."""

    def check(parts):  # type: ignore[no-untyped-def]
        for part in parts:
            if (bad := part.root[part.root.str.endswith("7")]).any():
                raise ValueError(f"{bad.iloc[0]} is indigestible")
            yield part.assign(value=part.root)[["instance_id", "value"]]

    return frame.mapInPandas(check, "instance_id long, value string")


def choking_sql(frame: DataFrame) -> DataFrame:
    """The same without Python."""
    bad = F.col("root").endswith("7")
    said = F.raise_error(F.concat("root", F.lit(" is indigestible"))).cast("string")
    return frame.select("instance_id", F.when(bad, said).otherwise(F.col("root")).alias("value"))


def grouping(frame: DataFrame) -> DataFrame:
    """Rows meet in an aggregate, which the second record does no good."""
    checked = choking(frame).withColumnRenamed("instance_id", "id")
    return checked.groupBy(F.col("id").alias("instance_id")).agg(F.first("value").alias("value"))


def windowing(frame: DataFrame) -> DataFrame:
    """Each row is numbered among those with its key that are there, behind what chokes."""
    checked = choking(frame).join(frame.select("instance_id", "key"), "instance_id")
    place = F.row_number().over(Window.partitionBy("key").orderBy("instance_id"))
    return checked.select("instance_id", F.struct("value", place.alias("place")).alias("value"))


def in_pandas(frame: DataFrame) -> DataFrame:
    """All columns as pandas has them, and the second record does no good."""

    def check(parts):  # type: ignore[no-untyped-def]
        for part in parts:
            if (part["offset"] == 1).any():
                raise ValueError("indigestible")
            yield part.assign(value=part["root"])[["instance_id", "value"]]

    return frame.mapInPandas(check, "instance_id long, value string")


def locking(frame: DataFrame) -> DataFrame:
    """Its function of Python holds what cannot be sent to a worker."""
    lock = threading.Lock()

    def careful(root):  # type: ignore[no-untyped-def]
        with lock:
            return root

    return frame.select("instance_id", F.udf(careful)("root").alias("value"))


def encoding_text(frame: DataFrame) -> DataFrame:
    """Text is nothing that `to_json` takes."""
    return frame.select("instance_id", F.to_json("key").alias("value"))


def returning_another_type(frame: DataFrame) -> DataFrame:
    """Its function of Python returns text for the second record, and is to return numbers."""

    def count(offset):  # type: ignore[no-untyped-def]
        return "many" if offset == 1 else offset

    return frame.select("instance_id", F.udf(count, "int")("offset").alias("value"))


def sorting(frame: DataFrame) -> DataFrame:
    """Rows of all partitions come together, and the second record does no good."""
    return choking(frame.orderBy("root"))


def by_way_of_an_rdd(frame: DataFrame) -> DataFrame:
    """Rows go through a function of Python, and stay where they are."""
    rows = frame.rdd.map(lambda row: (row.instance_id, row.root))
    return frame.sparkSession.createDataFrame(rows, "instance_id long, value string")


def reducing(frame: DataFrame) -> DataFrame:
    """Rows of all partitions come together in an RDD, and the second record does no good."""

    def check(row):  # type: ignore[no-untyped-def]
        if row.offset == 1:
            raise ValueError("indigestible")
        return row.instance_id, row.root

    rows = frame.rdd.map(check).reduceByKey(lambda first, _: first)
    return frame.sparkSession.createDataFrame(rows, "instance_id long, value string")


def collecting(frame: DataFrame) -> DataFrame:
    """A DataFrame of its own, in another order."""
    rows = [(row.instance_id, row.root) for row in reversed(frame.collect())]
    spread = frame.sparkSession.sparkContext.parallelize(rows, len(rows))
    return frame.sparkSession.createDataFrame(spread, "instance_id long, value string")


def exiting_workers(frame: DataFrame) -> DataFrame:
    """Ends Spark's Python worker at the second record."""

    def check(offset):  # type: ignore[no-untyped-def]
        if offset == 1:
            os._exit(3)
        return "fine"

    return frame.select("instance_id", F.udf(check)("offset").alias("value"))


def hanging_at_the_second(frame: DataFrame) -> DataFrame:
    def check(offset):  # type: ignore[no-untyped-def]
        if offset == 1:
            time.sleep(100)
        return "fine"

    return frame.select("instance_id", F.udf(check)("offset").alias("value"))


def hanging(frame: DataFrame) -> DataFrame:
    time.sleep(100)
    return passing(frame)


def losing_ids(frame: DataFrame) -> DataFrame:
    """The second record's row has no id, the third one's a stranger's."""
    wrong = F.when(F.col("offset") == 2, 999).when(F.col("offset") != 1, F.col("instance_id"))
    return passing(frame.withColumn("instance_id", wrong.cast("long")))


def erring(frame: DataFrame) -> DataFrame:
    """Says what is wrong with the second record, and gives the others headers."""
    return frame.select(
        "instance_id",
        F.col("root").alias("value"),
        F.create_map(F.lit("n"), F.col("offset").cast("string")).alias("headers"),
        F.when(F.col("offset") == 1, "no such carrier").alias("error"),
    )


def undecodable(frame: DataFrame) -> DataFrame:
    """Has a string that is no text in the column that the record names."""

    def text(name: str) -> Column:
        bad = F.expr("CAST(unhex('ff61') AS STRING)")
        return F.when(F.col("root") == name, bad).otherwise(F.lit("fine"))

    return frame.select(
        "instance_id",
        *(text(name).alias(name) for name in ("value", "key", "type", "partition")),
        F.create_map(F.lit("h"), text("headers")).alias("headers"),
        F.when(F.col("root") == "error", text("error")).alias("error"),
    )


def growing(frame: DataFrame) -> DataFrame:
    """A hundred megabytes of the second record."""
    much = F.when(F.col("offset") == 1, F.repeat(F.lit("0123456789"), 10_000_000))
    return frame.select("instance_id", F.coalesce(much, F.col("root")).alias("value"))


def sleeping(frame: DataFrame) -> DataFrame:
    """A job that Spark would work on for minutes; it can be interrupted."""
    slow = frame.sparkSession.range(20_000_000_000).selectExpr("sum(sqrt(id)) AS total")
    return frame.crossJoin(slow).select("instance_id", F.col("total").alias("value"))
