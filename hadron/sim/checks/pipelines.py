"""Checks of pipelines: one instance per trigger, one output per stage, and every instance ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from hadron.model.pipelines import Retry
from hadron.sim.evidence.evidence import Contents, Evidence, Violation
from hadron.sim.evidence.history import Apply, Settle
from hadron.sim.evidence.node_files import PipelineRows

_DONE: Final = 2
_FAILED: Final = 3
_ENDED: Final = (2, 3, 4)


def _pipelines(evidence: Evidence) -> Iterator[tuple[str, dict[str, Any], PipelineRows]]:
    """(name, specification, rows) of each that is declared."""
    reference = evidence.reference
    for object_id, rows in sorted(reference.pipelines.items()):
        kind, _, name = reference.objects.get(object_id, ("", "", ""))
        if kind == "Pipeline":
            yield name, json.loads(reference.specs[object_id][0]), rows


def _labelled(evidence: Evidence) -> dict[str, PipelineRows]:
    """Those that are declared, as `name#id`."""
    return {
        f"{name}#{object_id}": evidence.reference.pipelines[object_id]
        for object_id, (kind, _, name) in evidence.reference.objects.items()
        if kind == "Pipeline" and object_id in evidence.reference.pipelines
    }


def _declared(evidence: Evidence, name: str, *, deletes: bool) -> int:
    """How often a pipeline may have been declared, or deleted."""
    return sum(
        each.deletes == deletes
        and each.outcome != "refused"
        and ("Pipeline", name) in map(tuple, each.objects)
        for each in evidence.history.of(Apply)
    )


def _contents(evidence: Evidence, stream_id: int) -> Contents | None:
    known = evidence.streams.values()
    return next((each for each in known if each.stream_id == stream_id), None)


def one_instance_per_trigger(evidence: Evidence) -> Iterator[Violation]:
    """Every record that a pipeline has looked at, without triggers by type, made one instance."""
    for name, spec, rows in _pipelines(evidence):
        made = Counter((stream_id, offset) for _, stream_id, offset in rows.instances.values())
        for (stream_id, offset), count in sorted(made.items()):
            evidence.judged["one_instance_per_trigger"] += 1
            if count > 1:
                yield Violation(
                    "one_instance_per_trigger",
                    f"pipeline {name} has {count} instances of offset {offset} of {stream_id}",
                )
        for stream_id, following in rows.inputs:
            contents = _contents(evidence, stream_id)
            if contents is None or spec.get("triggers") or spec.get("start") != "earliest":
                continue
            offsets = range(contents.first_offset, following)
            if missing := [each for each in offsets if (stream_id, each) not in made]:
                yield Violation(
                    "one_instance_per_trigger",
                    f"pipeline {name} has looked at offsets below {following}, and made no "
                    f"instance of {missing[:5]}",
                )


def one_output_per_stage(evidence: Evidence) -> Iterator[Violation]:
    """Each stage that is done has an output of its own, where it declares one, and what pipelines
    write to holds nothing else, but what pipelines wrote that somebody has deleted."""
    outputs: dict[int, Counter[int]] = {}
    inherited: set[int] = set()
    for name, spec, rows in _pipelines(evidence):
        written = {
            stage["name"]: stage["output"]["stream"]
            for stage in spec["stages"]
            if stage.get("output")
        }
        for stream in written.values():
            # What nothing is done of yet has no output either.
            if stream in evidence.streams:
                out_id = evidence.streams[stream].stream_id
                outputs.setdefault(out_id, Counter())
                if _declared(evidence, name, deletes=True):
                    inherited.add(out_id)
        for (stage, instance_id), (status, _, stream_id, offset) in sorted(rows.runs.items()):
            if status != _DONE or stage not in written:
                continue
            if stream_id is None or offset is None:
                yield Violation(
                    "one_output_per_stage",
                    f"stage {stage} of instance {instance_id} of {name} is done without an output",
                )
                continue
            outputs.setdefault(stream_id, Counter())[offset] += 1
    for stream_id, offsets in sorted(outputs.items()):
        contents = _contents(evidence, stream_id)
        if contents is None:
            continue
        evidence.judged["one_output_per_stage"] += 1
        twice = [offset for offset, count in sorted(offsets.items()) if count > 1]
        there = set(range(contents.first_offset, contents.next_offset))
        kept = {offset for offset in offsets if offset >= contents.first_offset}
        if stream_id in inherited:
            there &= kept
        if twice or kept != there:
            yield Violation(
                "one_output_per_stage",
                f"of stream {stream_id}, offsets {twice[:5]} are outputs of several, "
                f"{sorted(there - kept)[:5]} of nobody, {sorted(kept - there)[:5]} are not there",
            )


def completions_stay(evidence: Evidence) -> Iterator[Violation]:
    """A stage whose completion was confirmed is done."""
    known = _labelled(evidence)
    for settle in evidence.history.of(Settle):
        if settle.how != "complete" or settle.outcome != "ok" or settle.group not in known:
            continue
        for first, last in settle.ranges:
            for instance_id in range(first, last + 1):
                run = known[settle.group].runs.get((settle.member, instance_id))
                evidence.judged["completions_stay"] += 1
                if run is None or run[0] != _DONE:
                    yield Violation(
                        "completions_stay",
                        f"stage {settle.member} of instance {instance_id} of {settle.group} was "
                        f"completed by {settle.client}; the tables have {run}",
                    )
                    return


def every_instance_ends(evidence: Evidence) -> Iterator[Violation]:
    """A pipeline that was to finish has looked at all its input, and no instance is left."""
    for event in evidence.history.events("finishing"):
        for name, _, rows in _pipelines(evidence):
            if event.subject != name:
                continue
            evidence.judged["every_instance_ends"] += 1
            left = sorted(
                instance_id
                for instance_id, (status, _, _) in rows.instances.items()
                if status not in _ENDED
            )
            ends = {
                stream_id: contents.next_offset
                for stream_id, _ in rows.inputs
                if (contents := _contents(evidence, stream_id)) is not None
            }
            behind = [each for each in rows.inputs if each[1] < ends.get(each[0], 0)]
            if left or behind:
                yield Violation(
                    "every_instance_ends",
                    f"pipeline {name} is not done: instances {left[:5]} are left, its input is at "
                    f"{behind} of {ends}",
                )


def stages_fail_after_all_attempts(evidence: Evidence) -> Iterator[Violation]:
    """A stage is given up when its attempts are used up, and not before. How many it had when is
    not known of a pipeline that somebody has changed."""
    for name, spec, rows in _pipelines(evidence):
        if _declared(evidence, name, deletes=False) > 1:
            continue
        most = {
            stage["name"]: stage.get("retry", {}).get("max_attempts", Retry().max_attempts)
            for stage in spec["stages"]
        }
        for (stage, instance_id), (status, attempts, _, _) in sorted(rows.runs.items()):
            if status != _FAILED:
                continue
            evidence.judged["stages_fail_after_all_attempts"] += 1
            if attempts < most.get(stage, 0):
                yield Violation(
                    "stages_fail_after_all_attempts",
                    f"stage {stage} of instance {instance_id} of {name} was given up after "
                    f"{attempts} of {most[stage]} attempts",
                )


CHECKS: Final = (
    one_instance_per_trigger,
    one_output_per_stage,
    completions_stay,
    every_instance_ends,
    stages_fail_after_all_attempts,
)
