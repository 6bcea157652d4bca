"""A stage that is planned once over several parts of its rows, each of which runs by itself.

A function that raises fails its whole job, and says nothing of the row: it is found by running
fewer rows at a time. A job for each part would be planned for each; where no row goes from one
part to another, all parts are partitions of one plan, and running one of them costs a task.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from hadron.model.pipelines import StageSpec
from hadron.spark.catching import caught
from hadron.spark.failures import in_java
from hadron.spark.stage import StageRaisedError, StageResult, plan_of, raised, told
from hadron.spark.suspects import SEARCH_S, suspects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AS_GIVEN: Final = "spark.sql.execution.arrow.localRelationThreshold"
"""Below so many bytes Spark takes a table as constants, in partitions of its own choice; above it
each chunk of the table is a partition."""

_MOVES_ROWS: Final = re.compile(r"\bExchange\b")
"""In a plan: rows go to other partitions. A broadcast is another word there, and moves none. Only
looked for because Spark would move them to say of which RDD its plan makes one."""

_IN_PLACE: Final = "OneToOneDependency"
"""Of RDDs: each partition of one is made of that partition of the other, and of no more."""

_ZONE: Final = "UTC"
"""None of the columns has a time."""

_MOST_ROWS: Final = 10_000
"""Of an Arrow batch; Spark's own default."""

_ITEMS: Final = struct.Struct(">i")
_ITEM: Final = struct.Struct(">?i")
"""See `Caught.java`."""


class Parts:
    """A stage over the rows of `tables`: part i gets those of table i."""

    def __init__(self, spark: SparkSession, stage: StageSpec, tables: Sequence[pa.Table]) -> None:
        self._spark = spark
        self._stage = stage
        self._tables = tables
        self._planned: Any = None
        self._partitions: Any = None
        self._int: Any = None
        self._caught: Any = None
        self._values_are_json = False

    def plan(self) -> bool:
        """Whether a part may run by itself: not, when rows of several parts come together, or when
        the function raises before any job has run. Blocks while Spark plans."""
        table = pa.concat_tables(self._tables)
        try:
            with _each_chunk_a_partition(self._spark):
                given: Any = self._spark.createDataFrame(table)
                planned, self._values_are_json = plan_of(self._stage, given)
                internal: Any = planned
                text = internal._jdf.queryExecution().executedPlan().toString()
                if _MOVES_ROWS.search(text):
                    return False
                partitions = self._in_arrow(internal)
                if partitions.getNumPartitions() != len(self._tables):
                    return False
                if not _is_in_place(partitions, given._jdf.queryExecution().analyzed().rdd().id()):
                    return False
                self._caught = caught(self._spark.sparkContext)
        except BaseException:
            # Whoever runs it in the usual way finds out what it is, and tells it.
            return False
        self._planned, self._partitions = planned, partitions.toJavaRDD()
        context: Any = self._spark.sparkContext
        # Java is asked for it, and looks through all that it has: not once for every part.
        self._int = context._gateway.jvm.int
        return True

    def run(
        self, indexes: Sequence[int], search_s: float = 0.0
    ) -> list[StageResult | StageRaisedError]:
        """Some parts, in one job: what each has come to, by itself. For so long a worker whose
        function has raised may look for the rows. Blocks while Spark works. Raises as `run_stage`
        does when the job itself fails."""
        try:
            context: Any = self._spark.sparkContext
            chosen = context._gateway.new_array(self._int, len(indexes))
            for place, index in enumerate(indexes):
                chosen[place] = index
            # Spark ends all jobs of the RDD that one fails for: each has one of its own, on top.
            apart = self._partitions.mapPartitions(self._caught)
            with _searching(context, search_s):
                collected = apart.collectPartitions(chosen)
            return [self._ended(each) for each in self._unpacked(collected, len(indexes))]
        except Exception as error:
            raise raised(self._spark, self._stage, error) from error

    def _in_arrow(self, planned: Any) -> Any:
        """The RDD of Arrow batches that `toArrow` would collect, so that both find the same: Java
        makes other text of what is none where rows come in another way."""
        frame, jvm = planned._jdf, self._spark._jvm
        assert jvm is not None
        batches = frame.toArrowBatchRdd(_MOST_ROWS, _ZONE, True, False)
        # As Spark does it for those of its own: tasks have the session's settings.
        settings = frame.sparkSession().sessionState().conf()
        return jvm.org.apache.spark.sql.execution.SQLExecutionRDD(batches, settings, None)

    def _unpacked(self, collected: Any, count: int) -> Iterator[list[str | bytes]]:
        """Of each part its batches, or what it raised."""
        ended = 0
        while ended < count:
            data = memoryview(self._caught.packed(collected, ended))
            at = 0
            while at < len(data):
                (items,) = _ITEMS.unpack_from(data, at)
                at += _ITEMS.size
                part: list[str | bytes] = []
                for _ in range(items):
                    is_text, length = _ITEM.unpack_from(data, at)
                    at += _ITEM.size
                    item = bytes(data[at : at + length])
                    part.append(item.decode() if is_text else item)
                    at += length
                ended += 1
                yield part

    def _ended(self, kept: Sequence[str | bytes]) -> StageResult | StageRaisedError:
        if kept and isinstance(kept[0], str):
            text, found = suspects(kept[0])
            error = told(self._stage, in_java(text))
            error.suspects = found
            return error
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._planned.schema, timezone=_ZONE)
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in kept]
        return StageResult(pa.Table.from_batches(batches, schema), self._values_are_json)


@contextlib.contextmanager
def _searching(context: Any, search_s: float) -> Iterator[None]:
    """What jobs of this thread are told, until another one of Spark's has the thread."""
    context.setLocalProperty(SEARCH_S, f"{search_s:g}" if search_s else None)
    try:
        yield
    finally:
        context.setLocalProperty(SEARCH_S, None)


def _is_in_place(partitions: Any, given: int) -> bool:
    """Whether each partition is made of that partition of the RDD `given`, and of nothing else: a
    function may move rows, or make a DataFrame of its own, where no plan shows it."""
    left, known = [partitions], {given}
    while left:
        rdd = left.pop()
        if rdd.id() in known:
            continue
        known.add(rdd.id())
        sources = rdd.dependencies()
        if not sources.size():
            return False
        for at in range(sources.size()):
            source = sources.apply(at)
            if source.getClass().getSimpleName() != _IN_PLACE:
                return False
            left.append(source.rdd())
    return True


@contextlib.contextmanager
def _each_chunk_a_partition(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(_AS_GIVEN)
    spark.conf.set(_AS_GIVEN, "0")
    try:
        yield
    finally:
        spark.conf.set(_AS_GIVEN, str(before))
