"""The checks of transactions find what is wrong with a history, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.model.ids import Ballot
from hadron.model.transactions import TransactionId
from hadron.sim.actors.transactions import Noted
from hadron.sim.checks.done import Doings
from hadron.sim.evidence.history import History, Publish, Transact
from hadron.sim.evidence.made import Numbered, Written, made_of, numbered, source_of, written
from hadron.sim.tests.support import GROUP, PARTITION, STREAM, Scene
from hadron.state.machine import BatchShape, encode
from hadron.state.sinks.staging import PublishStaged, StageBatches
from hadron.state.streams.partitions import AppendBatch
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.joint_decisions import Appending, DecideAppends, DecideRun

Spoil = Callable[[Scene], None]


def transact(
    scene: Scene,
    *values: str,
    there: Sequence[str] | None = None,
    told: Sequence[str] = ("committed",),
    acks: bool = False,
) -> Transact:
    """A transaction of which some records are in the log, all unless told otherwise."""
    operation = scene.history.transact("x1")
    operation.transaction, operation.values = f"{PARTITION}/1.1/1", list(values)
    operation.asked = scene.history.tick()
    for value in values:
        publish = scene.begin(value, client="x1")
        if there is None or value in there:
            publish.runs = [(scene.append([value]), 1)]
            if "committed" in told:
                scene.history.ok(publish)
            else:
                publish.runs = []
    if acks:
        operation.acks = [(STREAM, PARTITION, GROUP, 0, 0)]
    operation.told = list(told)
    return operation


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "hadron.db")
    scene.publish("input")
    scene.group()
    scene.settle((0, 0))
    transact(scene, "a", "b")
    transact(scene, "c", there=(), told=("rolled back",))
    return scene


def torn(scene: Scene) -> None:
    transact(scene, "one", "two", there=("one",))


def rolled_back_and_there(scene: Scene) -> None:
    transact(scene, "one", told=("rolled back",))


def told_twice(scene: Scene) -> None:
    transact(scene, "one", told=("committed", "rolled back"))


def lost(scene: Scene) -> None:
    transact(scene, "one", there=())


def not_acknowledged(scene: Scene) -> None:
    transact(scene, "one", acks=True)


def never_told(scene: Scene) -> None:
    transact(scene, "one", told=())
    scene.ack((0, 3))
    for kind, detail in (("heal", ""), ("draining", ""), ("drained", "4")):
        scene.history.event(kind, "" if kind == "heal" else GROUP, detail)
    for offset, value in enumerate(("input", "a", "b", "one")):
        scene.deliver(offset, value)


def shown_early(scene: Scene) -> None:
    operation = transact(scene, "one")
    scene.read(3, "one", end=4)
    operation.asked = scene.history.tick()


def made_twice(scene: Scene) -> None:
    made = made_of(PARTITION, 0)
    scene.ack((0, 0))
    transact(scene, f"{made}one", acks=True)
    transact(scene, f"{made}two", acks=True)


def made_of_what_is_not_acknowledged(scene: Scene) -> None:
    scene.ack((0, 0))
    transact(scene, f"{made_of(PARTITION, 0)}one", acks=True)
    transact(scene, f"{made_of(PARTITION, 1)}one")


def zombie(scene: Scene) -> None:
    for number, by in enumerate("aaba"):
        scene.publish(str(Numbered("task", number, by)))


def two_tries(scene: Scene) -> None:
    for by in "ab":
        transact(scene, str(Written("q", 1, by)))


def not_there(scene: Scene) -> None:
    transact(scene, str(Written("q", 1, "a")), there=(), told=())
    scene.history.event("published", "q 1")


def behind_a_later_one(scene: Scene) -> None:
    for number in (1, 2, 0):
        transact(scene, str(Written("q", number, "a")))


def taken_back(scene: Scene) -> None:
    for number, query in enumerate("qrq"):
        transact(scene, str(Written(query, number, "a")))


def left_out(scene: Scene) -> None:
    for number in (0, 2):
        scene.publish(str(Numbered("task", number, "a")))


def numbered_twice(scene: Scene) -> None:
    for by in "ab":
        scene.publish(str(Numbered("task", 0, by)))


def lost_update(scene: Scene) -> None:
    for number, by in ((0, "a"), (1, "b"), (1, "c")):
        scene.publish(str(Numbered("k", number, by)))


CASES: list[tuple[Spoil, str]] = [
    (torn, "transactions_are_whole"),
    (rolled_back_and_there, "transactions_are_whole"),
    (told_twice, "transactions_are_whole"),
    (lost, "transactions_are_whole"),
    (not_acknowledged, "transactions_are_whole"),
    (never_told, "transactions_end"),
    (shown_early, "intents_are_not_read"),
    (made_twice, "inputs_have_one_output"),
    (made_of_what_is_not_acknowledged, "inputs_have_one_output"),
    (zombie, "names_are_one_producers"),
    (left_out, "names_are_one_producers"),
    (numbered_twice, "names_are_one_producers"),
    (lost_update, "conditions_hold"),
    (two_tries, "batches_are_published_once"),
    (not_there, "batches_are_published_once"),
    (behind_a_later_one, "batches_are_published_once"),
    (taken_back, "batches_are_published_once"),
]


def test_a_good_history_has_no_fault(scene: Scene) -> None:
    scene.ack((0, 0))
    transact(scene, f"{made_of(PARTITION, 0)}one", acks=True)
    for number, by in enumerate("aabbc"):
        scene.publish(str(Numbered("task", number, by)))
        scene.publish(str(Numbered("k", number, by)))
    for number, query in enumerate("qqrr"):
        batch = [f"{Written(query, number, by)}{index}" for by in "ab" for index in range(2)]
        transact(scene, *batch, told=() if number % 2 else ("committed",))
        transact(scene, str(Written(query, number, "lost")), there=(), told=("rolled back",))
        scene.history.event("published", f"{query} {number}")
    assert scene.broken() == set()


@pytest.mark.parametrize(("spoil", "invariant"), CASES, ids=[each.__name__ for each, _ in CASES])
def test_only_the_check_that_it_is_for_finds_it(scene: Scene, spoil: Spoil, invariant: str) -> None:
    spoil(scene)
    assert scene.broken() == {invariant}


def test_what_was_in_a_stream_that_is_deleted_is_not_missed(scene: Scene) -> None:
    transact(scene, "one", there=())
    scene.history.of(Publish)[-1].stream = "passing0#9"
    assert scene.broken() == set()


def noted_at(*offsets: int, at: str = PARTITION) -> Noted:
    """A transaction of three records for `at`, of which its client has these receipts."""
    noted = Noted(History(lambda: 0), "x1", None)
    for index in range(3):
        receipt = Receipt(STREAM, at, offsets[index], 0, False, "") if offsets else None
        noted.published(STREAM, at, f"{index}", SimpleNamespace(receipt=receipt))
    return noted


def test_whoever_asks_is_told_of_the_same_places_as_its_client() -> None:
    told = [
        BatchReceipt("", PARTITION, 7, 2, 0, False),
        BatchReceipt("", PARTITION, 9, 1, 0, False),
    ]
    unknown = noted_at()
    unknown.tell("committed", receipts=told)
    assert [publish.runs for publish, _ in unknown._published] == [[(7, 1)], [(8, 1)], [(9, 1)]]
    assert {publish.outcome for publish, _ in unknown._published} == {"ok"}
    known = noted_at(7, 8, 9)
    for receipts in ((), told):
        known.tell("committed", receipts=receipts)
    for wrong in (told[:1], [BatchReceipt("", PARTITION, 8, 3, 0, False)]):
        with pytest.raises(AssertionError, match=r"at \[7, 8, 9\], and at \["):
            known.tell("committed", receipts=wrong)
    # Where it may be anywhere, the order of receipts says nothing.
    anywhere = noted_at(at="")
    anywhere.tell("committed", receipts=told)
    assert [publish.runs for publish, _ in anywhere._published] == [[], [], []]


def test_values_say_what_they_are() -> None:
    assert written(f"{Written('q', 7, 'b1/2')}0@eu/p0") == Written("q", 7, "b1/2")
    assert written("batch") is None
    assert source_of(made_of("eu/p0", 7) + "x1/3:...") == ("eu/p0", 7)
    assert source_of("x1/3") is None
    assert numbered(str(Numbered("task", 3, "z0.1")) + "...") == Numbered("task", 3, "z0.1")
    assert numbered("x1/3:") is None


def test_what_an_entry_does_is_what_was_prepared() -> None:
    transaction = TransactionId("eu/p0", 1, 1, 1)
    appends = [AppendBatch(1, count, 100, b"", 0, -1) for count in (1, 2, 3)]
    first, second, third = map(encode, appends)
    doings = Doings()
    assert doings.of(WriteIntents(transaction, 1, (second, third))) == []
    assert doings.of(WriteIntents(transaction, 0, (first,))) == []
    assert doings.of(FinishTransaction(transaction, 5, 3)) == appends
    assert doings.of(WriteIntents(transaction, 0, (first,))) == []
    assert doings.of(AbortTransaction(transaction)) == []
    # What came before the log begins is not known.
    assert doings.of(FinishTransaction(transaction, 5, 1)) is None
    assert doings.of(Decide(transaction, (), (first, third))) == [appends[0], appends[2]]
    together = (Appending(7, (appends[2],)), Appending(8, (appends[0], appends[1])))
    assert doings.of(DecideAppends("eu/p0", Ballot(1, 1), together)) == [
        appends[2],
        appends[0],
        appends[1],
    ]
    assert doings.of(DecideRun(transaction, (1, 2), third)) == [appends[2]]
    assert doings.of(appends[1]) == [appends[1]]


def test_what_is_staged_anew_is_all_that_is_published() -> None:
    transaction = TransactionId("eu/p0", 1, 1, 1)
    write_id, attempt = bytes(16), bytes([1] * 16)
    shapes = [BatchShape(records, 100) for records in (1, 2, 3)]
    doings = Doings()
    # The first one had expired, and was dropped, when it was sent again.
    for first_number, shape in ((0, shapes[0]), (0, shapes[1]), (1, shapes[2])):
        staged = StageBatches(9, write_id, attempt, first_number, (shape,), 1_000)
        assert doings.of(staged) == []
    publish = PublishStaged(9, write_id, ((attempt, 2),))
    appends = [AppendBatch(9, shape.records, shape.size, b"", 0, -1) for shape in shapes[1:]]
    assert doings.of(Decide(transaction, (), (encode(publish),))) == appends
    # Of an attempt whose beginning is not in the log there is nothing to say.
    goes_on = StageBatches(9, write_id, bytes(16), 1, (shapes[2],), 1_000)
    assert doings.of(goes_on) == []
    publish = PublishStaged(9, write_id, ((bytes(16), 2),))
    assert doings.of(Decide(transaction, (), (encode(publish),))) is None
