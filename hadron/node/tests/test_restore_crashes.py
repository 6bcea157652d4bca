"""Backups and restores that are cut short at every step: nothing half-made passes for whole."""
# ruff: noqa: ARG002 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.node.backup import backup_directory, backup_live, find_node, open_backup
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.restore import restore_node, restore_set
from hadron.node.tests.support import fetch, make_stream, produce
from hadron.node.tests.test_resync import make_divergent_tail
from hadron.node.verification import verify_database, verify_paths
from hadron.node.world import SystemDisk
from hadron.replication.follower import LostEntriesError
from hadron.state.schema import current_index
from hadron.storage import generations
from hadron.storage.database import open_reader
from hadron.storage.generations import DATABASE
from hadron.storage.snapshot import Manifest
from hadron.testing.nodes import Nodes, SeededRandom, replica_set, running_nodes
from hadron.wire.system import SystemClock

DISK = SystemDisk()
BEFORE, AFTER = 10, 20
"""Records in the backup, and on the nodes' disks."""


class CrashError(Exception):
    """The process died."""


class CrashingDisk(SystemDisk):
    """Fails for good before or after its `n`-th step, or in the middle of a write."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise CrashError

    def write_at(self, path: Path, offset: int, data: bytes | memoryview) -> None:
        self._step()
        try:
            self._step()
        except CrashError:
            super().write_at(path, offset, data[: len(data) // 2])
            raise
        super().write_at(path, offset, data)

    def write_file(self, path: Path, data: bytes) -> None:
        self._step()
        super().write_file(path, data)
        self._step()

    def sync(self, path: Path) -> None:
        self._step()
        super().sync(path)

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)
        self._step()

    def switch(self, link: Path, target: str) -> None:
        self._step()
        super().switch(link, target)
        self._step()


def crashes(act: Callable[[SystemDisk], object], every: int = 1) -> Iterator[int]:
    """Crash `act` at each of its steps, one run after the other; yields after each crash."""
    for steps in range(0, 1_000, every):
        try:
            act(CrashingDisk(steps))
        except CrashError:
            yield steps
        else:
            assert steps > 5
            return


class State(NamedTuple):
    """What a node would start with; `uuid` and `promised` are of `node.db`, None without one."""

    is_member: bool
    uuid: bytes | None
    promised: Ballot
    generation: int
    last: bytes
    """The last entry's chain; b"" without a database."""
    led_under: bytes
    """The uuid of the last leader that the log tells of."""


def look(data: Path) -> State:
    member, uuid, promised = False, None, Ballot(0, 0)
    if (data / "node.db").exists():
        with closing(open_reader(data / "node.db")) as database:
            row: Any = database.execute(
                "SELECT is_member, uuid, epoch, incarnation FROM identity"
            ).fetchone()
        if row is not None:
            member, uuid, promised = bool(row[0]), row[1], Ballot(row[2], row[3])
    last = led_under = b""
    if (data / DATABASE).exists():
        assert verify_database(data / DATABASE, "local/p0").problems == []
        with closing(open_reader(data / DATABASE)) as database:
            chain: Any = database.execute(
                "SELECT chain FROM hadron_log ORDER BY lsn DESC LIMIT 1"
            ).fetchone()
            leader: Any = database.execute(
                "SELECT uuid FROM hadron_leadership ORDER BY lsn DESC LIMIT 1"
            ).fetchone()
        last, led_under = chain[0], leader[0]
    return State(member, uuid, promised, generations.current_number(data), last, led_under)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with three stopped nodes that have 20 records, and `backup`, with 10 of them."""
    root = tmp_path_factory.mktemp("stopped")

    async def make() -> None:
        async with running_nodes(root, 3) as nodes:
            await make_stream(nodes)
            for number in range(AFTER):
                async with nodes.connection("n1") as connection:
                    await produce(connection, b"%d" % number)
                if number == BEFORE - 1:
                    await nodes.wait_in_step()
                    async with nodes.client() as client:
                        node = await find_node(client, "n2")
                        await backup_live(
                            client, node.address, root / "backup", DISK, lambda _a, _b: None
                        )
            await nodes.wait_in_step()

    trio.run(make, clock=MockClock(rate=5))
    return root


@pytest.fixture
def world(stopped: Path, tmp_path: Path) -> Path:
    """A copy of `stopped` to break."""
    return shutil.copytree(stopped, tmp_path / "world")


def config_of(world: Path, epoch: int = 1) -> ReplicaSetConfig:
    return replace(replica_set(world, 3), epoch=epoch)


class TestBackups:
    def test_of_a_stopped_node(self, world: Path) -> None:
        destination = world / "new"
        part = world / "new.part"
        made: Manifest | None = None

        def act(disk: SystemDisk) -> None:
            backup_directory(world / "n3", destination, disk, SystemClock())

        for _ in crashes(act):
            if destination.exists():
                # The crash came after the rename: that name is given to what is whole only.
                made = open_backup(destination, DISK)
                shutil.rmtree(destination)
        assert made is not None
        assert open_backup(destination, DISK).position == made.position
        assert not part.exists()

    def test_a_damaged_write_ahead_log_makes_no_backup(self, world: Path) -> None:
        """SQLite would end it at the first bad frame, and the backup would lack what follows."""
        data = world / "killed"
        with closing(open_reader(world / "n2" / DATABASE)) as keeps_the_log:
            keeps_the_log.execute("SELECT 1 FROM hadron_log").fetchone()
            make_divergent_tail(world / "n2", Ballot(1, 1), 3)
            make_divergent_tail(world / "n2", Ballot(1, 1), 3)
            shutil.copytree(world / "n2", data)
        log = data / f"{DATABASE}-wal"
        content = bytearray(log.read_bytes())
        content[32 + 24 + 100] ^= 1
        log.write_bytes(content)
        with pytest.raises(CorruptionError, match=r"may lack what it .*is damaged"):
            backup_directory(data, world / "new", DISK, SystemClock())
        assert not (world / "new").exists()
        assert not (world / "new.part").exists()

    @pytest.mark.long
    async def test_of_a_running_node(self, tmp_path: Path, clock: MockClock) -> None:
        destination = tmp_path / "new"
        async with running_nodes(tmp_path, 1) as nodes:
            await make_stream(nodes)
            async with nodes.connection("n1") as connection:
                await produce(connection, b"x" * 100_000)
            async with nodes.client() as client:
                node = await find_node(client, None)
                crashed = 0
                for steps in range(1_000):
                    try:
                        manifest = await backup_live(
                            client,
                            node.address,
                            destination,
                            CrashingDisk(steps),
                            lambda _a, _b: None,
                        )
                    except CrashError:
                        crashed += 1
                        if destination.exists():
                            open_backup(destination, DISK)
                            shutil.rmtree(destination)
                    else:
                        break
                assert crashed > 5
                assert open_backup(destination, DISK) == manifest

    def test_the_log_of_a_node_that_was_killed_is_in_it_and_stays(
        self, world: Path, tmp_path: Path
    ) -> None:
        """Its last entries stand in the write-ahead log only, which a reader must not drop: a node
        that finds none after an unclean stop has lost its memory (PROTOCOL B4)."""
        data, running = tmp_path / "killed", world / "n2"
        with closing(open_reader(running / DATABASE)) as keeps_the_log:
            keeps_the_log.execute("SELECT 1 FROM hadron_log").fetchone()
            make_divergent_tail(running, Ballot(1, 1), 3)
            shutil.copytree(running, data)
        log = data / f"{DATABASE}-wal"
        size = log.stat().st_size
        assert size > 0
        manifest = backup_directory(data, tmp_path / "backup", DISK, SystemClock())
        assert bytes.fromhex(manifest.chain) == look(running).last
        assert manifest.committed_lsn == manifest.lsn - 3
        assert log.stat().st_size == size


class TestRestoringANode:
    @pytest.mark.long
    @pytest.mark.parametrize("target", ["full", "empty"])
    def test_a_disk_counts_with_the_old_data_or_not_at_all(self, world: Path, target: str) -> None:
        config, data = config_of(world), world / "n2"
        manifest = open_backup(world / "backup", DISK)
        if target == "empty":
            shutil.rmtree(data)
        original = world / "original"
        if data.exists():
            shutil.copytree(data, original)
        before = look(data) if data.exists() else None

        def act(disk: SystemDisk) -> None:
            shutil.rmtree(data, ignore_errors=True)
            if before is not None:
                shutil.copytree(original, data)
            restore_node(world / "backup", config, "n2", disk, overwrite=True)

        for _ in crashes(act):
            state = look(data)
            if before is None:
                assert not state.is_member
                assert state.last in (b"", bytes.fromhex(manifest.chain))
            else:
                assert state.promised >= before.promised
                assert state.uuid == before.uuid
                # A member has what it had; with the backup it is none.
                assert state.last == before.last or not state.is_member
                assert state.last in (before.last, bytes.fromhex(manifest.chain))
            restore_node(world / "backup", config, "n2", DISK, overwrite=True)
            state = look(data)
            assert not state.is_member
            assert state.last == bytes.fromhex(manifest.chain)
            assert state.uuid == bytes.fromhex(manifest.uuid)
        assert look(data).generation > 0


def restore_all(world: Path, disk: SystemDisk, epoch: int, seed: int = 1) -> Any:
    return restore_set(
        world / "backup",
        config_of(world, epoch),
        disk,
        SeededRandom(seed),
        SystemClock(),
        overwrite=True,
    )


def index_of(path: Path) -> int:
    """Of the schema; the next change has a higher one, and so have the objects that it makes."""
    with closing(open_reader(path)) as database:
        return current_index(database)


class TestRestoringAll:
    @pytest.mark.long
    def test_a_member_has_the_history_of_its_uuid(self, world: Path) -> None:
        """Never the old database with the new identity, nor the reverse."""
        originals = shutil.copytree(world, world.parent / "originals")
        names = ("n1", "n2", "n3")
        old = {name: look(world / name) for name in names}

        def act(disk: SystemDisk) -> None:
            for name in names:
                shutil.rmtree(world / name)
                shutil.copytree(originals / name, world / name)
            restore_all(world, disk, 2)

        mixed = 0
        for _ in crashes(act):
            states = {name: look(world / name) for name in names}
            for name, state in states.items():
                if state.is_member:
                    assert state.led_under == state.uuid
                    if state.uuid == old[name].uuid:
                        assert state.last == old[name].last
                    else:
                        assert state.promised == Ballot(2, 1)
            mixed += len({state.uuid for state in states.values()}) > 1
            assert len({state.last for state in states.values()}) <= 2
        assert mixed > 5
        done = [look(world / name) for name in names]
        assert {(state.uuid, state.last) for state in done} == {(done[0].uuid, done[0].last)}
        assert verify_paths([world / name for name in names]).ok

    def test_no_two_histories_of_one_backup_give_the_same_ids(self, world: Path) -> None:
        """What was made after the first restore is gone with the second, and clients still name it
        by the id that it had."""
        indexes = [index_of(world / "backup" / DATABASE)]
        for epoch in (2, 3):
            restore_all(world, DISK, epoch)
            indexes.append(index_of(world / "n1" / DATABASE))
            assert indexes[-1] == Ballot(epoch, 1).first_index
        assert indexes == sorted(indexes)

    def test_after_any_crash_it_can_be_begun_again(self, world: Path) -> None:
        epoch = 2

        def act(disk: SystemDisk) -> None:
            restore_all(world, disk, epoch)

        for _ in crashes(act, every=5):
            # What was begun may have promised the epoch already.
            epoch += 1
        again = restore_all(world, DISK, epoch + 1, seed=2)
        for name in ("n1", "n2", "n3"):
            state = look(world / name)
            assert (state.is_member, state.uuid, state.last) == (
                True,
                again.uuid,
                again.first.chain,
            )

    @pytest.mark.parametrize("steps", [10, 34, 41, 42, 48, 56, 57, 64, 71])
    async def test_nodes_that_start_after_a_crash_serve_one_history(
        self, world: Path, clock: MockClock, steps: int
    ) -> None:
        """The one that two of three still have, all of it, or they wait, or say why they stop."""
        with pytest.raises(CrashError):
            restore_all(world, CrashingDisk(steps), 2)
        old, new = (
            [b"%d" % number for number in range(AFTER)],
            [b"%d" % number for number in range(BEFORE)],
        )
        states = [look(world / name) for name in ("n1", "n2", "n3")]
        members = [state.promised.epoch for state in states if state.is_member]
        expected = old if members.count(1) >= 2 else new if members.count(2) >= 2 else None
        async with trio.open_nursery() as nursery:
            nodes = Nodes(world, 3, nursery)
            nodes.config = config_of(world, 2)
            await nodes.start()
            if expected is old and states[0].generation and not states[0].is_member:
                # The others teach it what it holds no more; it holds the new history's beginning.
                error = await nodes.wait_stopped("n1")
                lost = pytest.RaisesGroup(
                    LostEntriesError, flatten_subgroups=True, allow_unwrapped=True
                )
                assert lost.matches(error)
            elif expected is None or (members[0] == 2 and expected is old):
                await nodes.wait_for(
                    "told why",
                    lambda: any("uuid" in peer.trouble for peer in nodes.status("n1").peers),
                )
                assert nodes.status("n1").state == "waiting for a majority"
            else:
                await nodes.wait_serving()
                async with nodes.connection("n1") as connection:
                    assert await fetch(connection) == expected
            await nodes.crash()
            nursery.cancel_scope.cancel()
