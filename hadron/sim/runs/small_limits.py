"""Small limits of what is done in one go, or kept in memory: what goes over them in the product
takes megabytes, thousands of records, or hours, and the code that goes on from there would never
run (FoundationDB draws its knobs for the same reason).

None of them is part of a promise: whatever they are, the rules hold.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Final


@dataclass(frozen=True)
class Limit:
    """
    Attributes:
        holders: `module:CONSTANT`, all that have it (the model too, where it says what an entry
            does); `module:function()`, whose last default it is; or `module:CONSTANT.field`, of one
            that all share.
        values: small ones, of which a world has one.
    """

    holders: tuple[str, ...]
    values: tuple[int, ...]


LIMITS: Final = {
    # The log, and who follows it.
    "applied at once": Limit(("replication.follower:_APPLIED_AT_ONCE",), (1, 7)),
    "commands of a commit": Limit(
        ("partition.lines:GROUP_COMMIT_COMMANDS", "replication.appends:GROUP_COMMIT_COMMANDS"),
        (1, 2, 5),
    ),
    "rows of groups in a commit": Limit(("partition.lines:RATION_ROWS",), (1, 4)),
    "bytes of a chunk of the log": Limit(("replication.feed:_CHUNK_BYTES",), (1, 500)),
    "bytes not committed": Limit(("partition.controller:MAX_UNCOMMITTED_BYTES",), (2_000,)),
    "rows trimmed at once": Limit(("replication.trimming:_SLICE_ROWS",), (1, 7)),
    "bytes of a piece of a copy": Limit(
        (
            "storage.snapshot:CHUNK_BYTES",
            "replication.snapshots:CHUNK_BYTES",
            "replication.fetching:CHUNK_BYTES",
            "node.restore:CHUNK_BYTES",
        ),
        (4_096, 20_000),
    ),
    "pages copied at once": Limit(("storage.snapshot:_SLICE_PAGES",), (1, 5)),
    "rows of a copy at once": Limit(("storage.snapshot:_ROWS_AT_A_TIME",), (1, 3)),
    # What is visible.
    "bytes of recent batches": Limit(("serving.visible:_RECENT_BYTES",), (1, 1_000)),
    "batches dropped at once": Limit(
        (
            "state.slices:SLICE_BATCHES",
            "state.bodies:SLICE_BATCHES",
            "state.sinks.staging:SLICE_BATCHES",
            "sim.model.streams:SLICE_BATCHES",
            "sim.model.staging:SLICE_BATCHES",
        ),
        (1, 3, 10),
    ),
    "rows dropped at once": Limit(
        ("state.dropping:SLICE_ROWS", "sim.model.machine:SLICE_ROWS"), (3, 20)
    ),
    "rows digested at once": Limit(("state.digests:SLICE_ROWS",), (1, 5)),
    # Groups.
    "bytes read for a group": Limit(("delivery.shelf:_READ_BYTES",), (1, 300)),
    "deliveries of a turn": Limit(("delivery.driver:_DELIVERIES_PER_TURN",), (1,)),
    "unsettled pieces of a group": Limit(("delivery.machine:MAX_UNSETTLED",), (1, 4, 12)),
    "records in flight of a group": Limit(("delivery.machine:MAX_GROUP_IN_FLIGHT",), (1, 9)),
    "records parked at once": Limit(("delivery.keys:_PARKED_PER_STEP",), (1, 3)),
    "bytes of the shelf": Limit(("delivery.shelf:_KEPT_BYTES",), (1, 500)),
    "ranges of a group's window": Limit(("state.groups.progress:window()",), (1, 3)),
    "ranges of an entry": Limit(("delivery.ledger:_RANGES_PER_ENTRY",), (1, 3)),
    "rows of a dead group at once": Limit(
        ("state.groups.changes:SLICE_ROWS", "sim.model.groups:SLICE_ROWS"), (1, 4)
    ),
    "bytes of a batch of dead letters": Limit(("delivery.letters:_TARGET_BYTES",), (1, 400)),
    # Pipelines.
    "triggers of an entry": Limit(("pipelines.admission:_MOST_PER_ENTRY",), (1, 3)),
    "instances retried at once": Limit(
        ("pipelines.driver:MAX_RETRIES", "client.pipelines.calls:_SLICE"), (2,)
    ),
    "bytes read for a pipeline": Limit(
        (
            "pipelines.sources:READ_BYTES",
            "pipelines.backfilling:READ_BYTES",
            "pipelines.keys:READ_BYTES",
            "node.pipelines.other_leaders:READ_BYTES",
        ),
        (1, 300),
    ),
    "bytes of invocations": Limit(("pipelines.dispatcher:_INVOCATIONS_BYTES",), (1, 600)),
    # The schema.
    "bytes of the schema in an entry": Limit(
        ("metadata.push:split()", "metadata.watching:_PART_BYTES"), (150, 400)
    ),
    "tombstones": Limit(("state.schema:MAX_TOMBSTONES", "serving.catalog:MAX_TOMBSTONES"), (3,)),
    "objects of a page": Limit(("client.schema.catalog:_PAGE_OBJECTS",), (1, 2)),
    # Clients.
    "bytes of a batch that is taken": Limit(("server.streams:MAX_BATCH_BYTES",), (650, 3_000)),
    "acks in doubt": Limit(("client.consuming.channel:_RECORDS_PER_CONFIRMATION",), (1, 5)),
    "ranges of a message": Limit(("client.consuming.channel:_RANGES_PER_MESSAGE",), (1, 3)),
    "acknowledgements of a message": Limit(("client.consuming.consumer:ACKS_PER_MESSAGE",), (1, 7)),
    # Connections.
    "bytes of a call's window": Limit(
        (
            "wire.framed_calls:WINDOW_BYTES",
            "wire.framed_calls:_CREDIT_STEP",
            "wire.local_calls:WINDOW_BYTES",
        ),
        (1, 2_000),
    ),
    "frames of a turn": Limit(("wire.connection:_FRAMES_PER_TURN",), (1, 2)),
    # Last, so that a seed's other limits are what they were.
    "seconds between marks": Limit(("storage.store:_MARK_EVERY_S",), (0, 1)),
    # Transactions.
    "statements at the driver's own set": Limit(
        ("transactions.limits:LIMITS.home_statements",), (1, 2)
    ),
    "statements of an entry of intents": Limit(
        ("transactions.limits:CHUNK_STATEMENTS", "transactions.held:CHUNK_STATEMENTS"), (1, 2)
    ),
    "participants that are noted at once": Limit(
        ("transactions.limits:MAX_NOTES", "transactions.notes:MAX_NOTES"), (1, 3)
    ),
    "ranges given back in a row": Limit(("delivery.members:FREE_IN_A_ROW",), (1, 4)),
    "transactions of a question": Limit(
        (
            "transactions.limits:MAX_ASKED",
            "transactions.driver:MAX_ASKED",
            "transactions.machine:MAX_ASKED",
            "transactions.participant:MAX_ASKED",
        ),
        (1, 3),
    ),
    "decisions read at once": Limit(("transactions.driver:_PAGE",), (1, 3)),
    "records of all groups in order by key": Limit(("delivery.keys:MAX_ORDERED",), (1, 6)),
    "of one group in any case": Limit(("delivery.keys:LEAST_ORDERED",), (1, 3)),
    "commands read at once": Limit(("replication.follower:_READ_AT_ONCE",), (1, 3)),
}

ROOM_LIMITS: Final = {
    "bytes that wait for a subscriber": Limit(
        ("exchanges.machine:SESSION_BYTES",), (2_000, 20_000)
    ),
    "bytes that wait at an exchange": Limit(("exchanges.machine:EXCHANGE_BYTES",), (5_000,)),
    "topics that are remembered": Limit(("exchanges.routes:MAX_TOPICS",), (1, 2)),
    "bytes of a message to a subscriber": Limit(("exchanges.parcels:parts_of()",), (1, 60)),
    "runs of a bridge's turn": Limit(("exchanges.bridge:_TURN_RUNS",), (1, 3)),
    "bytes of a bridge's turn": Limit(("exchanges.bridge:_TURN_BYTES",), (1, 300)),
}
"""Of worlds of one room, whichever these choose."""

_KNOWN: Final = {**LIMITS, **ROOM_LIMITS}

_USUAL: Final = 0.4
"""Of all worlds have what the product has."""

_SHARE: Final = (0.05, 0.15, 0.4)
"""Of the limits are small in the others."""


def drawn(seed: int) -> Mapping[str, int]:
    """Those of a seed's world that are small."""
    rng = random.Random(f"limits/{seed}")
    share = 0.0 if rng.random() < _USUAL else rng.choice(_SHARE)
    return {
        name: rng.choice(limit.values) for name, limit in LIMITS.items() if rng.random() < share
    }


@contextmanager
def limited(small: Mapping[str, int]) -> Iterator[None]:
    """All nodes and clients have these limits, for the length of the block."""
    # A module that is imported within the block would keep small ones that it imports by name.
    for holder in (each for name in small for each in _KNOWN[name].holders):
        importlib.import_module(f"hadron.{holder.partition(':')[0]}")
    before = [
        (holder, _exchange(holder, value))
        for name, value in small.items()
        for holder in _KNOWN[name].holders
    ]
    try:
        yield
    finally:
        for holder, value in reversed(before):
            _exchange(holder, value)


def _exchange(holder: str, value: float) -> float:
    """Returns what was there."""
    module_name, name = holder.split(":")
    module = importlib.import_module(f"hadron.{module_name}")
    if name.endswith("()"):
        function = vars(module)[name.removesuffix("()")]
        assert isinstance(function, FunctionType)
        assert function.__defaults__, holder
        *others, last = function.__defaults__
        function.__defaults__ = (*others, value)
        assert isinstance(last, int), holder
        return last
    constant, _, field = name.partition(".")
    if field:
        # It is frozen, and the default of many a function.
        shared = vars(module)[constant]
        found = getattr(shared, field)
        object.__setattr__(shared, field, value)
    else:
        found = vars(module)[constant]
        setattr(module, constant, value)
    assert isinstance(found, int | float), holder
    return found
