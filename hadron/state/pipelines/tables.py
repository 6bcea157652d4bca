"""The tables of pipelines, which several modules of this room write: here are their shapes.

Named with each is the module that makes its rows; others change them, and all read them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from hadron.model.ports import Database
from hadron.model.tables import PREFIX

PIPELINE: Final = PREFIX + "pipeline"
DEFINITION: Final = PREFIX + "definition"
PIPELINE_INPUT: Final = PREFIX + "pipeline_input"
PIPELINE_START: Final = PREFIX + "pipeline_start"
INSTANCE: Final = PREFIX + "instance"
STAGE_RUN: Final = PREFIX + "stage_run"
STAGE_PUBLISHING: Final = PREFIX + "stage_publishing"
STAGE_RETRY: Final = PREFIX + "stage_retry"
STAGE_ATTEMPT: Final = PREFIX + "stage_attempt"
STAGE_WAIT: Final = PREFIX + "stage_wait"
PIPELINE_WAIT: Final = PREFIX + "pipeline_wait"
PIPELINE_WAIT_START: Final = PREFIX + "pipeline_wait_start"
STAGE_COUNT: Final = PREFIX + "stage_count"
INSTANCE_LETTER: Final = PREFIX + "instance_letter"
LOOKED_AT: Final = PREFIX + "looked_at"
BACKFILL: Final = PREFIX + "backfill"
START_REQUEST: Final = PREFIX + "start_request"

TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {PIPELINE}(          -- of `instances`
    pipeline_id INTEGER PRIMARY KEY,
    stream_id INTEGER NOT NULL,         -- the input
    version INTEGER NOT NULL,           -- of the definition that new instances begin with
    next_instance INTEGER NOT NULL,
    live INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {DEFINITION}(        -- of `definitions`
    pipeline_id INTEGER NOT NULL,
    version INTEGER NOT NULL,           -- from 1: another one for another graph
    spec TEXT NOT NULL,                 -- JSON, as last declared with that graph
    instances INTEGER NOT NULL,         -- that may go on with it: live or failed
    PRIMARY KEY (pipeline_id, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {PIPELINE_INPUT}(    -- of `inputs`
    pipeline_id INTEGER NOT NULL,
    partition TEXT NOT NULL,
    stream_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,      -- where the triggers have begun
    next_offset INTEGER NOT NULL,       -- everything between has been looked at
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,   -- of the batch before it, or 0
    truncations INTEGER NOT NULL,       -- how often the partition had lost what was looked at
    PRIMARY KEY (pipeline_id, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {PIPELINE_START}(    -- of `inputs`, beside the pipeline's home
    pipeline_id INTEGER PRIMARY KEY,
    home TEXT NOT NULL,                 -- the pipeline's replica set
    stream_id INTEGER NOT NULL,
    next_offset INTEGER NOT NULL        -- where it starts in the partition here
) STRICT;
CREATE TABLE IF NOT EXISTS {INSTANCE}(          -- of `instances`
    pipeline_id INTEGER NOT NULL,
    instance_id INTEGER NOT NULL,
    version INTEGER NOT NULL,           -- of its definition
    status INTEGER NOT NULL,            -- InstanceStatus
    stream_id INTEGER NOT NULL, partition TEXT NOT NULL, offset INTEGER NOT NULL,   -- the trigger
    created_ms INTEGER NOT NULL,
    ended_ms INTEGER,                   -- NULL while it is live; later where it was kept once more
    PRIMARY KEY (pipeline_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {INSTANCE}_ended ON {INSTANCE}(pipeline_id, ended_ms, instance_id)
    WHERE ended_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS {INSTANCE}_failed ON {INSTANCE}(pipeline_id, instance_id)
    WHERE status = 3;
CREATE TABLE IF NOT EXISTS {STAGE_RUN}(         -- of `stage_runs`
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    instance_id INTEGER NOT NULL,
    version INTEGER NOT NULL,           -- of the instance's definition
    status INTEGER NOT NULL,            -- StageStatus
    ready_ms INTEGER NOT NULL,          -- not before
    attempts INTEGER NOT NULL,          -- that are over, ever: numbers are not used again
    out_stream_id INTEGER, out_partition TEXT, out_offset INTEGER,
    reason TEXT,
    PRIMARY KEY (pipeline_id, stage, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {STAGE_RUN}_ready ON {STAGE_RUN}(
    pipeline_id, version, stage, ready_ms, instance_id
) WHERE status = 1;
CREATE TABLE IF NOT EXISTS {STAGE_PUBLISHING}(  -- of `publishing`
    lsn INTEGER NOT NULL,               -- of the transaction's Decide
    position INTEGER NOT NULL,
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    stream_id INTEGER NOT NULL,
    partition TEXT NOT NULL,            -- the participant's
    ids TEXT NOT NULL,                  -- of the instances, JSON, in the order of their outputs
    PRIMARY KEY (lsn, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {STAGE_RETRY}(       -- of `retries`
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    instance_id INTEGER NOT NULL,
    attempts_before INTEGER NOT NULL,   -- attempts that count no more
    PRIMARY KEY (pipeline_id, stage, instance_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {STAGE_ATTEMPT}(     -- of `stories`
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    instance_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,           -- its number, from 1
    ended_ms INTEGER NOT NULL,
    took_ms INTEGER NOT NULL,           -- -1 where nobody knows
    runner TEXT NOT NULL, code_version TEXT NOT NULL,   -- as the runner says
    reason TEXT,                        -- why it failed
    PRIMARY KEY (pipeline_id, stage, instance_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {STAGE_ATTEMPT}_ended ON {STAGE_ATTEMPT}(
    pipeline_id, stage, ended_ms, took_ms
);
CREATE TABLE IF NOT EXISTS {STAGE_WAIT}(        -- of `waits`
    pipeline_id INTEGER NOT NULL,
    instance_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    status INTEGER NOT NULL,            -- WaitStatus
    stream_id INTEGER,                  -- whose records it waits for; NULL: a signal
    key_hash INTEGER,                   -- xxh3-64 of the trigger's key, signed; NULL without one
    due_ms INTEGER,                     -- once it is the stage's turn: until then; NULL: for ever
    out_stream_id INTEGER, out_partition TEXT, out_offset INTEGER,  -- of what has come
    PRIMARY KEY (pipeline_id, instance_id, stage)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {STAGE_WAIT}_key ON {STAGE_WAIT}(pipeline_id, stream_id, key_hash)
    WHERE status = 1 AND key_hash IS NOT NULL;
CREATE INDEX IF NOT EXISTS {STAGE_WAIT}_due ON {STAGE_WAIT}(pipeline_id, due_ms)
    WHERE status = 1 AND due_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS {PIPELINE_WAIT}(     -- of `wait_inputs`
    pipeline_id INTEGER NOT NULL,
    stream_id INTEGER NOT NULL,         -- that stages wait for records of
    partition TEXT NOT NULL,
    next_offset INTEGER NOT NULL,       -- everything before has been looked at
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,   -- of the batch before it, or 0
    truncations INTEGER NOT NULL,       -- how often the partition had lost what was looked at
    PRIMARY KEY (pipeline_id, stream_id, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {PIPELINE_WAIT_START}(   -- of `wait_inputs`, beside the pipeline's home
    pipeline_id INTEGER NOT NULL,
    stream_id INTEGER NOT NULL,
    home TEXT NOT NULL,                 -- the pipeline's replica set; '' once it awaits it no more
    next_offset INTEGER NOT NULL,       -- where it begins in the partition here
    PRIMARY KEY (pipeline_id, stream_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {STAGE_COUNT}(       -- of `stage_runs`
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    ready INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL,
    PRIMARY KEY (pipeline_id, stage)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {INSTANCE_LETTER}(   -- of `letters`
    pipeline_id INTEGER NOT NULL,
    instance_id INTEGER NOT NULL,
    stage TEXT NOT NULL,                -- that was given up
    PRIMARY KEY (pipeline_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {LOOKED_AT}(         -- of `backfills`: by them
    pipeline_id INTEGER NOT NULL,
    partition TEXT NOT NULL,
    first INTEGER NOT NULL,             -- offsets, both ends inclusive; ranges neither overlap
    last INTEGER NOT NULL,              -- nor touch
    PRIMARY KEY (pipeline_id, partition, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {BACKFILL}(          -- of `backfills`
    pipeline_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    partition TEXT NOT NULL,
    from_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,       -- so far it is
    to_offset INTEGER NOT NULL,
    per_s INTEGER NOT NULL,             -- instances, at most; 0: as many as there is room for
    again INTEGER NOT NULL,             -- 1: also of what was looked at
    status INTEGER NOT NULL,            -- BackfillStatus
    created INTEGER NOT NULL,           -- instances
    request BLOB NOT NULL,              -- of whoever has started it: random
    PRIMARY KEY (pipeline_id, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {START_REQUEST}(     -- of `cancellations`
    pipeline_id INTEGER NOT NULL,
    request BLOB NOT NULL,              -- of whoever has started instances by hand: random
    first_id INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (pipeline_id, request)
) STRICT, WITHOUT ROWID;
"""


class InstanceStatus(IntEnum):
    LIVE = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


class StageStatus(IntEnum):
    """Of one stage of an instance. While it waits for the first time, it has no row."""

    WAITING = 0
    """Once more: it was run before."""
    READY = 1
    DONE = 2
    FAILED = 3
    PUBLISHING = 4
    """Its output is decided, and not yet in its partition, which another set has."""
    SKIPPED = 5
    TIMED_OUT = 6
    """It has waited for too long for its record or signal."""


class WaitStatus(IntEnum):
    OVER = 0
    ARMED = 1
    CAME = 2


class BackfillStatus(IntEnum):
    RUNNING = 1
    PAUSED = 2
    DONE = 3
    CANCELLED = 4


def is_here(db: Database, pipeline_id: int) -> bool:
    """Whether a pipeline runs on this replica set, and was not deleted."""
    row = db.execute(f"SELECT 1 FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,)).fetchone()
    return row is not None
