"""One stage on Spark: give its function a DataFrame, check and collect what it returns.

A stage function is the user's code. Whatever it does wrong becomes a `StageError` that names the
function and the stage. What it does wrong without any rows too is a mistake in the code
(`StageCodeError`): no record is at fault, and no other half of them would do better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from hadron.model.errors import ConfigurationError, HadronError
from hadron.model.pipelines import StageSpec
from hadron.model.words import with_article
from hadron.spark.failures import StageError, brief, summary
from hadron.spark.functions import StageCodeError, label, load_function
from hadron.spark.parsed import doubled
from hadron.spark.suspects import Suspects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_REQUIRED: Final = ("instance_id", "value")
_OPTIONAL: Final = ("key", "type", "partition", "headers", "error")

_MAX_LINE: Final = 1_000
"""Characters of the line that tells a mistake in the code: Spark's messages list columns."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage function returned, collected.

    Attributes:
        table: `instance_id` (int64), `value`, and what it may return besides, where it did.
        values_are_json: whether `value` holds JSON that Spark encoded; then no text is guessed at.
    """

    table: pa.Table
    values_are_json: bool


class StageRaisedError(StageError):
    """The function, or Spark while it ran it, raised: one record may be all that is wrong.

    Attributes:
        suspects: rows that it may have raised for, where a worker has looked for them.
    """

    suspects: Suspects | None = None


def run_stage(spark: SparkSession, stage: StageSpec, table: pa.Table) -> StageResult:
    """Run a stage over its input table. Blocks while Spark works.

    Raises `StageLoadError` when there is no such function here, `StageCodeError` when it is wrong
    whatever its input, `StageRaisedError` when it raised for these rows, and `ConfigurationError`
    when Spark itself is gone, after which nothing more can run.
    """
    try:
        selected, values_are_json = plan(spark, stage, table)
    except HadronError:
        raise
    except BaseException as error:
        # Signals come to another thread: whatever comes here, the function has raised it.
        check_alive(spark, stage, error)
        if _raises_without_rows(spark, stage, table, error):
            raise _code_error(stage, error) from error
        raise told(stage, summary(error)) from error
    try:
        return StageResult(selected.toArrow(), values_are_json)
    except Exception as error:
        raise raised(spark, stage, error) from error


def plan(spark: SparkSession, stage: StageSpec, table: pa.Table) -> tuple[DataFrame, bool]:
    """What the stage's function makes of the table, before any job of ours has run, and whether its
    values are JSON that Spark encodes."""
    return plan_of(stage, spark.createDataFrame(table))


def plan_of(stage: StageSpec, given: DataFrame) -> tuple[DataFrame, bool]:
    """The same of a DataFrame that has the table's columns."""
    function = load_function(stage)
    return _check(stage, function(_apply_schema(stage, given)))


def raised(spark: SparkSession, stage: StageSpec, error: Exception) -> HadronError:
    """What is told when a job of the stage has raised; see `run_stage`. Raises
    `ConfigurationError`."""
    check_alive(spark, stage, error)
    if _is_about_the_plan(error):
        return _code_error(stage, error)
    return told(stage, summary(error))


def told(stage: StageSpec, what: str) -> StageRaisedError:
    return StageRaisedError(f"{label(stage)} failed: {what}")


def _raises_without_rows(
    spark: SparkSession, stage: StageSpec, table: pa.Table, error: BaseException
) -> bool:
    """Whether the function raises the same, at the same place, for no rows at all. One that looks
    at its rows while it plans may raise for what it finds there, or because it finds none."""
    try:
        plan(spark, stage, table.slice(0, 0))
    except BaseException as other:
        return type(other) is type(error) and brief(summary(other)) == brief(summary(error))
    return False


def _is_about_the_plan(error: Exception) -> bool:
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException)


def _code_error(stage: StageSpec, error: BaseException) -> StageCodeError:
    return StageCodeError(
        f"{label(stage)} is wrong, whatever its input: {brief(summary(error), _MAX_LINE)}",
        "mend it and start the stage runner again: its instances wait, no attempt is counted",
    )


def check_alive(spark: SparkSession, stage: StageSpec, error: BaseException) -> None:
    """Raises `ConfigurationError` where that is why the error came."""
    if not is_alive(spark):
        raise stopped(f"while {label(stage)} ran: {summary(error)}") from error


def stopped(when: str) -> ConfigurationError:
    """Nothing runs with this session any more."""
    return ConfigurationError(
        f"Spark stopped {when}",
        "start the stage runner again; where Java says above that its memory is full, with a "
        "smaller --max-batch, or with more of it: SPARK_DRIVER_MEMORY=4g",
    )


def is_alive(spark: SparkSession) -> bool:
    """Whether the session can still run anything."""
    try:
        context: Any = spark.sparkContext
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except Exception:
        return False


# --- the input ----------------------------------------------------------------------------------


def _apply_schema(stage: StageSpec, given: DataFrame) -> DataFrame:
    """Turn JSON text into structs where the stage declares `schema:`.

    The DDL describes either the values themselves, `root` and dependencies alike, or, when all its
    names are those of value columns, each of these. A value that is not such JSON becomes null
    fields, so that one bad record does not stop the others.
    """
    if not stage.schema:
        return given
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    try:
        declared: Any = StructType.fromDDL(stage.schema)
    except Exception as error:
        raise StageCodeError(
            f"the schema of stage {stage.name!r} is not DDL: {brief(summary(error), _MAX_LINE)}",
            "write it as name TYPE, name TYPE",
        ) from error
    if twice := doubled(declared):
        raise StageCodeError(
            f"the schema of stage {stage.name!r} has {twice!r} twice", "name each member once"
        )
    columns = ("root", *stage.dependencies)
    names = declared.fieldNames() if isinstance(declared, StructType) else []
    kinds = dict.fromkeys(columns, declared)
    if isinstance(declared, StructType) and names and set(names) <= set(columns):
        kinds = {name: declared[name].dataType for name in names}
    for column, kind in kinds.items():
        text = given[f"`{column}`"].cast("string")
        given = given.withColumn(column, F.from_json(text, cast("StructType", kind)))
    return given


# --- the output ---------------------------------------------------------------------------------


def _check(stage: StageSpec, returned: Any) -> tuple[DataFrame, bool]:
    """Check the columns and bring them into the types that are collected."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import BinaryType, StringType

    if not isinstance(returned, DataFrame):
        raise StageCodeError(*no_dataframe(label(stage), returned, "with one row per instance"))
    _check_names(stage, returned.schema)
    _check_types(stage, returned.schema)
    names = returned.columns
    columns = [returned["instance_id"].cast("long").alias("instance_id")]
    values_are_json = False
    # Without an output, too: Spark runs no function whose column nobody takes, and what such a
    # stage is there for, a call elsewhere, may stand in it.
    if "value" in names:
        kind = returned.schema["value"].dataType
        values_are_json = not isinstance(kind, (StringType, BinaryType))
        value = _as_json(returned["value"]) if values_are_json else returned["value"]
        columns.append(value.alias("value"))
    columns += [returned[name] for name in _OPTIONAL if name in names]
    return returned.select(*columns), values_are_json


def no_dataframe(function: str, returned: Any, wanted: str) -> tuple[str, str]:
    """What is said to who returns something else than a DataFrame as wanted, and what to do."""
    kind = type(returned)
    if returned is None:
        return (
            f"{function} returned nothing (None)",
            f"end it with `return` and a Spark DataFrame {wanted}",
        )
    if kind.__module__.partition(".")[0] == "pandas":
        return (
            f"{function} returned a pandas {kind.__name__}",
            "return a Spark DataFrame: `df.sparkSession.createDataFrame(...)` makes one, "
            "`df.mapInPandas(...)` runs pandas on Spark's workers",
        )
    return (
        f"{function} returned {with_article(kind.__name__)}",
        f"return a Spark DataFrame {wanted}",
    )


def _check_names(stage: StageSpec, schema: StructType) -> None:
    found = schema.fieldNames()
    required = _REQUIRED if stage.output is not None else _REQUIRED[:1]
    missing = [name for name in required if name not in found]
    unknown = [name for name in found if name not in (*_REQUIRED, *_OPTIONAL)]
    doubled = sorted({name for name in found if found.count(name) > 1})
    problems = [
        f"{what} {', '.join(names)}"
        for what, names in (("missing", missing), ("unknown", unknown), ("twice", doubled))
        if names
    ]
    if problems:
        raise StageCodeError(
            f"{label(stage)} returned the columns {', '.join(found) or 'none'}: "
            + "; ".join(problems),
            f"return {', '.join(required)} and, if wanted, {', '.join(_OPTIONAL)}",
        )


def _check_types(stage: StageSpec, schema: StructType) -> None:
    allowed = {
        "instance_id": ("bigint", "int"),
        "key": ("string", "binary"),
        "type": ("string",),
        "partition": ("string",),
        "headers": ("map<string,string>",),
        "error": ("string",),
    }
    for column in schema.fields:
        kinds = allowed.get(column.name)
        found = column.dataType.simpleString()
        if kinds is not None and found not in kinds:
            raise StageCodeError(
                f"{label(stage)} returned the column {column.name} as {found}",
                f"it has to be {' or '.join(kinds)}",
            )
        if twice := doubled(column.dataType):
            raise StageCodeError(
                f"{label(stage)} returned the column {column.name} with the member {twice!r} twice",
                "name each member once",
            )


def _as_json(value: Column) -> Column:
    """Any Spark value as JSON: `to_json` alone takes no plain numbers, so it goes in an array."""
    from pyspark.sql import functions as F  # noqa: N812

    wrapped = F.to_json(F.array(value), {"ignoreNullFields": "false"})
    return F.substring(wrapped, F.lit(2), F.length(wrapped) - F.lit(2))
