"""What there is to know and to change of consumer groups, over all partitions of a stream.

A group lives at each partition by itself: whoever asks for it asks every partition's leader, and
partitions that no member has joined yet do not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hadron.client.catalog import Catalog
from hadron.client.session import Session
from hadron.model.errors import NotFoundError, RequestError
from hadron.wire.messages import Method, groups_pb2, method

_LIST: Final = method("ListGroups")
_DESCRIBE: Final = method("DescribeGroup")
_RESET: Final = method("ResetGroup")
_DELETE: Final = method("DeleteGroup")

_PAGE_GROUPS: Final = 1_000
"""Asked for at a time: some ten milliseconds of a leader's time."""


@dataclass(frozen=True, slots=True)
class GroupReset:
    """Where a group was at a partition, and where it is now."""

    partition: str
    floor_before: int
    floor: int


class GroupCalls:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog

    async def listing(self, stream: str) -> list[groups_pb2.ListGroupsResponse.Group]:
        names = self._session.topology.names()
        if stream:
            names = await self._catalog.partitions(stream)
        found: list[groups_pb2.ListGroupsResponse.Group] = []
        for name in names:
            request = groups_pb2.ListGroupsRequest(
                namespace=self._session.endpoint.namespace, stream=stream, limit=_PAGE_GROUPS
            )
            more = True
            while more:
                answer, _ = await self._session.request(name, _LIST, request)
                found.extend(answer.groups)
                more = answer.more
                request.after_stream_id = answer.last_stream_id
                request.after_group = answer.last_group
        return found

    async def describe(
        self, stream: str, group: str, partitions: Sequence[str]
    ) -> list[groups_pb2.DescribeGroupResponse]:
        asked = await self._ask(_DESCRIBE, stream, group, partitions, {})
        return [answer for _, answer in asked]

    async def reset(
        self, stream: str, group: str, to: str | int, partitions: Sequence[str], *, force: bool
    ) -> list[GroupReset]:
        fields = {"to": str(to), "force": force}
        asked = await self._ask(_RESET, stream, group, partitions, fields)
        return [
            GroupReset(partition, answer.floor_before, answer.floor) for partition, answer in asked
        ]

    async def delete(
        self, stream: str, group: str, partitions: Sequence[str], *, force: bool
    ) -> list[str]:
        asked = await self._ask(_DELETE, stream, group, partitions, {"force": force})
        return [partition for partition, _ in asked]

    async def _ask(
        self, what: Method, stream: str, group: str, partitions: Sequence[str],
        fields: dict[str, Any],
    ) -> list[tuple[str, Any]]:
        """Ask each partition that knows the group. Raises `NotFoundError` when none does."""
        if not group:
            raise RequestError("no group was named", "`hadron group list` shows all")
        known = await self._catalog.stream(stream)
        answers: list[tuple[str, Any]] = []
        missing: NotFoundError | None = None
        for partition in partitions or await self._catalog.partitions(stream):
            request = what.request(
                namespace=self._session.endpoint.namespace, stream=stream, partition=partition,
                stream_id=known.id, metadata_index=known.metadata_index, group=group, **fields,
            )
            try:
                answer, _ = await self._session.request(partition, what, request)
            except NotFoundError as error:
                missing = error
            else:
                answers.append((partition, answer))
        if not answers and missing is not None:
            raise missing
        return answers
