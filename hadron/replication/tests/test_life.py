"""What may follow what in a member's life."""

from __future__ import annotations

import pytest

from hadron.replication.life import OF_A_LEADER, OF_A_REPLICA, Course, Life, at_work


def course(*lives: Life, leads: bool) -> Course:
    made = Course(leads=leads)
    for life in lives:
        assert made.go(life, "")
    return made


def test_a_course_tells_its_life_and_its_trouble() -> None:
    made = Course(leads=True)
    assert (made.life, made.trouble, made.is_at_work) == (Life.STARTING, "", False)
    assert made.go(Life.WAITING_FOR_MAJORITY, "n2 is away")
    assert not made.go(Life.WAITING_FOR_MAJORITY, "n3 is away")
    assert (made.life, made.trouble) == ("waiting for a majority", "n3 is away")
    assert made.go(Life.RECONCILING, "")
    assert made.go(Life.SERVING, "")
    assert made.is_at_work
    assert made.trouble == ""


def test_a_replica_is_at_work_when_it_follows() -> None:
    made = course(Life.WAITING_FOR_LEADER, Life.FOLLOWING, leads=False)
    assert made.is_at_work
    assert made.go(Life.WAITING_FOR_LEADER, "n1 is away")
    assert not made.is_at_work


@pytest.mark.parametrize(
    "before",
    [
        (),
        (Life.WAITING_FOR_MAJORITY,),
        (Life.FENCED,),
        (Life.FOLLOWING,),
        (Life.RECONCILING, Life.NEEDS_SNAPSHOT),
        (Life.RECONCILING, Life.DAMAGED),
    ],
)
def test_nobody_serves_who_has_not_gathered_promises(before: tuple[Life, ...]) -> None:
    made = course(*before, leads=True)
    was = made.life
    with pytest.raises(AssertionError, match=f"a leader cannot go from {was} to serving"):
        made.go(Life.SERVING, "")
    assert made.life is was


@pytest.mark.parametrize("life", sorted(set(Life) - {Life.FOLLOWING, Life.WAITING_FOR_LEADER}))
def test_a_replica_only_waits_and_follows(life: Life) -> None:
    made = course(Life.WAITING_FOR_LEADER, Life.FOLLOWING, leads=False)
    with pytest.raises(AssertionError, match=f"replica cannot go from following to {life}; it cam"):
        made.go(life, "")


@pytest.mark.parametrize("steps", [OF_A_LEADER, OF_A_REPLICA])
def test_every_life_has_a_way_to_its_work(steps: dict[Life, frozenset[Life]]) -> None:
    """And none leads back to the start, or to what is only shown."""
    work = at_work(leads=steps is OF_A_LEADER)
    for life in steps:
        reached = {life}
        for _ in Life:
            reached |= {after for each in reached for after in steps[each]}
        assert work in reached
    followers = {after for each in steps.values() for after in each}
    assert followers == steps.keys() - {Life.STARTING}
