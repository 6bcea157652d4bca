"""The world holds: nodes and clients run in it, a seed decides everything, crashes are crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections import Counter

import pytest
import trio

from hadron.fakes.scheduling import StuckError, run_seeded
from hadron.fakes.trace import Trace
from hadron.model.errors import CorruptionError
from hadron.model.ports import Listener
from hadron.node.runtime import Node
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.runs.run import Judgement, Outcome, Scenario, run_seed
from hadron.sim.tests.scenario import PublishUnderFaults, declare, read_all
from hadron.sim.world.replica_set import World

_IN_ANOTHER_PROCESS = """
import gc
gc.disable()
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.runs.run import run_seed
from hadron.sim.tests.scenario import PublishUnderFaults
print(run_seed(3, PublishUnderFaults()).trace_hash)
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_faults(seed: int) -> None:
    outcome = run_seed(seed, PublishUnderFaults())
    assert outcome.violations == []
    assert outcome.acknowledged > 0
    assert outcome.faults


@pytest.mark.long
def test_same_seed_same_trace() -> None:
    first, second = (run_seed(3, PublishUnderFaults()) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert first.events == second.events
    assert run_seed(4, PublishUnderFaults()).trace_hash != first.trace_hash


@pytest.mark.long
def test_same_trace_in_a_fresh_process_with_another_hash_seed_and_no_collector() -> None:
    here = run_seed(3, PublishUnderFaults()).trace_hash
    there = subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        timeout=60,
    )
    assert there.stdout.strip() == here


@pytest.mark.long
def test_a_world_that_has_ended_is_forgotten() -> None:
    # Kept, it is looked through for garbage with every later seed of its process.
    worlds: list[weakref.ref[World]] = []

    async def body(world: World) -> Judgement:
        worlds.append(weakref.ref(world))
        await world.restart()
        return Judgement()

    _run(body)
    assert worlds[0]() is None


def _run(body: Scenario) -> Outcome:
    outcome = run_seed(1, body)
    assert outcome.violations == []
    return outcome


@pytest.mark.long
def test_a_power_loss_of_all_nodes_keeps_what_was_acknowledged() -> None:
    async def body(world: World) -> Judgement:
        await declare(world)
        sent: dict[int, bytes] = {}
        for round_number in range(6):
            async with world.client() as client, client.producer("s") as producer:
                for number in range(10):
                    value = b"%d/%d" % (round_number, number)
                    sent[(await producer.send(value)).offset] = value
            await world.crash(power=True)
            assert not any(world.running(name) for name in world.names)
            await world.start()
            await world.wait_serving()
        assert await read_all(world) == sent
        return Judgement(acknowledged=len(sent))

    outcome = _run(body)
    assert outcome.faults["power loss"] == 18


@pytest.mark.long
def test_a_node_that_stops_by_itself_says_why() -> None:
    async def body(world: World) -> Judgement:
        await declare(world)
        world.disks["n2"].broken.sync_error_in = 1
        async with world.client() as client, client.producer("s") as producer:
            await producer.send(b"x")
        await world.wait_for("n2 stopped", lambda: not world.running("n2"))
        assert "n2" in world.failures
        assert not world.running("n2")
        await world.start("n2")
        await world.wait_in_step()
        return Judgement()

    assert _run(body).faults["sync error"] == 1


@pytest.mark.long
def test_a_node_that_cannot_start_raises() -> None:
    async def body(world: World) -> Judgement:
        await world.stop("n3")
        (world.data("n3") / "node.db").write_bytes(b"no database at all" * 400)
        with pytest.raises((CorruptionError, BaseExceptionGroup)):
            await world.start("n3")
        world.wipe("n3")
        await world.start("n3")
        await world.wait_in_step()
        return Judgement()

    _run(body)


def test_a_world_where_everybody_waits_ends_with_the_names_of_those_who_wait() -> None:
    async def waits_for_nothing(event: trio.Event) -> None:
        await event.wait()

    async def main(_time: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits_for_nothing, trio.Event())
            await trio.sleep(5)

    with pytest.raises(StuckError, match=r"(?s)at 5.000 .*waits_for_nothing"):
        run_seeded(1, main, Trace())


def test_a_world_that_spins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hadron.fakes.scheduling._SPIN_STEPS", 1000)

    async def main(_time: object) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StuckError, match="time has not moved"):
        run_seeded(1, main, Trace())


@pytest.mark.long
def test_a_scenario_that_raises_is_a_violation() -> None:
    async def body(_world: World) -> Judgement:
        raise ValueError("no good")

    (violation,) = run_seed(1, body).violations
    assert "no good" in violation


@pytest.mark.long
def test_unsynced_writes_meet_every_fate() -> None:
    faults: Counter[str] = Counter()
    plan = FaultPlan({"power loss at a write": 1.0})
    for seed in range(3):
        faults.update(run_seed(seed, PublishUnderFaults(plan=plan)).faults)
    assert {"write kept", "write dropped", "write torn"} <= set(faults)


@pytest.mark.long
def test_a_node_may_lose_power_before_it_listens() -> None:
    async def body(world: World) -> Judgement:
        await world.stop("n2")
        world.disks["n2"].broken.crash_at_sync_in = 1
        await world.start("n2")
        assert not world.running("n2")
        assert not world.failures
        await world.start("n2")
        await world.wait_in_step()
        return Judgement()

    assert run_seed(1, body).violations == []


@pytest.mark.long
def test_who_is_started_twice_at_once_has_one_life() -> None:
    async def body(world: World) -> Judgement:
        await world.crash("n2", power=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.start, "n2")
            nursery.start_soon(world.start, "n2")
        assert world.running("n2")
        assert not world.failures
        await world.wait_in_step()
        return Judgement()

    _run(body)


@pytest.mark.long
def test_a_node_that_is_starting_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a leader may look at it between another one's crash and start of it."""
    seen: list[tuple[bool, bool, bool, str]] = []
    listen = Node._listen

    async def body(world: World) -> Judgement:
        async def look_and_listen(node: Node) -> Listener:
            seen.append(
                (world.running("n1"), world.listens("n1"), world.is_serving(), world.describe("n1"))
            )
            return await listen(node)

        await world.crash("n1")
        monkeypatch.setattr(Node, "_listen", look_and_listen)
        await world.start("n1")
        assert seen == [(True, False, False, "n1 is starting")]
        assert world.listens("n1")
        await world.wait_serving()
        return Judgement()

    _run(body)
