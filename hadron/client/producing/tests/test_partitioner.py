"""Which partition a record goes to, and which may take over."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hadron.client.producing.failover import may_move
from hadron.client.producing.outgoing_batch import BatchState, OutgoingBatch
from hadron.client.producing.partitioner import Partitioner, partitions_in
from hadron.model.batch import key_hash
from hadron.model.errors import NotFoundError
from hadron.model.replica_sets import in_region


class Spot:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_away = False


def spots(names: str) -> list[Spot]:
    return [Spot(name) for name in names]


def give(partitioner: Partitioner[Spot], records: int) -> None:
    """A batch."""
    partitioner.taken += records
    partitioner.advance()


def test_equal_keys_go_to_one_partition_and_text_equals_its_bytes() -> None:
    places = spots("abc")
    partitioner = Partitioner(places, places)
    for key in ("", "k", "ü"):
        expected = places[key_hash(key.encode()) % 3]
        assert partitioner.choose(key) is partitioner.choose(key.encode()) is expected


def test_the_hash_is_the_one_that_is_documented() -> None:
    # What `xxhsum -H3` prints for the two bytes, so that other languages can be held to it.
    assert xxhash.xxh3_64_intdigest(b"UA") == key_hash(b"UA") == 0x97A28631D1785EE8


def test_records_without_a_key_stay_until_the_batch_is_complete() -> None:
    places = spots("ab")
    partitioner = Partitioner(places, places, first=1)
    assert [partitioner.choose(None).name, partitioner.choose(None).name] == ["b", "b"]
    partitioner.advance()
    assert partitioner.choose(None).name == "a"


def test_round_robin_does_not_look_at_keys() -> None:
    places = spots("ab")
    partitioner = Partitioner(places, places, by_key=False)
    names = []
    for _ in range(4):
        place = partitioner.choose("same")
        names.append(place.name)
        partitioner.advance()
    assert names == ["a", "b", "a", "b"]


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 300), st.sets(st.integers(0, 4))), min_size=1, max_size=200),
)
def test_all_have_their_share_of_records_whatever_batches_have(
    count: int, batches: list[tuple[int, set[int]]]
) -> None:
    """One that was away has what came since, and no more."""
    places = spots("abcde"[:count])
    partitioner = Partitioner(places, places)
    had, missed = dict.fromkeys(places, 0), dict.fromkeys(places, 0)
    for records, away in batches:
        for index, each in enumerate(places):
            each.is_away = index in away
        place = partitioner.choose(None)
        assert place.is_away is all(each.is_away for each in places)
        had[place] += records
        for each in places:
            missed[each] += records if each.is_away else 0
        give(partitioner, records)
    for place in places:
        if not any(missed.values()):
            assert abs(had[place] - sum(had.values()) / count) <= 300
        assert had[place] <= (sum(had.values()) + sum(missed.values())) / count + 600


def test_one_record_and_many_in_turn_are_spread_evenly() -> None:
    places = spots("ab")
    partitioner = Partitioner(places, places)
    had = dict.fromkeys(places, 0)
    for records in [1, 199] * 50:
        place = partitioner.choose(None)
        had[place] += records
        give(partitioner, records)
    assert abs(had[places[0]] - had[places[1]]) <= 200


def test_a_partition_that_is_added_later_gets_its_share_of_what_comes_then() -> None:
    places = spots("ab")
    partitioner = Partitioner(places, places)
    for _ in range(100):
        give(partitioner, 10)
    places += spots("c")
    partitioner.extend(places, places)
    names = []
    for _ in range(6):
        place = partitioner.choose(None)
        names.append(place.name)
        give(partitioner, 10)
    assert sorted(names) == list("aabbcc")


def test_what_is_away_is_passed_over_until_it_is_back() -> None:
    places = spots("abc")
    partitioner = Partitioner(places, places)
    key = next(f"k{n}" for n in range(99) if partitioner.choose(f"k{n}") is places[0])
    places[0].is_away = places[1].is_away = True
    assert partitioner.choose(None) is places[2]
    assert partitioner.choose(key) is places[2]
    places[2].is_away = True
    assert partitioner.choose(key) is places[0]
    places[0].is_away = False
    assert partitioner.choose(None) is partitioner.choose(key) is places[0]


def test_keyed_records_and_others_have_places_of_their_own() -> None:
    keyed, free = spots("ab"), spots("AB")
    partitioner = Partitioner(keyed[:1], keyed[:1])
    assert partitioner.choose(None) is partitioner.choose("k") is keyed[0]
    partitioner.extend(keyed, free)
    assert partitioner.choose(None) is free[0]
    assert {partitioner.choose(f"k{n}").name for n in range(20)} == {"a", "b"}


def test_a_region_ends_at_a_boundary() -> None:
    names = ["aws.us-east-1/p0", "aws.us-east-1.a/p0", "aws.us-east-10/p0", "gcp.eu/p0"]
    assert [name for name in names if in_region(name, "aws.us-east-1")] == names[:2]
    assert partitions_in(names, "aws", lambda: "s") == names[:3]
    assert partitions_in(names, "gcp.eu/p0", lambda: "s") == names[3:]
    with pytest.raises(NotFoundError, match=r"'gc'.*gcp\.eu/p0"):
        partitions_in(names, "gc", lambda: "stream 's'")


@pytest.mark.parametrize(
    ("state", "doubtful", "moves"),
    [
        (BatchState.OPEN, False, True),
        (BatchState.QUEUED, False, True),
        (BatchState.UNANSWERED, False, True),
        (BatchState.UNANSWERED, True, False),
        (BatchState.SENT, False, False),
        (BatchState.ACKED, False, False),
    ],
)
def test_only_what_is_in_no_log_moves(state: BatchState, doubtful: bool, moves: bool) -> None:
    batch = OutgoingBatch("s", "p", 1, 0.0)
    batch.state, batch.doubtful = state, doubtful
    assert may_move(batch, twice=False) is moves
    assert may_move(batch, twice=True) is not batch.is_done
