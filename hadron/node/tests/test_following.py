"""What a replica says of itself: it follows for as long as the leader's entries can reach it."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.fakes.connections import SimTransport
from hadron.fakes.network import HostNetwork
from hadron.replication.follower import AppendOutcome
from hadron.testing.nodes import running_nodes


@pytest.mark.long
async def test_a_replica_that_cannot_dial_the_leader_follows(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has dialed it and has nothing to send: it would not say again that it is there."""
    async with running_nodes(tmp_path, 3) as nodes:
        replica, leader = nodes.host("n2"), nodes.config.node("n1").address
        dial = nodes.network.dial
        refused = trio.Event()

        async def refuse(source: HostNetwork, address: str) -> SimTransport:
            if (source.name, address) == (replica, leader):
                refused.set()
                raise OSError("refused by the test")
            return await dial(source, address)

        await nodes.crash("n2")
        monkeypatch.setattr(nodes.network, "dial", refuse)
        await nodes.start("n2")
        await nodes.wait_for("following", lambda: nodes.status("n2").state == "following")
        await refused.wait()
        await trio.sleep(10)
        assert nodes.status("n2").state == "following"
        await nodes.crash("n1")
        await nodes.wait_for(
            "waiting", lambda: nodes.status("n2").state == "waiting for the leader"
        )
        await nodes.start("n1")
        await nodes.wait_for("following", lambda: nodes.status("n2").state == "following")


async def test_a_leader_follows_nobody_who_appends_under_its_own_ballot(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_serving()
        # The leader serves with one of its followers.
        await nodes.wait_for("fed", lambda: nodes.node("n2").member._feed is not None)
        member = nodes.node("n1").member
        leadership, feed = member._leadership, nodes.node("n2").member._feed
        assert leadership is not None
        assert feed is not None
        ballot = leadership.controller.ballot
        member._appended(ballot, AppendOutcome(1, 1, ballot), feed)
        assert nodes.status("n1").state == "serving"
