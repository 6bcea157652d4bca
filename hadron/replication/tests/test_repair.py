"""What a repair must not write, nor ask for: the log goes on while others are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from hadron.model.batch_building import encode_values
from hadron.model.errors import CorruptionError, HadronError, PeerError, TrimmedError
from hadron.model.ids import EMPTY_LOG, NO_BALLOT, LogPosition
from hadron.replication import repair
from hadron.replication.peers import PeerLink
from hadron.replication.repair import Repairer
from hadron.replication.tests.support import (
    FIRST,
    UUID,
    Follower,
    follower,
    make_entries,
    membership,
    namespace_command,
)
from hadron.storage.bodies import damaged_entry
from hadron.storage.database import transaction
from hadron.storage.log import Entry
from hadron.storage.repair import NotFittingError
from hadron.storage.store import Store
from hadron.wire.system import SystemRandom


class _Connected:
    """Links to members who are all connected."""

    def __init__(self, *names: str) -> None:
        self._links = [PeerLink(name, "replica", f"{name}:7000") for name in names]
        self.changed = trio.Event()

    def connected(self) -> list[PeerLink]:
        return self._links


def _repairer(one: Follower, links: _Connected) -> Repairer:
    def resync(reason: str, lsn: int) -> None:
        raise AssertionError(f"a snapshot that holds {lsn} is asked for: {reason}")

    def lost(error: CorruptionError) -> None:
        raise AssertionError(f"the file is given up: {error}")

    return Repairer(
        membership(3, "n2"),
        one.store,
        links,  # type: ignore[arg-type]
        SystemRandom(),
        committed_lsn=lambda: 0,
        resync=resync,
        on_lost=lost,
    )


async def test_a_body_whose_entry_was_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old leader's tables name entry 9, which its log has lost to another leader's; a body
    without an entry would be in the way of the next entry 9."""
    body = encode_values([b"value"], 1)
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(index) for index in range(9)])
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries[:8], committed=8, member_of=UUID)
        connection = one.store.writer.connection
        connection.execute(
            "INSERT INTO hadron_stream_batch VALUES(1, 0, 1, 9, ?, ?, 1, 1, NULL, NULL)",
            (entries[8].now_ms, len(body)),
        )
        repairer = _repairer(one, _Connected())

        async def ask(_connection: Any, _lsn: int) -> tuple[LogPosition | None, Entry]:
            return entries[7].position, entries[8]._replace(body=body)

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repair, "run_on_writer", _at_once)
        await repairer._give_back(PeerLink("n1", "leader", "n1:7000"), 9, logged=False)
        one.append(FIRST, entries[8:], after=entries[7].position, committed=9)
        assert one.stored_lsns() == list(range(1, 10))
        assert connection.execute("SELECT count(*) FROM hadron_body").get == 0


@pytest.mark.parametrize("refusal", [PeerError("it went away"), TrimmedError("it begins later")])
async def test_an_entry_that_is_trimmed_while_others_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: HadronError
) -> None:
    """The leader cannot give back entry 4, and before the next one is asked this log begins after
    it: there is nothing to ask for any more, and nothing that a snapshot would have to hold."""
    commands = [namespace_command(index) for index in range(8)]
    entries = make_entries(EMPTY_LOG, FIRST, commands, body=b"body")
    asked: list[int] = []
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries, committed=8, member_of=UUID)
        repairer = _repairer(one, _Connected("n1", "n3"))
        _damage(one, 4)

        async def ask(_connection: Any, lsn: int) -> tuple[LogPosition | None, Entry]:
            asked.append(lsn)
            with transaction(one.store.writer.connection):
                one.store.log.trim(6, max_rows=100)
            raise refusal

        monkeypatch.setattr(repair, "_ask", ask)
        await _run_until_settled(repairer, damaged_entry(4, "entry 4 is damaged"))
        assert asked == [3]
        assert repairer.repaired == 0
        assert repairer.trouble == ""


async def test_an_entry_that_is_trimmed_before_its_copy_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy still fits the row that follows, and has no row to be written to."""
    commands = [namespace_command(index) for index in range(8)]
    entries = make_entries(EMPTY_LOG, FIRST, commands, body=b"body")
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries, committed=8, member_of=UUID)
        connection = one.store.writer.connection
        repairer = _repairer(one, _Connected("n1", "n3"))
        _damage(one, 4)

        async def ask(_connection: Any, lsn: int) -> tuple[LogPosition | None, Entry]:
            if lsn == 4:
                with transaction(connection):
                    one.store.log.trim(4, max_rows=100)
            return entries[lsn - 2].position, entries[lsn - 1]

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repair, "run_on_writer", _at_once)
        await _run_until_settled(repairer, damaged_entry(4, "entry 4 is damaged"))
        assert repairer.repaired == 0
        assert one.stored_lsns() == [5, 6, 7, 8]


@pytest.mark.parametrize("lsn", [4, 8])
async def test_another_ballots_entry_is_not_taken_where_the_row_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lsn: int
) -> None:
    """Only the body is damaged; the copy's chain is sound, and not the one of this log, whether an
    entry follows or not."""
    own, other = (
        make_entries(EMPTY_LOG, ballot, map(namespace_command, range(8)), body=b"body")
        for ballot in (FIRST, FIRST._replace(epoch=2))
    )
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, own, committed=2, member_of=UUID)
        repairer = _repairer(one, _Connected("n1", "n3"))
        _damage(one, lsn)

        async def ask(_connection: Any, lsn: int) -> tuple[LogPosition | None, Entry]:
            return other[lsn - 2].position, other[lsn - 1]

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repair, "run_on_writer", _at_once)
        with pytest.raises(NotFittingError):
            await repairer._give_back(PeerLink("n1", "leader", "n1:7000"), lsn, logged=True)
        rows = one.store.writer.connection.execute("SELECT chain FROM hadron_log ORDER BY lsn")
        assert [chain for (chain,) in rows] == [entry.chain for entry in own]


@pytest.mark.parametrize("differs", ["ballot", "now_ms"])
async def test_another_entrys_body_is_not_taken_where_the_row_is_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    """It has as many records and bytes, and its checksum is sound: of what was here only the ballot
    and the stamp are left, and they tell."""
    body = encode_values([b"value"], 1)
    (entry,) = make_entries(EMPTY_LOG, FIRST, [namespace_command(0)], body=body)
    if differs == "ballot":
        other = entry._replace(ballot=FIRST._replace(epoch=2))
    else:
        other = entry._replace(now_ms=entry.now_ms + 1)
    with follower(tmp_path) as one:
        one.store.writer.connection.execute(
            "INSERT INTO hadron_stream_batch VALUES(1, 0, 1, 1, ?, ?, 1, 1, NULL, NULL)",
            (entry.now_ms, len(body)),
        )
        repairer = _repairer(one, _Connected())

        async def ask(_connection: Any, _lsn: int) -> tuple[LogPosition | None, Entry]:
            return None, other

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repair, "run_on_writer", _at_once)
        with pytest.raises(NotFittingError, match="the copy of entry 1's body is of ballot"):
            await repairer._give_back(PeerLink("n1", "leader", "n1:7000"), 1, logged=False)
        assert one.store.writer.connection.execute("SELECT count(*) FROM hadron_body").get == 0


@pytest.mark.parametrize("differs", ["size", "count", "count of a part"])
async def test_a_body_that_is_not_what_was_counted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    """Both logs begin later: no ballot and no stamp come with the copy, and its checksum is sound.
    What was counted of the batches here tells (PROTOCOL A8)."""
    two_values = encode_values([b"x", b"y"], 1)
    as_long = next(
        found
        for length in range(1, 500)
        if len(found := encode_values([b"x" * length], 1)) == len(two_values)
    )
    longer = encode_values([b"x" * 1_000], 1)
    lost, copies = {
        "size": ([as_long], [longer]),
        "count": ([as_long], [two_values]),
        "count of a part": ([longer, as_long], [longer, two_values]),
    }[differs]
    with follower(tmp_path) as one:
        connection = one.store.writer.connection
        _note_batches(connection, lost)
        repairer = _repairer(one, _Connected())

        async def ask(_connection: Any, lsn: int) -> tuple[LogPosition | None, Entry]:
            return None, Entry(lsn, NO_BALLOT, 0, b"", b"".join(copies), b"")

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repair, "run_on_writer", _at_once)
        with pytest.raises(NotFittingError, match="the copy of entry 1's body"):
            await repairer._give_back(PeerLink("n1", "leader", "n1:7000"), 1, logged=False)
        assert connection.execute("SELECT count(*) FROM hadron_body").get == 0


async def test_an_entry_of_a_dropped_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old leader's tables name entry 9, which its log has lost: no member can give it back, and
    a snapshot that had to hold it would never come."""
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(index) for index in range(8)])
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries, committed=8, member_of=UUID)
        one.store.writer.connection.execute(
            "INSERT INTO hadron_stream_batch VALUES(1, 0, 1, 9, 0, 10, 1, 1, NULL, NULL)"
        )
        repairer = _repairer(one, _Connected("n1", "n3"))

        async def ask(_connection: Any, lsn: int) -> tuple[LogPosition | None, Entry]:
            raise TrimmedError(f"entry {lsn} was trimmed, and its body dropped")

        monkeypatch.setattr(repair, "_ask", ask)
        await _run_until_settled(repairer, damaged_entry(9, "the body of entry 9 is missing"))
        assert repairer.trouble == ""


async def test_a_tail_is_not_given_up_while_the_others_logs_come_nearer(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - simulated time
) -> None:
    """What a leader has just written is sent from memory: it may be on its way to them."""
    with follower(tmp_path) as one:
        repairer = _repairer(one, _Connected("n1", "n3"))
        lost: list[CorruptionError] = []
        repairer._on_lost = lost.append
        for end in (5, 6, 7, 7):
            repairer._wait_alone(9, "entry 9 is damaged", {"n2": end, "n3": 5})
            await trio.sleep(repair._ALONE_S * 0.9)
        assert lost == []
        repairer._wait_alone(9, "entry 9 is damaged", {"n2": 7, "n3": 5})
        assert ["n2 ends at 7" in error.message for error in lost] == [True]


@pytest.mark.parametrize("is_unreadable", [True, False])
async def test_a_leader_takes_anothers_copy_for_tables_that_cannot_be_read(
    tmp_path: Path, is_unreadable: bool
) -> None:
    """A page that nobody can read makes nothing of what the others have doubtful; rows that say
    something else than theirs might be the right ones."""
    wanted: list[str] = []
    with follower(tmp_path) as one:
        repairer = Repairer(
            membership(3, "n1"),
            one.store,
            _Connected("n2", "n3"),  # type: ignore[arg-type]
            SystemRandom(),
            committed_lsn=lambda: 0,
            resync=lambda reason, _lsn: wanted.append(reason),
            on_lost=lambda error: wanted.append(error.message),
        )
        repairer.found_tables("page 7 cannot be read", is_unreadable)
        assert bool(wanted) == is_unreadable
        assert ("promote one that is sound" in repairer.trouble) != is_unreadable


def _note_batches(connection: apsw.Connection, batches: Sequence[bytes]) -> None:
    """The first entry's, each of one record and in a stream of its own; their body is lost."""
    is_counted = len(batches) > 1
    if is_counted:
        connection.execute(
            "INSERT INTO hadron_counted_body VALUES(1, ?, ?, 0, 1, 1, 1)",
            (sum(map(len, batches)), len(batches)),
        )
    start = 0
    for stream_id, data in enumerate(batches, 1):
        connection.execute(
            "INSERT INTO hadron_stream_batch VALUES(?, 0, 1, 1, 1, ?, 1, 1, ?, ?)",
            (stream_id, len(data), *((1, start) if is_counted else (None, None))),
        )
        start += len(data)


async def _at_once(store: Store, job: Callable[[apsw.Connection], Any]) -> Any:
    return job(store.writer.connection)


def _damage(one: Follower, lsn: int) -> None:
    one.store.writer.connection.execute(
        "UPDATE hadron_body SET bytes = ? WHERE lsn = ?", (b"bodx", lsn)
    )


async def _run_until_settled(repairer: Repairer, error: CorruptionError) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repairer.run)
        assert await repairer.heal(error)
        nursery.cancel_scope.cancel()
