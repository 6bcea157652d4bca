"""What follows of it that runners are lost."""

from __future__ import annotations

from hadron.pipelines.assignments import Assignments
from hadron.pipelines.losses import _MOST, Losses

POISON = 3


def crash(assignments: Assignments, left: set[int]) -> int:
    """A program comes, gets of those that are left what it is given up to `POISON`, does it, and is
    killed by that. Returns how much else it had then, with that."""
    runner = assignments.join("e", ["a"], 100, 100, counts_invocations=True)
    given: set[int] = set()
    while True:
        ids = [each for each in sorted(left) if not assignments.is_out("a", each)]
        offer = assignments.offer("a", "e", ids)
        if offer is not None:
            number = assignments.assign(runner, "a", offer.ids, 60.0, is_apart=offer.is_apart)
            assignments.begin(runner.number, [number], 0.0)
            given.update(offer.ids)
        elif POISON in given:
            assignments.leave(runner.number)
            return len(given)
        else:
            assignments.settle("a", given)
            left -= given
            runner.credit += len(given)
            given.clear()


def test_what_ends_its_runner_is_found_and_all_others_are_done() -> None:
    assignments, left, sizes = Assignments(), set(range(100)), []
    while not assignments.losses.hopeless("a", [POISON], 3):
        sizes.append(crash(assignments, left))
    assert sizes == [100, 100, 12, 1, 1, 1]
    assert list(left) == [POISON]
    assignments.settle("a", [POISON])
    assert not assignments.losses


def test_a_runner_that_goes_or_has_not_begun_costs_nothing() -> None:
    assignments = Assignments()
    for is_lost, begins in ((False, True), (True, False)):
        runner = assignments.join("e", ["a"], 10, 5)
        number = assignments.assign(runner, "a", [1, 2], 60.0)
        if begins:
            assignments.begin(runner.number, [number], 0.0)
        assignments.leave(runner.number, is_lost=is_lost)
        assert not assignments.losses


def test_suspected_ones_wait_until_a_runner_of_many_has_nothing_else() -> None:
    assignments = Assignments()
    assignments.losses.note("a", [1])
    assignments.losses.note("a", [1])
    first, second = (
        assignments.join("e", ["a"], 10, 100, counts_invocations=True) for _ in range(2)
    )
    assignments.assign(first, "a", [10], 60.0)
    assignments.assign(second, "a", [20], 60.0)
    assignments.losses.settle("a", [5])
    offer = assignments.offer("a", "e", [1, 2])
    assert offer is not None
    assert (offer.runner, offer.ids) == (second, [2]), "the first one comes to its end"
    assignments.settle("a", [10])
    offer = assignments.offer("a", "e", [1, 2])
    assert offer is not None
    assert (offer.runner, offer.ids, offer.is_apart) == (first, [1], True)
    assignments.assign(first, "a", [1], 60.0, is_apart=True)
    for _ in range(2):
        offer = assignments.offer("a", "e", [2, 3])
        assert offer is not None
        assert (offer.runner, offer.ids) == (second, [2, 3]), "it is apart"


def test_where_no_runner_is_left_nobody_takes_what_is_suspected() -> None:
    assignments = Assignments()
    assignments.losses.note("a", [1])
    assignments.losses.note("a", [1])
    assert assignments.offer("a", "e", [1, 2]) is None
    assignments.losses.settle("a", [2])
    assert assignments.offer("a", "e", [1, 2]) is None


def test_a_runner_of_one_micro_batch_at_a_time_has_others_waiting() -> None:
    assignments = Assignments()
    assignments.losses.note("a", [1])
    assignments.losses.note("a", [1])
    runner = assignments.join("e", ["a"], 10, 2)
    offer = assignments.offer("a", "e", [1, 2, 3])
    assert offer is not None
    assert offer.ids == [2, 3], "somebody else is first"
    assignments.assign(runner, "a", [2, 3], 60.0)
    assignments.settle("a", [2])
    offer = assignments.offer("a", "e", [1])
    assert offer is not None
    assert (offer.runner, offer.ids, offer.is_apart) == (runner, [1], True)


def test_nothing_is_hopeless_while_nobody_gets_anything_done() -> None:
    losses = Losses()
    for _ in range(9):
        losses.note("a", [1])
        losses.note("a", [2])
    assert losses.hopeless("a", [1, 2], 3) == []
    losses.settle("a", [2])
    # The code may have been mended since.
    assert losses.hopeless("a", [1, 2], 3) == []
    losses.note("a", [1])
    assert losses.hopeless("a", [1, 2], 3) == [1]


def test_who_is_given_up_or_cancelled_shows_nothing_of_the_others() -> None:
    """The code ends every runner from now on: else each that is given up gives up the next one."""
    losses = Losses()
    losses.note("a", [1])
    losses.settle("a", [0])
    for _ in range(9):
        for each in range(1, 6):
            losses.note("a", [each])
    assert losses.hopeless("a", range(1, 6), 3) == [1]
    losses.settle("a", [1], by_runner=False)
    for _ in range(9):
        for each in range(2, 6):
            losses.note("a", [each])
    assert losses.hopeless("a", range(2, 6), 3) == []


def test_who_comes_back_was_cut_off() -> None:
    """Before anything of it is given up, any number of times; what others lost stays."""
    losses = Losses()
    for run in range(9):
        losses.settle("a", [run + 10])
        losses.note("a", [1], b"%d" % run)
        losses.note("a", [2, 3], b"%d" % run)
        losses.take_back(b"%d" % run)
        losses.take_back(b"%d" % run)
        assert not losses
    losses.note("a", [1, 2], b"x")
    losses.note("a", [1], b"y")
    losses.take_back(b"y")
    assert losses.suspected("a", [1, 2]) == []
    losses.note("a", [2], b"z")
    assert losses.suspected("a", [1, 2]) == [2]


def test_what_a_run_had_that_comes_back_may_be_lost_by_others_since() -> None:
    losses = Losses()
    losses.note("a", [1], b"x")
    losses.note("a", [2], b"y")
    losses.settle("a", [1])
    for _ in range(2):
        losses.note("a", [1])
    losses.take_back(b"x")
    assert losses.suspected("a", [1]) == [1], "it ended, was retried, and lost by others"


def test_what_ends_before_a_loss_that_is_taken_back_proves_nothing() -> None:
    losses = Losses()
    losses.note("a", [1], b"cut off")
    losses.settle("a", [5])
    # From here on the code ends everybody.
    for _ in range(3):
        losses.note("a", [1])
    assert losses.hopeless("a", [1], 3) == [1]
    losses.take_back(b"cut off")
    assert losses.hopeless("a", [1], 3) == []
    losses.note("a", [1])
    assert losses.hopeless("a", [1], 3) == []
    losses.settle("a", [6])
    losses.note("a", [1])
    assert losses.hopeless("a", [1], 3) == [1]


def test_a_run_that_joins_again_before_its_call_is_lost_costs_nothing() -> None:
    assignments = Assignments()
    first = assignments.join("e", ["a"], 10, 5, run_id=b"x")
    other = assignments.join("e", ["a"], 10, 5, run_id=b"y")
    for runner, ids in ((first, [1, 2]), (other, [3])):
        number = assignments.assign(runner, "a", ids, 60.0)
        assignments.begin(runner.number, [number], 0.0)
    again = assignments.join("e", ["a"], 10, 5, run_id=b"x")
    assignments.leave(first.number)
    assert not assignments.losses, "whoever is there has not crashed"
    assert assignments.assigned("a") == {3}
    assignments.leave(other.number)
    assert assignments.losses.counts() == {"a": 1}
    number = assignments.assign(again, "a", [1], 60.0)
    assignments.begin(again.number, [number], 0.0)
    assignments.leave(again.number)
    assert assignments.losses.counts() == {"a": 2}, "it has not come back from that"
    assignments.join("e", ["a"], 10, 5, run_id=b"y")
    assert assignments.losses.counts() == {"a": 1}


def test_runners_that_do_not_say_which_run_they_are_never_come_back() -> None:
    assignments = Assignments()
    first = assignments.join("e", ["a"], 10, 5)
    assignments.begin(first.number, [assignments.assign(first, "a", [1], 60.0)], 0.0)
    assignments.join("e", ["a"], 10, 5)
    assignments.leave(first.number)
    assignments.join("e", ["a"], 10, 5)
    assert assignments.losses.counts() == {"a": 1}


def test_what_is_remembered_is_bounded() -> None:
    losses = Losses()
    losses.note("a", range(_MOST))
    losses.note("a", [0, _MOST])
    assert losses.counts() == {"a": _MOST}
    losses.note("a", [1, 0])
    assert losses.suspected("a", [0, 1, 2]) == [0]
    losses.settle("a", range(_MOST + 1))
    assert losses.counts() == {}


def test_what_is_remembered_of_runs_is_bounded() -> None:
    losses = Losses()
    for run in (b"x", b"y"):
        losses.note("a", range(_MOST // 2 + 1), run)
    losses.take_back(b"x")
    assert losses.suspected("a", [0]) == [0], "it is too long ago"
    losses.take_back(b"y")
    assert losses.suspected("a", [0]) == []
