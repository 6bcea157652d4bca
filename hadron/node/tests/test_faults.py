"""Random crashes, cuts, resets and lost disks under traffic: what was acknowledged stays."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import HadronError
from hadron.node.tests.support import (
    assert_no_traceback,
    chains,
    fetch,
    is_member,
    make_stream,
    produce,
)
from hadron.testing.nodes import Nodes, running_nodes

_ROUNDS = 8


class Traffic:
    """One idempotent producer that sends a batch again until it is acknowledged, and a reader that
    looks for anything that is shown and later gone."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self._nodes = nodes
        self._id = b"producer %d" % number
        self._number = number
        self.acknowledged: list[tuple[int, bytes]] = []
        self.seen: list[bytes] = []
        self.stopping = False

    async def send(self) -> None:
        while not self.stopping:
            value = b"%d/%d" % (self._number, len(self.acknowledged))
            while True:
                try:
                    with trio.fail_after(5):
                        async with self._nodes.connection("n1", f"c{self._number}") as connection:
                            answer = await produce(
                                connection,
                                value,
                                producer_id=self._id.ljust(16, b"."),
                                sequence=len(self.acknowledged),
                            )
                except (HadronError, OSError, trio.TooSlowError):
                    await trio.sleep(0.02)
                else:
                    self.acknowledged.append((answer.base_offset, value))
                    break

    async def look(self) -> None:
        while not self.stopping:
            try:
                with trio.fail_after(5):
                    async with self._nodes.connection("n1", f"r{self._number}") as connection:
                        shown = await fetch(connection)
            except (HadronError, OSError, trio.TooSlowError):
                await trio.sleep(0.02)
                continue
            assert shown[: len(self.seen)] == self.seen
            self.seen = shown


async def disturb(nodes: Nodes, chance: random.Random) -> None:
    """One fault. At most one disk is lost at a time, and all are whole again before the next."""
    name = chance.choice(nodes.names)
    match chance.choice(["crash", "crash", "cut", "one way", "reset", "wipe"]):
        case "crash":
            victims = chance.sample(nodes.names, chance.randint(1, 3))
            await nodes.crash(*victims)
            await trio.sleep(chance.uniform(0, 0.5))
            await nodes.start(*victims)
        case "cut":
            nodes.network.isolate(name, *(other for other in nodes.names if other != name))
            await trio.sleep(chance.uniform(0, 9))
            nodes.network.heal_all()
        case "one way":
            nodes.network.cut_one_way(name, chance.choice([n for n in nodes.names if n != name]))
            await trio.sleep(chance.uniform(0, 9))
            nodes.network.heal_all()
        case "reset":
            nodes.network.break_connections(name)
        case "wipe":
            # Not until all are in step, which they need not be at any moment of this traffic.
            await nodes.wait_for("members", lambda: all(is_member(nodes, n) for n in nodes.names))
            await nodes.crash(name)
            nodes.wipe(name)
            await trio.sleep(chance.uniform(0, 0.2))
            await nodes.start(name)
    await trio.sleep(chance.uniform(0, 1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
async def test_acknowledged_records_survive(
    tmp_path: Path, clock: MockClock, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    async with running_nodes(tmp_path, 3, seed=seed) as nodes:
        await make_stream(nodes)
        traffic = [Traffic(nodes, number) for number in range(2)]
        async with trio.open_nursery() as nursery:
            for one in traffic:
                nursery.start_soon(one.send)
                nursery.start_soon(one.look)
            for _ in range(_ROUNDS):
                await disturb(nodes, chance)
            await nodes.wait_serving()
            for one in traffic:
                one.stopping = True
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            final = await fetch(connection)
        for one in traffic:
            assert one.acknowledged
            for offset, value in one.acknowledged:
                assert final[offset] == value
            assert final[: len(one.seen)] == one.seen
        assert len(set(final)) == len(final)
        # What is applied is on its way to the disk.
        await nodes.wait_for(
            "the same on all disks",
            lambda: chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3"),
        )
    assert_no_traceback(caplog)
