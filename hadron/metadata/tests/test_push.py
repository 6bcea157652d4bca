"""What is said to another replica set next, given what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.metadata.push import Ask, Push, Read, Refuse, Register, Send, Wait, split
from hadron.model.schema import LostRange, RegisteredSet, Tombstone
from hadron.state.adoption import Changes, StoredObject

NAME, UUID, META = "aws.us-east-1/p0", b"u" * 16, b"m" * 16


def obj(number: int, size: int = 10) -> StoredObject:
    return StoredObject(number, "Stream", "default", f"s{number}", "x" * size, number)


def in_step(own_index: int, index: int) -> Push:
    """A conversation with a set that is registered, and stands at `index`."""
    push = Push(own_index, META)
    push.heard(NAME, UUID, 1, index, META)
    push.registered()
    return push


def large(from_index: int, to_index: int) -> Changes:
    """More than fits into one part."""
    return Changes(
        from_index,
        to_index,
        objects=tuple(obj(number, 200 << 10) for number in range(from_index + 1, to_index + 1)),
    )


def test_a_new_set_is_asked_registered_and_given_everything() -> None:
    push = Push(3, META)
    assert push.next() == Ask()
    push.heard(NAME, UUID, 1, 0, META)
    assert push.next() == Register(NAME, UUID, 1)
    # The registration is a change as well.
    push.registered()
    push.schema_moved(4)
    assert push.next() == Read(0)
    changes = Changes(0, 4, objects=(obj(1), obj(2), obj(3)))
    push.has_read(changes)
    assert push.next() == Send(changes, 0, True)
    assert not push.is_in_step
    push.heard(NAME, UUID, 1, 4, META)
    assert push.next() == Wait()
    assert push.is_in_step
    push.schema_moved(5)
    assert push.next() == Read(4)


def test_a_push_resumes_where_the_other_side_says_that_it_stands() -> None:
    push = in_step(9, 2)
    push.has_read(Changes(2, 9, objects=(obj(9),)))
    assert isinstance(push.next(), Send)
    # The answer was lost, and what was sent as well: another node leads there now.
    push = Push(9, META)
    assert push.next() == Ask()
    push.heard(NAME, UUID, 1, 2, META)
    push.registered()
    assert push.next() == Read(2)


def test_an_answer_that_names_another_index_ends_the_push_under_way() -> None:
    push = in_step(3, 0)
    push.has_read(large(0, 3))
    push.heard(NAME, UUID, 1, 0, META)
    step = push.next()
    assert isinstance(step, Send)
    assert (step.part, step.is_last) == (1, False)
    push.heard(NAME, UUID, 1, 2, META)
    assert push.next() == Read(2)


def test_parts_follow_each_other_and_the_last_one_says_so() -> None:
    push = in_step(3, 0)
    push.has_read(large(0, 3))
    seen = []
    for _ in range(3):
        step = push.next()
        assert isinstance(step, Send)
        assert (step.changes.from_index, step.changes.to_index) == (0, 3)
        seen.append((step.part, step.is_last, [item.id for item in step.changes.objects]))
        push.schema_moved(4)
        push.heard(NAME, UUID, 1, 3 if step.is_last else 0, META)
    assert seen == [(0, False, [1]), (1, False, [2]), (2, True, [3])]
    assert push.next() == Read(3)


def test_a_last_part_without_effect_begins_the_push_anew() -> None:
    push = in_step(1, 0)
    push.has_read(Changes(0, 1, objects=(obj(1),)))
    push.heard(NAME, UUID, 1, 0, META)
    assert push.next() == Read(0)


def test_what_was_read_for_another_index_is_not_sent() -> None:
    push = in_step(5, 0)
    assert push.next() == Read(0)
    push.heard(NAME, UUID, 1, 3, META)
    push.has_read(Changes(0, 5, objects=(obj(1),)))
    assert push.next() == Read(3)


def test_a_refused_set_is_told_and_gets_nothing() -> None:
    push = Push(3, META)
    push.heard(NAME, UUID, 1, 0, META)
    assert push.refused("the name is taken") == Refuse("the name is taken")
    assert push.trouble == "the name is taken"
    push.heard(NAME, UUID, 1, 0, META)
    push.schema_moved(8)
    assert push.next() == Wait()
    assert not push.is_in_step


def test_what_is_not_taken_is_pushed_again_once_either_side_has_moved() -> None:
    """What it refuses it refuses again, and would have logged the parts before once more."""
    push = in_step(3, 0)
    push.has_read(large(0, 3))
    push.was_not_taken("it was deleted here")
    for _ in range(2):
        assert push.next() == Wait()
        assert (push.trouble, push.refusal) == (
            "it was deleted here",
            Refuse("it was deleted here"),
        )
        assert not push.is_in_step
        push.heard(NAME, UUID, 1, 0, META)
    push.schema_moved(4)
    assert push.next() == Read(0)
    assert push.refusal is None
    push.has_read(large(0, 4))
    push.was_not_taken("it was deleted here")
    push.heard(NAME, UUID, 1, 2, META)
    assert push.next() == Read(2)
    push.has_read(large(2, 4))
    push.was_not_taken("it was deleted here")
    push.heard(NAME, UUID, 2, 2, META)
    assert push.next() == Register(NAME, UUID, 2)


def test_what_moved_while_it_was_refused_is_pushed() -> None:
    push = in_step(3, 0)
    push.has_read(large(0, 3))
    push.schema_moved(4)
    push.was_not_taken("it was deleted here")
    assert push.next() == Read(0)


def test_another_identity_at_the_same_place_is_registered_first() -> None:
    push = in_step(3, 0)
    push.has_read(large(0, 3))
    push.heard(NAME, b"v" * 16, 2, 0, META)
    assert push.next() == Register(NAME, b"v" * 16, 2)
    push.registered()
    assert push.next() == Read(0)


def test_above_a_set_that_is_ahead_no_index_is_used_again_and_that_is_said() -> None:
    """The metadata set has lost what it pushed, and keeps its identity: what it makes next would
    have ids that mean other objects there."""
    push = in_step(3, 7)
    assert not push.is_in_step
    push = Push(3, META)
    push.heard(NAME, UUID, 1, 7, META)
    assert push.next() == Register(NAME, UUID, 1, 7)
    assert "schema at index 7, the metadata set stood at 3" in push.trouble
    assert "declare under another name what only this set has" in push.trouble
    push.registered()
    assert push.next() == Wait()
    push.schema_moved(8)
    assert push.next() == Read(7)
    push.has_read(Changes(7, 8, replica_sets=(RegisteredSet(NAME, UUID, 1, 8),)))
    push.heard(NAME, UUID, 1, 8, META)
    assert push.is_in_step
    assert "recover" in push.trouble, "for as long as they speak"


def test_who_knows_what_a_recovery_has_lost_is_named_though_the_index_is_above_it() -> None:
    """By what it has of that, which each conversation hears anew."""
    for _ in range(2):
        push = Push(1 << 32, META)
        push.heard(NAME, UUID, 1, 1 << 32, META, ["Stream default/s"])
        push.registered()
        assert push.is_in_step
        assert push.trouble.startswith("it knows Stream default/s: that is lost at the metadata")
        assert "declare under another name what only this set has" in push.trouble
    push.heard(NAME, UUID, 1, 1 << 32, META, [f"{number}" + "s" * 9_999 for number in range(11)])
    assert "s, …: that is lost" in push.trouble
    assert len(push.trouble) < 11_000
    push.heard(NAME, UUID, 1, 1 << 32, META)
    assert push.trouble == "", "it has been changed anew"


def test_what_another_history_has_left_is_replaced_as_a_whole_and_above_its_indexes() -> None:
    push = Push(5, META)
    push.heard(NAME, UUID, 1, 9, b"o" * 16)
    assert push.next() == Register(NAME, UUID, 1, 9)
    push.registered()
    push.schema_moved(10)
    assert push.next() == Read(9, whole=True)
    assert not push.is_in_step
    push.has_read(Changes(9, 10, True, (obj(1),)))
    assert isinstance(push.next(), Send)
    push.heard(NAME, UUID, 1, 10, META)
    assert push.is_in_step
    push.schema_moved(11)
    assert push.next() == Read(10)


def test_a_small_change_is_one_part_and_nothing_is_left_out_of_a_large_one() -> None:
    small = Changes(
        1,
        9,
        False,
        (obj(7),),
        (Tombstone(8, 3, "Stream", "default", "g"),),
        (RegisteredSet("p", UUID, 1, 9),),
        (LostRange(2, 4),),
    )
    assert split(small) == [small]
    parts = split(small, part_bytes=1)
    assert [(part.from_index, part.to_index, part.is_whole, part.lost) for part in parts] == [
        (1, 9, False, small.lost)
    ] * 3
    assert tuple(item for part in parts for item in part.objects) == small.objects
    assert tuple(item for part in parts for item in part.deleted) == small.deleted
    assert tuple(item for part in parts for item in part.replica_sets) == small.replica_sets


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(100, 900))
def test_parts_are_small_and_in_order(sizes: list[int], limit: int) -> None:
    objects = tuple(obj(number + 1, size) for number, size in enumerate(sizes))
    parts = split(Changes(0, len(sizes), objects=objects), part_bytes=limit)
    assert tuple(item for part in parts for item in part.objects) == objects
    for part in parts:
        held = sum(len(item.spec_json) for item in part.objects)
        assert len(part.objects) <= 1 or held <= limit


EVENT = st.one_of(
    st.tuples(st.just("moved"), st.integers(1, 3)),
    st.tuples(st.just("answer"), st.just(0)),
    st.tuples(st.just("lost"), st.just(0)),
    st.tuples(st.just("committed and lost"), st.just(0)),
)


class OtherSide:
    """A replica set as the rule of `state.adoption` makes it."""

    def __init__(self) -> None:
        self.index = 0
        self.staged = 0

    def take(self, step: Send) -> None:
        assert step.changes.from_index == self.index, "out of order"
        if step.part == 0:
            self.staged = 0
        assert step.part == self.staged, "parts out of order"
        self.staged += 1
        if step.is_last:
            self.index, self.staged = step.changes.to_index, 0


@given(st.lists(EVENT, max_size=40))
def test_whatever_is_lost_on_the_way_everything_arrives_in_order(
    events: list[tuple[str, int]],
) -> None:
    own, other, push = 1, OtherSide(), Push(1, META)
    for kind, number in [*events, *[("answer", 0)] * 200]:
        if kind == "moved":
            own += number
            push.schema_moved(own)
            continue
        step = push.next()
        if isinstance(step, Wait):
            continue
        if isinstance(step, Read):
            push.has_read(large(step.from_index, own))
        elif isinstance(step, Register):
            push.registered()
        elif kind == "lost":
            push = Push(own, META)
        else:
            if isinstance(step, Send):
                other.take(step)
            if kind == "answer":
                push.heard(NAME, UUID, 1, other.index, META)
            else:
                push = Push(own, META)
    assert other.index == own
    assert push.is_in_step


def test_the_steps_of_a_conversation_that_never_fails_are_few() -> None:
    push, other, steps = Push(4, META), OtherSide(), 0
    while not push.is_in_step:
        steps += 1
        step = push.next()
        if isinstance(step, Read):
            push.has_read(Changes(step.from_index, 4, objects=(obj(4),)))
        elif isinstance(step, Register):
            push.registered()
        elif isinstance(step, Send):
            other.take(step)
            push.heard(NAME, UUID, 1, other.index, META)
        elif isinstance(step, Ask):
            push.heard(NAME, UUID, 1, other.index, META)
        else:
            pytest.fail("it waits")
    assert steps == 4
