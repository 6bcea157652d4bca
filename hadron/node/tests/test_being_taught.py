"""A node that is being taught has the history of its replica set before it counts: to `verify`, to
whoever makes a backup of it, and to whoever restores that."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from hadron.node.backup import backup_directory, backup_live
from hadron.node.restore import restore_node
from hadron.node.tests.support import is_member, make_stream, produce
from hadron.node.verification import verify_paths
from hadron.node.world import SystemDisk
from hadron.storage.identity import read_owner
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.system import SystemClock


async def teach(nodes: Nodes) -> None:
    """n3 has lost its disk and has all entries again; without n2 nobody lets it count."""
    await make_stream(nodes)
    async with nodes.connection("n1") as connection:
        await produce(connection, b"X")
    await nodes.wait_in_step()
    await nodes.crash("n2", "n3")
    nodes.wipe("n3")
    await nodes.start("n3")
    await nodes.wait_in_step("n3")
    assert not is_member(nodes, "n3")


async def stop_while_taught(nodes: Nodes) -> None:
    await teach(nodes)
    await nodes.crash()
    owner = read_owner(nodes.data("n3"))
    assert owner is not None
    assert owner.uuid == b""


async def test_its_file_agrees_with_the_others(tmp_path: Path, clock: MockClock) -> None:
    """Of another history, the two that remember would be told to be moved away."""
    async with running_nodes(tmp_path, 3) as nodes:
        await stop_while_taught(nodes)
        verified = verify_paths([nodes.data(name) for name in ("n1", "n2", "n3")])
        assert verified.ok
        (agreement,) = verified.agreements
        assert len(agreement.names) == 3
        assert verified.apart == []


async def test_its_live_backup_is_of_their_history(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await teach(nodes)
        owner = read_owner(nodes.data("n1"))
        assert owner is not None
        async with nodes.client() as client:
            backup = tmp_path / "backup"
            address = nodes.config.node("n3").address
            made = await backup_live(client, address, backup, SystemDisk(), lambda *_: None)
        assert (made.node, made.uuid) == ("n3", owner.uuid.hex())


async def test_its_backup_is_of_their_history(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await stop_while_taught(nodes)
        backup = tmp_path / "backup"
        made = backup_directory(nodes.data("n3"), backup, SystemDisk(), SystemClock())
        owner = read_owner(nodes.data("n1"))
        assert owner is not None
        assert made.uuid == owner.uuid.hex()
        restored = restore_node(backup, nodes.config, "n1", SystemDisk(), overwrite=True)
        assert restored.lsn == made.lsn
