"""Groups in messages: what members say and are told, and what people are told about them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import trio

from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Assignment
from hadron.delivery.groups import Groups
from hadron.delivery.joining import ORDERS
from hadron.delivery.port import Ack, DeliveryRange, Extend, Flow, Heartbeat, Nack, Opened, Said
from hadron.delivery.sessions import MemberSession
from hadron.delivery.telling import held_back
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.ids import Ballot
from hadron.model.transactions import DELIVERIES, TransactionId
from hadron.serving.leading import Leading
from hadron.state.groups.progress import GroupOptions
from hadron.state.groups.views import GroupSummary
from hadron.wire.calls import Call
from hadron.wire.messages import ballot_from, ballot_to, groups_pb2

_MAX_MEMBERS: Final = 1_000
"""That a description lists: under a megabyte."""

Listed = GroupSummary | GroupDriver
"""A durable group by what the tables have of it; an ephemeral one."""

MemberCall: TypeAlias = Call[groups_pb2.SubscribeRequest, groups_pb2.SubscribeEvent]
_Event = groups_pb2.SubscribeEvent


# --- members ----------------------------------------------------------------------------------


def said_of(message: groups_pb2.SubscribeRequest) -> Said:
    """What a member says. Raises `RequestError` when that is to be one, once more or at all, and
    `FrameError` for numbers that no node makes."""
    kind = message.WhichOneof("kind")
    if kind == "ack":
        ack = message.ack
        late = ballot_from(ack.ballot) if ack.HasField("ballot") else None
        return Ack(ranges_of(ack.ranges), ack.confirmation, late)
    if kind == "nack":
        nack = message.nack
        delay_s = nack.delay_ms / 1_000 if nack.HasField("delay_ms") else None
        return Nack(ranges_of(nack.ranges), delay_s, nack.reason, nack.unseen)
    if kind == "extend":
        return Extend(ranges_of(message.extend.ranges))
    if kind == "heartbeat":
        return Heartbeat()
    if kind == "flow":
        return Flow(message.flow.max_in_flight)
    raise RequestError("a subscription was opened twice")


def ranges_of(ranges: Iterable[groups_pb2.Range]) -> list[DeliveryRange]:
    """Nothing is checked (`delivery.port.check_ranges`)."""
    return [DeliveryRange(each.delivery, each.first_offset, each.last_offset) for each in ranges]


def _ranges_to(ranges: Iterable[DeliveryRange]) -> list[groups_pb2.Range]:
    return [
        groups_pb2.Range(delivery=delivery, first_offset=first, last_offset=last)
        for delivery, first, last in ranges
    ]


class CallSink:
    """`delivery.port.MemberSink`: a member is told on its call.

    The message that says a delivery is filled anew for each: to make one takes six times as long, a
    quarter of what a delivery cost. `Call.send` is done with it at once.
    """

    def __init__(self, call: MemberCall) -> None:
        self._call = call
        self._event = _Event()
        self._delivery = self._event.delivery
        self._batch_at = -1

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
    def deaf_s(self) -> float:
        return self._call.origin.deaf_s

    @property
    def peer(self) -> str:
        return self._call.peer

    def open(self, opened: Opened) -> None:
        epoch, incarnation, delivery = opened.fence
        self._call.send(
            _Event(
                opened=_Event.Opened(
                    ballot=ballot_to(opened.ballot),
                    floor=opened.floor,
                    options=options_to(
                        opened.options, opened.dead_letter_stream, ephemeral=opened.is_ephemeral
                    ),
                    fence=groups_pb2.DeliveryToken(
                        ballot=ballot_to(Ballot(epoch, incarnation)), delivery=delivery
                    ),
                    skipped=opened.skipped,
                )
            )
        )

    def deliver(self, given: Assignment, batch: StampedBatch, *, attach: bool) -> None:
        delivery = self._delivery
        delivery.delivery = given.delivery
        delivery.first_offset = given.first
        delivery.last_offset = given.last
        delivery.attempt = given.attempt
        delivery.ends_batch = given.ends_batch
        if batch.base_offset != self._batch_at:
            # What is visible to a leadership at an offset stays the same.
            self._batch_at = batch.base_offset
            info = delivery.batch
            info.base_offset = batch.base_offset
            info.count = batch.count
            info.append_ms = batch.append_ms
            info.ballot.epoch = batch.epoch
            info.ballot.incarnation = batch.incarnation
        delivery.batch.length = len(batch.data) if attach else 0
        self._call.send(self._event, (batch.data,) if attach else ())

    def end_batch(self) -> None:
        self._call.send(_Event(batch_end=_Event.BatchEnd()))

    def beat(self) -> None:
        self._call.send(_Event(heartbeat=_Event.Heartbeat()))

    def confirm(self, confirmation: int, refused: Sequence[DeliveryRange], floor: int) -> None:
        acked = _Event.Acked(confirmation=confirmation, refused=_ranges_to(refused), floor=floor)
        self._call.send(_Event(acked=acked))

    def revoke(self, ranges: Sequence[DeliveryRange], reason: str) -> None:
        revoked = _Event.Revoked(ranges=_ranges_to(ranges), reason=reason)
        self._call.send(_Event(revoked=revoked))

    def tell_conflict(self, item: DeliveryRange, transaction: TransactionId) -> None:
        conflict = _Event.Conflict(ranges=_ranges_to((item,)), transaction=str(transaction))
        self._call.send(_Event(conflict=conflict))

    def fail(self, error: HadronError) -> None:
        self._call.fail(error)


# --- groups -----------------------------------------------------------------------------------


def options_to(
    options: GroupOptions, dead_letter_stream: str, *, ephemeral: bool
) -> groups_pb2.GroupOptions:
    """As members and people are told them; every field is set."""
    assert options.order in ORDERS.values()
    return groups_pb2.GroupOptions(
        order=options.order,  # type: ignore[arg-type]
        ack_deadline_ms=options.ack_deadline_ms,
        max_attempts=options.max_attempts,
        dead_letter_stream=dead_letter_stream,
        ephemeral=ephemeral,
    )


def describe_options(
    leading: Leading, options: GroupOptions, *, ephemeral: bool
) -> groups_pb2.GroupOptions:
    return options_to(options, _letters(leading, options)[0], ephemeral=ephemeral)


def describe(leading: Leading, item: Listed) -> groups_pb2.ListGroupsResponse.Group | None:
    """None when its stream has just been deleted."""
    if isinstance(item, GroupDriver):
        return _ephemeral(leading, item)
    return _durable(leading, item)


def _durable(leading: Leading, summary: GroupSummary) -> groups_pb2.ListGroupsResponse.Group | None:
    try:
        item = leading.catalog.by_id(summary.stream_id)
        next_offset = leading.visible.bounds(item.id).next_offset
    except NotFoundError:
        return None
    live = leading.part(Groups).live(summary.stream_id, summary.name)
    letters, trouble = _letters(leading, summary.options)
    oldest_ms = summary.oldest_append_ms
    return groups_pb2.ListGroupsResponse.Group(
        namespace=item.namespace,
        stream=item.name,
        partition=leading.replica_set,
        group=summary.name,
        floor=summary.floor,
        next_offset=min(summary.next_offset, next_offset),
        acknowledged_above=summary.acknowledged_above,
        in_flight=live.machine.in_flight if live else 0,
        members=live.members if live else 0,
        skipped=summary.skipped,
        dead_lettered=summary.dead_lettered,
        oldest_append_ms=oldest_ms,
        oldest_age_ms=max(0, leading.controller.log_now_ms() - oldest_ms) if oldest_ms else 0,
        dead_letter_stream=letters,
        trouble=trouble,
        **_in_transactions(leading, summary.group_id),
    )


def _in_transactions(leading: Leading, group_id: int) -> dict[str, Any]:
    count, oldest = leading.locks.summary(DELIVERIES, group_id)
    if oldest is None:
        return {}
    return {
        "in_transactions": count,
        "oldest_transaction": str(oldest.transaction),
        "oldest_transaction_ms": max(0, leading.controller.log_now_ms() - oldest.since_ms),
    }


def _letters(leading: Leading, options: GroupOptions) -> tuple[str, str]:
    """Where the group's dead letters go, and what is wrong with that."""
    stream_id, catalog = options.dead_letter_stream_id, leading.catalog
    if not stream_id:
        return "", ""
    again = "records whose attempts are used up are delivered again, ever more rarely"
    other = "delete the group, and make it again with another one"
    try:
        name = catalog.by_id(stream_id).name
    except NotFoundError:
        gone = catalog.name_of(stream_id)
        return "", f"its dead letter stream {gone!r} was deleted: {again}; {other}"
    try:
        catalog.partition(stream_id, leading.replica_set)
    except NotFoundError:
        return name, (
            f"its dead letter stream {name!r} has no partition on {leading.replica_set} any more: "
            f"{again}; give it one there, or {other}"
        )
    return name, ""


def _ephemeral(leading: Leading, driver: GroupDriver) -> groups_pb2.ListGroupsResponse.Group | None:
    try:
        item = leading.catalog.by_id(driver.progress.stream_id)
        next_offset = leading.visible.bounds(item.id).next_offset
    except NotFoundError:
        return None
    letters, trouble = _letters(leading, driver.progress.options)
    return groups_pb2.ListGroupsResponse.Group(
        namespace=item.namespace,
        stream=item.name,
        partition=leading.replica_set,
        group=driver.progress.name,
        floor=driver.floor,
        next_offset=next_offset,
        acknowledged_above=driver.ledger.acknowledged_above,
        in_flight=driver.machine.in_flight,
        members=driver.members,
        ephemeral=True,
        dead_letter_stream=letters,
        trouble=trouble,
    )


def add_live(
    answer: groups_pb2.DescribeGroupResponse, driver: GroupDriver, next_offset: int
) -> None:
    """Add what only the leader's memory knows."""
    now = trio.current_time()
    machine = driver.machine
    answer.waiting_again = machine.waiting.records
    answer.delayed = machine.waiting.delayed(now)
    answer.behind_their_key = machine.keys.behind if machine.keys is not None else 0
    answer.held_back = held_back(machine, next_offset)
    shown = itertools.islice(driver.sessions.values(), _MAX_MEMBERS)
    answer.members.extend(_member(session, now) for session in shown)


def _member(session: MemberSession, now: float) -> groups_pb2.DescribeGroupResponse.Member:
    member = session.member
    oldest = min((each.since for each in member.deliveries.values()), default=now)
    return groups_pb2.DescribeGroupResponse.Member(
        name=session.label,
        peer=session.sink.peer,
        connected_ms=round((now - session.joined) * 1_000),
        silent_ms=round((now - session.last_heard) * 1_000),
        max_in_flight=member.max_in_flight,
        credit=max(0, member.credit),
        in_flight=member.max_in_flight - member.credit,
        oldest_delivery_ms=round((now - oldest) * 1_000),
        heartbeat_interval_ms=session.heartbeat_interval_ms,
        heartbeat_threshold=session.heartbeat_threshold,
        is_blocked=not session.sink.writable,
        is_stalled=member.is_stalled,
        delivered=member.delivered,
        acknowledged=member.acknowledged,
        gives_all_back=member.rests > 0,
        is_alone=member.is_alone,
    )
