"""One pipeline: where it starts, what it takes, and its stages."""

from __future__ import annotations

import re
from typing import Final

from hadron.model.documents.kind import Kind
from hadron.model.documents.names import check_named, check_replica_set
from hadron.model.documents.problem import Notes
from hadron.model.documents.stages import check_stages
from hadron.model.documents.types import TRIGGER_FORM, is_valid_trigger
from hadron.model.documents.waits import check_wait
from hadron.model.errors import RequestError
from hadron.model.ids import is_valid_name
from hadron.model.pipelines import PipelineSpec
from hadron.model.problems import did_you_mean, shorten
from hadron.model.units import parse_time_ms

START_FORM: Final = "earliest, latest, an offset, or an RFC 3339 time such as 2013-01-01T05:00:00Z"

MAX_TRIGGERS: Final = 100
"""Each is compared with each event type of a batch."""
MAX_PARALLEL: Final = 1_000_000
"""Instances that are open at once are rows that every scheduling round may look at."""

_OFFSET: Final = re.compile(r"[0-9]{1,18}")


def is_valid_start(start: str) -> bool:
    """Whether a pipeline may start there: earliest, latest, an offset, or an RFC 3339 time."""
    if start in ("earliest", "latest") or _OFFSET.fullmatch(start):
        return True
    try:
        return parse_time_ms(start) >= 0
    except RequestError:
        return False


def _check(notes: Notes, spec: PipelineSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    check_named(notes, ("input",), spec.input, is_valid_name, "the name of a stream")
    if len(spec.triggers) > MAX_TRIGGERS:
        notes.note(("triggers",), f"{len(spec.triggers)} patterns", f"at most {MAX_TRIGGERS}")
    for index, pattern in enumerate(spec.triggers):
        if not is_valid_trigger(pattern):
            notes.note(("triggers", index), f"{shorten(pattern)} is not a pattern", TRIGGER_FORM)
    if not is_valid_start(spec.start):
        meant = did_you_mean(spec.start, ("earliest", "latest"))
        notes.note(("start",), f"{shorten(spec.start)} is not a start{meant}", START_FORM)
    if not 1 <= spec.max_parallel <= MAX_PARALLEL:
        notes.note(("max_parallel",), f"{spec.max_parallel}", f"1 to {MAX_PARALLEL}")
    check_wait(notes, ("keep_finished",), spec.keep_finished_ms, 0)
    if spec.dead_letters:
        check_named(
            notes, ("dead_letters",), spec.dead_letters, is_valid_name, "the name of a stream"
        )
    check_stages(notes, spec.stages, spec.on_failure)


KIND: Final = Kind(name="Pipeline", spec=PipelineSpec, check=_check, mutual="stages")
