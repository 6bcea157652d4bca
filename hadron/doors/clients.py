"""The clients through which the door speaks to the cluster: one for each namespace in use.

So finding leaders, tunnels, failover, partitioners and groups are the client's, and are here only
by being called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio
import trio

from hadron.client.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.url import Endpoint
from hadron.doors.defects import defect
from hadron.model.errors import HadronError, OverloadedError
from hadron.model.ids import check_name

_log = logging.getLogger(__name__)

_MAX_CLIENTS: Final = 32
"""Namespaces that are spoken to at once; each has a connection to every leader that it needs."""

_CONNECT_S: Final = 10.0
REQUEST_S: Final = 30.0
"""How long a question is retried: most programs that speak HTTP give up after half a minute."""


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
        self._open: dict[str, Client] = {}
        self._opening: dict[str, trio.Lock] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def of(self, namespace: str) -> Client:
        """Raises `PeerError` when no node answers, `RequestError` for a name that is none."""
        client = self._open.get(namespace)
        if client is not None:
            return client
        check_name("namespace", namespace)
        if len(self._opening) >= _MAX_CLIENTS and namespace not in self._opening:
            raise OverloadedError(
                f"{_MAX_CLIENTS} namespaces are in use through this node",
                "use another node for this one",
            )
        async with self._opening.setdefault(namespace, trio.Lock()):
            client = self._open.get(namespace)
            if client is None:
                assert self._nursery is not None
                opened: list[Client | HadronError] = []
                await self._nursery.start(self._keep, namespace, opened)
                if isinstance(opened[0], HadronError):
                    del self._opening[namespace]
                    raise opened[0]
                client = opened[0]
        return client

    async def _keep(
        self,
        namespace: str,
        opened: list[Client | HadronError],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """A client's life: until it ends by a defect, and the next one is made when asked for."""
        client = Client(
            Endpoint(addresses=(self._own_address(),), namespace=namespace),
            connect_timeout_s=_CONNECT_S,
            request_timeout_s=REQUEST_S,
            # Who asks is answered by then: what is said of a record then is its end.
            delivery_timeout_s=REQUEST_S,
            ports=self._ports,
        )
        ended = anyio.Event()
        try:
            async with client:
                client._session.on_close[ended.set] = None
                self._open[namespace] = client
                opened.append(client)
                task_status.started()
                await ended.wait()
                _log.warning("the client of namespace %s has ended, and is opened anew", namespace)
        except Exception as failure:
            # Also a defect is this client's own: the others, and the node, go on.
            error = failure if isinstance(failure, HadronError) else defect(failure)
            if opened:
                _log.warning("the client of namespace %s: %s", namespace, error)
            else:
                opened.append(error)
                task_status.started()
        finally:
            self._open.pop(namespace, None)
            self._opening.pop(namespace, None)
