"""A client's connections: one per node, to the leader of each replica set, made when needed.

Owns topology, dialing and retries, so that the features above only say "to the leader of this
replica set". Everything is confined to one event loop; nothing here locks.

Ordering rule: whoever saw a leader fail says so with `suspect`; the next connect then asks the
cluster who leads before it dials, and until then `connection_now` gives nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, Final

import anyio
import anyio.abc

from hadron.client.connecting import forks, probes
from hadron.client.connecting.background import Background, SingleFlight
from hadron.client.connecting.links import START_HINT, Link
from hadron.client.connecting.outages import TELL_AFTER_S, Lookout
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.probes import Probes
from hadron.client.connecting.topology import OneCluster, Topology, owner_not_found
from hadron.client.connecting.tunnels import Tunnels
from hadron.client.connecting.url import Endpoint
from hadron.client.terms.arguments import seconds_of
from hadron.client.terms.opening import NOT_OPEN
from hadron.client.terms.pickling import Unpicklable
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    FencedError,
    FrameError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OtherClusterError,
    OverloadedError,
    PeerError,
    RequestError,
    StrangerError,
)
from hadron.wire.calling import Caller
from hadron.wire.connection import Connection
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method

_log = logging.getLogger(__name__)

_DIRECT_S: Final = 1.0
"""So long a leader is dialed before a way through another node is tried as well: packets that are
dropped would take the whole of `DIAL_TIMEOUT_S`."""

_DIRECT_AGAIN_S: Final = 0.2
"""The same where such a way has been in use; enough to find out who leads."""

ASKED_AT_ONCE: Final = 16
"""Nodes asked for the topology in one go, at most: enough for any one replica set. Of those that
are connected up to half as many, as they may be silent; of the others the next ones each time, as
a region of them may be down."""

_STRANGER_HINT: Final = "that is probably not a Hadron node: check the address and its port"
_LEADER_HINT: Final = "bring it back, or see `hadron status` for who answers, and for the way out"
"""Who else of its set is there has not been asked."""


def can_retry(error: HadronError) -> bool:
    """Whether the cluster may answer better later, or through another node."""
    return error.retryable or isinstance(error, FencedError)


def _hint_for(troubles: Iterable[HadronError]) -> str:
    """The way out when nobody answered; who hangs up on a first request speaks something else."""
    strangers = any(isinstance(each, (ConnectionLostError, FrameError)) for each in troubles)
    return _STRANGER_HINT if strangers else START_HINT


class Session(Unpicklable):
    """All links of a client, and requests that are retried until they time out."""

    def __init__(
        self,
        endpoint: Endpoint,
        ports: ClientPorts,
        background: Background,
        *,
        request_timeout_s: float,
    ) -> None:
        self.endpoint = endpoint
        self.ports = ports
        self.background = background
        self.request_timeout_s = seconds_of("request_timeout_s", request_timeout_s, 0.001)
        self.topology = Topology()
        self.closed: HadronError | None = None
        self.on_close: dict[Callable[[], None], None] = {}
        """Called when the session closes: what is pending elsewhere fails then."""
        self._closing = ClosedError(
            "the client is closed", "use it inside its `async with hadron.connect(...)` block"
        )
        self._forked = False
        self._links: dict[str, Link] = {}
        self._leaders: dict[str, Link] = {}
        self._suspects: set[str] = set()
        self._refreshing = SingleFlight(background, self._refresh, self._closing)
        self.lookout = Lookout(self.refresh, self._ask_another)
        self.tunnels = Tunnels(self)
        self.probes = Probes(background)
        self._asked = 0
        self._refreshed = 0
        """Where the addresses begin that are asked next, if those are too many."""
        self._started = False
        self._thread: int | None = None
        """Whose event loop it lives in."""
        self._recognize = OneCluster(endpoint.cluster).recognize

    # --- life -----------------------------------------------------------------------------------

    async def start(self, timeout_s: float) -> None:
        """Learn the topology. Raises `PeerError` naming the addresses that did not answer."""
        self._started = True
        self._thread = get_ident()
        forks.watch(self)
        backoff = Backoff(self.ports.random)
        trouble, hint = "no answer", START_HINT
        with anyio.move_on_after(timeout_s):
            while True:
                try:
                    await self.refresh()
                    self.background.start(self.lookout.run)
                    return
                except (StrangerError, OtherClusterError):
                    # It will not become another one by waiting.
                    raise
                except PeerError as error:
                    trouble, hint = error.message, error.hint
                await anyio.sleep(backoff.next_s())
        raise PeerError(
            f"no node answered at {', '.join(self.endpoint.addresses)} within {timeout_s:g} s: "
            f"{trouble}",
            hint,
        )

    def close(self, reason: HadronError | None = None) -> None:
        """Close every connection; what waits for an answer fails with `reason`."""
        if self.closed is not None:
            return
        self.closed = reason or self._closing
        for callback in list(self.on_close):
            callback()
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close(
                    ConnectionLostError(self.closed.message, self.closed.hint, retryable=False)
                )

    def __str__(self) -> str:
        return f"{self.where}, {self.state}"

    @property
    def where(self) -> str:
        """The URL, as it may be shown."""
        return f"hadron://{','.join(self.endpoint.addresses)}/{self.endpoint.namespace}"

    @property
    def state(self) -> str:
        """For who prints it."""
        return "closed" if self.closed is not None else "open" if self._started else NOT_OPEN

    def check_open(self) -> None:
        """Raises what closed the client, if anything did; and before it is opened."""
        if self.closed is not None:
            raise type(self.closed)(
                self.closed.message, self.closed.hint, retryable=self.closed.retryable
            )
        if not self._started:
            raise ClosedError(
                "the client is not open yet", "write `async with hadron.connect(...) as client`"
            )

    def check_loop(self) -> None:
        """The same, of who is about to wait here. Raises `RequestError` in another loop."""
        self.check_open()
        if self._thread not in (None, get_ident()):
            # Its events and sockets are of the other loop: this one would never hear of them.
            raise RequestError(
                "this client belongs to the event loop of another thread",
                "use hadron.connect_sync(), whose client any thread may use, or connect here",
            )

    def check_end(self) -> None:
        """What is iterated ends when the user closes the client; anything else is raised."""
        if self.closed is not self._closing:
            self.check_open()

    async def wait(self, event: anyio.Event) -> None:
        """Until `event`, which a task of the client sets, is set. Raises what closed the client, if
        that comes first: such a task ends then without a word, or was never begun (CLIENTS K15)."""
        if not event.is_set():
            self.check_open()
        with anyio.CancelScope() as scope:
            self.on_close[scope.cancel] = None
            try:
                await event.wait()
            finally:
                self.on_close.pop(scope.cancel, None)
        if not event.is_set():
            self.check_open()

    def check_process(self) -> None:
        """Raises `ForkedError` in a child process."""
        if self._forked:
            raise forks.error("client")

    def forked(self) -> None:
        """In a child process: nothing goes out there, over connections of the parent's."""
        self._forked = True
        self.closed = forks.error("client")
        self._links.clear()
        self._leaders.clear()

    # --- leaders --------------------------------------------------------------------------------

    def connection_now(self, replica_set: str) -> Caller | None:
        """The leader's connection if it is open and nobody suspects it; never waits."""
        link = self._leaders.get(replica_set)
        if link is None or replica_set in self._suspects:
            return None
        connection = link.connection
        if connection is not None and not connection.is_closed:
            return connection
        return self.tunnels.now(replica_set)

    async def connect(self, replica_set: str) -> Caller:
        """The leader's connection, after one try to find and to dial it, or a way there through
        another node when it cannot be dialed, or not soon.

        Raises `PeerError` when that fails, `NotFoundError` for an unknown replica set.
        """
        connection = self.connection_now(replica_set)
        if connection is not None:
            return connection
        found: list[Caller] = []
        troubles: list[HadronError] = []
        failed = anyio.Event()

        async def dial(tasks: anyio.abc.TaskGroup) -> None:
            try:
                found.append(await self.dial_leader(replica_set))
                tasks.cancel_scope.cancel()
            except HadronError as error:
                troubles.append(error)
                failed.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dial, tasks)
            patience_s = _DIRECT_AGAIN_S if self.tunnels.has(replica_set) else _DIRECT_S
            with anyio.move_on_after(patience_s):
                await failed.wait()
            if not troubles or isinstance(troubles[0], PeerError):
                tunnel = await self.tunnels.open(replica_set)
                if tunnel is not None:
                    self._suspects.discard(replica_set)
                    found.append(tunnel)
                    tasks.cancel_scope.cancel()
        if not found:
            raise troubles[0]
        return found[0]

    async def dial_leader(self, replica_set: str) -> Connection:
        """The leader's connection, after one try to find and to dial it.

        Raises `PeerError` when that fails, `NotFoundError` for an unknown replica set.
        """
        self.check_loop()
        link = self._leaders.get(replica_set)
        if link is None or replica_set in self._suspects:
            link = await self._find(replica_set)
            fresh = True
        else:
            fresh = False
        try:
            return await link.open()
        except PeerError as error:
            self.suspect(replica_set)
            self.topology.doubt(replica_set)
            if fresh:
                raise self._unreachable(replica_set, link.address, error) from error
            raise

    def _unreachable(self, replica_set: str, address: str, error: PeerError) -> PeerError:
        """`error` of dialing a leader that others have just named, in words that say so."""
        nodes = self.topology.nodes(replica_set)
        leader = next((node.name for node in nodes if node.address == address), "")
        if not leader or len(nodes) < 2:
            return error
        reason = error.message.removeprefix(f"cannot connect to {address}: ")
        return PeerError(
            f"the leader {leader} of {replica_set} at {address} cannot be reached: "
            f"{reason.removeprefix(f'{address} ')}",
            _LEADER_HINT,
        )

    async def _find(self, replica_set: str) -> Link:
        if replica_set in self._suspects or self.topology.leader(replica_set) is None:
            await self.refresh()
        address = self.topology.leader(replica_set)
        if address is None:
            if replica_set == self.topology.metadata:
                raise owner_not_found(replica_set, self.topology.names())
            known = ", ".join(self.topology.names()) or "none"
            raise NotFoundError(
                f"no replica set is called {replica_set!r}", f"this cluster has {known}"
            )
        self._suspects.discard(replica_set)
        link = self._leaders[replica_set] = self._link(address)
        return link

    def doubt(self, way: Caller) -> None:
        """A leader owes an answer, over this way, for longer than usual."""
        self.probes.start(way)
        self.tunnels.doubt(way)

    def suspect(self, replica_set: str) -> None:
        """The leader failed, or said that it is none: ask again before the next connect."""
        self._suspects.add(replica_set)

    def open_now(self, *, but_leader_of: str = "") -> list[Connection]:
        """Every connection that is open, except that to the leader of `but_leader_of`."""
        avoided = self._leaders.get(but_leader_of)
        return [
            link.connection
            for link in self._links.values()
            if link.connection is not None and not link.connection.is_closed and link is not avoided
        ]

    async def connect_any(self, *, but_leader_of: str = "", turn: int = 0) -> Connection:
        """A connection to whichever node answers first; to the leader of `but_leader_of` only when
        nobody else does. Who is not content with one asks for the next, by `turn`. Raises
        `PeerError`."""
        self.check_loop()
        avoided = self._leaders.get(but_leader_of)
        if open_now := self.open_now(but_leader_of=but_leader_of):
            return open_now[turn % len(open_now)]
        trouble: PeerError | None = None
        addresses = self.topology.addresses(self.endpoint.addresses)
        if avoided is not None:
            addresses = sorted(addresses, key=lambda each: each == avoided.address)
        for address in addresses:
            try:
                return await self._link(address).open()
            except PeerError as error:
                trouble = error
        assert trouble is not None
        raise trouble

    async def connect_to(self, address: str) -> Connection:
        """A connection to the node at `address`. Raises `PeerError`."""
        self.check_open()
        return await self._link(address).open()

    def _link(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = Link(address, self.ports, self.background, self._closing, self._recognize)
            self._links[address] = link
        return link

    # --- topology -------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Ask the nodes for the topology; the first answer is enough to go on.

        Raises `PeerError` when nobody answers.
        """
        self.check_open()
        await self._refreshing.get()

    async def _refresh(self) -> bool:
        addresses = self._asked_next()
        answered = anyio.Event()
        troubles: dict[str, HadronError] = {}

        async def ask(address: str) -> None:
            try:
                await self._ask(address)
            except HadronError as error:
                troubles[address] = error
            if address not in troubles or len(troubles) == len(addresses):
                answered.set()

        for address in addresses:
            self.background.start(ask, address)
        await answered.wait()
        if len(troubles) == len(addresses):
            message = "; ".join(error.message for error in troubles.values())
            for kind in (StrangerError, OtherClusterError):
                if all(isinstance(error, kind) for error in troubles.values()):
                    raise kind(message, next(iter(troubles.values())).hint)
            raise PeerError(message, _hint_for(troubles.values()))
        return True

    def _asked_next(self) -> list[str]:
        addresses = self.topology.addresses(self.endpoint.addresses)
        if len(addresses) <= ASKED_AT_ONCE:
            return addresses
        connected = {address for address, link in self._links.items() if link.is_open}
        first = [each for each in addresses if each in connected][: ASKED_AT_ONCE // 2]
        others = [each for each in addresses if each not in first]
        start = self._refreshed % len(others)
        chosen = (others[start:] + others[:start])[: ASKED_AT_ONCE - len(first)]
        self._refreshed = start + len(chosen)
        return first + chosen

    async def _ask(self, address: str) -> None:
        link = self._link(address)
        if link.is_open:
            connection = await link.open()
            answer = await probes.ask(connection)
        else:
            await link.open()
            answer = link.greeting
        led = {name: self.topology.rule(name) for name in self._leaders}
        self.topology.merge(answer)
        for name, before in led.items():
            epoch, leader = self.topology.rule(name)
            if epoch > before[0] and leader != before[1]:
                self._leave(name, f"{leader} leads {name} since epoch {epoch}")

    async def _ask_another(self) -> None:
        """Ask a node that leads nothing for this client: each in turn."""
        leaders = {link.address for link in self._leaders.values()}
        others = [
            address
            for address in self.topology.addresses(self.endpoint.addresses)
            if address not in leaders
        ]
        if others:
            self._asked += 1
            await self._ask(others[self._asked % len(others)])

    def _leave(self, replica_set: str, reason: str) -> None:
        """What waits for the old leader would wait for as long as that one is cut off."""
        _log.info("%s", reason)
        self.suspect(replica_set)
        link = self._leaders[replica_set]
        if link.connection is not None:
            link.connection.close(ConnectionLostError(reason))
        self.tunnels.leave(replica_set, ConnectionLostError(reason))

    # --- requests -------------------------------------------------------------------------------

    async def request(
        self,
        replica_set: str,
        what: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        timeout_s: float | None = None,
        any_after_s: float | None = None,
    ) -> tuple[Any, memoryview]:
        """Ask the leader of `replica_set` ("" asks any node), again and again until time is up;
        after `any_after_s`, when given, other nodes in turn with the leader, for which it is the
        limit of each try.

        Only for requests that may be repeated. Raises the caller's errors at once, and the last
        trouble when `timeout_s` (default: the client's `request_timeout_s`) has passed.
        """
        self.check_loop()
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        began_s = anyio.current_time()
        deadline = began_s + limit_s
        told = False
        backoff = Backoff(self.ports.random)
        trouble: HadronError | None = None
        silent = f"no answer from {f'the leader of {replica_set}' if replica_set else 'any node'}"
        asks_leader = bool(replica_set)
        others_asked = 0
        while True:
            self.check_open()
            until = deadline
            if any_after_s is not None:
                until = min(deadline, anyio.current_time() + any_after_s)
            try:
                with anyio.CancelScope(deadline=until):
                    connection = await (
                        self.connect(replica_set)
                        if asks_leader
                        else self.connect_any(but_leader_of=replica_set, turn=others_asked)
                    )
                    with self.lookout.waiting(
                        f"{connection.peer} to answer", max(0.0, limit_s - self.request_timeout_s)
                    ):
                        return await connection.request(what, message, attachments)
            except HadronError as error:
                self.check_open()
                if not can_retry(error):
                    raise
                # That others do not lead is no news, and hides what the leader waits for.
                if asks_leader or not isinstance(error, NotLeaderError):
                    trouble = error
                self._learn_from(replica_set, error)
            others_asked += not asks_leader
            delay_s = backoff.next_s()
            now_s = anyio.current_time()
            if now_s + delay_s >= deadline:
                raise trouble or DeadlineExceededError(f"{silent} within {round(limit_s, 1):g} s")
            if now_s - began_s >= TELL_AFTER_S:
                self.lookout.hurry()
                if not told:
                    told = True
                    why = f"{silent} yet" if trouble is None else trouble.message
                    self.lookout.trying(replica_set, deadline - now_s, why)
            if any_after_s is not None and (
                # There may be none, or nobody who answers has heard of it.
                now_s - began_s >= any_after_s or self.topology.leader(replica_set) is None
            ):
                asks_leader = bool(replica_set) and not asks_leader
            await anyio.sleep(delay_s)

    def _learn_from(self, replica_set: str, error: HadronError) -> None:
        _log.debug("%s: %s", replica_set, error)
        if replica_set and not isinstance(
            error, (MetadataBehindError, NotReadyError, OverloadedError)
        ):
            self.suspect(replica_set)
