"""What operators do with backups in a simulated world, by the code of `hadron backup` and `hadron
restore`. Their own disk, on which backups are, is spared every fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from hadron.client import Client
from hadron.fakes.clocks import SimRandom
from hadron.fakes.disk import SimDisk
from hadron.node.backup import Progress, backup_directory, backup_live
from hadron.node.cluster_backup import backup_cluster, choose
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.restore import restore_node, restore_set
from hadron.sim.world.replica_set import World
from hadron.wire.messages import cluster_pb2


class Backups:
    """The operators' disk. Made where there are backups: its chance is a stream of its own."""

    def __init__(self, world: World) -> None:
        self._disk = SimDisk(
            "backups", world.root, random.Random(f"backups/{world.seed}"), trace=world.trace
        )
        self._count = 0

    def new_path(self) -> Path:
        """Where the next backup is to be."""
        self._count += 1
        return self._disk.volume.path / f"backup-{self._count}"

    async def take(self, client: Client, world: World, name: str) -> Path:
        """`hadron backup DEST --node NAME`."""
        path = self.new_path()
        address = world.config.node(name).address
        manifest = await backup_live(client, address, path, self._disk.volume, _nobody_looks)
        world.trace.log(f"{name}: a backup as of entry {manifest.lsn}")
        return path

    def of_files(self, world: World, name: str) -> Path:
        """`hadron backup DEST --data DIRECTORY`, of a node that does not run."""
        assert not world.running(name)
        path, volume = self.new_path(), world.disks[name].volume
        manifest = backup_directory(volume.path, path, volume, world.clocks[name])
        world.trace.log(f"{name}: a backup of its files as of entry {manifest.lsn}")
        return path

    def restore(self, world: World, name: str, backup: Path) -> None:
        """`hadron restore BACKUP --node NAME --overwrite`; the node must be stopped."""
        assert not world.running(name)
        volume = world.disks[name].volume
        config = _at(world.config, {name: volume.path})
        manifest = restore_node(backup, config, name, volume, overwrite=True)
        world.trace.log(f"{name}: restored as of entry {manifest.lsn}")

    async def take_all(self, client: Client, on_begin: Callable[[str], None]) -> Path:
        """`hadron backup DEST --all`; `on_begin` is told which replica set is copied now."""
        path = self.new_path()

        def begin(replica_set: cluster_pb2.ReplicaSet) -> Progress:
            on_begin(replica_set.name)
            return _nobody_looks

        await backup_cluster(client, path, self._disk.volume, begin)
        self._disk.trace.log(f"a backup of the cluster in {path.name}")
        return path

    def restore_all(self, worlds: Collection[World], backup: Path) -> None:
        """`hadron restore BACKUP --all --overwrite`; all nodes must be stopped, and epochs raised
        above all that there were."""
        parts = choose(backup, [world.config.name for world in worlds])
        for world in worlds:
            assert not any(map(world.running, world.names))
            volumes = {name: world.disks[name].volume for name in world.names}
            config = _at(world.config, {name: each.path for name, each in volumes.items()})
            restore_set(
                parts[world.config.name],
                config,
                self._disk.volume,
                SimRandom(f"restore/{world.seed}/{config.epoch}"),
                world.clocks[config.leader.name],
                overwrite=True,
            )
            for volume in volumes.values():
                # It did not go through this disk: it is read from the files again.
                volume.files.clear()
            world.trace.log(f"{config.name}: restored, epoch {config.epoch}")


def _nobody_looks(_have: int, _size: int) -> None: ...


def _at(config: ReplicaSetConfig, paths: dict[str, Path]) -> ReplicaSetConfig:
    """With the data of these nodes where their disks are now."""
    nodes = tuple(replace(node, data=paths.get(node.name, node.data)) for node in config.nodes)
    return replace(config, nodes=nodes)
