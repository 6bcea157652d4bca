"""Serves `hadron.v1.Exchanges`: clients that attend, what is published, how exchanges are doing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio

from hadron.exchanges.bridge import check_topics, topics_of
from hadron.exchanges.driver import ExchangeDriver, Exchanges
from hadron.exchanges.machine import Subscription
from hadron.exchanges.parcels import Gaps, Layout, Parcel, Published
from hadron.model.batch import judge_batch, split_batches
from hadron.model.errors import HadronError, OutcomeUnknownError, RecordTooLargeError, RequestError
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.schema import SchemaObject
from hadron.model.topics import check_topic
from hadron.server.streams import append_of
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import Appended
from hadron.wire.calls import Call
from hadron.wire.messages import check_count, error_to_message, exchanges_pb2

_MAX_LISTED: Final = 1_000
"""Subscriptions that a description lists."""

_LISTED_BYTES: Final = 1 << 20
"""Of their patterns, at most: it is one message."""

MAX_PUBLISHED_BYTES: Final = MAX_BATCH_BYTES
"""Of one call: it fits into what may wait for a client."""

_MAX_BATCHES: Final = 1_000
_MAX_MESSAGES: Final = 10_000
"""Of one call: some ten milliseconds of a leader's time."""

ClientCall: TypeAlias = Call[exchanges_pb2.AttendRequest, exchanges_pb2.AttendEvent]
_Publish: TypeAlias = Call[
    exchanges_pb2.PublishMessagesRequest, exchanges_pb2.PublishMessagesResponse
]
_Event = exchanges_pb2.AttendEvent
_Response = exchanges_pb2.PublishMessagesResponse


# --- clients ----------------------------------------------------------------------------------


class CallSink:
    """`exchanges.port.ClientSink`: a client is told on its call."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call

    @property
    def on_writable(self) -> Callable[[], None]:
        return self._call.on_writable

    @on_writable.setter
    def on_writable(self, told: Callable[[], None]) -> None:
        self._call.on_writable = told

    @property
    def writable(self) -> bool:
        return self._call.writable

    @property
    def peer(self) -> str:
        return self._call.peer

    def deliver(self, parcel: Parcel) -> None:
        layout = parcel.layout
        if layout.form is None:
            layout.form = _form_of(layout)
        event = _Event()
        event.CopyFrom(layout.form)
        for ids in parcel.recipients:
            event.messages.recipients.add(ids=ids)
        self._call.send(event, [batch.data for batch in layout.batches])

    def tell_missed(self, gaps: Gaps) -> None:
        event = _Event()
        for id, count in gaps.messages.items():
            event.missed.gaps.add(id=id, messages=count)
        self._call.send(event)

    def confirm(self, ids: Sequence[int]) -> None:
        self._call.send(_Event(subscribed=_Event.Subscribed(ids=ids)))

    def refuse(self, id: int, error: HadronError) -> None:
        refused = _Event.Refused(id=id, error=error_to_message(error))
        self._call.send(_Event(refused=refused))

    def fail(self, error: HadronError) -> None:
        self._call.fail(error)


def _form_of(layout: Layout) -> exchanges_pb2.AttendEvent:
    """What all clients with a layout are told: to copy the columns takes a fiftieth of filling
    them."""
    form = _Event()
    said = form.messages
    said.at.extend(layout.at)
    said.firsts.extend(layout.firsts)
    said.lasts.extend(layout.lasts)
    said.to.extend(layout.to)
    for batch in layout.batches:
        of_batch = said.batches.add(length=len(batch.data))
        if batch.stream:
            of_batch.template = batch.template
            of_batch.stream = batch.stream
            of_batch.partition = batch.partition
    return form


def _attend(
    leading: Leading,
    call: ClientCall,
    request: exchanges_pb2.AttendRequest,
    _attachment: memoryview,
) -> None:
    if request.WhichOneof("kind") != "open":
        raise RequestError("attending an exchange begins with `open`")
    opening = request.open
    driver = leading.part(Exchanges).driver(
        _exchange(
            leading,
            opening.namespace,
            opening.exchange,
            opening.exchange_id,
            opening.metadata_index,
        )
    )
    session = driver.attend(CallSink(call))

    def on_message(message: exchanges_pb2.AttendRequest, _attachment: memoryview) -> None:
        kind = message.WhichOneof("kind")
        if kind == "subscribe":
            check_count("subscriptions", len(message.subscribe.subscriptions))
            driver.subscribe(
                session,
                [
                    (each.id, list(each.patterns), each.group)
                    for each in message.subscribe.subscriptions
                ],
            )
        elif kind == "unsubscribe":
            check_count("ended subscriptions", len(message.unsubscribe.ids))
            driver.unsubscribe(session, message.unsubscribe.ids)
        elif kind == "dropped":
            check_count("gaps", len(message.dropped.gaps))
            for gap in message.dropped.gaps:
                driver.machine.told_dropped(session, gap.id, gap.messages)
        else:
            raise RequestError("an exchange is attended once on a call")
        call.consumed(message.ByteSize())

    def on_end(_error: HadronError | None) -> None:
        driver.leave(session)
        call.end()

    call.on_message = on_message
    call.on_end = on_end
    call.send(_Event(opened=_Event.Opened()))


# --- publishing -------------------------------------------------------------------------------


def _publish(
    leading: Leading,
    call: _Publish,
    request: exchanges_pb2.PublishMessagesRequest,
    attachment: memoryview,
) -> None:
    item = _exchange(
        leading, request.namespace, request.exchange, request.exchange_id, request.metadata_index
    )
    driver = leading.part(Exchanges).driver(item)
    if len(attachment) > MAX_PUBLISHED_BYTES:
        raise RecordTooLargeError(
            f"{len(attachment)} bytes of messages are over the limit of {MAX_PUBLISHED_BYTES}",
            "publish fewer or smaller messages at a time",
        )
    to_stream = driver.spec.to_stream
    if request.wait_logged and not to_stream:
        raise RequestError(
            f"exchange {item.name!r} logs nothing to wait for",
            "declare it with a to_stream, or do not ask for a receipt",
        )
    batches: list[Published] = []
    commands: list[tuple[AppendBatch, memoryview]] = []
    messages = 0
    stream = leading.catalog.stream(item.namespace, to_stream)[0] if to_stream else None
    for data in split_batches(attachment):
        # All are looked at before any is published.
        batches.append(published_of(data))
        messages += batches[-1].topics[-1][2] + 1
        if len(batches) > _MAX_BATCHES or messages > _MAX_MESSAGES:
            raise RequestError(
                f"more than {_MAX_BATCHES} batches, or {_MAX_MESSAGES} messages, in one call",
                "publish fewer at a time",
            )
        if stream is not None:
            commands.append((append_of(stream, data), data))
    deliveries, dropped = driver.publish(batches)
    answer = _Response(deliveries=deliveries, dropped=dropped)
    logging = _Logging(leading, call if request.wait_logged else None, driver, answer, stream)
    for command, data in commands:
        logging.log(command, data)
    if not request.wait_logged:
        call.send(answer, end=True)


def published_of(data: memoryview) -> Published:
    """A batch that is to be published. Raises what makes it none."""
    head = judge_batch(data)
    wrong = check_topics(head)
    if wrong is not None:
        check_topic(wrong)
    return Published(data, topics_of(head))


class _Logging:
    """What one call has published, on its way into the exchange's stream."""

    def __init__(
        self,
        leading: Leading,
        call: _Publish | None,
        driver: ExchangeDriver,
        answer: _Response,
        stream: SchemaObject | None,
    ) -> None:
        """`call`: answered once all is logged, if it is given."""
        self._controller = leading.controller
        self._call = call
        self._driver = driver
        self._answer = answer
        self._waiting = 0
        if stream is not None:
            answer.stream, answer.partition = stream.name, leading.replica_set

    def log(self, command: AppendBatch, data: memoryview) -> None:
        # Their order is that of the log, so answers come in it too.
        logged = self._answer.logged.add(count=command.count) if self._call else None
        self._waiting += 1

        def done(appended: Appended, error: HadronError | None) -> None:
            self._waiting -= 1
            if error is not None:
                self._failed(command.count, error)
                return
            if logged is not None:
                logged.base_offset, logged.append_ms = appended.base_offset, appended.append_ms
            if self._call is not None and not self._waiting:
                self._call.send(self._answer, end=True)

        try:
            self._controller.submit(command, data, done=done)
        except HadronError as error:
            self._waiting -= 1
            self._failed(command.count, error)

    def _failed(self, count: int, error: HadronError) -> None:
        self._driver.not_logged += count
        if self._call is not None:
            # Published it is: who does so again, as a client does whose leader is another one
            # now, publishes it twice.
            self._call.fail(
                OutcomeUnknownError(
                    f"published, to {self._answer.deliveries} subscriptions, and not known to be "
                    f"logged in {self._answer.stream}: {error.message}",
                    error.hint,
                )
            )
            self._call = None


# --- looking ----------------------------------------------------------------------------------


def _describe(
    leading: Leading,
    call: Call[exchanges_pb2.DescribeExchangeRequest, exchanges_pb2.DescribeExchangeResponse],
    request: exchanges_pb2.DescribeExchangeRequest,
    _attachment: memoryview,
) -> None:
    item = _exchange(leading, request.namespace, request.exchange, 0, 0)
    driver = leading.part(Exchanges).driver(item)
    call.send(describe(driver, leading.replica_set, trio.current_time()), end=True)


def describe(
    driver: ExchangeDriver, replica_set: str, now: float
) -> exchanges_pb2.DescribeExchangeResponse:
    machine = driver.machine
    answer = exchanges_pb2.DescribeExchangeResponse(
        published=machine.published,
        deliveries=machine.deliveries,
        dropped=machine.dropped,
        cut_off=machine.cut_off,
        published_per_s=driver.published.per_s(now),
        deliveries_per_s=driver.delivered.per_s(now),
        dropped_per_s=driver.dropped.per_s(now),
        subscriptions=sum(len(each.subscriptions) for each in machine.sessions),
        clients=len(machine.sessions),
        without_topic=machine.without_topic,
        not_logged=driver.not_logged,
        replica_set=replica_set,
        trouble=driver.trouble,
    )
    room = _LISTED_BYTES
    for each in heapq.nlargest(_MAX_LISTED, machine.subscriptions, key=_dropped):
        room -= sum(map(len, each.patterns))
        if room < 0:
            break
        answer.listed.add(
            patterns=each.patterns,
            group=each.group,
            peer=driver.sinks[each.session].peer,
            dropped=each.dropped,
            dropped_by_client=each.dropped_by_client,
            waiting_bytes=each.session.waiting_bytes,
        )
    return answer


def _dropped(subscription: Subscription) -> int:
    return subscription.dropped + subscription.dropped_by_client


def _exchange(
    leading: Leading, namespace: str, name: str, exchange_id: int, metadata_index: int
) -> SchemaObject:
    return leading.find("Exchange", namespace, name, exchange_id, metadata_index)


METHODS: Final = (
    led("Attend", exchanges_pb2.AttendRequest, exchanges_pb2.AttendEvent, _attend),
    led(
        "PublishMessages",
        exchanges_pb2.PublishMessagesRequest,
        exchanges_pb2.PublishMessagesResponse,
        _publish,
    ),
    led(
        "DescribeExchange",
        exchanges_pb2.DescribeExchangeRequest,
        exchanges_pb2.DescribeExchangeResponse,
        _describe,
    ),
)
