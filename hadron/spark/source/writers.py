"""Writing to a stream from Spark: tasks stage what they write, the driver publishes all of it.

    tasks   write(): rows → record batches → staged at the partitions' leaders, in no stream
    driver  commit(): one transaction publishes the attempts that Spark has named, and advances the
            sink to (query, batch); abort(): what is staged goes

Spark may run a task several times, and commit what one of them wrote; commit a batch whose commit
it has forgotten; and abort what it has committed. Safety rule: nothing is in the stream before the
one transaction, which a sink lets happen once for each (query, batch); and what is published is
staged no more, so that an abort finds nothing of it (PROTOCOL E10, E11).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from hadron.model.errors import ConfigurationError, HadronError, RequestError
from hadron.model.limits import MAX_ITEMS, TOKEN_BYTES
from hadron.spark.source.connecting import connect
from hadron.spark.source.options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a streaming query: nothing else says whose batch they write."""

_STAGE_BYTES: Final = 2 << 20
"""Of batches that are sent together: what a leader commits together."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        write: what its attempt is a part of.
        batches: how many it has staged, by partition.
        query: whose batch it is; "" for a batch write.
        is_known: the batch was published before; nothing was staged.
    """

    write: bytes
    attempt: bytes
    batches: Mapping[str, int]
    records: int
    query: str
    is_known: bool


def check_writable(schema: StructType, overwrite: bool) -> None:
    """Raises `RequestError` before anything is written."""
    from hadron.spark.written import check_columns

    if overwrite:
        raise RequestError(
            "a stream cannot be overwritten: records are appended",
            'write .mode("append"); to begin anew, delete the stream and create it',
        )
    check_columns(schema)


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one transaction. Pickled: its tasks, and who commits, have copies of it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_sink_options(options, streaming=False)
        self._token = secrets.token_bytes(TOKEN_BYTES)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        options = self._options
        task = _Task(options, self._token, "", options.batch_id)
        return task.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._options, messages, self._options.batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        give_up(self._options, messages, self._token)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: a transaction for each batch. Spark makes another one to commit."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_sink_options(options, streaming=True)
        self._token = secrets.token_bytes(TOKEN_BYTES)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = _of_query()
        # What tasks of one batch write is one write, and each batch another.
        name = self._token + batch.to_bytes(8, "big")
        write = hashlib.blake2b(name, digest_size=TOKEN_BYTES).digest()
        return _Task(self._options, write, query, batch).run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        publish(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        give_up(self._options, messages, None)


def _of_query() -> tuple[str, int]:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context is not None else None
    batch = context.getLocalProperty(_BATCH) if context is not None else None
    if not query or batch is None:
        raise ConfigurationError(
            "Spark does not say which query and batch this task is of, so that a batch that comes "
            "again could not be told from a new one",
            "write with .writeStream in Spark's micro-batch mode (no continuous trigger)",
        )
    return query, int(batch)


class _Task:
    """One attempt of one task."""

    def __init__(self, options: SinkOptions, write: bytes, query: str, batch: int) -> None:
        self._options = options
        self._write = write
        self._attempt = secrets.token_bytes(TOKEN_BYTES)
        self._query = query
        self._batch = batch
        self._staged: dict[str, int] = {}
        self._waiting: dict[str, list[bytes]] = {}
        self._records = 0

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from hadron.spark.written import Packer

        options = self._options
        with connect(options.url) as client:
            sink = client.sink(_sink_name(options, self._query))
            if sink.is_published(self._query, self._batch, options.reset):
                return self._told(is_known=True)
            context = TaskContext.get()
            packer = Packer(
                options.stream,
                client.stream(options.stream).spec.partitions,
                first=context.partitionId() if context is not None else 0,
                now_ms=time.time_ns() // 1_000_000,
                codec=options.codec,
            )
            for rows in iterator:
                for made in packer.add(rows):
                    self._take(sink, *made)
            for made in packer.finish():
                self._take(sink, *made)
            for partition in list(self._waiting):
                self._stage(sink, partition)
        return self._told(is_known=False)

    def _take(self, sink: Any, partition: str, batch: bytes, records: int) -> None:
        waiting = self._waiting.setdefault(partition, [])
        is_full = sum(map(len, waiting)) + len(batch) > _STAGE_BYTES or len(waiting) >= MAX_ITEMS
        if waiting and is_full:
            self._stage(sink, partition)
            waiting = self._waiting.setdefault(partition, [])
        waiting.append(batch)
        self._records += records

    def _stage(self, sink: Any, partition: str) -> None:
        batches = self._waiting.pop(partition)
        first = self._staged.get(partition, 0)
        what = f"query {self._query} batch {self._batch}" if self._query else "batch write"
        sink.stage(
            self._options.stream,
            partition,
            batches,
            write=self._write,
            attempt=self._attempt,
            first=first,
            kept_s=self._options.kept_s,
            label=f"{self._options.txn_id} {what}".strip(),
        )
        self._staged[partition] = first + len(batches)

    def _told(self, *, is_known: bool) -> Written:
        return Written(
            self._write, self._attempt, self._staged, self._records, self._query, is_known
        )


def _sink_name(options: SinkOptions, query: str) -> str:
    """A query has a name anyway: its checkpoint's."""
    return options.txn_id or query


def publish(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int
) -> None:
    """Publish what these tasks have staged, unless the batch was published before."""
    from hadron.client.sinks.sink import StagedAttempt

    written = [each for each in messages if isinstance(each, Written)]
    if not written:
        return
    query, write = written[0].query, written[0].write
    if any(each.is_known for each in written):
        # Whoever has published it has published all of it.
        _log.info("batch %d of %s was published before", batch, _sink_name(options, query))
        give_up(options, messages, write)
        return
    staged = [StagedAttempt(each.attempt, each.batches) for each in written if each.batches]
    with connect(options.url) as client:
        is_new = client.sink(_sink_name(options, query)).publish(
            options.stream, staged, write=write, query=query, batch=batch, follows=options.reset
        )
    if staged and not is_new:
        # Another write was published as this batch, and nobody publishes this one any more; or it
        # was this one, and is staged no more.
        give_up(options, messages, write)


def give_up(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], write: bytes | None
) -> None:
    """What was staged is not wanted, where it is not published. What cannot be said so now expires:
    of tasks that have failed nobody knows where they have staged."""
    written = [each for each in messages if isinstance(each, Written)]
    write = written[0].write if written else write
    if write is None:
        return
    # The reason for the abort is what its user should read.
    with suppress(HadronError), connect(options.url) as client:
        client.sink().give_up(write, client.stream(options.stream).spec.partitions)
