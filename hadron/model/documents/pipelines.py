"""One pipeline: where it starts, what it takes, and its stages; or its one streaming query."""

from __future__ import annotations

import re
from typing import Final

from hadron.model.documents.kind import Kind
from hadron.model.documents.names import check_named, check_replica_set
from hadron.model.documents.problem import Notes
from hadron.model.documents.stages import RUN_FORM, check_stages, is_valid_run
from hadron.model.documents.types import TRIGGER_FORM, is_valid_trigger
from hadron.model.documents.waits import check_wait
from hadron.model.errors import RequestError
from hadron.model.ids import is_valid_name
from hadron.model.pipelines import APPEND, PipelineSpec, StreamPipelineSpec
from hadron.model.problems import ValuePath, shorten
from hadron.model.units import parse_time_ms

START_FORM: Final = "earliest, latest, an offset, or an RFC 3339 time such as 2013-01-01T05:00:00Z"

MAX_TRIGGERS: Final = 100
"""Each is compared with each event type of a batch."""
MAX_PARALLEL: Final = 1_000_000
"""Instances that are open at once are rows that every scheduling round may look at."""

MAX_OPTIONS: Final = 100

READ_OPTIONS: Final = (
    "partitions",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
)
"""What a streaming query may say to its reader (docs/SPARK.md) that its declaration has not."""
WRITE_OPTIONS: Final = ("codec", "stagingTimeout")
"""And to its writer."""
SPARK_OPTION: Final = "spark."
"""What the name of a setting of Spark's begins with."""

_REFUSED_MODES: Final = {
    "update": "Spark updates no sink of a Python data source",
    "complete": "a stream's records are appended, and cannot be replaced",
}
"""Modes that Spark has, and why not here."""

_OFFSET: Final = re.compile(r"[0-9]{1,18}")


def is_valid_start(start: str) -> bool:
    """Whether a pipeline may start there: earliest, latest, an offset, or an RFC 3339 time."""
    if start in ("earliest", "latest") or _OFFSET.fullmatch(start):
        return True
    try:
        return parse_time_ms(start) >= 0
    except RequestError:
        return False


def _check(notes: Notes, spec: PipelineSpec | StreamPipelineSpec) -> None:
    if isinstance(spec, PipelineSpec):
        _check_staged(notes, spec)
    else:
        _check_streaming(notes, spec)


def _check_staged(notes: Notes, spec: PipelineSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    check_named(notes, ("input",), spec.input, is_valid_name, "the name of a stream")
    if len(spec.triggers) > MAX_TRIGGERS:
        notes.note(("triggers",), f"{len(spec.triggers)} patterns", f"at most {MAX_TRIGGERS}")
    for index, pattern in enumerate(spec.triggers):
        if not is_valid_trigger(pattern):
            notes.note(("triggers", index), f"{shorten(pattern)} is not a pattern", TRIGGER_FORM)
    _check_start(notes, ("start",), spec.start)
    if not 1 <= spec.max_parallel <= MAX_PARALLEL:
        notes.note(("max_parallel",), f"{spec.max_parallel}", f"1 to {MAX_PARALLEL}")
    check_wait(notes, ("keep_finished",), spec.keep_finished_ms, 0)
    if spec.dead_letters:
        check_named(
            notes, ("dead_letters",), spec.dead_letters, is_valid_name, "the name of a stream"
        )
    check_stages(notes, spec.stages, spec.on_failure)


def _check_streaming(notes: Notes, spec: StreamPipelineSpec) -> None:
    for key, name in (("from", spec.source.stream), ("to", spec.to.stream)):
        check_named(notes, (key, "stream"), name, is_valid_name, "the name of a stream")
    _check_start(notes, ("from", "start"), spec.source.start)
    if not spec.run:
        notes.note(("run",), "missing", f"the query's function as {RUN_FORM}")
    elif not is_valid_run(spec.run):
        notes.note(("run",), f"{shorten(spec.run)} does not name a function", RUN_FORM)
    check_wait(notes, ("trigger",), spec.trigger_ms, 0)
    if spec.output_mode != APPEND:
        why = _REFUSED_MODES.get(spec.output_mode, f"there is {APPEND}")
        notes.note(
            ("output_mode",),
            f"{shorten(spec.output_mode)}: {why}",
            f"{APPEND}: aggregates over windows, behind a watermark, are rows when they are final",
        )
    if len(spec.options) > MAX_OPTIONS:
        notes.note(("options",), f"{len(spec.options)} options", f"at most {MAX_OPTIONS}")
    known = (*READ_OPTIONS, *WRITE_OPTIONS)
    for name in spec.options:
        if name not in known and not name.startswith(SPARK_OPTION):
            found = f"{shorten(name)} is no option of a pipeline{notes.meant(name, known)}"
            expected = f"{', '.join(known)}, or a setting of Spark's, {SPARK_OPTION}…"
            notes.note(("options", name), found, expected)


def _check_start(notes: Notes, path: ValuePath, start: str) -> None:
    if not is_valid_start(start):
        meant = notes.meant(start, ("earliest", "latest"))
        notes.note(path, f"{shorten(start)} is not a start{meant}", START_FORM)


KIND: Final = Kind(
    name="Pipeline",
    spec=PipelineSpec,
    modes={"stage": PipelineSpec, "stream": StreamPipelineSpec},
    check=_check,
    mutual="stages",
)
