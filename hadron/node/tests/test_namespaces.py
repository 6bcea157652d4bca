"""Namespaces that are not there: no list is empty because of that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.client import Client, connect
from hadron.client.connecting.ports import ClientPorts
from hadron.model.errors import NotFoundError
from hadron.testing.nodes import SeededRandom, running_nodes
from hadron.wire.system import SystemClock

LISTS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "objects": lambda client: client.objects("Stream", client.namespace),
    "endpoints": lambda client: client.endpoints(),
    "groups": lambda client: client.groups(),
    "pipelines": lambda client: client.pipeline_progress(),
    "sinks": lambda client: client.sinks(),
}


async def test_a_list_is_of_a_namespace_that_is_there(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with running_nodes(tmp_path, 1) as nodes, nodes.client() as default:
            url = f"hadron://{nodes.config.nodes[0].address}/shop"
            ports = ClientPorts(
                network=nodes.network.host("shop"), clock=SystemClock(), random=SeededRandom("shop")
            )
            async with connect(url, ports=ports) as client:
                for name, ask in LISTS.items():
                    assert await ask(default) == [], name
                    with pytest.raises(NotFoundError, match="there is no namespace 'shop'"):
                        await ask(client)
                await default.apply("kind: Namespace\nname: shop\n")
                for name, ask in LISTS.items():
                    assert await ask(client) == [], name
