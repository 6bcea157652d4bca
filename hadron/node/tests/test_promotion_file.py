"""What `hadron promote` writes: the epoch and two roles, and nothing else of the file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from hadron.model.errors import ConfigurationError, DataDirectoryError
from hadron.node.config import load_config
from hadron.node.promotion import plan, write

BLOCK = """\
# who keeps the flights
cluster: flights
replica_set:
  name: local/p0          # the only one
  epoch: 7                # raised on Monday
  nodes:
    - {name: n1, role: leader, address: "127.0.0.1:7001", data: var/n1}   # old, slow
    - name: "n2"
      role: replica
      address: 127.0.0.1:7002
      data: var/n2
    - {role: 'replica', name: n3, address: "127.0.0.1:7003", data: var/n3}
durability: fsync
"""
FLOW = (
    "{cluster: flights, replica_set: {name: local/p0, nodes: ["
    "{name: n1, role: leader, address: '127.0.0.1:7001', data: a},"
    "{name: n2, role: replica, address: '127.0.0.1:7002', data: b}]}}"
)


def file(directory: Path, text: str) -> Path:
    path = directory / "p0.yaml"
    path.write_text(text)
    return path


def test_comments_and_order_stay(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    promotion = plan(path, "n3", {})
    assert path.read_text() == BLOCK
    write(promotion)
    assert path.read_text() == (
        BLOCK.replace("epoch: 7", "epoch: 8")
        .replace("role: leader", "role: replica")
        .replace("role: 'replica'", "role: leader")
    )
    found = load_config(path, {})
    assert (found.epoch, found.leader.name) == (8, "n3")
    assert found.digest != promotion.old.digest


@pytest.mark.parametrize(
    "text",
    [BLOCK.replace("  epoch: 7                # raised on Monday\n", ""), FLOW],
    ids=["block", "flow"],
)
def test_an_epoch_that_was_left_out_is_written(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, text)
    write(plan(path, "n2", {}))
    found = load_config(path, {})
    assert (found.epoch, found.leader.name) == (2, "n2")
    assert found.nodes == plan(path, "n1", {}).old.nodes


def test_settings_of_the_environment_are_not_written(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    write(plan(path, "n2", {"HADRON_DURABILITY": "os"}))
    assert "durability: fsync" in path.read_text()


def test_the_files_mode_stays_and_links_are_followed(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    write(plan(link, "n2", {}))
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load_config(path, {}).epoch == 8
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.yaml", "p0.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_files_owner_and_group_stay(tmp_path: Path) -> None:
    """Of a node that may read it by its group alone."""
    path = file(tmp_path, BLOCK)
    os.chown(path, 12345, 12346)
    path.chmod(0o640)
    write(plan(path, "n2", {}))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 12346, 0o640)


def test_a_file_that_would_change_its_owner_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, BLOCK)
    promotion = plan(path, "n2", {})
    target, old = path.resolve(), path.stat()
    others = os.stat_result((*old[:4], old.st_uid + 1, *old[5:]))
    original = Path.stat

    def stat_of(each: Path, **options: bool) -> os.stat_result:
        return others if each == target else original(each, **options)

    def chown(*_args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "stat", stat_of)
    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(DataDirectoryError, match=f"it belongs to {others.st_uid}:") as refused:
        write(promotion)
    assert "do this as root, or as its owner" in refused.value.hint
    monkeypatch.undo()
    assert path.read_text() == BLOCK
    assert [entry.name for entry in tmp_path.iterdir()] == ["p0.yaml"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("n9", "there is no node 'n9'"), ("n1", "n1 leads local/p0 already, with epoch 7")],
)
def test_a_node_that_cannot_be_promoted(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(file(tmp_path, BLOCK), name, {})


def test_a_file_with_anchors_is_left_to_people(tmp_path: Path) -> None:
    shared = BLOCK.replace("role: replica\n", "role: &r replica\n").replace(
        "role: 'replica'", "role: *r"
    )
    with pytest.raises(ConfigurationError, match="cannot be edited") as refused:
        plan(file(tmp_path, shared), "n2", {})
    assert "set `epoch: 8`, `role: leader` for n2" in refused.value.hint


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    promotion = plan(path, "n2", {})
    path.unlink()
    tmp_path.rmdir()
    with pytest.raises(DataDirectoryError, match="cannot be written"):
        write(promotion)
