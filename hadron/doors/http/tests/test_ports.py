"""Ports that are taken for one another are told apart at once."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
import trio

from hadron.doors.http.tests.support import HTTP_PORT, raw
from hadron.model.errors import StrangerError
from hadron.testing.nodes import CLIENT, Nodes, _client


async def test_a_client_at_the_port_for_http(http: httpx.AsyncClient, nodes: Nodes) -> None:
    assert not http.is_closed
    (node,) = nodes.config.nodes
    wrong = replace(node, address=f"n1:{HTTP_PORT}")
    began_s = trio.current_time()
    with pytest.raises(StrangerError, match="is no port for frames: it speaks HTTP") as caught:
        async with _client(nodes.network, CLIENT, [wrong], 30.0):
            pass
    assert "address:" in caught.value.hint
    assert trio.current_time() - began_s < 5, "and not once all patience is gone"


async def test_http_at_the_port_for_frames(http: httpx.AsyncClient, nodes: Nodes) -> None:
    assert not http.is_closed
    address = nodes.config.nodes[0].address
    answer = await raw(nodes.network, address, b"GET / HTTP/1.1\r\nhost: n1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"HTTP and gRPC have ports of their own" in answer
