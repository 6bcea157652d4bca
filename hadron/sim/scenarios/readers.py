"""PROTOCOL D3, D4, D5: what leaders say of records and of the schema to whoever asks; `watch` holds
it against their tables."""

from __future__ import annotations

from typing import Final

import trio

from hadron.client import Client
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.curious import SchemaActor, list_streams
from hadron.sim.scenarios.play import Play, scenario

_KEYED: Final = "keyed"


@scenario("D4: what is said of records is what the log has")
async def readers_at_a_new_leader(play: Play) -> None:
    """Records come under several ballots. Each time the leader begins anew it has none of them in
    memory: readers ask who wrote each record and when, go on behind it, and ask for the latest of a
    key."""
    world = play.world
    keyed = StreamSpec(partitions=(world.config.name,), keys="indexed")
    await play.declare_objects([SchemaObject(kind="Stream", name=_KEYED, spec=keyed)])
    for number in range(3):
        for which in range(2):
            await play.publish(f"{number}.{which}", f"{number}.{which} too")
            await trio.sleep(0.1)
        async with world.client("c1") as client:
            value = f"of a key {number}"
            operation = play.history.publish("c1", "", _KEYED, world.config.name, [value])
            receipt = await client.send(_KEYED, value, key="a")
            play.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
            await _ask_all(play, client)
        await world.crash("n1", power=True)
        await world.start("n1")
        await world.wait_serving()
        async with world.client("r1") as client:
            await _ask_all(play, client)


async def _ask_all(play: Play, client: Client) -> None:
    partition = play.world.config.name
    stream = await client.stream(STREAM)
    (known,) = await client.offsets(STREAM, partition=partition)
    stamps = set()
    for offset in range(known.first_offset, known.next_offset + 1):
        (before,) = await client.offsets(STREAM, partition=partition, before=offset)
        fetched = await client.fetch(
            STREAM, partition, offset, stream_id=stream.id, after=before.ballot
        )
        stamps |= {batch.append_ms for batch in fetched.batches}
    for stamp in sorted(stamps):
        for at_ms in (stamp, stamp + 1):
            await client.offsets(STREAM, partition=partition, at_ms=at_ms)
    if await client.latest(_KEYED, "a") is None:
        raise AssertionError("there is a record of the key")


@scenario("D3: a change of the schema is judged against what it is logged on")
async def schema_changed_by_several(play: Play) -> None:
    """Several change the schema at the same time, and each change takes long to be committed.
    Somebody lists what there is, at each node."""
    world = play.world
    for name in play.others("n1"):
        world.network.delay("n1", name, 0.1)

    async def change(number: int) -> None:
        host = f"s{number}"
        async with world.client(host) as client:
            for turn in range(3):
                name = f"made-{number}"
                spec = StreamSpec(partitions=(world.config.name,), description=f"turn {turn}")
                noted = play.history.apply(host, [("Stream", name)])
                try:
                    await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])
                except HadronError as error:
                    play.history.unknown(noted, error)
                else:
                    play.history.ok(noted)

    async def look() -> None:
        for _ in range(5):
            for name in world.names:
                await list_streams(world, name, "a0")
            await trio.sleep(0.3)

    await look()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(change, number)
        nursery.start_soon(look)
    for name in play.others("n1"):
        world.network.wire("n1", name).be_normal()
    await world.wait_in_step()
    await look()


@scenario("D3: what would lose records is refused where nobody insists")
async def records_that_nobody_means_to_lose(play: Play) -> None:
    """Somebody has a stream with a record. It would be shortened below that, and deleted, without
    anybody insisting on that, and be deleted for another one that had its name."""
    world = play.world
    actor = SchemaActor(world, play.history, "s0", f"{world.seed}/s0")
    async with world.client("s0") as client:
        for _ in range(10):
            await actor.lose_what_is_kept(client)
