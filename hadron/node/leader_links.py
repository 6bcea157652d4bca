"""Links between leaders of different replica sets: what they say to each other of transactions.

One standing call for a pair, opened by who first has something to say and used by both; it carries
all their transactions, and says in one frame what is there to say. It goes to whoever the directory
names as the leader, and to the next one once that changes.

Safety rule: a message is said to a leader, by a leader: both ends of a call are served by a
leadership, and end with it. What was not sent then is dropped, as if the wire had lost it, and
whoever drives is told (`Transactions.unanswered`): it says everything again until it is answered,
so nothing here has to be kept. What waits is bounded, too: beyond that it is dropped as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from hadron.metadata.adopter import SchemaAdopter
from hadron.metadata.pusher import ReplicaSets, Wires
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ConnectionLostError,
    HadronError,
    HandshakeError,
    NotReadyError,
    RequestError,
    UnreachableError,
)
from hadron.model.ports import Random
from hadron.node.other_sets import address_of
from hadron.server.led import STATEMENTS
from hadron.server.transaction_messages import Batches, message_from, message_to
from hadron.serving.entrance import led
from hadron.serving.leading import Leading, Part
from hadron.transactions.messages import Body, Message, Prepare, Prepared, PrepareRefused
from hadron.transactions.part import Transactions
from hadron.wire.calls import Call, Exchange
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import method, transactions_pb2

_log = logging.getLogger(__name__)

_COORDINATE: Final = method("Coordinate")

_FRAME_BYTES: Final = 1 << 20
"""Said in one frame, with the last message over it: a chunk of intents is at most as large."""

_FRAME_MESSAGES: Final = 1_000

MAX_WAITING: Final = 100_000
"""Messages that wait to be said to one set. A driver has at most 10,000 unfinished transactions
with it and says each once a second, so more are copies."""

MAX_WAITING_BYTES: Final = 320 << 20
"""Of statements in them: what a driver has that is not logged (256 MiB), and some room. More are of
transactions that were rolled back meanwhile, to a set that does not read."""

Incoming: TypeAlias = Call[transactions_pb2.CoordinateRequest, transactions_pb2.CoordinateEvent]
_Wired: TypeAlias = transactions_pb2.TransactionMessage
_Any: TypeAlias = Exchange[Any, Any]


class _Way(NamedTuple):
    """A call, as this end speaks on it."""

    say: Callable[[Sequence[_Wired], Sequence[Body]], None]
    close: Callable[[HadronError], None]


class LeaderLinks(Part):
    """One per leadership: `transactions.ports.Leaders`. `run` must be running."""

    def __init__(
        self,
        leading: Leading,
        cluster: str,
        sets: ReplicaSets | None,
        wires: Wires | None,
        random: Random,
    ) -> None:
        """
        Args:
            sets, wires: the other replica sets, and how they are reached; None when there are none.
        """
        self.replica_set = leading.replica_set
        self.cluster = cluster
        self.wires = wires
        self._leading = leading
        self._sets = sets
        self._random = random
        self._links: dict[str, _Link] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Hold the links until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for link in self._links.values():
                    nursery.start_soon(link.run)
                await self._follow_leaders()
            finally:
                self._nursery = None

    async def _follow_leaders(self) -> None:
        if self._sets is None:
            await trio.sleep_forever()
            return
        while True:
            changed = self._sets.changed
            for link in self._links.values():
                link.check_leader()
            await changed.wait()

    def stop(self, reason: HadronError) -> None:
        for link in self._links.values():
            link.stop(reason)

    # --- `Leaders` ------------------------------------------------------------------------------

    def knows(self, replica_set: str) -> bool:
        return self._sets is not None and replica_set in self._sets.names()

    def send(self, replica_set: str, message: Message) -> None:
        if isinstance(message, Prepared | PrepareRefused):
            claim = message.transaction, message.first
            self._leading.part(Transactions).claims.settle(claim)
        self._link(replica_set).say(message)

    def _link(self, replica_set: str) -> _Link:
        link = self._links.get(replica_set)
        if link is None:
            link = self._links[replica_set] = _Link(self, replica_set)
            if self._nursery is not None:
                self._nursery.start_soon(link.run)
        return link

    def address_of(self, replica_set: str) -> str:
        """Of its leader; "" when that is not known."""
        return address_of(self._sets, replica_set)

    # --- what others say ------------------------------------------------------------------------

    def accept(
        self, call: Incoming, request: transactions_pb2.CoordinateRequest, attachment: memoryview
    ) -> None:
        """Another set's leader has opened a call. Raises `HandshakeError` for one that means
        somebody else."""
        name = request.speaker
        if (request.cluster, request.replica_set) != (self.cluster, self.replica_set):
            raise HandshakeError(
                f"{name} of cluster {request.cluster!r} speaks to {request.replica_set}, this is "
                f"{self.replica_set} of cluster {self.cluster!r}",
                "two nodes were given the same address",
            )
        self.check_registered()
        if not self.knows(name):
            # It has introduced itself on this connection, so it is known soon.
            raise NotReadyError(f"{self.replica_set} does not know a replica set {name!r} yet")
        link = self._link(name)

        def say(messages: Sequence[_Wired], bodies: Sequence[Body]) -> None:
            call.send(transactions_pb2.CoordinateEvent(messages=messages), bodies)

        def on_message(message: transactions_pb2.CoordinateRequest, attachment: memoryview) -> None:
            self.hear(name, message.messages, attachment)
            # Its connection is not read while too much waits here.
            call.consumed(message.ByteSize() + len(attachment))

        call.on_message = on_message
        call.on_end = partial(link.ended, call)
        call.send(transactions_pb2.CoordinateEvent())
        link.use(call, _Way(say, call.fail))
        self.hear(name, request.messages, attachment)

    def hear(self, name: str, messages: Sequence[_Wired], attachment: memoryview) -> None:
        """Raises `FrameError`, and `RequestError` for what no leader says: that ends the call."""
        transactions = self._leading.part(Transactions)
        batches = Batches(attachment)
        for each in messages:
            if each.HasField("prepare") and each.transaction.replica_set != name:
                # Before anything is claimed for it.
                raise RequestError(f"{name} speaks of a transaction that is not its own")
            message = message_from(each, batches, partial(STATEMENTS.read, self._leading))
            if isinstance(message, PrepareRefused) and each.HasField("prepare"):
                count = len(each.prepare.statements)
                transactions.participant.refused(message, count)
            else:
                transactions.receive(name, message)
        batches.end()

    def check_registered(self) -> None:
        """Raises `NotReadyError` while another set may have the name of this one (PROTOCOL E1)."""
        self._leading.part(SchemaAdopter).check_registered()

    def new_backoff(self) -> Backoff:
        return Backoff(self._random)

    async def wait_for_room(self) -> None:
        """Until what waits to be logged here is little enough for more."""
        await self._leading.controller.wait_room()

    def unanswered(self, name: str, error: HadronError) -> None:
        self._leading.part(Transactions).unanswered(name, error)


class _Link:
    """What is said to one replica set's leader, and on which call."""

    def __init__(self, links: LeaderLinks, name: str) -> None:
        self.name = name
        self._links = links
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        """Of statements in them."""
        self._wanted = trio.Event()
        """Set while something waits to be said."""
        self._ways: dict[_Any, _Way] = {}
        """The open calls, the newest last."""
        self._changed = trio.Event()
        """A call came, went, or takes more."""
        self._dialed = ""
        """Where this link has found, or seeks, the leader itself."""
        self._hang_up = trio.CancelScope()
        self._backoff = links.new_backoff()

    def say(self, message: Message) -> None:
        self._waiting.append(message)
        self._waiting_bytes += _statement_bytes(message)
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            # Whoever misses it says it again.
            self._next()
        self._wanted.set()

    def _next(self) -> Message:
        message = self._waiting.popleft()
        self._waiting_bytes -= _statement_bytes(message)
        assert self._waiting or not self._waiting_bytes, self._waiting_bytes
        return message

    # --- calls ----------------------------------------------------------------------------------

    def use(self, call: _Any, way: _Way) -> None:
        """A call is open: from here on it is the one to speak on."""
        call.on_writable = self._wake
        self._ways[call] = way
        self._wake()

    def ended(self, call: _Any, error: HadronError | None) -> None:
        """A call is over: what was said on it may be lost."""
        if self._ways.pop(call, None) is None:
            return
        call.end()
        self._wake()
        lost = error or ConnectionLostError(f"the leader of {self.name} has ended the call")
        self._links.unanswered(self.name, lost)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def check_leader(self) -> None:
        """The directory has changed."""
        if self._dialed and self._links.address_of(self.name) != self._dialed:
            self._hang_up.cancel()

    def stop(self, reason: HadronError) -> None:
        ways, self._ways = list(self._ways.values()), {}
        for way in ways:
            way.close(reason)

    # --- speaking -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Speak while there is something to say."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._speak)
            while True:
                await self._wanted.wait()
                if self._ways:
                    await self._changed.wait()
                else:
                    await self._dial()

    async def _speak(self) -> None:
        """What is to be said in one turn of the loop leaves in one frame."""
        while True:
            await self._wanted.wait()
            changed = self._changed
            call = next(reversed(self._ways), None)
            if call is None or not call.writable:
                await changed.wait()
                continue
            self._say_some(self._ways[call])
            if not self._waiting:
                self._rest()

    def _rest(self) -> None:
        """Nothing waits any more."""
        assert not self._waiting
        # One that is not set stays: nobody would ever wake who waits for it. (What was to be said
        # has left on a call of the other end's, which broke, and then the dialing failed.)
        if self._wanted.is_set():
            self._wanted = trio.Event()

    def _say_some(self, way: _Way) -> None:
        messages: list[_Wired] = []
        bodies: list[Body] = []
        size = 0
        while self._waiting and size < _FRAME_BYTES and len(messages) < _FRAME_MESSAGES:
            for wired, body in message_to(self._next()):
                messages.append(wired)
                size += wired.ByteSize() + len(body)
                if len(body):
                    bodies.append(body)
        way.say(messages, bodies)

    async def _dial(self) -> None:
        """Speak on a call of this end's own, until that ends; then wait a little."""
        wires = self._links.wires
        with trio.CancelScope() as self._hang_up:
            try:
                self._links.check_registered()
                self._dialed = self._links.address_of(self.name)
                if wires is None or not self._dialed:
                    raise UnreachableError(f"nobody here knows who leads {self.name}")
                connection = await dial(
                    wires.network,
                    self._dialed,
                    cork=wires.cork,
                    keepalive_s=wires.keepalive_s,
                    silence_limit_s=wires.silence_limit_s,
                )
                await talk(connection, partial(self._converse, wires))
            except (HadronError, OSError) as error:
                self._failed(error)
        self._dialed = ""
        if not self._ways:
            await trio.sleep(self._backoff.next_s())

    def _failed(self, error: HadronError | OSError) -> None:
        """No call came about."""
        if isinstance(error, OSError):
            error = UnreachableError(
                f"the leader of {self.name} at {self._dialed} does not answer: "
                f"{error.strerror or error}"
            )
        _log.debug("nothing can be said to %s: %s", self.name, error)
        if not self._ways:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._rest()
        self._links.unanswered(self.name, error)

    async def _converse(self, wires: Wires, connection: Connection) -> None:
        """Speak on a call until it ends; raises why it was none."""
        links = self._links
        wires.introduce(connection)
        over = trio.Event()
        refusal: HadronError | None = None
        call: _Any | None = None

        def say(messages: Sequence[_Wired], bodies: Sequence[Body]) -> None:
            assert call is not None
            call.send(transactions_pb2.CoordinateRequest(messages=messages), bodies)

        def close(_: HadronError) -> None:
            assert call is not None
            call.cancel()

        def on_message(event: transactions_pb2.CoordinateEvent, attachment: memoryview) -> None:
            assert call is not None
            if call not in self._ways:
                self._backoff.reset()
                self.use(call, _Way(say, close))
            links.hear(self.name, event.messages, attachment)
            owed.append(event.ByteSize() + len(attachment))
            has_heard.set()

        def on_end(error: HadronError | None) -> None:
            # A connection that breaks while the call is made ends it before it has come back.
            nonlocal refusal
            if call is not None and call in self._ways:
                self.ended(call, error)
            else:
                refusal = error or ConnectionLostError(f"{connection.peer} has ended the call")
            over.set()

        owed: deque[int] = deque()
        has_heard = trio.Event()
        opening = transactions_pb2.CoordinateRequest(
            cluster=links.cluster, speaker=links.replica_set, replica_set=self.name
        )
        call = connection.call(
            _COORDINATE, opening, on_message=on_message, on_end=on_end, end=False
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until, over, nursery.cancel_scope)
                while True:
                    await has_heard.wait()
                    has_heard = trio.Event()
                    await links.wait_for_room()
                    while owed:
                        call.consumed(owed.popleft())
        finally:
            call.cancel()
            self.ended(call, None)
        if refusal is not None:
            raise refusal


async def _until(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _coordinate(
    leading: Leading,
    call: Incoming,
    request: transactions_pb2.CoordinateRequest,
    attachment: memoryview,
) -> None:
    leading.part(LeaderLinks).accept(call, request, attachment)


METHODS: Final = (
    led(
        "Coordinate",
        transactions_pb2.CoordinateRequest,
        transactions_pb2.CoordinateEvent,
        _coordinate,
    ),
)


def _statement_bytes(message: Message) -> int:
    if not isinstance(message, Prepare):
        return 0
    return len(message.body) + sum(map(len, message.statements))
