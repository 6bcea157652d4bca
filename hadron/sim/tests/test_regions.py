"""Several replica sets in one world: they find each other, share a schema, are judged together."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import trio

from hadron.fakes.trace import Trace
from hadron.sim.actors.clients import STREAM
from hadron.sim.checks.regions import check_regions
from hadron.sim.evidence.history import History, Publish
from hadron.sim.evidence.node_files import NodeFile
from hadron.sim.evidence.regions import Cluster
from hadron.sim.runs.debts import settle
from hadron.sim.runs.region_run import RegionRun
from hadron.sim.runs.run import Judgement, Outcome, run_in
from hadron.sim.scenarios.region_play import RegionPlay
from hadron.sim.world.regions import AMERICA, EUROPE, METADATA, Regions, open_regions


def run(seed: int, body: object, nodes: tuple[int, int, int] = (1, 1, 1)) -> Outcome:
    trace = Trace()
    opening = open_regions(seed, nodes=nodes, trace=trace)
    return run_in(seed, opening, body, trace=trace)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("nodes", [(1, 1, 1), (3, 2, 3)])
def test_sets_find_each_other_and_share_a_schema(nodes: tuple[int, int, int]) -> None:
    async def body(regions: Regions) -> Judgement:
        await RegionRun(regions).declare()
        await regions.wait_same_schema()
        async with regions.client() as client, client.producer(STREAM) as producer:
            receipts = [await producer.send(f"record {number}") for number in range(20)]
            topology = await client.topology()
        assert [each.name for each in topology.replica_sets] == [METADATA, EUROPE, AMERICA]
        assert {receipt.partition for receipt in receipts} == {EUROPE, AMERICA}
        return Judgement(acknowledged=len(receipts))

    first, second = (run(3, body, nodes) for _ in range(2))
    assert first.violations == []
    assert first.acknowledged == 20
    assert first.trace_hash == second.trace_hash


def test_a_node_that_has_moved_is_heard_of_everywhere() -> None:
    """And until it is, that is owed."""

    async def body(regions: Regions) -> Judgement:
        world = regions.sets[EUROPE]
        world.move("e1")
        assert set(await settle(regions.sets.values(), patience_s=0.0)) == {"m1", "e1", "g1"}
        await world.restart("e1")
        await regions.wait_serving()
        assert await settle(regions.sets.values()) == {}
        return Judgement(acknowledged=1)

    assert run(3, body).violations == []


@pytest.mark.long
def test_who_moves_keeps_its_role_in_an_older_file() -> None:
    """e1 has not heard that e2 is to lead."""

    async def body(regions: Regions) -> Judgement:
        world = regions.sets[EUROPE]
        world.promote("e2")
        world.move("e1")
        await world.restart("e1")
        assert world.configs["e1"].leader.address == world.config.node("e1").address == "e1:7001"
        assert world.config.leader.name == "e2"
        world.hand_out("e1")
        world.hand_out("e2")
        await world.restart()
        await regions.wait_serving()
        return Judgement(acknowledged=1)

    assert run(3, body, (1, 2, 1)).violations == []


def test_a_second_set_of_a_name_gets_nothing_and_changes_nothing() -> None:
    async def body(regions: Regions) -> Judgement:
        await RegionRun(regions).declare()
        await regions.wait_same_schema()
        world = regions.sets[EUROPE]
        index = regions.metadata.status("m1").metadata_index
        async with world.another() as other:
            await other.wait_serving()
            await trio.sleep(5.0)
            assert other.status("e1").metadata_index == 0
        await world.start()
        await regions.wait_same_schema()
        assert regions.metadata.status("m1").metadata_index == index
        return Judgement(acknowledged=1)

    assert run(3, body).violations == []


class Scene:
    """What a small run that did everything right left behind, for the tests to spoil."""

    def __init__(self, cluster: Cluster) -> None:
        self.history = History(cluster.history.tick)
        self.history.entries = copy.deepcopy(cluster.history.entries)
        self.files = {name: copy.deepcopy(list(files)) for name, files in cluster.files.items()}
        self._cluster = cluster

    def file(self, name: str) -> NodeFile:
        return self.files[name][0]

    def publish(self) -> Publish:
        return self.history.of(Publish)[0]

    def broken(self) -> set[str]:
        """The names of the checks that find fault."""
        spoiled = Cluster(self.history, METADATA, self.files, self._cluster.rules)
        return {violation.invariant for violation in check_regions(spoiled).violations}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    left: list[Cluster] = []

    async def body(regions: Regions) -> Judgement:
        play = RegionPlay(regions)
        await play.declare()
        await play.declare("passing", [EUROPE])
        await play.delete("passing")
        await play.declare("passing", [EUROPE])
        async with play.producer() as publish:
            for number in range(6):
                await publish(f"record {number}")
        await regions.wait_same_schema()
        await regions.stop()
        found = play.cluster(None)
        ended = found.history.tick()
        history = History(lambda: ended)
        history.entries = found.history.entries
        left.append(replace(found, history=history))
        return Judgement(acknowledged=6)

    assert run(1, body).violations == []
    return left[0]


@pytest.fixture
def scene(cluster: Cluster) -> Scene:
    return Scene(cluster)


def test_a_run_that_did_everything_right_is_valid(scene: Scene) -> None:
    assert scene.broken() == set()


def test_an_object_that_is_missing_somewhere_is_found(scene: Scene) -> None:
    file = scene.file(EUROPE)
    file.objects.popitem()
    assert "schema_is_the_metadata_sets" in scene.broken()


def test_an_object_that_was_not_changed_with_the_others_is_found(scene: Scene) -> None:
    file = scene.file(AMERICA)
    object_id, (spec, index) = file.specs.popitem()
    file.specs[object_id] = spec.replace(EUROPE, AMERICA), index
    assert "schema_is_the_metadata_sets" in scene.broken()


def test_an_index_that_never_was_is_found(scene: Scene) -> None:
    scene.file(EUROPE).schema_index += 100
    assert "schema_is_the_metadata_sets" in scene.broken()


def test_a_change_that_was_skipped_is_found_in_the_log(scene: Scene) -> None:
    log = scene.file(EUROPE).log
    adopted = [lsn for lsn, row in log.items() if row.command[1] == 11]
    lsn = adopted[len(adopted) // 2]
    log[lsn] = replace(log[lsn], command=log[1].command)
    assert "pushes_follow_each_other" in scene.broken()


def test_a_set_that_is_behind_after_healing_is_found(scene: Scene) -> None:
    scene.history.event("heal")
    file = scene.file(EUROPE)
    file.schema_index -= 1
    assert "schema_arrives_everywhere" in scene.broken()


def test_a_deletion_that_was_acknowledged_and_not_done_is_found(scene: Scene) -> None:
    operation = scene.history.apply("c9", [("Stream", STREAM)], deletes=True)
    operation.ids = [min(scene.file(METADATA).objects)]
    scene.history.ok(operation)
    assert scene.broken() == {"schema_changes_stay"}


def test_a_declaration_that_was_acknowledged_and_is_not_there_is_found(scene: Scene) -> None:
    operation = scene.history.apply("c9", [("Stream", "nowhere")])
    operation.metadata_index = scene.file(METADATA).schema_index
    scene.history.ok(operation)
    assert scene.broken() == {"schema_changes_stay"}


@pytest.mark.parametrize(
    ("failover", "broken"), [("any", {"published_once"}), ("duplicate", set())]
)
def test_a_record_in_two_partitions_is_found(
    cluster: Cluster, scene: Scene, failover: str, broken: set[str]
) -> None:
    one, other = scene.history.of(Publish)[:2]
    assert one.partition != other.partition
    # The second is acknowledged as it was; the first one's partition has another of it.
    batches = cluster.sets[one.partition].contents(STREAM)
    assert batches.values[one.runs[0][0]] == one.values[0]
    scene.history.entries.remove(one)
    other.values, other.failover = one.values, failover
    evidence = cluster.sets[other.partition]
    row = scene.file(other.partition).log[evidence.contents(STREAM).lsns[other.runs[0][0]]]
    source = scene.file(one.partition).log[batches.lsns[one.runs[0][0]]]
    scene.file(other.partition).log[row.lsn] = replace(
        row, body=source.body, body_hash=source.body_hash
    )
    assert scene.broken() == broken


def test_a_record_outside_its_region_is_found(scene: Scene) -> None:
    publish = scene.publish()
    publish.allowed = [EUROPE if publish.partition == AMERICA else AMERICA]
    assert "published_once" in scene.broken()
