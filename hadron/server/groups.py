"""Serves `hadron.v1.Groups`: subscriptions and what there is to know of groups."""

from __future__ import annotations

from typing import Any

from hadron.delivery.driver import GroupDriver, MemberSession
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.ids import check_name
from hadron.model.ports import Database
from hadron.server.leading import Door, Leading
from hadron.state import groups as state
from hadron.state import retention
from hadron.wire.calls import Call, Handler
from hadron.wire.messages import groups_pb2, method


class GroupsService:
    def __init__(self, door: Door) -> None:
        self._door = door

    def handlers(self) -> dict[int, Handler]:
        return {
            method("Subscribe").number: self._subscribe,
            method("ListGroups").number: self._list,
        }

    def _subscribe(self, call: Call, request: Any, _attachment: memoryview) -> None:
        leading = self._door.enter()
        if request.WhichOneof("kind") != "open":
            raise RequestError("a subscription begins with `open`")
        opening = request.open
        check_name("consumer group", opening.group)
        item = leading.partition(opening.namespace, opening.stream, opening.partition)
        call.on_message = _too_early
        call.spawn(self._open, leading, call, item.id, opening)

    async def _open(self, leading: Leading, call: Call, stream_id: int, opening: Any) -> None:
        driver, session = await leading.groups.subscribe(
            call, stream_id, opening.group, opening.start, opening.max_in_flight
        )
        if call.peer_ended:
            call.end()
            leading.groups.leave(session)
            return

        def on_message(message: Any, _attachment: memoryview) -> None:
            _receive(call, driver, session, message)

        def on_end(_error: HadronError | None) -> None:
            leading.groups.leave(session)
            call.end()

        call.on_message = on_message
        call.on_end = on_end

    def _list(self, call: Call, request: Any, _attachment: memoryview) -> None:
        call.spawn(self._answer_list, self._door.enter(), call, request)

    async def _answer_list(self, leading: Leading, call: Call, request: Any) -> None:
        stream_id = (
            leading.catalog.stream(request.namespace or "default", request.stream)[0].id
            if request.stream
            else None
        )

        def read(db: Database) -> tuple[list[state.GroupSummary], dict[tuple[str, int], int]]:
            return state.summaries(db, stream_id), retention.skips(db)

        # First, because it gives up after a while: with a majority away the query might wait for
        # an entry that nobody else has.
        await leading.controller.confirm_leadership()
        found, skips = await leading.controller.query(read)
        call.send(
            groups_pb2.ListGroupsResponse(
                groups=[
                    described
                    for summary in found
                    if (
                        described := _describe(
                            leading, summary, request.namespace,
                            skips.get(("group", summary.group_id), 0),
                        )
                    )
                    is not None
                ]
            ),
            end=True,
        )


def _too_early(_message: Any, _attachment: memoryview) -> None:
    raise RequestError("wait for `opened` before you acknowledge anything")


def _receive(call: Call, driver: GroupDriver, session: MemberSession, message: Any) -> None:
    kind = message.WhichOneof("kind")
    if kind == "ack":
        driver.acknowledge(session, message.ack)
    elif kind == "nack":
        driver.refuse(session, message.nack)
    else:
        raise RequestError("a subscription was opened twice")
    call.consumed(message.ByteSize())


def _describe(
    leading: Leading, summary: state.GroupSummary, namespace: str, skipped: int
) -> groups_pb2.ListGroupsResponse.Group | None:
    try:
        item = leading.catalog.by_id(summary.stream_id)
    except NotFoundError:
        return None
    if namespace and item.namespace != namespace:
        return None
    live = leading.groups.live(summary.stream_id, summary.name)
    return groups_pb2.ListGroupsResponse.Group(
        namespace=item.namespace,
        stream=item.name,
        partition=leading.replica_set,
        group=summary.name,
        floor=summary.floor,
        next_offset=min(summary.next_offset, leading.visible.bounds(item.id).next_offset),
        acknowledged_above=summary.acknowledged_above,
        in_flight=live.machine.in_flight if live else 0,
        members=live.members if live else 0,
        skipped=skipped,
    )
