"""PROTOCOL A4, D1 and D3: several replica sets, whose schema comes from one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.raw_producer import ask_once
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.world.regions import AMERICA, EUROPE
from hadron.sim.world.replica_set import SETTINGS
from hadron.wire.messages import method, schema_pb2

PATIENT: Final = replace(SETTINGS, keepalive_s=10.0, silence_limit_s=30.0)
"""Connections live through seconds in which nothing arrives."""


@region_scenario("A4: what is adopted follows what was adopted before", settings=PATIENT)
async def push_that_arrives_late(play: RegionPlay) -> None:
    """The metadata set pushes a change of a stream to Europe, slowly. Its connection is broken
    meanwhile, so it asks anew, pushes the same again, then the next change; then the first push
    arrives."""
    regions, network = play.regions, play.regions.network

    def described(text: str) -> list[SchemaObject]:
        spec = StreamSpec(partitions=(EUROPE,), description=text)
        return [SchemaObject(kind="Stream", name="passing", spec=spec)]

    await play.declare("passing", [EUROPE])
    await regions.wait_same_schema()
    network.delay("m1", "e1", 6.0)
    await play.change(described("late"))
    await trio.sleep(1.0)
    network.wire("m1", "e1").be_normal()
    network.reset("m1", "e1")
    await regions.wait_same_schema()
    await play.change(described("latest"))
    await regions.wait_same_schema()
    await trio.sleep(8.0)
    await play.declare("another", [EUROPE])
    await regions.wait_same_schema()


@region_scenario("A4: a push resumes where the other side stands")
async def region_that_misses_changes(play: RegionPlay) -> None:
    """Europe is cut off from the metadata set, and keeps serving what it knows, while streams are
    declared, changed, deleted and declared again; then it must get all of that."""
    regions = play.regions
    regions.cut(play.metadata, play.europe)
    await trio.sleep(5.0)  # They give their connection up.
    for number in range(3):
        await play.declare(f"missed {number}".replace(" ", "-"), [EUROPE, AMERICA])
    await play.delete("missed-1")
    await play.declare("missed-1", [AMERICA])
    spec = StreamSpec(partitions=(EUROPE, AMERICA), description="changed")
    await play.change([SchemaObject(kind="Stream", name="missed-2", spec=spec)])
    async with play.producer(region=EUROPE) as publish:
        await publish("in Europe, cut off from the metadata set")
    regions.join(play.metadata, play.europe)
    await regions.wait_same_schema()


@region_scenario("D1: a record in doubt stays with its partition")
async def region_dies_with_an_answer(play: RegionPlay) -> None:
    """Europe logs records whose answers are under way when the whole set dies. Their producer sends
    new ones to America; those in doubt stay, and are answered when Europe is back."""
    world, network = play.europe, play.regions.network
    async with play.producer() as publish, trio.open_nursery() as nursery:
        for number in range(6):
            await publish(f"before {number}")
        network.delay("e1", "c1", 20.0)
        for number in range(8):
            nursery.start_soon(publish, f"while answers are slow {number}")
        await trio.sleep(0.5)
        await world.crash(power=True)
        # Until the producer has noticed, new records join those in doubt.
        await trio.sleep(2.0)
        for number in range(8):
            await publish(f"while Europe is away {number}")
        network.wire("e1", "c1").be_normal()
        await world.start()
        await world.wait_serving()


@region_scenario("D1: what may be logged stays in doubt, whatever another answer says")
async def region_that_has_no_room_for_what_it_has(play: RegionPlay) -> None:
    """Europe logs records whose answers are under way when the whole set dies. It comes back with a
    full disk: asked once more, it takes nothing. The records are in its log all the same: those of
    one producer do not go to America, and of those of another, which waits no longer, nobody
    knows."""
    world, network = play.europe, play.regions.network
    disk = world.disks[world.config.leader.name]
    reserve = world.config.settings.disk_reserve_bytes
    async with (
        play.producer() as publish,
        play.producer(host="c2", failover="none", timeout_s=6.0) as soon,
    ):
        for number in range(4):
            await publish(f"before {number}")
            await soon(f"soon before {number}")
        async with trio.open_nursery() as nursery:
            for host in ("c1", "c2"):
                network.delay("e1", host, 20.0)
            for number in range(4):
                nursery.start_soon(publish, f"while answers are slow {number}")
                nursery.start_soon(soon, f"soon while answers are slow {number}")
            await trio.sleep(0.5)
            await world.crash(power=True)
            for host in ("c1", "c2"):
                network.wire("e1", host).be_normal()
            disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 2
            await world.start()
            await world.wait_serving()
            await trio.sleep(8.0)
            disk.heal()


@region_scenario("D1: what may be in the log of one partition is not called lost by another")
async def region_without_room_for_what_another_has(play: RegionPlay) -> None:
    """Europe logs records whose answers are under way when the whole set dies. Their producer
    prefers twice to unknown and sends them to America, whose disk is full and takes none. Nobody
    knows of them then, for Europe has them; and its share of the buffer is free again."""
    network, america = play.regions.network, play.america
    disk = america.disks[america.config.leader.name]
    reserve = america.config.settings.disk_reserve_bytes
    async with play.producer(failover="duplicate", timeout_s=6.0) as publish:
        for number in range(4):
            await publish(f"before {number}")
        async with trio.open_nursery() as nursery:
            network.delay("e1", "c1", 20.0)
            disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 2
            for number in range(8):
                nursery.start_soon(publish, f"while answers are slow {number}")
            await trio.sleep(0.5)
            await play.europe.crash(power=True)
        network.wire("e1", "c1").be_normal()
        disk.heal()
        await play.europe.start()
        await play.europe.wait_serving()
        for number in range(4):
            await publish(f"after {number}")


@region_scenario("A4: parts of a push take effect together")
async def push_in_several_parts(play: RegionPlay) -> None:
    """Europe has missed so much that it comes in two parts; between them its leader dies."""
    regions, network = play.regions, play.regions.network
    regions.cut(play.metadata, play.europe)
    await trio.sleep(5.0)
    for number in range(6):
        await play.change(
            [
                SchemaObject(
                    kind="Stream",
                    name=f"wide{number}{letter}",
                    spec=StreamSpec(partitions=(EUROPE,), description=letter * 4_900),
                )
                for letter in "abcdefghijkl"
            ]
        )
    network.slow("m1", "e1", 1e5)
    regions.join(play.metadata, play.europe)
    await trio.sleep(3.0)
    await play.europe.restart("e1")
    network.wire("m1", "e1").be_normal()
    await regions.wait_same_schema()


@region_scenario("A4: the next leader pushes what is committed", nodes=(3, 1, 1))
async def metadata_leader_that_changes(play: RegionPlay) -> None:
    """The metadata set's leader is cut off from its peers with a change that nobody has committed,
    and another node leads: no set must ever see that change, and all must get those after it."""
    regions, network, metadata = play.regions, play.regions.network, play.metadata
    await play.declare("before", [EUROPE])
    await regions.wait_same_schema()
    network.isolate("m1", "m2", "m3")
    network.isolate("c0", "m2", "m3")
    spec = StreamSpec(partitions=(EUROPE, AMERICA))
    with trio.move_on_after(2.0):
        await play.change([SchemaObject(kind="Stream", name="uncommitted", spec=spec)])
    await metadata.crash("m1", power=False)
    network.heal_all()
    metadata.promote("m2")
    for name in ("m2", "m3"):
        metadata.hand_out(name)
        await metadata.restart(name)
    await metadata.wait_serving()
    await play.declare("after", [AMERICA])
    metadata.hand_out("m1")
    await metadata.start("m1")
    await regions.wait_same_schema()
    await play.delete("before")
    await regions.wait_same_schema()
    for name in metadata.names:
        await ask_once(
            metadata, name, "c0", method("GetObjects"), schema_pb2.GetObjectsRequest(), [], 10.0
        )


@region_scenario("D3: no id and no index means two things")
async def metadata_set_that_lost_its_logs_end(play: RegionPlay) -> None:
    """The metadata set's database is an earlier one, without the latest streams, of which both
    regions know. An operator goes on with that: streams that are declared now have ids of their
    own."""
    regions = play.regions
    earlier = await _copy_of_the_metadata_sets_database(play)
    for number in range(3):
        await play.declare(f"lost-{number}")
    await play.delete("lost-1")
    await regions.wait_same_schema()
    await _go_on_with(play, earlier)
    with trio.move_on_after(10.0):
        # Those who know more introduce themselves.
        await regions.wait_same_schema()
    _check_that_who_knows_more_is_told(play)
    for number in range(3):
        await play.declare(f"later-{number}")
    await regions.wait_same_schema()
    await play.delete("later-1")
    # They are in step, and still have what is lost.
    await play.europe.restart("e1")
    await play.america.restart("g1")
    await regions.wait_same_schema()
    await trio.sleep(5.0)
    _check_that_who_knows_more_is_told(play)


def _check_that_who_knows_more_is_told(play: RegionPlay) -> None:
    troubles = play.metadata.status("m1").cluster_trouble
    for name in (EUROPE, AMERICA):
        if not any(f"pushed to {name}: it knows" in each for each in troubles):
            raise AssertionError(f"that {name} knows more is not said: {troubles}")


@region_scenario("D3: no id and no index means two things, also of those who are away")
async def ids_lost_while_others_are_cut_off(play: RegionPlay) -> None:
    """As before, and twice: what the operator went on with first is lost as well. Both regions are
    cut off from the metadata set, each with one of the two ends that are lost, until streams have
    been declared: these have ids that neither region has ever heard of."""
    regions, metadata = play.regions, play.metadata
    earlier = await _copy_of_the_metadata_sets_database(play)
    for number in range(3):
        await play.declare(f"lost-{number}")
    await regions.wait_same_schema()
    regions.cut(metadata, play.europe)
    regions.cut(metadata, play.america)
    await _go_on_with(play, earlier)
    for number in range(3):
        await play.declare(f"lost-later-{number}")
    regions.join(metadata, play.america)
    await regions.wait_for(
        "America told",
        lambda: play.america.status("g1").metadata_index == metadata.status("m1").metadata_index,
    )
    regions.cut(metadata, play.america)
    await _go_on_with(play, earlier)
    for number in range(3):
        await play.declare(f"later-{number}")
    regions.join(metadata, play.europe)
    regions.join(metadata, play.america)
    await regions.wait_same_schema()


@region_scenario("D3: no id and no index means two things, whatever else is changed with it")
async def ids_lost_while_the_epoch_is_raised(play: RegionPlay) -> None:
    """The metadata set's database is an earlier one, and the operator who goes on with that raises
    the epoch in the same move; then does both where nothing is lost; then both again, the other way
    round; then goes on with the earlier one alone. Each time the regions are cut off, with what is
    lost, until other streams are there."""
    regions, metadata = play.regions, play.metadata
    earlier = await _copy_of_the_metadata_sets_database(play)
    for number, (loses, raises) in enumerate(
        ((True, "before"), (False, "after"), (True, "after"), (True, ""))
    ):
        for each in range(2):
            await play.declare(f"known-{number}-{each}")
        await regions.wait_same_schema()
        regions.cut(metadata, play.europe)
        regions.cut(metadata, play.america)
        latest = None if loses else await _copy_of_the_metadata_sets_database(play)
        await _go_on_with(play, latest or earlier, raises=raises)
        for each in range(3):
            await play.declare(f"later-{number}-{each}")
        regions.join(metadata, play.europe)
        regions.join(metadata, play.america)
        await regions.wait_same_schema()


async def _copy_of_the_metadata_sets_database(play: RegionPlay) -> bytes:
    metadata = play.metadata
    await metadata.stop("m1")
    copy = (metadata.data("m1") / "hadron.db").read_bytes()
    await metadata.start("m1")
    await metadata.wait_serving()
    return copy


async def _go_on_with(play: RegionPlay, earlier: bytes, *, raises: str = "") -> None:
    """The metadata set has only this database any more, and an operator recovers it, and raises the
    epoch "before" or "after" that, if at all."""
    metadata = play.metadata
    await metadata.stop("m1")
    play.history.event("restore", "m1", "an earlier hadron.db")
    (metadata.data("m1") / "hadron.db").write_bytes(earlier)
    # It did not go through this disk: it is read from the file again.
    metadata.disks["m1"].volume.files.clear()
    if raises == "before":
        metadata.promote("m1")
    metadata.recover("m1")
    if raises == "after":
        metadata.promote("m1")
    metadata.hand_out("m1")
    play.history.event("reconfigure", "m1", "loss")
    await metadata.start("m1")
    await metadata.wait_serving()


@region_scenario("B6: a cluster's backup, restored together", metadata_name="admin")
async def cluster_that_changes_during_its_backup(play: RegionPlay) -> None:
    """A stream is declared while a cluster is backed up, after the first set was begun with, and
    before the last one. Every disk is lost, and the cluster restored: the metadata set knows
    whatever another one has, what is declared now has ids of its own, and all take records."""
    regions, network = play.regions, play.regions.network
    async with play.producer(region=EUROPE) as publish:
        await publish("before the backup")
    begun: list[str] = []
    backups: list[Path] = []

    async def back_up() -> None:
        backups.append(await play.back_up_all(begun.append))

    network.delay("e1", "operator", 2.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(back_up)
        await regions.wait_for("the copy of Europe", lambda: EUROPE in begun)
        await play.declare("late", [EUROPE, AMERICA])
        await regions.wait_same_schema()
        network.wire("e1", "operator").be_normal()
    await play.declare("after-the-backup", [EUROPE, AMERICA])
    await regions.wait_same_schema()
    await play.restore_all(backups[0])
    await play.declare("after-the-restore", [EUROPE, AMERICA])
    await regions.wait_same_schema()


@region_scenario("D3: who has not heard of an id says that it is behind")
async def stream_that_is_news_to_its_leader(play: RegionPlay) -> None:
    """Europe is cut off from the metadata set when a stream is declared there. A producer sends to
    Europe by the stream's id at once: its record waits until Europe has heard of the stream."""
    regions = play.regions
    regions.cut(play.metadata, play.europe)
    await play.declare("news", [EUROPE])
    async with regions.client("c1") as client, trio.open_nursery() as nursery:
        item = await client.stream("news")
        async with client.producer("news") as producer:
            nursery.start_soon(play.send_to, producer, item, "by the id")
            await trio.sleep(2.0)
            regions.join(play.metadata, play.europe)
            await regions.wait_same_schema()
            await play.send_to(producer, item, "to one that knows it")


@region_scenario("D3: a stream deleted and created again is another stream")
async def stream_that_is_made_again(play: RegionPlay) -> None:
    """A producer is cut off while its stream is deleted and declared again; what it sends then must
    not be in the new one."""
    regions = play.regions
    await play.declare("passing", [EUROPE])
    await regions.wait_same_schema()
    async with regions.client("c1") as client:
        first = await client.stream("passing")
        async with client.producer("passing", delivery_timeout_s=5.0) as producer:
            await play.send_to(producer, first, "to the first")
            regions.network.isolate("c1", "m1", "g1")
            await play.delete("passing")
            await play.declare("passing", [EUROPE])
            await regions.wait_same_schema()
            await play.send_to(producer, first, "to the first, when there is a second")
            regions.network.heal_all()
            await play.send_to(producer, first, "to the first, which is gone")
    async with regions.client("c2") as client:
        second = await client.stream("passing")
        async with client.producer("passing") as producer:
            await play.send_to(producer, second, "to the second")


@region_scenario("D3: who has deleted a stream writes no more to it")
async def stream_that_its_sender_makes_again(play: RegionPlay) -> None:
    """Europe is cut off from the metadata set when a client deletes a stream there and makes it
    again. What this client sends then is in the new one, though Europe would take it for the old
    one."""
    regions = play.regions
    await play.declare("passing", [EUROPE])
    await regions.wait_same_schema()
    async with regions.client("c1") as client, trio.open_nursery() as nursery:
        first = await client.stream("passing")
        await play.send_to(await client._standing.producer("passing"), first, "to the first")
        regions.cut(play.metadata, play.europe)
        await client.delete(first, allow_destructive=True)
        second = await client.create_stream("passing", partitions=[EUROPE])
        producer = await client._standing.producer("passing")
        nursery.start_soon(play.send_to, producer, second, "to the second")
        await trio.sleep(2.0)
        regions.join(play.metadata, play.europe)
        await regions.wait_same_schema()


@region_scenario("a region that a client cannot reach")
async def region_behind_another_node(play: RegionPlay) -> None:
    """A client reaches Europe only through other nodes: they forward, records, answers and reads,
    and it is not cut off when one of these nodes goes."""
    play.regions.network.isolate("c1", "e1")
    async with play.producer(region=EUROPE) as publish:
        for number in range(5):
            await publish(f"through another node {number}")
        await play.america.crash("g1", power=True)
        for number in range(5):
            await publish(f"through the metadata set {number}")
    await play.america.start("g1")
