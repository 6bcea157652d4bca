"""Bugs in what leaders say of records and of the schema, and in what they let be changed."""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

_ASKED: Final = "readers-at-a-new-leader"
_CHANGED: Final = "schema-changed-by-several"
_MEANT: Final = "records-that-nobody-means-to-lose"

plant(
    "the end is another history",
    "who has read all that there is is told that the log has lost it, and begins anew",
    Edit(
        "serving.visible:VisibleStreams.check_after",
        "if offset > following:",
        "if offset >= following:",
    ),
    scenarios=(_ASKED,),
)

plant(
    "ballot of an earlier start",
    "a batch that is read from the disk names another incarnation than the one that it is of: who "
    "goes on behind it is told that the log has lost it",
    Edit(
        "state.streams.partitions:read_batches",
        "StampedBatch(base_offset, count, append_ms, epoch, incarnation, data)",
        "StampedBatch(base_offset, count, append_ms, epoch, incarnation - 1, data)",
    ),
    scenarios=(_ASKED,),
)

plant(
    "cursor names the record behind it",
    "where somebody means to go on, the ballot of the record there is told, not of the one before: "
    "nobody finds out that the log has lost what was read",
    Edit(
        "serving.visible:VisibleStreams.ballot_before",
        "lambda db: ballot_at(db, stream_id, offset - 1)",
        "lambda db: ballot_at(db, stream_id, offset)",
    ),
    scenarios=(_ASKED,),
)

plant(
    "latest of a key, unless it is the first record",
    "a key whose latest record is the first one that is kept has none: its writer begins anew, and "
    "is refused for ever",
    Edit(
        "server.streams:_answer_latest",
        "offset < leading.visible.bounds(stream_id).first_offset",
        "offset <= leading.visible.bounds(stream_id).first_offset",
    ),
    scenarios=(_ASKED,),
)

plant(
    "lists lack what is new",
    "who asks for all objects is given those that there were when somebody asked first",
    Edit("serving.catalog:Catalog._put", "self._ids = None", "pass"),
    scenarios=(_CHANGED,),
)

plant(
    "changed object stays as it was by its id",
    "what a stream was changed to holds for who knows it by its name",
    Edit(
        "serving.catalog:Catalog._put",
        "            self._by_id[item.id] = item\n",
        "            self._by_id.setdefault(item.id, item)\n",
    ),
    scenarios=(_CHANGED,),
)

plant(
    "judged before its turn",
    "a change is judged against the schema as it was when it was asked for, and logged on the one "
    "that others have made since: a pipeline on a stream that is deleted by then",
    Edit(
        "metadata.driver:SchemaDriver._confirmed",
        "        async with nullcontext() if is_dry else self._one_at_a_time:\n"
        "            while True:\n"
        "                stands, refusal = Standing.of(self._catalog, since), None\n",
        "        stood = Standing.of(self._catalog, since)\n"
        "        async with nullcontext() if is_dry else self._one_at_a_time:\n"
        "            while True:\n"
        "                index = self._catalog.metadata_index\n"
        "                gone = stood.gone_since, stood.forgotten_index\n"
        "                stands = Standing(stood.objects, index, *gone)\n"
        "                refusal = None\n",
    ),
    scenarios=(_CHANGED,),
)

plant(
    "nobody needs to insist on less",
    "a shorter retention drops records whether anybody has insisted on that or not",
    Edit(
        "metadata.driver:SchemaDriver._plan",
        "allow_destructive=counted is None",
        "allow_destructive=True",
    ),
    scenarios=(_MEANT,),
)

plant(
    "deleted for its namesake",
    "who asks for the deletion of a stream that is gone has the one deleted that has its name now",
    Edit("metadata.deletion:meant", "(is_older and not wanted)", "is_older"),
    scenarios=(_MEANT,),
)

plant(
    "lower limits wait for the next record",
    "a stream keeps all that it had when its limits were lowered, until somebody writes to it",
    Edit(
        "serving.retention:RetentionDriver._note_limits",
        "if self._limits_seen.get(stream_id) != limits:",
        "if stream_id not in self._limits_seen:",
    ),
    scenarios=("limits-lowered-while-nobody-writes",),
)

plant(
    "forgotten is called aborted",
    "who asks late what became of a transaction is told that nothing of it was done",
    Edit(
        "transactions.driver:_find",
        "State.FORGOTTEN if decisions.is_forgotten(db, transaction) else State.ABORTED",
        "State.ABORTED",
    ),
    scenarios=("outcomes-that-are-forgotten",),
)
