"""What there is to know and to change of consumer groups, over all partitions of a stream.

A group lives at each partition by itself: whoever asks for it asks every partition's leader, and
partitions that no member has joined yet do not know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from hadron.client.connecting.leaders import LOOK_HINT, ask_each, check_complete
from hadron.client.connecting.session import Session
from hadron.client.consuming.settings import start_text
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import names_of, patience_of, text_of
from hadron.model.errors import NotFoundError, RequestError
from hadron.wire.messages import Method, groups_pb2, method, offsets_of, streams_pb2

_LIST: Final = method("ListGroups")
_DESCRIBE: Final = method("DescribeGroup")
_RESET: Final = method("ResetGroup")
_DELETE: Final = method("DeleteGroup")
_OFFSETS: Final = method("Offsets")

_PAGE_GROUPS: Final = 1_000
"""Asked for at a time: some ten milliseconds of a leader's time."""

_TARGET: Final = re.compile("@?[0-9]{1,18}")

_CHANGE_HINT: Final = "repeat it for these: what is done already may be done again"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupReset:
    """Where a group was at a partition, and where it is now."""

    partition: str
    floor_before: int
    floor: int


class GroupCalls:
    """Of one client. `within_s` bounds how long each leader is asked; None is the client's own
    patience."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog

    async def listing(
        self, stream: str, within_s: float | None
    ) -> list[groups_pb2.ListGroupsResponse.Group]:
        within_s = patience_of(within_s, "within_s")
        names = self._session.topology.names()
        if stream:
            names = await self._catalog.partitions(stream)

        async def ask(name: str) -> list[groups_pb2.ListGroupsResponse.Group]:
            found: list[groups_pb2.ListGroupsResponse.Group] = []
            request = groups_pb2.ListGroupsRequest(
                namespace=self._session.endpoint.namespace, stream=stream, limit=_PAGE_GROUPS
            )
            more = True
            while more:
                answer, _ = await self._session.request(name, _LIST, request, timeout_s=within_s)
                found.extend(answer.groups)
                more = answer.more
                request.after_stream_id = answer.last_stream_id
                request.after_group = answer.last_group
            return found

        answers, failed = await ask_each(self._session, names, ask)
        groups = [group for name in names for group in answers.get(name, ())]
        check_complete(groups, failed, len(names), "could not be asked", LOOK_HINT)
        return groups if stream else await self._catalog.listed(groups)

    async def describe(
        self, stream: str, group: str, partitions: Sequence[str], within_s: float | None
    ) -> list[groups_pb2.DescribeGroupResponse]:
        def make(partition: str, answer: Any) -> groups_pb2.DescribeGroupResponse:
            del partition
            return answer  # type: ignore[no-any-return]

        return await self._ask(
            _DESCRIBE,
            stream,
            group,
            partitions,
            make,
            within_s,
            trouble="could not be asked",
            hint=LOOK_HINT,
        )

    async def reset(
        self,
        stream: str,
        group: str,
        to: str | int | datetime,
        partitions: Sequence[str],
        within_s: float | None,
        *,
        force: bool,
        create: bool,
    ) -> list[GroupReset]:
        def make(partition: str, answer: Any) -> GroupReset:
            return GroupReset(partition, answer.floor_before, answer.floor)

        before_end = -to if isinstance(to, int) and to < 0 else None
        text = _target_text(to) if before_end is None else ""
        return await self._ask(
            _RESET,
            stream,
            group,
            partitions,
            make,
            within_s,
            before_end=before_end,
            trouble="were not reset, as far as known",
            hint=_CHANGE_HINT,
            to=text,
            force=force,
            create=create,
        )

    async def delete(
        self,
        stream: str,
        group: str,
        partitions: Sequence[str],
        within_s: float | None,
        *,
        force: bool,
    ) -> list[str]:
        def make(partition: str, answer: Any) -> str:
            del answer
            return partition

        return await self._ask(
            _DELETE,
            stream,
            group,
            partitions,
            make,
            within_s,
            trouble="have not deleted it, as far as known",
            hint=_CHANGE_HINT,
            force=force,
        )

    async def _ask(
        self,
        what: Method,
        stream: str,
        group: str,
        partitions: Sequence[str],
        make: Callable[[str, Any], T],
        within_s: float | None,
        *,
        trouble: str,
        hint: str,
        before_end: int | None = None,
        **fields: Any,
    ) -> list[T]:
        """What each partition that knows the group has answered, in the order of the partitions.
        Raises `NotFoundError` when none does.

        Args:
            before_end: the request's `to` is so many records before the partition's end.
        """
        within_s = patience_of(within_s, "within_s")
        if not isinstance(group, str):
            text_of("group", group)
        if not group:
            raise RequestError("no group was named", "`hadron group list` shows all")
        known = await self._catalog.stream(stream)
        chosen = names_of("partitions", partitions)
        names = list(dict.fromkeys(chosen or await self._catalog.partitions(stream)))

        async def ask(partition: str) -> T:
            place: dict[str, Any] = {
                "namespace": self._session.endpoint.namespace,
                "stream": stream,
                "partition": partition,
                "stream_id": known.id,
                "metadata_index": known.metadata_index,
            }
            request = what.request(group=group, **place, **fields)
            if before_end is not None:
                answer, _ = await self._session.request(
                    partition, _OFFSETS, streams_pb2.OffsetsRequest(**place), timeout_s=within_s
                )
                there = offsets_of(partition, answer)
                request.to = str(max(there.first_offset, there.next_offset - before_end))
            answer, _ = await self._session.request(partition, what, request, timeout_s=within_s)
            return make(partition, answer)

        answers, failed = await ask_each(self._session, names, ask)
        found = [answers[name] for name in names if name in answers]
        strangers = [name for name, error in failed.items() if isinstance(error, NotFoundError)]
        if len(strangers) == len(names):
            raise failed[strangers[0]]
        for name in strangers:
            del failed[name]
        check_complete(found, failed, len(names), trouble, hint)
        return found


def _target_text(to: str | int | datetime) -> str:
    """The wire's form of where a group is to go on. Raises `RequestError`."""
    if isinstance(to, str) and _TARGET.fullmatch(to):
        return to
    if isinstance(to, datetime) or to in ("earliest", "latest") or isinstance(to, int):
        return start_text(to, "to")
    raise RequestError(
        f"{to!r} is not where a group can go on",
        'use "earliest", "latest", an offset, a datetime or "@" and milliseconds since the Unix '
        "epoch; -2 means two records before each partition's end",
    )
