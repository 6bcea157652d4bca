"""A user's module whose decorators need a session when it is imported."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

KEY = F.coalesce("key", F.lit("nobody"))


def loud(text: str) -> str:
    """Called by a UDF: Spark's workers know it by its name only, unless they are told more."""
    return f"{text}!"


@F.udf("string")
def shout(text: str) -> str:
    return loud(text.upper())


@F.pandas_udf("string")  # type: ignore[attr-defined,untyped-decorator]
def whisper(texts: pd.Series) -> pd.Series:
    return texts.str.lower().map(loud)


def stage(frame: DataFrame) -> DataFrame:
    value = F.concat(shout("root"), whisper("root"), KEY)
    return frame.select("instance_id", value.alias("value"))
