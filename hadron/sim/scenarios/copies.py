"""PROTOCOL B3, B6: nodes that have what nobody else has, and what their copies say of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from hadron.fakes.disk import FAST
from hadron.model.errors import HadronError, PeerError
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS
from hadron.storage.generations import OUTGOING

_ALL = ("n1", "n2", "n3")

_BIG: Final = 700_000

_SHORT_LOG: Final = replace(
    SETTINGS, log_keep_bytes=64 << 10, log_max_lag_bytes=256 << 10, scrub_interval_s=86_400.0
)
"""Bodies outlive their log rows, and damage is found by whoever reads it."""


@scenario("B6: a copy is given out when its own last entry is committed")
async def backup_of_a_leader_that_is_deposed_meanwhile(play: Play) -> None:
    """n1 leads, as the others confirm; before its slow disk has begun the copy for a backup it is
    cut off, and applies what nobody else has: the copy waits for the watermark. n2 is promoted and
    commits other entries of those numbers, which n1 hears of: the watermark covers the copy's end
    now, and it is another entry."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    old = world.config
    world.disks["n1"].speed = replace(FAST, hop_s=(1.0, 1.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_back_up, play, "n1")
        await trio.sleep(0.2)
        play.part("n1")
        for _ in range(3):
            await play.produce(play.value(), timeout_s=0.3)
        await world.wait_for(
            "n1's copy", lambda: any((world.data("n1") / OUTGOING).glob("*.db")), 10.0
        )
        world.disks["n1"].heal()
        world.promote("n2", _ALL)
        world.configs["n1"] = old
        await play.hand_out("n2", "n3")
        await world.wait_serving()
        await play.fill(3)
        await play.fill(3)
        play.join("n1")
        await play.publish("Y")
    await play.hand_out("n1")
    await world.wait_in_step()


async def _back_up(play: Play, name: str) -> None:
    with suppress(PeerError):
        await play.back_up(name)


@scenario("B6, A2: a backup of a leader has what others have acknowledged meanwhile")
async def backup_of_a_leader_that_does_not_know(play: Play) -> None:
    """n1 is cut off; n2 is promoted, and publishes. n1, all of whose entries are committed, is
    asked for a backup: by itself, and once more when it has heard."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    old = world.config
    play.part("n1")
    world.promote("n2", _ALL)
    world.configs["n1"] = old
    await play.hand_out("n2", "n3")
    await world.wait_serving()
    await play.publish("X")
    await _back_up(play, "n1")
    play.join("n1")
    await play.hand_out("n1")
    await world.wait_in_step()
    await play.back_up("n1")


@scenario("B6: a backup has what was acknowledged when it was begun")
async def backup_soon_after_another(play: Play) -> None:
    """A replica, then the leader, is backed up twice within a moment, and X is published between:
    the copy that lies there from the first time does not have it."""
    world = play.world
    await play.fill(3)
    for name in ("n3", "n1"):
        await world.wait_in_step()
        await play.back_up(name)
        await play.publish(f"X {name}")
        await world.wait_in_step()
        await play.back_up(name)


@scenario("B6: a copy of a stopped node's files says what is known to be committed")
async def backup_of_a_leader_that_was_killed(play: Play) -> None:
    """n1 is killed with what nobody else has in its tables, and a backup is made of its files. n2
    is promoted and goes another way; n1, restored from the backup, must follow."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    for _ in range(3):
        await play.produce(play.value(), timeout_s=0.3)
    await world.crash("n1", power=False)
    backup = play.backups.of_files(world, "n1")
    await play.promote("n2", _ALL, "n2", "n3")
    await play.publish("Y")
    world.hand_out("n1")
    play.backups.restore(world, "n1", backup)
    play.join("n1")
    await world.start("n1")
    await world.wait_in_step()


@scenario("B3: what a node notes that it has, nobody has it drop")
async def tail_that_goes_with_its_leader(play: Play) -> None:
    """n1, alone, writes for so long that it notes where its log is; n2 is promoted, and n1 drops
    what nobody else had. Its file is no older copy for that."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await trio.sleep(11.0)
    play.part("n1")
    for _ in range(6):
        await play.produce(play.value(_BIG), timeout_s=0.3)
    await play.promote("n2", _ALL, "n2", "n3")
    await play.publish("Y")
    play.join("n1")
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("B6: a copy has the bodies that were committed", settings=_SHORT_LOG)
async def copies_of_bodies_that_outlived_their_log(play: Play) -> None:
    """Bodies change on each disk in turn, with their pages' checksums, beneath a log whose rows are
    trimmed; before a scrub comes by, somebody asks that node for a backup, and again until it has
    mended itself."""
    world = play.world
    for _ in range(8):
        await play.fill(10, 6_000)
    for name in _ALL:
        await world.wait_in_step()
        await world.stop(name)
        world.disks[name].change_rows(5, trimmed_only=True)
        await world.start(name)
        await world.wait_serving()
        for _ in range(20):
            try:
                await play.back_up(name)
                break
            except HadronError:
                await trio.sleep(1.0)
        else:
            raise AssertionError(f"{name} does not mend itself")
    await play.read()
