"""Group commit, who is answered when, and what is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hadron.model.batch import read_head
from hadron.model.batch_building import encode_values
from hadron.model.errors import (
    FencedError,
    HadronError,
    NotFoundError,
    NotReadyError,
    OffsetOutOfRangeError,
    OverloadedError,
    RecordTooLargeError,
    SequenceError,
    ShuttingDownError,
)
from hadron.model.ids import EMPTY_LOG, Ballot
from hadron.model.transactions import TransactionId
from hadron.partition import controller as module
from hadron.partition import lines
from hadron.partition.gate import ByteGate
from hadron.partition.group_commit import GroupCommit
from hadron.partition.observers import Order
from hadron.partition.submission import Submission
from hadron.partition.waiters import ALL, LEADER, MAJORITY
from hadron.serving.tests.stack import SET, Stack, leading, until
from hadron.state import machine
from hadron.state.events import BatchAppended
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import ClaimProducer
from hadron.state.streams.retention import TrimStream
from hadron.state.transactions.decisions import Decide
from hadron.storage.log import read_entries, verify_chain

THREE = ("n1", "n2", "n3")


class Asked:
    """Submissions and what came of them, in the order of the answers."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._news = trio.Event()
        self.answers: dict[str, Any] = {}

    def submit(
        self, name: str, command: machine.Command, body: bytes = b"", **options: Any
    ) -> None:
        def done(result: Any, error: HadronError | None) -> None:
            assert name not in self.answers, "answered once"
            self.answers[name] = result if error is None else error
            self._news.set()
            self._news = trio.Event()

        self._stack.controller.submit(command, body, done=done, **options)

    def append(self, name: str, stream_id: int, sequence: int = -1, **options: Any) -> None:
        pid = b"p" * 16 if sequence >= 0 else b""
        data = encode_values([b"x"], 1, producer_id=pid, sequence=sequence)
        self.submit(name, AppendBatch.of(stream_id, read_head(data), len(data)), data, **options)

    def decide(self, name: str, number: int, stream_id: int, value: bytes = b"x") -> None:
        data = encode_values([value], 1)
        transaction = TransactionId.of(SET, self._stack.controller.ballot, number)
        append = AppendBatch.of(stream_id, read_head(data), len(data))
        self.submit(name, Decide(transaction, (), (machine.encode(append),)), data)

    async def until(self, *names: str) -> None:
        while not set(names) <= set(self.answers):
            await self._news.wait()


async def persisted(stack: Stack, lsn: int) -> None:
    """Until the leader's own disk has `lsn`."""
    await until(lambda: stack.controller.quorum.persisted("n1") >= lsn)


async def written(stack: Stack) -> None:
    """Until the leader's own disk has all that was submitted."""
    await until(lambda: not stack.controller._is_committing)


@pytest.fixture
async def one(tmp_path: Path) -> Any:
    async with leading(tmp_path) as stack:
        yield stack


@pytest.fixture
async def three(tmp_path: Path) -> Any:
    """A leader of three; nothing is committed beyond the stream's declaration (id 1)."""
    async with leading(tmp_path) as stack:
        await stack.stream("s")
    async with leading(tmp_path, members=THREE, services=False) as stack:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stack.begin)
            await persisted(stack, 3)
            stack.peer("n2")
        yield stack


def _answering(name: str) -> Any:
    """The feed of a peer that answers at once."""

    def send_notice(on_answer: Callable[[], None] = lambda: None) -> None:
        on_answer()

    return SimpleNamespace(
        name=name, wake=lambda: None, send_notice=send_notice, notice_due=False, sent=0
    )


class TestPatience:
    """GROUPS G18."""

    @pytest.fixture
    async def patient(self, one: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
        """A leader to which nobody is patient for longer than a test takes."""
        monkeypatch.setattr(one.controller, "_patience_s", 3_600.0)
        return one

    async def test_what_is_patient_goes_with_what_is_not(
        self, patient: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream_id = await patient.stream("s")
        controller, asked = patient.controller, Asked(patient)
        commits: list[int] = []
        prepared = controller._on_prepared

        def on_prepared(group: GroupCommit) -> None:
            commits.append(len(group.logged))
            prepared(group)

        monkeypatch.setattr(controller, "_on_prepared", on_prepared)
        asked.append("patient", stream_id, is_patient=True)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert asked.answers == {}
        asked.append("other", stream_id)
        await asked.until("patient", "other")
        first, second = asked.answers.values()
        assert (first.base_offset, second.base_offset) == (0, 1)
        assert commits == [2]

    async def test_what_came_during_a_commit_is_patient_too(self, patient: Stack) -> None:
        stream_id = await patient.stream("s")
        asked = Asked(patient)
        asked.append("first", stream_id)
        await until(lambda: not patient.controller._queued)
        asked.append("patient", stream_id, is_patient=True)
        await asked.until("first")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert "patient" not in asked.answers
        patient.controller.hurry()
        await asked.until("patient")

    async def test_what_there_was_no_room_for_has_been_patient(
        self, patient: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "RATION_ROWS", 1)
        asked = Asked(patient)
        for number in range(3):
            asked.submit(str(number), AckRecords(99, ((number, number),)), is_patient=True)
        patient.controller.hurry()
        await asked.until("0", "1", "2")

    async def test_what_is_patient_waits_no_longer(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        asked = Asked(one)
        for number in range(3):
            asked.append(str(number), stream_id, is_patient=True)
            await asked.until(str(number))

    async def test_what_is_patient_is_told_when_leading_ends(self, patient: Stack) -> None:
        stream_id = await patient.stream("s")
        asked = Asked(patient)
        asked.append("patient", stream_id, is_patient=True)
        patient.controller.stop(ShuttingDownError("over"))
        assert isinstance(asked.answers["patient"], ShuttingDownError)


class TestGroupCommit:
    async def test_a_refused_command_leaves_nothing_behind(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        before = one.controller.written_lsn
        asked = Asked(one)
        asked.append("good", stream_id, 0)
        asked.append("unknown stream", 99)
        asked.append("gap", stream_id, 7)
        asked.submit("no group", AckRecords(99, ((0, 0),)))
        asked.append("next", stream_id, 1)
        await asked.until("good", "unknown stream", "gap", "no group", "next")
        assert isinstance(asked.answers["unknown stream"], NotFoundError)
        assert isinstance(asked.answers["gap"], SequenceError)
        assert isinstance(asked.answers["no group"], NotFoundError)
        assert [asked.answers[name].base_offset for name in ("good", "next")] == [0, 1]
        assert one.controller.written_lsn == before + 2
        assert await one.rows("SELECT count(*) FROM hadron_stream_batch") == [(2,)]

    async def test_nothing_goes_on_behind_a_transaction_that_sqlite_has_ended(
        self, one: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As it does when a disk fails: what was written before is gone, and what follows would be
        committed by itself, with a hole before it."""
        stream_id = await one.stream("s")
        connection, log = one.store.writer.connection, one.store.log
        before = log.head
        asked = Asked(one)
        judge = Submission.judge

        def judge_and_fail(submission: Submission, *given: Any) -> None:
            judge(submission, *given)
            connection.execute("ROLLBACK")

        with monkeypatch.context() as patch:
            patch.setattr(Submission, "judge", judge_and_fail)
            asked.append("gone", stream_id, 0)
            asked.append("behind", stream_id, 1)
            await until(lambda: bool(one.fatal))
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert asked.answers == {}
        assert "was ended by SQLite" in str(one.store.writer.failure)
        assert log.head == before
        assert connection.execute("SELECT count(*) FROM hadron_stream_batch").get == 0

    async def test_small_decisions_that_wait_are_one_entry(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        before = one.controller.written_lsn
        asked = Asked(one)
        for number in range(1, 4):
            asked.decide(f"tx{number}", number, stream_id)
        asked.append("between", stream_id, 0)
        asked.decide("tx4", 4, stream_id)
        await asked.until("tx1", "tx2", "tx3", "tx4", "between")
        offsets = [asked.answers[f"tx{n}"].results[0].base_offset for n in range(1, 5)]
        assert (offsets, asked.answers["between"].base_offset) == ([0, 1, 2, 4], 3)
        assert {asked.answers[f"tx{n}"].lsn for n in range(1, 4)} == {before + 1}
        assert one.controller.written_lsn == before + 3

    async def test_one_that_is_refused_hurts_none_of_those_it_waits_with(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        before = one.controller.written_lsn
        asked = Asked(one)
        asked.decide("good", 1, stream_id)
        asked.decide("unknown stream", 2, 99)
        asked.decide("next", 3, stream_id)
        await asked.until("good", "unknown stream", "next")
        assert isinstance(asked.answers["unknown stream"], NotFoundError)
        offsets = [asked.answers[each].results[0].base_offset for each in ("good", "next")]
        assert offsets == [0, 1]
        assert one.controller.written_lsn == before + 2

    async def test_what_is_larger_is_not_gathered(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        before = one.controller.written_lsn
        asked = Asked(one)
        for number in range(1, 4):
            asked.decide(f"tx{number}", number, stream_id, b"x" * 40_000)
        await asked.until("tx1", "tx2", "tx3")
        assert one.controller.written_lsn == before + 3

    async def test_one_bad_command_does_not_end_the_node(
        self, one: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever sends it again would otherwise end the next node, too."""
        stream_id = await one.stream("s")

        def fail(context: machine.Context, _: Any) -> None:
            context.db.execute("UPDATE hadron_stream_partition SET next_offset = 77")
            raise OverflowError("int too big to convert")

        asked = Asked(one)
        with monkeypatch.context() as patch:
            patch.setitem(MACHINE._apply, AckRecords, fail)  # type: ignore[misc]
            asked.submit("bad", AckRecords(1, ((0, 0),)))
            asked.append("good", stream_id)
            await asked.until("bad", "good")
        assert "int too big" in str(asked.answers["bad"])
        assert "defect" in asked.answers["bad"].hint
        assert asked.answers["good"].base_offset == 0
        assert one.fatal == []
        assert "AckRecords could not be applied" in caplog.text

    async def test_an_observer_that_fails_ends_the_node_and_answers_nobody(
        self, one: Stack
    ) -> None:
        """Those behind it have not heard what the log says."""

        def fail(_events: Sequence[BatchAppended]) -> None:
            raise NotFoundError("nothing here")

        stream_id = await one.stream("s")
        one.controller.observers.add(Order.STREAMS, [BatchAppended], fail)
        asked = Asked(one)
        asked.append("a", stream_id)
        await until(lambda: bool(one.fatal))
        assert isinstance(one.fatal[0], NotFoundError)
        assert asked.answers == {}

    async def test_a_failing_disk_ends_the_node_and_answers_nobody(
        self, one: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import apsw

        stream_id = await one.stream("s")

        def fail(_context: machine.Context, _: Any) -> None:
            raise apsw.IOError("disk I/O error")

        asked = Asked(one)
        with monkeypatch.context() as patch:
            patch.setitem(MACHINE._apply, AckRecords, fail)  # type: ignore[misc]
            asked.submit("bad", AckRecords(1, ((0, 0),)))
            await until(lambda: bool(one.fatal))
        asked.append("later", stream_id)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert asked.answers == {}
        assert one.store.writer.failure is not None

    async def test_the_log_is_whole_and_the_tables_are_its(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        asked = Asked(one)
        for number in range(300):
            asked.append(str(number), stream_id)
        await asked.until(*map(str, range(300)))
        assert [asked.answers[str(n)].base_offset for n in range(300)] == list(range(300))
        entries = await one.store.readers.run(lambda db: read_entries(db, 1, max_bytes=1 << 30))
        assert verify_chain(entries, EMPTY_LOG) == one.controller.head
        assert one.follower.applied_lsn == entries[-1].lsn
        assert await one.rows("SELECT value FROM hadron_meta WHERE key = 'applied_lsn'") == [
            (entries[-1].lsn,)
        ]

    async def test_what_is_noted_as_applied_never_goes_back(self, one: Stack) -> None:
        """A large group commits on the thread; the small one after it commits at once, inside the
        report of the large one."""
        stream_id = await one.stream("s")
        asked = Asked(one)
        data = encode_values([b"x" * 500_000], 1)
        command = AppendBatch.of(stream_id, read_head(data), len(data))
        one.store.writer._recent_commit_s = 0.0
        before = one.controller.written_lsn
        asked.submit("large", command, data)
        while one.controller.written_lsn == before:
            await trio.lowlevel.checkpoint()
        for number in range(5):
            asked.append(str(number), stream_id)
        await asked.until("large", *map(str, range(5)))
        assert one.follower.applied_lsn == one.controller.written_lsn
        assert one.controller.quorum.persisted("n1") == one.controller.written_lsn

    @pytest.mark.parametrize("what", ["command", "body"])
    async def test_what_would_not_fit_into_a_frame_is_refused(self, one: Stack, what: str) -> None:
        asked = Asked(one)
        if what == "command":
            ranges = tuple((n << 40, n << 40) for n in range(200_000))
            asked.submit("big", AckRecords(1, ranges))
        else:
            asked.submit("big", AppendBatch(1, 1, 3 << 20, b"", 0, -1), b"x" * (3 << 20))
        assert isinstance(asked.answers["big"], RecordTooLargeError)


class TestAnswers:
    async def test_each_level_waits_for_its_disks(self, three: Stack) -> None:
        asked = Asked(three)
        lsn = three.controller.written_lsn
        asked.append("leader", 1, acks=LEADER)
        asked.append("majority", 1, acks=MAJORITY)
        asked.append("all", 1, acks=ALL)
        await asked.until("leader")
        await persisted(three, lsn + 3)
        assert set(asked.answers) == {"leader"}
        three.peer("n2", lsn + 1)
        assert set(asked.answers) == {"leader"}
        three.peer("n2")
        assert set(asked.answers) == {"leader", "majority"}
        three.peer("n3", lsn + 2)
        assert set(asked.answers) == {"leader", "majority"}
        three.peer("n3")
        assert set(asked.answers) == {"leader", "majority", "all"}
        assert [a.base_offset for a in asked.answers.values()] == [0, 1, 2]

    async def test_an_answer_that_fails_takes_no_other_with_it(self, three: Stack) -> None:
        asked = Asked(three)
        lsn = three.controller.written_lsn

        def fail(_result: Any, _error: HadronError | None) -> None:
            raise RuntimeError("of one call")

        asked.append("before", 1)
        three.controller.submit(ClaimProducer(1, "p", 0, b"token"), done=fail)
        asked.append("behind", 1)
        asked.append("on all", 1, acks=ALL)
        await persisted(three, lsn + 4)
        woken = trio.Event()

        async def wait() -> None:
            await three.controller.wait_committed(lsn + 4)
            woken.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(RuntimeError, match="of one call"):
                three.peer("n2")
            assert list(asked.answers) == ["before", "behind"]
            await woken.wait()
        three.peer("n3")
        assert list(asked.answers) == ["before", "behind", "on all"]

    async def test_a_refusal_waits_for_what_it_was_judged_from(self, three: Stack) -> None:
        """Were the entries before it lost, it would not have been refused (PROTOCOL A2)."""
        asked = Asked(three)
        asked.append("first", 1, 0, acks=LEADER)
        asked.append("gap", 1, 5, acks=LEADER)
        asked.append("again", 1, 0, acks=LEADER)
        await asked.until("first")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert set(asked.answers) == {"first"}
        three.peer("n2")
        assert isinstance(asked.answers["gap"], SequenceError)
        assert asked.answers["again"].duplicate

    async def test_disks_that_do_not_count_are_all_and_no_majority(self, three: Stack) -> None:
        """Whoever asks for all asks for what is committed as well (PROTOCOL A2)."""
        controller = three.controller
        controller.quorum.demote("n2")
        asked = Asked(three)
        asked.append("all", 1, acks=ALL)
        await written(three)
        for name in ("n2", "n3"):
            controller.feeding.peer_persisted(name, controller.written_lsn, 0)
        assert controller.quorum.on_all == controller.written_lsn > controller.committed_lsn
        assert asked.answers == {}
        controller.quorum.admit("n2")
        controller.feeding.on_moved()
        assert asked.answers["all"].base_offset == 0

    async def test_whoever_asks_for_all_is_told_again_once_all_have_it(self, three: Stack) -> None:
        """A repetition is answered by the table of producers, and says as much as the first answer
        (PROTOCOL C)."""
        asked = Asked(three)
        asked.append("first", 1, 0, acks=ALL)
        asked.append("again", 1, 0, acks=ALL)
        await written(three)
        three.peer("n2")
        assert asked.answers == {}
        three.peer("n3")
        assert [asked.answers[name].duplicate for name in ("first", "again")] == [False, True]

    async def test_a_query_waits_for_what_it_saw(self, three: Stack) -> None:
        asked = Asked(three)
        asked.append("early", 1, acks=LEADER)
        await asked.until("early")
        rows: list[Any] = []

        async def query() -> None:
            rows.extend(await three.rows("SELECT next_offset FROM hadron_stream_partition"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(query)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert rows == []
            three.peer("n2")
        assert rows == [(1,)]

    async def test_nothing_is_answered_or_shown_once_leading_ends(self, three: Stack) -> None:
        asked = Asked(three)
        asked.append("lost", 1)
        await persisted(three, three.controller.written_lsn + 1)
        fenced = FencedError("another leader took over")
        three.controller.stop(fenced)
        three.peer("n2")
        three.peer("n3")
        asked.append("late", 1)
        assert asked.answers == {"lost": fenced, "late": fenced}
        assert three.visible.bounds(1).next_offset == 0
        with pytest.raises(FencedError):
            await three.rows("SELECT count(*) FROM hadron_log")

    async def test_the_end_is_heard_of_between_two_commits(
        self, three: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten wait, each is a commit; what came while the first was done is heard next."""
        monkeypatch.setattr(lines, "GROUP_COMMIT_COMMANDS", 1)
        monkeypatch.setattr(three.store.writer, "_recent_commit_s", -1e9)
        asked = Asked(three)
        before = three.controller.written_lsn

        async def stop() -> None:
            # Each turn: two hundred commits are a few milliseconds.
            while three.controller.quorum.persisted("n1") <= before:
                await trio.lowlevel.checkpoint()
            three.controller.stop(FencedError("another leader took over"))

        async with trio.open_nursery() as nursery:
            for number in range(200):
                asked.append(str(number), 1)
            nursery.start_soon(stop)
        assert before < three.controller.written_lsn < before + 200

    async def test_a_higher_promise_of_a_peer_ends_leading(self, three: Stack) -> None:
        asked = Asked(three)
        asked.append("lost", 1)
        three.controller.feeding.peer_fenced("n2", three.ballot)
        assert asked.answers == {}
        three.controller.feeding.peer_fenced("n2", Ballot(9, 1))
        assert isinstance(asked.answers["lost"], FencedError)

    async def test_who_has_no_memory_confirms_no_leadership(self, three: Stack) -> None:
        """It may have promised another ballot with the disk that it lost."""
        for name in ("n2", "n3"):
            three.controller.feeding.attach(_answering(name))
        three.controller.quorum.demote("n2")
        with pytest.raises(NotReadyError, match="1 of 3 members answered"):
            await three.controller.confirm_leadership(0.01)
        three.controller.quorum.admit("n2")
        three.controller.feeding.attach(_answering("n2"))
        await three.controller.confirm_leadership(0.01)

    async def test_who_counts_again_commits_what_it_holds(self, three: Stack) -> None:
        """It was taught, and had written down that it counts; the answer was lost with the
        connection. What it says of its disk on another one is no news then."""
        asked, feeding, lsn = Asked(three), three.controller.feeding, three.controller.written_lsn
        three.controller.quorum.demote("n2")
        asked.append("x", 1)
        await persisted(three, lsn + 1)
        feeding.peer_persisted("n2", lsn + 1, 0)
        assert asked.answers == {}
        feeding.admit("n2")
        assert set(asked.answers) == {"x"}

    async def test_who_asks_whether_it_leads_hears_that_this_has_ended(self, three: Stack) -> None:
        """The rounds of a ballot that is over let everybody go: nobody has confirmed anything."""
        fenced = FencedError("another leader took over")
        heard: list[HadronError] = []

        async def ask() -> None:
            with pytest.raises(FencedError) as caught:
                await three.controller.confirm_leadership(3_600)
            heard.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            three.controller.stop(fenced)
        await ask()
        assert heard == [fenced, fenced]

    async def test_what_no_majority_stores_is_bounded(
        self, three: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_UNCOMMITTED_BYTES", 5_000)
        asked = Asked(three)
        names = [str(number) for number in range(200)]
        for name in names:
            asked.append(name, 1, acks=LEADER)
            await asked.until(name)
        refused = [name for name in names if isinstance(asked.answers[name], OverloadedError)]
        assert 100 < len(refused) < 200
        assert asked.answers[refused[0]].retryable
        three.peer("n2")
        asked.append("after", 1, acks=LEADER)
        await asked.until("after")
        assert asked.answers["after"].base_offset == 200 - len(refused)

    async def test_answers_that_wait_for_a_majority_are_bounded(
        self, three: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also those of commands without a body, whose callers may be gone. What ends something is
        let in for longer."""
        monkeypatch.setattr(module, "MAX_WAITING", 3)
        asked = Asked(three)
        for number in range(4):
            asked.submit(f"claim {number}", ClaimProducer(1, f"p{number}", 0, b"t"))
            await written(three)
        asked.append("leader", 1, acks=LEADER)
        assert isinstance(asked.answers.pop("leader"), OverloadedError)
        assert set(asked.answers) == {"claim 3"}
        assert isinstance(asked.answers["claim 3"], OverloadedError)
        assert asked.answers["claim 3"].retryable
        for number in range(4):
            asked.submit(f"trim {number}", TrimStream(1, 0))
            await written(three)
        assert set(asked.answers) == {"claim 3", "trim 3"}
        three.peer("n2")
        asked.submit("after", ClaimProducer(1, "after", 0, b"t"))
        await written(three)
        three.peer("n2")
        refused = [name for name in asked.answers if isinstance(asked.answers[name], HadronError)]
        assert (refused, len(asked.answers)) == (["claim 3", "trim 3"], 9)

    async def test_records_that_no_majority_stores_are_bounded_however_small(
        self, three: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody waits for these, and each takes 1 kB besides its bytes."""
        monkeypatch.setattr(module, "MAX_WAITING", 3)
        asked = Asked(three)
        for number in range(4):
            asked.append(f"{number}", 1, acks=LEADER)
            await written(three)
        assert [asked.answers[name].base_offset for name in "012"] == [0, 1, 2]
        assert isinstance(asked.answers["3"], OverloadedError)

    async def test_answers_that_wait_for_all_are_bounded_and_hold_no_bodies(
        self, three: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A member may be away for days; who asks for a majority only is not refused for them."""
        monkeypatch.setattr(module, "MAX_WAITING", 3)
        asked = Asked(three)
        for number in range(4):
            asked.append(f"{number}", 1, acks=ALL)
            await written(three)
            three.peer("n2")
        assert isinstance(asked.answers["3"], OverloadedError)
        waiting = three.controller._unanswered._lines[ALL]
        assert [len(each.body) + len(each.encoded) for each in waiting] == [0, 0, 0]
        assert not any(hasattr(each, "command") or each.events for each in waiting)
        asked.append("majority", 1)
        await written(three)
        three.peer("n2")
        assert asked.answers["majority"].base_offset == 3
        three.peer("n3")
        assert [asked.answers[name].base_offset for name in "012"] == [0, 1, 2]

    async def test_the_gate_closes_while_commands_wait(self, one: Stack) -> None:
        stream_id = await one.stream("s")
        asked = Asked(one)
        data = encode_values([b"x" * 300_000], 1)
        command = AppendBatch.of(stream_id, read_head(data), len(data))
        for number in range(8):
            asked.submit(str(number), command, data)
        assert not one.gate.is_open
        await one.gate.wait_open()
        await asked.until(*map(str, range(8)))
        assert one.gate._bytes == 0

    async def test_what_waits_when_leading_ends_is_counted_no_more(self, one: Stack) -> None:
        """The gate is the node's: what stays in it is there in every later leadership."""
        stream_id = await one.stream("s")
        asked = Asked(one)
        for number in range(3):
            asked.append(str(number), stream_id)
        assert one.gate._bytes
        one.controller.stop(FencedError("another leader took over"))
        assert set(asked.answers) == {"0", "1", "2"}
        assert not one.gate._bytes

    async def test_between_two_turns_the_others_go_on(self) -> None:
        gate, steps = ByteGate(1), list[str]()

        async def other() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                steps.append("other")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            nursery.start_soon(other)
            for _ in range(10):
                await gate.wait_turn()
                steps.append("turn")
            nursery.cancel_scope.cancel()
        between = "".join("|" if step == "turn" else "." for step in steps).split("|")[1:-1]
        assert all(6 <= len(each) <= 10 for each in between)


class TestVisible:
    async def test_nothing_above_the_watermark(self, three: Stack) -> None:
        asked = Asked(three)
        seen: list[int] = []
        three.visible.watch(1, lambda: seen.append(three.visible.bounds(1).next_offset))
        lsn = three.controller.written_lsn
        for number in range(4):
            asked.append(str(number), 1, acks=LEADER)
        await persisted(three, lsn + 4)
        assert await three.read(1) == []
        assert three.visible.recent(1, 0, 1 << 20) == []
        assert await three.visible.offset_at(1, 1) == 0
        three.peer("n2", lsn + 2)
        assert [batch.base_offset for batch in await three.read(1)] == [0, 1]
        assert (seen, three.visible.bounds(1).next_offset) == ([2], 2)
        with pytest.raises(OffsetOutOfRangeError, match="offset 3 is out of range"):
            await three.read(1, 3)
        three.peer("n2")
        assert [batch.base_offset for batch in await three.read(1, 1)] == [1, 2, 3]

    async def test_from_memory_or_from_disk_the_same(
        self, one: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hadron.serving import visible as visible_module

        monkeypatch.setattr(visible_module, "_RECENT_BYTES", 20_000)
        first, second = await one.stream("a"), await one.stream("b")
        for number in range(60):
            await one.append(first, b"%d" % number * 50, b"more")
            await one.append(second, b"%d" % number)
        assert one.visible._recent_bytes <= 20_000
        assert one.visible.recent(first, 0, 1) is None
        for stream_id, count in ((first, 2), (second, 1)):
            whole = await one.read(stream_id)
            assert [batch.base_offset for batch in whole] == list(range(0, 60 * count, count))
            for offset in range(60 * count):
                (found,) = await one.visible.read(stream_id, offset, 1)
                assert found.base_offset <= offset < found.next_offset
                expected = whole[offset // count]
                assert (found.base_offset, bytes(found.data), found.append_ms) == (
                    expected.base_offset,
                    bytes(expected.data),
                    expected.append_ms,
                )

    async def test_small_batches_are_counted_with_their_overhead(self, one: Stack) -> None:
        stream_id = await one.stream("a")
        await one.append(stream_id, b"x")
        assert one.visible._recent_bytes > 512

    async def test_a_declared_stream_is_there_at_once(self, one: Stack) -> None:
        with pytest.raises(NotFoundError):
            one.visible.bounds(1)
        assert await one.stream("a") == 1
        assert one.visible.bounds(1).next_offset == 0
        assert await one.read(1) == []

    async def test_unwatching(self, one: Stack) -> None:
        stream_id = await one.stream("a")
        seen: list[int] = []
        unwatch = one.visible.watch(stream_id, lambda: seen.append(1))
        await one.append(stream_id, b"x")
        unwatch()
        await one.append(stream_id, b"x")
        assert seen == [1]


async def test_another_leadership_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        stream_id = await stack.stream("a")
        await stack.append(stream_id, b"1", b"2")
    async with leading(tmp_path) as stack:
        assert stack.ballot == Ballot(1, 2)
        assert stack.catalog.stream("default", "a")[1].partitions == (SET,)
        assert (await stack.append(stream_id, b"3")).base_offset == 2
        assert [batch.incarnation for batch in await stack.read(stream_id)] == [1, 2]
