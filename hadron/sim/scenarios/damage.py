"""PROTOCOL A6, A8, B3, B4, C: disks that change, go back in time, or go away beneath a node."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import trio

from hadron.model.errors import CorruptionError
from hadron.node.member import Member
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS
from hadron.storage.bodies import damaged_entry
from hadron.storage.checksums import with_checksums

_NO_SCRUBS: Final = replace(SETTINGS, scrub_interval_s=86_400.0)
"""Damage is found by whoever reads it."""

_NOTHING_BESIDE: Final = replace(_NO_SCRUBS, state_digest_interval_s=86_400.0)
"""Logs end with what the story has put there."""

_SHORT_LOG: Final = replace(_NOTHING_BESIDE, log_keep_bytes=1 << 10, log_max_lag_bytes=4 << 10)
"""Who is away for a moment needs a snapshot."""


@scenario("A6: what leaves a disk is compared with its hash", settings=_NO_SCRUBS)
async def body_changed_by_somebody(play: Play) -> None:
    """Somebody changes a record on n1, with valid page checksums, while it is stopped and n3 away:
    whoever reads it, a client or n3, which lacks it, gets what n2 has."""
    world = play.world
    for is_read_first in (True, False):
        await play.fill(3)
        await world.wait_in_step()
        await world.stop("n3")
        await play.publish(f"X, {is_read_first=}")
        await world.wait_in_step("n1", "n2")
        await _damage_last_body(play)
        if is_read_first and (await play.read()).outcome != "ok":
            raise AssertionError("a reader is not given what n2 has")
        await world.start("n3")
        await world.wait_in_step()


@scenario("A8: batches of one entry stand or fall together", settings=_NO_SCRUBS)
async def batches_of_one_entry(play: Play) -> None:
    """Three batches are one entry, again and again: its body is damaged on n1, with valid page
    checksums, where it was logged and nobody has read it; then nodes lose their power while the
    next one is under way."""
    world = play.world
    for number in range(3):
        await play.fill(2)
        values = [f"{number}: {each} of one entry" for each in ("first", "second", "last")]
        published = await play.together(*values)
        if published.outcome != "ok":
            raise AssertionError("one entry cannot have several batches")
        await world.wait_in_step()
        await _damage_last_body(play)
        # Up to the damage first, which is in the last one.
        first, last = published.runs[0][0], published.runs[-1][0]
        seen = [(await play.read(offset=offset)).values for offset in (first, last, first)]
        if seen != [values[:2], values[2:], values]:
            raise AssertionError(f"readers are given {seen} of {values}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play.together, *(f"{value}, in the dark" for value in values))
            await trio.sleep(world.random.uniform(0, 0.002))
            await world.crash(power=True)
            nursery.cancel_scope.cancel()
        await world.start()
        await world.wait_serving()
        await world.wait_in_step()
        shown = set((await play.read()).values)
        if 0 < len(shown & {f"{value}, in the dark" for value in values}) < len(values):
            raise AssertionError("a part of an entry is there without the others")


async def _damage_last_body(play: Play) -> None:
    """Of n1, while it is stopped."""
    world, lsn = play.world, play.last_lsn("n1")
    await world.stop("n1")
    _change_a_body(world.data("n1"), lsn)
    play.history.event("damage", "n1", f"the body of entry {lsn}")
    world.faults["row changed"] += 1
    await world.start("n1")
    await world.wait_serving()


def _change_a_body(directory: Path, lsn: int) -> None:
    with closing(apsw.Connection(str(directory / "hadron.db"), vfs=with_checksums("unix"))) as db:
        body = bytearray(db.execute("SELECT bytes FROM hadron_body WHERE lsn = ?", (lsn,)).get)
        body[-1] ^= 1
        db.execute("UPDATE hadron_body SET bytes = ? WHERE lsn = ?", (bytes(body), lsn))


@scenario("B4: what was repaired is on the disk", settings=_NO_SCRUBS)
async def same_record_on_one_running_disk_after_the_other(play: Play) -> None:
    """Bits flip beneath running nodes, first in their write-ahead logs and then in their files: the
    same record on n1, on n2 once n1 has said that it is repaired, then on n3. All lose their power
    after that. Whoever repairs what it has in its caches has repaired nothing."""
    world = play.world
    for where in ("log", "file"):
        needle = f"X in the {where}"
        # On pages of its own, which nobody writes again.
        value = play.value(6_000) + needle
        await play.fill(3)
        await play.publish(value)
        await play.fill(3)
        await world.wait_in_step()
        for name in world.names:
            if where == "file":
                connection = world.node(name).member._store.writer.connection
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        for name in world.names:
            member = world.node(name).member
            before = member._repairer.repaired
            in_log = where == "log"
            assert world.disks[name].flip_live(needle=needle.encode(), in_log=in_log)
            member._scrubber.hurry(CorruptionError("somebody has `hadron verify` look"))
            await world.wait_for(f"{name} repaired", partial(_has_repaired, member, before), 60.0)
        await world.crash(power=True)
        await world.start()
        await world.wait_serving()
        await world.wait_in_step()
        seen = await play.read()
        if value not in seen.values:
            raise AssertionError(f"{needle!r} is gone, and every node had said it was repaired")


@scenario("A6: a repair never mixes two leaders' entries", settings=_NOTHING_BESIDE)
async def damaged_tail_beside_another_leaders_log(play: Play) -> None:
    """n1 has written what nobody else has, and somebody has changed the first and the last of these
    records. n3 leads; n2, which n1 can reach, has other entries in these places, with a sound
    chain: they are not what n1 has lost, and its log must not become a mixture of both."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    end = play.last_lsn("n1")
    lost = end + 1, end + 3
    play.part("n1")
    for number in range(3):
        await play.produce(f"on n1 alone {number}", timeout_s=0.3)
        await play.wait_holds("n1", end + 1 + number)
    await world.stop("n1")
    for lsn in lost:
        _change_a_body(world.data("n1"), lsn)
        play.history.event("damage", "n1", f"the body of entry {lsn}")
        world.faults["row changed"] += 1
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await play.publish("X")
    await play.publish("Y")
    await world.wait_in_step("n2", "n3")
    play.join("n1")
    world.network.isolate("n1", "n3")
    world.hand_out("n1")
    await world.start("n1")
    repairer = world.node("n1").member._repairer
    for lsn in lost:
        repairer.found(damaged_entry(lsn, f"the body of entry {lsn} does not match its hash"))
    await world.wait_for(
        "n2 asked for its copies",
        lambda: (
            all("n2: " in repairer._hopeless.get(lsn, "") for lsn in lost)
            or bool(repairer.repaired)
        ),
    )
    world.network.heal_all()
    await world.wait_in_step()


@scenario(
    "A8: a body whose entry is trimmed is given back as it was committed", settings=_SHORT_LOG
)
async def damaged_body_beside_another_leaders_entry(play: Play) -> None:
    """n1 has written what nobody else has, then n2 leads and trims its log. A body of it is damaged
    on n2, with valid page checksums, while n3 is away; n1, which needs a snapshot, has another
    entry in its place, of the same size: that was never committed, and n2 must wait for n3."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    lsn = play.last_lsn("n1") + 2
    play.part("n1")
    for number in range(3):
        await play.produce(f"of n1 {number}", timeout_s=0.3)
    await play.wait_holds("n1", lsn + 1)
    await world.stop("n1")
    await play.promote("n2", ("n1", "n2", "n3"), "n2", "n3")
    await play.produce("of us 1", node="n2")
    await play.fill(20, 2_000)
    await world.wait_in_step("n2", "n3")
    store = world.node("n2").member._store
    await world.wait_for("a trimmed log", lambda: store.log.anchor.lsn > lsn)
    await world.stop("n3")
    await world.stop("n2")
    _change_a_body(world.data("n2"), lsn)
    play.history.event("damage", "n2", f"the body of entry {lsn}")
    world.faults["row changed"] += 1
    play.join("n1")
    world.hand_out("n1")
    await world.start("n2")
    await world.start("n1")
    repairer = world.node("n2").member._repairer
    repairer.found(damaged_entry(lsn, f"the body of entry {lsn} does not match its checksum"))
    await world.wait_for(
        "n1 asked for its copy",
        lambda: "n1: " in repairer._hopeless.get(lsn, "") or bool(repairer.repaired),
    )
    await world.start("n3")
    await world.wait_serving()
    await world.wait_for("n2 repaired", lambda: bool(repairer.repaired), 60.0)
    await world.wait_in_step()


def _has_repaired(member: Member, before: int) -> bool:
    return member._repairer.repaired > before and not member._repairer.trouble


@scenario("C: a disk that is not there any more acknowledges nothing")
async def directory_deleted_beneath_a_node(play: Play) -> None:
    """The data directory of n3 is deleted while it runs. It could go on reading and writing files
    that its next start would not find; so from a moment later on nothing is on every disk."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.history.event("wipe", "n3", "its directory was deleted")
    world.disks["n3"].lose_directory()
    await trio.sleep(1.5)
    late = await play.publish("on every disk", acks="all", timeout_s=2.0)
    if late.outcome == "ok":
        raise AssertionError("acknowledged by a disk that is gone")
    await world.crash("n3", power=False)
    await world.start("n3")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B3: a database that goes back in time alone")
async def older_database_beside_its_identity(play: Play) -> None:
    """X is on n1 and n2 while n3 lags. n1 is stopped in order, its `hadron.db` is replaced by an
    earlier copy and its `node.db` stays: n1 and n3, without X, must not be a majority."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await world.stop("n1")
    earlier = (world.data("n1") / "hadron.db").read_bytes()
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.stop("n1")
    play.history.event("restore", "n1", "an earlier hadron.db")
    (world.data("n1") / "hadron.db").write_bytes(earlier)
    # It did not go through this disk: it is read from the file again.
    world.disks["n1"].volume.files.clear()
    await world.crash("n2", power=True)
    play.join("n3")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B3: a write-ahead log that is gone may have had what was acknowledged")
async def log_removed_after_a_kill(play: Play) -> None:
    """X is on n1 and n2 while n3 lags. n2 is killed, and its `hadron.db-wal`, in which X is, does
    not come along to its new disk: n2 must not count before it is taught again."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.crash("n2", power=False)
    play.history.event("damage", "n2", "its write-ahead log is gone")
    (world.data("n2") / "hadron.db-wal").resolve().unlink()
    world.disks["n2"].volume.files.clear()
    await world.start("n2")
    await world.wait_serving()
    await play.publish("Y")
    play.join("n3")
    await world.wait_in_step()
