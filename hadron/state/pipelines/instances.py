"""Instances of pipelines: made of triggers, live until their stages are done or one is given up.

Safety rule: an instance ends once, and only what is live ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hadron.model.errors import NotFoundError
from hadron.model.pipelines import branches_of
from hadron.model.ports import Database
from hadron.state.machine import Context
from hadron.state.names import label_of
from hadron.state.pipelines import definitions, stage_runs, waits
from hadron.state.pipelines.tables import INSTANCE, PIPELINE, InstanceStatus


def make(
    context: Context,
    pipeline_id: int,
    stream_id: int,
    partition: str,
    offsets: Sequence[int],
    key_hashes: bytes,
) -> int:
    """One of each record, with the hashes of their keys, where something is awaited by them; their
    first stages are ready. Returns the first one's id. Raises `NotFoundError` without the pipeline.
    """
    db, count = context.db, len(offsets)
    row = db.execute(
        f"UPDATE {PIPELINE} SET next_instance = next_instance + ?, live = live + ?"
        " WHERE pipeline_id = ? RETURNING next_instance, version",
        (count, count, pipeline_id),
    ).fetchone()
    if row is None:
        raise NotFoundError(f"{label_of(db, pipeline_id)} does not live here")
    following, version = row
    ids = range(following - count, following)
    db.executemany(
        f"INSERT INTO {INSTANCE} VALUES(?, ?, ?, 1, ?, ?, ?, ?, NULL)",
        [
            (pipeline_id, instance_id, version, stream_id, partition, offset, context.now_ms)
            for instance_id, offset in zip(ids, offsets, strict=True)
        ],
    )
    definitions.hold(db, pipeline_id, {version: count})
    on_failure = definitions.on_failure(db, pipeline_id)[version]
    stages = definitions.all_stages(db, pipeline_id)[version]
    waits.arm(context, pipeline_id, stages, ids, key_hashes)
    others = {on_failure, *branches_of(stages)}
    for stage in stages:
        if not stage.dependencies and not stage.after and stage.name not in others:
            stage_runs.make_ready(context, pipeline_id, version, stage, ids)
    return ids[0]


def not_cancelled(db: Database, pipeline_id: int, ids: Sequence[int]) -> list[int]:
    """Those of `ids` that may still go on, in their order."""
    rows: list[Any] = db.execute(
        f"SELECT j.value FROM json_each(?) j CROSS JOIN {INSTANCE} i ON i.pipeline_id = ?"
        f" AND i.instance_id = j.value WHERE i.status <> {InstanceStatus.CANCELLED} ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id),
    ).fetchall()
    return [each for (each,) in rows]


def end(context: Context, pipeline_id: int, ids: Sequence[int], status: int) -> list[int]:
    """Live instances become done or failed; one that has ended before keeps how it ended. Returns
    which have ended now, sorted."""
    if not ids:
        return []
    db = context.db
    rows: list[Any] = db.execute(
        f"UPDATE {INSTANCE} SET status = ?, ended_ms = ? WHERE pipeline_id = ?"
        f" AND status = {InstanceStatus.LIVE}"
        " AND instance_id IN (SELECT value FROM json_each(?)) RETURNING version, instance_id",
        (status, context.now_ms, pipeline_id, json.dumps(list(ids))),
    ).fetchall()
    ended = Counter(version for version, _ in rows)
    column = "done" if status == InstanceStatus.DONE else "failed"
    db.execute(
        f"UPDATE {PIPELINE} SET live = live - ?1, {column} = {column} + ?1 WHERE pipeline_id = ?2",
        (ended.total(), pipeline_id),
    )
    if status == InstanceStatus.DONE:
        definitions.hold(db, pipeline_id, {each: -count for each, count in ended.items()})
    return sorted(instance_id for _, instance_id in rows)
