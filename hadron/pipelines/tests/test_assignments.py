"""Who gets which micro-batch, and when it is free again."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hadron.model.transactions import TransactionId
from hadron.pipelines.assignments import Assignments, Runner, Work

T = TransactionId("local/p1", 1, 7, 1)


def assigned(assignments: Assignments, stage: str = "a") -> set[int]:
    return set(assignments.assigned(stage))


class TestScenes:
    def test_runners_with_credit_take_turns(self) -> None:
        assignments = Assignments()
        first, second = (
            assignments.join("e", ["a"], 10, 2),
            assignments.join("e", ["a", "b"], 10, 2),
        )
        order: list[Runner] = []
        while (runner := assignments.runner_for("a", "e")) is not None:
            assignments.assign(runner, "a", [len(order)], 100.0)
            order.append(runner)
        assert order == [first, second, first, second]
        assert assignments.runner_for("b", "e") is None
        second.credit += 1
        assert assignments.runner_for("b", "e") is second

    def test_one_that_cannot_be_written_to_gets_nothing(self) -> None:
        assignments = Assignments()
        assignments.join("e", ["a"], 10, 5, lambda: False)
        assert assignments.runner_for("a", "e") is None

    def test_credit_may_be_of_invocations(self) -> None:
        assignments = Assignments()
        runner = assignments.join("e", ["a"], 10, 15, counts_invocations=True)
        assert runner.takes == 10
        assignments.assign(runner, "a", range(10), 100.0)
        assert (runner.credit, runner.takes) == (5, 5)
        assignments.assign(runner, "a", range(10, 15), 100.0)
        assert assignments.runner_for("a", "e") is None

    def test_who_works_on_what_and_for_how_long_is_known(self) -> None:
        assignments = Assignments()
        runner = assignments.join("e", ["a"], 10, 5, name="host/7", code_version="v1")
        number = assignments.assign(runner, "a", [1, 2], 100.0)
        assert assignments.work_on("a", 1, 3.0) == Work("host/7", "v1")
        assert assignments.begin(runner.number, [number], 5.0, "v2") == 105.0
        # It says that it goes on.
        assignments.begin(runner.number, [number], 7.0)
        assert assignments.work_on("a", 2, 9.0) == Work("host/7", "v2", 4.0)
        assignments.take("a", T, [1])
        assert assignments.work_on("a", 1, 9.0) == Work("host/7", "v1")
        assignments.leave(runner.number)
        assert assignments.work_on("a", 2, 9.0) == Work()

    def test_what_code_runners_have_is_known_of_those_that_are_there(self) -> None:
        assignments = Assignments()
        runners = [assignments.join("e", ["a"], 10, 5, name=name) for name in "xyz"]
        for runner, code in zip(runners, ("v1", "v1", "v2"), strict=True):
            number = assignments.assign(runner, "a", [runner.number], 100.0, "shop:price")
            assignments.begin(runner.number, [number], 0.0, code)
        assert assignments.codes("a", "e", "shop:price") == {"v1": ["x", "y"], "v2": ["z"]}
        assert assignments.codes("a", "e", "shop:cost") == {}, "nobody has begun that"
        assignments.join("e", [], 10, 5, name="w", code_version="r7")
        assert assignments.codes("a", "e", "shop:cost") == {"r7": ["w"]}
        assignments.leave(runners[2].number)
        assert set(assignments.codes("a", "e", "shop:price")) == {"v1", "r7"}

    def test_what_a_runner_holds_is_free_when_it_goes(self) -> None:
        assignments = Assignments()
        gone, other = assignments.join("e", ["a", "b"], 10, 5), assignments.join("e", ["a"], 10, 5)
        assignments.assign(gone, "a", [1, 2, 3], 100.0)
        assignments.assign(gone, "b", [1], 100.0)
        assignments.assign(other, "a", [4], 100.0)
        assignments.settle("a", [2])
        assignments.leave(gone.number)
        assignments.leave(gone.number)
        assert (assigned(assignments), assigned(assignments, "b")) == ({4}, set())
        assert assignments.runner_for("b", "e") is None

    def test_what_takes_too_long_is_free(self) -> None:
        assignments = Assignments()
        runner = assignments.join("e", ["a", "b"], 10, 5)
        first = assignments.assign(runner, "a", [1, 2], 10.0)
        second = assignments.assign(runner, "a", [3], 20.0)
        third = assignments.assign(runner, "b", [1], 5.0)
        assignments.begin(runner.number, [first, second, third, 99], 0.0)
        assert assignments.next_deadline() == 5.0
        assignments.expire(10.0)
        assert (assigned(assignments), assigned(assignments, "b")) == ({3}, set())
        assert assignments.next_deadline() == 20.0
        assignments.settle("a", [3])
        assert assignments.next_deadline() is None

    def test_what_waits_at_a_runner_is_its_own_until_it_has_begun(self) -> None:
        assignments = Assignments()
        runner, other = assignments.join("e", ["a"], 10, 5), assignments.join("e", ["a"], 10, 5)
        assignments.assign(runner, "a", [1], 10.0)
        waiting = assignments.assign(runner, "a", [2], 10.0)
        assignments.begin(other.number, [waiting], 0.0)
        assert assignments.next_deadline() is None, "it is not the other's to begin"
        assignments.expire(1e9)
        assert assigned(assignments) == {1, 2}
        assignments.begin(runner.number, [waiting], 1e9)
        assignments.begin(runner.number, [waiting], 1e9 + 7)
        assert assignments.next_deadline() == 1e9 + 17, "said again, it has a whole timeout again"
        assignments.expire(1e9 + 17)
        assert assigned(assignments) == {1}

    def test_a_late_end_does_not_free_what_somebody_else_has_now(self) -> None:
        assignments = Assignments()
        slow, quick = assignments.join("e", ["a"], 10, 5), assignments.join("e", ["a"], 10, 5)
        assignments.begin(slow.number, [assignments.assign(slow, "a", [1], 10.0)], 0.0)
        assignments.expire(10.0)
        assignments.assign(quick, "a", [1], 30.0)
        assignments.leave(slow.number)
        assert assigned(assignments) == {1}
        assert len(assignments.assigned("a")) == 1


class Histories(RuleBasedStateMachine):
    """The model: for each instance of stage `a`, its runner and its deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.assignments = Assignments()
        self.runners: dict[int, Runner] = {}
        self.held: dict[int, tuple[int, float]] = {}
        self.batches: dict[int, tuple[int, int, set[int]]] = {}
        """By number: its runner, timeout, and the instances."""
        self.taken: dict[int, int] = {}
        """Instances that a transaction ends, and who had each of them."""
        self.now = 0.0
        self.next_id = 0
        self.unnumbered = 0

    def runner_of(self, instance: int) -> int:
        number, _ = self.held.get(instance, (None, 0.0))
        return 0 if number is None else self.batches[number][0]

    @rule(credit=st.integers(1, 3))
    def join(self, credit: int) -> None:
        runner = self.assignments.join("e", ["a"], 4, credit)
        self.runners[runner.number] = runner

    @precondition(lambda self: self.runners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.runners)))
        del self.runners[number]
        self.assignments.leave(number)
        self.held = {n: held for n, held in self.held.items() if self.runner_of(n) != number}

    @rule(count=st.integers(1, 4), timeout=st.integers(1, 5), again=st.booleans())
    def assign(self, count: int, timeout: int, again: bool) -> None:
        runner = self.assignments.runner_for("a", "e")
        if runner is None:
            assert all(known.credit == 0 for known in self.runners.values())
            return
        if again:
            self.next_id = 0
        out = {*self.held, *self.taken}
        ids = [n for n in range(self.next_id, self.next_id + 9) if n not in out][:count]
        self.next_id += 9
        if ids:
            number = self.assignments.assign(runner, "a", ids, timeout)
            self.batches[number] = runner.number, timeout, set(ids)
            self.held.update(dict.fromkeys(ids, (number, float("inf"))))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(n for n in self.batches)))
        runner, timeout, ids = self.batches[number]
        self.assignments.begin(runner + 1, [number], self.now)
        self.assignments.begin(runner, [number], self.now)
        for instance in ids:
            if self.held.get(instance, (0, 0.0))[0] == number:
                self.held[instance] = number, self.now + timeout

    @rule(ids=st.lists(st.integers(0, 30), max_size=5))
    def settle(self, ids: list[int]) -> None:
        self.assignments.settle("a", ids)
        for instance in ids:
            self.held.pop(instance, None)
            self.taken.pop(instance, None)

    @rule(ids=st.lists(st.integers(0, 30), max_size=5))
    def take(self, ids: list[int]) -> None:
        self.assignments.take("a", T, ids)
        for instance in ids:
            self.taken.setdefault(instance, self.runner_of(instance))
            self.held.pop(instance, None)

    @rule(ids=st.lists(st.integers(0, 30), max_size=5), timeout=st.integers(1, 5))
    def untake(self, ids: list[int], timeout: int) -> None:
        self.assignments.untake("a", T._replace(number=2), ids, self.now, timeout)
        self.assignments.untake("a", T, ids, self.now, timeout)
        self.unnumbered -= 1
        for instance in ids:
            runner = self.taken.pop(instance, 0)
            if runner in self.runners:
                # Its number is not said.
                number = 100 * self.unnumbered - runner
                self.batches[number] = runner, timeout, set()
                self.held[instance] = number, self.now + timeout

    @rule(seconds=st.integers(1, 3))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        self.assignments.expire(self.now)
        self.held = {n: held for n, held in self.held.items() if held[1] > self.now}

    @invariant()
    def it_is_the_model(self) -> None:
        assert assigned(self.assignments) == {*self.held, *self.taken}
        begun = {n for n, (_, end) in self.held.items() if end != float("inf")} | {*self.taken}
        assert {n for n in range(self.next_id + 31) if self.assignments.has_begun("a", n)} == begun
        assert self.assignments.count_begun("a") == len(begun)
        assert all(self.assignments.is_out("a", n) for n in self.taken)
        deadlines = [each for _, each in self.held.values() if each != float("inf")]
        assert self.assignments.next_deadline() == min(deadlines, default=None)


TestAssignments = Histories.TestCase
TestAssignments.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
