"""Room on the disk: when writes are refused, and when they are accepted again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from hadron.model.ids import Ballot
from hadron.node.world import SystemDisk
from hadron.storage.database import PAGE_BYTES
from hadron.storage.space import SPARE_BYTES, Space
from hadron.storage.tests.test_store import open_store
from hadron.storage.writer import Prepared

RESERVE = 64 << 10


class RoomDisk(SystemDisk):
    """Says that it has as much room as the test wants; None for as much as there is."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room

    def free_bytes(self, path: Path) -> int:
        if self.room is None:
            return super().free_bytes(path)
        if self.room < 0:
            raise OSError(5, "Input/output error")
        return self.room


class Host:
    """A space whose database has as many free pages as the test wants."""

    def __init__(self, room: int, reserve_bytes: int = RESERVE) -> None:
        self.disk = RoomDisk(room)
        self.free_pages = 0
        self.space = Space(self.disk, Path("/data"), reserve_bytes, lambda: self.free_pages)

    def has(self, room: int) -> bool:
        """Whether writes are refused with so much room."""
        self.disk.room = room
        self.space.look()
        return self.space.is_low


def test_refused_below_the_reserve_and_accepted_a_little_above_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host(RESERVE)
    assert not host.space.is_low
    assert not host.space.trouble
    assert host.has(RESERVE - 1)
    assert host.has(RESERVE)
    assert host.has(RESERVE * 5 // 4 - 1)
    assert not host.has(RESERVE * 5 // 4)
    assert not host.has(RESERVE)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.ERROR, logging.WARNING], "said once each"


def test_the_refusal_names_the_disk_the_room_and_the_way_out() -> None:
    error = Host(1 << 10).space.refusal()
    assert error.retryable
    assert "/data has room for 1KiB" in error.message
    assert "64KiB are kept" in error.message
    assert "`disk_reserve_bytes`" in error.hint


def test_no_room_at_all_has_a_unit() -> None:
    assert "has room for less than 1KiB; " in Host(0).space.refusal().message


def test_a_copy_leaves_no_more_than_the_reserve_and_no_more_than_a_log_needs() -> None:
    for reserve_bytes, spare in ((0, 0), (2 << 20, 2 << 20), (128 << 20, SPARE_BYTES)):
        assert Host(RESERVE, reserve_bytes).space.spare_bytes == spare


def test_free_pages_of_the_file_are_room_but_not_for_the_log() -> None:
    host = Host(RESERVE // 2)
    assert host.space.is_low
    host.free_pages = 2 * RESERVE // PAGE_BYTES
    host.space.wrote(100)
    assert not host.space.is_low
    host.disk.room = RESERVE // 4 - 1
    host.space.look()
    assert host.space.is_low


def test_the_refusal_says_what_is_too_little_and_with_how_much_writes_go_on() -> None:
    host = Host(0, reserve_bytes=32 << 20)

    def told(room: int, within: int = 0) -> str:
        host.free_pages = within // PAGE_BYTES
        assert host.has(room), "writes are refused"
        message = host.space.refusal().message
        assert message.startswith("the disk of /data has room for ")
        return message.removeprefix("the disk of /data has room for ")

    kept = "32MiB are kept for what makes room again"
    # More than is kept, after less: it has to be a little more.
    assert told(36 << 20) == f"36MiB; {kept}: a leader's writes go on with 40MiB"
    assert told(12 << 20, 24 << 20) == (
        f"12MiB, and its database 24MiB of its own to use again; {kept}: "
        "a leader's writes go on with 40MiB in all"
    )
    assert told(0, 58 << 20) == (
        "less than 1KiB, and its database 58MiB of its own to use again; the write-ahead log "
        "cannot use that: a leader's writes go on with 10MiB on the disk itself"
    )
    assert told(1 << 20, 24 << 20) == (
        "1MiB, and its database 24MiB of its own to use again; the write-ahead log cannot use "
        f"that, and {kept}: a leader's writes go on with 40MiB in all, 10MiB on the disk itself"
    )
    host.free_pages = (58 << 20) // PAGE_BYTES
    assert not host.has(10 << 20)


def test_pages_that_were_freed_are_counted_though_nothing_is_written_any_more() -> None:
    host = Host(RESERVE)
    host.free_pages = RESERVE // PAGE_BYTES
    assert not host.has(RESERVE // 2), "what a small transaction has freed is room"
    assert host.has(RESERVE // 8)
    assert not host.has(RESERVE // 2)


def test_only_what_is_written_is_looked_after() -> None:
    host = Host(RESERVE)
    host.disk.room = 0
    host.space.wrote(1000)
    assert not host.space.is_low, "a look at every commit would cost more than it tells"
    host.space.wrote(1 << 20)
    assert host.space.is_low


def test_exhausted_is_less_than_low() -> None:
    host = Host(RESERVE)
    assert host.has(RESERVE // 8)
    assert not host.space.is_exhausted
    assert host.has(RESERVE // 8 - 1)
    assert host.space.is_exhausted


def test_a_disk_that_cannot_tell_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(RESERVE)
    assert not host.has(-1)
    assert "Input/output error" in caplog.text
    assert host.has(0)
    assert host.has(-1)


def test_without_a_reserve_nothing_is_refused() -> None:
    host = Host(0, reserve_bytes=0)
    assert not host.space.is_low
    assert not host.space.is_exhausted


async def test_it_is_looked_after_while_nothing_is_written(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    host = Host(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.space.run)
        host.disk.room = 2 * RESERVE
        await trio.sleep(1.5)
        assert not host.space.is_low
        nursery.cancel_scope.cancel()


async def test_what_was_dropped_from_a_store_makes_room(tmp_path: Path) -> None:
    disk = RoomDisk(RESERVE)
    store = open_store(tmp_path, disk=disk, reserve_bytes=RESERVE)
    connection = store.writer.connection
    connection.execute("BEGIN")
    for _ in range(20):
        store.log.append(Ballot(1, 1), 1, b"command", bytes(8_000))
    connection.execute("COMMIT")
    disk.room = RESERVE // 2
    store.space.look()
    assert store.space.is_low

    def drop(db: object) -> Prepared:
        assert db is connection
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM hadron_body")
        return Prepared(None, 100)

    store.writer.commit(drop, lambda _result, _error: None)
    assert not store.space.is_low
    store.close()
