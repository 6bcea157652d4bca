"""Who can make a ballot: foundings, majorities and lost disks, for sets of 1, 2, 3, 4 and 5."""

from __future__ import annotations

from functools import partial
from itertools import combinations, product

import pytest

from hadron.replication.standing import Standing, stand
from hadron.replication.tests.support import membership
from hadron.state.leadership import Configuration

MEMBER, WIPED, OLD_LOG = (True, False), (False, True), (False, False)
"""What a peer reports: (it has a member record, its log is empty)."""


def decide(
    size: int, *, member: bool, empty: bool, peers: dict[str, tuple[bool, bool]]
) -> Standing:
    return stand(membership(size), own_is_member=member, own_log_is_empty=empty, reports=peers)


def named(*reports: tuple[bool, bool]) -> dict[str, tuple[bool, bool]]:
    """Reports of n2, n3 …"""
    return {f"n{number}": report for number, report in enumerate(reports, start=2)}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_new_set_is_founded_when_all_members_are_there(size: int) -> None:
    found = decide(size, member=False, empty=True, peers=named(*[WIPED] * (size - 1)))
    assert (found.founding, found.missing) == (True, "")
    assert set(found.voters) == {f"n{number}" for number in range(2, size + 1)}


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_new_set_waits_for_every_member(size: int) -> None:
    found = decide(size, member=False, empty=True, peers=named(*[WIPED] * (size - 2)))
    assert not found.founding
    assert f"all {size} members" in found.missing
    assert f"n{size} cannot be reached" in found.missing


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_founding_that_was_cut_short_begins_again(size: int) -> None:
    """Whoever has already recorded that it is a member: no log holds anything yet."""
    for own, *others in product([True, False], repeat=size):
        peers = named(*[(other, True) for other in others])
        found = decide(size, member=own, empty=True, peers=peers)
        assert found.missing == "", (own, others)
        assert found.founding == (not own or not all(others))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_member_needs_a_majority(size: int) -> None:
    for count in range(size):
        found = decide(size, member=True, empty=False, peers=named(*[MEMBER] * count))
        assert not found.founding
        assert (found.missing == "") == (1 + count >= size // 2 + 1)
        if found.missing:
            assert f"a majority of {size // 2 + 1} of {size}" in found.missing
            assert found.memories_missing == 0


@pytest.mark.parametrize(("size", "others"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_wiped_leader_needs_others_that_meet_every_majority(size: int, others: int) -> None:
    for count in range(size):
        found = decide(size, member=False, empty=True, peers=named(*[MEMBER] * count))
        assert not found.founding
        assert (found.missing == "") == (count >= others)
        if 0 < count < others:
            assert f"{others} members that remember the log" in found.missing
            assert "disk does not" in found.missing
            assert found.memories_missing == others - count


def test_a_lone_node_with_a_log_but_no_record_waits_for_its_operator() -> None:
    found = decide(1, member=False, empty=False, peers={})
    assert "hadron recover" in found.missing
    assert not found.founding


def test_one_that_remembers_keeps_two_wiped_ones_from_starting_over() -> None:
    """X on n1 and n2; both lose their disks: {n1, n2} has no memory of X, n3 may have."""
    found = decide(3, member=False, empty=True, peers=named(WIPED, MEMBER))
    assert not found.founding
    assert "2 members that remember" in found.missing
    away = decide(3, member=False, empty=True, peers=named(WIPED))
    assert not away.founding
    assert away.missing


def test_a_log_without_a_record_prevents_a_founding_too() -> None:
    found = decide(3, member=False, empty=True, peers=named(OLD_LOG, WIPED))
    assert not found.founding
    assert found.missing


def test_a_wiped_replica_is_not_a_voice_in_a_majority() -> None:
    """X on n1 and n2, n3 lags; n1 leads again: {n1, n2 wiped} is no majority that knows X …"""
    found = decide(3, member=True, empty=False, peers=named(WIPED))
    assert "2 members that remember the log" in found.missing
    assert found.learners == ("n2",)
    assert found.memories_missing == 1


def test_memories_that_an_earlier_configuration_needs_are_counted_too() -> None:
    """Of five members three go on as epoch 2, which asks nobody to remember anything of its own."""
    before = Configuration(1, 1, b"", tuple((f"n{number}", "replica") for number in range(1, 6)))
    begin = partial(
        stand,
        membership(3, epoch=2),
        own_is_member=True,
        own_log_is_empty=False,
        configurations=[before],
    )
    forgetful = begin(reports=named(WIPED, OLD_LOG))
    assert "3 of the members of epoch 1" in forgetful.missing
    assert forgetful.memories_missing == 2
    few = begin(reports=named(WIPED))
    assert "a majority, 3, of the members of epoch 1" in few.missing
    assert few.memories_missing == 0
    assert begin(reports=named(MEMBER, MEMBER)) == Standing(False, ("n2", "n3"), "")


def test_of_two_the_one_that_remembers_has_everything() -> None:
    """Both had every committed entry; the wiped one promises and is taught."""
    found = decide(2, member=True, empty=False, peers=named(WIPED))
    assert found == Standing(False, (), "", ("n2",))
    alone = decide(2, member=True, empty=False, peers={})
    assert "a majority of 2 of 2" in alone.missing


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_whoever_starts_has_met_every_majority(size: int) -> None:
    """Whatever majority stored an entry, one of its members is among those that are heard and
    remember. The leader is one of every majority (PROTOCOL A3), also when it has forgotten."""
    others = range(2, size + 1)
    for own, *reports in product([MEMBER, WIPED], *[[MEMBER, WIPED, None]] * (size - 1)):
        peers = {
            f"n{number}": report
            for number, report in zip(others, reports, strict=True)
            if report is not None
        }
        assert own is not None
        found = decide(size, member=own[0], empty=own[1], peers=peers)
        if found.missing or found.founding:
            continue
        remember = {*found.voters, *(["n1"] if own[0] else [])}
        promised = {"n1", *found.voters, *found.learners}
        assert len(promised) >= size // 2 + 1
        for stored in combinations([f"n{number}" for number in range(1, size + 1)], size // 2 + 1):
            assert remember & set(stored)
