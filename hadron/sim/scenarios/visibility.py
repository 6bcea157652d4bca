"""PROTOCOL A: who applies when, and what may be told before it is committed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

import apsw
import trio

from hadron.client.producing.publisher import Pending
from hadron.fakes.disk import FAST, SLOW
from hadron.model.errors import HadronError
from hadron.replication.life import Life
from hadron.sim.actors.clients import STREAM, text
from hadron.sim.actors.members import DrainingMember
from hadron.sim.evidence.history import Publish
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS
from hadron.storage.checksums import with_checksums

_PRODUCER = b"a producer's id."
_DIGESTS: Final = replace(SETTINGS, state_digest_interval_s=1.0)

_NARROW: Final = replace(SETTINGS, replication_window_bytes=1)
"""One group of entries is on its way to a replica at a time."""

_SOON_S: Final = 6.0
"""A few flushes of a slow disk, two of which may stall for two seconds each."""


@scenario("A1: replicas apply at commit", nodes=5)
async def replica_with_a_lost_claim(play: Play) -> None:
    """An entry is on n1 and n2, which is no majority of five; n1 loses its disk; the others go on
    without the entry. n2 must not have applied it, for there is no undo."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    play.part("n1", "n2")
    before = play.last_lsn("n2")
    await play.produce("on n1 and n2", timeout_s=1.0)
    await play.wait_holds("n2", before + 1)
    await world.crash("n1", power=False)
    world.wipe("n1")
    play.join("n1", "n2")
    play.part("n2")
    await world.start("n1")
    await world.wait_serving()
    await play.publish("without n2")
    play.join("n2")
    await world.wait_in_step()


@scenario("A2: nothing derived from an uncommitted entry leaves")
async def retry_of_an_uncommitted_batch(play: Play) -> None:
    """A batch is applied on n1 and not committed; the connection drops; the retry finds it in the
    dedupe table. Then n1 loses its disk, and the batch with it: nobody may have been told "ok"."""
    await play.fill(3)
    await play.world.wait_in_step()
    play.part("n1")
    first = await play.produce("X", producer=_PRODUCER, sequence=0, timeout_s=1.0)
    await play.produce("X", producer=_PRODUCER, sequence=0, timeout_s=1.0, again=first)
    await _lose_the_leaders_disk(play)


@scenario("A2: readers see committed records only")
async def read_of_an_uncommitted_record(play: Play) -> None:
    """A record is on n1's disk alone while readers, old and new, ask for all there is. Then n1
    loses its disk: nobody may have seen the record."""
    await play.fill(3)
    await play.world.wait_in_step()
    play.part("n1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: play.produce("X", timeout_s=2.0))
        await trio.sleep(0.5)
        for number in range(3):
            await play.read(host=f"r{number}", timeout_s=1.0)
    await _lose_the_leaders_disk(play)


@scenario("A2: groups are given committed records only")
async def delivery_of_an_uncommitted_record(play: Play) -> None:
    """Members of a group wait at n1 while a record is on n1's disk alone, and acknowledge what they
    get. Then n1 loses its disk: nobody may have been given the record, and no acknowledgement that
    was confirmed is lost."""
    world = play.world
    await play.fill(8)
    async with trio.open_nursery() as nursery:
        members = [
            DrainingMember(world, play.history, f"g{number}", f"{world.seed}/g{number}", "g")
            for number in range(2)
        ]
        for member in members:
            nursery.start_soon(member.run)
        await trio.sleep(1.0)
        play.part("n1")
        await play.produce("X", timeout_s=1.0)
        await trio.sleep(0.5)
        await play.lose("n1")
        play.join("n1")
        await world.start("n1")
        await world.wait_serving()
        nursery.cancel_scope.cancel()


@scenario("D2: a group's floor never passes a record that is not acknowledged")
async def records_acknowledged_out_of_turn(play: Play) -> None:
    """A member acknowledges every other record and goes away; n1 is killed; the others are given to
    the next member."""
    world, history, stream = play.world, play.history, (STREAM, play.world.config.name)
    for _ in range(6):
        await play.fill(1)
    async with (
        world.client("g0") as client,
        client.subscribe(STREAM, group="g", max_in_flight=10, member="g0") as subscription,
    ):
        settled = []
        for number in range(6):
            record = await anext(subscription)
            offset, value = record.offset, text(record.value)
            history.deliver("g0", "g", "g0", *stream, offset, [value], attempt=record.attempt)
            if number % 2:
                settled.append(history.settle("g0", "g", "g0", *stream, [(offset, offset)]))
                await record.ack()
                await subscription.flush()
        for settle in settled:
            history.ok(settle)
    await world.crash("n1", power=True)
    await world.start("n1")
    with trio.fail_after(60.0):
        await DrainingMember(world, history, "g1", f"{world.seed}/g1", "g").run()


@scenario("A3: committed is what the leader and a majority have persisted")
async def leader_dies_before_its_own_sync(play: Play) -> None:
    """The leader sends entries while its own fsync runs, and loses power before it is done, again
    and again, while one replica or the other is away."""
    world = play.world
    for round_number in range(8):
        away = play.others("n1")[round_number % 2]
        play.part(away)
        world.disks["n1"].broken.crash_at_sync_in = 1 + round_number % 3
        await play.publish(*(f"{round_number}/{n}" for n in range(20)), timeout_s=1.0)
        await world.crash("n1", power=True, style="dropped")
        world.disks["n1"].heal()
        play.join(away)
        play.part(play.others("n1", away)[0])
        await world.start("n1")
        with trio.move_on_after(5.0):
            await world.wait_serving()
        await play.publish(f"after {round_number}", timeout_s=2.0)
        play.join(play.others("n1", away)[0])
        await world.wait_in_step()


@scenario("A3: what a replica acknowledges is on its disk")
async def replica_dies_before_its_own_sync(play: Play) -> None:
    """n3 is away; n2, whose disk is slow, loses power at a sync, again and again; then n1's disk is
    lost. What was acknowledged is on n2's disk."""
    world = play.world
    world.disks["n2"].speed = SLOW
    for round_number in range(6):
        await play.fill(3)
        await world.wait_in_step()
        play.part("n3")
        world.disks["n2"].broken.crash_at_sync_in = 1 + round_number % 2
        await play.publish(f"X {round_number}", timeout_s=1.0)
        await world.crash("n2", power=True, style="dropped")
        world.disks["n2"].broken.crash_at_sync_in = 0
        await play.lose("n1")
        play.join("n3")
        await world.start("n1", "n2")
        await world.wait_serving()


@scenario("A1: a replica flushes what waits for its disk at once, not one append after the other")
async def slow_replica_is_needed(play: Play) -> None:
    """n3's disk is slow, n1's and n2's are not, and go on without it. Then n2 is away, and n3 is
    needed: X is acknowledged in seconds, whatever n3 has not written yet."""
    world = play.world
    for name in world.names:
        world.disks[name].speed = SLOW if name == "n3" else FAST
    for number in range(400):
        await play.produce(f"without n3 {number}")
    play.part("n2")
    asked_s = trio.current_time()
    await play.publish("X", timeout_s=60.0)
    took_s = trio.current_time() - asked_s
    assert took_s < _SOON_S, f"acknowledged after {took_s:.1f} s"
    play.join("n2")


@scenario("A3: a failed COMMIT ends the process")
async def failed_sync_of_the_leader(play: Play) -> None:
    """n1's disk fails at the sync of entries that n2 has already been sent, n3 is away; then n2 is
    away, and n1 starts again with n3: what was acknowledged is on n1's disk, or was not."""
    world = play.world
    for round_number in range(4):
        play.part("n3")
        world.disks["n1"].broken.sync_error_in = 1
        await play.publish(f"X {round_number}", timeout_s=1.0)
        await world.crash("n1", power=True)
        world.disks["n1"].broken.sync_error_in = 0
        play.join("n3")
        play.part("n2")
        await world.start("n1")
        await world.wait_serving()
        await play.publish(f"Y {round_number}")
        play.join("n2")
        await world.wait_in_step()


@scenario("A2: a retry after a restart finds its original")
async def retry_after_a_restart(play: Play) -> None:
    """Batches are acknowledged; the leader is killed, then loses its disk; after each the producer
    sends its last batch again, and goes on."""
    world = play.world
    last = await play.produce("0", producer=_PRODUCER, sequence=0)
    for number in range(1, 5):
        if number % 2:
            await world.crash("n1", power=True)
        else:
            await play.lose("n1")
        await world.start("n1")
        await world.wait_serving()
        await play.produce(str(number - 1), producer=_PRODUCER, sequence=number - 1, again=last)
        last = await play.produce(str(number), producer=_PRODUCER, sequence=number)
        await world.wait_in_step()


@scenario("D1: a producer is remembered for a day")
async def producers_idle_for_a_day(play: Play) -> None:
    """A producer is silent for 23 hours while others come, by each of which two that are idle for
    long are forgotten: its retry finds its original, and it goes on. After 26 hours it is a
    stranger that continues, and is refused."""
    world = play.world
    first = await play.produce("0", producer=_PRODUCER, sequence=0)
    last = first
    for number, hours in enumerate((23, 26)):
        await world.wait_in_step()
        await world.stop()
        world.turn_calendar(hours * 3_600.0)
        await world.start()
        await world.wait_serving()
        for byte in range(4):
            other = bytes([byte]) + f"other {number}".encode().ljust(15)
            if hours > 24 and byte == 1:
                # One new one has had two forgotten, and this was the fourth in line.
                third = bytes([3]) + b"other 0".ljust(15)
                await play.produce("other 0 3", producer=third, sequence=0, again=last)
                if not last.duplicate:
                    raise AssertionError("a new producer has had more than two forgotten")
            made = await play.produce(f"other {number} {byte}", producer=other, sequence=0)
            last = made if hours < 24 else last
        if hours < 24:
            await play.produce("0", producer=_PRODUCER, sequence=0, again=first)
            if not first.duplicate:
                raise AssertionError("what was sent again is not known as that")
            await play.produce("1", producer=_PRODUCER, sequence=1)
    if (await play.produce("2", producer=_PRODUCER, sequence=2)).outcome == "ok":
        raise AssertionError("a stranger that continues is taken for somebody who is known")


@scenario("B8: the log's time never goes back")
async def clock_that_jumps_back(play: Play) -> None:
    """The leader's wall clock jumps back under load, and is behind when the node starts again."""
    world = play.world
    for number in range(4):
        await play.fill(5)
        await trio.sleep(1.0)
        world.clocks["n1"].offset_s -= 1.1
        world.faults["clock jump"] += 1
        await play.fill(5)
        if number % 2:
            await world.crash("n1", power=False)
            await world.start("n1")
            await world.wait_serving()


@scenario("B8: who is more than 5 s off does not lead")
async def clock_far_off(play: Play) -> None:
    """The leader's clock is a minute ahead when it starts: it must not stamp records with that."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    await world.crash("n1", power=False)
    world.clocks["n1"].offset_s = 60.0
    world.faults["clock jump"] += 1
    await world.start("n1")
    with trio.move_on_after(5.0):
        await world.wait_serving()
        raise AssertionError("n1 leads, and its clock is a minute ahead")
    world.clocks["n1"].offset_s = 0.0
    await world.wait_serving()
    await play.fill(5)


@scenario("B8: who has not heard a majority's clocks does not lead")
async def clock_far_off_and_slow_peers(play: Play) -> None:
    """The leader's clock is an hour ahead when it starts, and peers take longer to tell theirs than
    it waits."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    await world.crash("n1", power=False)
    world.clocks["n1"].offset_s = 3600.0
    world.faults["clock jump"] += 1
    for slow in ("n2", "n3"):
        world.network.delay(slow, "n1", 1.2)
    await world.start("n1")
    with trio.move_on_after(20.0):
        await world.wait_serving()
        raise AssertionError("n1 leads, and nobody has told it the time")
    world.clocks["n1"].offset_s = 0.0
    world.network.heal_all()
    await world.wait_serving()
    await play.fill(5)


@scenario("B8: a clock is trusted when a majority has told its own")
async def clock_jumps_while_peers_stand_still(play: Play) -> None:
    """The leader's clock jumps by an hour while neither peer answers, over a look at their clocks:
    once they go on, it must not stamp records with that."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    play.part("n1")
    world.clocks["n1"].offset_s = 3600.0
    world.faults["clock jump"] += 1
    await trio.sleep(7.0)
    world.network.heal_all()
    await play.fill(5)
    await trio.sleep(7.0)
    if world.status("n1").state == Life.SERVING:
        raise AssertionError("n1 leads, and its clock is an hour ahead")
    world.clocks["n1"].offset_s = 0.0
    await world.wait_serving()
    await play.fill(5)


@scenario("B8: only a reading that the peers have confirmed is trusted")
async def clock_that_jumps_while_peers_answer(play: Play) -> None:
    """n1 asks slow peers what time it is there, at its start and again while it leads. At some
    moment of that its clock is an hour ahead for a while: nothing may be stamped with that."""
    world = play.world
    for name in ("n2", "n3"):
        world.network.delay(name, "n1", 0.4)
    for number in range(8):
        if number < 6:
            await world.crash("n1", power=False)
            await world.start("n1")
            await trio.sleep(0.2 * number)
        else:
            await trio.sleep(4.0 + 0.2 * number)
        world.clocks["n1"].offset_s = 3_600.0
        world.faults["clock jump"] += 1
        await trio.sleep(0.3)
        await play.produce(f"an hour ahead {number}", timeout_s=0.1)
        world.clocks["n1"].offset_s = 0.0
        await world.wait_serving()
        await play.publish(f"X {number}")


@scenario("A5: replicas compare what they have made of the log", settings=_DIGESTS)
async def row_changed_by_somebody(play: Play) -> None:
    """Somebody changes a row of n2's tables, with valid checksums, while it is stopped: it must
    notice by itself, and say so."""
    world = play.world
    await play.produce("X", producer=_PRODUCER, sequence=0)
    await world.wait_in_step()
    await world.stop("n2")
    path = str(world.data("n2") / "hadron.db")
    with closing(apsw.Connection(path, vfs=with_checksums("unix"))) as db:
        db.execute("UPDATE hadron_producer SET next_sequence = 99")
    play.history.event("damage", "n2", "a row was changed")
    world.faults["row changed"] += 1
    await world.start("n2")
    for _ in range(40):
        # Each digest is of some rows, and logged after a change.
        await play.fill(1)
        await trio.sleep(1.1)
        if play.history.events("diverged"):
            await world.wait_in_step()
            return
    raise AssertionError("n2 has other rows than the others, and has not noticed")


async def _lose_the_leaders_disk(play: Play) -> None:
    world = play.world
    await play.lose("n1")
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("D1: what follows waits until nothing is in doubt")
async def batch_in_doubt_behind_one_that_was_given_up(play: Play) -> None:
    """n1, which has no majority, answers neither A nor B, and is lost from sight; A is given up, B
    is not. When n1 is there again B goes there once more, under its old number, and C, which
    was never sent, has to wait: B might be lost on its way again, and C would be before it."""
    world, network = play.world, play.world.network
    play.part("n1")
    sent: list[tuple[Publish, Pending]] = []
    async with (
        world.client("c1") as client,
        client.producer(STREAM, linger_ms=0.0, delivery_timeout_s=6.0) as producer,
    ):

        async def send(value: str) -> None:
            operation = play.history.publish("c1", "c1", STREAM, world.config.name, [value])
            sent.append((operation, await producer.send_soon(value)))

        await send("A")
        await trio.sleep(4.0)
        await send("B")
        await play.wait_holds("n1", play.last_lsn("n2") + 2)
        network.cut("c1", "n1")
        network.break_connections("c1", "n1", lose_all=True)
        await trio.sleep(1.0)
        await send("C")
        await trio.sleep(2.0)
        network.heal("c1", "n1")
        await trio.sleep(1.0)
        play.join("n1")
        for operation, pending in sent:
            try:
                receipt = await pending.wait()
            except HadronError as error:
                play.history.unknown(operation, error)
            else:
                play.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
    outcomes = [operation.outcome for operation, _ in sent]
    if outcomes != ["unknown", "ok", "ok"]:
        raise AssertionError(f"A, B and C came out as {outcomes}")


@scenario("A3: what a replica lacks is sent, whoever waits", settings=_NARROW)
async def producer_that_waits_for_slow_replicas(play: Play) -> None:
    """Eight send at once, over slow wires and with small windows, and nobody sends more before
    all of that is acknowledged."""
    network = play.world.network
    for name in ("n2", "n3"):
        network.delay("n1", name, 0.05)
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(partial(play.fill, 3, 500, host=f"c{number + 1}"))
    network.heal_all()
    published = [each for each in play.history.of(Publish) if each.outcome != "ok"]
    if published:
        raise AssertionError("who waits for the replicas waits for ever")
