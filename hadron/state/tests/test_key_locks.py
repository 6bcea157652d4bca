"""Conditions of transactions: what was true of a key at the prepare is so when the record is
logged (PROTOCOL E9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hadron.fakes.tables import BALLOT, SET, Replicated, dump
from hadron.model.errors import ConflictError, OffsetMismatchError, RequestError
from hadron.model.schema import StreamSpec
from hadron.model.transactions import DELETED, TransactionId
from hadron.state import schema
from hadron.state.machine import encode
from hadron.state.schema import DeleteObjects
from hadron.state.streams.keys import latest
from hadron.state.streams.partitions import AppendGuarded
from hadron.state.streams.retention import TrimStream
from hadron.state.transactions import participations
from hadron.state.transactions.checks import TransactionsCheck
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.key_locks import KEY_LOCK
from hadron.storage.report import Report

A, B = 7, 1 << 63
ONE = TransactionId("eu/p0", 1, 1, 1)
TWO = TransactionId("eu/p0", 1, 1, 2)
PRODUCER = b"a producer's id."


def record(
    *keys: int, after: int | None = None, offset: int | None = None, sequence: int = -1
) -> AppendGuarded:
    packed = b"".join(each.to_bytes(8, "little") for each in keys)
    producer = PRODUCER if sequence >= 0 else b""
    return AppendGuarded(1, len(keys), 40, producer, 0, sequence, offset, after, packed)


def problems(tables: Replicated) -> list[str]:
    report = Report()
    check = TransactionsCheck(report)
    while not check.step(tables.db):
        pass
    # There are no bodies here.
    return [each.text for each in report.problems if each.table == KEY_LOCK]


@pytest.fixture
def tables() -> Iterator[Replicated]:
    made = Replicated()
    made.declare(("Stream", "s", StreamSpec(partitions=(SET,), keys="indexed")))
    yield made
    assert problems(made) == []
    assert dump(made.db) == {**dump(made.replica()), "hadron_log": dump(made.db)["hadron_log"]}


class Prepared:
    """A transaction that another set drives."""

    def __init__(self, tables: Replicated, transaction: TransactionId) -> None:
        self._tables = tables
        self._id = transaction
        self._lsn = self._count = 0

    def write(self, *records: AppendGuarded, at: int | None = None) -> None:
        first = self._count if at is None else at
        done = self._tables.submit(WriteIntents(self._id, first, tuple(map(encode, records))))
        self._lsn, self._count = done

    def finish(self) -> list[int]:
        results = self._tables.submit(FinishTransaction(self._id, self._lsn, self._count))
        return [DELETED.base_offset if each.is_deleted else each.base_offset for each in results]

    def abort(self) -> None:
        self._tables.submit(AbortTransaction(self._id))


def decide(tables: Replicated, *records: AppendGuarded) -> list[int]:
    """In a transaction that this set drives."""
    transaction = TransactionId.of(SET, BALLOT, len(tables.log))
    decided: Any = tables.submit(Decide(transaction, (), tuple(map(encode, records))))
    return [each.base_offset for each in decided.results]


def test_one_entry_has_only_so_many_keys_to_write(
    tables: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participations, "MAX_SET_ROWS", 5)
    tx = Prepared(tables, ONE)
    tx.write(record(1, 2))
    with pytest.raises(RequestError, match=r"change 6 rows .* are 10000, 67108864 and 5 .*often"):
        tx.write(record(3, 4))
    tx.write(record(3))
    assert tx.finish() == [0, 2]
    with pytest.raises(RequestError, match="change 6 rows"):
        decide(tables, record(1, 2), record(3, 4))
    assert decide(tables, record(1, 2), record(3)) == [3, 5]


class TestPrepared:
    @pytest.mark.parametrize("key", [A, B])
    def test_nobody_writes_the_key_until_it_is_over(self, tables: Replicated, key: int) -> None:
        tables.submit(record(key))
        tx = Prepared(tables, ONE)
        tx.write(record(key, after=0))
        for other in (record(key), record(1, key), record(key, after=0), record(key, after=-1)):
            with pytest.raises(ConflictError, match=str(ONE)) as caught:
                tables.submit(other)
            assert caught.value.retryable
            assert "default/s" in caught.value.message
            assert f"its driver {ONE.replica_set} has decided" in caught.value.hint
            assert f"`hadron tx show {ONE}`" in caught.value.hint
            with pytest.raises(ConflictError, match=str(ONE)):
                decide(tables, record(key))
        assert tables.submit(record(1, 0)).base_offset == 1, "other keys, and none, are free"
        assert tx.finish() == [3]
        with pytest.raises(OffsetMismatchError, match="is at offset 3"):
            tables.submit(record(key, after=0))
        assert tables.submit(record(key, after=3)).base_offset == 4

    def test_what_is_rolled_back_holds_nothing(self, tables: Replicated) -> None:
        tx = Prepared(tables, ONE)
        tx.write(record(A, after=-1), record(B))
        tx.abort()
        assert tables.submit(record(A, after=-1)).base_offset == 0
        assert tables.rows(f"SELECT * FROM {KEY_LOCK}") == []

    def test_what_is_not_so_is_refused_at_once(self, tables: Replicated) -> None:
        tables.submit(record(A))
        for after in (-1, 1):
            with pytest.raises(OffsetMismatchError) as caught:
                Prepared(tables, ONE).write(record(A, after=after))
            assert (caught.value.expected, caught.value.actual) == (after, 0)
            with pytest.raises(OffsetMismatchError):
                decide(tables, record(A, after=after))
        assert tables.rows("SELECT * FROM hadron_participation") == []

    def test_records_without_conditions_share_a_key(self, tables: Replicated) -> None:
        one, two = Prepared(tables, ONE), Prepared(tables, TWO)
        one.write(record(A, A, B))
        two.write(record(A))
        # Neither can be refused any more, so what others have written may not be relied upon.
        with pytest.raises(ConflictError, match=str(ONE)):
            Prepared(tables, TransactionId("eu/p0", 1, 1, 3)).write(record(A, after=-1))
        assert tables.submit(record(A, after=-1)).base_offset == 0, "it is logged at once"
        assert decide(tables, record(A, after=0)) == [1]
        assert two.finish() == [2]
        assert one.finish() == [3]
        assert latest(tables.db, 1, A) == 4

    def test_a_transactions_own_records_do_not_count(self, tables: Replicated) -> None:
        """In whatever order its statements come: an object's several events, and a condition."""
        one = Prepared(tables, ONE)
        one.write(record(A), at=1)
        one.write(record(A, after=-1), at=0)
        one.write(record(A, after=-1), record(A), at=2)
        with pytest.raises(ConflictError):
            Prepared(tables, TWO).write(record(A))
        with pytest.raises(ConflictError):
            tables.submit(record(A))
        assert one.finish() == [0, 1, 2, 3]
        assert decide(tables, record(A, after=3), record(A)) == [4, 5]

    def test_what_is_sent_again_gets_its_answer(self, tables: Replicated) -> None:
        """A producer's record that was logged before the key was taken."""
        first = tables.submit(record(A, sequence=0))
        tx = Prepared(tables, ONE)
        tx.write(record(A, after=0))
        again = tables.submit(record(A, sequence=0))
        assert again.base_offset == first.base_offset
        with pytest.raises(ConflictError):
            tables.submit(record(A, sequence=1))
        tx.finish()
        assert tables.submit(record(A, sequence=1)).base_offset == 2, "its number was not used"

    def test_a_stream_that_goes_meanwhile_or_is_trimmed(self, tables: Replicated) -> None:
        tables.submit(record(A))
        one, two = Prepared(tables, ONE), Prepared(tables, TWO)
        one.write(record(A, after=0))
        two.write(record(B, after=-1))
        tables.submit(TrimStream(1, 1))
        assert one.finish() == [1], "nobody has written it, which is what was asked"
        tables.submit(DeleteObjects(schema.current_index(tables.db), (1,)))
        assert two.finish() == [DELETED.base_offset]

    def test_the_end_of_a_stream_is_not_held(self, tables: Replicated) -> None:
        with pytest.raises(RequestError, match="expect_offset 0 cannot stand") as caught:
            Prepared(tables, ONE).write(record(A, offset=0))
        assert "expect_key_offset" in caught.value.hint
        with pytest.raises(RequestError, match="expect_offset 0 cannot stand"):
            decide(tables, record(A, offset=0))


def test_a_lock_of_no_transaction_is_found() -> None:
    tables = Replicated()
    tables.db.execute(f"INSERT INTO {KEY_LOCK} VALUES(1, 7, 3, 1)")
    (problem,) = problems(tables)
    assert "key 7 of stream 1 is of no transaction that is prepared, 3" in problem
