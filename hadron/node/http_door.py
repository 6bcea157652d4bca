"""A node's HTTP door: its listener, and its life around the node's."""

from __future__ import annotations

import logging

import trio

from hadron.client.connecting.ports import ClientPorts
from hadron.doors.http.app import HttpApp
from hadron.doors.http.door import Door
from hadron.doors.http.guard import Guard
from hadron.doors.http.limits import Limits
from hadron.doors.http.server import Server
from hadron.doors.http.table import OPERATIONS
from hadron.model.errors import ConfigurationError
from hadron.model.ports import Listener
from hadron.node.door_life import run_behind
from hadron.node.own_network import OwnNetwork
from hadron.node.runtime import Node
from hadron.wire.sockets import split_address

_log = logging.getLogger(__name__)


async def run_with_door(
    node: Node, task_status: trio.TaskStatus[None], limits: Limits | None = None
) -> None:
    """Run a node until it ends, with its door open. Whoever cancels this closes the door first:
    requests that are under way may end, for some seconds, before the node does."""
    listener = await _listen(node)
    try:
        await _run(node, listener, limits or Limits(), task_status)
    finally:
        listener.close()


async def _listen(node: Node) -> Listener:
    address = node.host.node.http
    assert address is not None
    try:
        listener = await node.host.network.listen(address)
    except OSError as error:
        raise ConfigurationError(
            f"node {node.host.node.name} cannot listen for HTTP on {address}: "
            f"{error.strerror or error}",
            "is another process using the port? change `http:`, or stop that process",
        ) from error
    node.http_address = listener.address
    return listener


async def _run(
    node: Node, listener: Listener, limits: Limits, task_status: trio.TaskStatus[None]
) -> None:
    host = node.host

    name = f"the HTTP door of {host.node.name}"
    network = OwnNetwork(host.network, lambda: node.address, node.take_own, name)
    door = Door(node, ClientPorts(network, host.clock, host.random), limits)
    names = {split_address(address)[0] for address in (host.node.http or "", host.node.address)}
    app = HttpApp(door, Guard(names), OPERATIONS)
    server = Server(app, limits)

    async def open_door(nursery: trio.Nursery) -> None:
        await nursery.start(door.run)
        nursery.start_soon(server.run, listener)
        _log.info("HTTP is served at %s", listener.address)

    async def close() -> None:
        server.drain()
        listener.close()
        door.draining.begin()
        node.waits_for = f"requests over HTTP, for {limits.drain_s:g} s at most"
        with trio.move_on_after(limits.drain_s):
            await app.wait_idle()
        node.waits_for = ""

    await run_behind(open_door, lambda: node.run_inside(task_status), close)
