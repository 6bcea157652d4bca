"""The machine alone: what it says to whom, in which order, and what it passes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from hadron.model.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    HadronError,
    NotFoundError,
    OverloadedError,
    PeerError,
    RecordTooLargeError,
    RequestError,
    TransactionExpiredError,
    UnreachableError,
)
from hadron.model.ids import Ballot
from hadron.model.transactions import DELETED, DONE, Note, Participant, TransactionId
from hadron.transactions.effects import (
    CallerJoined,
    CallerLeft,
    Decided,
    DecisionLost,
    DecisionRefused,
    Effect,
    Event,
    FinishRefused,
    GivenUp,
    LeadershipEnded,
    LogDecision,
    LogFinished,
    LookUp,
    Noted,
    Received,
    Reply,
    Requested,
    RollbackForced,
    Send,
    TimePassed,
    Unanswered,
    Unfinished,
)
from hadron.transactions.held import Open
from hadron.transactions.limits import (
    CHUNK_STATEMENTS,
    MAX_NOTED_RESULTS,
    MAX_NOTES,
    STATEMENT_BYTES,
    Limits,
)
from hadron.transactions.machine import Machine
from hadron.transactions.messages import (
    Abort,
    Add,
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
    PrepareRefused,
    Request,
    Rollback,
    RolledBack,
    Statement,
    TakeBlock,
    ToDriver,
    Told,
    Unfit,
)
from hadron.transactions.remotes import MAX_SENT

BALLOT = Ballot(1, 5)

T = TypeVar("T")


class EvenRandom:
    def token_bytes(self, count: int) -> bytes:
        return bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return max(low, high)


class Driving:
    """A machine, and all that it has said."""

    def __init__(self, **limits: Any) -> None:
        # What is noted, and when, has tests of its own.
        limits = {"note_s": 0.0} | limits
        known = {"home", "p1", "p2", "p3", "p4"}
        self.machine = Machine("home", BALLOT, EvenRandom(), known.__contains__, Limits(**limits))
        self.now = 0.0
        self.said: list[Effect] = []
        self.blocks: dict[int, TransactionId] = {}
        for caller in (1, 2):
            self.step(CallerJoined(caller))
            (reply,) = self.take(Reply)
            assert isinstance(reply.answer, Block)
            self.blocks[caller] = reply.answer.first

    def step(self, event: Event) -> list[Effect]:
        effects = self.machine.step(event, self.now)
        self.said += effects
        return effects

    def take(self, kind: type[T]) -> list[T]:
        """What was said of one kind; it is forgotten then."""
        found: list[T] = [each for each in self.said if isinstance(each, kind)]
        self.said = [each for each in self.said if not isinstance(each, kind)]
        return list(found)

    def id(self, number: int = 0, caller: int = 1) -> TransactionId:
        first = self.blocks[caller]
        return first._replace(number=first.number + number)

    def say(self, request: Request, caller: int = 1) -> list[Effect]:
        return self.step(Requested(caller, request))

    def hear(self, name: str, message: ToDriver) -> list[Effect]:
        return self.step(Received(name, message))

    def answers(self) -> list[Any]:
        return [reply.answer for reply in self.take(Reply)]

    def sent(self) -> list[tuple[str, Message]]:
        return [(send.replica_set, send.message) for send in self.take(Send)]

    def refusal(self) -> HadronError:
        (answer,) = self.answers()
        assert isinstance(answer, RolledBack)
        return answer.error

    def decide(self, *names: str, number: int = 0) -> TransactionId:
        """A transaction with a statement at each of these sets is decided, and they are told."""
        one = self.id(number)
        self.say(Commit(one, 0, at(*names)))
        for name in names:
            self.hear(name, Prepared(one, 0, 70))
        (decision,) = self.take(LogDecision)
        assert decision.transaction == one
        self.take(Send)
        self.step(Decided(one, ()))
        return one

    @property
    def is_empty(self) -> bool:
        return not self.machine._open and not list(self.machine.shown(0.0))


def at(*names: str) -> list[Statement]:
    return [Statement(name, b"command", b"body") for name in names]


def test_one_set_is_one_entry() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("home")))
    assert not driving.said, "nothing is told to anybody"
    driving.say(Commit(one, 1, [Statement("home", b"other", b"")]))
    assert driving.said == [LogDecision(one, (), (b"command", b"other"), [b"body", b""])]
    driving.said.clear()
    driving.step(Decided(one, (DONE, DONE)))
    assert driving.said == [Reply(1, Committed(one, {"home": (DONE, DONE)}))]
    assert driving.is_empty
    assert driving.machine.held_bytes == 0


def test_several_that_share_a_statement_have_one_fate() -> None:
    driving = Driving()
    ids = [driving.id(number) for number in range(9)]
    commit = Commit(ids[0], 0, at("home"), records=(1, 2))
    driving.say(commit)
    assert driving.said == [LogDecision(ids[0], (), (b"command",), [b"body"], (1, 2))]
    assert [each.transaction for each in driving.machine.shown(0.0)] == ids[:2]
    driving.said.clear()
    for each in ids[:2]:
        assert driving.machine.held(each) is not None
        assert not driving.machine.is_over(ids[2])
        driving.step(RollbackForced(each, RequestError("asked")))
    driving.say(commit)
    assert not driving.said, "what the log has is not rolled back, nor done twice"
    driving.step(Decided(ids[0], (DONE,)))
    assert driving.said == [Reply(1, Committed(ids[0], {"home": (DONE,)}, 2))]
    assert driving.is_empty
    driving.said.clear()
    driving.say(Commit(ids[1], 0, at("home")))
    assert [type(each) for each in driving.answers()] == [Unfit], "its number is used up"
    driving.said.clear()
    driving.say(Commit(ids[2], 0, at("home"), records=(1, 1)))
    driving.step(DecisionRefused(ids[2], ConflictError("no")))
    assert [each.transaction for each in driving.answers()] == ids[2:4]
    driving.said.clear()
    driving.say(Commit(ids[4], 0, at("home"), records=(1, 1)))
    driving.step(DecisionLost(ids[4], FencedError("gone")))
    answers = driving.answers()
    assert [type(each) for each in answers] == [CommitUnknown] * 2
    assert [each.transaction for each in answers] == ids[4:6]
    assert driving.machine.held_bytes == 0


def test_a_commit_waits_for_all_intents() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("p1", "home", "p2", "p1")))
    assert driving.sent() == [
        ("p1", Prepare(one, 0, (b"command", b"command"), b"bodybody")),
        ("p2", Prepare(one, 0, (b"command",), b"body")),
    ]
    driving.hear("p1", Prepared(one, 0, 70))
    driving.say(Commit(one, 4))
    assert not driving.said
    driving.hear("p2", Prepared(one, 0, 80))
    assert driving.said == [
        LogDecision(
            one, (Participant("p1", 70, 2), Participant("p2", 80, 1)), (b"command",), [b"body"]
        )
    ]


def test_all_participants_are_told_at_the_same_time_and_told_to_forget_once_it_is_noted() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Commit(one, 0, at("p1", "home", "p2")))
    driving.hear("p1", Prepared(one, 0, 70))
    driving.hear("p2", Prepared(one, 0, 80))
    driving.said.clear()
    driving.step(Decided(one, (DONE,)))
    assert driving.sent() == [("p1", Finish(one, 70, 1)), ("p2", Finish(one, 80, 1))]
    driving.hear("p2", Finished(one, (DONE,)))
    assert driving.said == [LogFinished((Note(one, "p2", (DONE,)),))]
    driving.said.clear()
    driving.hear("p1", Finished(one, (DELETED,)))
    assert driving.said == [
        LogFinished((Note(one, "p1", (DELETED,)),)),
        Reply(1, Committed(one, {"home": (DONE,), "p1": (DELETED,), "p2": (DONE,)})),
    ]
    driving.said.clear()
    driving.step(Noted((Note(one, "p1", (DONE,)),)))
    driving.step(Noted((Note(one, "p2", (DONE,)),)))
    assert driving.said == [Send("p1", Forget((one,))), Send("p2", Forget((one,)))]
    assert driving.is_empty
    assert driving.machine.next_due() is None


def test_statements_stream_in_while_intents_are_written() -> None:
    driving = Driving()
    one = driving.id()
    many = at("p1") * (CHUNK_STATEMENTS * 6)
    driving.say(Add(one, 0, many))
    sent = [message for _, message in driving.sent()]
    assert [each.first for each in sent if isinstance(each, Prepare)] == [
        CHUNK_STATEMENTS * n for n in range(4)
    ]
    driving.say(Commit(one, len(many)))
    for n in (2, 0, 1, 3, 4, 5):
        assert not driving.take(LogDecision)
        driving.hear("p1", Prepared(one, CHUNK_STATEMENTS * n, 70))
    (decision,) = driving.take(LogDecision)
    assert decision.participants == (Participant("p1", 70, len(many)),)
    assert driving.machine.held_bytes == 0


@pytest.mark.parametrize(
    ("limit", "body"),
    [("home_bytes", bytes(9)), ("home_command_bytes", b""), ("home_statements", b"")],
)
def test_what_the_deciding_entry_has_no_room_for_is_prepared_at_home(
    limit: str, body: bytes
) -> None:
    """All of it, in order: the own set takes part like any other."""
    most = {"home_bytes": 20, "home_command_bytes": 2, "home_statements": 2}[limit]
    driving = Driving(**{limit: most})
    one = driving.id()
    made = [Statement("home", b"%d" % n, body) for n in range(4)]
    driving.say(Add(one, 0, made[:2]))
    assert not driving.said
    driving.say(Commit(one, 2, made[2:]))
    (send,) = driving.take(Send)
    assert send.replica_set == "home"
    assert isinstance(send.message, Prepare)
    assert send.message.statements == (b"0", b"1", b"2", b"3")
    driving.hear("home", Prepared(one, 0, 70))
    (decision,) = driving.take(LogDecision)
    assert decision.participants == (Participant("home", 70, 4),)
    assert decision.statements == ()
    driving.step(Decided(one, ()))
    assert driving.take(Send) == [Send("home", Finish(one, 70, 4))]
    driving.hear("home", Finished(one, (DONE,) * 4))
    assert driving.take(Reply) == [Reply(1, Committed(one, {"home": (DONE,) * 4}))]
    assert driving.machine.held_bytes == 0


def test_of_one_replica_set_there_is_a_limit_of_statements() -> None:
    for name in ("home", "p1"):
        driving = Driving(set_statements=3, home_statements=2)
        driving.say(Add(driving.id(), 0, at(name) * 3))
        driving.said.clear()
        driving.say(Add(driving.id(), 3, at(name)))
        assert f"more than 3 statements at {name}" in str(driving.refusal())


# --- what is late, doubled or not this one's ------------------------------------------------------


def test_copies_of_what_a_client_says_are_passed_over() -> None:
    driving = Driving()
    one = driving.id()
    for request in (
        Add(one, 0, at("p1", "home")),
        Add(one, 0, at("p1", "home")),
        Add(one, 1, at("home", "p1")),
        Commit(one, 3),
        Commit(one, 3),
        Commit(one, 1, at("home", "p1")),
        Add(one, 0, at("p1", "home")),
    ):
        driving.say(request)
    assert [message for _, message in driving.sent()] == [
        Prepare(one, 0, (b"command",), b"body"),
        Prepare(one, 1, (b"command",), b"body"),
    ]
    driving.hear("p1", Prepared(one, 0, 70))
    driving.hear("p1", Prepared(one, 0, 70))
    assert not driving.said
    driving.hear("p1", Prepared(one, 1, 70))
    driving.hear("p1", Prepared(one, 1, 70))
    assert driving.said == [LogDecision(one, (Participant("p1", 70, 2),), (b"command",), [b"body"])]
    driving.said.clear()
    driving.say(Commit(one, 3))
    driving.say(Rollback(one))
    driving.hear("p1", PrepareRefused(one, 0, ConflictError("late")))
    assert not driving.said, "the log has it in its hands"


@pytest.mark.parametrize("request_of", [Add, Commit, Rollback])
def test_what_comes_for_a_transaction_that_is_over_begins_nothing(request_of: Any) -> None:
    driving = Driving()
    over, open_one = driving.id(3), driving.id(4)
    driving.say(Commit(over, 0, at("home")))
    driving.step(Decided(over, (DONE,)))
    driving.say(Add(open_one, 0, at("p1")))
    driving.said.clear()
    for late in (over, driving.id(2)):
        driving.say(Rollback(late) if request_of is Rollback else request_of(late, 0, at("p1")))
        (answer,) = driving.answers()
        assert isinstance(answer, Unfit)
        assert str(late) in str(answer.error)
        assert "is not open" in str(answer.error)
    assert not driving.said
    assert [each.transaction for each in driving.machine.shown(0.0)] == [open_one]


def test_a_call_speaks_of_its_own_transactions_only() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("home")))
    stranger = TransactionId("other", *one[1:])
    earlier = one._replace(incarnation=4)
    for caller, alien in ((2, one), (1, driving.id(caller=2)), (1, stranger), (1, earlier)):
        driving.say(Commit(alien, 0, at("home")), caller)
        (answer,) = driving.answers()
        assert isinstance(answer, Unfit)
    assert not driving.said


def test_messages_of_participants_that_fit_to_nothing_are_passed_over() -> None:
    driving = Driving()
    one, unknown = driving.id(), driving.id(9)
    driving.say(Add(one, 0, at("p1")))
    driving.said.clear()
    messages: Sequence[tuple[str, ToDriver]] = (
        ("p2", Prepared(one, 0, 70)),
        ("p1", Prepared(one, 1, 70)),
        ("p1", PrepareRefused(one, 1, ConflictError("no"))),
        ("p2", PrepareRefused(one, 0, ConflictError("no"))),
        ("p1", Finished(one, (DONE,))),
        ("p1", FinishFailed(one, ConflictError("no"))),
        ("p1", Prepared(unknown, 0, 70)),
        ("p1", Finished(unknown, (DONE,))),
    )
    for name, message in messages:
        driving.hear(name, message)
    assert not driving.said
    assert [each.phase for each in driving.machine.shown(0.0)] == ["open"]


def test_results_count_once() -> None:
    driving = Driving()
    one = driving.decide("p1", "p2")
    driving.said.clear()
    driving.hear("p1", Finished(one, (DONE,)))
    driving.hear("p1", Finished(one, (DELETED,)))
    driving.hear("p3", Finished(one, (DONE,)))
    assert driving.said == [LogFinished((Note(one, "p1", (DONE,)),))]


def test_what_participants_have_finished_is_gathered_for_a_moment() -> None:
    driving = Driving(note_s=0.05)
    one, two = driving.decide("p1", "p2", number=0), driving.decide("p1", number=1)
    driving.hear("p1", Finished(one, (DONE,)))
    driving.now += 0.03
    driving.hear("p1", Finished(two, (DELETED,)))
    driving.hear("p2", Finished(one, (DONE,)))
    assert [each.transaction for each in driving.answers()] == [two, one], "clients do not wait"
    assert driving.machine.next_due() == 0.05
    driving.take(Send)
    assert not driving.said
    driving.now = 0.05
    driving.step(TimePassed())
    notes = (Note(one, "p1", (DONE,)), Note(two, "p1", (DELETED,)), Note(one, "p2", (DONE,)))
    assert driving.said == [LogFinished(notes)]
    driving.said.clear()
    driving.hear("p1", Asked((one, two)))
    assert driving.sent() == [("p1", Told(one, Fate.WAIT)), ("p1", Told(two, Fate.WAIT))]
    driving.step(Noted(notes))
    assert driving.sent() == [("p1", Forget((one, two))), ("p2", Forget((one,)))]
    assert driving.is_empty
    assert driving.machine.next_due() is None


def test_much_that_is_finished_is_noted_before_its_time() -> None:
    for count, results in ((MAX_NOTES, 1), (3, MAX_NOTED_RESULTS // 3 + 1)):
        driving = Driving(note_s=0.05)
        for number in range(count):
            one = driving.id(number)
            driving.say(Commit(one, 0, at("p1") * results))
            while prepares := [each for _, each in driving.sent() if isinstance(each, Prepare)]:
                for each in prepares:
                    driving.hear("p1", Prepared(one, each.first, 70))
            driving.step(Decided(one, ()))
            assert not driving.take(LogFinished)
            driving.hear("p1", Finished(one, (DONE,) * results))
        (logged,) = driving.take(LogFinished)
        assert len(logged.notes) == count


def test_what_others_wait_for_is_noted_at_once() -> None:
    driving = Driving(note_s=0.05)
    waits, urgent = driving.decide("p1"), driving.id(1)
    driving.hear("p1", Finished(waits, (DONE,)))
    driving.say(Commit(urgent, 0, at("p1"), is_noted_at_once=True))
    driving.hear("p1", Prepared(urgent, 0, 70))
    driving.step(Decided(urgent, ()))
    assert not driving.take(LogFinished)
    driving.hear("p1", Finished(urgent, (DONE,)))
    (logged,) = driving.take(LogFinished)
    assert [each.transaction for each in logged.notes] == [waits, urgent]


def test_other_results_than_a_participant_has_statements_are_not_noted() -> None:
    driving = Driving()
    one = driving.decide("p1")
    driving.said.clear()
    driving.hear("p1", Finished(one, (DONE, DONE)))
    assert not driving.take(LogFinished)
    (shown,) = driving.machine.shown(0.0)
    assert shown.waits_for == {"p1": "it has finished 2 statements and is to finish 1"}


def test_statements_that_did_not_come_end_it() -> None:
    driving = Driving()
    driving.say(Add(driving.id(1), 0, at("p1")))
    driving.take(Send)
    driving.say(Add(driving.id(1), 2, at("p1")))
    assert "has made 2 statements, and 1 came" in str(driving.refusal())
    assert driving.sent() == [("p1", Abort(driving.id(1)))]
    driving.say(Commit(driving.id(2), 3))
    assert "has made 3 statements, and 0 came" in str(driving.refusal())
    driving.say(Add(driving.id(3), 0, at("home")))
    driving.say(Commit(driving.id(3), 2))
    assert "has made 2 statements, and 1 came" in str(driving.refusal())
    assert driving.is_empty


def test_intents_that_were_lost_meanwhile_are_not_decided() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("p1")))
    driving.hear("p1", Prepared(one, 0, 70))
    driving.say(Commit(one, 1, at("p1")))
    driving.take(Send)
    driving.hear("p1", Prepared(one, 1, 99))
    error = driving.refusal()
    assert error.retryable
    assert "70" in str(error)
    assert "99" in str(error)
    assert driving.sent() == [("p1", Abort(one))]


# --- ends -----------------------------------------------------------------------------------------


def test_a_refused_intent_rolls_back_everywhere() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("p1", "p2", "home")))
    driving.said.clear()
    driving.hear("p2", PrepareRefused(one, 0, ConflictError("transaction x/1.1/2 holds it")))
    assert driving.sent() == [("p1", Abort(one)), ("p2", Abort(one))]
    error = driving.refusal()
    assert isinstance(error, ConflictError)
    assert error.retryable
    assert driving.is_empty
    assert driving.machine.held_bytes == 0
    driving.hear("p1", Prepared(one, 0, 70))
    assert not driving.said


def test_a_refused_decision_rolls_back_and_a_lost_one_is_unknown() -> None:
    driving = Driving()
    for number in (1, 2):
        driving.say(Commit(driving.id(number), 0, at("p1", "home")))
        driving.hear("p1", Prepared(driving.id(number), 0, 70))
    driving.said.clear()
    driving.step(DecisionRefused(driving.id(1), ConflictError("taken")))
    assert driving.sent() == [("p1", Abort(driving.id(1)))]
    assert isinstance(driving.refusal(), ConflictError)
    driving.step(LeadershipEnded(FencedError("another leads")))
    assert not driving.said, "only the log may say"
    driving.step(DecisionLost(driving.id(2), FencedError("another leads")))
    (answer,) = driving.answers()
    assert isinstance(answer, CommitUnknown)
    assert not driving.said, "a participant that was told to abort could be wrong"
    assert driving.is_empty


def test_what_is_not_decided_ends_with_the_leadership() -> None:
    driving = Driving()
    decided = driving.decide("p1", number=1)
    driving.say(Add(driving.id(2), 0, at("p1")))
    driving.say(Commit(driving.id(3), 0, at("p1")))
    driving.said.clear()
    driving.step(LeadershipEnded(FencedError("another leads")))
    answers = {answer.transaction: type(answer) for answer in driving.answers()}
    assert answers == {driving.id(2): RolledBack, driving.id(3): RolledBack, decided: CommitUnknown}


def test_a_call_ends() -> None:
    driving = Driving()
    started, wanted, others = driving.id(1), driving.id(2), driving.id(caller=2)
    driving.say(Add(started, 0, at("p1")))
    driving.say(Commit(wanted, 0, at("p1")))
    driving.say(Add(others, 0, at("home")), caller=2)
    driving.said.clear()
    driving.step(CallerLeft(1))
    assert driving.sent() == [("p1", Abort(started))]
    assert {each.transaction for each in driving.machine.shown(0.0)} == {wanted, others}
    driving.said.clear()
    # What was on its way is void, and so are its numbers.
    driving.say(Commit(driving.id(5), 0, at("home")))
    driving.say(Commit(driving.id(5), 0, at("home")), caller=2)
    assert [type(answer) for answer in driving.answers()] == [Unfit]
    driving.hear("p1", Prepared(wanted, 0, 70))
    assert [each.transaction for each in driving.take(LogDecision)] == [wanted]


def test_a_call_ends_without_a_look_at_what_others_have_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 calls that ended at once, with a transaction each, were 1.7 s."""
    driving = Driving()
    own, others = driving.id(), driving.id(caller=2)
    driving.say(Add(own, 0, at("home")))
    driving.say(Add(others, 0, at("home")), caller=2)
    monkeypatch.delattr(Open, "values")
    driving.step(CallerLeft(1))
    assert [each.transaction for each in driving.machine.shown(0.0)] == [others]
    driving.step(CallerLeft(2))
    assert driving.is_empty


def test_a_client_rolls_back() -> None:
    driving = Driving()
    driving.say(Add(driving.id(), 0, at("p1")))
    driving.take(Send)
    driving.say(Rollback(driving.id()))
    assert driving.sent() == [("p1", Abort(driving.id()))]
    assert isinstance(driving.refusal(), RequestError)
    driving.say(Rollback(driving.id(1)))
    driving.say(Add(driving.id(1), 0, at("p1")))
    assert [type(answer) for answer in driving.answers()] == [RolledBack, Unfit]
    assert driving.is_empty


def test_nothing_is_committed_without_an_entry() -> None:
    driving = Driving()
    driving.say(Commit(driving.id(), 0))
    assert driving.said == [Reply(1, Committed(driving.id(), {}))]
    assert driving.is_empty


def test_a_call_gets_more_numbers() -> None:
    driving = Driving()
    first = driving.id(1)
    driving.say(Add(first, 0, at("home")))
    driving.say(TakeBlock())
    (second,) = driving.answers()
    driving.say(Commit(driving.id(2), 0, at("home")))
    driving.say(Commit(second.first, 0, at("home")))
    assert len(driving.take(LogDecision)) == 2
    driving.say(TakeBlock())
    driving.answers()
    driving.say(Commit(driving.id(3), 0, at("home")))
    assert [type(answer) for answer in driving.answers()] == [Unfit]
    driving.say(Commit(first, 1))
    assert [each.transaction for each in driving.take(LogDecision)] == [first]


# --- limits ---------------------------------------------------------------------------------------


def test_limits_of_one_transaction() -> None:
    driving = Driving(statements=3, transaction_bytes=60, participants=2)
    driving.say(Add(driving.id(1), 0, at("home") * 4))
    assert "4 statements" in str(driving.refusal())
    driving.say(Add(driving.id(2), 0, [Statement("home", bytes(40), bytes(21))]))
    assert "61 bytes, the limits are 3 and 60" in str(driving.refusal())
    driving.say(Add(driving.id(3), 0, at("p1", "p2", "p3")))
    assert "2 replica sets besides p3" in str(driving.refusal())
    driving.say(Add(driving.id(4), 0, at("nowhere")))
    assert "no replica set 'nowhere'" in str(driving.refusal())
    driving.say(Add(driving.id(5), 0, [Statement("home", b"", bytes((2 << 20) + 1))]))
    assert isinstance(driving.refusal(), RecordTooLargeError)
    driving.say(Add(driving.id(6), 0, [Statement("p1", bytes((1 << 19) + 1))]))
    assert isinstance(driving.refusal(), RecordTooLargeError)
    assert driving.is_empty
    assert driving.machine.held_bytes == 0


def test_limits_of_a_driver() -> None:
    driving = Driving(open_transactions=2, held_bytes=2 * STATEMENT_BYTES + 100)
    driving.say(Add(driving.id(1), 0, at("home")))
    driving.say(Add(driving.id(2), 0, at("home")))
    driving.say(Add(driving.id(3), 0, at("home")))
    error = driving.refusal()
    assert isinstance(error, OverloadedError)
    assert "drives 2 open" in str(error)
    driving.say(Add(driving.id(2), 1, [Statement("home", b"", bytes(90))]))
    error = driving.refusal()
    assert isinstance(error, OverloadedError)
    assert "hold 1648 bytes, the limit is 1124" in str(error)
    assert driving.machine.held_bytes == len(b"commandbody") + STATEMENT_BYTES
    # Many small ones take as much as few large ones.
    driving.say(Add(driving.id(4), 0, [Statement("home", b"")] * 2))
    assert "the limit is 1124" in str(driving.refusal())


def test_a_set_that_is_away_is_waited_for_by_so_many_only() -> None:
    driving = Driving(unfinished=2)
    first, second = driving.decide("p1", number=1), driving.decide("p1", number=2)
    driving.said.clear()
    driving.say(Add(driving.id(3), 0, at("p2", "p1")))
    error = driving.refusal()
    assert isinstance(error, OverloadedError)
    assert "2 decided transactions wait for p1" in str(error)
    driving.hear("p1", Finished(first, (DONE,)))
    driving.said.clear()
    driving.say(Commit(driving.id(4), 0, at("p1")))
    driving.hear("p1", Prepared(driving.id(4), 0, 70))
    assert driving.take(LogDecision)
    assert second in [each.transaction for each in driving.machine.shown(0.0)]


def test_limits_of_time() -> None:
    driving = Driving()
    driving.say(Add(driving.id(1), 0, at("home")))
    driving.now = 20.0
    driving.say(Add(driving.id(2), 0, at("home")))
    driving.now = driving.machine.next_due() or 0.0
    driving.step(TimePassed())
    driving.now = 30.5
    driving.step(TimePassed())
    (answer,) = driving.answers()
    assert answer.transaction == driving.id(1)
    assert "idle for 30 s" in str(answer.error)
    assert isinstance(answer.error, TransactionExpiredError)
    for number in range(1, 32):
        driving.now = 20.0 + 10 * number
        driving.say(Add(driving.id(2), number, at("home")))
        driving.step(TimePassed())
    (answer, *_) = driving.answers()
    assert answer.transaction == driving.id(2)
    assert "open for 300 s" in str(answer.error)


def test_a_participant_that_is_away_is_named() -> None:
    driving = Driving()
    driving.say(Commit(driving.id(), 0, at("p1", "p2")))
    driving.hear("p2", Prepared(driving.id(), 0, 70))
    driving.step(Unanswered("p1", PeerError("nobody is at p1:9000")))
    driving.said.clear()
    driving.now = 10.5
    driving.step(TimePassed())
    error = driving.refusal()
    assert isinstance(error, UnreachableError)
    assert error.retryable
    assert "p1 has not written" in str(error)
    assert "nobody is at p1:9000" in str(error)


def test_what_the_log_has_is_never_rolled_back_by_the_clock() -> None:
    driving = Driving()
    driving.say(Commit(driving.id(), 0, at("home")))
    driving.said.clear()
    driving.now = 1_000.0
    driving.step(TimePassed())
    driving.step(RollbackForced(driving.id(), RequestError("asked")))
    driving.step(CallerLeft(1))
    assert not driving.said
    driving.step(Decided(driving.id(), (DONE,)))
    assert driving.is_empty


# --- participants that ask ------------------------------------------------------------------------


def test_participants_are_told_what_is_known_for_sure() -> None:
    driving = Driving()
    decided = driving.decide("p1", "p2", number=1)
    driving.hear("p2", Finished(decided, (DONE,)))
    driving.say(Add(driving.id(2), 0, at("p1")))
    driving.said.clear()
    later = driving.id(7)
    asked = (
        decided,
        driving.id(2),
        driving.id(),
        later,
        decided._replace(incarnation=4),
        decided._replace(incarnation=6),
        decided._replace(replica_set="p1"),
    )
    driving.hear("p1", Asked(asked))
    assert driving.said == [
        Send("p1", Told(decided, Fate.COMMITTED, 70, 1)),
        Send("p1", Told(driving.id(2), Fate.WAIT)),
        LookUp("p1", (driving.id(), decided._replace(incarnation=4))),
    ]
    driving.said.clear()
    driving.hear("p2", Asked((decided,)))
    assert driving.said == [Send("p2", Told(decided, Fate.WAIT))], "that is not noted yet"
    driving.said.clear()
    driving.step(Noted((Note(decided, "p2", (DONE,)),)))
    driving.said.clear()
    driving.hear("p2", Asked((decided,)))
    assert driving.said == [LookUp("p2", (decided,))]


def test_what_an_earlier_leadership_has_decided_is_finished() -> None:
    driving = Driving()
    old = driving.id()._replace(incarnation=2)
    driving.step(Unfinished(old, (Participant("p2", 40, 3),), {"p1": (DONE,)}))
    assert driving.said == [Send("p2", Finish(old, 40, 3))]
    driving.said.clear()
    driving.hear("p2", Finished(old, (DONE,) * 3))
    driving.step(Noted((Note(old, "p2", (DONE,)),)))
    assert driving.said == [
        LogFinished((Note(old, "p2", (DONE,) * 3),)),
        Send("p2", Forget((old,))),
    ]
    assert driving.is_empty


def test_an_operator_waits_no_more() -> None:
    driving = Driving()
    one = driving.decide("p1", "p2")
    driving.hear("p2", Finished(one, (DONE,)))
    driving.said.clear()
    driving.step(GivenUp(one, "p3"))
    assert not driving.said
    driving.step(GivenUp(one, "p1"))
    assert driving.said == [
        LogFinished((Note(one, "p1", (DELETED,)),)),
        Reply(1, Committed(one, {"p1": (DELETED,), "p2": (DONE,)})),
    ]


# --- ways -----------------------------------------------------------------------------------------


def test_what_is_not_answered_is_sent_again() -> None:
    driving = Driving()
    one = driving.id()
    driving.say(Add(one, 0, at("p1")))
    (first,) = driving.sent()
    assert driving.machine.next_due() == 1.0
    driving.now = 1.0
    driving.step(TimePassed())
    assert driving.sent() == [first]
    driving.hear("p1", Prepared(one, 0, 70))
    driving.now = 5.0
    driving.step(TimePassed())
    assert not driving.said


def test_a_set_that_is_away_is_tried_with_one_and_then_draws_the_rest() -> None:
    driving = Driving()
    decided = [driving.decide("p1", number=number) for number in range(10)]
    driving.said.clear()
    for _ in decided:
        driving.step(Unanswered("p1", PeerError("away")))
    assert driving.machine.stuck() == [("p1", 10, "away")]
    assert driving.machine.next_due() == 0.02, "they were lost with one connection"
    for _ in range(20):
        due = driving.machine.next_due()
        assert due is not None
        driving.now = due
        driving.step(TimePassed())
        (sent,) = driving.sent()
        assert sent == ("p1", Finish(decided[0], 70, 1))
        driving.step(Unanswered("p1", PeerError("away")))
    assert driving.machine.next_due() == driving.now + 1.0, "the shared backoff"
    driving.say(Add(driving.id(20), 0, at("p1")))
    assert not driving.said, "it waits behind them"
    driving.hear("p1", Finished(decided[0], (DONE,)))
    drawn = [message for _, message in driving.sent()]
    assert drawn == [Finish(each, 70, 1) for each in decided[1:5]]
    assert not driving.machine.stuck()


def test_who_does_not_finish_is_told_with_the_reason_until_it_has() -> None:
    driving = Driving()
    one, two = driving.decide("p1", "p2"), driving.decide("p1", number=2)
    driving.said.clear()
    refused = FinishFailed(one, CorruptionError("an intent is damaged"))
    driving.hear("p1", refused)
    assert driving.said == [FinishRefused(one, "p1", "an intent is damaged")]
    driving.said.clear()
    driving.hear("p1", refused)
    driving.hear("p2", Finished(one, (DONE,)))
    driving.hear("p1", Finished(two, (DONE, DONE)))
    assert not driving.take(FinishRefused), "told already"
    assert driving.machine.stuck() == [("p1", 2, f"of {one} it says: an intent is damaged")]
    driving.hear("p1", Finished(one, (DONE,)))
    driving.hear("p1", Finished(two, (DONE, DONE)))
    assert driving.take(FinishRefused) == [
        FinishRefused(two, "p1", "it has finished 2 statements and is to finish 1")
    ]
    driving.hear("p1", Finished(two, (DONE,)))
    assert not driving.machine.stuck()


def test_that_nothing_is_known_of_what_is_decided_is_told_with_what_may_have_been() -> None:
    """Never that it is done: whoever lost it says the same."""
    driving = Driving()
    own, old = driving.decide("p1"), driving.id(7)._replace(epoch=driving.id(7).epoch - 1)
    driving.step(Unfinished(old, (Participant("p1", 60, 1),), {}))
    told: dict[TransactionId, str] = {}
    for each in (own, old):
        driving.said.clear()
        driving.hear("p1", FinishFailed(each, NotFoundError("nothing is known of it")))
        told |= {each.transaction: each.reason for each in driving.take(FinishRefused)}
        driving.hear("p1", Finished(driving.decide("p1", number=9 + len(told)), (DONE,)))
        assert driving.machine.held(each) is not None
    for each, reason in told.items():
        assert "nothing is known of it; if that stays so, " in reason
        assert "p1 was restored, and has lost it; or it was aborted there by force" in reason
        assert f"`hadron tx resolve {each} --give-up p1 --accept-torn`" in reason
    by_driver = f"{own.replica_set} was restored, and p1 has done it since that backup was made"
    # In the epoch that decided it there was no restore.
    assert [by_driver in told[each] for each in (own, old)] == [False, True]


def test_a_new_leader_with_much_to_finish_sends_some_of_it_at_a_time() -> None:
    driving = Driving()
    old = [driving.id(number)._replace(incarnation=2) for number in range(MAX_SENT + 10)]
    for one in old:
        driving.step(Unfinished(one, (Participant("p1", 40, 1),), {}))
    sent = driving.sent()
    assert len(sent) == MAX_SENT
    for one in old[:3]:
        driving.hear("p1", Finished(one, (DONE,)))
    drawn = driving.sent()
    assert [message for _, message in drawn] == [Finish(one, 40, 1) for one in old[MAX_SENT:]]
