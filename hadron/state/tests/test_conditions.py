"""Appending under a condition, and the index of keys that it may be of."""

from __future__ import annotations

from array import array

import apsw
import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch import read_head
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import OffsetMismatchError, RequestError
from hadron.model.record import NewRecord
from hadron.model.schema import INDEXED, StreamSpec
from hadron.model.transactions import TransactionId
from hadron.state.dropping import DropObject
from hadron.state.machine import encode
from hadron.state.schema import DeleteObjects
from hadron.state.slices import SLICE_ROWS
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import partitions as streams
from hadron.state.streams.keys import StreamKeysCheck, latest
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.retention import TrimStream
from hadron.state.transactions.intents import FinishTransaction, WriteIntents
from hadron.storage.report import Report

PID = b"p" * 16
A, B, HIGH = 7, 8, (1 << 64) - 1
"""Hashes of keys; the largest is no signed number."""


@pytest.fixture
def tables() -> Replicated:
    tables = Replicated()
    tables.declare(("Stream", "s", StreamSpec(partitions=(SET,), keys=INDEXED)))
    return tables


def guarded(
    *hashes: int,
    offset: int | None = None,
    key_offset: int | None = None,
    pid: bytes = b"",
    sequence: int = -1,
    epoch: int = 0,
) -> AppendGuarded:
    packed = array("Q", hashes).tobytes()
    return AppendGuarded(1, len(hashes), 100, pid, epoch, sequence, offset, key_offset, packed)


def known(tables: Replicated) -> list[tuple[int, int]]:
    return [row[1:] for row in tables.rows("SELECT * FROM hadron_stream_key ORDER BY key_hash")]


def end(tables: Replicated) -> int:
    return streams.bounds(tables.db, 1).next_offset


class TestOffset:
    def test_a_record_gets_the_offset_that_it_expects(self, tables: Replicated) -> None:
        assert tables.submit(guarded(0, offset=0)).base_offset == 0
        assert tables.submit(guarded(0, offset=1)).base_offset == 1

    @pytest.mark.parametrize("expected", [0, 1, 3, 1 << 62])
    def test_or_is_not_logged(self, tables: Replicated, expected: int) -> None:
        tables.submit(guarded(0, 0))
        with pytest.raises(OffsetMismatchError, match=f"is 2, not {expected}") as caught:
            tables.submit(guarded(0, offset=expected))
        assert (caught.value.expected, caught.value.actual) == (expected, 2)
        assert not caught.value.retryable
        assert end(tables) == 2

    def test_what_was_done_is_not_judged_again(self, tables: Replicated) -> None:
        """The answer was lost, and others have come in between."""
        first = tables.submit(guarded(A, offset=0, key_offset=-1, pid=PID, sequence=0))
        tables.submit(guarded(A))
        again = tables.submit(guarded(A, offset=0, key_offset=-1, pid=PID, sequence=0))
        assert (again.base_offset, again.duplicate) == (first.base_offset, True)
        assert end(tables) == 2

    def test_a_refusal_takes_no_sequence(self, tables: Replicated) -> None:
        tables.submit(guarded(A, pid=PID, sequence=0))
        with pytest.raises(OffsetMismatchError):
            tables.submit(guarded(A, offset=0, pid=PID, sequence=1))
        assert tables.submit(guarded(A, offset=1, pid=PID, sequence=1)).base_offset == 1


class TestKeyOffset:
    def test_the_latest_record_of_the_key_is_the_one_expected(self, tables: Replicated) -> None:
        assert tables.submit(guarded(A, key_offset=-1)).base_offset == 0
        tables.submit(guarded(B, B))
        assert tables.submit(guarded(A, key_offset=0)).base_offset == 3
        with pytest.raises(OffsetMismatchError, match="is at offset 3, not at 0") as caught:
            tables.submit(guarded(A, key_offset=0))
        assert (caught.value.expected, caught.value.actual) == (0, 3)

    def test_a_key_without_a_record(self, tables: Replicated) -> None:
        tables.submit(guarded(A))
        with pytest.raises(OffsetMismatchError, match="and there should be none"):
            tables.submit(guarded(A, key_offset=-1))
        with pytest.raises(OffsetMismatchError, match="or it is dropped, none at 0") as caught:
            tables.submit(guarded(B, key_offset=0))
        assert caught.value.actual == -1

    def test_both_conditions_hold_or_nothing_is_logged(self, tables: Replicated) -> None:
        tables.submit(guarded(A))
        with pytest.raises(OffsetMismatchError):
            tables.submit(guarded(A, offset=1, key_offset=-1))
        with pytest.raises(OffsetMismatchError):
            tables.submit(guarded(A, offset=0, key_offset=0))
        assert tables.submit(guarded(A, offset=1, key_offset=0)).base_offset == 1


class TestIndex:
    def test_the_last_record_of_each_key_in_a_batch(self, tables: Replicated) -> None:
        tables.submit(guarded(A, B, 0, A, HIGH))
        assert known(tables) == [(-1, 4), (A, 3), (B, 1)]
        assert latest(tables.db, 1, HIGH) == 4
        assert latest(tables.db, 1, 9) == -1

    def test_records_without_keys_are_in_none(self, tables: Replicated) -> None:
        tables.submit(guarded(0, 0))
        tables.submit(AppendGuarded(1, 3, 100, b"", 0, -1))
        assert known(tables) == []

    def test_what_retention_drops_is_gone_at_once(self, tables: Replicated) -> None:
        for key in (A, B):
            tables.submit(guarded(key))
        tables.submit(TrimStream(1, 1))
        assert latest(tables.db, 1, A) == -1
        assert known(tables) == [(B, 1)]
        assert tables.submit(guarded(A, key_offset=-1)).base_offset == 2

    def test_a_key_that_has_a_later_record_stays(self, tables: Replicated) -> None:
        for key in (A, B, A):
            tables.submit(guarded(key))
        tables.submit(TrimStream(1, 2))
        assert known(tables) == [(A, 2)]

    def test_rows_of_much_that_was_dropped_go_with_later_records(self, tables: Replicated) -> None:
        """One entry never drops more than a slice of them, and nothing shows those that wait."""
        count = SLICE_ROWS + 5
        tables.submit(guarded(*range(1, count + 1)))
        tables.submit(TrimStream(1, count))
        left = known(tables)
        assert [offset for _, offset in left] == list(range(SLICE_ROWS, count))
        assert all(latest(tables.db, 1, key) == -1 for key, _ in left)
        for number in range(3):
            tables.submit(guarded(5_000 + number))
            waiting = [each for each in known(tables) if each[1] < count]
            assert waiting == left[2 * (number + 1) :], "two for each record"
        assert known(tables) == [(5_000 + number, count + number) for number in range(3)]

    def test_it_goes_with_its_stream(self, tables: Replicated) -> None:
        tables.submit(guarded(*range(1, SLICE_ROWS + 2)))
        tables.submit(DeleteObjects(1, (1,)))
        dropped = [tables.submit(DropObject(1, 1 << 40)) for _ in range(4)]
        assert [each.is_done for each in dropped] == [False, False, True, True]
        assert known(tables) == []


class TestCheck:
    """What a verification finds."""

    def filled(self, tables: Replicated) -> None:
        for keys in (("a", "b", None, "a"), ("c",), ("a",)):
            builder = BatchBuilder()
            for key in keys:
                builder.add(NewRecord(b"v", key=key), 1)
            data = builder.build()
            packed = bytes(read_head(data).kh)
            tables.submit(AppendGuarded(1, len(keys), len(data), b"", 0, -1, key_hashes=packed))
            tables.db.execute("INSERT INTO hadron_body VALUES(?, ?)", (len(tables.log), data))

    def problems(self, db: apsw.Connection) -> list[str]:
        report = Report()
        check = StreamKeysCheck(report)
        while not check.step(db):
            pass
        return [problem.text for problem in report.problems]

    def test_an_index_that_is_right(
        self, tables: Replicated, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.filled(tables)
        assert self.problems(tables.db) == []
        monkeypatch.setattr(stream_keys, "SLICE_BYTES", 1)
        assert self.problems(tables.db) == []

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            ("DELETE FROM hadron_stream_key WHERE offset = 4", "offset 4 is not indexed"),
            ("UPDATE hadron_stream_key SET offset = 3 WHERE offset = 5", "latest record at 3"),
            ("UPDATE hadron_stream_key SET offset = 2 WHERE offset = 1", "does not have"),
            ("INSERT INTO hadron_stream_key VALUES(1, 99, 4)", "does not have"),
            ("INSERT INTO hadron_stream_key VALUES(1, 99, 6)", "behind its end"),
        ],
    )
    def test_one_that_is_wrong(self, tables: Replicated, damage: str, told: str) -> None:
        self.filled(tables)
        tables.db.execute(damage)
        assert any(told in problem for problem in self.problems(tables.db))


class TestTransactions:
    """What of this may stand in one."""

    TX = TransactionId("us/p0", 3, 12, 7)

    def prepared(self, tables: Replicated, command: AppendBatch) -> int:
        tables.submit(WriteIntents(self.TX, 0, (encode(command),)))
        return len(tables.log)

    def test_keys_of_a_transactions_records_are_indexed_when_it_ends(
        self, tables: Replicated
    ) -> None:
        lsn = self.prepared(tables, guarded(A, B))
        assert known(tables) == []
        tables.submit(guarded(A))
        tables.submit(FinishTransaction(self.TX, lsn, 1))
        assert known(tables) == [(A, 1), (B, 2)]

    @pytest.mark.parametrize(
        ("command", "told"),
        [
            (AppendBatch(1, 1, 100, b"", 0, -1), "does not say which keys it has"),
            (guarded(A, offset=0), "cannot stand in a transaction"),
            (guarded(A, pid=PID, sequence=0), "cannot stand in a transaction"),
        ],
    )
    def test_what_could_be_refused_later_is_refused_now(
        self, tables: Replicated, command: AppendBatch, told: str
    ) -> None:
        with pytest.raises(RequestError, match=told):
            self.prepared(tables, command)
