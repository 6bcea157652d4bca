"""A cluster's backup that took several attempts: restored together, its sets fit each other."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from trio.testing import MockClock

from hadron.model.errors import DataDirectoryError, NotReadyError, PeerError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.backup import Progress, backup_live, read_backup
from hadron.node.cluster_backup import backup_cluster
from hadron.node.places import directory_name
from hadron.node.restore import restore_node
from hadron.node.tests.support import make_stream, produce
from hadron.node.world import SystemDisk
from hadron.storage.database import open_reader
from hadron.storage.generations import DATABASE, MANIFEST
from hadron.storage.snapshot import Manifest
from hadron.storage.tests.test_identity import SyncedDisk
from hadron.testing.nodes import Cluster, running_cluster, running_nodes
from hadron.wire.messages import cluster_pb2

META, EU, US = "meta", "eu/p0", "us/p0"


@dataclass
class Attempts:
    """`hadron backup DEST --all`, and what it says that it copied, and kept."""

    cluster: Cluster
    destination: Path
    copied: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    disk: SystemDisk = field(default_factory=SystemDisk)

    async def run(self, *, through: str = META) -> dict[str, Manifest]:
        self.copied, self.kept = [], []
        async with self.cluster.client(through=[through]) as client:
            return await backup_cluster(
                client,
                self.destination,
                self.disk,
                self._begin,
                on_kept=lambda manifest: self.kept.append(manifest.replica_set),
            )

    @property
    def part(self) -> Path:
        return self.destination.with_name(f"{self.destination.name}.part")

    def _begin(self, replica_set: cluster_pb2.ReplicaSet) -> Progress:
        self.copied.append(replica_set.name)
        return lambda _have, _size: None


async def declare(cluster: Cluster, name: str, *partitions: str) -> None:
    async with cluster.client(through=[META]) as client:
        spec = StreamSpec(partitions=partitions)
        await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])


def streams(backup: Path) -> set[str]:
    with closing(open_reader(backup / directory_name(META) / DATABASE)) as copy:
        return {name for (name,) in copy.execute("SELECT name FROM hadron_schema_object")}


async def test_the_metadata_set_is_copied_when_all_others_are(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path / "c", {META: 1, EU: 1, US: 1}) as cluster:
        attempts = Attempts(cluster, tmp_path / "monday")
        await declare(cluster, "early", EU)
        await cluster.crash(EU)
        with pytest.raises(PeerError, match=r"^eu/p0: cannot connect"):
            await attempts.run()
        assert [each.name for each in attempts.part.iterdir()] == [directory_name(US)]
        await cluster.start(EU)
        await cluster.wait_serving(EU)
        await declare(cluster, "late", EU)
        assert (await attempts.run()).keys() == {META, EU, US}
        assert (attempts.kept, attempts.copied) == ([US], [EU, META])
        assert streams(attempts.destination) == {"early", "late"}


async def test_the_metadata_set_is_the_last_whatever_the_others_are_called(
    tmp_path: Path, clock: MockClock
) -> None:
    """By name it would be copied before the last of them."""
    async with running_cluster(tmp_path / "c", {META: 1, EU: 1, US: 1}) as cluster:
        attempts = Attempts(cluster, tmp_path / "monday")
        await attempts.run()
        assert attempts.copied == [EU, US, META]


async def test_a_backup_outlives_a_power_loss_with_its_directories(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path / "c", {META: 1}) as cluster:
        attempts = Attempts(cluster, tmp_path / "backups" / "monday")
        attempts.disk = disk = SyncedDisk()
        await attempts.run()
        # The name of a directory stands in the one above it.
        assert {tmp_path, tmp_path / "backups", attempts.part} <= {*disk.synced}


async def test_a_copy_of_the_metadata_set_from_before_another_is_replaced(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path / "c", {META: 1, EU: 1}) as cluster:
        attempts = Attempts(cluster, tmp_path / "monday")
        await attempts.run()
        attempts.destination.rename(attempts.part)
        SystemDisk().remove(attempts.part / directory_name(EU))
        await declare(cluster, "late", EU)
        await attempts.run()
        assert (attempts.kept, attempts.copied) == ([], [EU, META])
        assert streams(attempts.destination) == {"late"}


@pytest.mark.parametrize("change", ["cluster", "replica_set", "uuid", "directory"])
async def test_another_clusters_copies_are_not_mixed_in(
    tmp_path: Path, clock: MockClock, change: str
) -> None:
    async with running_cluster(tmp_path / "c", {META: 1, EU: 1}) as cluster:
        attempts = Attempts(cluster, tmp_path / "monday")
        await attempts.run()
        attempts.destination.rename(attempts.part)
        copy = attempts.part / directory_name(EU)
        if change == "directory":
            copy = copy.rename(attempts.part / directory_name(US))
        else:
            other = {"cluster": "other", "replica_set": US, "uuid": "00" * 16}[change]
            manifest = msgspec.structs.replace(read_backup(copy), **{change: other})
            (copy / MANIFEST).write_bytes(manifest.encode())
        before = sorted(attempts.part.rglob("*"))
        with pytest.raises(DataDirectoryError) as refused:
            await attempts.run()
        assert refused.value.message.startswith(f"{copy} is of replica set")
        assert refused.value.hint == f"move {attempts.part} away, or name another place"
        assert sorted(attempts.part.rglob("*")) == before


async def test_no_backup_is_complete_without_the_metadata_set(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path / "c", {META: 1, EU: 1}, start=False) as cluster:
        await cluster.start(EU)
        await cluster.wait_serving(EU)
        attempts = Attempts(cluster, tmp_path / "monday")
        with pytest.raises(PeerError, match=r"^meta: not known to eu/p0/n1"):
            await attempts.run(through=EU)
        assert not attempts.destination.exists()


async def test_without_a_leader_the_furthest_replica_is_copied(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2 stands first in the file, and lacks what n1 and n3 have acknowledged."""
    async with running_nodes(tmp_path / "nodes", 3) as nodes:
        await make_stream(nodes)
        await nodes.crash("n2")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step("n3")
        await nodes.crash("n1")
        nodes.network.isolate("n2", "n1", "n3")
        await nodes.start("n2")
        told: list[PeerError] = []
        async with nodes.client() as client:
            made = await backup_cluster(
                client,
                tmp_path / "all",
                SystemDisk(),
                lambda _: lambda _have, _size: None,
                on_trouble=told.append,
            )
        (manifest,) = made.values()
        assert manifest.node == "n3"
        assert len(told) == 1
        assert "n1" in told[0].message


async def test_a_leader_that_waits_with_a_restored_disk_is_not_what_is_copied(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2, a replica, has everything; n1 waits for n3 as well, which may know more."""
    async with running_nodes(tmp_path / "nodes", 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        old, leader = tmp_path / "old", nodes.config.leader.address
        async with nodes.client() as client:
            await backup_live(client, leader, old, SystemDisk(), lambda _have, _size: None)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step()
        await nodes.crash("n1", "n3")
        restore_node(old, nodes.config, "n1", SystemDisk(), overwrite=True)
        await nodes.start("n1")
        await nodes.wait_for("waiting", lambda: "remember" in nodes.status("n1").trouble)
        async with nodes.client() as client:
            made = await backup_cluster(
                client, tmp_path / "all", SystemDisk(), lambda _: lambda _have, _size: None
            )
            with pytest.raises(NotReadyError, match="the disk of n1 may lack"):
                await backup_live(
                    client, leader, tmp_path / "n1", SystemDisk(), lambda _have, _size: None
                )
        (manifest,) = made.values()
        assert manifest.node == "n2"
