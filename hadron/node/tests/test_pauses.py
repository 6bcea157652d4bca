"""A leader that pauses (SIGSTOP, a stopped machine) and goes on as if nothing was.

In one process a node cannot be stopped; it gets nothing to do instead: whatever is sent to it, or
by it, stays in the sockets, and it is patient enough not to notice. Others are not: the pause is
three times as long as any of them waits. `cluster-tests` does the same to real processes.
"""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from hadron.model.errors import HadronError, NotLeaderError
from hadron.node.tests.support import chains, fetch, make_stream, produce
from hadron.node.tests.test_promotion import changed
from hadron.testing.nodes import CLIENT, Nodes, running_nodes

PAUSE_S = 20.0


def make_patient(nodes: Nodes, name: str) -> None:
    """Its own timeouts do not pass while it is paused: a stopped process does not count them."""
    settings = replace(
        nodes.config.settings, keepalive_s=10 * PAUSE_S, silence_limit_s=100 * PAUSE_S
    )
    nodes.configs[name] = replace(nodes.configs.get(name, nodes.config), settings=settings)


def pause(nodes: Nodes, name: str) -> None:
    nodes.network.isolate(name, CLIENT, *(other for other in nodes.names if other != name))


async def ask(nodes: Nodes, outcomes: list[str]) -> None:
    """A record for the leader's socket, and what becomes of it."""
    async with nodes.connection("n1") as connection:
        try:
            answer = await produce(connection, b"sent while it was paused")
            outcomes.append(f"acknowledged at {answer.base_offset}")
        except HadronError as error:
            outcomes.append(type(error).__name__)


@pytest.mark.long
async def test_it_goes_on_when_nobody_took_over(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes, trio.open_nursery() as nursery:
        make_patient(nodes, "n1")
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"before")
        outcomes: list[str] = []
        ballot = nodes.status("n1").ballot
        nursery.start_soon(ask, nodes, outcomes)
        await trio.testing.wait_all_tasks_blocked()
        pause(nodes, "n1")
        await trio.sleep(PAUSE_S)
        assert nodes.status("n2").state == "waiting for the leader"
        nodes.network.heal_all()
        await nodes.wait_for("answered", lambda: bool(outcomes))
        await nodes.wait_in_step()
        assert nodes.status("n1").ballot == ballot
        async with nodes.connection("n1") as connection:
            await produce(connection, b"after")
            values = await fetch(connection)
        assert values[0] == b"before"
        assert values[-1] == b"after"
        # Acknowledged or not known: never lost after an acknowledgement, never twice.
        assert len(values) == 2 + (values.count(b"sent while it was paused") == 1)
        if outcomes[0].startswith("acknowledged"):
            assert b"sent while it was paused" in values


@pytest.mark.long
async def test_it_commits_nothing_when_another_leads_by_then(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes, trio.open_nursery() as nursery:
        make_patient(nodes, "n1")
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        await nodes.wait_in_step()
        async with nodes.connection("n1") as before:
            await produce(before, b"before")
            await nodes.wait_in_step()
            pause(nodes, "n1")
            outcomes: list[str] = []

            async def ask_on_old_connection() -> None:
                try:
                    await produce(before, b"sent while it was paused")
                    outcomes.append("acknowledged")
                except HadronError as error:
                    outcomes.append(type(error).__name__)

            nursery.start_soon(ask_on_old_connection)
            new = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
            nodes.configs["n2"] = nodes.configs["n3"] = new
            await nodes.restart("n2", "n3")
            await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
            async with nodes.connection("n2") as connection:
                await produce(connection, b"by the new leader")
            await trio.sleep(PAUSE_S)
            assert nodes.status("n1").state == "serving"
            nodes.network.heal_all()
            await nodes.wait_for("fenced", lambda: nodes.status("n1").state == "following")
            await nodes.wait_for("answered", lambda: bool(outcomes))
            assert outcomes[0] != "acknowledged"
        async with nodes.connection("n1") as old, nodes.connection("n2") as connection:
            with pytest.raises(NotLeaderError):
                await produce(old, b"too late")
            assert await fetch(connection) == [b"before", b"by the new leader"]
        nodes.configs["n1"] = new
        await nodes.restart("n1")
        nodes.config = new
        await nodes.wait_in_step()
        assert chains(nodes, "n1")[-1] == chains(nodes, "n2")[-1] == chains(nodes, "n3")[-1]
