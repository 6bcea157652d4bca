"""Consuming with a group by long poll; groups, for people."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec
import trio
from starlette.responses import Response

from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.subscription import Subscription
from hadron.doors.http.call import Call, DisconnectedError, Query, json_response
from hadron.doors.http.consumers import OF_GROUPS, Consumer, Joined, Name
from hadron.doors.http.door import Door
from hadron.doors.http.messages import plain
from hadron.doors.http.problems import HttpError, response_of
from hadron.doors.http.records import RecordAnswer, answer_of
from hadron.doors.positions import parse_position
from hadron.model.errors import HadronError, OverloadedError, RequestError
from hadron.model.ids import check_name, is_valid_replica_set_name
from hadron.model.problems import shorten

_MAX_POLLED: Final = 10_000
_MAX_WAIT_S: Final = 60
_DEFAULT_IDLE_S: Final = 60
_MAX_IDLE_S: Final = 3_600
_MAX_IN_FLIGHT: Final = 10_000

_DELIVERY: Final = re.compile(r"([^:]+):\d{1,19}:\d{1,19}", re.ASCII)
"""Partition, offset, and which of this consumer's deliveries it is."""

_DELIVERY_SCHEMA: Final = {"pattern": "^[-_.a-zA-Z0-9/]+:[0-9]{1,19}:[0-9]{1,19}$"}
"""The same, for who reads of it."""

Deliveries = Annotated[
    list[Annotated[str, msgspec.Meta(extra_json_schema=_DELIVERY_SCHEMA)]],
    msgspec.Meta(min_length=1, max_length=_MAX_POLLED),
]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=24 * 3600)]


class Poll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        consumer: the name that it gives itself, as worker-1, the same in all its requests: what it
            is given is kept for that name until it is acknowledged, or idle_s is over.
        max_records: at most so many, once there is one.
        wait_s: how long to wait for the first.
        again: what this consumer was given and has not acknowledged comes again, at once and as it
            was: for whoever has lost an answer.
        idle_s: after so long without a request it leaves the group, by default 60. This and what
            follows hold from when it joins; what is given later must be the same.
        start: where a group begins that is new, by default earliest; one that exists goes on where
            it was.
        max_in_flight: records of each partition that it has at most, those too that it has not
            asked for yet, and which nobody else gets; by default, and with 0, as many as it asks
            for when it joins.
        order, ack_deadline_s, max_attempts, dead_letter, ephemeral: of a group that is new; who
            names them of another one must name what it has.
    """

    consumer: str
    max_records: Annotated[int, msgspec.Meta(ge=1, le=_MAX_POLLED)] = 100
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=_MAX_WAIT_S)] = 20.0
    again: bool = False
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=_MAX_IDLE_S)] | None = None
    start: str | None = None
    max_in_flight: Annotated[int, msgspec.Meta(ge=0, le=_MAX_IN_FLIGHT)] | None = None
    order: Literal["none", "strict", "key"] | None = None
    ack_deadline_s: Seconds | None = None
    max_attempts: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    dead_letter: str | None = None
    ephemeral: bool | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        consumer: under which name they were polled.
        deliveries: as records came with them.
    """

    consumer: str
    deliveries: Deliveries


class Nack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        consumer, deliveries: as of `Ack`.
        delay_s: until they are delivered again; without it, longer each time.
        reason: stands in the dead letter, when this was the last attempt.
    """

    consumer: str
    deliveries: Deliveries
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=49 * 86_400)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=1_000)] = ""


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        to: earliest, latest, an offset, -N, or a time.
        force: also while members are connected.
        create: make the group where it is not there.
    """

    to: str
    partitions: list[str] = []
    force: bool = False
    create: bool = False


class GroupQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        force: also while members are connected.
    """

    force: bool = False


class Polled(msgspec.Struct):
    """Records to be acknowledged, each by its `delivery`, as this consumer."""

    consumer: str
    records: list[RecordAnswer]


class Settled(msgspec.Struct):
    """So many were. To be read as well: `unknown`, what this consumer does not hold, or no longer;
    nothing was done about those. Where nothing was settled it is a problem, 409."""

    settled: int
    unknown: list[str]


class Where(msgspec.Struct):
    """Where a group was at a partition, and where it is now."""

    partition: str
    floor_before: int
    floor: int


class ResetAnswer(msgspec.Struct):
    """By partition."""

    partitions: list[Where]


class Deleted(msgspec.Struct):
    """At these partitions the group is forgotten."""

    partitions: list[str]


class Groups(msgspec.Struct):
    """Groups, each with its progress at each partition."""

    groups: list[dict[str, Any]]


class Described(msgspec.Struct):
    """A group with its members, at each partition."""

    partitions: list[dict[str, Any]]


async def poll(door: Door, call: Call, query: Query) -> Response | None:
    asked: Poll = await call.json(Poll)
    name = _name(call, query, asked.consumer)
    member = await _member(door, call.address, name, asked)
    with _asking(member):
        try:
            taken = await _poll(door, call, member, asked)
        except HadronError as error:
            if not isinstance(error, RequestError) or not _is_busy(error):
                # What ended its membership is told once: who polls again joins again.
                member.is_leaving.set()
            raise
    records = []
    for delivery_id, each in taken.items():
        answer = answer_of(each.record)
        answer.delivery, answer.attempt = delivery_id, each.attempt
        records.append(answer)
    response = json_response(Polled(name.consumer, records))
    try:
        call.hold_answer(len(response.body))
    except OverloadedError as error:
        raise OverloadedError(
            error.message, "poll with `again`: these records are kept for this consumer"
        ) from None
    return response


async def _member(door: Door, peer: str, name: Name, asked: Poll) -> Consumer:
    """The one that polls, joined when it is not there. Raises `RequestError` where it is, or its
    group, and is otherwise than is asked for now."""
    start_text = asked.start or "earliest"
    start = parse_position(start_text, door.now_ms())
    if isinstance(start, dict):
        raise RequestError(f"a group cannot start at {start_text!r}", "give an offset or a time")
    client = await door.clients.of(name.namespace)
    joining = Joined(
        asked.idle_s or _DEFAULT_IDLE_S, start_text, asked.max_in_flight or asked.max_records
    )
    kept = {each: getattr(asked, each) for each in OF_GROUPS}

    @asynccontextmanager
    async def join() -> AsyncIterator[Subscription]:
        # It outlives this request, and so must the client.
        with door.clients.using(name.namespace, peer=peer):
            async with client.subscribe(
                name.stream,
                group=name.group,
                start=start,
                max_in_flight=joining.max_in_flight,
                member=name.consumer,
                **kept,
            ) as subscription:
                yield subscription

    member = await door.consumers.open(name, joining, join)
    member.check(
        name,
        {
            "idle_s": asked.idle_s,
            "start": asked.start,
            "max_in_flight": asked.max_in_flight or None,
        },
        kept,
    )
    return member


def _is_busy(error: HadronError) -> bool:
    return getattr(error, "status", 0) == 409


async def _poll(door: Door, call: Call, member: Consumer, asked: Poll) -> dict[str, Delivery]:
    """Until there are records, time is up, or whoever asked is gone: what comes then stays."""
    held = member.held(asked.max_records) if asked.again else {}
    if held:
        return held
    taken: dict[str, Delivery] = {}
    is_gone = False
    failure: HadronError | None = None
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            nonlocal is_gone
            await call.wait_disconnected()
            is_gone = True
            nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        try:
            with door.draining.until():
                await member.poll(asked.max_records, asked.wait_s, taken)
        except HadronError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if is_gone:
        member.give_back_unseen(taken)
        raise DisconnectedError
    return taken


async def ack(door: Door, call: Call, query: Query) -> Response:
    asked: Ack = await call.json(Ack)
    _check_form(asked.deliveries)
    member = door.consumers.find(_name(call, query, asked.consumer))
    with _asking(member):
        unknown = await member.settle(asked.deliveries, lambda each: each.ack(), ends=True)
        await member.flush()
    return _settled(asked.deliveries, unknown)


async def nack(door: Door, call: Call, query: Query) -> Response:
    asked: Nack = await call.json(Nack)
    _check_form(asked.deliveries)
    member = door.consumers.find(_name(call, query, asked.consumer))
    with _asking(member):
        unknown = await member.settle(
            asked.deliveries, lambda each: each.nack(asked.delay_s, asked.reason), ends=True
        )
    return _settled(asked.deliveries, unknown)


async def extend(door: Door, call: Call, query: Query) -> Response:
    asked: Ack = await call.json(Ack)
    _check_form(asked.deliveries)
    member = door.consumers.find(_name(call, query, asked.consumer))
    with _asking(member):
        unknown = await member.settle(asked.deliveries, lambda each: each.extend(), ends=False)
    return _settled(asked.deliveries, unknown)


async def leave(door: Door, call: Call, query: Query) -> Response:
    name = _name(call, query, call.path["consumer"])
    door.consumers.find(name).is_leaving.set()
    return Response(status_code=204)


def _check_form(deliveries: list[str]) -> None:
    """Before anything is settled: what never was a delivery is a mistake of whoever asks."""
    for each in deliveries:
        match = _DELIVERY.fullmatch(each)
        if match is None or not is_valid_replica_set_name(match[1]):
            raise RequestError(
                f"{shorten(each)} is no delivery",
                "give each record's `delivery` back as it came with the poll, as local/p0:17:1",
            )


def _settled(asked: list[str], unknown: list[str]) -> Response:
    settled = len(set(asked)) - len(unknown)
    if settled:
        return json_response(Settled(settled, unknown))
    # Returned, not raised: it may be large, and is held like any other answer.
    return response_of(
        HttpError(
            409,
            "nothing was settled: this consumer does not hold these deliveries, or no longer",
            "they were settled before, are delivered again since their time was up, or were "
            "another consumer's: poll again",
            unknown_deliveries=unknown,
        )
    )


def _name(call: Call, query: Query, consumer: str) -> Name:
    return Name(
        query.namespace,
        call.path["stream"],
        check_name("group", call.path["group"]),
        check_name("consumer", consumer),
    )


@contextmanager
def _asking(member: Consumer) -> Iterator[None]:
    """It is not idle meanwhile."""
    member.requests += 1
    try:
        yield
    finally:
        member.requests -= 1
        member.seen_s = trio.current_time()


# --- for people ---------------------------------------------------------------------------------


async def listing(door: Door, call: Call, query: Query) -> Response:
    client = await door.clients.of(query.namespace)
    found = await client.groups(call.path["stream"])
    return json_response(Groups([plain(each) for each in found]))


async def describe(door: Door, call: Call, query: Query) -> Response:
    client = await door.clients.of(query.namespace)
    found = await client.describe_group(call.path["stream"], call.path["group"])
    return json_response(Described([plain(each) for each in found]))


async def reset(door: Door, call: Call, query: Query) -> Response:
    asked: Reset = await call.json(Reset)
    to = parse_position(asked.to, door.now_ms())
    if isinstance(to, dict):
        raise RequestError(f"a group cannot be reset to {asked.to!r}", "give an offset or a time")
    client = await door.clients.of(query.namespace)
    done = await client.reset_group(
        call.path["stream"],
        call.path["group"],
        to,
        partitions=asked.partitions,
        force=asked.force,
        create=asked.create,
    )
    return json_response(
        ResetAnswer([Where(each.partition, each.floor_before, each.floor) for each in done])
    )


async def delete(door: Door, call: Call, query: GroupQuery) -> Response:
    client = await door.clients.of(query.namespace)
    names = await client.delete_group(call.path["stream"], call.path["group"], force=query.force)
    return json_response(Deleted(names))
