"""Which nodes a client asks for the topology, where it cannot ask all at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hadron.client.connecting.background import Background
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.session import ASKED_AT_ONCE, Session
from hadron.client.connecting.url import parse_url
from hadron.model.errors import PeerError
from hadron.wire.messages import cluster_pb2

DOWN = [f"down{number}:1" for number in range(2 * ASKED_AT_ONCE)]
UP = [f"up{number}:1" for number in range(ASKED_AT_ONCE)]


class Asking:
    """A session of a cluster whose first nodes, a region, are down."""

    def __init__(self, background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"hadron://{','.join(DOWN[:3])}"
        self.session = Session(parse_url(url), ClientPorts(), background, request_timeout_s=5.0)
        self.session._started = True
        nodes = [cluster_pb2.Node(name=each, address=each) for each in DOWN + UP]
        nodes[0].role = "leader"
        known = cluster_pb2.ReplicaSet(name="local/p0", epoch=1, agreed=True, nodes=nodes)
        self.session.topology.merge(cluster_pb2.TopologyResponse(replica_sets=[known]))
        self.asked: list[str] = []
        monkeypatch.setattr(self.session, "_ask", self.ask)

    async def ask(self, address: str) -> None:
        self.asked.append(address)
        if address in DOWN:
            raise PeerError(f"{address} is down")

    def connect(self, addresses: list[str]) -> None:
        """Connections there are open, whether or not anybody answers."""
        open_one: Any = SimpleNamespace(is_closed=False)
        for address in addresses:
            self.session._link(address).connection = open_one


async def test_each_refresh_asks_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Background() as background:
        asking = Asking(background, monkeypatch)
        for _ in range(2):
            with pytest.raises(PeerError, match="is down"):
                await asking.session.refresh()
        assert sorted(asking.asked) == sorted(DOWN)
        await asking.session.refresh()


async def test_who_is_connected_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Background() as background:
        asking = Asking(background, monkeypatch)
        asking.connect(UP[:1])
        await asking.session.refresh()
        assert UP[0] in asking.asked


async def test_those_that_are_connected_and_silent_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Background() as background:
        asking = Asking(background, monkeypatch)
        asking.connect(DOWN)
        half = ASKED_AT_ONCE // 2
        for _ in range((len(DOWN) - half) // half):
            with pytest.raises(PeerError, match="is down"):
                await asking.session.refresh()
        await asking.session.refresh()


async def test_of_who_was_not_asked_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the leader's set are down; another set's node, the only one up, has named it."""
    async with Background() as background:
        session = Asking(background, monkeypatch).session

        async def refuse() -> None:
            raise PeerError(f"cannot connect to {DOWN[0]}: Connection refused")

        monkeypatch.setattr(session._link(DOWN[0]), "open", refuse)
        with pytest.raises(PeerError) as caught:
            await session.dial_leader("local/p0")
        assert caught.value.message == (
            f"the leader {DOWN[0]} of local/p0 at {DOWN[0]} cannot be reached: Connection refused"
        )
        assert caught.value.hint == (
            "bring it back, or see `hadron status` for who answers, and for the way out"
        )
