"""Serves `hadron.v1.Groups`: subscriptions, and what there is to know and to change of groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from hadron.delivery.groups import Groups
from hadron.delivery.joining import Joining, WantedOptions
from hadron.delivery.port import check_ranges
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.ids import check_name
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.ranges import melted
from hadron.model.schema import SchemaObject
from hadron.model.transactions import TransactionId
from hadron.server.groups.messages import (
    CallSink,
    Listed,
    MemberCall,
    add_live,
    describe,
    describe_options,
    ranges_of,
    said_of,
)
from hadron.server.statements import Reader
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.groups import attempts, views
from hadron.state.groups.attempts import Attempts
from hadron.state.groups.progress import AckRecords
from hadron.state.groups.views import GroupSummary
from hadron.wire.calls import Call
from hadron.wire.messages import ballot_from, check_number, groups_pb2, transactions_pb2

_MAX_ATTEMPTS: Final = 100
"""Ranges of records given back that a description lists."""

_MAX_PAGE: Final = 8_000
"""Groups in one answer: with the longest names that there are, it fits into a frame."""

_DEFAULT_THRESHOLD: Final = 3


_List: TypeAlias = Call[groups_pb2.ListGroupsRequest, groups_pb2.ListGroupsResponse]
_Describe: TypeAlias = Call[groups_pb2.DescribeGroupRequest, groups_pb2.DescribeGroupResponse]
_Reset: TypeAlias = Call[groups_pb2.ResetGroupRequest, groups_pb2.ResetGroupResponse]
_Delete: TypeAlias = Call[groups_pb2.DeleteGroupRequest, groups_pb2.DeleteGroupResponse]
_Named = (
    groups_pb2.SubscribeRequest.Open
    | groups_pb2.DescribeGroupRequest
    | groups_pb2.ResetGroupRequest
    | groups_pb2.DeleteGroupRequest
)
"""What names a partition of a stream."""


# --- subscriptions --------------------------------------------------------------------------


def _subscribe(
    leading: Leading,
    call: MemberCall,
    request: groups_pb2.SubscribeRequest,
    _attachment: memoryview,
) -> None:
    if request.WhichOneof("kind") != "open":
        raise RequestError("a subscription begins with `open`")
    opening = request.open
    check_name("consumer group", opening.group)
    item = _stream(leading, opening)
    call.on_message = _too_early
    call.spawn(_open, leading, call, item.id, _joining(opening))


async def _open(leading: Leading, call: MemberCall, stream_id: int, joining: Joining) -> None:
    driver, session = await leading.part(Groups).subscribe(CallSink(call), stream_id, joining)
    if call.peer_ended:
        call.end()
        leading.part(Groups).leave(session)
        return

    def on_message(message: groups_pb2.SubscribeRequest, _attachment: memoryview) -> None:
        driver.receive(session, said_of(message))
        call.consumed(message.ByteSize())

    def on_end(_error: HadronError | None) -> None:
        leading.part(Groups).leave(session)
        call.end()

    call.on_message = on_message
    call.on_end = on_end


# --- in transactions ------------------------------------------------------------------------


def _acknowledgement(
    leading: Leading,
    transaction: TransactionId,
    statement: transactions_pb2.Statement,
    _batch: memoryview,
) -> AckRecords:
    acknowledge = statement.acknowledge
    item = leading.partition_of(acknowledge.stream_id, acknowledge.metadata_index)
    held = ranges_of(acknowledge.ranges)
    check_ranges(held)
    if not held:
        raise RequestError("an acknowledgement names no records")
    group_id = leading.part(Groups).check_held(
        transaction, item.id, acknowledge.group, ballot_from(acknowledge.ballot), held
    )
    ranges = melted([(first, last) for _, first, last in held])
    return AckRecords(group_id, tuple(ranges))


# --- looking --------------------------------------------------------------------------------


def _list(
    leading: Leading, call: _List, request: groups_pb2.ListGroupsRequest, _attachment: memoryview
) -> None:
    call.spawn(_answer_list, leading, call, request)


async def _answer_list(
    leading: Leading, call: _List, request: groups_pb2.ListGroupsRequest
) -> None:
    await leading.controller.confirm_leadership()
    stream_id = (
        leading.catalog.stream(request.namespace or "default", request.stream)[0].id
        if request.stream
        else None
    )
    async with call.room(MAX_MESSAGE_BYTES):
        await _answer_page(leading, call, request, stream_id)


async def _answer_page(
    leading: Leading, call: _List, request: groups_pb2.ListGroupsRequest, stream_id: int | None
) -> None:
    limit = min(request.limit or _MAX_PAGE, _MAX_PAGE)
    after = check_number("stream id", request.after_stream_id), request.after_group
    # One more than are told, so as to know whether that is all.
    found = await _read(leading, stream_id, None, after=after, limit=limit + 1)
    listed: list[tuple[tuple[int, str], Listed]] = [
        ((summary.stream_id, summary.name), summary) for summary in found
    ]
    for driver in leading.part(Groups).ephemeral():
        key = driver.progress.stream_id, driver.progress.name
        if key > after and stream_id in (None, key[0]):
            listed.append((key, driver))
    listed.sort(key=lambda entry: entry[0])
    last = listed[:limit][-1][0] if listed else (0, "")
    page = [describe(leading, item) for _, item in listed[:limit]]
    call.send(
        groups_pb2.ListGroupsResponse(
            groups=[
                group
                for group in page
                if group is not None and request.namespace in ("", group.namespace)
            ],
            more=len(listed) > limit,
            last_stream_id=last[0],
            last_group=last[1],
        ),
        end=True,
    )


def _describe(
    leading: Leading,
    call: _Describe,
    request: groups_pb2.DescribeGroupRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_describe, leading, call, request)


async def _answer_describe(
    leading: Leading, call: _Describe, request: groups_pb2.DescribeGroupRequest
) -> None:
    await leading.controller.confirm_leadership()
    item, name = _stream(leading, request), request.group
    live = leading.part(Groups).live(item.id, name)
    if live is not None and live.is_ephemeral:
        options = live.progress.options
        answer = groups_pb2.DescribeGroupResponse(
            group=describe(leading, live),
            options=describe_options(leading, options, ephemeral=True),
        )
    else:
        answer = await _describe_durable(leading, item, name)
        live = leading.part(Groups).live(item.id, name)
    if live is not None:
        add_live(answer, live, leading.visible.bounds(item.id).next_offset)
    call.send(answer, end=True)


async def _describe_durable(
    leading: Leading, item: SchemaObject, name: str
) -> groups_pb2.DescribeGroupResponse:
    found = await _read(leading, item.id, name)
    if not found:
        raise NotFoundError(
            f"stream {item.name!r} has no group {name!r} on {leading.replica_set}",
            "`hadron group list` shows all groups",
        )
    summary = found[0]
    tried: list[Attempts] = await leading.controller.query(
        lambda db: attempts.from_offset(db, summary.group_id, summary.floor, _MAX_ATTEMPTS)
    )
    return groups_pb2.DescribeGroupResponse(
        group=describe(leading, summary),
        options=describe_options(leading, summary.options, ephemeral=False),
        created_ms=summary.created_ms,
        attempts=[
            groups_pb2.DescribeGroupResponse.Attempt(
                first_offset=first, last_offset=last, attempts=number
            )
            for first, last, number in tried
        ],
    )


# --- changing -------------------------------------------------------------------------------


def _reset(
    leading: Leading, call: _Reset, request: groups_pb2.ResetGroupRequest, _attachment: memoryview
) -> None:
    call.spawn(_answer_reset, leading, call, request)


async def _answer_reset(
    leading: Leading, call: _Reset, request: groups_pb2.ResetGroupRequest
) -> None:
    if not request.to:
        raise RequestError(
            f"group {request.group!r} is to be reset, but not where to",
            "to earliest, latest, an offset, or a time",
        )
    if request.create:
        check_name("consumer group", request.group)
    # Also that there is no such stream is for a leader to say (PROTOCOL A2).
    await leading.controller.confirm_leadership()
    item = _stream(leading, request)
    before, floor = await leading.part(Groups).reset(
        item.id, request.group, request.to, force=request.force, create=request.create
    )
    call.send(groups_pb2.ResetGroupResponse(floor_before=before, floor=floor), end=True)


def _delete(
    leading: Leading, call: _Delete, request: groups_pb2.DeleteGroupRequest, _attachment: memoryview
) -> None:
    call.spawn(_answer_delete, leading, call, request)


async def _answer_delete(
    leading: Leading, call: _Delete, request: groups_pb2.DeleteGroupRequest
) -> None:
    await leading.controller.confirm_leadership()
    item = _stream(leading, request)
    floor = await leading.part(Groups).delete(item.id, request.group, force=request.force)
    call.send(groups_pb2.DeleteGroupResponse(floor=floor), end=True)


def _too_early(_message: Any, _attachment: memoryview) -> None:
    raise RequestError("wait for `opened` before you acknowledge anything")


def _stream(leading: Leading, request: _Named) -> SchemaObject:
    """The stream that a request names, by id or by name (PROTOCOL D3)."""
    return leading.partition(
        request.namespace,
        request.stream,
        request.partition,
        request.stream_id,
        request.metadata_index,
    )


def _joining(opening: groups_pb2.SubscribeRequest.Open) -> Joining:
    options = opening.options

    def named(field: str) -> Any:
        return getattr(options, field) if options.HasField(field) else None

    return Joining(
        group=opening.group,
        start=opening.start,
        max_in_flight=opening.max_in_flight,
        options=WantedOptions(
            order=named("order"),
            ack_deadline_ms=named("ack_deadline_ms"),
            max_attempts=named("max_attempts"),
            dead_letter_stream=named("dead_letter_stream"),
            ephemeral=named("ephemeral"),
        ),
        member=opening.member,
        heartbeat_interval_ms=opening.heartbeat_interval_ms,
        heartbeat_threshold=opening.heartbeat_threshold or _DEFAULT_THRESHOLD,
        batch_size=opening.batch_size,
        batch_wait_ms=opening.batch_wait_ms,
        resume_offset=(
            check_number("offset", opening.resume_offset)
            if opening.HasField("resume_offset")
            else None
        ),
    )


async def _read(
    leading: Leading,
    stream_id: int | None,
    name: str | None,
    *,
    after: tuple[int, str] = (0, ""),
    limit: int = -1,
) -> list[GroupSummary]:
    """Call it once leadership is confirmed, which gives up after a while: with a majority away the
    query might wait for an entry that nobody else has."""
    found = await leading.controller.query(
        lambda db: views.summaries(db, stream_id, name, after=after, limit=limit)
    )
    return [await _count_rest(leading, summary) for summary in found]


async def _count_rest(leading: Leading, summary: GroupSummary) -> GroupSummary:
    """Count what is acknowledged in very many pieces a slice at a time: no read is long, and others
    come in between (PROTOCOL F2, F3). What is acknowledged meanwhile may be counted or not."""
    above, counted_to = summary.acknowledged_above, summary.counted_to
    while counted_to is not None:
        count = partial(views.count_above, group_id=summary.group_id, after=counted_to)
        more, counted_to = await leading.controller.query(count)
        above += more
    return replace(summary, acknowledged_above=above, counted_to=None)


METHODS: Final = (
    led("Subscribe", groups_pb2.SubscribeRequest, groups_pb2.SubscribeEvent, _subscribe),
    led("ListGroups", groups_pb2.ListGroupsRequest, groups_pb2.ListGroupsResponse, _list),
    led(
        "DescribeGroup",
        groups_pb2.DescribeGroupRequest,
        groups_pb2.DescribeGroupResponse,
        _describe,
    ),
    led("ResetGroup", groups_pb2.ResetGroupRequest, groups_pb2.ResetGroupResponse, _reset),
    led("DeleteGroup", groups_pb2.DeleteGroupRequest, groups_pb2.DeleteGroupResponse, _delete),
)

STATEMENTS: Final = {"acknowledge": Reader(_acknowledgement)}
