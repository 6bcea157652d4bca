"""Bugs in tables and in what `apply` makes of the log."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "dedupe state lost at restart",
    "producers' sequences are gone when a node starts",
    Edit(
        "storage.store:_prepare",
        "        mark_format(connection, FORMAT_VERSION)\n",
        "        mark_format(connection, FORMAT_VERSION)\n"
        '        connection.execute("DELETE FROM hadron_producer")\n',
    ),
    scenarios=("retry-after-a-restart",),
)

plant(
    "dedupe not replicated",
    "replicas apply batches without noting their producers' sequences",
    Edit(
        "state.execute:execute_logged",
        "    command = context.machine.decode(data)\n",
        "    command = context.machine.decode(data)\n"
        '    if type(command).__name__ == "AppendBatch":\n'
        "        command = type(command)(\n"
        '            command.stream_id, command.count, command.size, b"", 0, -1\n'
        "        )\n",
    ),
    scenarios=("retry-after-a-restart",),
)

plant(
    "condition asked of what is known already",
    "a record that was logged is sent again, and refused because it stands where it expects to be",
    Edit(
        "state.streams.partitions:apply_append_guarded",
        "    recent: list[Appended] | None = None\n",
        "    check_conditions(context, command)\n    recent: list[Appended] | None = None\n",
    ),
    scenarios=("condition-of-a-record-that-was-logged",),
)

plant(
    "key is its sender's",
    "what is sent again under a key by somebody else is logged once more",
    Edit("client.producing.once:_batch", "once_id_of(key)", 'once_id_of(f"{key} {now_ms}")'),
    scenarios=("key-that-is-sent-again",),
)

plant(
    "key is forgotten for the next one",
    "each new key has others forgotten, however young they are",
    Edit(
        "state.streams.producers:_forget_idle",
        "context.now_ms - PRODUCER_IDLE_MS - PRODUCER_IDLE_STEP_MS",
        "context.now_ms + 1",
    ),
    scenarios=("key-that-is-sent-again",),
)

plant(
    "idle producers all go at once",
    "a producer that is new waits until all are forgotten that were idle, however many they are",
    Edit(
        "state.streams.producers:_forget_idle",
        "    if kind != _KEY:\n",
        "    while kind != _KEY and db.changes():\n"
        "        db.execute(_EVICT, (stream_id, kind, old_ms))\n"
        "    if kind != _KEY:\n",
    ),
    scenarios=("producers-idle-for-a-day",),
)

plant(
    "key is known whatever comes with it",
    "another number of records under a key is taken for those that were logged",
    Edit(
        "state.streams.producers:check",
        "known.sequence == batch.sequence and known.count == batch.count",
        "known.sequence == batch.sequence",
    ),
    scenarios=("key-that-is-sent-again",),
)

plant(
    "zombie of a name is heard",
    "what a producer writes after another one has taken its name is logged",
    Edit("state.streams.producers:check", "if batch.producer_epoch < epoch:", "if False:"),
    Edit(
        "state.streams.producers:check",
        "if row is None or batch.producer_epoch > row[0]:",
        "if row is None or batch.producer_epoch != row[0]:",
    ),
    scenarios=("zombie-of-a-named-producer",),
)

plant(
    "number on its way is called logged",
    "a program with a name goes on behind what it gave last, and leaves out what was lost then",
    Edit(
        "client.producing.publisher:Publisher.last_sequences",
        "each.last_sequence for each",
        "each._given_sequence for each",
    ),
    scenarios=("zombie-of-a-named-producer",),
)

plant(
    "last number stays as it was claimed",
    "a program with a name that asks where it is goes on from where it began",
    Edit(
        "client.producing.accumulator:PartitionAccumulator.acked",
        "        if batch.last_sequence is not None:\n"
        "            self.last_sequence = max(self.last_sequence, batch.last_sequence)\n",
        "",
    ),
    scenarios=("zombie-of-a-named-producer",),
)

plant(
    "late claim shuts out",
    "a claim counts whoever has claimed the name since it was made",
    Edit("state.streams.producers:apply_claim_producer", "if command.after != claim:", "if False:"),
    scenarios=("claim-that-comes-late",),
)

plant(
    "stamps go back",
    "an entry gets its leader's clock, also when that is behind the entry before",
    Edit(
        "partition.group_commit:GroupCommitter.prepare",
        "max(clock_ms(), self._log.last_ms)",
        "clock_ms()",
    ),
    scenarios=("clock-that-jumps-back",),
)

plant(
    "digests not compared",
    "a replica takes its leader's word for what the log makes of its tables",
    Edit(
        "state.digests:apply_state_digest",
        "if (is_last, digest) != (command.is_last, command.digest):",
        "if False:",
    ),
    scenarios=("row-changed-by-somebody",),
)

plant(
    "live instances get the stages of now",
    "who ends a stage makes ready what follows it in the pipeline as it is declared now, and an "
    "instance ends when all of that is done",
    Edit("state.pipelines.stage_runs:advance", "declared[version]", "declared[max(declared)]"),
    scenarios=("graph-changed-under-instances",),
)

plant(
    "instances kept for a stage that is gone",
    "instances that are retried stay live when what had failed is declared no more",
    Edit("state.pipelines.stage_runs:catch_up", "    instances.end(", "    0 and instances.end("),
    scenarios=("stage-that-failed-and-is-removed",),
)

plant(
    "completion of another instance",
    "an instance is told by its number and the attempt alone, not by when it was made",
    Edit(
        "state.pipelines.stage_runs:stale_of",
        "created_ms = command.created_ms or (None,) * len(ids)",
        "created_ms = (None,) * len(ids)",
    ),
    Edit("state.pipelines.stage_runs:stale_of", "made_ms if command.created_ms else None", "None"),
    scenarios=("completion-of-an-instance-that-was-lost",),
)
