"""What pipelines are declared to be, and were when their instances began.

An instance keeps the graph that it began with: which stages there are, what each waits for, where
outputs go. How a stage runs is what is declared now, where the stage is still at that place: a
mistake in the code is mended for those that are under way, too (PIPELINES P6). Safety rule: a
definition stays as long as an instance may go on with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hadron.model.errors import NotFoundError
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec, as_declared, graph_of
from hadron.model.ports import Database
from hadron.state.names import label_of
from hadron.state.pipelines import wait_inputs
from hadron.state.pipelines.tables import DEFINITION, INSTANCE, PIPELINE
from hadron.state.schema import SCHEMA_OBJECT

Stages = dict[int, tuple[StageSpec, ...]]
"""By the version of the definition."""


@lru_cache(maxsize=256)
def _parsed(spec: str) -> PipelineSpec:
    found = spec_from_json("Pipeline", spec)
    assert isinstance(found, PipelineSpec)
    return found


def spec_of(db: Database, pipeline_id: int) -> PipelineSpec:
    """As it is declared. Raises `NotFoundError`."""
    row = db.execute(f"SELECT spec FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"{label_of(db, pipeline_id)} does not exist")
    return _parsed(row[0])


def adopt(db: Database, pipeline_id: int) -> None:
    """What begins from now on begins with what is declared."""
    text: str
    ((text,),) = db.execute(
        f"SELECT spec FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)
    ).fetchall()
    row = db.execute(
        f"SELECT version, spec FROM {DEFINITION} WHERE pipeline_id = ?"
        " ORDER BY version DESC LIMIT 1",
        (pipeline_id,),
    ).fetchone()
    if row is not None and graph_of(_parsed(row[1])) == graph_of(_parsed(text)):
        db.execute(
            f"UPDATE {DEFINITION} SET spec = ? WHERE pipeline_id = ? AND version = ?",
            (text, pipeline_id, row[0]),
        )
        return
    version = 1 if row is None else row[0] + 1
    db.execute(f"INSERT INTO {DEFINITION} VALUES(?, ?, ?, 0)", (pipeline_id, version, text))
    db.execute(f"UPDATE {PIPELINE} SET version = ? WHERE pipeline_id = ?", (version, pipeline_id))
    hold(db, pipeline_id, {})


def hold(db: Database, pipeline_id: int, counts: Mapping[int, int]) -> None:
    """By version: so many instances more, or fewer, may go on with it. One that none needs goes,
    unless it is the present one."""
    for version, count in counts.items():
        db.execute(
            f"UPDATE {DEFINITION} SET instances = instances + ? WHERE pipeline_id = ?"
            " AND version = ?",
            (count, pipeline_id, version),
        )
    db.execute(
        f"DELETE FROM {DEFINITION} WHERE pipeline_id = ?1 AND instances = 0 AND version <"
        f" (SELECT max(version) FROM {DEFINITION} WHERE pipeline_id = ?1)",
        (pipeline_id,),
    )
    if db.changes():
        wait_inputs.forget(db, pipeline_id)


def all_stages(db: Database, pipeline_id: int) -> Stages:
    """By version, the oldest first, the stages as they run now. Raises `NotFoundError` for a
    pipeline that is deleted."""
    now = spec_of(db, pipeline_id)
    return {
        version: as_declared(_parsed(spec), now)
        for version, spec in db.execute(
            f"SELECT version, spec FROM {DEFINITION} WHERE pipeline_id = ? ORDER BY version",
            (pipeline_id,),
        )
    }


def present(db: Database, pipeline_id: int) -> tuple[StageSpec, ...]:
    """The stages of what begins now; none of a pipeline that is not here."""
    row = db.execute(
        f"SELECT spec FROM {DEFINITION} WHERE pipeline_id = ? ORDER BY version DESC LIMIT 1",
        (pipeline_id,),
    ).fetchone()
    return () if row is None else _parsed(row[0]).stages


def on_failure(db: Database, pipeline_id: int) -> dict[int, str]:
    """By version, the stage that runs for what is given up; "" without one."""
    return {
        version: _parsed(spec).on_failure
        for version, spec in db.execute(
            f"SELECT version, spec FROM {DEFINITION} WHERE pipeline_id = ?", (pipeline_id,)
        )
    }


def by_version(db: Database, pipeline_id: int, ids: Sequence[int]) -> dict[int, list[int]]:
    """These instances by the version of their definition, in their order."""
    versions = db.execute(
        f"SELECT version FROM {DEFINITION} WHERE pipeline_id = ? ORDER BY version", (pipeline_id,)
    ).fetchall()
    if len(versions) == 1:
        return {versions[0][0]: list(ids)}
    found: dict[int, list[int]] = {}
    for version, instance_id in db.execute(
        f"SELECT i.version, i.instance_id FROM json_each(?) j CROSS JOIN {INSTANCE} i"
        " ON i.pipeline_id = ? AND i.instance_id = j.value ORDER BY i.version, j.key",
        (json.dumps(list(ids)), pipeline_id),
    ):
        found.setdefault(version, []).append(instance_id)
    return found
