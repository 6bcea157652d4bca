"""Bugs in what is told to whom, and when."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "dedupe hit answered early",
    "a retry is told where its original is before the original is committed",
    Edit(
        "partition.waiters:Waiters.add",
        "        line = self._line_of(submission)\n",
        "        if not submission.logged and submission.error is None:\n"
        "            submission.done(submission.result, None)\n"
        "            return\n"
        "        line = self._line_of(submission)\n",
    ),
    scenarios=("retry-of-an-uncommitted-batch",),
)

plant(
    "condition refused early",
    "a record is refused for one of another producer that is not committed",
    Edit(
        "partition.waiters:Waiters.add",
        "        line = self._line_of(submission)\n",
        "        if submission.error is not None:\n"
        "            submission.done(None, submission.error)\n"
        "            return\n"
        "        line = self._line_of(submission)\n",
    ),
    scenarios=("refusal-by-an-uncommitted-record",),
)

plant(
    "reads above the watermark",
    "what the leader has on its own disk is shown to readers and groups",
    Edit(
        "partition.controller:Controller._release",
        "self._uncommitted[0].lsn <= committed:",
        "self._uncommitted[0].lsn <= self._persisted_lsn:",
    ),
    scenarios=("read-of-an-uncommitted-record", "delivery-of-an-uncommitted-record"),
)

plant(
    "acks of all at a majority",
    "acks=all is answered when a majority has the entry",
    Edit("partition.waiters:Waiters.take", "min(on_all, committed)", "committed"),
    scenarios=("acks-all-is-on-every-disk",),
)

plant(
    "acks of a majority at the leader",
    "every acks is answered when the leader's own disk has the entry",
    Edit("partition.waiters:Waiters.take", "reached = (committed,", "reached = (persisted,"),
    scenarios=("read-of-an-uncommitted-record",),
)

plant(
    "deposed leader answers questions",
    "what is answered from tables is not confirmed by a majority that still follows",
    Edit(
        "replication.majority:MajorityRounds._note", "followed[len(followed) // 2]", "followed[0]"
    ),
    scenarios=("question-to-a-deposed-leader",),
)

plant(
    "a round under way answers who comes late",
    "who asks while a majority is asked takes what it says, which may be older than the question",
    Edit(
        "replication.majority:MajorityRounds.confirm",
        "wanted = self._wanted = self._begun + 1",
        "wanted = self._wanted = self._begun + (self._begun == self._confirmed)",
    ),
    scenarios=("question-while-a-round-is-under-way",),
)

plant(
    "polls outlive their leader",
    "who waits for records at a leader that is deposed waits on, and is told that nothing came",
    Edit("serving.visible:VisibleStreams.end", "self._ended = reason", "return"),
    scenarios=("poll-at-a-leader-that-is-deposed",),
)

plant(
    "the log ends here, says who was deposed",
    "a leader says without a majority that its log ends before an offset",
    Edit("server.streams:_read_beyond", "    await leading.controller.confirm_leadership()\n", ""),
    scenarios=("question-to-a-deposed-leader",),
)

plant(
    "the record is another one, says who was deposed",
    "a leader says without a majority that it has not the record that somebody has read",
    Edit(
        "server.streams:_read_after", "        await leading.controller.confirm_leadership()\n", ""
    ),
    scenarios=("question-to-a-deposed-leader",),
)

plant(
    "what exists is waited for",
    "a record that exists is answered with nothing by a leader that has not got it",
    Edit("serving.visible:VisibleStreams.ends_before", " - exists", ""),
    scenarios=("question-to-a-deposed-leader",),
)

plant(
    "dead letters shown with the next record",
    "nobody hears that a dead letter was appended: its stream shows it when something else moves "
    "the end",
    Edit(
        "state.groups.endings:apply_dead_letter_records",
        "    db.execute(_COUNT_DEAD_LETTERS",
        "    context.events.clear()\n    db.execute(_COUNT_DEAD_LETTERS",
    ),
    scenarios=("dead-letter-of-a-record-given-back-twice",),
)

plant(
    "any history goes on",
    "who reads on is not told that the log has other records now at the offsets that it has read",
    Edit("serving.visible:VisibleStreams.check_after", "if has in (None, ballot):", "if True:"),
    scenarios=("follower-of-a-log-that-lost-its-end",),
)

plant(
    "new id while something is in doubt",
    "once a batch was given up, later ones leave under a new producer id while an earlier one is "
    "sent again under the old one",
    Edit(
        "client.producing.accumulator:PartitionAccumulator.next_batch",
        "if not self._queue or (self._hole and self._sent):",
        "if not self._queue:",
    ),
    scenarios=("batch-in-doubt-behind-one-that-was-given-up",),
)
