"""Flipped bits and cut files: found when the node starts or when somebody reads, given back by the
peers, or without any effect. Nothing wrong is ever served."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from trio.testing import MockClock

from hadron.model.errors import CorruptionError, DataDirectoryError
from hadron.node.live_verification import verify_live
from hadron.node.tests.support import make_stream, produce, read_all
from hadron.node.tests.test_repair import problems
from hadron.node.world import SystemDisk
from hadron.serving.tests.stack import SET, leading
from hadron.state import rows
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.streams import partitions as streams
from hadron.storage import log
from hadron.storage.store import Store
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.system import SystemClock

CASES = 1_000
FILES = ("hadron.db", "hadron.db-wal", "node.db")


# --- a disk alone ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """All that a node would tell others of its disk."""

    entries: list[log.Entry]
    batches: list[Any]
    tables: dict[str, list[Any]]
    identity: tuple[Any, ...]
    is_member: bool


@dataclass(frozen=True)
class Disk:
    """A data directory, and what stands in it."""

    directory: Path
    truth: Content


def open_store(directory: Path) -> Store:
    return Store(
        directory,
        cluster="test",
        replica_set=SET,
        node="n1",
        tables=MACHINE.tables,
        durability="fsync",
        checkpoint_bytes=1 << 20,
        reader_threads=1,
        disk=SystemDisk(),
        clock=SystemClock(),
        post=lambda report: report(),
        on_fatal=lambda _error: None,
        has_peers=False,
    )


def content(store: Store) -> Content:
    """Through the functions that serve it. Raises what they raise."""

    def read(db: apsw.Connection) -> Content:
        db.execute("BEGIN")
        entries: list[log.Entry] = []
        end = log.last_lsn(db)
        while len(entries) < end:
            entries.extend(log.read_entries(db, len(entries) + 1, max_bytes=1 << 20))
        batches: list[Any] = []
        for stream_id, known in sorted(streams.all_bounds(db).items()):
            offset = known.first_offset
            while offset < known.next_offset:
                found = streams.read_batches(
                    db, stream_id, offset, below=known.next_offset, max_bytes=1 << 20
                )
                batches.extend(found)
                offset = found[-1].next_offset
        tables = {}
        for name in MACHINE.table_names:
            table = rows.table(db, name)
            assert table is not None
            tables[name] = table.after(db, None, 1 << 20)
        db.execute("ROLLBACK")
        own = store.identity.current
        return Content(
            entries,
            batches,
            tables,
            (own.cluster, own.replica_set, own.node, own.uuid, own.promised, own.config_digest),
            own.is_member,
        )

    return store.readers._run(read)


async def fill(directory: Path, copy: Path) -> None:
    """Streams, groups, large and small batches; `copy` gets the files as a killed process leaves
    them, with much of it in the write-ahead log."""
    async with leading(directory) as stack:
        stack.store.identity.become_member(b"u" * 16)
        first, second = await stack.stream("events"), await stack.stream("other")
        await stack.append(first, b"large " * 8_000)
        for number in range(20):
            await stack.append(first, b"value %d" % number, b"x" * 100 * number)
            await stack.append(second, *(b"%d" % each for each in range(number + 1)))
        group = await stack.controller.execute(CreateGroup(first, "readers", 3))
        await stack.controller.execute(AckRecords(group.group_id, ((5, 9), (12, 12))))
    async with leading(directory) as stack:
        for number in range(30):
            await stack.append(first, b"later %d" % number, b"y" * 50 * number)
        shutil.copytree(directory, copy)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose files are in memory, where there is such a place: a thousand starts wait
    for ten thousand flushes otherwise."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hadron-test-") as name:
        yield Path(name)


@pytest.fixture
async def disks(memory: Path) -> list[Disk]:
    """One that was closed in order, one whose process was killed."""
    closed, killed = memory / "closed", memory / "killed"
    await fill(closed, killed)
    found = []
    for directory in (closed, killed):
        scratch = memory / "scratch"
        shutil.copytree(directory, scratch)
        store = open_store(scratch)
        found.append(Disk(directory, content(store)))
        store.close()
        shutil.rmtree(scratch)
    assert found[0].truth.tables == found[1].truth.tables
    assert (killed / "hadron.db-wal").stat().st_size > 100_000
    return found


def spoil(path: Path, chance: random.Random) -> str:
    """Flip a bit of a file, or cut it; returns what was done."""
    data = bytearray(path.read_bytes())
    if chance.random() < 0.85:
        bit = chance.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        what = f"bit {bit} of {path.name} flipped"
    else:
        size = chance.randrange(len(data))
        del data[size:]
        what = f"{path.name} cut to {size} bytes"
    path.write_bytes(data)
    return what


def lost_tail(found: Content, truth: Content) -> int:
    """How many of the last entries are gone, as after a torn write, while all others are right."""
    count = len(found.entries)
    return len(truth.entries) - count if found.entries == truth.entries[:count] else 0


def judge(directory: Path, truth: Content) -> str:
    """What becomes of a spoilt disk.

    "refused" at the start, "detected" by a read, "harmless"; "forgotten": it counts in no majority
    any more; "last entry lost", "tail lost", "wrong".
    """
    try:
        store = open_store(directory)
    except (CorruptionError, DataDirectoryError) as error:
        return "refused" if error.hint else "wrong"
    try:
        found = content(store)
    except CorruptionError:
        return "detected"
    finally:
        store.close()
    if found == truth:
        return "harmless"
    if not found.is_member and replace(found, is_member=True, identity=truth.identity) == truth:
        return "forgotten"
    lost = lost_tail(found, truth)
    return "wrong" if not lost else "tail lost" if lost > 1 else "last entry lost"


@pytest.mark.long
async def test_no_flipped_bit_and_no_cut_is_ever_served(
    disks: list[Disk], memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20_26)
    outcomes: Counter[tuple[str, str]] = Counter()
    scratch = memory / "scratch"
    for _ in range(CASES):
        disk = chance.choice(disks)
        shutil.copytree(disk.directory, scratch)
        files = [scratch / name for name in FILES if (scratch / name).exists()]
        path = chance.choices(files, [5, 1] if len(files) == 2 else [4, 4, 1])[0]
        what = spoil(path, chance)
        outcome = judge(scratch, disk.truth)
        outcomes[path.name, outcome] += 1
        assert outcome != "wrong", what
        # A log that ends early looks as a crash leaves it; the peers know better (PROTOCOL B4).
        assert outcome != "forgotten" or path.name == "node.db", what
        assert outcome != "tail lost" or path.name == "hadron.db-wal", what
        shutil.rmtree(scratch)
    with capsys.disabled():
        print(f"\n{CASES} disks: {dict(sorted(outcomes.items()))}")
    for name in FILES:
        assert outcomes[name, "refused"] + outcomes[name, "detected"] > 0


# --- a disk among others --------------------------------------------------------------------------

VALUES = [f"{number} " + "z" * 300 * (number % 8) for number in range(40)]


@asynccontextmanager
async def spoilt(directory: Path, name: str, file: str, seed: int) -> AsyncIterator[Nodes]:
    """Three nodes that were killed, not yet started again; one file of one of them is spoilt."""
    before = directory / "before"
    async with running_nodes(before, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            for value in VALUES[:30]:
                await produce(connection, value.encode())
            await nodes.wait_in_step()
            await nodes.restart()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            for value in VALUES[30:]:
                await produce(connection, value.encode())
        await nodes.wait_in_step()
        for each in nodes.names:
            shutil.copytree(nodes.data(each), directory / each)
    spoil(directory / name / file, random.Random(seed))
    async with running_nodes(directory, 3, start=False) as nodes:
        yield nodes


@pytest.mark.long
@pytest.mark.parametrize("name", ["n1", "n2"])
@pytest.mark.parametrize(
    ("file", "seed"),
    [("hadron.db", seed) for seed in range(8)] + [("hadron.db-wal", seed) for seed in range(4)],
)
async def test_nodes_give_each_other_back_what_one_of_them_lost(
    memory: Path, clock: MockClock, name: str, file: str, seed: int
) -> None:
    async with spoilt(memory, name, file, seed) as nodes:
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == [value.encode() for value in VALUES]
        await nodes.wait_in_step()
        # What nobody reads is found by the next pass over everything.
        async with nodes.client() as client:
            await verify_live(client)

        def is_whole() -> bool:
            return all(
                nodes.status(each).trouble == "" and problems(nodes, each) == []
                for each in nodes.names
            )

        await nodes.wait_for("whole", is_whole)
        await nodes.wait_in_step()
        async with nodes.client() as client:
            assert await read_all(client) == [value.encode() for value in VALUES]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_node_whose_identity_is_damaged_stays_away_and_the_others_serve(
    memory: Path, clock: MockClock, seed: int
) -> None:
    async with spoilt(memory, "n2", "node.db", seed) as nodes:
        with pytest.raises(CorruptionError, match=r"node\.db") as caught:
            await nodes.start("n2")
        assert "rebuilds itself from its peers" in caught.value.hint
        await nodes.start("n1", "n3")
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == [value.encode() for value in VALUES]
