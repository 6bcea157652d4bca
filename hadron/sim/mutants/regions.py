"""Bugs between replica sets: the schema on its way, and producers that change partitions."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "metadata applied out of order",
    "what is pushed is adopted whether it follows what was adopted before or not",
    Edit("state.adoption:check_follows", "command.from_index != index", "False"),
    Edit("state.adoption:check_follows", "command.to_index <= index", "False"),
    scenarios=("push-that-arrives-late",),
)

plant(
    "push resumed from a wrong index",
    "a push begins at the metadata set's latest change, wherever the other side stands",
    Edit(
        "metadata.push:Push._note_position",
        "self._position = index",
        "self._position = max(index, self._own_index - 1)",
    ),
    scenarios=("region-that-misses-changes",),
)

plant(
    "failover publishing twice",
    "a batch that may be in the log of its partition is published in another one",
    Edit(
        "client.producing.failover:may_move",
        "batch.state is BatchState.UNANSWERED and not batch.doubtful",
        "batch.state in (BatchState.SENT, BatchState.UNANSWERED)",
    ),
    scenarios=("region-dies-with-an-answer",),
)

plant(
    "ids given again",
    "a metadata set that lost its log's end goes on from there, whatever others have seen",
    Edit("node.leadership:Leadership._above_index", "return ballot.first_index", "return 0"),
    Edit(
        "state.registry:apply_register_replica_set",
        "max(index, command.above_index) + 1",
        "index + 1",
    ),
    scenarios=("metadata-set-that-lost-its-logs-end",),
)

plant(
    "ids given again while others are away",
    "a metadata set that lost its log's end goes on above what those have seen who tell it so",
    Edit("node.recovery:_next_promise", "return known.recovered()", "return known"),
    scenarios=("ids-lost-while-others-are-cut-off",),
)

plant(
    "ids given again after two recoveries",
    "a metadata set that lost its log's end twice goes on where it went on the first time",
    Edit(
        "node.leadership:Leadership._above_index",
        "return ballot.first_index",
        "return ballot._replace(incarnation=1_000_000).first_index",
    ),
    scenarios=("ids-lost-while-others-are-cut-off",),
)

plant(
    "ids given again where the epoch was raised",
    "a metadata set that lost its log's end goes on from there, if it is given another epoch too",
    Edit(
        "node.leadership:Leadership._above_index",
        "if latest == NO_BALLOT or latest.recoveries >= ballot.recoveries:",
        "if latest.epoch < ballot.epoch or latest.recoveries >= ballot.recoveries:",
    ),
    scenarios=("ids-lost-while-the-epoch-is-raised",),
)

plant(
    "metadata set not copied last",
    "a cluster's backup copies its replica sets by name",
    Edit("node.cluster_backup:_backup_sets", "known.name == metadata)", "known.name)"),
    scenarios=("cluster-that-changes-during-its-backup",),
)

plant(
    "new stream called missing",
    "a leader that has not heard of a stream yet says that there is none, which is final",
    Edit(
        "serving.leading:Leading.find",
        "self.catalog.by_id(object_id, metadata_index)",
        "self.catalog.by_id(object_id)",
    ),
    scenarios=("stream-that-is-news-to-its-leader",),
)

plant(
    "stream's end not told to its producers",
    "a client goes on to send by the id of a stream that it has deleted",
    Edit(
        "client.schema.catalog:Catalog._tell",
        "for follower, known in list(self._followers.items()):",
        "for follower, known in ():",
    ),
    scenarios=("stream-that-its-sender-makes-again",),
)

plant(
    "deleted objects stay",
    "a replica goes on to show what was deleted",
    Edit("serving.schema_copy:SchemaCopy._refresh", "deleted=changes.deleted,", ""),
    scenarios=("metadata-leader-that-changes",),
)

plant(
    "refusal taken for the outcome of what is in doubt",
    "a batch that may be in a log passes for not logged once a node refuses to take it again",
    Edit(
        "client.producing.accumulator:PartitionAccumulator.refused",
        "            if not isinstance(error, NOT_LOGGED):\n"
        "                batch.doubtful = True\n",
        "            batch.doubtful = not isinstance(error, NOT_LOGGED)\n",
    ),
    scenarios=("region-that-has-no-room-for-what-it-has",),
)
