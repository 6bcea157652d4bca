"""Bugs in pipelines: what makes instances, who runs their stages when, and where outputs go.

Some are in what entries do, where the model of the tables sees them; the others are in what leaders
do, whose entries are each as they should be.
"""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

_STEPS: Final = "pipeline-whose-leaders-fail-at-each-step"
_AWAY: Final = "output-whose-set-is-away"
_CANCELLED: Final = "cancelled-while-its-output-is-on-its-way"
_BUSY: Final = "runners-that-take-long"
_FILLS: Final = "backfills-whose-leader-fails"
_ENDS_ITS_RUNNER: Final = "record-that-ends-its-runner"

plant(
    "instance twice after the input's leader fails",
    "who consumes begins before its cursor, and the entry does not ask where that is",
    Edit(
        "pipelines.following:Follower._follow",
        "cursor.next_offset, cursor.ballot",
        "max(0, cursor.next_offset - 1), type(cursor.ballot)(0, 0)",
    ),
    Edit("state.pipelines.inputs:_move", "if row[0] != command.from_offset:", "if False:"),
    scenarios=(_STEPS,),
)

plant(
    "batch skipped after a recovery",
    "a leader that begins in the midst of an input takes the first batch for what it has read",
    Edit(
        "pipelines.following:Follower._take_all",
        "        while True:\n"
        "            self._look(offset)\n"
        "            found = await source.read(offset, ballot)\n",
        "        begun = offset\n"
        "        while True:\n"
        "            self._look(offset)\n"
        "            found = await source.read(offset, ballot)\n"
        "            begins = 0 < offset == begun\n"
        "            if found and not isinstance(found, Gap) and begins:\n"
        "                first = found[0]\n"
        "                ballot = Ballot(first.epoch, first.incarnation)\n"
        "                found = Gap(first.next_offset, ballot, False)\n",
    ),
    scenarios=(_STEPS,),
)

plant(
    "output without completion",
    "what a stage makes for another set is published there, and its home hears nothing of it",
    Edit(
        "node.pipelines.outputs:StageOutputs.publish",
        "            Statement(home, encode(command)),\n",
        "",
    ),
    scenarios=(_STEPS,),
)

plant(
    "completion without output",
    "a stage whose output goes to another set is completed at home, without it",
    Edit(
        "pipelines.driver:PipelineDriver.complete",
        "            return await self._publish(*command, outputs)\n",
        "            given = command[0]\n"
        "            ids, attempts = given.instance_ids, given.attempts\n"
        "            done = CompleteStages(given.pipeline_id, given.stage, ids, attempts, 0, 0)\n"
        "            await self._controller.execute(done)\n"
        "            return Completed(None)\n",
    ),
    scenarios=(_STEPS,),
)

plant(
    "output at the wrong place",
    "the outputs of a micro-batch that go to another set are told in the wrong order",
    Edit("state.pipelines.publishing:_complete", "base + index", "base + len(ids) - 1 - index"),
    scenarios=(_STEPS,),
)

plant(
    "publishing stage handed out",
    "a stage whose output is on its way to another set is given to the next runner",
    Edit(
        "state.pipelines.views:ready_stages",
        "AND status = {StageStatus.READY}",
        "AND status IN (1, 4)",
    ),
    scenarios=(_AWAY,),
)

plant(
    "stage before what it is after",
    "a stage that waits for others without their outputs may run at once",
    Edit(
        "state.pipelines.instances:make",
        "if not stage.dependencies and not stage.after and",
        "if not stage.dependencies and",
    ),
    scenarios=("stages-in-their-order",),
)

plant(
    "delay lost by a restart",
    "what a leader hands out first need not wait for its time",
    Edit(
        "pipelines.dispatcher:Dispatcher._hand_out",
        "now, now_ms = trio.current_time(), self._controller.log_now_ms()",
        "now, now_ms = trio.current_time(), self._controller.log_now_ms()\n"
        "            now_ms += 0 if self.assignments._turn else 3_600_000",
    ),
    scenarios=("delays-that-outlive-their-leader",),
)

plant(
    "cancelled instance completes",
    "stages of a cancelled instance that are at runners may be completed",
    Edit(
        "state.pipelines.cancellations:apply_cancel_instances",
        "SET status = {StageStatus.WAITING}, attempts = attempts + 1",
        "SET status = 1",
    ),
    scenarios=("cancelled-while-they-are-run",),
)

plant(
    "backfill doubles",
    "a backfill makes an instance of each record that it comes by, whoever has made one",
    Edit("state.pipelines.backfills:_not_looked_at", "if not any(", "if 1 or not any("),
    scenarios=(_FILLS,),
)

plant(
    "looked at before the instances are made",
    "a backfill notes how far it is, and makes the instances in the next entry",
    Edit(
        "pipelines.backfilling:Backfilling._step",
        "            self._id, backfill.number, offset, to_offset, tuple(offsets), key_hashes\n"
        "        )\n"
        "        result: Stepped = await self._controller.execute(command)\n",
        "            self._id, backfill.number, offset, to_offset, (), b''\n"
        "        )\n"
        "        import hadron.state.pipelines.cancellations as by_hand\n"
        "        result: Stepped = await self._controller.execute(command)\n"
        "        if offsets and not result.stale:\n"
        "            stream_id, _ = self._stream()\n"
        "            where = stream_id, backfill.partition, tuple(offsets)\n"
        "            request = b'%d/%d' % (backfill.number, offset)\n"
        "            made = by_hand.StartInstances(self._id, *where, request)\n"
        "            await self._controller.execute(made)\n",
    ),
    scenarios=(_FILLS,),
)

plant(
    "retry runs what is done",
    "with a retry all stages of an instance run again, not the failed ones alone",
    Edit(
        "state.pipelines.retries:_begin_anew",
        "AND status = {StageStatus.FAILED} RETURNING",
        "AND status IN (2, 3) RETURNING",
    ),
    scenarios=("stage-that-failed-and-is-removed",),
)

plant(
    "definition dropped while it is needed",
    "with another graph that of before goes, whoever lives with it",
    Edit("state.pipelines.definitions:hold", "AND instances = 0 AND version <", "AND version <"),
    scenarios=("graph-changed-under-instances",),
)

plant(
    "what has ended goes at once",
    "when an instance is to be dropped, all go that have ended",
    Edit(
        "pipelines.forgetting:Forgetting.run",
        "DropInstances(self._id, now_ms - keep_ms)",
        "DropInstances(self._id, now_ms + 1)",
    ),
    scenarios=("finished-instances-are-kept-for-a-while",),
)

plant(
    "what is to run goes with its instance",
    "an instance that has failed is dropped with the stage that is to tell of it",
    Edit(
        "state.pipelines.finished:apply_drop_instances",
        "going = [row for row in due if row[0] not in held]",
        "going = due",
    ),
    scenarios=("finished-instances-are-kept-for-a-while",),
)

plant(
    "cursor behind another leader's records",
    "a pipeline that takes some of what it has read of another set goes on as if it had taken all",
    Edit(
        "pipelines.following:ballot_before",
        "(last,) = (each for each in batches if each.base_offset < offset <= each.next_offset)",
        "last = batches[-1]",
    ),
    scenarios=("input-that-two-leaders-have-logged",),
)

plant(
    "cancelled instance goes on",
    "what follows a stage is made ready when its output is there, whoever was cancelled meanwhile",
    Edit(
        "state.pipelines.publishing:_complete",
        "going_on = instances.not_cancelled(context.db, pipeline_id, done)",
        "going_on = done",
    ),
    scenarios=(_CANCELLED,),
)

plant(
    "cancelled stage completes",
    "an attempt at a stage of a cancelled instance completes it, though it was not to run any more",
    Edit("state.pipelines.cancellations:apply_cancel_instances", ", attempts = attempts + 1", ""),
    Edit(
        "state.pipelines.stage_runs:stale_of",
        "AND r.status = {StageStatus.READY}",
        "AND r.status IN (0, 1)",
    ),
    scenarios=("cancelled-while-they-are-run",),
)

plant(
    "time of what waits at a runner runs",
    "a stage's timeout runs from when a runner was given it, begun or not",
    Edit(
        "pipelines.assignments:Assignments._new_batch",
        "_Batch(number, runner, stage, timeout_s)",
        "_Batch(number, runner, stage, timeout_s)\n"
        "        batch.deadline = __import__('trio').current_time() + timeout_s",
    ),
    scenarios=(_BUSY,),
)

plant(
    "who works on is not heard",
    "a stage's timeout runs from when its runner has begun, however often that says it goes on",
    Edit(
        "pipelines.assignments:Assignments.begin",
        "batch.deadline = now + batch.timeout_s",
        "batch.deadline = min(batch.deadline, now + batch.timeout_s)",
    ),
    scenarios=(_BUSY,),
)

plant(
    "who was with it is given up",
    "each time that a runner is lost counts for all that it worked on as if that were by itself",
    Edit("pipelines.losses:Losses.note", "loss.alone += len(ids) == 1", "loss.alone += 1"),
    scenarios=(_ENDS_ITS_RUNNER,),
)

plant(
    "what ends its runner is not apart",
    "however often its runner was lost, an instance runs with others",
    Edit("pipelines.losses:Losses.suspected", "known[each].count >= _SUSPECTED", "False"),
    scenarios=(_ENDS_ITS_RUNNER,),
)

plant(
    "what ends its runner goes on",
    "who loses runners by itself has another one each time",
    Edit("pipelines.losses:Losses.hopeless", "loss.alone >= max_attempts", "False"),
    scenarios=(_ENDS_ITS_RUNNER,),
)

plant(
    "given up for what was cancelled",
    "that one of a stage is cancelled counts as if a runner had ended it",
    Edit("pipelines.losses:Losses.settle", "+= by_runner", "+= 1"),
    scenarios=("code-that-ends-every-runner",),
)

plant(
    "given up for the code",
    "who has lost runners by itself is given up though nobody gets anything done",
    Edit("pipelines.losses:Losses.hopeless", " and loss.first < loss.last", ""),
    scenarios=("code-that-ends-every-runner",),
)

plant(
    "who goes is lost",
    "a runner that says that it goes is taken for one that has crashed",
    Edit("server.pipelines.calls:_run_stages", "is_lost=error is not None", "is_lost=True"),
    scenarios=("runners-that-come-and-go",),
)

plant(
    "given up a loss too early",
    "an instance is given up when its next loss would be as many as it may have attempts",
    Edit("pipelines.losses:Losses.hopeless", "alone >= max_attempts", "alone >= max_attempts - 1"),
    scenarios=(_ENDS_ITS_RUNNER,),
)

plant(
    "who comes back stays lost",
    "a run of a program that was cut off, and comes back, counts as one that has crashed",
    Edit("pipelines.losses:Losses.take_back", "self._forget_run(run_id)", "()"),
    scenarios=("runners-that-come-and-go",),
)

plant(
    "who is back is lost",
    "a call that is lost counts as a crash, though the same run has opened another one since",
    Edit(
        "pipelines.assignments:Assignments.leave",
        "is_lost and not (runner is not None and runner.is_back)",
        "is_lost",
    ),
    scenarios=("runners-that-come-and-go",),
)

# --- what is said of them -------------------------------------------------------------------------

plant(
    "attempts before a retry not told",
    "a runner takes an attempt for the first one, whatever was tried before it",
    Edit(
        "server.pipelines.runners:CallSink.draft",
        "attempts_before=item.attempts_before",
        "attempts_before=0",
    ),
    scenarios=("failed-instances-are-retried",),
)

plant(
    "told without the reason",
    "who tells of what was given up hears of which stage it was, and not why",
    Edit("server.pipelines.runners:CallSink.draft", "failure=item.failure", "failure=''"),
    scenarios=("finished-instances-are-kept-for-a-while",),
)

plant(
    "what has failed is called live",
    "whoever looks at a pipeline waits for instances that nobody works on",
    Edit(
        "server.pipelines.calls:_describe", "live=counts.live", "live=counts.live + counts.failed"
    ),
    scenarios=("failed-instances-are-retried",),
)
