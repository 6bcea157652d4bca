"""The clients of a door: one for each namespace in use, of as many as there is room for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from hadron.client.connecting.ports import ClientPorts
from hadron.doors import clients as module
from hadron.doors.clients import Clients
from hadron.model.errors import ClosedError, NotFoundError, OverloadedError, PeerError
from hadron.testing.nodes import Nodes


@asynccontextmanager
async def clients_of(ports: ClientPorts, address: str) -> AsyncIterator[Clients]:
    async with trio.open_nursery() as nursery:
        clients = Clients(lambda: address, ports)
        await nursery.start(clients.run)
        yield clients
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def clients_at_node(directory: Path) -> AsyncIterator[Clients]:
    async with trio.open_nursery() as nursery:
        nodes = Nodes(directory, 1, nursery)
        await nodes.start()
        await nodes.wait_serving()
        async with (
            nodes.client() as client,
            clients_of(client._session.ports, nodes.config.nodes[0].address) as clients,
        ):
            names = ["used", "one", "two", "three", *(f"other{number}" for number in range(6))]
            await client.apply([{"kind": "Namespace", "name": name} for name in names])
            yield clients
        nursery.cancel_scope.cancel()


async def test_a_client_that_nobody_uses_makes_room_for_another_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CLIENTS", 3)
    async with clients_at_node(tmp_path) as clients:
        with clients.using():
            used = await clients.of("used")
            opened = {}
            for number in range(5):
                with clients.using():
                    opened[number] = await clients.of(f"other{number}")
                    assert await clients.of("used") is used
            assert used._session.closed is None
            await trio.testing.wait_all_tasks_blocked()
            assert isinstance(opened[2]._session.closed, ClosedError)
            assert opened[3]._session.closed is opened[4]._session.closed is None
            with clients.using():
                # That which was used last stays.
                assert await clients.of("other3") is opened[3]
            with clients.using():
                await clients.of("other5")
            assert await clients.of("other3") is opened[3]
        assert await clients.of("used") is used


async def test_clients_that_are_all_in_use_are_as_many_as_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CLIENTS", 2)
    async with clients_at_node(tmp_path) as clients:
        with clients.using("one"), clients.using():
            one = await clients.of("one")
            await clients.of("two")
            with pytest.raises(OverloadedError, match="2 namespaces are in use"):
                await clients.of("three")
        with clients.using("one"):
            await clients.of("three")
            assert await clients.of("one") is one
        assert (await clients.of("two"))._session.closed is None
        assert not clients._uses


async def test_no_client_is_opened_for_a_namespace_that_is_not_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CLIENTS", 1)
    async with clients_at_node(tmp_path) as clients:
        with clients.using():
            one = await clients.of("one")
            for number in range(3):
                with pytest.raises(NotFoundError, match="no namespace 'made-up"):
                    await clients.of(f"made-up-{number}")
        assert await clients.of("one") is one
        assert clients._open.keys() == {"one", "default"}


async def test_the_default_namespace_always_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CLIENTS", 2)
    async with clients_at_node(tmp_path) as clients:
        default = await clients.of("default")
        for name in ("one", "two", "three"):
            await clients.of(name)
        assert await clients.of("default") is default
        with clients.using("one"), clients.using("two"):
            assert await clients.of("default") is default


async def test_who_calls_from_one_address_has_a_share_of_the_namespaces_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_OF_PEER", 1)
    async with clients_at_node(tmp_path) as clients:
        with clients.using(peer="a"):
            await clients.of("one")
            with clients.using(peer="a"):
                await clients.of("one")
                await clients.of("default")
                with pytest.raises(OverloadedError, match="1 namespaces are in use from a"):
                    await clients.of("two")
            with clients.using(peer="b"):
                await clients.of("two")
        with clients.using(peer="a"):
            await clients.of("two")
        assert not clients._peers


async def test_a_client_that_cannot_be_opened_says_why_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 0.1)
    async with trio.open_nursery() as nursery:
        nodes = Nodes(tmp_path, 1, nursery)
        await nodes.start()
        await nodes.wait_serving()
        async with (
            nodes.client() as client,
            clients_of(client._session.ports, "nobody:1") as clients,
        ):
            for _ in range(2):
                with pytest.raises(PeerError, match="nobody:1") as caught:
                    await clients.of("default")
                assert caught.value.retryable
            assert not clients._opening
        nursery.cancel_scope.cancel()
