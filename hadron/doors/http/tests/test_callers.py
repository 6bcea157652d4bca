"""Who calls an endpoint through a door, as its server is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.client import Client, IncomingCall
from hadron.doors.callers import who_calls
from hadron.doors.http.tests.support import HTTP_PORT, declare, http_at, http_of, nodes_with_doors
from hadron.model.services import STREAM, EndpointSpec
from hadron.testing.nodes import CLIENT, Nodes

AGENT = {"user-agent": "till/7"}
WHO = r"^a client at client:\d+ by HTTP \('till/7'\) through "


@pytest.fixture
def nodes(tmp_path: Path, nursery: trio.Nursery) -> Nodes:
    return nodes_with_doors(tmp_path, 3, nursery)


async def say_caller(_value: Any, call: IncomingCall) -> str:
    return call.caller


async def declare_both(client: Client) -> None:
    for name, output in (("who", "single"), ("stream", STREAM)):
        spec = EndpointSpec(replica_set="local/p0", output=output)
        await declare(client, "Endpoint", name, spec)


async def test_a_server_is_told_who_calls_through_http(nodes: Nodes) -> None:
    await nodes.start()
    await nodes.wait_serving()
    async with nodes.client("server") as client:
        await declare_both(client)

        async def streamed(value: Any, call: IncomingCall) -> Any:
            yield await say_caller(value, call)

        async with client.serve("who", say_caller), client.serve("stream", streamed):
            for name in ("who", "stream"):
                async with http_of(nodes, "n1") as http:
                    answer = await http.post(f"/v1/endpoints/{name}", headers=AGENT)
                assert_says(answer.text.strip().strip('"'), WHO + "the HTTP door of n1$")
            network = nodes.network.host(CLIENT)
            async with http_at(network, f"n1:{HTTP_PORT}", http2=True) as http:
                answer = await http.post("/v1/endpoints/who", headers=AGENT)
            assert_says(answer.text, WHO + "the HTTP door of n1$")


@pytest.mark.long
@pytest.mark.parametrize("is_cut", [False, True])
async def test_it_is_told_behind_other_nodes_too(nodes: Nodes, is_cut: bool) -> None:
    """At a replica's door, whose client dials the leader, or else goes through a third node."""
    await nodes.start()
    await nodes.wait_serving()
    async with nodes.client("server") as client:
        await declare_both(client)
        if is_cut:
            nodes.network.cut("n1", "n2")
        async with client.serve("who", say_caller), http_of(nodes, "n2") as http:
            answer = await http.post("/v1/endpoints/who", headers=AGENT)
        way = " through node n3 of local/p0" if is_cut else ""
        assert_says(answer.text, rf"{WHO}n2:\d+{way}$")


def assert_says(text: str, pattern: str) -> None:
    assert re.search(pattern, text), text


@pytest.mark.parametrize("agent", ["x" * 100_000, "\x1b[2J\n\0\ud800", "\U0010ffff" * 500])
def test_what_somebody_calls_itself_is_short_and_printable(agent: str) -> None:
    said = who_calls("HTTP", "127.0.0.1:1", agent)
    assert said.startswith("127.0.0.1:1 by HTTP ('")
    assert len(said) <= 200
    assert said.isprintable()
    assert said.encode()
