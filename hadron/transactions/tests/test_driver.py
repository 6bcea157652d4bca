"""A driver and participants over real tables, one history at a time."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.batch_building import encode_values
from hadron.model.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    HadronError,
    NotFoundError,
    NotReadyError,
    PeerError,
    RequestError,
)
from hadron.model.transactions import DONE, TransactionId
from hadron.serving.tests.stack import SET as STACK_SET
from hadron.serving.tests.stack import leading
from hadron.sim.rooms.transaction_sets import (
    GROUP,
    Leader,
    World,
    acknowledging,
    driven,
    publishing,
)
from hadron.state.machine import encode
from hadron.state.streams.partitions import AppendBatch
from hadron.state.transactions import decisions
from hadron.state.transactions.locks import deliveries
from hadron.transactions import driver
from hadron.transactions.claims import HOME
from hadron.transactions.driver import KEPT_MS, Outcome, State
from hadron.transactions.held import Shown
from hadron.transactions.limits import Limits
from hadron.transactions.messages import (
    Abort,
    Add,
    Answer,
    Asked,
    Block,
    Commit,
    Committed,
    CommitUnknown,
    Fate,
    Finish,
    Finished,
    FinishFailed,
    Forget,
    Message,
    Prepare,
    Prepared,
    Rollback,
    RolledBack,
    Statement,
    Told,
)
from hadron.transactions.part import Transactions
from hadron.transactions.participant import is_due
from hadron.transactions.ports import Log


class Client:
    """A call, and what was answered."""

    def __init__(self, leader: Leader) -> None:
        self.answers: list[Answer] = []
        self._news = trio.Event()
        self.caller = leader.part.join(self._answer)
        (block,) = self.answers
        assert isinstance(block, Block)
        self.first = block.first
        self.answers.clear()

    def _answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._news.set()
        self._news = trio.Event()

    def id(self, number: int = 0) -> TransactionId:
        return self.first._replace(number=self.first.number + number)

    async def next(self) -> Any:
        while not self.answers:
            await self._news.wait()
        return self.answers.pop(0)


@pytest.fixture
async def it(autojump_clock: MockClock) -> AsyncIterator[World]:
    """Four sets that have begun."""
    async with trio.open_nursery() as nursery:
        made = World(1, nursery)
        await trio.sleep(0.1)
        yield made
        nursery.cancel_scope.cancel()


def says(world: World, name: str) -> list[Message]:
    """What a set's leader was told."""
    return [message for _, to, message in world.heard if to == name]


def nothing_is_left(world: World) -> bool:
    return not [each for one in world.sets.values() for each in one.leftovers()]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells
        await trio.sleep(0.01)


def drops(world: World, *kinds: type[Any]) -> None:
    """These messages are lost from here on."""
    world.on_message = lambda _from, _to, message: not isinstance(message, kinds)


async def outcome(world: World, transaction: TransactionId) -> Outcome:
    return await world.leader(transaction.replica_set).part.driver.outcome(transaction)


async def test_all_or_nothing_over_four_sets(it: World, autojump_clock: MockClock) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    statements = [publishing(name, f"at {name}") for name in it.sets]
    client.caller.receive(Add(one, 0, statements))
    client.caller.receive(Commit(one, 4, [acknowledging("p2", 5)]))
    answer = await client.next()
    assert isinstance(answer, Committed)
    assert {name: len(results) for name, results in answer.results.items()} == {
        "p0": 1, "p1": 1, "p2": 2, "p3": 1,
    }  # fmt: skip
    assert answer.results["p2"][1] == DONE
    assert it.sets["p2"].acknowledged() == {5}
    await until(lambda: nothing_is_left(it))
    known = await outcome(it, one)
    assert known == Outcome(State.COMMITTED, answer.results)


async def test_a_conflict_names_the_other_and_tears_nothing(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    client.caller.receive(Add(client.id(1), 0, [acknowledging("p1", 5)]))
    await trio.sleep(0.1)
    client.caller.receive(Commit(client.id(2), 0, [publishing("p2", "x"), acknowledging("p1", 5)]))
    answer = await client.next()
    assert isinstance(answer, RolledBack)
    assert isinstance(answer.error, ConflictError)
    assert str(client.id(1)) in str(answer.error)
    client.caller.receive(Commit(client.id(1), 1))
    assert isinstance(await client.next(), Committed)
    await until(lambda: nothing_is_left(it))
    assert not it.sets["p2"].values()


async def test_a_refused_statement_of_the_own_set_decides_nothing(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Commit(one, 0, [publishing("p1", "x"), acknowledging("p0", 1_000_000)]))
    answer = await client.next()
    assert isinstance(answer, RolledBack)
    assert "1000000" in str(answer.error)
    await until(lambda: nothing_is_left(it))
    assert not it.sets["p1"].values()
    assert (await outcome(it, one)).state is State.ABORTED


async def test_the_next_leader_finishes_what_was_decided(
    it: World, autojump_clock: MockClock
) -> None:
    drops(it, Finish, Asked)
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Commit(one, 0, [publishing("p1", "x"), publishing("p0", "y")]))
    await trio.sleep(0.2)
    assert (await outcome(it, one)).unfinished == ("p1",)
    it.sets["p0"].fail(it.chance, crashes=True)
    it.sets["p0"].take_over(it.chance)
    it.on_message = lambda *_: True
    await until(lambda: nothing_is_left(it))
    known = await outcome(it, one)
    assert known.state is State.COMMITTED
    assert {*known.results} == {"p0", "p1"}
    assert len(it.sets["p1"].values()) == len(it.sets["p0"].values()) == 1


@pytest.fixture
async def small(autojump_clock: MockClock) -> AsyncIterator[World]:
    """Sets whose deciding entries have room for one statement."""
    async with trio.open_nursery() as nursery:
        made = World(1, nursery, limits=Limits(home_statements=1))
        await trio.sleep(0.1)
        yield made
        nursery.cancel_scope.cancel()


async def test_what_is_too_much_for_the_decision_is_prepared_at_its_own_set(
    small: World, autojump_clock: MockClock
) -> None:
    client = Client(small.leader("p0"))
    one = client.id()
    statements = [publishing("p0", "a"), acknowledging("p0", 5), publishing("p1", "b")]
    client.caller.receive(Commit(one, 0, statements))
    answer = await client.next()
    assert isinstance(answer, Committed)
    assert {name: len(results) for name, results in answer.results.items()} == {"p0": 2, "p1": 1}
    await until(lambda: nothing_is_left(small))
    assert small.sets["p0"].acknowledged() == {5}
    assert len(small.sets["p0"].values()) == len(small.sets["p1"].values()) == 1
    assert await outcome(small, one) == Outcome(State.COMMITTED, answer.results)
    assert not small.leader("p0").part.claims
    assert not small.leader("p0").part._own


async def test_what_was_finished_and_not_noted_the_next_leader_has_finished_again(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Commit(one, 0, [publishing("p0", "a"), publishing("p1", "b")]))
    committed = await client.next()
    assert isinstance(committed, Committed)
    assert await outcome(it, one) == Outcome(State.COMMITTED, committed.results)
    assert decisions.unfinished(it.sets["p0"].db, "p0", after_lsn=0, limit=9)
    it.sets["p0"].fail(it.chance, crashes=True)
    it.sets["p0"].take_over(it.chance)
    await until(lambda: nothing_is_left(it))
    told = [type(each) for each in says(it, "p1")]
    assert told == [Prepare, Finish, Finish, Forget]
    assert await outcome(it, one) == Outcome(State.COMMITTED, committed.results)
    assert [len(it.sets[name].values()) for name in ("p0", "p1")] == [1, 1]


async def test_what_a_leader_has_prepared_at_its_own_set_the_next_one_ends(
    small: World, autojump_clock: MockClock
) -> None:
    client = Client(small.leader("p0"))
    decided, undecided = client.id(0), client.id(1)
    drops(small, Finish, Asked)
    client.caller.receive(Commit(decided, 0, [publishing(n, "a") for n in ("p1", "p0", "p0")]))
    client.caller.receive(Add(undecided, 0, [acknowledging("p0", 5), publishing("p0", "b")]))
    await trio.sleep(0.2)
    small.sets["p0"].fail(small.chance, crashes=True)
    small.sets["p0"].take_over(small.chance)
    small.on_message = lambda *_: True
    await until(lambda: nothing_is_left(small))
    assert (await outcome(small, decided)).state is State.COMMITTED
    assert (await outcome(small, undecided)).state is State.ABORTED
    assert len(small.sets["p0"].values()) == 2
    assert small.sets["p0"].acknowledged() == set()


async def test_a_rollback_frees_what_was_prepared_at_the_own_set(
    small: World, autojump_clock: MockClock
) -> None:
    """Once it is gone from the log, which refuses others until then."""
    part = small.leader("p0").part
    client = Client(small.leader("p0"))
    one, lock = client.id(), deliveries(GROUP, ((5, 5),))
    part.claims.claim((one, HOME), [lock])
    client.caller.receive(Add(one, 0, [acknowledging("p0", 5), publishing("p0", "b")]))
    client.caller.receive(Rollback(one))
    assert isinstance(await client.next(), RolledBack)
    assert len(part.claims) == 1, "its intents are on their way into the log"
    await until(lambda: nothing_is_left(small))
    await until(lambda: not part.claims)
    assert not part._own


async def test_of_too_many_outcomes_the_oldest_are_forgotten_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_FORGET_AFTER", 5)
    async with trio.open_nursery() as nursery:
        world = World(1, nursery, limits=Limits(decisions=3))
        await trio.sleep(0.1)
        client = Client(world.leader("p0"))
        for number in range(5):
            client.caller.receive(Commit(client.id(number), 0, [publishing("p0", "a")]))
            assert isinstance(await client.next(), Committed)
        await trio.sleep(1.0)
        states = [(await outcome(world, client.id(number))).state for number in range(5)]
        assert states == [State.FORGOTTEN] * 2 + [State.COMMITTED] * 3
        nursery.cancel_scope.cancel()


async def test_a_leader_that_is_deposed_does_not_say_aborted(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one, other = client.id(2), client.id(1)
    client.caller.receive(Add(other, 0, [publishing("p0", "y")]))
    it.commits_s = 1.0
    client.caller.receive(Commit(one, 0, [publishing("p0", "x")]))
    old = it.leader("p0")
    it.sets["p0"].fail(it.chance, crashes=False)
    old.stop()
    answers = [await client.next(), await client.next()]
    assert {each.transaction: type(each) for each in answers} == {
        one: CommitUnknown,
        other: RolledBack,
    }


async def test_aborted_is_said_by_a_leader_only_whose_ballot_has_begun(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    it.commits_s = 1.0
    client.caller.receive(Commit(one, 0, [publishing("p0", "x")]))
    replica_set = it.sets["p0"]
    decided = [*it.leader("p0").entries]
    replica_set.fail(it.chance, crashes=True)
    # Without the decision, which no majority has; its own first entry none has either.
    it.begins_s = 1_000.0
    replica_set.lead(decided[:-1])
    second = it.leader("p0")
    second.begins_at = 100.0
    with trio.move_on_after(10.0) as waited:
        await second.part.driver.outcome(one)
    assert waited.cancelled_caught, "it was answered"
    it.begins_s = 0.0
    it.commits_s = 0.001
    replica_set.fail(it.chance, crashes=True)
    replica_set.lead(decided)
    it.leader("p0").begins_at = 0.0
    assert (await outcome(it, one)).state is State.COMMITTED


async def test_an_outcome_that_is_asked_for_is_the_last_word(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    begun, coming = client.id(1), client.id(2)
    client.caller.receive(Add(begun, 0, [publishing("p1", "x")]))
    driver = it.leader("p0").part.driver
    assert await driver.outcome(begun, is_final=False) == Outcome(State.OPEN)
    assert await driver.outcome(coming, is_final=False) == Outcome(State.OPEN)
    assert (await driver.outcome(begun)).state is State.ABORTED
    assert (await driver.outcome(coming)).state is State.ABORTED
    client.answers.clear()
    client.caller.receive(Commit(coming, 0, [publishing("p1", "x")]))
    client.caller.receive(Commit(begun, 1))
    await until(lambda: nothing_is_left(it))
    assert driven(it, coming) is None
    assert not it.sets["p1"].values()


async def test_outcomes_of_others_are_refused(it: World, autojump_clock: MockClock) -> None:
    driver = it.leader("p0").part.driver
    one = Client(it.leader("p0")).id()
    with pytest.raises(NotFoundError, match="ask p1"):
        await driver.outcome(one._replace(replica_set="p1"))
    with pytest.raises(NotReadyError, match="later leadership"):
        await driver.outcome(one._replace(incarnation=9))
    assert (await driver.outcome(one._replace(epoch=0))).state is State.ABORTED


async def test_who_looks_at_what_no_leadership_has_begun_is_told_so(
    it: World, autojump_clock: MockClock
) -> None:
    """An id that was mistyped. Who wants the last word waits for the leader that it names."""
    leader = it.leader("p0")
    driver, later = leader.part.driver, Client(leader).id()._replace(epoch=7)
    with pytest.raises(NotFoundError, match="has had ballot 7") as told:
        await driver.outcome(later, is_final=False)
    assert str(leader.ballot) in told.value.message
    assert not told.value.retryable
    # Whoever was deposed, and has not heard of it, does not say so.
    leader.is_deposed = True
    with trio.move_on_after(100.0) as waited:
        await driver.outcome(later, is_final=False)
    assert waited.cancelled_caught


@pytest.mark.long
async def test_outcomes_are_forgotten_a_day_after_all_have_finished(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Commit(one, 0, [publishing("p1", "x")]))
    await client.next()
    await trio.sleep(KEPT_MS / 1_000 - 100)
    assert (await outcome(it, one)).state is State.COMMITTED
    await trio.sleep(200)
    assert (await outcome(it, one)).state is State.FORGOTTEN


async def test_over_the_log_of_a_leader(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack, trio.open_nursery() as nursery:
        stream_id = await stack.stream("s")
        data = encode_values([b"x", b"y"], 0)
        append = AppendBatch(stream_id, 2, len(data), b"", 0, -1)
        statement = Statement(STACK_SET, encode(append), data)
        log: Log = stack.controller
        part = Transactions(log, STACK_SET, NobodyElse(), stack.random)
        nursery.start_soon(part.run)
        answers: list[Answer] = []
        caller = part.join(answers.append)
        block = answers.pop()
        assert isinstance(block, Block)
        one = block.first
        caller.receive(Commit(one, 0, [statement, statement]))
        await until(lambda: bool(answers))
        committed = answers.pop()
        assert isinstance(committed, Committed)
        assert [each.base_offset for each in committed.results[STACK_SET]] == [0, 2]
        assert [each.base_offset for each in await stack.read(stream_id)] == [0, 2]
        assert await part.driver.outcome(one) == Outcome(State.COMMITTED, committed.results)
        other = one._replace(number=one.number + 1)
        caller.receive(Commit(other, 0, [statement, Statement("p1", b"")]))
        assert "no replica set 'p1'" in str(answers.pop())
        part.stop(FencedError("another leads"))
        nursery.cancel_scope.cancel()


class NobodyElse:
    """`ports.Leaders` of a cluster with one set."""

    def knows(self, replica_set: str) -> bool:
        return replica_set == STACK_SET

    def send(self, replica_set: str, message: Message) -> None:
        raise AssertionError((replica_set, message))


# --- participants ---------------------------------------------------------------------------------


async def test_copies_after_all_is_over_are_not_done_again(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Commit(one, 0, [publishing("p1", "x")]))
    await client.next()
    await until(lambda: Forget((one,)) in says(it, "p1") and nothing_is_left(it))
    for message in says(it, "p1"):
        if not isinstance(message, Forget):
            it.leader("p1").part.receive("p0", message)
    await trio.sleep(0.1)
    assert not nothing_is_left(it), "its intents are there once more"
    await until(lambda: nothing_is_left(it))
    (told,) = [m for m in says(it, "p1") if isinstance(m, Told)]
    assert (told.fate, told.count) == (Fate.OVER, 1)
    assert len(it.sets["p1"].values()) == 1


async def test_participants_ask_when_nothing_is_said(it: World, autojump_clock: MockClock) -> None:
    client = Client(it.leader("p0"))
    aborted, decided, forgotten = client.id(1), client.id(2), client.id(3)
    drops(it, Abort)
    client.caller.receive(Add(aborted, 0, [publishing("p1", "a")]))
    await trio.sleep(0.1)
    it.leader("p0").part.driver.resolve(aborted)
    drops(it, Finish, Abort)
    client.caller.receive(Commit(decided, 0, [publishing("p2", "b")]))
    await trio.sleep(0.1)
    drops(it, Forget, Abort)
    client.caller.receive(Commit(forgotten, 0, [publishing("p3", "c")]))
    await until(lambda: nothing_is_left(it))
    assert Told(aborted, Fate.ABORTED) in says(it, "p1")
    told = [m for m in says(it, "p3") if isinstance(m, Told)]
    assert forgotten in [m.transaction for m in told if m.fate is Fate.OVER]
    assert [len(it.sets[name].values()) for name in ("p1", "p2", "p3")] == [0, 1, 1]


async def test_all_that_a_participant_asks_about_is_answered_at_once(
    it: World, autojump_clock: MockClock
) -> None:
    """Each comes as a question of its own; a leader that failed has left it thousands."""
    client = Client(it.leader("p0"))
    ids = [client.id()._replace(epoch=0, number=number) for number in range(3_000)]
    for one in ids:
        it.leader("p0").part.receive("p1", Asked((one,)))
    await trio.sleep(0.9)
    assert set(says(it, "p1")) >= {Told(one, Fate.ABORTED) for one in ids}


async def test_participants_wait_for_what_is_open(it: World, autojump_clock: MockClock) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Add(one, 0, [publishing("p1", "a")]))
    await trio.sleep(20.0)
    asked = [message for message in says(it, "p0") if isinstance(message, Asked)]
    assert 4 <= len(asked) <= 6, "a second, two, four, eight; then all eight"
    assert Told(one, Fate.WAIT) in says(it, "p1")
    client.caller.receive(Commit(one, 1))
    assert isinstance(await client.next(), Committed)


def test_drivers_are_asked_less_and_less_often() -> None:
    looks = range(0, 40_000, 500)
    asked = [now for before, now in itertools.pairwise(looks) if is_due(now, before)]
    assert asked == [1_000, 2_000, 4_000, 8_000, 16_000, 24_000, 32_000]
    assert is_due(100_000, -5), "of another leadership's"
    assert not is_due(900, -5)


async def test_a_set_speaks_of_its_own_transactions_only(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Add(one, 0, [publishing("p1", "a")]))
    await trio.sleep(0.1)
    it.leader("p1").part.receive("p2", Abort(one))
    it.leader("p1").part.receive("p2", Told(one, Fate.OVER))
    await trio.sleep(0.1)
    client.caller.receive(Commit(one, 1))
    assert isinstance(await client.next(), Committed)


async def test_nothing_is_prepared_by_a_leader_that_is_deposed(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    it.commits_s = 5.0
    client.caller.receive(Commit(one, 0, [publishing("p1", "a")]))
    await trio.sleep(0.05)
    old = it.leader("p1")
    it.sets["p1"].fail(it.chance, crashes=False)
    old.stop()
    it.commits_s = 0.002
    it.sets["p1"].lead(old.entries[: it.sets["p1"].committed])
    assert not [m for m in says(it, "p0") if isinstance(m, Prepared)]
    assert isinstance(await client.next(), Committed), "it was sent again"
    assert len(it.sets["p1"].values()) == 1


# --- operators ------------------------------------------------------------------------------------


async def test_that_a_participant_does_not_finish_is_told_and_logged_once(
    it: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(it.leader("p0"))
    one = client.id(1)
    drops(it, Finish)
    client.caller.receive(Commit(one, 0, [publishing("p1", "a")]))
    await trio.sleep(0.2)
    part = it.leader("p0").part
    client.caller.receive(Commit(client.id(2), 0, [publishing("p1", "b")]))
    await trio.sleep(0.2)
    for transaction in (one, one, client.id(2)):
        part.receive("p1", FinishFailed(transaction, CorruptionError("an intent is damaged")))
    assert part.troubles == [
        f"p1 is to finish 2 decided transactions: of {one} it says: an intent is damaged"
    ]
    assert [each.getMessage() for each in caplog.records] == [
        f"transaction {one} is decided, and p1 does not finish it: an intent is damaged; see "
        f"`hadron tx show {one}`"
    ]
    it.on_message = lambda *_: True
    assert isinstance(await client.next(), Committed)
    assert isinstance(await client.next(), Committed)
    assert part.troubles == []


async def test_what_waits_for_whom_is_shown_and_resolved(
    it: World, autojump_clock: MockClock
) -> None:
    client = Client(it.leader("p0"))
    decided, begun = client.id(1), client.id(2)
    drops(it, Finish, Asked)
    client.caller.receive(Commit(decided, 0, [publishing("p1", "a"), publishing("p2", "b")]))
    client.caller.receive(Add(begun, 0, [publishing("p3", "c")]))
    await trio.sleep(0.2)
    part = it.leader("p0").part
    part.unanswered("p1", PeerError("nobody leads p1"))
    shown = {each.transaction: each for each in part.driver.shown()}
    assert shown[decided].phase == "decided"
    assert shown[decided].waits_for == {"p1": "nobody leads p1", "p2": "it is finishing"}
    assert shown[begun] == Shown(begun, "open", shown[begun].age_s, 1, shown[begun].bytes, {})
    assert part.troubles == ["p1 is to finish 1 decided transaction: nobody leads p1"]
    part.driver.resolve(begun)
    error = (await client.next()).error
    assert isinstance(error, RequestError)
    assert str(begun) in str(error)
    assert "do it again" in error.hint
    with pytest.raises(RequestError, match="it waits for: p1, p2"):
        part.driver.resolve(decided, "p3")
    with pytest.raises(RequestError, match=r"cannot be rolled back .*waits for: p1, p2; .*tx res"):
        part.driver.resolve(decided)
    part.driver.resolve(decided, "p1")
    it.on_message = lambda *_: True
    answer = await client.next()
    assert answer.results["p1"][0].is_deleted
    assert not answer.results["p2"][0].is_deleted
    with pytest.raises(RequestError, match="nobody"):
        part.driver.resolve(decided, "p1")
    await until(lambda: nothing_is_left(it))
    assert [len(it.sets[name].values()) for name in ("p1", "p2")] == [1, 1], "done nevertheless"


async def test_what_was_given_up_is_done_by_who_comes_back_to_another_driver(
    it: World, autojump_clock: MockClock
) -> None:
    """All of it is over by then, and a later leadership has only its tables."""
    client = Client(it.leader("p0"))
    one = client.id()
    drops(it, Finish, Asked)
    client.caller.receive(Commit(one, 0, [publishing("p0", "a"), publishing("p1", "b")]))
    await trio.sleep(0.2)
    it.leader("p0").part.driver.resolve(one, "p1")
    assert (await client.next()).results["p1"][0].is_deleted
    await trio.sleep(0.2)
    it.sets["p0"].fail(it.chance, crashes=True)
    it.sets["p0"].take_over(it.chance)
    it.on_message = lambda *_: True
    await until(lambda: nothing_is_left(it))
    assert [len(it.sets[name].values()) for name in ("p0", "p1")] == [1, 1]
    assert (await outcome(it, one)).results["p1"][0].is_deleted, "as it was told"


@pytest.mark.parametrize("commit", [True, False])
async def test_an_operator_ends_what_a_lost_driver_has_begun(
    it: World, autojump_clock: MockClock, commit: bool
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    client.caller.receive(Add(one, 0, [publishing("p1", "a"), acknowledging("p1", 3)]))
    await trio.sleep(0.1)
    it.sets["p0"].fail(it.chance, crashes=True)
    participant = it.leader("p1").part.participant
    (found,) = await participant.shown()
    assert (found.transaction, found.statements) == (one, 2)
    with pytest.raises(NotFoundError):
        await participant.resolve(client.id(5), commit=commit)
    await participant.resolve(one, commit=commit)
    assert len(it.sets["p1"].values()) == commit
    assert it.sets["p1"].acknowledged() == ({3} if commit else set())


@pytest.mark.parametrize("commit", [True, False])
async def test_an_operator_ends_nothing_whose_driver_answers(
    it: World, autojump_clock: MockClock, commit: bool
) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    participant = it.leader("p1").part.participant
    drops(it, Finish)
    client.caller.receive(Add(one, 0, [publishing("p1", "a"), acknowledging("p1", 3)]))
    await trio.sleep(0.1)
    with pytest.raises(RequestError, match="is no participant"):
        await it.leader("p0").part.participant.resolve(one, commit=commit)
    with pytest.raises(RequestError, match="it is not decided"):
        await participant.resolve(one, commit=commit)
    client.caller.receive(Commit(one, 2, []))
    await trio.sleep(0.1)
    with pytest.raises(RequestError, match="it is committed"):
        await participant.resolve(one, commit=commit)
    assert len((await client.next()).results["p1"]) == 2
    assert len(it.sets["p1"].values()) == 1


async def test_what_is_done_at_the_drivers_set_claims_nothing_while_others_finish(
    it: World, autojump_clock: MockClock
) -> None:
    leader = it.leader("p0")
    client = Client(leader)
    one = client.id()
    leader.part.claims.claim((one, HOME), [deliveries(1, ((3, 3),))])
    drops(it, Finish)
    client.caller.receive(Commit(one, 0, [acknowledging("p0", 3), publishing("p1", "a")]))

    def is_decided() -> bool:
        held = leader.part.driver.machine.held(one)
        return held is not None and held.finishing is not None

    await until(is_decided)
    assert len(leader.part.claims) == 0


async def test_what_cannot_be_finished_says_why(it: World, autojump_clock: MockClock) -> None:
    client = Client(it.leader("p0"))
    one = client.id()
    drops(it, Finish, Asked)
    client.caller.receive(Commit(one, 0, [publishing("p1", "a")]))
    await trio.sleep(0.2)
    await it.leader("p1").part.participant.resolve(one, commit=False)
    it.on_message = lambda *_: True
    driver = it.leader("p0").part.driver
    await until(lambda: "nothing is known" in str(next(driver.shown()).waits_for["p1"]))
    driver.resolve(one, "p1")
    assert (await client.next()).results["p1"][0].is_deleted
    assert [m for m in says(it, "p1") if isinstance(m, Finish | Prepare)]
    assert not [m for m in says(it, "p0") if isinstance(m, Finished)]
    with contextlib.suppress(HadronError):
        await outcome(it, one)
