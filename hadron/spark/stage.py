"""One stage on Spark: give its function a DataFrame, check and collect what it returns.

A stage function is the user's code. Whatever it does wrong becomes a `StageError` that names the
function and the stage, so that the runner goes on serving the other stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from hadron.model.errors import ConfigurationError, HadronError, StageError
from hadron.model.schema import StageSpec
from hadron.spark.failures import summary
from hadron.spark.functions import label, load_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_REQUIRED: Final = ("instance_id", "value")
_OPTIONAL: Final = ("key", "type", "partition")


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage function returned, collected.

    Attributes:
        table: `instance_id` (int64), `value`, and `key`, `type`, `partition` where returned.
        values_are_json: whether `value` holds JSON that Spark encoded; then no text is guessed at.
    """

    table: pa.Table
    values_are_json: bool


class StageRaisedError(StageError):
    """The function, or Spark while it ran it, raised: one record may be all that is wrong."""


def run_stage(spark: SparkSession, stage: StageSpec, table: pa.Table) -> StageResult:
    """Run a stage over its input table. Blocks while Spark works.

    Raises `StageLoadError` when there is no such function here, `StageRaisedError` when it raised,
    `StageError` for what else it did wrong, and `ConfigurationError` when Spark itself is gone,
    after which nothing more can run.
    """
    function = load_function(stage)
    try:
        given = _apply_schema(stage, spark.createDataFrame(table))
        returned = function(given)
        selected, values_are_json = _check(stage, returned)
        return StageResult(selected.toArrow(), values_are_json)
    except HadronError:
        raise
    except Exception as error:
        if not is_alive(spark):
            raise ConfigurationError(
                f"Spark stopped while {label(stage)} ran: {summary(error)}",
                "start the stage runner again",
            ) from error
        raise StageRaisedError(f"{label(stage)} failed: {summary(error)}") from error


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
        raise StageError(
            f"the schema of stage {stage.name!r} is not DDL: {summary(error)}",
            "write it as name TYPE, name TYPE",
        ) from error
    columns = ("root", *stage.dependencies)
    names = declared.fieldNames() if isinstance(declared, StructType) else []
    kinds = dict.fromkeys(columns, declared)
    if isinstance(declared, StructType) and names and set(names) <= set(columns):
        kinds = {name: declared[name].dataType for name in names}
    for column, kind in kinds.items():
        text = given[column].cast("string")
        given = given.withColumn(column, F.from_json(text, cast("StructType", kind)))
    return given


# --- the output ---------------------------------------------------------------------------------


def _check(stage: StageSpec, returned: Any) -> tuple[DataFrame, bool]:
    """Check the columns and bring them into the types that are collected."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import BinaryType, StringType

    if not isinstance(returned, DataFrame):
        raise StageError(
            f"{label(stage)} returned a {type(returned).__name__}",
            "return a DataFrame with one row per instance",
        )
    _check_names(stage, returned.schema)
    _check_types(stage, returned.schema)
    names = returned.columns
    columns = [returned["instance_id"].cast("long").alias("instance_id")]
    values_are_json = False
    if "value" in names and stage.output is not None:
        kind = returned.schema["value"].dataType
        values_are_json = not isinstance(kind, (StringType, BinaryType))
        value = _as_json(returned["value"]) if values_are_json else returned["value"]
        columns.append(value.alias("value"))
    columns += [returned[name] for name in _OPTIONAL if name in names]
    return returned.select(*columns), values_are_json


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
        raise StageError(
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
    }
    for column in schema.fields:
        kinds = allowed.get(column.name)
        found = column.dataType.simpleString()
        if kinds is not None and found not in kinds:
            raise StageError(
                f"{label(stage)} returned the column {column.name} as {found}",
                f"it has to be {' or '.join(kinds)}",
            )


def _as_json(value: Column) -> Column:
    """Any Spark value as JSON: `to_json` alone takes no plain numbers, so it goes in an array."""
    from pyspark.sql import functions as F  # noqa: N812

    wrapped = F.to_json(F.array(value), {"ignoreNullFields": "false"})
    return F.substring(wrapped, F.lit(2), F.length(wrapped) - F.lit(2))
