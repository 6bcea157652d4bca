"""The clients through which the door speaks to the cluster: one for each namespace in use.

So finding leaders, tunnels, failover, partitioners and groups are the client's, and are here only
by being called. Where there is no room for another one, the one that nobody has used for longest is
closed.

Rules: a client is opened for a namespace that is declared, and for no other name; that of `default`
always has room; and who calls from one address has at most a share of the others in use.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import anyio
import trio

from hadron.client.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.url import Endpoint
from hadron.doors.defects import defect
from hadron.model.errors import HadronError, OverloadedError
from hadron.model.ids import DEFAULT_NAMESPACE, check_name
from hadron.wire.messages import schema_pb2

_log = logging.getLogger(__name__)

_MAX_CLIENTS: Final = 64
"""Namespaces that are spoken to at once, beside the default one; each has a connection to every
leader that it needs."""

_MAX_OF_PEER: Final = _MAX_CLIENTS // 2
"""Of those, in use from one address, which may be that of a proxy: to hold slow requests open costs
nothing."""

_CONNECT_S: Final = 10.0
REQUEST_S: Final = 30.0
"""How long a question is retried: most programs that speak HTTP give up after half a minute."""


class _Request(NamedTuple):
    """`peer`: the address that it came from, "" for one without a share; `names`: the namespaces
    that it has asked for."""

    peer: str
    names: set[str]


_request: ContextVar[_Request | None] = ContextVar("request", default=None)
"""The one under way."""


class _Open(NamedTuple):
    """`ended` is set for it to leave, or by itself."""

    client: Client
    ended: anyio.Event


class Clients:
    """`run` must be running.

    Args:
        own_address: of the node, which is asked first.
        ports: the network knows a way to the node itself.
    """

    def __init__(self, own_address: Callable[[], str], ports: ClientPorts) -> None:
        self._own_address = own_address
        self._ports = ports
        self._nursery: trio.Nursery | None = None
        self._open: dict[str, _Open] = {}
        """That which has been out of use for longest is first."""
        self._opening: dict[str, trio.Lock] = {}
        self._uses: Counter[str] = Counter()
        self._peers: dict[str, Counter[str]] = {}
        """The same by who uses them."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @contextmanager
    def using(self, namespace: str | None = None, *, peer: str = "") -> Iterator[None]:
        """A request, or whatever outlives one: the clients that it asks for in here, and that of
        `namespace`, are in use up to the end, from that peer."""
        request = _Request(peer, set())
        token = _request.set(request)
        try:
            if namespace is not None:
                self._use(namespace)
            yield
        finally:
            _request.reset(token)
            for name in request.names:
                _count_down(self._uses, name)
                if peer:
                    _count_down(self._peers[peer], name)
                    if not self._peers[peer]:
                        del self._peers[peer]
                self._touch(name)

    def _use(self, namespace: str) -> None:
        """Raises `OverloadedError` where its peer uses too many others."""
        request = _request.get()
        if request is None or namespace in request.names:
            return
        if request.peer:
            used = self._peers.setdefault(request.peer, Counter())
            others = len(used) - (DEFAULT_NAMESPACE in used)
            if namespace not in used and others >= _MAX_OF_PEER and namespace != DEFAULT_NAMESPACE:
                raise OverloadedError(
                    f"{others} namespaces are in use from {request.peer}, the limit is "
                    f"{_MAX_OF_PEER}",
                    "end some requests, or use another node for this one",
                )
            used[namespace] += 1
        request.names.add(namespace)
        self._uses[namespace] += 1

    def _touch(self, namespace: str) -> None:
        if (known := self._open.pop(namespace, None)) is not None:
            self._open[namespace] = known

    async def of(self, namespace: str) -> Client:
        """Raises `PeerError` when no node answers, `RequestError` for a name that is none,
        `NotFoundError` for one that is not declared, and `OverloadedError` when there are too many
        and all are in use."""
        if namespace not in self._open and namespace != DEFAULT_NAMESPACE:
            check_name("namespace", namespace)
            default = await self._opened(DEFAULT_NAMESPACE)
            await default._catalog.check_namespace(namespace)
        self._use(namespace)
        self._touch(namespace)
        if namespace not in self._opening and namespace != DEFAULT_NAMESPACE:
            self._make_room()
        return await self._opened(namespace)

    def changed(
        self, answer: schema_pb2.ApplySchemaResponse | schema_pb2.DeleteObjectsResponse
    ) -> None:
        """A program has changed the schema at this door, and is told so after this."""
        for known in self._open.values():
            known.client._catalog.changed(answer)

    def _make_room(self) -> None:
        """For one more. Raises `OverloadedError`."""
        if len(self._opening.keys() - {DEFAULT_NAMESPACE}) < _MAX_CLIENTS:
            return
        for namespace, known in self._open.items():
            if namespace not in self._uses and namespace != DEFAULT_NAMESPACE:
                del self._open[namespace]
                self._opening.pop(namespace, None)
                known.ended.set()
                return
        raise OverloadedError(
            f"{_MAX_CLIENTS} namespaces are in use through this node",
            "use another node for this one",
        )

    async def _opened(self, namespace: str) -> Client:
        if (known := self._open.get(namespace)) is not None:
            return known.client
        lock = self._opening.setdefault(namespace, trio.Lock())
        async with lock:
            if (known := self._open.get(namespace)) is not None:
                return known.client
            assert self._nursery is not None
            opened: list[Client | HadronError] = []
            try:
                await self._nursery.start(self._keep, namespace, opened)
            finally:
                # Whoever waits tries next.
                if namespace not in self._open and not lock.statistics().tasks_waiting:
                    self._opening.pop(namespace, None)
            if isinstance(opened[0], HadronError):
                raise opened[0]
            return opened[0]

    async def _keep(
        self,
        namespace: str,
        opened: list[Client | HadronError],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """A client's life: until it has to make room, or ends by a defect, and the next one is made
        when asked for."""
        client = Client(
            Endpoint(addresses=(self._own_address(),), namespace=namespace),
            connect_timeout_s=_CONNECT_S,
            request_timeout_s=REQUEST_S,
            # Who asks is answered by then: what is said of a record then is its end.
            delivery_timeout_s=REQUEST_S,
            ports=self._ports,
        )
        ended, own = anyio.Event(), None
        try:
            async with client:
                client._session.on_close[ended.set] = None
                own = self._open[namespace] = _Open(client, ended)
                opened.append(client)
                task_status.started()
                await ended.wait()
                if self._open.get(namespace) is own:
                    _log.warning(
                        "the client of namespace %s has ended, and is opened anew", namespace
                    )
        except Exception as failure:
            # Also a defect is this client's own: the others, and the node, go on.
            error = failure if isinstance(failure, HadronError) else defect(failure)
            if opened:
                _log.warning("the client of namespace %s: %s", namespace, error)
            else:
                opened.append(error)
                task_status.started()
        finally:
            # What has made room may be open again by now, or be about to be.
            if own is not None and self._open.get(namespace) is own:
                del self._open[namespace]
                self._opening.pop(namespace, None)


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
