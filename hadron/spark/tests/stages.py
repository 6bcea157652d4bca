"""Stage functions of the tests, good and bad."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

NOT_A_FUNCTION = 3


def passing(frame: DataFrame) -> DataFrame:
    return frame.select("instance_id", F.col("root").alias("value"))


def shouting(frame: DataFrame) -> DataFrame:
    return frame.select(
        "instance_id", F.upper("root").alias("value"), "key", F.lit("test.shouted").alias("type")
    )


def describing(frame: DataFrame) -> DataFrame:
    """A struct of everything that a stage is told."""
    return frame.select(
        "instance_id",
        F.struct("root", "key", "type", "timestamp", "partition", "offset").alias("value"),
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


def sleeping(frame: DataFrame) -> DataFrame:
    """A job that Spark would work on for minutes; it can be interrupted."""
    slow = frame.sparkSession.range(20_000_000_000).selectExpr("sum(sqrt(id)) AS total")
    return frame.crossJoin(slow).select("instance_id", F.col("total").alias("value"))
