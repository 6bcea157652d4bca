"""An exchange as a program publishes on it, and subscribes to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from hadron.client.exchanges.calls import ExchangeCalls
from hadron.client.exchanges.messages import Messages
from hadron.client.producing.new_records import new_record
from hadron.client.terms.arguments import names_of, patience_of, text_of, whole_of
from hadron.client.terms.opening import Opening
from hadron.client.terms.results import Dispatched
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import OutcomeUnknownError, PeerError, RequestError
from hadron.model.ids import check_name
from hadron.model.record import Headers, NewRecord
from hadron.model.topics import MAX_PATTERNS, check_pattern, check_topic
from hadron.model.words import counted
from hadron.wire.messages import exchanges_pb2

DEFAULT_BUFFER_BYTES: Final = 4 << 20
"""Some 20,000 messages of 100 B."""

_MAX_BUFFER_BYTES: Final = 1 << 30

_BATCH_BYTES: Final = 64 << 10
"""Of one batch, whose messages have one topic; a largest message may be alone in one."""

_CALL_BYTES: Final = 256 << 10
_CALL_BATCHES: Final = 500
_CALL_MESSAGES: Final = 5_000
"""Of one call. A leader takes no more than twice that; a largest message is four times as large."""


class Exchange:
    """Ephemeral publish/subscribe: what is published reaches who is subscribed at that moment, at
    most once. Topics are dot segments (`eu.ibm`); in patterns `*` is any one of them, and `>` at
    the end the rest.

    Raises `NotFoundError` for an exchange that is not declared, `RequestError` for a topic or a
    pattern that is none, `RecordTooLargeError` for a message that is too large, `PeerError` when
    its leader does not answer in time, and `OutcomeUnknownError` when messages may have been
    published, or not: they are not published again.
    """

    def __init__(self, calls: ExchangeCalls, name: str) -> None:
        self._calls = calls
        self._name = text_of("exchange", name)

    def __repr__(self) -> str:
        return f"<Exchange {self._name!r} of {self._calls.session.where}>"

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        logged: bool = False,
    ) -> Dispatched:
        """Publish one message; returns once the leader has sent it on, and to how many.

        Args:
            value: bytes, str or anything JSON.
            logged: wait until it is in the exchange's `to_stream`, on a majority: the receipt says
                where.
        """
        _check_topic(topic)
        builder = BatchBuilder()
        self._add(builder, new_record(value, key, topic, None, headers, ""))
        return await self._calls.publish(self._name, [builder.build()], logged=logged)

    async def publish_many(
        self, messages: Iterable[tuple[str, Any] | NewRecord], *, logged: bool = False
    ) -> Dispatched:
        """Publish messages in this order: (topic, value) each, or a `NewRecord` whose type is the
        topic. The bulk way: many go in one call, and those in a row with one topic together.

        Whatever is no message is refused before anything behind the last full call is published.
        Raises as `publish` does; but where some are published, `OutcomeUnknownError` for all that
        could be tried again: it says how many are.
        """
        deliveries = dropped = published = 0
        receipts = []
        for batches, count in self._packed(messages):
            try:
                found = await self._calls.publish(self._name, batches, logged=logged)
            except PeerError as error:
                if not published:
                    raise
                raise OutcomeUnknownError(
                    f"the first {counted(published, 'message')} are published, and none behind "
                    f"them: {error.message}",
                    "publish those that follow",
                ) from error
            published += count
            deliveries += found.deliveries
            dropped += found.dropped
            receipts += found.receipts
        return Dispatched(deliveries, dropped, receipts)

    def _packed(
        self, messages: Iterable[tuple[str, Any] | NewRecord]
    ) -> Iterator[tuple[list[bytes], int]]:
        """Batches for one call after the other, and how many messages these are."""
        batches: list[bytes] = []
        size = count = 0
        builder, current = BatchBuilder(), ""
        for message in _given(messages):
            record = _record_of(message)
            topic = record.type
            is_full = builder.size >= _BATCH_BYTES or count >= _CALL_MESSAGES
            if len(builder) and (topic != current or is_full):
                batches.append(builder.build())
                size += len(batches[-1])
                builder = BatchBuilder()
                if size >= _CALL_BYTES or len(batches) >= _CALL_BATCHES or count >= _CALL_MESSAGES:
                    yield batches, count
                    batches, size, count = [], 0, 0
            current = topic
            self._add(builder, record)
            count += 1
        if len(builder):
            batches.append(builder.build())
        if batches:
            yield batches, count

    def _add(self, builder: BatchBuilder, record: NewRecord) -> None:
        builder.add(record, self._calls.session.ports.clock.now_ms())

    def subscribe(
        self,
        patterns: str | Sequence[str] = ">",
        *,
        group: str | None = None,
        max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> Opening[Messages]:
        """Messages whose topic one of these patterns takes, for use as
        `async with exchange.subscribe("eu.*") as messages`. Once the block is entered, whatever is
        published comes.

        Args:
            patterns: several, or the one: a message that several take comes once.
            group: of all subscriptions of one group, over all programs, one gets each message.
            max_buffer_bytes: of messages that the program has not taken; beyond it they are
                dropped, and counted.
        """
        wanted = names_of("patterns", patterns) or []
        if not 1 <= len(wanted) <= MAX_PATTERNS:
            raise RequestError(f"{len(wanted)} patterns", f"give 1 to {MAX_PATTERNS}")
        for pattern in wanted:
            check_pattern(pattern)
        # Said again on each new call: one that no message takes would end all others there.
        member_of = "" if group is None else check_name("group", text_of("group", group))
        limit = whole_of("max_buffer_bytes", max_buffer_bytes, 1, _MAX_BUFFER_BYTES)

        async def make() -> Messages:
            attendance, inbox = await self._calls.subscribe(self._name, wanted, member_of, limit)
            return Messages(self._calls.session, attendance, inbox)

        about = f"of {self._name!r}, {', '.join(wanted)}"
        call = f"exchange({self._name!r}).subscribe"
        return Opening(make, "subscription", call, about, "messages")

    async def describe(
        self, *, within_s: float | None = None
    ) -> exchanges_pb2.DescribeExchangeResponse:
        """How it is doing at its leader: rates, drops, and subscriptions. The leader is asked for
        `within_s` (None: the client's `request_timeout_s`)."""
        return await self._calls.describe(self._name, patience_of(within_s, "within_s"))


def _given(messages: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(messages)
    except TypeError:
        raise RequestError(
            f"{messages!r} are no messages", "give a list of (topic, value), or of NewRecord"
        ) from None


def _record_of(message: tuple[str, Any] | NewRecord) -> NewRecord:
    if isinstance(message, NewRecord):
        # Before the record is looked at, of which it is the type.
        _check_topic(message.type)
        return new_record(message, None, "", None, None, "")
    try:
        topic, value = message
    except (TypeError, ValueError):
        raise RequestError(
            f"{message!r} is not a message", "give (topic, value), or a NewRecord"
        ) from None
    _check_topic(topic)
    return new_record(value, None, topic, None, None, "")


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise RequestError(f"topic {topic!r} is of type {type(topic).__name__}", "give a str")
    check_topic(topic)
