"""A stream's visible records, published on an exchange as they become visible.

So what a transaction publishes to the stream is a message once that has committed, and never
otherwise (X6). It begins where the stream ends when the first subscription comes; without one it
reads nothing. Batches go out as their producers made them: of each only its head is read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, Protocol

import trio

from hadron.exchanges.parcels import Published
from hadron.model import columns
from hadron.model.batch import BatchHead, StampedBatch, read_head
from hadron.model.errors import HadronError, NotFoundError, OffsetOutOfRangeError, PeerError
from hadron.model.schema import SchemaObject
from hadron.model.topics import expand, is_topic
from hadron.serving.visible import VisibleStreams

_log = logging.getLogger(__name__)

_TURN_BYTES: Final = 1 << 20
"""Published before others get a turn of the loop."""

_TURN_RUNS: Final = 5_000
"""The same, of records that follow one with another topic: each is a step by itself."""


class Target(Protocol):
    """What a bridge needs of its exchange."""

    @property
    def has_subscriptions(self) -> bool: ...

    def publish_bridged(self, batches: Sequence[Published], without_topic: int) -> None: ...

    def interrupt(self, reason: HadronError) -> None:
        """End all calls: those who subscribe again are told that they may have missed something."""
        ...


class Bridge:
    def __init__(
        self,
        stream: SchemaObject,
        template: str,
        partition: str,
        visible: VisibleStreams,
        target: Target,
        start: Callable[..., None],
    ) -> None:
        """`start`: runs a task while this leader serves."""
        self.stream = stream
        self.template = template
        self._partition = partition
        self._visible = visible
        self._target = target
        self._start = start
        self._position = visible.bounds(stream.id).next_offset
        self._working = False
        self.is_closed = False
        self._unwatch = visible.watch(stream.id, self._moved)

    def is_of(self, stream: SchemaObject, template: str) -> bool:
        """Whether it publishes this stream, by this template."""
        return not self.is_closed and (self.stream.id, self.template) == (stream.id, template)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._unwatch()

    def begin(self) -> None:
        """For what becomes visible from here on: the first subscription comes, also where there
        were others, for which something is being read just now; or what was there is passed."""
        with contextlib.suppress(NotFoundError):
            self._position = self._visible.bounds(self.stream.id).next_offset

    def _moved(self) -> None:
        if self._working or self.is_closed:
            return
        try:
            if not self._target.has_subscriptions:
                self._position = self._visible.bounds(self.stream.id).next_offset
            elif not self._publish_recent():
                self._working = True
                self._start(self._catch_up)
        except NotFoundError:
            # Deleted, and nobody has closed this before: it must not end who tells of it.
            self.close()
        except HadronError as error:
            self._skip(f"records of {self.stream.label} did not go out: {error.message}; they were")

    def _publish_recent(self) -> bool:
        """Publish what is in memory; False when that is not all."""
        found = self._visible.recent(self.stream.id, self._position, _TURN_BYTES)
        if found is None:
            return False
        self._publish(found)
        return self._position >= self._visible.bounds(self.stream.id).next_offset

    async def _catch_up(self) -> None:
        try:
            while not self.is_closed:
                if not self._target.has_subscriptions:
                    self._position = self._visible.bounds(self.stream.id).next_offset
                if self._position >= self._visible.bounds(self.stream.id).next_offset:
                    return
                position = self._position
                found = await self._visible.read(self.stream.id, position, _TURN_BYTES)
                if position == self._position and not self.is_closed:
                    self._publish(found)
                await trio.lowlevel.checkpoint()
        except NotFoundError:
            # Deleted; the catalog tells who has to know.
            self.close()
        except OffsetOutOfRangeError:
            self._skip(f"retention has dropped records of {self.stream.label} before they were")
        except HadronError as error:
            self._skip(f"records of {self.stream.label} cannot be read: {error.message}; they were")
        finally:
            self._working = False

    def _skip(self, what: str) -> None:
        if self.is_closed:
            # Nobody misses what could not be read: the stream was deleted meanwhile.
            return
        self.begin()
        reason = PeerError(f"{what} not published", "clients subscribe again by themselves")
        _log.error("%s", reason.message)
        self._target.interrupt(reason)

    def _publish(self, batches: Sequence[StampedBatch]) -> None:
        """One batch in any case; of the others as many as a turn has time for."""
        published: list[Published] = []
        without = runs = 0
        for batch in batches:
            head = read_head(batch.data)
            first = max(0, self._position - batch.base_offset)
            topics, none = self._topics(head, first)
            without += none
            if topics:
                published.append(
                    Published(batch.data, topics, self.template, self.stream.name, self._partition)
                )
            self._position = batch.next_offset
            runs += len(topics)
            if runs >= _TURN_RUNS:
                break
        self._target.publish_bridged(published, without)

    def _topics(self, head: BatchHead, first: int) -> tuple[list[tuple[str, int, int]], int]:
        """Runs with one topic from record `first` on, and how many records have none."""
        names = [
            expand(self.template, each, self.stream.name, self._partition)
            for each in head.t or [""]
        ]
        runs = topics_of(head, names, first)
        found = [run for run in runs if run[0]]
        return found, head.n - first - sum(last - start + 1 for _, start, last in found)


def topics_of(
    head: BatchHead, names: Sequence[str] | None = None, first: int = 0
) -> list[tuple[str, int, int]]:
    """(topic, first, last) of runs of a batch's records from `first` on. `names` are the topics
    that its types stand for, themselves if it is None."""
    if names is None:
        names = head.t or [""]
    if not len(head.tc):
        return [(names[0], first, head.n - 1)] if first < head.n else []
    runs = []
    codes = columns.view("H", head.tc)[first:]
    start = first
    for code, equal in groupby(codes):
        stop = start + sum(1 for _ in equal)
        runs.append((names[code], start, stop - 1))
        start = stop
    return runs


def check_topics(head: BatchHead) -> str | None:
    """A type of a batch that is no topic, "" where records have none; None when all have one."""
    return next((each for each in head.t or [""] if not is_topic(each)), None)
