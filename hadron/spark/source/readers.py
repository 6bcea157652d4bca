"""The data source that Spark sees: planning on the driver, reading in the workers.

A plan pins its end (the high watermark as of planning), so a batch read is repeatable and a task
that runs twice reads the same records. Workers get offset ranges and fetch them by themselves.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ConfigurationError,
    HadronError,
    LogTruncatedError,
    NotReadyError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.ids import Ballot
from hadron.model.record_batch import decode_batch
from hadron.spark.extra import INSTALL
from hadron.spark.source.connecting import connect
from hadron.spark.source.cursors import (
    Checkpoint,
    Cursor,
    check_stream,
    from_json,
    to_json,
    truncated,
)
from hadron.spark.source.options import SourceOptions, parse_options
from hadron.spark.source.ranges import (
    Bounds,
    OffsetRange,
    between,
    bounds,
    check_ends,
    check_order,
    compare,
    cursors_at,
    kept,
    locate,
    past_end,
    past_loss,
    split,
    spread,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    import pyarrow as pa

    from hadron.spark.source.filters import Restriction

_COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "stream": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "type": StringType(),
    "headers": MapType(StringType(), StringType()),
}

_SCHEMA_SAYS: Final = "-- the option schema, below, is to be DDL: name TYPE, name TYPE"

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_PATIENCE_S: Final = 30.0
"""How long a task waits for a leader that is away. Spark's local mode never retries a task."""

_SESSION_ZONE: Final = "spark.sql.session.timeZone"

_SHOWN_WITHIN_S: Final = 3.0
"""How long a micro-batch waits at most for its group to be moved."""

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0


class HadronDataSource(DataSource):
    """`spark.read.format("hadron")` and `spark.readStream.format("hadron")`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        try:
            import pyarrow as _  # noqa: F401 - only whether it is there
        except ImportError as error:
            # Spark's own worker would crash a little later, without a word.
            raise ConfigurationError(
                f"reading Hadron from Spark needs pyarrow in {sys.executable}: {error}", INSTALL
            ) from error

    @classmethod
    def name(cls) -> str:
        return "hadron"

    def schema(self) -> StructType | str:
        """`key, value, stream, partition, offset, timestamp, type`, and `headers` if asked for; the
        option `schema` says what a value has."""
        with_headers = self.options.get("includeHeaders", "").lower() == "true"
        columns = {
            name: kind for name, kind in _COLUMNS.items() if name != "headers" or with_headers
        }
        if members := self.options.get("schema"):
            # Only the other side can read it: a worker has no Java. What it says of a mistake shows
            # where that is, in this text: so it is one type, which Spark tries first, and the
            # user's part of it has lines of its own, below one that says what it is.
            types = {name: kind.simpleString() for name, kind in columns.items()}
            types["value"] = f"STRUCT<\n{_SCHEMA_SAYS}\n{members}\n>"
            return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in types.items())}>"
        schema = StructType()
        for name, kind in columns.items():
            schema = schema.add(name, kind)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, streaming=False)
        columns = _check_columns(schema)
        # Spark refuses a reader with `pushFilters` outright where pushdown is not switched on,
        # which is its default; it asks from its own worker module where it is.
        pushing = _PUSHDOWN_WORKER in sys.modules
        return (PushdownReader if pushing else BatchReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(parse_options(self.options, streaming=True), _check_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hadron.spark.source.writers import BatchWriter, check_writable

        writer = BatchWriter(self.options)
        check_writable(schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        # Spark takes its Arrow writers of streams, and says another type.
        from hadron.spark.source.writers import StreamWriter as Writer
        from hadron.spark.source.writers import check_writable

        writer = Writer(self.options)
        check_writable(schema, overwrite)
        return writer


def _check_columns(schema: StructType) -> Columns:
    """The wanted columns: a user's own schema may leave some out and change their order."""
    members: StructType | None = None
    for wanted in schema.fields:
        if wanted.name == "value" and isinstance(wanted.dataType, StructType):
            members = wanted.dataType
            _check_members(members)
            continue
        kind = _COLUMNS.get(wanted.name)
        if kind is None or kind != wanted.dataType:
            raise RequestError(
                f"there is no column {wanted.name} {wanted.dataType.simpleString()}",
                "there are "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in _COLUMNS.items()),
            )
    return Columns(tuple(schema.fieldNames()), members)


def _check_members(members: StructType) -> None:
    from hadron.spark.parsed import doubled, unparsed

    if twice := doubled(members):
        raise RequestError(f"the schema of values has {twice!r} twice", "name each member once")
    strange = unparsed(members)
    if strange is not None or not members.fields:
        what = "nothing" if strange is None else strange.simpleString()
        raise RequestError(
            f"a value is not parsed to {what}",
            "name numbers, booleans, strings, timestamps, decimals, and structs and arrays of "
            "them; or take the value as it is, and from_json",
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """What a read gives.

    Attributes:
        members: what a value has, where it is parsed.
    """

    names: tuple[str, ...]
    members: StructType | None = None


class RangePartition(InputPartition):
    """One task's share."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class BatchReader(DataSourceReader):
    """A batch read: everything between two positions, fixed when it is planned."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._restriction: Restriction | None = None

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with connect(options.url) as client:
            known = bounds(client, options, options.starting.at_ms)
            start = locate(options.starting, known, options)
            if options.ending.at_ms:
                known = bounds(client, options, options.ending.at_ms)
            end = locate(options.ending, known, options)
        # What may be lost is not waited for, and what is appended meanwhile is not of this read.
        end = {name: min(offset, known[name].next_offset) for name, offset in end.items()}
        check_order(start, end, options)
        ids = {name: each.stream_id for name, each in known.items()}
        ranges = between(
            {name: Cursor(offset, None, ids[name]) for name, offset in start.items()},
            {name: Cursor(offset, None, ids[name]) for name, offset in end.items()},
            options,
        )
        if self._restriction is not None:
            ranges = self._restriction.narrow(ranges)
        ranges = kept(ranges, known, options)
        return [RangePartition(each) for each in split(ranges, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            task = _ReadTask(self._options, self._columns, partition.wanted, self._restriction)
            yield from task.run()


class PushdownReader(BatchReader):
    """A batch read that takes over filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        from hadron.spark.source.filters import take_over

        self._restriction, rest = take_over(filters)
        return rest


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Lives on the driver; only `read` runs in workers, on a pickled copy.

    Where a query goes on is a cursor per partition (`cursors`); it is compared with the log before
    anything is planned, and once more by the tasks, with what they read (PROTOCOL D4).
    """

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._target: dict[str, Bounds] | None = None
        self._checked_target: dict[str, Bounds] | None = None
        self._shown: dict[str, int] = {}
        self._client: Any = None
        self._closing = contextlib.ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "columns": self._columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["columns"])  # type: ignore[misc]

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        options, client = self._options, self._connected()
        known = bounds(client, options, options.starting.at_ms)
        offsets = locate(options.starting, known, options)
        return to_json(cursors_at(client, options, offsets, known, {}))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target, self._checked_target = self._bounds(), None

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        known = self._checked_target or self._up_to(start, known=self._target)
        if self._target is not None:
            # Once: what is lost contradicts it for ever, and a query that is to end would not.
            self._checked_target = known
        begin = self._checked(start, known)
        # A partition that has gone knows no group.
        self._show({name: cursor for name, cursor in begin.items() if name in known})
        end = self._ends(known)
        between(begin, end, self._options)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else sys.maxsize
        offsets = spread(_offsets(begin), _offsets(end), max_rows)
        return to_json(cursors_at(self._connected(), self._options, offsets, known, begin))

    def reportLatestOffset(self) -> Checkpoint:  # noqa: N802
        return to_json(self._ends(self._bounds()))

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        known = self._up_to(start, end)
        ranges = between(self._checked(start, known), self._checked(end, known), self._options)
        ranges = kept(ranges, known, self._options)
        return [RangePartition(each) for each in split(ranges, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            yield from _ReadTask(self._options, self._columns, partition.wanted, None).run()

    def stop(self) -> None:
        self._closing.close()
        self._client = None

    def _show(self, done: Mapping[str, Cursor]) -> None:
        """Move the group that the query names: everything before these is done.

        Spark asks for a next micro-batch as the one before is done, and calls `commit` only once
        there is one: an idle query would never have caught up. It decides nothing, a query goes on
        where its checkpoint is; so a leader that is away does not stop it, and hears it later.
        """
        options = self._options
        for name, cursor in done.items() if options.group else ():
            if self._shown.get(name) == cursor.offset:
                continue
            try:
                self._connected().reset_group(
                    options.stream,
                    options.group,
                    cursor.offset,
                    partitions=[name],
                    create=True,
                    within_s=_SHOWN_WITHIN_S,
                )
            except HadronError as error:
                # That retention has dropped what comes next already is no harm here.
                if not error.retryable and not isinstance(error, OffsetOutOfRangeError):
                    raise
            else:
                self._shown[name] = cursor.offset

    def _bounds(self) -> dict[str, Bounds]:
        return bounds(self._connected(), self._options)

    def _up_to(
        self, *checkpoints: Checkpoint, known: dict[str, Bounds] | None = None
    ) -> dict[str, Bounds]:
        """The bounds of the partitions. A leader that is deposed, and has not heard so, knows less
        than there is: where one contradicts a checkpoint, a majority is asked."""
        known = dict(self._bounds() if known is None else known)
        strict = replace(self._options, fail_on_data_loss=True)
        for name, cursor in ((n, c) for each in checkpoints for n, c in from_json(each).items()):
            try:
                check_ends({name: cursor}, known, strict)
            except LogTruncatedError:
                (known[name],) = self._connected().offsets(
                    strict.stream, partition=name, confirmed=True
                )
        return known

    def _ends(self, known: Mapping[str, Bounds]) -> dict[str, Cursor]:
        return {
            name: Cursor(each.next_offset, each.ballot, each.stream_id)
            for name, each in known.items()
        }

    def _checked(self, checkpoint: Checkpoint, known: Mapping[str, Bounds]) -> dict[str, Cursor]:
        """The cursors of a checkpoint. Raises `LogTruncatedError` for those that are wrong, as far
        as the ends of the partitions tell."""
        cursors, options = from_json(checkpoint), self._options
        for each in known.values():
            check_stream(cursors, options.stream, each.stream_id)
        check_ends(cursors, known, options)
        return cursors

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._closing.enter_context(connect(self._options.url))
        return self._client


def _offsets(cursors: Mapping[str, Cursor]) -> dict[str, int]:
    return {name: cursor.offset for name, cursor in cursors.items()}


@dataclass(slots=True)
class _ReadTask:
    """One worker's reading of one range. What follows is asked for as soon as an answer says where
    it begins: it is on its way while Spark takes what has come."""

    options: SourceOptions
    columns: Columns
    wanted: OffsetRange
    restriction: Restriction | None
    ahead: Future[Any] | None = None
    """The answer for where `wanted` will start when all that was fetched is handed on."""
    zone: str | None = None
    """Of timestamps in values that have none; None where it is not known."""

    def run(self) -> Iterator[pa.RecordBatch]:
        # Spark imports this module to find the source, in processes that never read.
        from concurrent.futures import ThreadPoolExecutor

        from hadron.spark.arrow import coalesced

        self.zone = self.options.time_zone or _session_zone()
        # The client is closed first, also when Spark has enough, and ends what was asked ahead.
        with ThreadPoolExecutor(1, "hadron-ahead") as ahead, connect(self.options.url) as client:
            yield from coalesced(self._batches(client, ahead))

    def _batches(self, client: Any, ahead: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        while len(self.wanted):
            found = self._fetch(client)
            if found and found[-1].next_offset < self.wanted.stop:
                last = found[-1]
                after = Ballot(last.epoch, last.incarnation)
                self.ahead = ahead.submit(self._ask, client, last.next_offset, after)
            for stamped in found:
                ballot = Ballot(stamped.epoch, stamped.incarnation)
                if self.wanted.last is not None and stamped.next_offset >= self.wanted.stop:
                    compare(
                        self.options,
                        self.wanted.partition,
                        self.wanted.stop,
                        self.wanted.last,
                        ballot,
                    )
                batch = self._to_arrow(stamped)
                if batch is not None:
                    yield batch
                self.wanted = replace(self.wanted, start=stamped.next_offset, after=ballot)
                if not len(self.wanted):
                    break

    def _fetch(self, client: Any) -> Sequence[Any]:
        """The next batches; none when the range was moved past records that are gone."""
        from hadron.wire.system import SystemRandom

        backoff = Backoff(SystemRandom(), _FIRST_PAUSE_S, _MAX_PAUSE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._fetch_once(client)
            except HadronError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
            time.sleep(backoff.next_s())

    def _fetch_once(self, client: Any) -> Sequence[Any]:
        wanted, ahead = self.wanted, self.ahead
        self.ahead = None
        try:
            if ahead is not None:
                fetched = ahead.result()
            else:
                fetched = self._ask(client, wanted.start, wanted.after)
        except LogTruncatedError as error:
            if self.options.fail_on_data_loss:
                raise truncated(self.options.stream, wanted.partition, error.message) from None
            self.wanted = replace(wanted, after=None)
            return ()
        except OffsetOutOfRangeError:
            self.wanted = self._past_loss(client)
            return ()
        found: Sequence[Any] = fetched.batches
        if not found:
            raise NotReadyError(f"{wanted.partition} has nothing at offset {wanted.start} yet")
        return found

    def _ask(self, client: Any, start: int, after: Ballot | None) -> Any:
        """Once, from any thread. Raises what the client does."""
        return client.fetch(
            self.options.stream,
            self.wanted.partition,
            start,
            max_wait_ms=1_000,
            stream_id=self.wanted.stream_id or None,
            after=after,
            exists=True,
        )

    def _past_loss(self, client: Any) -> OffsetRange:
        """Retention was faster than this task, or the log has lost what is wanted."""
        (there,) = client.offsets(
            self.options.stream, partition=self.wanted.partition, confirmed=True
        )
        if there.first_offset > self.wanted.start:
            return past_loss(self.wanted, there.first_offset, self.options)
        return past_end(self.wanted, there.next_offset, self.options)

    def _to_arrow(self, stamped: Any) -> pa.RecordBatch | None:
        from hadron.spark.arrow import to_arrow

        restriction = self.restriction
        if restriction is not None and not restriction.may_match(stamped.data):
            return None
        batch = decode_batch(
            stamped.data,
            base_offset=stamped.base_offset,
            stream=self.options.stream,
            partition=self.wanted.partition,
        )
        start = max(0, self.wanted.start - stamped.base_offset)
        stop = min(batch.count, self.wanted.stop - stamped.base_offset)
        if start >= stop:
            return None
        rows = to_arrow(batch, self.columns.names, start, stop)
        members = self.columns.members
        if members is None:
            return rows
        from hadron.spark.parsed import arrow_type, parse

        place = self.columns.names.index("value")
        value = parse(rows.column(place), arrow_type(members), self.zone)
        return rows.set_column(place, "value", value)


def _session_zone() -> str | None:
    """Spark tells the tasks of a query how its session is set; not those of `.rdd`, and not what
    nobody has set."""
    context = TaskContext.get()
    return context.getLocalProperty(_SESSION_ZONE) if context is not None else None
