"""PROTOCOL B1 and B5: another leader, and other members, by a raised epoch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import trio

from hadron.fakes.disk import Speed
from hadron.model.errors import FencedError, HadronError
from hadron.model.ids import Ballot
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.replication.life import Life
from hadron.server.schema import to_message
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.members import DrainingMember
from hadron.sim.actors.raw_producer import ask_once
from hadron.sim.scenarios.learners import remembers
from hadron.sim.scenarios.play import Play, scenario
from hadron.storage.identity import PeerStart
from hadron.wire.messages import ballot_to, groups_pb2, method, schema_pb2, streams_pb2

_ALL = ("n1", "n2", "n3")


@scenario("B1: what carries a lower ballot is refused")
async def stale_leader_after_a_promotion(play: Play) -> None:
    """n2 is promoted while n1 sees n3 alone, which has promised n2's epoch; clients still reach n1
    and send it X. n1 must not get it acknowledged."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    world.network.cut("n1", "n2")
    await play.promote("n2", _ALL, "n2")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(partial(play.produce, f"X {number}", timeout_s=2.0))
    await play.publish("Y")
    await play.read()
    world.network.heal_all()
    await play.hand_out("n1", "n3")
    await world.wait_in_step()


@scenario("B1: a stale leader answers nothing")
async def stale_leader_alone_with_its_clients(play: Play) -> None:
    """n2 is promoted by n2 and n3 while n1, alone, still believes that it leads: what it is sent,
    and what it shows, must agree with what n2 commits."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.promote("n2", _ALL, "n2", "n3")
    await play.produce("X", timeout_s=1.0)
    await play.publish("Y")
    await play.read(host="r2")
    play.join("n1")
    await trio.sleep(1.0)
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("A2: when leading has ended, who waits for records is told so")
async def poll_at_a_leader_that_is_deposed(play: Play) -> None:
    """Somebody waits at n1 for what comes after its last record. n2 is promoted, n1 hears of it,
    and X is acknowledged. n1 must not say, when the time is over, that nothing has come."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    question = streams_pb2.FetchRequest(
        stream=STREAM, offset=3, max_bytes=1 << 20, max_wait_ms=20_000
    )
    async with trio.open_nursery() as nursery:

        async def poll() -> None:
            with suppress(HadronError):
                await ask_once(world, "n1", "c1", method("Fetch"), question, [], 30.0)

        nursery.start_soon(poll)
        await trio.sleep(0.5)
        await play.promote("n2", _ALL, "n2")
        await play.publish("X")
    await play.hand_out("n1", "n3")
    await world.wait_in_step()


@scenario("A2: a deposed leader does not answer from a stale table, nor for groups of its memory")
async def question_to_a_deposed_leader(play: Play) -> None:
    """n2 is promoted and Y is acknowledged while n1, alone, still believes that it leads. Asked how
    far groups are, it would tell of a stream without Y: it must not answer. Nor may it change the
    group that is in no table, which nothing could tell it that others have by now; nor say of the
    schema, which others may have changed, what would become of it, or that something is not there;
    nor that the log ends before Y.
    """
    world = play.world
    await play.fill(3)
    await DrainingMember(world, play.history, "g0", f"{world.seed}/g0", "g").run()
    await world.wait_in_step()
    stream: dict[str, Any] = {"stream": STREAM}
    beside: dict[str, Any] = {**stream, "group": "beside"}
    spec = StreamSpec(partitions=(world.config.name,), retention=play.retention)
    same = to_message(SchemaObject(kind="Stream", name=STREAM, spec=spec))
    other = to_message(SchemaObject(kind="Stream", name="other", spec=spec))
    missing = schema_pb2.DeleteObjectsRequest.Name(kind="Stream", name="missing")
    known = schema_pb2.DeleteObjectsRequest.Name(kind="Stream", name=STREAM)
    async with (
        world.client("g1") as client,
        client.subscribe(STREAM, group="beside", start="earliest", ephemeral=True) as member,
    ):
        await anext(member)
        play.part("n1")
        await play.promote("n2", _ALL, "n2", "n3")
        await play.publish("Y")
        async with trio.open_nursery() as nursery:
            for name, question in (
                ("ListGroups", groups_pb2.ListGroupsRequest(**stream)),
                ("ListGroups", groups_pb2.ListGroupsRequest(stream="missing")),
                ("DescribeGroup", groups_pb2.DescribeGroupRequest(**stream, group="g")),
                ("DescribeGroup", groups_pb2.DescribeGroupRequest(stream="missing", group="g")),
                ("DescribeGroup", groups_pb2.DescribeGroupRequest(**beside)),
                ("ResetGroup", groups_pb2.ResetGroupRequest(**beside, to="latest", force=True)),
                ("DeleteGroup", groups_pb2.DeleteGroupRequest(**beside, force=True)),
                ("ApplySchema", schema_pb2.ApplySchemaRequest(objects=[same])),
                ("ApplySchema", schema_pb2.ApplySchemaRequest(objects=[other], dry_run=True)),
                ("ApplySchema", schema_pb2.ApplySchemaRequest(objects=[same, same])),
                ("DeleteObjects", schema_pb2.DeleteObjectsRequest(names=[missing])),
                ("Fetch", streams_pb2.FetchRequest(**stream, offset=3, exists=True)),
                ("Fetch", streams_pb2.FetchRequest(**stream, offset=4)),
                (
                    "Fetch",
                    streams_pb2.FetchRequest(**stream, offset=4, after=ballot_to(Ballot(2, 1))),
                ),
                (
                    "DeleteObjects",
                    schema_pb2.DeleteObjectsRequest(
                        names=[known], dry_run=True, allow_destructive=True
                    ),
                ),
            ):
                nursery.start_soon(play.must_not_answer, "n1", name, question)
    play.join("n1")
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("A2: a round that was under way when a question came does not answer it")
async def question_while_a_round_is_under_way(play: Play) -> None:
    """What n2 and n3 say arrives at n1 half a second later. They have said that they follow it, for
    one who asked; then n2 is promoted, Y is acknowledged, and another asks n1. What arrives for the
    first was said before the second asked.
    """
    world = play.world
    await play.fill(3)
    await DrainingMember(world, play.history, "g0", f"{world.seed}/g0", "g").run()
    await world.wait_in_step()
    question = groups_pb2.DescribeGroupRequest(stream=STREAM, group="g")
    for peer in ("n2", "n3"):
        world.network.delay(peer, "n1", 0.5)

    async def ask_early() -> None:
        with suppress(HadronError):
            await ask_once(world, "n1", "c1", method("DescribeGroup"), question, [], 10.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_early)
        await trio.sleep(0.02)
        await play.promote("n2", _ALL, "n2", "n3")
        await play.publish("Y")
        await play.must_not_answer("n1", "DescribeGroup", question)
    world.network.heal_all()
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("W2: what waits for a deposed leader's disk leaves its gate")
async def commands_that_wait_for_a_deposed_leader(play: Play) -> None:
    """n1's disk is slow, and commands wait for it when n1 hears that n2 was promoted. They fail,
    and nothing of them may stay counted against those that come when n1 leads again."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    world.disks["n1"].speed = Speed(sync_s=(0.3, 0.4))
    for peer in ("n2", "n3"):
        # What refuses n1's next group says so while that is flushed, and others have come.
        world.network.delay(peer, "n1", 0.1, 0.15)
    deposed = trio.Event()

    async def keep_sending(name: int) -> None:
        for number in count():
            if deposed.is_set():
                break
            await play.produce(f"{name}/{number}", timeout_s=0.1)

    async with trio.open_nursery() as nursery:
        for name in range(8):
            nursery.start_soon(keep_sending, name)
        await trio.sleep(0.5)
        await play.promote("n2", _ALL, "n2", "n3")
        await world.wait_for("n1 deposed", lambda: world.status("n1").state != Life.SERVING, 30.0)
        deposed.set()
    world.network.heal_all()
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("B5: majorities of the old and of the new configuration", nodes=5)
async def members_leave_while_others_lag(play: Play) -> None:
    """X is on n1, n2 and n3; n4 and n5 lag. The next configuration has n3, n4 and n5 alone, and n3
    is away: n4 and n5 are a majority of the new members, but not of the old ones."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n4", "n5")
    await play.publish("X")
    await world.crash("n3", power=False)
    for name in ("n1", "n2"):
        play.part(name)
    world.network.heal("n4", "n5")
    await play.promote("n5", ("n3", "n4", "n5"), "n4", "n5", wait_s=10.0)
    await play.publish("Y", timeout_s=1.0)
    world.network.heal_all()
    await play.hand_out("n3")
    await world.wait_serving()
    await world.stop("n1", "n2")
    await world.wait_in_step()


@scenario("B5: an epoch begins on majorities of the old and of the new members", nodes=5)
async def epoch_that_others_have_not_begun(play: Play) -> None:
    """The members are to be n3, n4 and n5: all three promise, but n5's first entry gets to n4
    alone, which makes a majority of them. Then they are to be n1, n2 and n3, none of whom has heard
    of that entry: Y, which n4 and n5 have, must not have been acknowledged."""
    world, network = play.world, play.world.network
    await play.fill(3)
    await world.wait_in_step()
    first, end = world.config, play.last_lsn("n5")
    for name in ("n1", "n2"):
        play.part(name)
    network.delay("n5", "n3", 0.3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(play.promote, "n5", ("n3", "n4", "n5"), "n5", wait_s=5.0))
        await world.wait_for(
            "n5's first entry", lambda: world.running("n5") and play.last_lsn("n5") > end
        )
        play.part("n3")
        network.break_connections("n5", "n3", lose_all=True)
    await play.publish("Y", timeout_s=2.0)
    await world.stop("n4", "n5")
    network.heal_all()
    world.config = replace(first, epoch=world.config.epoch)
    await play.promote("n1", _ALL, *_ALL)
    await play.publish("Z")
    await world.wait_in_step()


@scenario("B5: empty joiners are learners", nodes=5)
async def members_come_and_the_old_ones_go(play: Play) -> None:
    """n4 and n5 lose their disks and are the new members, one leads; the old ones go one epoch
    later. Everything that was acknowledged goes along."""
    world = play.world
    await play.fill(30)
    await world.wait_in_step()
    for name in ("n4", "n5"):
        await world.crash(name, power=False)
        world.wipe(name)
    await play.promote("n4", ("n1", "n2", "n3", "n4", "n5"), "n4", "n5")
    await play.hand_out("n1", "n2", "n3")
    await world.wait_in_step()
    await play.publish("five members")
    await play.promote("n5", ("n3", "n4", "n5"), "n5", "n4", "n3")
    await world.stop("n1", "n2")
    await play.publish("three members")
    await world.wait_in_step()


@scenario("B1: an old configuration file is refused at start")
async def old_file_after_a_promotion(play: Play) -> None:
    """n2 is promoted while n1 is away; n1 has promised nothing, starts with its old file, and is
    told so; once it has promised it does not even start with it."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    old = world.config
    await world.crash("n1", power=True)
    await play.promote("n2", _ALL, "n2", "n3")
    world.configs["n1"] = old
    await world.start("n1")
    await play.produce("to the old leader", timeout_s=2.0)
    await world.wait_for(
        "the promise of n1", lambda: world.status("n1").ballot.epoch == world.config.epoch
    )
    await play.publish("to the new one")
    await world.crash("n1", power=True)
    try:
        await world.start("n1")
    except* FencedError:
        pass  # As it must.
    else:
        raise AssertionError("n1 has promised epoch 2 and starts with the file of epoch 1")
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("B5: a configuration begins with its leader")
async def new_file_ahead_of_its_leader(play: Play) -> None:
    """The file that promotes n2 is written; n3 crashes and starts with it, n1 and n2 have not been
    stopped. n1 leads n2 on, and clients must not wait for n2; then n2 and n1 get the file too."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await play.promote("n2", _ALL, "n3", wait_s=1.0)
    early = await play.publish("to n1", timeout_s=10.0)
    assert early.outcome == "ok"
    await play.hand_out("n2", "n1")
    await world.wait_serving()
    await play.publish("to n2")


@scenario("B3: an old copy of a disk counts in no majority")
async def old_copy_of_the_leaders_disk(play: Play) -> None:
    """n1's disk is copied, then X is on n1 and n2 while n3 lags. The old copy takes the disk's
    place: n1 and n3, without X, must not be a majority."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await world.stop("n1")
    image = _image(play, "n1")
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await play.lose("n1")
    for name, content in image.items():
        (world.data("n1") / name).write_bytes(content)
    await world.crash("n2", power=True)
    play.join("n3")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()


@scenario("B3: an old copy that hears of it in its own ballot does not lead by that")
async def old_copy_that_is_told_in_its_ballot(play: Play) -> None:
    """n1's disk goes back to before its last start, of which n3 alone knows, and of X, which both
    had. n1 is promoted, and copies with n2's promise what n2 has, when n3 comes and tells it."""
    world = play.world
    await play.promote("n3", _ALL, "n3", "n1", "n2")
    await play.fill(3)
    await world.wait_in_step()
    await world.stop("n1")
    image = _image(play, "n1")
    world.network.isolate("n1", "n2")
    await world.start("n1")
    for _ in range(8):
        await play.fill(2, 300_000)
    await world.wait_in_step()
    await world.crash("n2", power=False)
    await play.publish("X")
    await world.wait_in_step("n1")
    await world.crash("n3", power=False)
    await play.lose("n1")
    for name, content in image.items():
        (world.data("n1") / name).write_bytes(content)
    world.promote("n1", _ALL)
    for name in _ALL:
        world.hand_out(name)
    world.network.heal("n1", "n2")
    world.network.delay("n2", "n1", 0.2, 0.4)
    await world.start("n1", "n2")
    await world.wait_for("n1 copies", lambda: "copying" in world.status("n1").trouble, 10.0)
    await world.start("n3")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=5.0)
    world.network.delay("n2", "n1", 0.001)
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B3: an old copy that was taught is believed by who was away meanwhile")
async def old_copy_that_is_taught_while_one_is_away(play: Play) -> None:
    """n1 teaches n2, whose disk is an older copy and which n3 cannot reach. Then n2 and n3 meet
    while n1 is away: n3 must not have n2 forget once more, for n1 and n2 go on without it."""
    world = play.world

    def met_by(name: str) -> PeerStart:
        return world.node(name).member._store.identity.peer_starts["n2"][-1]

    await play.fill(3)
    await world.wait_in_step()
    await world.stop("n2")
    image, first = _image(play, "n2"), met_by("n1")
    await world.start("n2")
    await world.wait_for("both have met n2", lambda: met_by("n1") == met_by("n3") != first)
    second = met_by("n1")
    await play.lose("n2")
    for name, content in image.items():
        (world.data("n2") / name).write_bytes(content)
    world.network.isolate("n3", "n2")
    await world.start("n2")
    await world.wait_for(
        "n1 has taught n2", lambda: met_by("n1") != second and remembers(world, "n2")
    )
    await world.crash("n1", power=False)
    world.network.heal("n3", "n2")
    await world.wait_for(
        "n2 and n3 have met",
        lambda: _is_connected(play, "n3", "n2") and _is_connected(play, "n2", "n3"),
    )
    await world.crash("n3", power=False)
    await world.start("n1")
    counted = await play.publish("X")
    assert counted.outcome == "ok"


def _is_connected(play: Play, name: str, peer: str) -> bool:
    return any(
        each.name == peer and each.state == "connected" for each in play.world.status(name).peers
    )


def _image(play: Play, name: str) -> dict[str, bytes]:
    """What the disk of a stopped node has."""
    return {
        path.name: path.read_bytes() for path in play.world.data(name).iterdir() if path.is_file()
    }


@scenario("A4: schema comes by the log, also to who was away")
async def stream_declared_while_one_is_away(play: Play) -> None:
    """Streams are declared while n3 is away, and again after it has come back as the leader: all
    nodes make the same tables of it."""
    world = play.world
    play.part("n3")
    await _declare(play, "orders")
    await play.fill(3)
    play.join("n3")
    await world.wait_in_step()
    await play.promote("n3", _ALL, "n3", "n1", "n2")
    await _declare(play, "payments")
    await play.fill(3)
    await world.wait_in_step()


async def _declare(play: Play, name: str) -> None:
    operation = play.history.apply("c0", [("Stream", name)])
    spec = StreamSpec(partitions=(play.world.config.name,))
    async with play.world.client("c0") as client:
        await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])
    play.history.ok(operation)
