"""What an instance's attempts were: when each ended, how long it took, who ran it, why it failed.

For people: nothing else goes by it. It is written by the command that ends an attempt, and the
latest few of each stage are kept, so it costs a row where an attempt ends, and no entry of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from hadron.model.pipelines import StageSpec
from hadron.model.ports import Database
from hadron.state.machine import Context
from hadron.state.pipelines.tables import INSTANCE, STAGE_ATTEMPT, STAGE_RUN, StageStatus

KEPT: Final = 5
"""Attempts of each stage of an instance: what a stage has unless it declares more."""

_REASON_CHARACTERS: Final = 200
"""Of an attempt's; the latest is with the stage, as a whole."""

_LATEST: Final = 2_000
"""Attempts of a stage that its durations are told from: read in some milliseconds."""

_ENDED: Final = (
    f"SELECT ended_ms, took_ms FROM {STAGE_ATTEMPT} WHERE pipeline_id = ? AND stage = ?"
    " ORDER BY ended_ms DESC LIMIT ?"
)

_MINUTE_MS: Final = 60_000


class Ending(Protocol):
    """A command that ends attempts, and what its runner has said of itself."""

    @property
    def pipeline_id(self) -> int: ...
    @property
    def stage(self) -> str: ...
    @property
    def runner(self) -> str: ...
    @property
    def code_version(self) -> str: ...
    @property
    def took_ms(self) -> tuple[int, ...]: ...


class Attempt(msgspec.Struct, frozen=True):
    number: int
    ended_ms: int
    took_ms: int
    runner: str
    code_version: str
    reason: str


class Pace(msgspec.Struct, frozen=True):
    """Of a stage's latest attempts.

    Attributes:
        per_s: that ended within the last minute; 0 without any.
        waiting: how many of those that could run wait for their time, a record or a signal.
        p50_ms, p95_ms: how long they took; -1 where nobody has said it.
    """

    per_s: float = 0.0
    p50_ms: int = -1
    p95_ms: int = -1
    waiting: int = 0


class Paces(msgspec.Struct, frozen=True):
    """Of a pipeline: of its stages by name, and how many instances a second were made."""

    stages: dict[str, Pace]
    triggered_per_s: float


def note(
    context: Context,
    command: Ending,
    ids: Sequence[int],
    attempts: Sequence[int],
    took_ms: Sequence[int],
    reason: str = "",
) -> None:
    """These attempts have ended."""
    db, pipeline_id, stage = context.db, command.pipeline_id, command.stage
    who = command.runner, command.code_version, reason[:_REASON_CHARACTERS] or None
    db.executemany(
        f"INSERT OR REPLACE INTO {STAGE_ATTEMPT} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (pipeline_id, stage, instance_id, attempt, context.now_ms, took, *who)
            for instance_id, attempt, took in zip(ids, attempts, took_ms, strict=True)
        ],
    )
    for instance_id, attempt in zip(ids, attempts, strict=True):
        if attempt > KEPT:
            db.execute(
                f"DELETE FROM {STAGE_ATTEMPT} WHERE pipeline_id = ? AND stage = ?"
                " AND instance_id = ? AND attempt <= ?",
                (pipeline_id, stage, instance_id, attempt - KEPT),
            )


def durations(command: Ending, count: int) -> list[int]:
    """One for each of so many attempts, in their order; -1 where nobody knows."""
    said = command.took_ms or (-1,)
    return [*said] if len(said) == count else [said[0]] * count


def of_stage(db: Database, pipeline_id: int, stage: str, instance_id: int) -> tuple[Attempt, ...]:
    """Oldest first."""
    return tuple(
        Attempt(number, ended_ms, took_ms, runner, code, reason or "")
        for number, ended_ms, took_ms, runner, code, reason in db.execute(
            "SELECT attempt, ended_ms, took_ms, runner, code_version, reason"
            f" FROM {STAGE_ATTEMPT} WHERE pipeline_id = ? AND stage = ? AND instance_id = ?"
            " ORDER BY attempt",
            (pipeline_id, stage, instance_id),
        ).fetchall()
    )


def paces(
    db: Database, pipeline_id: int, declared: Mapping[int, Sequence[StageSpec]], now_ms: int
) -> Paces:
    """Of the stages that instances have."""
    found = {}
    for name in {stage.name for stages in declared.values() for stage in stages}:
        waiting = 0
        for version, stages in declared.items():
            for stage in stages:
                if stage.name == name:
                    after_ms = -1 if stage.wait is not None else now_ms
                    waiting += _waiting(db, pipeline_id, version, name, after_ms)
        found[name] = _pace(db, pipeline_id, name, now_ms, waiting)
    return Paces(found, _triggered_per_s(db, pipeline_id, now_ms))


def _waiting(db: Database, pipeline_id: int, version: int, stage: str, after_ms: int) -> int:
    rows = db.execute(
        f"SELECT count(*) FROM {STAGE_RUN} WHERE pipeline_id = ? AND version = ? AND stage = ?"
        f" AND status = {StageStatus.READY} AND ready_ms > ?",
        (pipeline_id, version, stage, after_ms),
    ).fetchall()
    return int(rows[0][0])


def _pace(db: Database, pipeline_id: int, stage: str, now_ms: int, waiting: int) -> Pace:
    """Of its latest attempts, whichever instances these are of: a retry is of old ones."""
    rows = db.execute(_ENDED, (pipeline_id, stage, _LATEST)).fetchall()
    took = sorted(each for _, each in rows if each >= 0)
    per_s = _rate([ended_ms for ended_ms, _ in rows], now_ms)
    if not took:
        return Pace(per_s, waiting=waiting)
    p95 = took[min(len(took) * 95 // 100, len(took) - 1)]
    return Pace(per_s, took[len(took) // 2], p95, waiting)


def _triggered_per_s(db: Database, pipeline_id: int, now_ms: int) -> float:
    """Instances that were made, within the last minute."""
    rows = db.execute(
        f"SELECT created_ms FROM {INSTANCE} WHERE pipeline_id = ?"
        " ORDER BY instance_id DESC LIMIT ?",
        (pipeline_id, _LATEST),
    ).fetchall()
    return _rate([each for (each,) in rows], now_ms)


def _rate(times_ms: Sequence[int], now_ms: int) -> float:
    """Of the latest moments."""
    late = [each for each in times_ms if each > now_ms - _MINUTE_MS]
    if not late:
        return 0.0
    # There may have been more within the minute, before these.
    span_ms = now_ms - min(late) if len(late) == _LATEST else _MINUTE_MS
    return len(late) * 1_000 / max(span_ms, 1)
