"""How long a log stays: the leader's horizon, a node's own dropping of its rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import PeerError, TrimmedError
from hadron.model.ids import EMPTY_LOG, LogPosition
from hadron.replication import trimming
from hadron.replication.feed import find_common
from hadron.replication.follower import FollowerLog
from hadron.replication.tests.support import (
    FIRST,
    UUID,
    Follower,
    follower,
    make_entries,
    namespace_command,
    open_store,
)
from hadron.replication.trimming import LogHorizon, LogTrimmer
from hadron.replication.watermark import Watermark
from hadron.state.features import MACHINE
from hadron.storage.log import Entry, set_meta


def filled(count: int, *, keep: int, lag: int, size: int = 100) -> LogHorizon:
    horizon = LogHorizon(keep_bytes=keep, max_lag_bytes=lag)
    for lsn in range(1, count + 1):
        horizon.add(lsn, size)
    return horizon


def test_what_all_have_goes_but_for_what_is_kept() -> None:
    horizon = filled(100, keep=1_000, lag=5_000)
    assert not horizon.move(committed=0, on_all=0)
    assert horizon.move(committed=100, on_all=100)
    assert horizon.lsn == 90
    assert not horizon.move(committed=100, on_all=100)


def test_a_member_that_lacks_it_holds_it_back_up_to_the_limit() -> None:
    horizon = filled(40, keep=1_000, lag=5_000)
    assert not horizon.move(committed=40, on_all=0)
    assert horizon.lag_lsn == 0
    for lsn in range(41, 101):
        horizon.add(lsn, 100)
    assert horizon.move(committed=100, on_all=0)
    assert horizon.lsn == horizon.lag_lsn == 50


def test_nothing_above_the_watermark_goes_however_far_somebody_lags() -> None:
    horizon = filled(1_000, keep=1_000, lag=1_000)
    horizon.move(committed=7, on_all=0)
    assert horizon.lsn == 7


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 30), st.integers(0, 30)), max_size=60),
    st.integers(0, 20),
)
def test_the_horizon_keeps_its_promises(steps: list[tuple[int, int, int]], before: int) -> None:
    keep, lag = 1_280, 4_000
    horizon = LogHorizon(keep_bytes=keep, max_lag_bytes=lag)
    entries = [(lsn, 100) for lsn in range(1, before + 1)]
    committed = on_all = 0
    for number, (size, commit_step, all_step) in enumerate(steps):
        entries.append((len(entries) + 1, size))
        horizon.add(*entries[-1])
        if number == len(steps) // 2:
            older = LogHorizon(keep_bytes=keep, max_lag_bytes=lag)
            for entry in entries[:before]:
                older.add(*entry)
            horizon.prepend(older)
        committed = min(len(entries), committed + commit_step)
        on_all = min(committed, on_all + all_step)
        last = horizon.lsn
        horizon.move(committed=committed, on_all=on_all)
        above = sum(size for lsn, size in entries if lsn > horizon.lsn)
        assert last <= horizon.lsn <= committed
        assert horizon.lsn == 0 or above >= keep, "the newest part is kept"
        assert horizon.lsn <= on_all or above >= lag, "only the lag limit passes a member"
        held = [size for lsn, size in entries if lsn > horizon.lsn]
        if number > len(steps) // 2 and committed == len(entries):
            assert sum(held) <= max(lag, keep) + 2 * 500 + keep // 64, "and it is a limit"


# --- a node's own rows --------------------------------------------------------------------------


def grow(disk: Follower, count: int) -> list[Entry]:
    disk.promise(FIRST)
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(number) for number in range(count)])
    disk.append(FIRST, entries, committed=count - 2, member_of=UUID)
    return entries


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the writer's thread, which sets no event."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def trimmed(directory: Path, allowed: int, *, pin: int = 0) -> list[int]:
    """The rows that are left on a follower's disk of 10 entries, of which 8 are committed."""
    with follower(directory) as disk:
        grow(disk, 10)
    token = trio.lowlevel.current_trio_token()
    store = open_store(directory, "n2", partial(token.run_sync_soon, idempotent=True))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            log = FollowerLog(
                store.writer.connection,
                store.log,
                store.identity,
                MACHINE,
                "local/p0",
                Watermark.noted_in(store.writer.connection),
            )
            trimmer = LogTrimmer(store, log, store.readers.heal)
            release = trimmer.pin(pin) if pin else lambda: None
            nursery.start_soon(trimmer.run)
            trimmer.allow(allowed)
            expected = min(allowed, 8, pin - 1 if pin else 8)
            await until(lambda: store.log.anchor.lsn >= expected)
            assert store.log.anchor.lsn == expected
            if pin:
                release()
                await until(lambda: store.log.anchor.lsn >= min(allowed, 8))
            nursery.cancel_scope.cancel()
    finally:
        store.close()
    with follower(directory) as disk:
        assert disk.log.anchor.lsn == min(allowed, 8)
        assert (disk.log.applied_lsn, disk.log.committed_lsn) == (8, 8)
        return disk.stored_lsns()


async def test_a_node_drops_what_it_is_allowed_to(tmp_path: Path) -> None:
    assert await trimmed(tmp_path, 5) == [6, 7, 8, 9, 10]


async def test_never_above_its_own_watermark(tmp_path: Path) -> None:
    assert await trimmed(tmp_path, 10) == [9, 10]


async def test_a_pin_holds_until_it_is_released(tmp_path: Path) -> None:
    assert await trimmed(tmp_path, 6, pin=4) == [7, 8, 9, 10]


def test_tables_that_have_diverged_keep_what_they_have_not_applied(tmp_path: Path) -> None:
    """A snapshot replaces them, and may end anywhere: the log goes on from there (PROTOCOL A7)."""
    with follower(tmp_path) as disk:
        twice = make_entries(EMPTY_LOG, FIRST, [namespace_command(0)] * 2)
        disk.promise(FIRST)
        disk.append(FIRST, twice, committed=2, member_of=UUID)
        assert (disk.log.applied_lsn, disk.log.committed_lsn) == (0, 2)
        trimmer = LogTrimmer(disk.store, disk.log, disk.store.readers.heal)
        trimmer.allow(2)
        trimmer._trim(disk.store.writer.connection)
        assert (disk.store.log.anchor, disk.stored_lsns()) == (EMPTY_LOG, [1, 2])


def test_a_log_that_is_trimmed_is_known_to_be_committed_up_to_there(tmp_path: Path) -> None:
    """A leader writes down where its tables are, and with its first entry where the watermark is:
    after a restart it would know less to be committed than it has given up."""
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(number) for number in range(10)])
    with follower(tmp_path) as disk:
        disk.promise(FIRST)
        disk.append(FIRST, entries, committed=2, member_of=UUID)
        connection, log = disk.store.writer.connection, disk.log
        log.apply_ahead(connection)
        log._watermark.rise(8)
        trimmer = LogTrimmer(disk.store, log, disk.store.readers.heal)
        trimmer.allow(5)
        trimmer._trim(connection)
    with follower(tmp_path) as disk:
        assert (disk.log.anchor.lsn, disk.log.committed_lsn) == (5, 8)


def test_a_watermark_that_rises_meanwhile_lets_nothing_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop raises it while the writer's thread trims: what goes is below what was noted."""
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(number) for number in range(10)])
    with follower(tmp_path) as disk:
        disk.promise(FIRST)
        disk.append(FIRST, entries, committed=2, member_of=UUID)
        connection, log = disk.store.writer.connection, disk.log
        log.apply_ahead(connection)
        log._watermark.rise(5)

        def note_and_rise(*noted: Any) -> None:
            set_meta(*noted)
            log._watermark.rise(8)

        monkeypatch.setattr(trimming, "set_meta", note_and_rise)
        trimmer = LogTrimmer(disk.store, log, disk.store.readers.heal)
        trimmer.allow(8)
        trimmer._trim(connection)
    with follower(tmp_path) as disk:
        assert (disk.log.anchor.lsn, disk.log.committed_lsn) == (5, 5)


def test_a_trim_is_flushed_as_every_commit_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROTOCOL B4: were its frames not on the disk before the next commit's, a power loss could
    leave those without them, which looks like damage."""
    with follower(tmp_path) as disk:
        grow(disk, 10)
        connection, log = disk.store.writer.connection, disk.store.log
        full, drop = 2, log.trim
        seen: list[int] = []

        def trim(until_lsn: int, *, max_rows: int) -> None:
            seen.append(connection.pragma("synchronous"))
            drop(until_lsn, max_rows=max_rows)

        monkeypatch.setattr(log, "trim", trim)
        trimmer = LogTrimmer(disk.store, disk.log, disk.store.readers.heal)
        trimmer.allow(5)
        trimmer._trim(connection)
        assert log.anchor.lsn == 5
        assert seen == [full] == [connection.pragma("synchronous")]


def test_a_leader_that_speaks_of_what_went_is_told_to_look_again(tmp_path: Path) -> None:
    with follower(tmp_path) as disk:
        entries = grow(disk, 10)
        disk.store.log.trim(6, max_rows=100)
        again = disk.append(FIRST, entries[3:], after=entries[2].position, committed=10)
        assert again.reason == "mismatch"
        assert disk.stored_lsns() == [7, 8, 9, 10]
        done = disk.append(FIRST, entries[6:], after=entries[5].position, committed=10)
        assert (done.reason, done.match_lsn, done.applied_lsn) == ("", 10, 10)


# --- where two logs part, when one of them begins late ------------------------------------------


async def parting(own: list[Entry], theirs: list[Entry], low: int) -> LogPosition:
    def probe(entries: list[Entry], anchor: int) -> dict[int, LogPosition]:
        return {entry.lsn: entry.position for entry in entries if entry.lsn >= anchor} | {
            0: EMPTY_LOG
        }

    mine, others = probe(own, low), probe(theirs, 0)

    async def look(known: dict[int, LogPosition], lsn: int) -> LogPosition | None:
        await trio.lowlevel.checkpoint()
        return known.get(lsn)

    return await find_common(
        partial(look, mine), partial(look, others), low, min(len(own), len(theirs))
    )


async def test_the_common_part_is_looked_for_above_the_anchor() -> None:
    shared = make_entries(EMPTY_LOG, FIRST, [b"c"] * 20)
    own = shared + make_entries(shared[-1].position, FIRST, [b"own"] * 5)
    theirs = shared + make_entries(shared[-1].position, FIRST, [b"their"] * 9)
    for low in (0, 1, 7, 20):
        assert await parting(own, theirs, low) == shared[-1].position


async def test_logs_that_parted_before_the_anchor_need_a_snapshot() -> None:
    shared = make_entries(EMPTY_LOG, FIRST, [b"c"] * 5)
    own = shared + make_entries(shared[-1].position, FIRST, [b"own"] * 15)
    theirs = shared + make_entries(shared[-1].position, FIRST, [b"their"] * 15)
    with pytest.raises(TrimmedError, match="parted before 10"):
        await parting(own, theirs, 10)
    with pytest.raises(TrimmedError, match="ends at 5 is before 10"):
        await parting(own, theirs[:5], 10)


@pytest.mark.parametrize("whose", ["own", "theirs"])
@pytest.mark.parametrize("after", range(1, 6))
async def test_what_is_trimmed_meanwhile_is_not_where_the_logs_part(whose: str, after: int) -> None:
    """Else a node that leads next would replace entries that are committed."""
    shared = make_entries(EMPTY_LOG, FIRST, [b"c"] * 20)
    anchors = {"own": 3, "theirs": 0}
    asked = 0

    async def look(log: str, lsn: int) -> LogPosition | None:
        nonlocal asked
        await trio.lowlevel.checkpoint()
        asked += 1
        if asked == after:
            anchors[whose] = 18
        return shared[lsn - 1].position if lsn >= anchors[log] else None

    try:
        found = await find_common(partial(look, "own"), partial(look, "theirs"), 3, 20)
    except PeerError:
        assert anchors[whose] == 18, "asked again, from there on"
    else:
        assert found == shared[-1].position
