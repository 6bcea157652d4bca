"""Who watches nodes from inside complains of each broken rule by its name, at the first message
that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from hadron.model.errors import NotFoundError, NotReadyError
from hadron.sim.mutants import MUTANTS, patched
from hadron.sim.mutants.seams import Edit, Patch
from hadron.sim.runs.run import Judgement, Scenario, run_seed
from hadron.sim.scenarios import SCENARIOS
from hadron.sim.watch.answers import Answers
from hadron.sim.watch.entries import SCHEMA, Ends
from hadron.sim.watch.hearing.tables import HearsTables
from hadron.sim.watch.views import Complaints, NodeView
from hadron.sim.world.replica_set import World

pytestmark = pytest.mark.long

_TRIES = 8
"""Seeds, until one shows it: some histories break a rule in every second one only."""

PLANTED: dict[str, str] = {
    "A1 replicas apply what is committed": "replica applies before commit",
    "A2 told once it is committed": "dedupe hit answered early",
    "A2 what is shown is committed": "reads above the watermark",
    "A3 committed is on a majority": "majority minus one",
    "A3 counted once it is on the disk": "ack before fsync",
    "A3 acknowledged once it is on the disk": "replica acknowledges before its disk",
    "A6 the chain is whole after a repair": "repaired by another ballot's copy",
    "A6 what is put back was committed": "body of another entry taken",
    "B1 a promise survives": "promise not written down",
    "B1 lower ballots are refused": "lower ballot promised",
    "A2 nothing is answered when leading has ended": "polls outlive their leader",
    "D4 what exists is not answered with nothing": "what exists is waited for",
    "B1 a ballot is used once": "incarnation used again",
    "B2 an acknowledgement names what was verified": "own end acknowledged",
    "B4 a power loss is not taken for damage": "trim not flushed",
    "B3 a power loss is noticed": "kernel forgotten with a mark",
    "B3 who counts remembers": "learner counts once its feed has ended",
    "B3 who was restored has no memory": "restored member counts",
    "B3 a mark is of a committed entry": "mark of the log's end",
    "B6 a copy is committed": "copy of a replaced entry",
    "B6 a backup has what was there when it began": "backup that is an older copy",
    "B6 what is installed has what was committed": "tail from before beside a copy",
    "B6 what is installed has all that the disk had": "copy without the latest of the tail",
    "B6 a cluster's copies fit each other": "metadata set not copied last",
    "D1 what may be logged goes nowhere else": "refusal taken for the outcome of what is in doubt",
    "D1 what follows has the number behind": "new id while something is in doubt",
    "D2 a confirmation is of all that was acknowledged": (
        "acknowledgements of a lost call forgotten"
    ),
    "D2 each record is in one place": "key busy for a record that is gone",
    "D2 retention drops what is due": "retention by limits from before",
    "D2 what is acknowledged late was there then": "late acknowledgement of what came since",
    "D2 what was dealt with is delivered no more": "written dead letters delivered again",
    "D2 what is acknowledged was handed out": "other record acknowledged at an offset",
    "D2 what a member is sent is handed out once": (
        "records given back in time and handed out all the same"
    ),
    "D2 what a member is sent does not stay with it": "member leaves with parts of a batch",
    "D3 an id means one thing": "ids given again",
    "D3 who is behind says so": "new stream called missing",
    "D3 the schema is shown as of its index": "deleted objects stay",
    "D3 an index means one thing": "ids given again",
    "D3 what exists is listed": "lists lack what is new",
    "D3 a change is logged on the schema that it was judged against": "judged before its turn",
    "D4 a cursor names the record before it": "cursor behind another leader's records",
    "D4 a cursor of this history is let in": "the end is another history",
    "D4 a batch is given as it was logged": "ballot of an earlier start",
    "D4 offsets are said as the log has them": "cursor names the record behind it",
    "D5 the latest record of a key is told": "latest of a key, unless it is the first record",
    "B6 a copy ends at its position": "copy with bodies of the tail",
    "E3 a completion is of the instance that was given": "completion of another instance",
    "E3 a live instance has a stage that may run": "instances kept for a stage that is gone",
    "E3 a record makes one instance": "instance twice after the input's leader fails",
    "E3 a stage waits for what is before it": "stage before what it is after",
    "E3 a stage waits as long as it is to": "delay lost by a restart",
    "E3 what a transaction ends is given to nobody": "publishing stage handed out",
    "E3 what is done has its output": "completion without output",
    "E3 what is done is not done again": "retry runs what is done",
    "E3 nothing of an ended instance runs": "cancelled instance completes",
    "E3 what is cancelled stays as it is": "cancelled instance goes on",
    "E3 what is awaited is looked at behind the input": "awaited record not behind its trigger",
    "E3 what is at a runner is its own": "time of what waits at a runner runs",
    "E3 a wait ends when its time is over": "wait that ends before its time",
    "E3 who is given up has ended its runners": "who was with it is given up",
    "E3 what has ended is kept for a while": "what has ended goes at once",
    "E3 what is said of a pipeline is so": "attempts before a retry not told",
    "E3 what is to run is not dropped": "what is to run goes with its instance",
    "F2 what a log gives away is flushed": "checkpoint not flushed",
    "E1 what is decided is aborted nowhere": "a participant aborts what it finds after a restart",
    "E1 what is called aborted is never decided": "aborted, says a leader that was deposed",
    "E2 what is decided is done, or was deleted": "what waited for long is called deleted",
    "E6 what is decided is durable where it was prepared": "committed before the intents are "
    "durable",
    "E6 what is not noted is not forgotten": "participants forget before it is noted",
    "E7 what a transaction takes is delivered to nobody": "statement claims nothing",
    "E7 who acknowledges was given it last": "delivery acknowledged that another member has",
    "K13 a step is committed behind those before it": "step behind one that failed",
    "M pipelines": "live instances get the stages of now",
}
"""By complaint: a planted bug, in one of its own scenarios."""

_TOLD_EARLY = Edit(
    "transactions.machine:Machine._decide",
    "held.phase = Phase.DECIDING",
    "held.phase = Phase.DECIDING\n"
    "        for each in held.participants():\n"
    "            finish = Finish(held.id, each.prepared_lsn, each.statements)\n"
    "            self._send(each.replica_set, finish)",
)
"""Participants are told before the decision is logged."""

EDITED: dict[str, tuple[str, tuple[Patch, ...]]] = {
    "E2 what is finished is decided": ("decision-that-outlives-its-leader", (_TOLD_EARLY,)),
    "E6 committed is said once it is for good": (
        "decision-that-outlives-its-leader",
        (_TOLD_EARLY,),
    ),
    "E3 no record is passed over": (
        "stages-in-their-order",
        (
            Edit(
                "pipelines.consumer:InputPartition.take",
                "                    tuple(offsets),\n",
                "                    tuple(offsets[1:]),\n",
            ),
        ),
    ),
    "A3 what a member lacks is sent": (
        "producer-that-waits-for-slow-replicas",
        (Edit("replication.feed:Feed._on_answer", "if not self.is_live:", "if self._failure:"),),
    ),
    "D2 what is settled is acknowledged": (
        "dead-letters-of-which-one-is-acknowledged",
        (Edit("delivery.letters:DeadLetters._write_some", "if last > offset:", "if False:"),),
    ),
    "leaders leave nothing in the gate": (
        "commands-that-wait-for-a-deposed-leader",
        (
            Edit(
                "partition.controller:Controller.stop",
                "            self._gate.remove(submission.size)\n",
                "",
            ),
        ),
    ),
    "who serves lets in": (
        "retry-after-a-restart",
        (
            Edit(
                "node.leadership:Leadership._serve",
                "self._door.open(self.leading)",
                "nursery.start_soon(trio.lowlevel.checkpoint)",
            ),
        ),
    ),
    "A2 answers wait for what they were read from": (
        "delivery-of-an-uncommitted-record",
        (
            Edit(
                "server.groups.calls:_read", "leading.controller.query(", "leading.controller.read("
            ),
        ),
    ),
    "A2 a deposed leader does not answer": (
        "delivery-of-an-uncommitted-record",
        tuple(
            Edit(
                f"server.groups.calls:{name}",
                "    await leading.controller.confirm_leadership()\n",
                "",
            )
            for name in ("_answer_list", "_answer_describe")
        ),
    ),
    "A2 what is committed is shown": (
        "retry-after-a-restart",
        (
            Edit(
                "partition.controller:Controller._tell", "if visible and", "if len(visible) > 1 and"
            ),
        ),
    ),
    "A2 the schema is read at the watermark": (
        "retry-after-a-restart",
        (
            Edit(
                "serving.schema_copy:SchemaCopy._read_committed",
                "return result if is_committed and self._leading is None else None",
                "return result",
            ),
        ),
    ),
    "A7 only what is committed is trimmed": (
        "trimmed-while-one-lags",
        (Edit("replication.feed:Feed._send", "self._host.trim_lsn", "self._host.written_lsn"),),
    ),
    "A3 what is acknowledged has no holes": (
        "append-that-is-rolled-back-while-others-come",
        (
            Edit(
                "replication.follower:FollowerLog._begin_write",
                "            self._log.reload()\n",
                "",
            ),
        ),
    ),
    "B3 who counts has what it acknowledged": (
        "log-removed-after-a-kill",
        (
            Edit(
                "storage.aftermath:examine",
                "    if len(data) < HEADER_BYTES:\n",
                "    if not data:\n        return Aftermath(unclean)\n"
                "    if len(data) < HEADER_BYTES:\n",
            ),
        ),
    ),
    "B3 a power loss is noticed": (
        "minority-loses-power-without-fsync",
        (Edit("storage.identity:IdentityFile.begin_run", "kernel, mark)", "None, mark)"),),
    ),
    "B6 a copy has the bodies that were committed": (
        "copies-of-bodies-that-outlived-their-log",
        (Edit("replication.snapshots:SnapshotService._check", ", KeptBodiesCheck(report)]", "]"),),
    ),
    "B6 what is installed has bodies of its own entries": (
        "copy-without-the-latest-entry",
        (
            Edit(
                "storage.snapshot:_append_rows",
                'VALUES(?, ?)", (lsn, body)',
                'VALUES(?, ?)", (lsn + 1, body)',
            ),
        ),
    ),
    "D4 a reader names what it has read": (
        "follower-of-a-log-that-lost-its-end",
        (
            Edit(
                "client.reading.prefetch:Prefetch._on_message",
                "self._request.after.CopyFrom(last.ballot)",
                "self._request.after.incarnation += 1",
            ),
        ),
    ),
    "connections leave nothing in the budget": (
        "retry-after-a-restart",
        (Edit("wire.connection:Connection.forget", "self._budget.calls -= 1", "pass"),),
    ),
    "B8 stamps are the time": (
        "retry-after-a-restart",
        (
            Edit(
                "partition.group_commit:GroupCommitter.prepare",
                "max(clock_ms(),",
                "max(clock_ms() + 3_600_000,",
            ),
        ),
    ),
    "D1 sequences follow each other": (
        "producers-idle-for-a-day",
        (Edit("state.streams.producers:check", "if batch.sequence != 0:", "if False:"),),
    ),
    "D1 what may be logged is sent as it was": (
        "batch-in-doubt-behind-one-that-was-given-up",
        (
            Edit(
                "client.producing.accumulator:PartitionAccumulator.resume",
                "if not batch.doubtful:",
                "if True:",
            ),
        ),
    ),
    "D1 what may be logged is not called lost": (
        "region-without-room-for-what-another-has",
        (
            Edit(
                "client.producing.outgoing_batch:OutgoingBatch.move",
                "        self.doubtful_elsewhere |= self.doubtful\n",
                "",
            ),
        ),
    ),
    "D1 a share counts what has no outcome": (
        "region-without-room-for-what-another-has",
        (
            Edit(
                "client.producing.accumulator:PartitionAccumulator.take",
                "            self.held_bytes -= batch.size\n",
                "",
            ),
        ),
    ),
    "D4 what is kept is not refused": (
        "readers-at-a-new-leader",
        (
            Edit(
                "serving.visible:VisibleStreams.check",
                "if offset < limits.first_offset or",
                "if offset <= limits.first_offset or",
            ),
        ),
    ),
    "D2 a deadline ends a delivery": (
        "acknowledgement-after-the-deadline",
        (Edit("delivery.held:Held.arm", "now + self._deadline_s", "now + 3 * self._deadline_s"),),
    ),
    "D2 a group is served as the tables have it": (
        "member-that-joins-during-a-reset",
        (
            Edit("delivery.groups:Groups._find_or_make", "reading.is_old or", ""),
            Edit(
                "delivery.groups:Groups.reset",
                "                self._send_away((stream_id, name), PeerError(*reason))\n",
                "",
            ),
        ),
    ),
    "D2 what follows waits for the commit": (
        "keys-in-order-over-a-failover",
        (
            Edit(
                "delivery.driver:GroupDriver.acknowledge",
                "self.ledger.acknowledge(counted)",
                "self.ledger.acknowledge(counted); self.machine.settled(counted, now)",
            ),
        ),
    ),
    "D2 what others may have is not handed out": (
        "member-whose-machine-was-suspended",
        (
            Edit(
                "client.consuming.consumer:Consumer.holds",
                "self._clock() <= channel.held_until",
                "channel.alive",
            ),
        ),
    ),
    "D2 who is silent is gone": (
        "refusal-that-two-wait-for",
        (
            Edit(
                "delivery.sessions:MemberSession.patience_s",
                "self.heartbeat_threshold / 1_000",
                "self.heartbeat_threshold / 200",
            ),
        ),
    ),
    "E3 a stage has all its attempts": (
        "failed-instances-are-retried",
        (
            Edit(
                "state.pipelines.stage_runs:_fail_some",
                "counted = attempt - before.get(instance_id, 0)",
                "counted = attempt",
            ),
        ),
    ),
    "E3 the latest attempt counts": (
        "failed-instances-are-retried",
        (
            Edit(
                "state.pipelines.stage_runs:stale_of",
                "waiting.pop(instance_id, None) != tuple(attempt)",
                "waiting.pop(instance_id, None) is None",
            ),
        ),
    ),
    "M streams": (
        "retry-after-a-restart",
        (Edit("state.streams.producers:note", "recent[-PRODUCER_WINDOW:]", "recent[-1:]"),),
    ),
    "M groups": (
        "acknowledgement-from-before-a-deletion",
        (
            Edit(
                "state.groups.progress:apply_create_group",
                "(*context.ballot, command.last_delivery)",
                "(0, 0, 0)",
            ),
        ),
    ),
    "M schema": (
        "stream-that-is-made-again",
        (Edit("state.schema:apply_delete_objects", "    set_index(context.db, index)\n", ""),),
    ),
}
"""By complaint: a scenario, and an edit that breaks the rule in it."""


def _complaints(scenario: str, patches: tuple[Patch, ...]) -> set[str]:
    found: set[str] = set()
    with patched(*patches):
        for seed in range(_TRIES):
            violations = SCENARIOS[scenario].play(seed).violations
            found.update(violation.partition(":")[0] for violation in violations)
            if found:
                break
    return found


@pytest.mark.parametrize("complaint", sorted(PLANTED))
def test_a_planted_bug_is_named_where_it_breaks_the_rule(complaint: str) -> None:
    mutant = MUTANTS[PLANTED[complaint]]
    assert complaint in _complaints(mutant.scenarios[0], mutant.patches)


@pytest.mark.parametrize("complaint", sorted(EDITED))
def test_a_rule_is_watched(complaint: str) -> None:
    assert complaint in _complaints(*EDITED[complaint])


def test_what_a_copy_of_tables_has_replaced_is_known_no_more() -> None:
    """n1 applied entry 673 of a leader that was deposed, and has resynced: in its new tables, which
    stand at 672, entry 669 has brought the schema to 7."""
    ends = Ends()
    ends.note("n1", SCHEMA, 389, 5, 6)
    ends.note("n1", SCHEMA, 673, 6, 7)
    ends.note("n2", SCHEMA, 673, 6, 7)
    ends.opened("n1", 672)
    assert [ends.lsn_of("n1", SCHEMA, index) for index in (6, 7)] == [389, 0]
    assert ends.lsn_of("n2", SCHEMA, 7) == 673


def test_a_second_retry_begins_where_the_attempts_are() -> None:
    edit = Edit(
        "state.pipelines.retries:_count_anew",
        " ON CONFLICT DO UPDATE SET attempts_before = excluded.attempts_before",
        " ON CONFLICT DO NOTHING",
    )
    complaints = _complaints("failed-instances-are-retried", (edit,))
    assert "E3 a stage has all its attempts" in complaints


def test_what_a_start_did_that_a_power_loss_took_is_not_heard() -> None:
    """Nobody hears of the ballot under which a node begins to lead after the write in which it lost
    its power: it may use that one again."""
    assert _complaints_of_starts_that_lose_power() == set()


def test_a_promise_is_missed_after_a_start_that_a_power_loss_took() -> None:
    """Nor was that start written down, so that the next one has the same number: it is from no old
    copy, which would know less of what was promised."""
    edit = Edit(
        "storage.identity:IdentityFile.promise",
        "        with self._writing():",
        "        self._db.pragma('synchronous', 'off')\n        with self._writing():",
    )
    with patched(edit):
        assert "B1 a promise survives" in _complaints_of_starts_that_lose_power()


def _complaints_of_starts_that_lose_power() -> set[str]:
    """A node alone that is killed, and loses its power in each write of its next start."""

    async def body(world: World) -> Judgement:
        crashes = 0
        for write in count(1):
            await world.crash("n1", power=False)
            world.disks["n1"].broken.crash_at_write_in = write
            await world.start("n1")
            await world.wait_for(
                "its end, or its start", lambda: not world.running("n1") or world.is_serving()
            )
            if world.running("n1"):
                break
            crashes += 1
            await world.start("n1")
            await world.wait_serving(5.0)
        assert crashes > 10
        return Judgement()

    # What each loss takes is up to chance.
    return set().union(*(_rules_broken(body, seed) for seed in range(1, 5)))


def test_a_ballot_that_is_used_again_is_noticed_of_a_node_alone() -> None:
    async def body(world: World) -> Judgement:
        await world.restart("n1")
        await world.wait_serving(5.0)
        return Judgement()

    assert _rules_broken(body) == set()
    with patched(*MUTANTS["incarnation used again"].patches):
        assert "B1 a ballot is used once" in _rules_broken(body)


def _rules_broken(body: Scenario, seed: int = 1) -> set[str]:
    return {violation.partition(":")[0] for violation in run_seed(seed, body, nodes=1).violations}


@pytest.mark.parametrize("handler", ["_answer_retry", "_answer_instances", "_answer_progress"])
def test_a_deposed_leader_tells_nothing_of_pipelines(handler: str) -> None:
    edit = Edit(
        f"server.pipelines.calls:{handler}",
        "    await leading.controller.confirm_leadership()\n",
        "",
    )
    complaints = _complaints("failed-instances-are-retried", (edit,))
    assert "A2 a deposed leader does not answer" in complaints


def test_a_deposed_leader_does_not_tell_where_a_pipeline_starts() -> None:
    edit = Edit(
        "server.pipelines.calls:_answer_start",
        "    await leading.controller.confirm_leadership()\n",
        "",
    )
    complaints = _complaints("backfills-whose-leader-fails", (edit,))
    assert "A2 a deposed leader does not answer" in complaints


@pytest.mark.parametrize(
    ("query", "raises"),
    [("SELECT bytes FROM hadron_body", False), ("SELECT blob FROM hadron_body", True)],
)
def test_a_query_that_does_not_fit_the_tables_is_no_damage(query: str, raises: bool) -> None:
    """A column that was renamed would turn a rule off without a word."""
    with closing(apsw.Connection(":memory:")) as db:
        db.execute("CREATE TABLE hadron_body(bytes)")
        store = SimpleNamespace(writer=SimpleNamespace(connection=db))
        volume = SimpleNamespace(unharmed=nullcontext)
        view = NodeView("n1", cast(Any, store), cast(Any, volume))
        with pytest.raises(apsw.SQLError) if raises else nullcontext():
            assert view.select(query) is None
    assert view.select(query) is None  # Closed: there is no asking.


async def test_what_a_failed_query_has_read_goes_with_it() -> None:
    """Whoever asks again after that tells nothing of it; what a read raises is told."""
    answers = Answers(Complaints(), cast(Any, None), cast(Any, None), cast(Any, None))
    known = SimpleNamespace(answers=answers)
    queries = HearsTables(cast(Any, known)).queries(_query)

    def refused(_db: object) -> None:
        answers.read(29)
        raise NotFoundError("there is no stream 'a'")

    with pytest.raises(NotReadyError):
        await queries(None, lambda _db: answers.read(29))
    assert answers.begin_bounded() == 0
    with pytest.raises(NotFoundError):
        await queries(None, refused)
    assert answers.begin_bounded() == 29


async def _query(_controller: object, read: Callable[[object], object]) -> None:
    """As `Controller.query` where no majority answers."""
    read(None)
    raise NotReadyError("no majority answers")
