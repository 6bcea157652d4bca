"""What is sent once under a key (PROTOCOL D7)."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch import ONCE, once_id_of
from hadron.model.errors import NotFoundError, OverloadedError, SequenceError
from hadron.model.limits import PRODUCER_IDLE_MS, PRODUCER_IDLE_STEP_MS
from hadron.model.schema import StreamSpec
from hadron.state.dropping import DropObject
from hadron.state.schema import DeleteObjects
from hadron.state.streams import producers
from hadron.state.streams.partitions import AppendBatch

FORGOTTEN_MS = PRODUCER_IDLE_MS + PRODUCER_IDLE_STEP_MS + 1


@pytest.fixture
def tables() -> Replicated:
    made = Replicated()
    made.declare(("Stream", "s", StreamSpec(partitions=(SET,))))
    return made


def once(tables: Replicated, key: str, count: int = 1) -> producers.Appended:
    appended = tables.submit(AppendBatch(1, count, 100, once_id_of(key), 0, 0))
    assert isinstance(appended, producers.Appended)
    return appended


def kept(tables: Replicated) -> tuple[int, int]:
    """Keys that there are, and how many are counted."""
    ids = [row[0] for row in tables.rows("SELECT producer_id FROM hadron_producer")]
    counted = tables.rows("SELECT keys FROM hadron_producer_once")
    return sum(each.startswith(ONCE) for each in ids), counted[0][0] if counted else 0


def test_a_key_is_logged_once(tables: Replicated) -> None:
    assert not once(tables, "a").duplicate
    again = once(tables, "a")
    assert (again.duplicate, again.base_offset) == (True, 0)
    assert once(tables, "b", 3).base_offset == 1
    assert kept(tables) == (2, 2)


def test_another_number_of_records_does_not_follow(tables: Replicated) -> None:
    once(tables, "a")
    with pytest.raises(SequenceError):
        once(tables, "a", 2)


def test_it_is_kept_for_a_day_and_then_goes_with_new_ones(tables: Replicated) -> None:
    for number in range(5):
        once(tables, f"old{number}")
    tables.now_ms += FORGOTTEN_MS - 1
    once(tables, "on time")
    assert once(tables, "old0").duplicate
    assert kept(tables) == (6, 6)
    tables.now_ms += 1
    for number, left in enumerate((5, 4, 4, 5)):
        once(tables, f"new{number}")
        assert kept(tables) == (left, left)
    assert not once(tables, "old4").duplicate


def test_idle_producers_and_keys_leave_each_other_alone(tables: Replicated) -> None:
    others = [bytes([each]) * 16 for each in (0, 1, 0xFF)]

    def ids() -> set[bytes]:
        return {row[0] for row in tables.rows("SELECT producer_id FROM hadron_producer")}

    once(tables, "a")
    tables.submit(AppendBatch(1, 1, 100, others[2], 0, 0))
    tables.now_ms += FORGOTTEN_MS
    tables.submit(AppendBatch(1, 1, 100, others[0], 0, 0))
    assert ids() == {others[0], once_id_of("a")}
    tables.now_ms += FORGOTTEN_MS
    once(tables, "b")
    assert ids() == {others[0], once_id_of("b")}


def test_there_may_be_so_many(tables: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_ONCE_KEYS", 2)
    once(tables, "a")
    once(tables, "b")
    with pytest.raises(OverloadedError, match="remembers 2 keys"):
        once(tables, "c")
    assert once(tables, "a").duplicate, "what is known is no new one"
    assert kept(tables) == (2, 2)
    tables.now_ms += FORGOTTEN_MS
    assert not once(tables, "c").duplicate


def test_a_stream_takes_its_keys_along(tables: Replicated) -> None:
    once(tables, "a")
    tables.submit(DeleteObjects(1, (1,)))
    with pytest.raises(NotFoundError):
        once(tables, "b")
    tables.submit(DropObject(1, 1 << 62))
    while not tables.submit(DropObject(1, 1 << 62)).is_done:
        pass
    assert kept(tables) == (0, 0)
