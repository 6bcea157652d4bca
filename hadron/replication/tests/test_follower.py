"""A follower's log: promises, verified appends, the tail that goes, what is applied and stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.errors import CorruptionError, FencedError, StorageError, VersionError
from hadron.model.ids import EMPTY_LOG, Ballot
from hadron.replication import configurations
from hadron.replication import follower as follower_module
from hadron.replication.follower import BadEntriesError, LostEntriesError
from hadron.replication.tests.support import FIRST, UUID, follower, make_entries, namespace_command
from hadron.state.execute import DivergedError, execute_logged
from hadron.state.features import MACHINE
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command, Context, StateMachine, encode
from hadron.storage.log import LOG, Entry, get_meta, read_commands

SECOND = Ballot(1, 2)
COMMANDS = [namespace_command(index) for index in range(6)]


def entries(count: int = 6, ballot: Ballot = FIRST) -> list[Entry]:
    return make_entries(EMPTY_LOG, ballot, COMMANDS[:count])


def fail_at(monkeypatch: pytest.MonkeyPatch, lsn: int, error: Exception) -> None:
    """Have the entry's `apply` raise `error`, with half of its work done."""
    apply = type(MACHINE).apply

    def fails(machine: StateMachine, context: Context, command: Command) -> Any:
        result = apply(machine, context, command)
        if context.lsn == lsn:
            raise error
        return result

    monkeypatch.setattr(type(MACHINE), "apply", fails)


# --- promises -----------------------------------------------------------------------------------


def test_a_promise_survives_a_restart_and_a_lower_one_is_refused(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        assert one.promise(SECOND) == EMPTY_LOG
    with follower(tmp_path) as one:
        assert one.store.identity.current.promised == SECOND
        with pytest.raises(FencedError, match=r"ballot 1\.1 is below 1\.2"):
            one.promise(FIRST)
        one.promise(SECOND)
        one.promise(Ballot(2, 1))


def test_another_configuration_of_the_same_epoch_is_refused(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        with pytest.raises(FencedError, match="another configuration"):
            one.promise(SECOND, digest=b"other" * 3 + b"!")
        one.promise(Ballot(2, 1), digest=b"other" * 3 + b"!")


def test_founding_makes_a_member(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST, found=True)
        assert one.store.identity.current.is_member
        assert one.store.identity.current.uuid == UUID


def test_a_plain_promise_makes_no_member(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        assert not one.store.identity.current.is_member


def test_a_log_with_entries_is_never_founded_anew(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(1))
        with pytest.raises(FencedError, match="holds 1 entries"):
            one.promise(SECOND, found=True)
        assert one.store.identity.current.promised == FIRST


@pytest.mark.parametrize("found", [False, True])
def test_a_disk_of_another_replica_set_promises_nothing(tmp_path: Path, found: bool) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST, found=True)
        with pytest.raises(FencedError, match=UUID.hex()):
            one.promise(SECOND, uuid=b"u" * 16, found=found)
        assert one.store.identity.current.promised == FIRST
        assert one.store.identity.current.uuid == UUID


# --- appends ------------------------------------------------------------------------------------


def test_entries_are_kept_at_once_and_applied_when_committed(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        outcome = one.append(FIRST, entries(4), committed=2)
        assert (outcome.match_lsn, outcome.applied_lsn, outcome.reason) == (4, 2, "")
    with follower(tmp_path) as one:
        assert (one.log.head.lsn, one.log.applied_lsn, one.log.committed_lsn) == (4, 2, 2)
        outcome = one.append(FIRST, [], after=entries(4)[-1].position, committed=9)
        assert (outcome.match_lsn, outcome.applied_lsn) == (4, 4)


def test_only_the_promised_ballot_is_served(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(SECOND)
        for ballot in (FIRST, Ballot(1, 3), Ballot(2, 1)):
            outcome = one.append(ballot, entries(1))
            assert (outcome.reason, outcome.promised) == ("fenced", SECOND)
        assert one.stored_lsns() == []


def test_a_gap_is_a_mismatch(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        outcome = one.append(FIRST, entries(4)[3:], after=entries(3)[-1].position)
        assert outcome.reason == "mismatch"
        assert one.stored_lsns() == []


def test_another_history_before_the_entries_is_a_mismatch(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(2))
        other = make_entries(EMPTY_LOG, SECOND, COMMANDS[:3])
        one.promise(SECOND)
        outcome = one.append(SECOND, other[2:], after=other[1].position)
        assert outcome.reason == "mismatch"
        assert one.log.head == entries(2)[-1].position


def test_what_is_there_already_is_skipped(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(3), committed=3)
        outcome = one.append(FIRST, entries(5), committed=3)
        assert (outcome.match_lsn, outcome.applied_lsn) == (5, 3)
        assert one.stored_lsns() == [1, 2, 3, 4, 5]


def test_a_replica_goes_on_behind_no_transaction_that_sqlite_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does when a disk fails: the entries are gone, and that they are committed would be
    noted by itself (PROTOCOL A3)."""
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(2), committed=1)
        connection = one.store.writer.connection

        def apply_and_fail(context: Context, data: bytes) -> None:
            execute_logged(context, data)
            if context.lsn == 3:
                connection.execute("ROLLBACK")

        monkeypatch.setattr(follower_module, "execute_logged", apply_and_fail)
        with pytest.raises(StorageError, match="was ended by SQLite"):
            one.append(FIRST, entries(4), committed=3)
        assert (one.log.head.lsn, one.log.applied_lsn, one.log.committed_lsn) == (2, 1, 1)
        assert (get_meta(connection, "committed_lsn"), one.stored_lsns()) == (1, [1, 2])


def test_a_late_copy_neither_drops_nor_acknowledges_more_than_it_holds(tmp_path: Path) -> None:
    """Entries 1 and 2 arrive again after 1 to 5: the tail stays, and the answer is about 2."""
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(5))
        outcome = one.append(FIRST, entries(2), committed=5)
        assert outcome.match_lsn == 2
        assert one.log.applied_lsn == 2
        assert one.stored_lsns() == [1, 2, 3, 4, 5]


def test_an_uncommitted_tail_gives_way_to_another_ballots(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(5), committed=2)
        one.promise(SECOND)
        second = make_entries(entries(2)[-1].position, SECOND, COMMANDS[2:4])
        outcome = one.append(SECOND, second, after=entries(2)[-1].position, committed=4)
        assert (outcome.match_lsn, outcome.applied_lsn) == (4, 4)
        assert one.stored_lsns() == [1, 2, 3, 4]
        assert one.log.head == second[-1].position


def test_what_is_committed_is_never_dropped(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(4), committed=4)
        one.promise(SECOND)
        other = make_entries(entries(2)[-1].position, SECOND, COMMANDS[2:4])
        with pytest.raises(LostEntriesError, match="entry 4 is committed"):
            one.append(SECOND, other, after=entries(2)[-1].position)
        assert one.log.head == entries(4)[-1].position
        assert one.log.applied_lsn == 4
    with follower(tmp_path) as one:
        assert one.log.head == entries(4)[-1].position
        assert not one.log.diverged


class TestDivergedTables:
    """The log goes on: a majority may need this disk before there is a snapshot."""

    def test_a_tail_applied_ahead_of_the_watermark_is_replaced(self, tmp_path: Path) -> None:
        with follower(tmp_path) as one:
            told: list[str] = []
            one.log.on_diverged = told.append
            one.promise(FIRST)
            one.append(FIRST, entries(4), committed=2)
            one.log.apply_ahead(one.store.writer.connection)  # as a leader does
            one.promise(SECOND)
            other = make_entries(entries(3)[-1].position, SECOND, COMMANDS[3:5])
            outcome = one.append(SECOND, other, after=entries(3)[-1].position, committed=5)
            assert (outcome.match_lsn, outcome.applied_lsn, outcome.reason) == (5, 0, "")
            assert one.log.head == other[-1].position
            assert told == [one.log.diverged]
            assert "applied entry 4" in one.log.diverged
        with follower(tmp_path) as one:
            assert "applied entry 4" in one.log.diverged
            assert (one.log.applied_lsn, one.log.committed_lsn) == (0, 5)
            more = make_entries(other[-1].position, SECOND, COMMANDS[5:6])
            assert one.append(SECOND, more, after=other[-1].position, committed=6).match_lsn == 6
            assert one.log.applied_lsn == 0
            with pytest.raises(DivergedError, match="cannot lead with the tables"):
                one.log.apply_ahead(one.store.writer.connection)

    def test_an_entry_that_they_refuse_does_not_stop_the_log(self, tmp_path: Path) -> None:
        with follower(tmp_path) as one:
            one.promise(FIRST)
            twice = make_entries(EMPTY_LOG, FIRST, [COMMANDS[0], COMMANDS[0]])
            outcome = one.append(FIRST, twice, committed=2)
            assert (outcome.match_lsn, outcome.applied_lsn) == (2, 0)
            assert "refused here" in one.log.diverged
            assert one.stored_lsns() == [1, 2]

    @pytest.mark.parametrize(
        "hole", [apsw.ConstraintError("UNIQUE constraint failed"), KeyError("x"), AssertionError()]
    )
    def test_they_refuse_an_entry_by_whatever_a_leader_takes_for_a_refusal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hole: Exception
    ) -> None:
        with follower(tmp_path) as one:
            one.promise(FIRST)
            fail_at(monkeypatch, 2, hole)
            outcome = one.append(FIRST, entries(3), committed=2)
            assert (outcome.match_lsn, outcome.applied_lsn) == (3, 0)
            assert "entry 2 (ApplySchema)" in one.log.diverged
            assert one.stored_lsns() == [1, 2, 3]

    @pytest.mark.parametrize(
        "failure", [apsw.IOError("disk"), apsw.FullError("full"), MemoryError(), VersionError("v2")]
    )
    def test_what_is_not_about_the_entry_says_nothing_of_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
    ) -> None:
        with follower(tmp_path) as one:
            one.promise(FIRST)
            fail_at(monkeypatch, 2, failure)
            with pytest.raises(type(failure)):
                one.append(FIRST, entries(3), committed=2)
            assert (one.log.diverged, one.stored_lsns()) == ("", [])


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("part", ["command", "body", "chain", "now_ms", "lsn"])
def test_an_entry_that_does_not_give_its_chain_writes_nothing(
    tmp_path: Path, bad: int, part: str
) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        good = entries(2)
        one.append(FIRST, good, committed=1)
        sent = make_entries(good[-1].position, FIRST, COMMANDS[2:5], body=b"records")
        entry = sent[bad]
        changed = {
            "command": COMMANDS[5],
            "body": b"Records",
            "chain": b"\0" * 16,
            "now_ms": entry.now_ms + 1,
            "lsn": entry.lsn + 1,
        }[part]
        sent[bad] = entry._replace(**{part: changed})  # type: ignore[arg-type]
        with pytest.raises(BadEntriesError):
            one.append(FIRST, sent, after=good[-1].position, committed=5)
        assert one.stored_lsns() == [1, 2]
        assert one.log.head == good[-1].position
        assert (one.log.applied_lsn, one.log.committed_lsn) == (1, 1)
        outcome = one.append(
            FIRST,
            make_entries(good[-1].position, FIRST, COMMANDS[2:5], body=b"records"),
            after=good[-1].position,
            committed=5,
        )
        assert (outcome.match_lsn, outcome.applied_lsn) == (5, 5)


def test_a_command_that_is_not_understood_is_no_fault_of_the_sender(tmp_path: Path) -> None:
    """The chain is right, so a newer leader made it: this node must stop, not ask again."""
    with follower(tmp_path) as one:
        one.promise(FIRST)
        unknown = make_entries(EMPTY_LOG, FIRST, [b"\x91\xcd\xff\xff"])
        with pytest.raises(CorruptionError, match="newer version"):
            one.append(FIRST, unknown, committed=1)
        assert one.stored_lsns() == []
        assert one.log.applied_lsn == 0


def test_being_taught_makes_a_member(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(2))
        assert not one.store.identity.current.is_member
        one.append(FIRST, [], after=entries(2)[-1].position, member_of=UUID)
    with follower(tmp_path) as one:
        assert one.store.identity.current.is_member


def test_membership_is_not_granted_by_another_ballot_or_log(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(SECOND)
        one.append(FIRST, [], member_of=UUID)
        one.append(SECOND, [], after=entries(2)[-1].position, member_of=UUID)
        assert not one.store.identity.current.is_member


def test_applying_everything_says_nothing_about_what_is_committed(tmp_path: Path) -> None:
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries(4), committed=1)
        one.log.apply_ahead(one.store.writer.connection)
        assert (one.log.applied_lsn, one.log.committed_lsn) == (4, 1)


class TestLongTails:
    """What a copy has brought along, say: nothing waits for all of it at once (PROTOCOL F3)."""

    COUNT = 3_000
    AT_ONCE = follower_module._APPLIED_AT_ONCE // 2
    """Each of these entries changes a row at least."""

    def test_a_notice_applies_a_slice(self, tmp_path: Path) -> None:
        tail = long_tail(self.COUNT)
        with follower(tmp_path) as one:
            one.promise(FIRST)
            one.append(FIRST, tail)
            before, slices = 0, 0
            while before < self.COUNT:
                outcome = one.append(
                    FIRST, [], after=tail[-1].position, committed=self.COUNT, member_of=UUID
                )
                assert (outcome.match_lsn, one.log.committed_lsn) == (self.COUNT, self.COUNT)
                assert 0 < outcome.applied_lsn - before <= self.AT_ONCE
                before, slices = outcome.applied_lsn, slices + 1
            assert slices >= 3
        with follower(tmp_path) as one:
            assert (one.log.applied_lsn, one.log.committed_lsn) == (self.COUNT, self.COUNT)

    def test_it_gets_no_longer_however_much_an_append_brings(self, tmp_path: Path) -> None:
        """Else tables fall behind a leader that is busy, for as long as it is."""
        half = 2 * self.AT_ONCE
        tail = long_tail(2 * half)
        with follower(tmp_path) as one:
            one.promise(FIRST)
            one.append(FIRST, tail[:half])
            outcome = one.append(
                FIRST, tail[half:], after=tail[half - 1].position, committed=2 * half
            )
            assert half <= outcome.applied_lsn < 2 * half

    def test_a_leader_to_be_lets_others_in_between(self, tmp_path: Path) -> None:
        with follower(tmp_path) as one:
            one.promise(FIRST)
            one.append(FIRST, long_tail(self.COUNT), committed=7)
            connection = one.store.writer.connection
            before = one.log.applied_lsn
            while not one.log.apply_ahead(connection):
                assert not connection.in_transaction
                assert 0 < one.log.stored_applied_lsn - before <= self.AT_ONCE
                before = one.log.stored_applied_lsn
            assert before >= self.AT_ONCE
            assert (one.log.stored_applied_lsn, one.log.committed_lsn) == (self.COUNT, 7)


def long_tail(count: int) -> list[Entry]:
    return make_entries(EMPTY_LOG, FIRST, map(namespace_command, range(count)))


# --- configurations -----------------------------------------------------------------------------


def test_configurations_of_a_long_tail_are_read_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that have diverged stay where they are, however far the log goes on."""
    read, most = read_commands, 0

    def read_some(db: Any, from_lsn: int, until_lsn: int) -> list[Entry]:
        nonlocal most
        found = read(db, from_lsn, until_lsn)
        most = max(most, len(found))
        return found

    begun = [
        encode(BeginBallot("n1", UUID, (("n1", "leader"),), bytes([epoch]) * 16, MACHINE.version))
        for epoch in range(2)
    ]
    monkeypatch.setattr(configurations, "read_commands", read_some)
    monkeypatch.setattr(configurations, "_READ_AT_ONCE", 2)
    with follower(tmp_path) as one:
        one.promise(Ballot(2, 1))
        first = make_entries(EMPTY_LOG, FIRST, [begun[0], *COMMANDS[:4]])
        then = make_entries(first[-1].position, Ballot(2, 1), [*COMMANDS[4:], begun[1]])
        one.append(Ballot(2, 1), [*first, *then], committed=0, member_of=UUID)
        connection = one.store.writer.connection
        found = one.log.configurations_in_log(connection)
        assert [(each.epoch, each.lsn) for each in found] == [(1, 1), (2, 8)]
        assert most == 2
        for lsns in ((5, 5), (3, 4)):
            connection.execute(f"DELETE FROM {LOG} WHERE lsn BETWEEN ? AND ?", lsns)
            with pytest.raises(CorruptionError, match=f"entry {lsns[0]} is missing"):
                one.log.configurations_in_log(connection)
