"""What a client's exchanges share: what is known of them, and the calls that are open there.

Safety rule: what may have arrived is not published again (X5 in docs/EXCHANGES.md). Only what a
leader has refused, and what was never sent, is tried once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio

from hadron.client.connecting.session import Session, can_retry
from hadron.client.exchanges.attendance import Attendance
from hadron.client.exchanges.inbox import Inbox
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.results import BatchReceipt, Dispatched
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotReadyError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
)
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec
from hadron.wire.calling import Caller
from hadron.wire.messages import exchanges_pb2, method

T = TypeVar("T")

_PUBLISH: Final = method("PublishMessages")
_DESCRIBE: Final = method("DescribeExchange")

_LOST: Final = (ConnectionLostError, DeadlineExceededError, FrameError)
"""What ends a request that nobody has answered, also of a connection behind another node."""

_UNKNOWN_HINT: Final = "it is not published again by itself: that might be twice"


class ExchangeCalls:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self.session = session
        self._catalog = catalog
        self._items: dict[str, SchemaObject] = {}
        self._attendances: dict[int, Attendance] = {}

    async def find(self, name: str) -> SchemaObject:
        """Raises `NotFoundError`."""
        item = self._items.get(name)
        if item is None:
            self.session.check_open()
            item = self._items[name] = await self._catalog.one("Exchange", name)
        return item

    async def _with(self, name: str, use: Callable[[SchemaObject], Awaitable[T]]) -> T:
        """Use it as it was when it was looked up, and once more where it was made anew, or has
        moved, since then."""
        item = await self.find(name)
        try:
            return await use(item)
        except NotFoundError:
            self._items.pop(name, None)
            known, item = item, await self.find(name)
            if item == known:
                raise
            return await use(item)

    # --- publishing -----------------------------------------------------------------------------

    async def publish(self, name: str, batches: Sequence[bytes], *, logged: bool) -> Dispatched:
        """Raises `OutcomeUnknownError` when it may have been published."""
        return await self._with(name, partial(self._publish, batches=batches, logged=logged))

    async def _publish(
        self, item: SchemaObject, batches: Sequence[bytes], *, logged: bool
    ) -> Dispatched:
        request = exchanges_pb2.PublishMessagesRequest(
            namespace=item.namespace,
            exchange=item.name,
            exchange_id=item.id,
            metadata_index=item.metadata_index,
            wait_logged=logged,
        )
        session, home = self.session, _home(item)
        deadline = anyio.current_time() + session.request_timeout_s
        backoff: Backoff | None = None
        while True:
            session.check_loop()
            try:
                answer = await self._publish_once(home, request, batches, deadline)
            except PeerError as error:
                session.check_open()
                if not can_retry(error):
                    raise
                if not isinstance(error, (MetadataBehindError, NotReadyError, OverloadedError)):
                    session.suspect(home)
                backoff = backoff or Backoff(session.ports.random)
                delay_s = backoff.next_s()
                if anyio.current_time() + delay_s >= deadline:
                    raise
                await anyio.sleep(delay_s)
                continue
            return Dispatched(
                answer.deliveries,
                answer.dropped,
                [
                    BatchReceipt(
                        answer.stream,
                        answer.partition,
                        each.base_offset,
                        each.count,
                        each.append_ms,
                        duplicate=False,
                    )
                    for each in answer.logged
                ],
            )

    async def _publish_once(
        self,
        home: str,
        request: exchanges_pb2.PublishMessagesRequest,
        batches: Sequence[bytes],
        deadline: float,
    ) -> exchanges_pb2.PublishMessagesResponse:
        """What it raises is of what was not published; but for `OutcomeUnknownError`, by which a
        request ends whose connection does, for whatever reason."""
        connection: Caller | None = self.session.connection_now(home)
        if connection is None:
            with anyio.CancelScope(deadline=deadline):
                connection = await self.session.connect(home)
        if connection is None or connection.is_closed:
            raise PeerError(f"the leader of {home} cannot be reached")
        try:
            answer, _ = await connection.request(
                _PUBLISH, request, batches, timeout_s=deadline - anyio.current_time()
            )
        except HadronError as error:
            if not isinstance(error, _LOST) and not connection.is_closed:
                raise
            raise OutcomeUnknownError(
                f"messages for exchange {request.exchange!r} may have been published, or not: "
                f"{error.message}",
                _UNKNOWN_HINT,
            ) from error
        assert isinstance(answer, exchanges_pb2.PublishMessagesResponse)
        return answer

    # --- subscribing ----------------------------------------------------------------------------

    async def subscribe(
        self, name: str, patterns: Sequence[str], group: str, max_bytes: int
    ) -> tuple[Attendance, Inbox]:
        """Once the leader has it. Raises what it refuses it for, and `PeerError` when it does not
        answer in time."""
        return await self._with(
            name, partial(self._subscribe, patterns=patterns, group=group, max_bytes=max_bytes)
        )

    async def _subscribe(
        self, item: SchemaObject, patterns: Sequence[str], group: str, max_bytes: int
    ) -> tuple[Attendance, Inbox]:
        attendance = self._attendances.get(item.id)
        if attendance is None or attendance.is_over:
            attendance = Attendance(self.session, item, self._ended)
            self._attendances[item.id] = attendance
        inbox = attendance.add(patterns, group, max_bytes)
        session = self.session
        limit_s = session.request_timeout_s
        try:
            with anyio.move_on_after(limit_s):
                await session.wait(inbox.confirmed)
            if inbox.failure is not None:
                raise inbox.failure
            # That it was interrupted since then it is told like any other that is open.
            if not inbox.confirmed.is_set():
                raise DeadlineExceededError(
                    f"the leader of {_home(item)} has not answered within {limit_s:g} s: nobody is "
                    f"subscribed to exchange {item.name!r}",
                    "see `hadron status`",
                )
        except BaseException:
            attendance.remove(inbox)
            raise
        return attendance, inbox

    def _ended(self, attendance: Attendance) -> None:
        if self._attendances.get(attendance.item.id) is attendance:
            del self._attendances[attendance.item.id]
        # It may have ended because what was known of it is old.
        self._items.pop(attendance.item.name, None)

    # --- looking --------------------------------------------------------------------------------

    async def describe(
        self, name: str, within_s: float | None
    ) -> exchanges_pb2.DescribeExchangeResponse:
        item = await self._catalog.one("Exchange", name)
        request = exchanges_pb2.DescribeExchangeRequest(
            namespace=item.namespace, exchange=item.name
        )
        answer, _ = await self.session.request(_home(item), _DESCRIBE, request, timeout_s=within_s)
        assert isinstance(answer, exchanges_pb2.DescribeExchangeResponse)
        return answer


def _home(item: SchemaObject) -> str:
    assert isinstance(item.spec, ExchangeSpec)
    return item.spec.replica_set
