"""The stages of one pipeline: each on its own, and the graph that they make.

A graph that could never finish is refused here, once, so that the machine that runs pipelines may
rely on it: every stage is reachable from an entry stage, and every dependency has an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hadron.model.documents.problem import Notes
from hadron.model.documents.types import TRIGGER_FORM, is_valid_trigger
from hadron.model.documents.waits import MAX_ATTEMPTS, check_wait
from hadron.model.ids import NAME_FORM, is_valid_name, is_valid_replica_set_name
from hadron.model.pipelines import (
    FAIL,
    STAGE_TIMEOUT_MS,
    Retry,
    StageSpec,
    Wait,
    branch_of,
    branches_of,
)
from hadron.model.problems import ValuePath, one_of, shorten, some_of

ENGINES: Final = ("spark", "handler")
RUN_FORM: Final = "package.module:function"

MAX_STAGES: Final = 100
"""Each is a row per instance, and a column for the stages that depend on it."""
MAX_TYPES: Final = 100
"""As of triggers."""
ROW_COLUMNS: Final = frozenset(
    ("instance_id", "root", "key", "type", "timestamp", "partition", "offset", "headers", "value")
)
"""Columns of the rows that a Spark stage gets or returns; a dependency's column is its name."""


def check_stages(notes: Notes, stages: Sequence[StageSpec], on_failure: str) -> None:
    """Note everything wrong with a pipeline's stages."""
    if not stages:
        notes.note(("stages",), "no stages", "at least one stage")
    if len(stages) > MAX_STAGES:
        # Not looked at any further: the checks below grow with the square of their number.
        notes.note(("stages",), f"{len(stages)} stages", f"at most {MAX_STAGES}")
        return
    if _has_long_lists(notes, stages):
        return
    names: set[str] = set()
    for index, stage in enumerate(stages):
        _check_stage(notes, ("stages", index), stage)
        if stage.name in names and stage.name:
            found = f"{shorten(stage.name)} is another stage's name"
            notes.note(("stages", index, "name"), found, "unique names")
        names.add(stage.name)
    _check_references(notes, stages)
    _check_cycles(notes, stages)
    if on_failure:
        _check_on_failure(notes, stages, on_failure)
    _check_branches(notes, stages, on_failure)
    others = {on_failure, *branches_of(stages)} - {""}
    if stages and all(stage.name in others for stage in stages):
        # Where others are, and none begins, they wait for each other, or for what is not there or
        # never done: that is told of these.
        found = "each runs only when an instance is given up, or another one has waited too long"
        expected = "an entry stage, which is neither on_failure nor an on_timeout"
        notes.note(("stages",), found, expected)


def _has_long_lists(notes: Notes, stages: Sequence[StageSpec]) -> bool:
    """Note those that name more stages than there may be: none is looked at any further, because
    each name is compared with those before it."""
    found = False
    for index, stage in enumerate(stages):
        for key, names in (("dependencies", stage.dependencies), ("after", stage.after)):
            if len(names) > MAX_STAGES:
                notes.note(("stages", index, key), f"{len(names)} names", f"at most {MAX_STAGES}")
                found = True
    return found


def _check_on_failure(notes: Notes, stages: Sequence[StageSpec], name: str) -> None:
    """It begins when an instance is given up, and is no part of the way there."""
    by_name = {stage.name: (index, stage) for index, stage in enumerate(stages)}
    if name not in by_name:
        found = f"there is no stage {shorten(name)}{notes.meant(name, by_name)}"
        notes.note(("on_failure",), found, f"one of {some_of(by_name)}")
        return
    index, stage = by_name[name]
    if stage.wait is not None:
        found = f"stage {shorten(name)} runs when an instance is given up"
        notes.note(("stages", index, "wait"), found, "no wait in it")
    for key, names in (("dependencies", stage.dependencies), ("after", stage.after)):
        if names:
            found = f"stage {shorten(name)} runs when an instance is given up"
            notes.note(("stages", index, key), found, f"no {key} in it")
    for at, other in enumerate(stages):
        for key, names in (("dependencies", other.dependencies), ("after", other.after)):
            if name in names:
                found = f"stage {shorten(name)} runs only when an instance is given up"
                notes.note(("stages", at, key), found, "another stage")


def _check_stage(notes: Notes, path: ValuePath, stage: StageSpec) -> None:
    name = (*path, "name")
    if not stage.name:
        notes.note(name, "missing", NAME_FORM)
    elif not is_valid_name(stage.name):
        notes.note(name, f"{shorten(stage.name)} is not a valid name", NAME_FORM)
    elif stage.name in ROW_COLUMNS:
        found = f"{shorten(stage.name)} is a column that every stage's rows have"
        notes.note(name, found, f"a name other than {one_of(sorted(ROW_COLUMNS))}")
    if stage.wait is None:
        _check_run(notes, path, stage)
    else:
        _check_wait_of(notes, path, stage, stage.wait)
    for key, value, least in (("delay", stage.delay_ms, 0), ("timeout", stage.timeout_ms, 1)):
        check_wait(notes, (*path, key), value, least)
    check_wait(notes, (*path, "retry", "backoff"), stage.retry.backoff_ms, 0)
    if not 1 <= stage.retry.max_attempts <= MAX_ATTEMPTS:
        found = f"{stage.retry.max_attempts}"
        notes.note((*path, "retry", "max_attempts"), found, f"1 to {MAX_ATTEMPTS}")
    if stage.output is not None:
        _check_output(notes, path, stage)


def _check_wait_of(notes: Notes, path: ValuePath, stage: StageSpec, wait: Wait) -> None:
    """Who waits does nothing else."""
    at = (*path, "wait")
    for key, value in (("run", stage.run), ("schema", stage.schema)):
        if value:
            found = f"{shorten(value)} in a stage that waits"
            notes.note((*path, key), found, f"no {key} with wait")
    if stage.delay_ms:
        found = "a delay in a stage that waits"
        notes.note((*path, "delay"), found, "a delay in the stages that follow it")
    if stage.timeout_ms != STAGE_TIMEOUT_MS:
        found = "how long a function may take, in a stage that waits"
        notes.note((*path, "timeout"), found, "wait: {…, timeout: 24h, on_timeout: STAGE}")
    if stage.retry != Retry():
        found = "another attempt of a stage that waits"
        notes.note((*path, "retry"), found, "no retry with wait")
    if bool(wait.stream) == wait.signal:
        found = "both stream and signal" if wait.signal else "neither stream nor signal"
        notes.note(at, found, "either stream: NAME, or signal: true")
    if wait.stream and not is_valid_name(wait.stream):
        found = f"{shorten(wait.stream)} is not a valid name"
        notes.note((*at, "stream"), found, "the name of a stream")
    if wait.stream and stage.output is not None:
        found = "an output of a stage that waits for a record, which is its output"
        notes.note((*path, "output"), found, "no output with wait.stream")
    if wait.types and not wait.stream:
        notes.note((*at, "types"), "types of signals, which have none", "types with wait.stream")
    if len(wait.types) > MAX_TYPES:
        notes.note((*at, "types"), f"{len(wait.types)} patterns", f"at most {MAX_TYPES}")
    for index, pattern in enumerate(wait.types):
        if not is_valid_trigger(pattern):
            notes.note((*at, "types", index), f"{shorten(pattern)} is not a pattern", TRIGGER_FORM)
    if wait.on_timeout != FAIL and not wait.timeout_ms:
        found = f"stage {shorten(wait.on_timeout)} would never run: there is no timeout"
        notes.note((*at, "on_timeout"), found, "a timeout such as 24h beside it")
    check_wait(notes, (*at, "timeout"), wait.timeout_ms, 0)


def _check_branches(notes: Notes, stages: Sequence[StageSpec], on_failure: str) -> None:
    """Stages that run when another one has waited for too long: each begins so and in no other way,
    and depends only on what is done by then."""
    by_name = {stage.name: (index, stage) for index, stage in enumerate(stages)}
    seen: set[str] = set()
    for index, stage in enumerate(stages):
        name = branch_of(stage)
        if not name:
            continue
        path = ("stages", index, "wait", "on_timeout")
        if name not in by_name:
            found = f"there is no stage {shorten(name)}{notes.meant(name, (FAIL, *by_name))}"
            notes.note(path, found, f"fail, or one of {some_of(by_name)}")
            continue
        if name in seen or name in (stage.name, on_failure):
            found = f"stage {shorten(name)} runs for another reason"
            notes.note(path, found, "a stage of its own")
        seen.add(name)
        at, branch = by_name[name]
        done = _before(by_name, stage)
        for key, names in (("dependencies", branch.dependencies), ("after", branch.after)):
            if wrong := [each for each in names if each not in done]:
                found = (
                    f"{shorten(wrong[0])} need not be done when {stage.name} has waited too long"
                )
                notes.note(("stages", at, key), found, f"only stages that {stage.name} follows")


def _before(by_name: Mapping[str, tuple[int, StageSpec]], stage: StageSpec) -> set[str]:
    """All that is done when it is this stage's turn."""
    found: set[str] = set()
    left = [*stage.dependencies, *stage.after]
    while left:
        name = left.pop()
        if name in by_name and name not in found:
            found.add(name)
            left += [*by_name[name][1].dependencies, *by_name[name][1].after]
    return found


def _check_run(notes: Notes, path: ValuePath, stage: StageSpec) -> None:
    run = (*path, "run")
    if stage.engine not in ENGINES:
        found = f"{shorten(stage.engine)} is unknown{notes.meant(stage.engine, ENGINES)}"
        notes.note((*path, "engine"), found, one_of(ENGINES))
    elif stage.engine == "handler":
        for key, value in (("run", stage.run), ("schema", stage.schema)):
            if value:
                found = f"{shorten(value)}, which only engine spark uses"
                notes.note((*path, key), found, f"no {key} with engine handler")
    elif not stage.run:
        notes.note(run, "missing", f"the stage's function as {RUN_FORM}")
    elif not is_valid_run(stage.run):
        notes.note(run, f"{shorten(stage.run)} does not name a function", RUN_FORM)


def is_valid_run(run: str) -> bool:
    """Whether `run` is spelled `package.module:function`; it need not exist here."""
    module, colon, function = run.partition(":")
    return (
        bool(colon)
        and function.isidentifier()
        and all(part.isidentifier() for part in module.split("."))
    )


def _check_output(notes: Notes, path: ValuePath, stage: StageSpec) -> None:
    assert stage.output is not None
    stream, partition = stage.output.stream, stage.output.partition
    if not stream:
        notes.note((*path, "output", "stream"), "missing", "the name of a stream")
    elif not is_valid_name(stream):
        found = f"{shorten(stream)} is not a valid name"
        notes.note((*path, "output", "stream"), found, "the name of a stream")
    if partition and not is_valid_replica_set_name(partition):
        found = f"{shorten(partition)} is not a valid name"
        notes.note((*path, "output", "partition"), found, "a partition of the stream")


def _check_references(notes: Notes, stages: Sequence[StageSpec]) -> None:
    by_name = {stage.name: stage for stage in stages if stage.name}
    for index, stage in enumerate(stages):
        for key, names in (("dependencies", stage.dependencies), ("after", stage.after)):
            seen: set[str] = set()
            for position, name in enumerate(names):
                path = ("stages", index, key, position)
                if name in seen:
                    notes.note(path, f"{shorten(name)} again", "each stage once")
                elif name == stage.name:
                    notes.note(path, f"{shorten(name)} is the stage itself", "another stage")
                elif name not in by_name:
                    found = f"there is no stage {shorten(name)}{notes.meant(name, by_name)}"
                    notes.note(path, found, _other_stages(by_name, stage))
                elif key == "dependencies" and not by_name[name].has_output:
                    found = f"stage {shorten(name)} has no output to depend on"
                    notes.note(path, found, f"an output there, or {name} under after")
                seen.add(name)
        if stage.is_on_spark:
            _check_columns(notes, ("stages", index, "dependencies"), stage)


def _check_columns(notes: Notes, path: ValuePath, stage: StageSpec) -> None:
    """Spark's names of columns are the same in any case: of two such neither can be asked for. All
    else that a name may have can be, if between backticks."""
    given = ROW_COLUMNS - {"value"}
    columns = {column: column for column in given}
    for position, name in enumerate(stage.dependencies):
        other = columns.setdefault(name.casefold(), name)
        if other != name:
            whose = ", which every stage gets" if other in given else ""
            found = f"Spark cannot tell the column {shorten(name)} from {other}{whose}"
            expected = f"another name for stage {shorten(name)}, not only in upper or lower case"
            notes.note((*path, position), found, expected)


def _other_stages(by_name: dict[str, StageSpec], stage: StageSpec) -> str:
    others = [name for name in by_name if name != stage.name]
    return f"one of {some_of(others)}" if others else "none: there is no other stage"


def _check_cycles(notes: Notes, stages: Sequence[StageSpec]) -> None:
    """Name one cycle for each knot of stages that wait for each other."""
    waits = {
        stage.name: [name for name in (*stage.dependencies, *stage.after) if name != stage.name]
        for stage in stages
        if stage.name
    }
    for stage in stages:
        # What runs when it has waited for too long cannot come before its turn.
        if (branch := branch_of(stage)) in waits and branch != stage.name:
            waits[branch].append(stage.name)
    place_of = {stage.name: (index, stage) for index, stage in enumerate(stages)}
    while waits := _without_finishing(waits):
        cycle = _find_cycle(waits)
        index, stage = place_of[cycle[0]]
        key = "dependencies" if waits[stage.name][0] in stage.dependencies else "after"
        found = f"a cycle, {' waits for '.join([*cycle, cycle[0]])}"
        notes.note(("stages", index, key), found, "stages that do not wait for each other")
        waits = {name: names for name, names in waits.items() if name not in cycle}


def _without_finishing(waits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Only the stages that can never run, each with only those that it waits for in vain."""
    following: dict[str, list[str]] = {name: [] for name in waits}
    awaited = dict.fromkeys(waits, 0)
    for name, names in waits.items():
        for other in names:
            if other in waits:
                following[other].append(name)
                awaited[name] += 1
    run = [name for name, count in awaited.items() if not count]
    for name in run:
        for each in following[name]:
            awaited[each] -= 1
            if not awaited[each]:
                run.append(each)
    stuck = waits.keys() - run
    return {
        name: [other for other in names if other in stuck]
        for name, names in waits.items()
        if name in stuck
    }


def _find_cycle(waits: dict[str, list[str]]) -> list[str]:
    """Every stage here waits for another one here, so a walk must come back to its own path."""
    walk = [next(iter(waits))]
    while True:
        following = waits[walk[-1]][0]
        if following in walk:
            return walk[walk.index(following) :]
        walk.append(following)
