"""Appending, and what dedupe remembers of a producer."""

from __future__ import annotations

import apsw
import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch_building import encode_values
from hadron.model.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError, SequenceError
from hadron.model.ids import Ballot
from hadron.model.limits import PRODUCER_IDLE_MS, PRODUCER_IDLE_STEP_MS, PRODUCER_WINDOW
from hadron.model.schema import StreamSpec
from hadron.state import schema
from hadron.state.schema import DeleteObjects
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import NO_CLAIM, Appended, ClaimProducer

PID = b"p" * 16
FORGOTTEN_MS = PRODUCER_IDLE_MS + PRODUCER_IDLE_STEP_MS + 1


@pytest.fixture
def tables() -> Replicated:
    tables = Replicated()
    assert tables.declare(("Stream", "flights", StreamSpec(partitions=(SET,)))) == [1]
    return tables


def batch(sequence: int, count: int = 10, epoch: int = 0, pid: bytes = PID) -> AppendBatch:
    return AppendBatch(1, count, 100, pid, epoch, sequence)


def anonymous(count: int = 10) -> AppendBatch:
    return batch(-1, count, pid=b"")


def test_offsets_follow_each_other(tables: Replicated) -> None:
    results = [tables.submit(anonymous(count)) for count in (3, 1, 5)]
    assert [(r.base_offset, r.count) for r in results] == [(0, 3), (3, 1), (4, 5)]
    assert tables.rows("SELECT * FROM hadron_stream_partition") == [(1, 0, 9, 300)]
    assert tables.rows("SELECT * FROM hadron_stream_batch WHERE base_offset = 3") == [
        (1, 3, 1, 3, tables.now_ms, 100, 1, 1, None, None)
    ]


def test_without_a_producer_nothing_is_remembered(tables: Replicated) -> None:
    tables.submit(anonymous())
    tables.submit(batch(-1))
    tables.submit(batch(0, pid=b""))
    assert tables.rows("SELECT count(*) FROM hadron_producer") == [(0,)]
    assert streams.bounds(tables.db, 1).next_offset == 30


def test_a_stream_without_a_partition_here_is_refused(tables: Replicated) -> None:
    with pytest.raises(NotFoundError, match=f"the id 9 has no partition on {SET}"):
        tables.submit(AppendBatch(9, 1, 10, PID, 0, 0))
    assert tables.rows("SELECT count(*) FROM hadron_producer") == [(0,)]


def test_a_deleted_stream_is_refused_as_such(tables: Replicated) -> None:
    """Also while the deletion is not visible yet: whoever is let in until then comes behind it."""
    tables.submit(DeleteObjects(schema.current_index(tables.db), (1,)))
    claim = ClaimProducer(1, "name", NO_CLAIM, b"t")
    for refused in (AppendBatch(1, 1, 10, PID, 0, 0), claim):
        with pytest.raises(NotFoundError) as caught:
            tables.submit(refused)
        assert caught.value.message == "Stream default/flights was deleted"
        assert "created again" in caught.value.hint
    with pytest.raises(NotFoundError, match="Stream default/flights was deleted"):
        streams.bounds(tables.db, 1)


def test_a_repeated_batch_gets_the_originals_answer(tables: Replicated) -> None:
    tables.submit(anonymous(7))
    first = tables.submit(batch(0))
    tables.now_ms += 5_000
    again = tables.submit(batch(0))
    assert tables.again
    assert again == Appended(7, 10, tables.now_ms - 5_000, 0, duplicate=True)
    assert (again.base_offset, first.duplicate) == (first.base_offset, False)
    assert streams.bounds(tables.db, 1).next_offset == 17


def test_as_many_batches_are_remembered_as_may_be_in_flight(tables: Replicated) -> None:
    for number in range(PRODUCER_WINDOW + 1):
        tables.submit(batch(number * 10))
    for number in range(1, PRODUCER_WINDOW + 1):
        assert tables.submit(batch(number * 10)).base_offset == number * 10
    with pytest.raises(SequenceError, match="sent sequence 0, expected 60"):
        tables.submit(batch(0))


@pytest.mark.parametrize("sequence", [5, 9, 11, 20, 1 << 40])
def test_a_batch_that_does_not_follow_is_refused(tables: Replicated, sequence: int) -> None:
    tables.submit(batch(0))
    with pytest.raises(SequenceError, match=f"sent sequence {sequence}, expected 10"):
        tables.submit(batch(sequence))
    assert tables.submit(batch(10)).sequence == 10


def test_a_repetition_of_another_size_is_no_repetition(tables: Replicated) -> None:
    tables.submit(batch(0))
    with pytest.raises(SequenceError, match="expected 10"):
        tables.submit(batch(0, count=9))


def test_an_unknown_producer_cannot_begin_in_the_middle(tables: Replicated) -> None:
    with pytest.raises(SequenceError, match="is not known here but continues at sequence 10"):
        tables.submit(batch(10))


def test_a_new_epoch_starts_over_and_fences_the_old_one(tables: Replicated) -> None:
    tables.submit(batch(0, epoch=1))
    with pytest.raises(SequenceError, match="continues at sequence 10"):
        tables.submit(batch(10, epoch=2))
    assert tables.submit(batch(0, epoch=2)).base_offset == 10
    for sequence in (0, 10):
        with pytest.raises(SequenceError, match="has epoch 1, a newer one has 2"):
            tables.submit(batch(sequence, epoch=1))


@pytest.mark.parametrize("epoch", [1 << 63, (1 << 64) - 1])
def test_an_absurd_epoch_is_refused(tables: Replicated, epoch: int) -> None:
    """It does not fit into a row: unrefused, it would be the end of the node."""
    with pytest.raises(SequenceError, match="over the limit"):
        tables.submit(batch(0, epoch=epoch))
    tables.submit(batch(0, epoch=(1 << 63) - 1))


def test_each_producer_has_its_own_sequence(tables: Replicated) -> None:
    tables.submit(batch(0))
    tables.submit(batch(0, pid=b"q" * 16))
    tables.submit(batch(10))
    assert tables.submit(batch(0, pid=b"q" * 16)).base_offset == 10


class TestEviction:
    def producers(self, tables: Replicated) -> set[bytes]:
        return {row[0] for row in tables.rows("SELECT producer_id FROM hadron_producer")}

    def test_idle_producers_are_forgotten(self, tables: Replicated) -> None:
        tables.submit(batch(0))
        tables.now_ms += FORGOTTEN_MS
        tables.submit(batch(0, pid=b"n" * 16))
        assert self.producers(tables) == {b"n" * 16}
        with pytest.raises(SequenceError, match="evicted or lost"):
            tables.submit(batch(10))

    def test_not_before_their_time(self, tables: Replicated) -> None:
        tables.submit(batch(0))
        tables.now_ms += FORGOTTEN_MS - 1
        tables.submit(batch(0, pid=b"n" * 16))
        assert tables.submit(batch(10)).sequence == 10

    def test_a_day_is_counted_from_the_last_batch(self, tables: Replicated) -> None:
        tables.now_ms = 7 * PRODUCER_IDLE_STEP_MS
        tables.submit(batch(0))
        tables.now_ms += PRODUCER_IDLE_STEP_MS - 1
        tables.submit(batch(10))
        tables.now_ms += PRODUCER_IDLE_MS
        tables.submit(batch(0, pid=b"n" * 16))
        assert tables.submit(batch(20)).sequence == 20

    def test_only_the_first_batch_of_an_hour_moves_its_entry(self, tables: Replicated) -> None:
        """Moved by each, it was a sixth to a third of what a commit wrote (PROTOCOL D1)."""
        tables.db.execute(
            "CREATE TEMP TRIGGER t AFTER UPDATE OF stream_id, producer_id, kind, last_ms"
            " ON hadron_producer BEGIN SELECT RAISE(ABORT, 'moved'); END"
        )
        tables.now_ms = 7 * PRODUCER_IDLE_STEP_MS
        for sequence in (0, 10, 20):
            tables.submit(batch(sequence))
            tables.now_ms += PRODUCER_IDLE_STEP_MS // 3
        with pytest.raises(apsw.ConstraintError, match="moved"):
            tables.submit(batch(30))

    def test_two_go_with_each_that_comes(self, tables: Replicated) -> None:
        """By their age, so that their number falls, whatever ids they have."""
        for number in range(6):
            tables.now_ms += 1
            tables.submit(batch(0, pid=bytes([6 - number]) * 16))
        tables.now_ms += FORGOTTEN_MS
        for number in range(4):
            tables.submit(batch(0, pid=bytes([10 + number]) * 16))
            left = {pid[0] for pid in self.producers(tables)}
            assert left == {*range(1, 5 - 2 * number), *range(10, 11 + number)}

    def test_for_who_is_refused_nobody_is_forgotten(self, tables: Replicated) -> None:
        tables.submit(batch(0))
        tables.now_ms += FORGOTTEN_MS
        tables.db.execute(
            "CREATE TEMP TRIGGER t BEFORE DELETE ON hadron_producer"
            " BEGIN SELECT RAISE(ABORT, 'forgotten'); END"
        )
        with pytest.raises(SequenceError, match="evicted or lost"):
            tables.submit(batch(10, pid=b"n" * 16))

    @pytest.mark.parametrize("are_idle", [False, True])
    @pytest.mark.parametrize("are_named", [False, True])
    def test_it_costs_the_same_beside_however_many(
        self, tables: Replicated, are_idle: bool, are_named: bool
    ) -> None:
        """Beside 300,000 that were idle an append took 1.4 s, beside as many that were not 80 ms,
        and with 1,000 names 160 ms for 500 (PROTOCOL F3)."""

        def steps(pid: bytes) -> int:
            """What SQLite does for a new producer, in units of ten instructions."""
            taken = [0]

            def count() -> bool:
                taken[0] += 1
                return False

            tables.db.set_progress_handler(count, 10)
            tables.submit(batch(0, pid=pid))
            tables.db.set_progress_handler(None)
            return taken[0]

        def fill(kind: str, count: int, names: int) -> None:
            for number in range(count):
                tables.submit(batch(0, pid=b"%4s%012d" % (kind.encode(), number)))
            for number in range(names if are_named else 0):
                tables.submit(ClaimProducer(1, f"{kind}{number}", NO_CLAIM, b"t"))

        fill("few", 8, 10)
        if are_idle:
            tables.now_ms += FORGOTTEN_MS
        beside_few = steps(bytes(16))
        fill("many", 2_000, 500)
        if are_idle:
            tables.now_ms += FORGOTTEN_MS
        assert steps(bytes(15) + b"\1") <= beside_few + 10


class TestReading:
    @pytest.fixture
    def filled(self, tables: Replicated) -> Replicated:
        for number in range(6):
            tables.ballot = Ballot(1, 1 + number // 3)
            tables.now_ms = 1_000_000 + number * 1_000
            data = encode_values([b"%d" % number] * 10, 1)
            tables.submit(AppendBatch(1, 10, len(data), b"", 0, -1))
            tables.db.execute("INSERT INTO hadron_body VALUES(?, ?)", (len(tables.log), data))
        return tables

    def bases(self, tables: Replicated, offset: int, below: int = 60, size: int = 1) -> list[int]:
        found = streams.read_batches(tables.db, 1, offset, below=below, max_bytes=size)
        return [batch.base_offset for batch in found]

    def test_the_batch_that_holds_the_offset_comes_first(self, filled: Replicated) -> None:
        assert [self.bases(filled, offset)[0] for offset in (0, 9, 10, 35, 59)] == [
            0,
            0,
            10,
            30,
            50,
        ]

    def test_size_bounds_it_after_the_first(self, filled: Replicated) -> None:
        assert self.bases(filled, 5, size=len(encode_values([b"0"] * 10, 1)) + 1) == [0, 10]
        assert self.bases(filled, 5, size=1 << 20) == [0, 10, 20, 30, 40, 50]

    def test_what_is_not_visible_is_not_returned(self, filled: Replicated) -> None:
        assert self.bases(filled, 5, below=20, size=1 << 20) == [0, 10]
        assert self.bases(filled, 20, below=20) == []
        assert self.bases(filled, 99) == []

    def test_stamps_come_with_it(self, filled: Replicated) -> None:
        (found,) = streams.read_batches(filled.db, 1, 30, below=60, max_bytes=1)
        assert (found.base_offset, found.count, found.append_ms) == (30, 10, 1_003_000)
        assert (found.epoch, found.incarnation, found.data) == (1, 2, encode_values([b"3"] * 10, 1))

    def test_what_retention_dropped_is_out_of_range(self, filled: Replicated) -> None:
        filled.db.execute("DELETE FROM hadron_stream_batch WHERE base_offset < 20")
        filled.db.execute("UPDATE hadron_stream_partition SET first_offset = 20")
        for offset in (0, 19):
            with pytest.raises(OffsetOutOfRangeError, match="first kept offset is 20"):
                self.bases(filled, offset)
        assert self.bases(filled, 20) == [20]

    @pytest.mark.parametrize(
        ("statement", "said"),
        [
            ("UPDATE hadron_body SET bytes = zeroblob(length(bytes)) WHERE lsn = 5", "is damaged"),
            ("UPDATE hadron_body SET bytes = substr(bytes, 1, 50) WHERE lsn = 5", "is damaged"),
            ("UPDATE hadron_body SET bytes = x'' WHERE lsn = 5", "is damaged"),
            ("DELETE FROM hadron_body WHERE lsn = 5", "the body of entry 5 is missing"),
        ],
    )
    def test_damage_is_not_served(self, filled: Replicated, statement: str, said: str) -> None:
        filled.db.execute(statement)
        assert self.bases(filled, 0, below=30, size=1 << 20) == [0, 10, 20]
        # What comes before it is good.
        assert self.bases(filled, 0, size=1 << 20) == [0, 10, 20]
        with pytest.raises(CorruptionError, match=said) as caught:
            self.bases(filled, 30, size=1 << 20)
        assert caught.value.lsn == 5
        assert "offset 30 of Stream default/flights (entry 5)" in caught.value.message

    def test_a_batch_that_is_gone_is_not_skipped(self, filled: Replicated) -> None:
        filled.db.execute("DELETE FROM hadron_stream_batch WHERE base_offset = 20")
        assert self.bases(filled, 0, size=1 << 20) == [0, 10]
        for offset in (20, 25):
            with pytest.raises(CorruptionError, match=rf"offset {offset} of .*: it is missing"):
                self.bases(filled, offset)

    @pytest.mark.parametrize(
        ("at_ms", "offset"),
        [(0, 0), (1_000_000, 0), (1_000_001, 10), (1_003_000, 30), (1_005_000, 50), (9e6, 60)],
    )
    def test_offsets_by_time(self, filled: Replicated, at_ms: float, offset: int) -> None:
        assert streams.offset_at(filled.db, 1, int(at_ms)) == offset

    def test_bounds(self, filled: Replicated) -> None:
        assert streams.all_bounds(filled.db) == {1: streams.PartitionBounds(0, 60)}
        with pytest.raises(NotFoundError, match="the id 4 has no partition here"):
            streams.bounds(filled.db, 4)
