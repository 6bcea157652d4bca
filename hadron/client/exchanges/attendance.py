"""All subscriptions of a client at one exchange, on one call to its leader.

The call is opened again when it ends, and all subscribe again: within a second of the leader's
return. What was published meanwhile is lost, and each is told that it may have missed something.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import anyio

from hadron.client.connecting.outages import Outage
from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.client.exchanges.inbox import Inbox
from hadron.client.exchanges.message import ArrivedBatch
from hadron.model.errors import HadronError, PeerError
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import error_from_message, exchanges_pb2, method

_ATTEND: Final = method("Attend")
_Request = exchanges_pb2.AttendRequest

_PER_MESSAGE: Final = 100
"""Subscriptions in one message: with the most and the longest patterns, it fits into a frame. The
leader takes 1,000."""


class Attendance:
    """`reconnecting_call.Owner`.

    Args:
        on_end: told when it is over, for want of subscriptions or for good.
    """

    def __init__(
        self, session: Session, item: SchemaObject, on_end: Callable[[Attendance], None]
    ) -> None:
        assert isinstance(item.spec, ExchangeSpec)
        self.item = item
        self.is_over = False
        self._session = session
        self._on_end = on_end
        self._inboxes: dict[int, Inbox] = {}
        self._ids = itertools.count(1)
        self._call: OpenedCall | None = None
        self._standing = ReconnectingCall(session, item.spec.replica_set, _ATTEND, self)
        self._scope: anyio.CancelScope | None = None
        self._outage = Outage(f"exchange {item.name!r}")

    def add(self, patterns: Sequence[str], group: str, max_bytes: int) -> Inbox:
        """A subscription; wait for its `confirmed`."""
        inbox = Inbox(next(self._ids), patterns, group, max_bytes, self._session, self._dropped)
        self._inboxes[inbox.id] = inbox
        if self._scope is None:
            self._scope = self._session.background.start(self._standing.run)
        elif self._call is not None:
            self._subscribe(self._call, [inbox])
        return inbox

    def remove(self, inbox: Inbox) -> None:
        inbox.close()
        self._give_up(inbox)
        if not self._inboxes and not self.is_over:
            self.is_over = True
            self._on_end(self)
            if self._scope is not None:
                self._scope.cancel()

    def _give_up(self, inbox: Inbox) -> None:
        """Nothing more is to come for it; what is here may still be handed out."""
        if self._inboxes.pop(inbox.id, None) is not None and self._call is not None:
            ended = _Request.Unsubscribe(ids=[inbox.id])
            self._call.send(_Request(unsubscribe=ended))

    def _subscribe(self, call: OpenedCall, inboxes: Sequence[Inbox]) -> None:
        for start in range(0, len(inboxes), _PER_MESSAGE):
            request = _Request()
            for each in inboxes[start : start + _PER_MESSAGE]:
                request.subscribe.subscriptions.add(
                    id=each.id, patterns=each.patterns, group=each.group
                )
            call.send(request)

    def _dropped(self, inbox: Inbox, count: int) -> None:
        if self._call is not None:
            request = _Request()
            request.dropped.gaps.add(id=inbox.id, messages=count)
            self._call.send(request)

    # --- reconnecting_call.Owner ----------------------------------------------------------------

    def opening(self) -> exchanges_pb2.AttendRequest:
        item = self.item
        return _Request(
            open=_Request.Open(
                namespace=item.namespace,
                exchange=item.name,
                exchange_id=item.id,
                metadata_index=item.metadata_index,
            )
        )

    def opened(self, call: OpenedCall) -> None:
        self._call = call
        self._subscribe(call, list(self._inboxes.values()))

    def received(self, message: exchanges_pb2.AttendEvent, attachment: memoryview) -> None:
        kind = message.WhichOneof("kind")
        if kind == "messages":
            self._messages(message.messages, attachment)
        elif kind == "subscribed":
            self._outage.over()
            for inbox in self._known(message.subscribed.ids):
                inbox.confirm()
        elif kind == "missed":
            for gap in message.missed.gaps:
                for inbox in self._known((gap.id,)):
                    inbox.lack(gap.messages)
        elif kind == "refused":
            error = error_from_message(message.refused.error)
            for inbox in self._known((message.refused.id,)):
                inbox.fail(error)
                # Else it is subscribed again with the others, also while its block is open.
                self._give_up(inbox)
        if self._call is not None:
            self._call.consumed(message.ByteSize() + len(attachment))

    def _known(self, ids: Sequence[int]) -> Iterator[Inbox]:
        """Those that have not ended here meanwhile."""
        for id in ids:
            inbox = self._inboxes.get(id)
            if inbox is not None:
                yield inbox

    def _messages(self, said: exchanges_pb2.AttendEvent.Messages, attachment: memoryview) -> None:
        batches = []
        start = 0
        for each in said.batches:
            batches.append(ArrivedBatch(each, attachment[start : start + each.length]))
            start += each.length
        if start != len(attachment):
            raise PeerError(f"{len(attachment)} bytes of batches are said to be {start}")
        inboxes = self._inboxes
        recipients = [each.ids for each in said.recipients]
        counts = _counts(said, recipients)
        for at, first, last, to in _runs(said):
            batch, count = batches[at], last - first + 1
            for id in recipients[to]:
                inbox = inboxes.get(id)
                if inbox is not None:
                    # What one has of a batch counts as if the batch had no others.
                    share = batch.message_bytes // counts.get((at, id), count)
                    inbox.push(batch, first, last, share)
                    if inbox.failure is not None:
                        self._give_up(inbox)

    def lost(self, error: HadronError | None) -> None:
        self._call = None
        if error is not None:
            self._outage.trouble(error)
        for inbox in self._inboxes.values():
            inbox.interrupt()

    def failed(self, error: HadronError) -> None:
        self.lost(None)
        inboxes, self._inboxes = list(self._inboxes.values()), {}
        self.is_over = True
        self._on_end(self)
        for inbox in inboxes:
            inbox.fail(error)


def _runs(said: exchanges_pb2.AttendEvent.Messages) -> Iterator[tuple[int, int, int, int]]:
    """(batch, first, last, recipients)."""
    return zip(said.at, said.firsts, said.lasts, said.to, strict=True)


def _counts(
    said: exchanges_pb2.AttendEvent.Messages, recipients: Sequence[Sequence[int]]
) -> Counter[tuple[int, int]]:
    """How many messages of a batch a subscription is given, by (batch, id): of those that come in
    several runs, as a bridge's batch of many types does; mostly there is none."""
    counts = Counter[tuple[int, int]]()
    if len(said.at) > len(said.batches):
        together = Counter[tuple[int, int]]()
        for at, first, last, to in _runs(said):
            together[at, to] += last - first + 1
        for (at, to), count in together.items():
            for id in recipients[to]:
                counts[at, id] += count
    return counts
