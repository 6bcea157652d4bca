"""A pipeline with `mode: stream`: one Structured Streaming query, begun, watched, and begun again.

The source is `spark.readStream.format("hadron")`, the sink `writeStream.format("hadron")`, whose
sink row is the pipeline's progress (PROTOCOL E10, E11): what dies here has lost and doubled
nothing. A mistake in the code, and whatever else waiting does not mend, ends the runner; a leader
that is away is waited for.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hadron.model.backoff import Backoff
from hadron.model.documents.pipelines import SPARK_OPTION, WRITE_OPTIONS
from hadron.model.errors import (
    ConfigurationError,
    HadronError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RequestError,
    error_from_code,
)
from hadron.model.pipelines import StreamInput, StreamPipelineSpec, sink_of
from hadron.model.problems import shorten
from hadron.model.schema import SchemaObject
from hadron.model.words import said_by
from hadron.spark.checkpoint import Checkpoint
from hadron.spark.failures import RAISED, StageError, brief, summary
from hadron.spark.functions import StageCodeError, load, name_of
from hadron.spark.session import activate
from hadron.spark.source.connecting import connect
from hadron.spark.source.options import names_of
from hadron.spark.stage import is_alive, no_dataframe
from hadron.wire.system import SystemRandom

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
"""How often Spark is asked how its query is."""
_FINISH_POLL_S: Final = 0.02
"""When it is to end: the sooner that is seen, the less of the next micro-batch is begun."""

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0

_MAX_LINE: Final = 1_000
"""Characters of the line that tells a mistake in the code."""

_OURS: Final = re.compile(r"^hadron\.model\.errors\.(\w+): (.*)$", re.MULTILINE)
"""An error of the source or the sink, as it stands in what Spark says of a query that has failed:
the last line of a worker's traceback."""

_SHARED: Final = "CONCURRENT_STREAM_LOG_UPDATE"
"""What Spark calls it that two queries have one checkpoint."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch that is published.

    Attributes:
        rows: records that were read, as Spark counts them: again where it ran a task again.
        lag: records that were there when it began, behind where it ends; None where Spark does not
            tell: a batch that a runner left behind is done again without a look at the stream.
    """

    number: int
    rows: int
    seconds: float
    lag: int | None


class StreamRunner:
    """Runs the query of one pipeline. One runner runs once.

    Args:
        url: the server, as for `hadron.connect`; its namespace is the pipeline's.
        pipeline: as it is declared.
        follows: the query that this one takes the sink over from; see `Checkpoint.follows`.
        until_idle: end when all that is there at its beginning is read.
        on_batch: called for each micro-batch, in the thread of `run`.
        on_wait: called some times a second while none has ended, with what Spark says that it does.
        on_pause: called likewise with what the query has failed with, and in how many seconds it
            begins again.
    """

    def __init__(
        self,
        url: str,
        pipeline: SchemaObject,
        spark: SparkSession,
        checkpoint: Checkpoint,
        *,
        follows: str = "",
        until_idle: bool = False,
        on_batch: Callable[[Batch], None] = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,
        on_pause: Callable[[HadronError, float], None] = lambda _error, _s: None,
    ) -> None:
        assert isinstance(pipeline.spec, StreamPipelineSpec)
        self._url = url
        self._name = pipeline.name
        self._spec = pipeline.spec
        self._sink = sink_of(pipeline.name, pipeline.id)
        self._spark = spark
        self._checkpoint = checkpoint
        self._follows = follows
        self._until_idle = until_idle
        self._on_batch = on_batch
        self._on_wait = on_wait
        self._on_pause = on_pause
        self._stopping = threading.Event()
        self._told = -1
        self.batches = 0
        self.rows = 0

    def stop(self) -> None:
        """Ask `run` to return behind the micro-batch that runs. May be called from any thread, a
        signal handler, or beforehand."""
        self._stopping.set()

    def run(self) -> None:
        """Serve until `stop`, or until all is read. Blocks.

        Raises `StageCodeError` for a function that cannot be loaded or is wrong, `StageError` for
        what it raises for a record, `RequestError` where another runner has taken over, and
        whatever else waiting cannot mend.
        """
        backoff = Backoff(SystemRandom(), _FIRST_PAUSE_S, _MAX_PAUSE_S)
        while not self._stopping.is_set():
            before = self.batches
            try:
                self._watch(self._begin())
                return
            except HadronError as error:
                if not error.retryable:
                    raise
                if self.batches > before:
                    backoff.reset()
                pause_s = backoff.next_s()
                self._on_pause(error, pause_s)
                self._stopping.wait(pause_s)

    # --- the query ------------------------------------------------------------------------------

    def _begin(self) -> StreamingQuery:
        """Raises `HadronError`."""
        spec = self._spec
        try:
            activate(self._spark)
            for name, value in spec.options.items():
                if name.startswith(SPARK_OPTION):
                    self._spark.conf.set(name, value)
            returned = self._transformed(self._read())
            writer = (
                returned.writeStream.format("hadron")
                .outputMode(spec.output_mode)
                .option("server", self._url)
                .option("stream", spec.to.stream)
                .option("txnId", self._sink)
                .option("checkpointLocation", self._location())
                .options(
                    **{each: spec.options[each] for each in WRITE_OPTIONS & spec.options.keys()}
                )
            )
            if self._follows:
                writer = writer.option("reset", self._follows)
            if self._until_idle:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{spec.trigger_ms} milliseconds")
            return writer.start()
        except HadronError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _location(self) -> str:
        """The checkpoint's, as Hadoop has paths: nothing is escaped in them. Raises
        `ConfigurationError` where Java would have the directory by another name."""
        directory = self._checkpoint.directory
        jvm: Any = self._spark._jvm
        try:
            directory.mkdir(parents=True, exist_ok=True)
            str(directory).encode()  # Names may be bytes that are no text.
            there = jvm.java.io.File(str(directory)).isDirectory()
        except (OSError, UnicodeError) as error:
            raise self._unusable(f"{error}") from error
        if not there:
            encoding = jvm.java.lang.System.getProperty("sun.jnu.encoding")
            raise self._unusable(f"Java, whose file names are {encoding}, does not find it")
        return f"file://{self._checkpoint.location}"

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the checkpoint directory {str(self._checkpoint.directory)!a} cannot be used: {why}",
            "begin the runner with LC_ALL=C.UTF-8, or name another directory: --checkpoints DIR",
        )

    def _read(self) -> DataFrame:
        spec = self._spec
        given = {
            name: value
            for name, value in spec.options.items()
            if name not in WRITE_OPTIONS and not name.startswith(SPARK_OPTION)
        }
        if spec.source.schema:
            self._check_schema(spec.source.schema)
            given["schema"] = spec.source.schema
        given |= self._start(spec.source)
        reader = self._spark.readStream.format("hadron").option("server", self._url)
        return reader.option("stream", spec.source.stream).options(**given).load()

    def _check_schema(self, members: str) -> None:
        """Raises `StageCodeError`. Spark would speak of a text that nobody has written."""
        from pyspark.sql.types import StructType

        try:
            StructType.fromDDL(f"value STRUCT<{members}\n>")
        except Exception as error:
            raise StageCodeError(
                f"the schema {shorten(members)} of pipeline {self._name!r} is not DDL: "
                f"{brief(summary(error), _MAX_LINE)}",
                "write it as name TYPE, name TYPE",
            ) from error

    def _start(self, source: StreamInput) -> dict[str, str]:
        """Where a new query begins, as the reader's option."""
        if source.start in ("earliest", "latest"):
            return {"startingOffsets": source.start}
        if not source.start.isdigit():
            return {"startingTimestamp": source.start}
        partitions = names_of(self._spec.options.get("partitions", ""))
        if not partitions:
            with connect(self._url) as client:
                partitions = client.stream(source.stream).spec.partitions
        return {"startingOffsets": json.dumps(dict.fromkeys(partitions, int(source.start)))}

    def _transformed(self, given: DataFrame) -> DataFrame:
        """What the pipeline's function makes of the records, checked. Raises `StageCodeError`."""
        from pyspark.sql import DataFrame

        from hadron.spark.written import check_columns

        function = load(self._spec.run, f"pipeline {self._name!r}")
        try:
            returned = function(*[given, self._spark][: _wanted(function)])
        except RAISED as error:
            raise self._code_error(error) from error
        if not isinstance(returned, DataFrame):
            wanted = "of what is to be published"
            raise StageCodeError(*no_dataframe(self._label, returned, wanted))
        if not returned.isStreaming:
            raise StageCodeError(
                f"{self._label} returned a DataFrame that is not streaming",
                "return one that is made of the DataFrame that it is given",
            )
        try:
            check_columns(returned.schema)
        except RequestError as error:
            raise StageCodeError(f"{self._label}: {error.message}", error.hint) from error
        return returned

    def _watch(self, query: StreamingQuery) -> None:
        """Until it has ended, by itself or because it was asked to. Raises `HadronError`."""
        try:
            while query.isActive and not self._stopping.wait(_POLL_S):
                self._tell(query)
            if query.isActive:
                self._finish(query)
            query.awaitTermination()
        except Exception as error:
            raise self._failure(error) from error
        finally:
            if is_alive(self._spark):
                self._tell(query)

    def _finish(self, query: StreamingQuery) -> None:
        """Let the micro-batch that runs end; one that has just begun is done again next time."""
        known = _executed(query)
        while query.isActive and _is_under_way(query) and _executed(query) == known:
            threading.Event().wait(_FINISH_POLL_S)
        query.stop()

    def _tell(self, query: StreamingQuery) -> None:
        latest = _executed(query)
        if latest is None or latest <= self._told:
            self._on_wait(str(query.status["message"]))
            return
        for progress in map(_parsed, query.recentProgress):
            number = int(progress["batchId"])
            if number <= self._told or not _is_executed(progress):
                continue
            self._told = number
            rows, lag = int(progress["numInputRows"]), _lag(progress)
            seconds = progress["durationMs"].get("triggerExecution", 0) / 1_000
            self.batches, self.rows = self.batches + 1, self.rows + rows
            self._on_batch(Batch(number, rows, seconds, lag))

    # --- what goes wrong ------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return name_of(self._spec.run, f"pipeline {self._name!r}")

    def _code_error(self, error: BaseException) -> StageCodeError:
        return StageCodeError(
            f"{self._label} is wrong, whatever its input: {brief(summary(error), _MAX_LINE)}",
            "mend it and start the runner again: it goes on where it was",
        )

    def _failure(self, error: Exception) -> HadronError:
        """What is told of it: who is to blame decides whether it is tried again."""
        from pyspark.errors import AnalysisException, ParseException, StreamingQueryException

        if isinstance(error, HadronError):
            return error
        if not is_alive(self._spark):
            return ConfigurationError(
                f"Spark stopped while {self._label} ran: {brief(summary(error), _MAX_LINE)}",
                "start the runner again: it goes on where it was; where Java says above that its "
                "memory is full, with more of it: SPARK_DRIVER_MEMORY=4g",
            )
        text = said_by(error)
        if ours := _OURS.findall(text):
            return self._ours(*ours[-1])
        if _SHARED in text:
            return RequestError(
                f"another query has gone on with the checkpoint in {self._checkpoint.directory}",
                "a streaming query has one runner; end the other one",
            )
        if isinstance(error, StreamingQueryException):
            reason = brief(summary(error), _MAX_LINE)
            # Spark's own prefix names the query by ids that nobody has seen.
            reason = reason.partition("terminated with exception: ")[2] or reason
            return StageError(
                f"{self._label} failed: {reason}",
                "what is published stays; mend it and start the runner again: it goes on where it "
                "was",
            )
        if isinstance(error, AnalysisException | ParseException):
            return self._code_error(error)
        return StageError(f"{self._label} does not start: {brief(summary(error), _MAX_LINE)}")

    def _ours(self, kind: str, told: str) -> HadronError:
        """An error of the source's or the sink's, out of the text of Spark's."""
        cls = HadronError.by_code.get(kind, RequestError)
        message, _, hint = told.removesuffix(")").rpartition(" (")
        if issubclass(cls, RequestError):
            try:
                with connect(self._url) as client:
                    self._checkpoint.check(client.sink(self._sink).progress())
            except HadronError as taken:
                return taken
        if issubclass(cls, LogTruncatedError | OffsetOutOfRangeError):
            hint = (
                f"`hadron pipeline run {self._name} --reset` begins anew at `start: "
                f"{self._spec.source.start}`; `options: {{failOnDataLoss: false}}` goes on behind "
                "what is gone, in the same stream"
            )
        retryable = cls.default_retryable or issubclass(cls, OutcomeUnknownError)
        return error_from_code(kind, message or told, hint if message else "", retryable)


def _wanted(function: Callable[..., Any]) -> int:
    """How many arguments it takes: the DataFrame, and the session if it has a place for it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in positional and each.default is each.empty]
    return 2 if len(needed) > 1 else 1


def _parsed(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def _is_executed(progress: dict[str, Any]) -> bool:
    """Of a micro-batch, and not of a look for records that has found none."""
    return "addBatch" in progress["durationMs"]


def _is_under_way(query: StreamingQuery) -> bool:
    """Whether it works on a micro-batch. Data stays available, as Spark has it, from one to the
    next trigger."""
    status = query.status
    return bool(status["isTriggerActive"] and status["isDataAvailable"])


def _executed(query: StreamingQuery) -> int | None:
    """The latest micro-batch that it has done."""
    latest = query.lastProgress
    if latest is None:
        return None
    progress = _parsed(latest)
    number = int(progress["batchId"])
    return number if _is_executed(progress) else number - 1


def _lag(progress: dict[str, Any]) -> int | None:
    """Records that its sources had, and it had not read; None where Spark has not asked one how
    far it goes."""
    lag = 0
    for source in progress["sources"]:
        done, there = source.get("endOffset"), source.get("latestOffset")
        if not _are_cursors(done):
            # Another source than Hadron's, which the function has joined.
            continue
        if not _are_cursors(there):
            return None
        lag += sum(
            max(0, each["offset"] - done.get(name, each)["offset"]) for name, each in there.items()
        )
    return lag


def _are_cursors(found: Any) -> bool:
    """Whether it is a checkpoint of this source (`source.cursors`)."""
    return isinstance(found, dict) and all(
        isinstance(each, dict) and "offset" in each for each in found.values()
    )
