"""What a directory is, and that what it is not is never taken for it."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from trio.testing import MockClock

from hadron.model.errors import DataDirectoryError
from hadron.node.backup import backup_directory, read_backup
from hadron.node.cluster_backup import backup_cluster, choose
from hadron.node.places import CLUSTER_MANIFEST, ClusterManifest, Kind, look
from hadron.node.verification import verify_paths
from hadron.node.world import SystemDisk
from hadron.serving.tests.stack import leading
from hadron.storage.generations import DATABASE, MANIFEST
from hadron.storage.identity import LOCK, NODE_DATABASE
from hadron.storage.snapshot import Manifest
from hadron.testing.nodes import running_cluster
from hadron.wire.system import SystemClock

EU, META = "eu/p0", "meta"


@pytest.fixture
async def node(tmp_path: Path) -> Path:
    """The data directory of a stopped node."""
    async with leading(tmp_path / "n1") as stack:
        stream = await stack.stream("events")
        await stack.append(stream, b"value")
    return tmp_path / "n1"


def back_up(node: Path, destination: Path) -> Manifest:
    return backup_directory(node, destination, SystemDisk(), SystemClock())


@pytest.fixture
async def monday(tmp_path: Path, clock: MockClock) -> Path:
    """A cluster's backup."""
    path = tmp_path / "monday"
    async with (
        running_cluster(tmp_path / "c" / "c", {META: 1, EU: 1}) as cluster,
        cluster.client(through=[META]) as client,
    ):
        await backup_cluster(client, path, SystemDisk(), lambda _set: lambda _have, _size: None)
    return path


def said(path: Path) -> list[str]:
    files = verify_paths([path]).files
    return [problem.text for file in files for problem in file.report.problems]


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\0" * 4096)


async def test_a_nodes_own_files_come_before_a_backup_in_its_directory(node: Path) -> None:
    back_up(node, node / "tuesday")
    assert look(node).kind is Kind.NODE
    damage(node / DATABASE)
    (file,) = verify_paths([node]).files
    assert file.path == node / DATABASE
    assert not file.report.ok
    with pytest.raises(DataDirectoryError, match="is the data directory of a node, not a backup"):
        choose(node, ["local/p0"])


async def test_a_copy_on_its_way_is_not_taken_for_the_node(node: Path, tmp_path: Path) -> None:
    """A rebuild that was cut short: others' files are looked at all the same."""
    back_up(node, node / "gen-1")
    (node / "gen-1" / DATABASE).unlink()
    (file,) = verify_paths([node]).files
    assert file.report.ok
    assert "gen-1, a copy of another member's that is not whole" in file.report.skipped[0]
    other = tmp_path / "n2"
    shutil.copytree(node, other)
    for name in (DATABASE, NODE_DATABASE, LOCK):
        (other / name).unlink()
    assert look(other).kind is Kind.NODE
    first, second = verify_paths([node, other]).files
    assert first.report.ok
    assert [each.text for each in second.report.problems] == [f"{other / DATABASE} is missing"]


async def test_a_clusters_backup_is_all_of_its_parts(monday: Path) -> None:
    verified = verify_paths([monday])
    assert verified.ok
    assert sorted(file.owner.replica_set for file in verified.files if file.owner) == [EU, META]
    assert choose(monday, [META, EU]) == {META: monday / META, EU: monday / "eu+p0"}


def lose_the_manifest(monday: Path) -> None:
    (monday / "eu+p0" / MANIFEST).unlink()


def lose_the_part(monday: Path) -> None:
    shutil.rmtree(monday / "eu+p0")


def mix_them_up(monday: Path) -> None:
    shutil.rmtree(monday / "eu+p0")
    shutil.copytree(monday / META, monday / "eu+p0")


def put_another_in_its_place(monday: Path) -> None:
    path = monday / CLUSTER_MANIFEST
    whole = msgspec.json.decode(path.read_bytes(), type=ClusterManifest)
    sets = {**whole.replica_sets, EU: "00" * 16}
    path.write_bytes(msgspec.structs.replace(whole, replica_sets=sets).encode())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lose_the_manifest, "eu+p0/manifest.json is missing: {0} has no complete backup of eu/p0"),
        (lose_the_part, "eu+p0 is missing: {0} has no complete backup of eu/p0"),
        (mix_them_up, "it is of replica set meta in cluster {1}, and should be of eu/p0 in {1}"),
        (put_another_in_its_place, "it is another backup of eu/p0 than cluster.json names"),
    ],
)
async def test_a_part_that_is_not_there_or_another_is_told(
    monday: Path, change: Callable[[Path], None], told: str
) -> None:
    cluster = read_backup(monday / META).cluster
    change(monday)
    (problem,) = said(monday)
    assert problem.endswith(told.format(monday, cluster))
    with pytest.raises(DataDirectoryError) as refused:
        choose(monday, [EU, META])
    assert problem in refused.value.message
    # What is whole of it can still be had.
    assert choose(monday, [META]) == {META: monday / META}


async def test_a_list_of_parts_that_cannot_be_read_is_told(monday: Path) -> None:
    for content, told in (
        ("{", "cluster.json is damaged: "),
        ('{"format": 2, "cluster": "c", "replica_sets": {}}', "has format 2, this Hadron knows 1"),
    ):
        (monday / CLUSTER_MANIFEST).write_text(content)
        verified = verify_paths([monday])
        assert len(verified.files) == 3
        (problem,) = said(monday)
        assert told in problem
        with pytest.raises(DataDirectoryError, match=told):
            choose(monday, [META])


async def test_a_directory_of_several_is_each_of_them(
    monday: Path, node: Path, tmp_path: Path
) -> None:
    back_up(node, tmp_path / "tuesday")
    shutil.copytree(monday, tmp_path / "later.part")
    (tmp_path / "later.part" / CLUSTER_MANIFEST).unlink()
    (tmp_path / "later.part" / "eu+p0" / MANIFEST).unlink()
    (tmp_path / "lost+found").mkdir(0)
    found = {each.path.relative_to(tmp_path).as_posix() for each in look(tmp_path).each()}
    assert found == {
        *("monday/eu+p0", "monday/meta", "later.part/eu+p0", "later.part/meta"),
        *("n1", "tuesday"),
    }
    (problem,) = said(tmp_path)
    assert problem.startswith(f"manifest.json is missing: {tmp_path}/later.part/eu+p0")
    with pytest.raises(DataDirectoryError) as refused:
        choose(tmp_path, ["local/p0"])
    assert "n1 (the data directory of a node), " in refused.value.message
    assert "tuesday (of local/p0)" in refused.value.message
    assert refused.value.hint == "name one of them"
