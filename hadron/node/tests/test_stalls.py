"""Nodes whose disks hang, or whose peers confirm nothing, say so."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import threading
import time
from pathlib import Path

import trio
from trio.testing import MockClock

from hadron.node.tests.support import make_stream, produce
from hadron.node.tests.test_pauses import make_patient, pause
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.system import SystemClock


class MovedClock(SystemClock):
    """A clock that the test moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0
        self.monotonic_s = lambda: time.monotonic() + self.ahead_s


async def test_a_disk_that_hangs_is_in_the_status_of_its_node(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        clocks = {name: MovedClock() for name in nodes.names}
        nodes.clocks.update(clocks)
        await nodes.start()
        await nodes.wait_serving()
        for name in ("n1", "n2"):
            goes_on = threading.Event()
            hang(nodes, name, goes_on)
            clocks[name].ahead_s += 20.0
            try:
                await nodes.wait_for("told", lambda name=name: "one write" in trouble(nodes, name))  # type: ignore[misc]
                assert f"the disk of {nodes.data(name)} has been busy" in trouble(nodes, name)
            finally:
                goes_on.set()
        assert not nodes.status("n3").trouble


def hang(nodes: Nodes, name: str, goes_on: threading.Event) -> None:
    store = nodes.node(name).member._store
    store.writer.submit(lambda _: goes_on.wait(), lambda _result, _error: None)


def trouble(nodes: Nodes, name: str) -> str:
    return nodes.status(name).trouble


async def test_replicas_that_confirm_nothing_are_in_the_status_of_their_leader(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes, trio.open_nursery() as nursery:
        for name in nodes.names:
            make_patient(nodes, name)
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        await nodes.wait_in_step()
        pause(nodes, "n2")
        pause(nodes, "n3")
        async with nodes.connection("n1") as connection:
            nursery.start_soon(produce, connection, b"waits")
            await nodes.wait_for("told", lambda: "waiting" in trouble(nodes, "n1"))
            assert trouble(nodes, "n1").endswith("s: n2 and n3 have not confirmed it")
            nodes.network.heal_all()
            await nodes.wait_for("over", lambda: not trouble(nodes, "n1"))
