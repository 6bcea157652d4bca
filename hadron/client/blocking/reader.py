"""The blocking reader: spans cross threads, records are taken from them in the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from hadron.client.blocking.life import Hold
from hadron.client.blocking.portal import Portal
from hadron.client.blocking.taking import Taking
from hadron.client.client import Client
from hadron.client.reading.reader import BatchReader, RecordReader, Span, SpanReader, spans_of
from hadron.client.reading.slices import slice_batch
from hadron.model.errors import ClosedError, ForkedError
from hadron.model.record import Record
from hadron.model.record_batch import RecordBatch

T = TypeVar("T")


class SyncReader(Generic[T]):
    """An iterator over what a read gives; `close` ends it, from any thread. After an error, also
    Ctrl-C, it goes on where it was."""

    def __init__(
        self, portal: Portal, spans: SpanReader, items: Callable[[Span], Iterable[T]]
    ) -> None:
        self._portal = portal
        self._spans = spans
        self._taking = Taking(portal, spans.next_span)
        self._read_from = items
        self._items: Iterator[T] = iter(())

    def __repr__(self) -> str:
        return f"<SyncReader of {self._spans}>"

    def _next_span(self) -> Span | None:
        try:
            return self._taking.take()
        except ForkedError:
            raise
        except ClosedError:
            # What never ends by itself ends when the client is closed.
            if self._spans.follows:
                return None
            raise

    def __iter__(self) -> SyncReader[T]:
        return self

    def __next__(self) -> T:
        # Not a generator, which Ctrl-C ends for good: the next call would be a normal end.
        for item in self._items:
            return item
        span = self._next_span()
        if span is None:
            raise StopIteration
        self._items = iter(self._read_from(span))
        return next(self._items)

    def __enter__(self) -> SyncReader[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; not needed when a loop is just left."""
        self._items = iter(())
        self._taking.drop()
        with suppress(ClosedError):
            self._portal.call(self._spans.close)


def record_reader(hold: Hold, read: Callable[[Client], RecordReader]) -> SyncReader[Record]:
    portal, client = hold.get()
    return SyncReader(
        portal, spans_of(read(client)), lambda span: span.batch.records(span.start, span.stop)
    )


def batch_reader(hold: Hold, read: Callable[[Client], BatchReader]) -> SyncReader[RecordBatch]:
    portal, client = hold.get()
    return SyncReader(
        portal,
        spans_of(read(client)),
        lambda span: (slice_batch(span.batch, span.start, span.stop),),
    )
