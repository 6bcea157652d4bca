"""The tables of streams that several modules of this room read: here are their shapes.

`partitions` makes their rows, `retention` drops them. Apart from both, because `keys` and
`producers`, which partitions are made with, read where a partition begins and which batches it has.
"""

from __future__ import annotations

from typing import Final

from hadron.model.tables import PREFIX

STREAM_PARTITION: Final = PREFIX + "stream_partition"
STREAM_BATCH: Final = PREFIX + "stream_batch"
_BY_BODY: Final = PREFIX + "stream_batch_by_body"

TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {STREAM_PARTITION}(
    stream_id INTEGER PRIMARY KEY,
    first_offset INTEGER NOT NULL,      -- lowest that retention has kept
    next_offset INTEGER NOT NULL,
    bytes INTEGER NOT NULL              -- of all kept batches
) STRICT;
CREATE TABLE IF NOT EXISTS {STREAM_BATCH}(
    stream_id INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lsn INTEGER NOT NULL,               -- of the entry that has appended it
    append_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    body_lsn INTEGER,                   -- NULL: all of body(lsn). Else this counted body has them,
    start INTEGER,                      -- from here on
    PRIMARY KEY (stream_id, base_offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {_BY_BODY} ON {STREAM_BATCH}(body_lsn) WHERE body_lsn IS NOT NULL;
"""
