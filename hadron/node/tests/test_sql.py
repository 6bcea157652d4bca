"""`record`, the table of a node's records: of running nodes, stopped ones, damaged files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from trio.testing import MockClock

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import ConfigurationError, CorruptionError, DataDirectoryError
from hadron.model.record import NewRecord
from hadron.node.sql import AskNode, open_records
from hadron.node.tests.support import make_stream, send
from hadron.serving.tests.stack import leading, until
from hadron.storage.database import FORMAT_VERSION, open_writer
from hadron.storage.identity import Owner
from hadron.storage.log import set_meta
from hadron.storage.snapshot import DIVERGED
from hadron.testing.nodes import running_nodes

COUNT = "SELECT count(*) FROM record"


def rows(path: Path, sql: str, ask_node: AskNode | None = None) -> list[tuple[Any, ...]]:
    with open_records(path, ask_node=ask_node) as records:
        return records.db.execute(sql).fetchall()


def batch(*given: NewRecord, codec: str = "none") -> bytes:
    builder = BatchBuilder()
    for each in given:
        builder.add(each, 5)
    return builder.build(codec=codec)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A stopped node: 40 records in batches of two, and a stream with one of each kind."""
    directory = tmp_path / "n1"
    async with leading(directory) as stack:
        stream, kinds = await stack.stream("events"), await stack.stream("kinds")
        for number in range(20):
            await stack.append(stream, b"value %d" % number * 400, b"second")
        await stack.append(
            kinds,
            data=batch(
                NewRecord(
                    value={"n": 1.5},
                    key="k",
                    type="a.b",
                    timestamp_ms=17,
                    headers={"h": "ü"},
                    id="mine",
                ),
                NewRecord(value="tëxt", key=b"\xff"),
                NewRecord(value=b"\x00\xff"),
                codec="zstd",
            ),
        )
    return directory


async def test_every_record_with_all_that_it_was_sent_with(directory: Path) -> None:
    assert rows(
        directory,
        "SELECT namespace, stream, partition, offset, id, timestamp_ms, type, key, headers,"
        " content_type, value FROM record WHERE stream = 'kinds'",
    ) == [
        (
            "default",
            "kinds",
            "local/p0",
            0,
            "mine",
            17,
            "a.b",
            "k",
            '{"h": "ü"}',
            "application/json",
            '{"n":1.5}',
        ),
        (
            "default",
            "kinds",
            "local/p0",
            1,
            "kinds/local/p0/1",
            5,
            "",
            b"\xff",
            None,
            "text/plain",
            "tëxt",
        ),
        (
            "default",
            "kinds",
            "local/p0",
            2,
            "kinds/local/p0/2",
            5,
            "",
            None,
            None,
            "application/octet-stream",
            b"\x00\xff",
        ),
    ]
    assert rows(directory, "SELECT value ->> '$.n' FROM record WHERE key = 'k'") == [(1.5,)]
    counted = "SELECT stream, count(*), min(append_ms) > 0 FROM record GROUP BY 1"
    assert rows(directory, counted) == [("events", 40, 1), ("kinds", 3, 1)]


@pytest.mark.parametrize(
    "condition",
    [
        "offset = 7",
        "offset > 7",
        "offset >= 7",
        "offset < 7",
        "offset <= 7",
        "offset BETWEEN 5 AND 30",
        "offset > 3 AND offset < 36",
        "offset IN (1, 39, 40)",
        "offset >= 39",
        "offset > 39",
        "offset < 0",
        "offset > 6.5",
        "offset >= '7'",
        "offset IS NULL",
        "offset = 3 AND offset = 4",
        "stream = 'kinds'",
        "stream > 'events'",
        "stream = NULL",
        "stream = 'events' AND offset >= 38",
        "stream = 'events' AND stream = 'kinds'",
        "namespace = 'default' AND offset = 2",
        "namespace = 'other'",
        "partition = 'local/p0'",
        "value = 'second' AND offset > 20",
        "stream IN ('kinds', 'events') AND offset < 3",
    ],
)
async def test_conditions_that_spare_reading_choose_the_same_records(
    directory: Path, condition: str
) -> None:
    wanted = "namespace, stream, offset, value"
    with open_records(directory) as records:
        db = records.db
        db.execute("CREATE TABLE plain AS SELECT * FROM record")
        by_table = db.execute(f"SELECT {wanted} FROM plain WHERE {condition} ORDER BY 2, 3")
        expected = by_table.fetchall()
        found = db.execute(f"SELECT {wanted} FROM record WHERE {condition} ORDER BY 2, 3")
        assert found.fetchall() == expected


async def test_a_copy_is_a_table_for_any_tool(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with open_records(directory) as records:
        records.db.execute("ATTACH ? AS copy", (str(copy),))
        records.db.execute("CREATE TABLE copy.kinds AS SELECT * FROM record WHERE stream = 'kinds'")
    with closing(sqlite3.connect(copy)) as db:
        found = db.execute("SELECT json_extract(value, '$.n') FROM kinds WHERE id = 'mine'")
        assert found.fetchall() == [(1.5,)]


async def test_the_file_is_not_written(directory: Path) -> None:
    before = (directory / "hadron.db").read_bytes()
    for statement in ("DELETE FROM record", "UPDATE record SET value = 1", "DROP TABLE record"):
        with pytest.raises(apsw.Error):
            rows(directory, statement)
    assert (directory / "hadron.db").read_bytes() == before


async def test_a_scan_that_nobody_finishes_holds_nothing_up(tmp_path: Path) -> None:
    """The write-ahead log of a live node starts again only when no reader holds it."""
    async with leading(tmp_path) as stack:
        stream = await stack.stream("events")
        for _ in range(600):
            await stack.append(stream, b"x" * 200)
        with open_records(tmp_path) as records:
            scan = records.db.execute("SELECT offset, value FROM record")
            assert next(scan)[0] == 0
            with closing(open_writer(tmp_path / "hadron.db", sync="NORMAL")) as db:

                def restarts() -> bool:
                    ((busy, *_),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    return busy == 0

                # The node's own checkpoints come and go.
                await until(restarts)
            assert len(list(scan)) == 599


async def test_damaged_batches_are_named_and_left_out(directory: Path) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        found: list[Any] = db.execute(
            "SELECT lsn FROM hadron_stream_batch WHERE stream_id = 1 AND base_offset = 6"
        ).fetchall()
        ((lsn,),) = found
        db.execute("UPDATE hadron_body SET bytes = zeroblob(length(bytes)) WHERE lsn = ?", (lsn,))
        db.execute("DELETE FROM hadron_body WHERE lsn = ?", (lsn + 1,))
    told: list[str] = []
    with open_records(directory, on_damage=lambda what, _: told.append(what)) as records:
        shown = records.db.execute("SELECT offset, value FROM record WHERE stream = 'events'")
        assert [offset for offset, _ in shown] == [*range(6), *range(10, 40)]
    assert told == [
        f"offsets 6 to 7 of events/local/p0 (entry {lsn})",
        f"offsets 8 to 9 of events/local/p0 (entry {lsn + 1})",
    ]
    with pytest.raises(CorruptionError, match=rf"offsets 6 to 7 .*entry {lsn}\) cannot be read"):
        rows(directory, "SELECT max(value) FROM record")


async def test_a_page_that_the_disk_has_damaged_costs_its_own_batch_only(directory: Path) -> None:
    path = directory / "hadron.db"
    content = bytearray(path.read_bytes())
    # A value of 2,400 bytes, alone on its page.
    content[content.index(b"value 7value 7")] ^= 1
    path.write_bytes(content)
    told: list[str] = []
    with open_records(directory, on_damage=lambda what, _: told.append(what)) as records:
        found = records.db.execute("SELECT count(value) FROM record WHERE stream = 'events'")
        left: Any = found.fetchall()[0][0]
    assert any(what.startswith("offsets 14 to 15 of events/local/p0") for what in told)
    assert left == 40 - 2 * len(told) > 30


async def test_a_damaged_page_of_the_tables_themselves_is_told_as_damage(directory: Path) -> None:
    path = directory / "hadron.db"
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        ((root,),) = db.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'hadron_stream_batch'"
        )
        size = db.pragma("page_size")
    content = bytearray(path.read_bytes())
    content[(root - 1) * size + size // 2] ^= 1
    path.write_bytes(content)
    for query in ("SELECT count(*) FROM record", "SELECT max(value) FROM record"):
        with pytest.raises(CorruptionError, match="events has from offset 0 on: a page does not"):
            rows(directory, query)


async def test_what_is_not_known_to_be_committed_is_not_shown(
    tmp_path: Path,
    clock: MockClock,  # noqa: ARG001 - time that passes at once
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await send(client, ["a", "b", "c"])
        committed = nodes.status("n1").committed_lsn

        def ask(owner: Owner, _pid: int) -> int:
            assert (owner.replica_set, owner.node) == ("local/p0", "n1")
            return int(committed)

        assert rows(nodes.data("n1"), COUNT, ask) == [(3,)]
        # As far as its file says it has led nobody yet.
        assert rows(nodes.data("n1"), COUNT) == [(0,)]
        await nodes.wait_for("the replicas know", lambda: rows(nodes.data("n2"), COUNT) == [(3,)])
        await nodes.crash("n2", "n3")
        await send(client, ["on one disk only"], acks="leader")
        committed = nodes.status("n1").committed_lsn
        assert rows(nodes.data("n1"), COUNT, ask) == [(3,)]
        assert rows(nodes.data("n2"), COUNT) == [(3,)]


async def test_who_leads_nobody_else_has_committed_what_it_has_written(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        stream = await stack.stream("events")
        await stack.append(stream, b"x")
        assert rows(tmp_path, COUNT) == [(1,)]
    assert rows(tmp_path / "hadron.db", COUNT) == [(1,)]


async def test_files_without_records_say_why(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        rows(tmp_path / "nowhere", COUNT)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as plain:
        plain.execute("CREATE TABLE t(x)")
    with pytest.raises((DataDirectoryError, CorruptionError)):
        rows(other, COUNT)
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        db.pragma("user_version", 99)
    with pytest.raises(DataDirectoryError, match=r"has format version 99, this Hadron knows \d"):
        rows(directory, COUNT)
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        db.pragma("user_version", FORMAT_VERSION)
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        set_meta(db, DIVERGED, "another digest")
    with pytest.raises(DataDirectoryError, match="worth nothing: another digest"):
        rows(directory, COUNT)


async def test_a_leader_that_was_stopped_in_order_has_written_down_what_is_committed(
    tmp_path: Path,
    clock: MockClock,  # noqa: ARG001 - time that passes at once
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await send(client, ["a", "b", "c"])
        assert rows(nodes.data("n1"), COUNT) == [(0,)]
        await nodes.crash("n1")
        assert rows(nodes.data("n1"), COUNT) == [(3,)]
