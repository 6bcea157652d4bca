"""Another file takes the database's place: whatever crash comes, the disk knows what it holds."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from hadron.model.errors import CorruptionError, DataDirectoryError
from hadron.node.world import SystemDisk
from hadron.storage import generations, snapshot
from hadron.storage.aftermath import ASIDE
from hadron.storage.database import open_reader
from hadron.storage.generations import DATABASE, next_generation, switch_to
from hadron.storage.identity import NODE_DATABASE
from hadron.storage.log import set_meta
from hadron.storage.store import Store
from hadron.storage.tests.test_aftermath import UUID, PhotographingDisk, append
from hadron.storage.tests.test_store import open_store


def say_all_is_applied(store: Store) -> None:
    for name in ("applied_lsn", "committed_lsn"):
        set_meta(store.writer.connection, name, store.log.head.lsn)


@pytest.mark.parametrize("read", ["", DATABASE, NODE_DATABASE])
async def test_a_crash_around_the_switch_forgets_nothing(
    tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody reads a file meanwhile, and keeps the stop before from being in order:
    the log cannot be moved into the database, or node.db cannot be told that it was."""
    monkeypatch.setattr("hadron.storage.identity._BUSY_MS", 0)
    data = tmp_path / "data"
    store = open_store(data, durability="fsync")
    store.identity.become_member(UUID)
    append(store, 5)
    with closing(open_reader(data / (read or DATABASE))) as reader:
        if read:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        append(store, 5)
        say_all_is_applied(store)
        generation = next_generation(data)
        generation.mkdir()
        end = snapshot.take(store.path, generation / DATABASE, SystemDisk())
        store.is_replaced = True
        assert store.close() is not bool(read)
        disk = PhotographingDisk(data, tmp_path / "images")
        switch_to(data, generation, disk)
        disk.photograph()
        numbers = set()
        for image in disk.images():
            numbers.add(generations.current_number(image))
            store = open_store(image, durability="fsync")
            assert store.forgotten == ""
            assert store.identity.current.is_member
            assert store.log.head == end
            store.close()
        assert numbers == {0, 1}


@pytest.mark.parametrize("has_peers", [False, True])
async def test_a_generation_whose_link_was_replaced_outlives_the_start_that_notices(
    tmp_path: Path, has_peers: bool
) -> None:
    """Somebody has restored `hadron.db` with what puts a file where the link was: an older one.
    Alone a start refuses that, and otherwise forgets; what the link led to has everything."""
    data = tmp_path / "data"
    store = open_store(data, durability="fsync")
    store.identity.become_member(UUID)
    append(store, 5)
    say_all_is_applied(store)
    generation = next_generation(data)
    generation.mkdir()
    snapshot.take(store.path, generation / DATABASE, SystemDisk())
    store.close()
    older = (data / DATABASE).read_bytes()
    switch_to(data, generation, SystemDisk())
    store = open_store(data, durability="fsync")
    append(store, 5)
    head = store.log.head
    store.close()
    (data / DATABASE).unlink()
    (data / DATABASE).write_bytes(older)
    if has_peers:
        store = open_store(data, durability="fsync")
        assert "older copy" in store.forgotten
        store.close()
    else:
        for _ in range(2):
            with pytest.raises(CorruptionError, match="older copy"):
                open_store(data, has_peers=False)
    (data / DATABASE).unlink()
    (data / DATABASE).symlink_to(f"{generation.name}/{DATABASE}")
    store = open_store(data, has_peers=has_peers)
    assert store.log.head == head
    store.close()


@pytest.mark.parametrize("is_member", [False, True])
async def test_a_generation_that_is_gone_with_its_directory_is_begun_anew(
    tmp_path: Path, is_member: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is told to be set aside is there."""
    store = open_store(tmp_path, durability="fsync")
    if is_member:
        store.identity.become_member(UUID)
    append(store, 5)
    say_all_is_applied(store)
    generation = next_generation(tmp_path)
    generation.mkdir()
    snapshot.take(store.path, generation / DATABASE, SystemDisk())
    store.close()
    switch_to(tmp_path, generation, SystemDisk())
    shutil.rmtree(generation)
    for start in range(2):
        store = open_store(tmp_path, durability="fsync")
        assert bool(store.forgotten) is (is_member and not start)
        assert store.log.head.lsn == start
        append(store)
        store.close()
    assert "set aside" not in caplog.text
    assert not (tmp_path / ASIDE).exists()


async def test_a_copy_in_another_format_stays_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store)
    say_all_is_applied(store)
    generation = next_generation(tmp_path)
    generation.mkdir()
    store.writer.connection.pragma("user_version", 99)
    snapshot.take(store.path, generation / DATABASE, SystemDisk())
    store.close()
    switch_to(tmp_path, generation, SystemDisk())
    with pytest.raises(DataDirectoryError, match="format version 99"):
        open_store(tmp_path)
