"""The random run: everybody does something, every size of replica set holds, a seed decides it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from hadron.model.errors import StorageError
from hadron.model.schema import Retention
from hadron.sim.actors import pipeline_operator
from hadron.sim.actors.clients import STREAM, ProducerActor
from hadron.sim.actors.crowd import actors
from hadron.sim.actors.group_plans import plans
from hadron.sim.actors.passing import GROUP
from hadron.sim.evidence.history import Deliver, Publish, Read, Settle, Transact
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.mutants.seams import Edit, patched
from hadron.sim.notes.nodes import observe, open_history
from hadron.sim.runs.run import Judgement, Outcome, run_seed
from hadron.sim.runs.workload import NO_RETENTION, RandomRun, Run
from hadron.sim.world.replica_set import World
from hadron.state.execute import DivergedError

QUIET = FaultPlan(weights={"clock drift": 1.0})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Every run that is made, for a look at its history."""
    made: list[Run] = []

    class Kept(Run):
        def __init__(self, world: World, retention: Retention = NO_RETENTION) -> None:
            super().__init__(world, retention)
            made.append(self)

    monkeypatch.setattr("hadron.sim.runs.workload.Run", Kept)
    return made


@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_set_of_any_size_keeps_its_promises_under_faults(nodes: int) -> None:
    outcome = run_seed(nodes, RandomRun(acknowledged=450), nodes=nodes)
    assert outcome.violations == []
    assert outcome.acknowledged >= 400
    assert outcome.operations >= 300
    assert outcome.faults


@pytest.mark.long
def test_without_faults_everybody_gets_something_done(runs: list[Run]) -> None:
    outcome = run_seed(1, RandomRun(plan=QUIET))
    assert outcome.violations == []
    history = runs[0].history
    assert {publish.acks for publish in history.of(Publish)} >= {"majority", "all"}
    assert any(len(publish.values) > 1 for publish in history.of(Publish))
    assert any(read.values for read in history.of(Read) if read.end < 0)
    assert any(read.values for read in history.of(Read) if read.end > 0)
    assert any(delivery.attempt > 1 for delivery in history.of(Deliver))
    assert {settle.how for settle in history.of(Settle)} >= {"ack", "nack"}
    assert any(settle.outcome == "ok" for settle in history.of(Settle))
    assert len(history.events("heal")) == 1
    assert {event.subject for event in history.events("drained")} >= {"g0", "g1"}


@pytest.mark.long
def test_retention_drops_records_under_everybodys_eyes() -> None:
    """A fetch that waits at the end is woken by what retention drops, and must wait on: it once
    asked again and again without an end, and time stood still."""
    outcome = run_seed(1, RandomRun(plan=QUIET, retention=Retention(max_bytes=2_000)))
    assert outcome.violations == []
    assert outcome.rare_paths["retention drops records"] > 0


@pytest.mark.long
def test_the_pipeline_is_changed_deleted_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("cancel", "start_some", "fill"):
        monkeypatch.setitem(pipeline_operator._WAYS, way, 0)
    outcome = run_seed(169, RandomRun(plan=QUIET))
    assert outcome.violations == []
    assert outcome.rare_paths["retried instances caught up with a change"] > 0
    assert outcome.rare_paths["failed instances retried"] > 0
    assert outcome.rare_paths["pipeline deleted under its runners"] > 0


@pytest.mark.long
def test_backups_take_the_place_of_nodes() -> None:
    outcome = run_seed(10, RandomRun())
    assert outcome.violations == []
    assert outcome.faults["restored node"] > 0


@pytest.mark.long
def test_transactions_share_batches_and_lose_their_answers(runs: list[Run]) -> None:
    outcome = run_seed(53, RandomRun(plan=QUIET))
    assert outcome.violations == []
    assert outcome.rare_paths["transactions share a batch"] > 3
    assert outcome.rare_paths["commits at the same time lose their answer"] > 0
    bursts = [each for each in runs[0].history.of(Transact) if each.client.startswith("u0.")]
    assert {told for each in bursts for told in each.told} >= {"committed", "rolled back"}
    assert all(each.told for each in bursts if each.transaction)


@pytest.mark.long
def test_a_stream_comes_and_goes_under_a_group(runs: list[Run]) -> None:
    outcome = run_seed(80, RandomRun(plan=QUIET))
    assert outcome.violations == []
    assert outcome.rare_paths["group served whose stream is deleted"] > 0
    history = runs[0].history
    used = {each.stream for each in history.of(Deliver) if each.group == GROUP}
    assert len(used) > 1, "a stream was made again, and is another one"
    drained = [each.subject for each in history.events("drained") if "@" in each.subject]
    assert len(drained) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "bug",
    [
        Edit("metadata.watching:_next", "tombstones_after(db, after),", "iter(()),"),
        Edit(
            "serving.schema_copy:SchemaCopy._read_visible",
            "index <= self.index",
            "index < self.index",
        ),
    ],
)
def test_who_follows_the_schema_is_told_all_of_it(bug: Edit) -> None:
    def play() -> list[str]:
        run = RandomRun(plan=QUIET, acknowledged=20, least_s=6.0, most_s=8.0)
        return run_seed(6, run).violations

    assert play() == []
    with patched(bug):
        assert any(each.startswith("R13") for each in play())


@pytest.mark.long
def test_the_same_seed_is_the_same_history(runs: list[Run]) -> None:
    first, second = (run_seed(5, RandomRun()) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert runs[0].history.entries == runs[1].history.entries


@pytest.mark.long
def test_the_crowd_depends_on_the_seed() -> None:
    async def body(world: World) -> Judgement:
        crowds = {
            tuple(actor.host for actor in actors(world, open_history(), seed, plans(seed, 2)))
            for seed in range(20)
        }
        assert len(crowds) > 10
        assert all(len(set(crowd)) == len(crowd) for crowd in crowds)
        return Judgement(acknowledged=1)

    assert run_seed(1, body).violations == []


# --- what befalls nodes -------------------------------------------------------------------------


def _play(body: object) -> Outcome:
    outcome = run_seed(1, body)  # type: ignore[arg-type]
    assert outcome.violations == []
    return outcome


@pytest.mark.long
def test_what_befalls_nodes_is_noted() -> None:
    async def body(world: World) -> Judgement:
        history = open_history()
        observe(world, history)
        await world.crash("n1", power=False)
        await world.crash("n2", power=True)
        await world.crash("n3", power=False)
        world.wipe("n3")
        world.disks["n2"].flip_bits(2)
        seen = [(event.kind, event.subject) for event in history.events()]
        assert seen == [
            ("crash", "n1"),
            ("power", "n2"),
            ("crash", "n3"),
            ("wipe", "n3"),
            ("damage", "n2"),
        ]
        return Judgement(acknowledged=1)

    _play(body)


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "fault", "damaged", "provoked"),
    [
        (StorageError("the disk failed"), "sync error", False, True),
        (StorageError("the disk failed"), "", False, False),
        (DivergedError("this node has applied entry 9"), "sync error", False, False),
        (DivergedError("this node has applied entry 9"), "bit flip", True, True),
        (ValueError("a defect"), "sync error", True, False),
        (BaseExceptionGroup("", [StorageError("the disk failed")]), "disk full", False, True),
    ],
)
def test_a_stop_is_excused_by_a_fault_of_the_disk_only(
    error: BaseException, fault: str, damaged: bool, provoked: bool
) -> None:
    async def body(world: World) -> Judgement:
        history = open_history()
        stops = observe(world, history)
        if fault:
            world.faults[fault] += 1
        if damaged:
            history.event("damage", "n2")
        world.failures["n2"] = error
        assert not stops.unprovoked if provoked else stops.unprovoked.keys() == {"n2"}
        return Judgement(acknowledged=1)

    _play(body)


@pytest.mark.long
def test_an_operator_gives_a_node_with_a_damaged_disk_an_empty_one() -> None:
    async def body(world: World) -> Judgement:
        run = Run(world)
        await run.declare()
        run.history.event("damage", "n3")
        await world.stop("n3")
        world.failures["n3"] = StorageError("is damaged")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.operate)
            await world.wait_in_step()
            nursery.cancel_scope.cancel()
        assert world.faults["wiped disk"] == 1
        return Judgement(acknowledged=1)

    _play(body)


@pytest.mark.long
def test_an_operator_starts_a_node_that_found_out_late_about_its_disk() -> None:
    async def body(world: World) -> Judgement:
        run = Run(world)
        await run.declare()
        disk = world.disks["n3"]
        disk.speed = replace(disk.speed, write_s=0.1)
        disk.broken.sync_error_in = 1
        async with world.client() as client, client.producer(STREAM) as producer:
            await producer.send(b"x")
        await world.wait_for("the error", lambda: world.faults["sync error"] > 0)
        await run.heal()
        assert world.running("n3")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.operate)
            await world.wait_for("n3 stopped", lambda: "n3" in world.failures)
            await world.wait_in_step()
            # Once only: of a node that stops again nobody has an explanation.
            await world.stop("n3")
            world.failures["n3"] = StorageError("the disk failed")
            await trio.sleep(2.0)
            assert not world.running("n3")
            nursery.cancel_scope.cancel()
        assert world.faults["wiped disk"] == 0
        return Judgement(acknowledged=1)

    _play(body)


@pytest.mark.long
def test_values_name_their_producer_and_never_repeat() -> None:
    async def body(world: World) -> Judgement:
        actor = ProducerActor(world, open_history(), "p7", "seed")
        values = [value for _ in range(50) for value in actor._make(20)]
        assert len(set(values)) == 1_000
        assert all(value.startswith("p7/") for value in values)
        return Judgement(acknowledged=1)

    _play(body)
