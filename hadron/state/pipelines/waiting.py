"""Who waits for a record: what leaders ask of the waits (`waits`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from hadron.model.ports import Database
from hadron.state.pipelines.tables import INSTANCE, STAGE_WAIT, WaitStatus
from hadron.state.schema import SCHEMA_OBJECT


class Waiting(NamedTuple):
    """Of an instance; its trigger says what came before it, its version what its stages are."""

    instance_id: int
    version: int
    stage: str
    key_hash: int
    root: tuple[int, str, int]


def waiting_for(
    db: Database, pipeline_id: int, stream_id: int, hashes: Sequence[int]
) -> Iterator[Waiting]:
    """Who waits for records with keys of these hashes (signed), in the order of these."""
    rows: Any = db.execute(
        "SELECT w.instance_id, i.version, w.stage, w.key_hash, i.stream_id, i.partition, i.offset"
        f" FROM json_each(?) j CROSS JOIN {STAGE_WAIT} w INDEXED BY {STAGE_WAIT}_key"
        " ON w.pipeline_id = ? AND w.stream_id = ? AND w.key_hash = j.value"
        f" AND w.status = {WaitStatus.ARMED}"
        f" CROSS JOIN {INSTANCE} i USING (pipeline_id, instance_id)",
        (json.dumps(list(hashes)), pipeline_id, stream_id),
    )
    for number, version, stage, key, *root in rows:
        yield Waiting(number, version, stage, key, tuple(root))


def next_due_ms(db: Database, pipeline_id: int) -> int | None:
    """When something has waited for too long, 0 where it waits for records of a stream that was
    deleted; None where nothing is due ever."""
    if deleted_streams(db, pipeline_id):
        return 0
    row = db.execute(
        f"SELECT due_ms FROM {STAGE_WAIT} WHERE pipeline_id = ? AND status = {WaitStatus.ARMED}"
        " AND due_ms IS NOT NULL ORDER BY due_ms LIMIT 1",
        (pipeline_id,),
    ).fetchone()
    return None if row is None else row[0]


_NEXT: Final = (
    f"SELECT w.stream_id FROM {STAGE_WAIT} w INDEXED BY {STAGE_WAIT}_key WHERE w.pipeline_id = ?"
    f" AND w.status = {WaitStatus.ARMED} AND w.key_hash IS NOT NULL AND w.stream_id > awaited.id"
    " ORDER BY w.stream_id LIMIT 1"
)


def awaited_streams(db: Database, pipeline_id: int) -> list[int]:
    """Whose records instances wait for. Costs a look into the index for each, however many wait."""
    rows: list[Any] = db.execute(
        f"WITH RECURSIVE awaited(id) AS (VALUES(-1) UNION ALL SELECT ({_NEXT}) FROM awaited"
        " WHERE awaited.id IS NOT NULL) SELECT id FROM awaited WHERE id >= 0",
        (pipeline_id,),
    ).fetchall()
    return [each for (each,) in rows]


def deleted_streams(db: Database, pipeline_id: int) -> list[int]:
    """Those of them that are no more."""
    found = awaited_streams(db, pipeline_id)
    known = db.execute(
        f"SELECT id FROM {SCHEMA_OBJECT} WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(found),),
    ).fetchall()
    return sorted({*found} - {each for (each,) in known})
