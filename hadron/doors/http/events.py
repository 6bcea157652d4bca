"""`GET /v1/streams/NAME/events`: server-sent events, which go on where they were cut off.

The id of an event is the next offset of every partition. `EventSource` sends it back when it
connects again, to this node or to another one, under whatever leader: each record comes once, in
order within its partition (HTTP H5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import trio

from hadron.client.client import Client
from hadron.doors.http import limits as bounds
from hadron.doors.http.call import Call, Query
from hadron.doors.http.door import Door
from hadron.doors.http.live import EVENTS, PIECE_BYTES, RETRY_MS, Live
from hadron.doors.http.reading import Source
from hadron.doors.http.records import event_of, json_of
from hadron.doors.positions import Cursor, format_cursor, parse_cursor, parse_position
from hadron.model.errors import HadronError, OffsetOutOfRangeError
from hadron.model.record import Record
from hadron.model.record_batch import RecordBatch
from hadron.model.schema import StreamSpec

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""Who takes no longer to read what it is told reads along: what is fetched for it is gone then."""


class EventsQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        from_: where to begin, without a Last-Event-ID.
        partition: None follows all.
        format: what `data` is: the record as JSON, or a CloudEvent.
    """

    from_: str = msgspec.field(default="latest", name="from")
    partition: str | None = None
    format: Literal["json", "cloudevents"] = "json"


async def events(door: Door, call: Call, query: EventsQuery) -> None:
    """Until whoever follows is gone, or the node stops."""
    call.choose(EVENTS)
    last = call.headers.get("last-event-id", "").strip()
    if last:
        position = parse_cursor(last, "Last-Event-ID")
    else:
        position = parse_position(query.from_, door.now_ms())  # type: ignore[assignment]
    client = await door.clients.of(query.namespace)
    source = Source(client, call.path["stream"], query.partition, position)
    live = Live(call, door.limits, EVENTS)
    with live.open_at(door):
        # What is wrong is told by a status; later there is none any more.
        try:
            await source.begin()
        except OffsetOutOfRangeError:
            if not last:
                raise
            await source.begin(pass_over_dropped=True)
        write = event_of if query.format == "cloudevents" else json_of
        following = _Following(door, call, live, client, source, query, write)
        await live.run(following.follow_all, call.wait_disconnected)


class _Following:
    """One open stream of events."""

    def __init__(
        self,
        door: Door,
        call: Call,
        live: Live,
        client: Client,
        source: Source,
        query: EventsQuery,
        write: Callable[[Record], bytes],
    ) -> None:
        self._client = client
        self._every_s = door.limits.heartbeat_s
        self._call = call
        self._live = live
        self._stream = source.stream
        self._cursor: Cursor = source.cursor
        self._stream_id = source.stream_id
        self._skipped = source.skipped
        self._partition = query.partition
        self._write = write
        self._unread: dict[str, float] = {}
        """Partitions of which something waits for who reads, and since when."""
        self._is_over = trio.Event()

    async def follow_all(self) -> None:
        """Until one of them has ended. Raises `OverloadedError` where it is read so slowly that
        others have no room."""
        # The place is known before the first record: who is cut off until then misses none.
        await self._live.say(f"retry: {RETRY_MS}\nid: {format_cursor(self._cursor)}\n\n".encode())
        for partition, (asked, first) in self._skipped.items():
            told = {"partition": partition, "from": asked, "to": first}
            await self._live.say(self._live.word("skipped", msgspec.json.encode(told)))
        async with trio.open_nursery() as nursery:
            for partition, start in list(self._cursor.items()):
                nursery.start_soon(self._follow, partition, start)
            nursery.start_soon(self._join_added, nursery)
            nursery.start_soon(self._count)
            await self._is_over.wait()
            nursery.cancel_scope.cancel()

    async def _follow(self, partition: str, start: int) -> None:
        """Its records as they become visible, and no faster than they are read there."""
        live = self._live
        try:
            batch: RecordBatch
            async for batch in self._client.read_batches(
                self._stream,
                partition=partition,
                start=start,
                follow=True,
                stream_id=self._stream_id,
            ):
                piece = bytearray()
                self._unread[partition] = trio.current_time()
                async with live.writing:
                    for record in batch.records():
                        self._cursor[partition] = record.offset + 1
                        self._event(piece, record)
                        if len(piece) >= PIECE_BYTES:
                            await live.send(bytes(piece))
                            piece.clear()
                    if piece:
                        await live.send(bytes(piece))
                del self._unread[partition]
        except HadronError as error:
            # Whoever follows connects again, and hears by its status what is wrong.
            _log.info("a stream of events of %s/%s ends: %s", self._stream, partition, error)
        self._is_over.set()

    def _event(self, piece: bytearray, record: Record) -> None:
        piece += b"id: "
        piece += format_cursor(self._cursor).encode()
        piece += b"\ndata: "
        # A record that its producer damaged is told of as such, and ends nothing.
        piece += json_of(record) if record.damage else self._write(record)
        piece += b"\n\n"

    async def _count(self) -> None:
        """Hold what is fetched of partitions whose records nobody has read yet."""
        while True:
            await trio.sleep(_LOOK_S)
            before_s = trio.current_time() - _LOOK_S
            count = sum(since_s <= before_s for since_s in self._unread.values())
            self._call.hold_answer(count * bounds.READING_BYTES)

    async def _join_added(self, nursery: trio.Nursery) -> None:
        """Follow partitions that are added to the stream."""
        while self._partition is None:
            await trio.sleep(self._every_s)
            try:
                item = await self._client.stream(self._stream)
            except HadronError as error:
                _log.debug("partitions of %s: %s", self._stream, error)
                continue
            assert isinstance(item.spec, StreamSpec)
            for name in item.spec.partitions:
                if name not in self._cursor:
                    self._cursor[name] = 0
                    nursery.start_soon(self._follow, name, 0)
