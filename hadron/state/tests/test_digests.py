"""State digests: they go round everything, agree where tables do, and name what differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import apsw
import pytest

from hadron.fakes.tables import BALLOT, SET, Replicated, dump
from hadron.model.errors import CorruptionError
from hadron.model.schema import StreamSpec
from hadron.state import digests, rows
from hadron.state.digests import StateDigest
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import Context
from hadron.state.streams.partitions import AppendBatch
from hadron.storage.log import drop_bodies


@pytest.fixture
def tables() -> Replicated:
    """Enough rows in one table for several slices."""
    tables = Replicated()
    (stream,) = tables.declare(("Stream", "events", StreamSpec(partitions=(SET,))))
    for number in range(1_200):
        pid = number.to_bytes(16, "big")
        tables.submit(AppendBatch(stream, 1, 10, pid, 0, 0))
    group = tables.submit(CreateGroup(stream, "g", 0))
    tables.submit(AckRecords(group.group_id, tuple((n, n) for n in range(1, 1_199, 2))))
    return tables


def logged(tables: Replicated) -> StateDigest:
    """Log a digest; returns it as the log has it."""
    tables.submit(StateDigest())
    command = MACHINE.decode(tables.log[-1][3])
    assert isinstance(command, StateDigest)
    return command


def context_of(db: apsw.Connection, lsn: int) -> Context:
    return Context(
        machine=MACHINE,
        db=db,
        lsn=lsn,
        now_ms=1,
        drop_bodies=drop_bodies,
        replica_set=SET,
        ballot=BALLOT,
    )


def go_round(tables: Replicated) -> list[StateDigest]:
    """One round of digests over everything, from wherever the last one ended."""
    first = logged(tables)
    found = [first]
    while True:
        following = logged(tables)
        if (following.table, following.after) == (first.table, first.after):
            return found
        found.append(following)


def test_every_row_of_every_table_is_covered_in_one_round(tables: Replicated) -> None:
    covered: Counter[str] = Counter()
    for each in go_round(tables):
        covered[each.table] += each.count
        assert each.count <= digests.SLICE_ROWS
    assert set(covered) == set(MACHINE.table_names)
    for name, count in covered.items():
        # The cursor's own table gets its one row during the first round.
        assert count in (len(dump(tables.db)[name]), 0 if name == "hadron_digest_cursor" else count)
    assert covered["hadron_producer"] == covered["hadron_stream_batch"] == 1_200


def test_a_slice_is_bounded_in_bytes(tables: Replicated) -> None:
    for number in range(20):
        tables.db.execute(
            "UPDATE hadron_producer SET recent = zeroblob(100000) WHERE producer_id = ?",
            (number.to_bytes(16, "big"),),
        )
    first = next(each for each in go_round(tables) if each.table == "hadron_producer")
    assert first.count == 3


def test_replicas_with_the_same_tables_agree(tables: Replicated) -> None:
    go_round(tables)
    assert dump(tables.replica()) == dump(tables.db)


def test_a_leader_that_takes_over_goes_on_where_the_last_one_was(tables: Replicated) -> None:
    last = [logged(tables) for _ in range(5)][-1]
    copy = tables.replica()
    following = digests.seal_state_digest(context_of(copy, 1), StateDigest())
    assert (following.table, following.after) != (last.table, last.after)
    assert following == logged(tables)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE hadron_producer SET next_sequence = 9"
        " WHERE producer_id = (SELECT max(producer_id) FROM hadron_producer)",
        "DELETE FROM hadron_group_ack WHERE first = 997",
        "INSERT INTO hadron_group_ack VALUES(1, 1, 1)",
        "INSERT INTO hadron_producer VALUES(9, x'ff', 0, 0, 0, 0, x'90')",
        "DELETE FROM hadron_stream_batch WHERE base_offset = 499",
        "DELETE FROM hadron_stream_batch WHERE base_offset = 500",
        "UPDATE hadron_schema_object SET spec = spec || ' '",
        "UPDATE hadron_stream_partition SET bytes = bytes + 1",
        "DELETE FROM hadron_group",
    ],
)
def test_any_difference_is_met_within_one_round(tables: Replicated, change: str) -> None:
    copy = tables.replica()
    copy.execute(change)
    commands = [(logged(tables), len(tables.log)) for _ in range(60)]
    assert len({(each.table, each.after) for each, _ in commands}) < len(commands), "a whole round"
    with pytest.raises(CorruptionError, match=r"table \w+ differs: \d+ rows ") as caught:
        replay_all(copy, commands)
    table = change.replace("DELETE FROM ", "").replace("INSERT INTO ", "").replace("UPDATE ", "")
    assert f"table {table.split()[0].split('(')[0]} " in caught.value.message


def replay_all(copy: apsw.Connection, commands: list[tuple[StateDigest, int]]) -> None:
    for command, lsn in commands:
        replay(copy, command, lsn)


def replay(copy: apsw.Connection, command: StateDigest, lsn: int) -> None:
    MACHINE.apply(context_of(copy, lsn), command)


def test_a_table_that_is_not_known_here_is_not_compared(tables: Replicated) -> None:
    before: Any = dump(tables.db)
    replay(tables.db, StateDigest("of_the_future", b"", 3, True, b"d" * 16), 5_000)
    after = dump(tables.db)
    assert after.pop("hadron_digest_cursor") == [(1, "of_the_future", b"", 5_000)]
    before.pop("hadron_digest_cursor")
    assert after == before


def test_every_table_has_a_key_to_be_ordered_by(tables: Replicated) -> None:
    for name in MACHINE.table_names:
        table = rows.table(tables.db, name)
        assert table is not None
        assert table.key, name
