"""Checks of pipelines: one instance per trigger, one output per stage, and every instance ends
(PROTOCOL E3, docs/PIPELINES.md P1 to P14, P18).

Over all replica sets at once. What an output is of, its value says (`made.output_of`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Final

from hadron.model.pipelines import StageSpec, branch_of
from hadron.sim.checks import waits
from hadron.sim.checks.flows import (
    CANCELLED,
    DONE,
    FAILED,
    LIVE,
    PASSED,
    PUBLISHING,
    READY,
    TOO_LATE,
    Flow,
    FlowCheck,
    Flows,
    spec_of,
)
from hadron.sim.evidence.evidence import Contents, Evidence, Violation
from hadron.sim.evidence.history import Settle
from hadron.sim.evidence.made import Made, output_of
from hadron.sim.evidence.node_files import InputRow, RunRow
from hadron.sim.evidence.regions import Cluster

# --- instances ------------------------------------------------------------------------------------


def one_instance_per_trigger(flows: Flows) -> Iterator[Violation]:
    """P5, P13: every record that a pipeline, or a backfill of it, has come by makes one instance;
    P10: each start by hand one more, and each backfill that is to make them again."""
    for flow in flows.declared:
        made = Counter(
            (each.partition, each.offset)
            for each in flow.rows.instances.values()
            if each.stream_id == flow.input_id
        )
        more = _by_hand(flows, flow)
        for at in flow.rows.inputs:
            if at.truncations:
                # Its offsets were those of other records before.
                continue
            flows.judged["one_instance_per_trigger"] += 1
            for (partition, offset), count in sorted(made.items()):
                if partition == at.partition and count > 1 + more[partition, offset]:
                    yield Violation(
                        "one_instance_per_trigger",
                        f"{flow} has {count} instances of offset {offset} of {partition}, of which "
                        f"people have started {more[partition, offset]} at most",
                    )
            offsets = _looked_at(flows, flow, at)
            if missing := [each for each in offsets if (at.partition, each) not in made]:
                yield Violation(
                    "one_instance_per_trigger",
                    f"{flow} has looked at offsets of {at.partition} below {at.next_offset}, and "
                    f"made no instance of {missing[:5]}",
                )


def _by_hand(flows: Flows, flow: Flow) -> Counter[tuple[str, int]]:
    """How many instances of each record people may have asked for."""
    more: Counter[tuple[str, int]] = Counter()
    for each in flows.steered(flow.name, "start"):
        more.update((each.partition, offset) for offset in each.offsets)
    for each in flows.steered(flow.name, "backfill"):
        if each.is_whole:
            more.update((each.partition, offset) for offset in range(*each.offsets))
    return more


def _looked_at(flows: Flows, flow: Flow, at: InputRow) -> list[int]:
    """Offsets of which there must be an instance."""
    contents = flows.contents(at.partition, at.stream_id)
    if contents is None or flow.has_dropped or flow.spec.triggers:
        return []
    found = set(range(at.first_offset, at.next_offset))
    for each in flow.rows.backfills:
        if each.partition == at.partition:
            found.update(range(each.from_offset, each.next_offset))
    # What was dropped before it was looked at is skipped.
    return sorted(each for each in found if each >= contents.first_offset)


def nothing_is_passed_over(flows: Flows) -> Iterator[Violation]:
    """P5, D4: a cursor goes on elsewhere where a partition has lost what was looked at, and nowhere
    else; and no further than there are records."""
    for flow in flows.declared:
        for at in flow.rows.inputs:
            flows.judged["nothing_is_passed_over"] += 1
            contents = flows.contents(at.partition, at.stream_id)
            end = contents.next_offset if contents is not None else at.next_offset
            if at.truncations and not flows.has_lost(at.partition):
                yield Violation(
                    "nothing_is_passed_over",
                    f"{flow} takes {at.partition} for truncated, which has lost nothing",
                )
            if at.next_offset > end and not flows.has_lost(at.partition):
                yield Violation(
                    "nothing_is_passed_over",
                    f"{flow} has looked at {at.partition} up to {at.next_offset}, which ends at "
                    f"{end}",
                )


def instances_are_what_their_stages_are(flows: Flows) -> Iterator[Violation]:
    """P6, P10, P11: an instance is done when all its stages are, failed when one was given up,
    nothing of a cancelled one is to run; and each that may go on has its definition."""
    for flow in flows.declared:
        definitions = flow.definitions
        for instance_id, made in sorted(flow.rows.instances.items()):
            flows.judged["instances_are_what_their_stages_are"] += 1
            runs = {stage: run for (stage, of), run in flow.rows.runs.items() if of == instance_id}
            definition = definitions.get(made.version)
            wrong = ""
            if definition is None:
                if made.status in (LIVE, FAILED):
                    wrong = f"has no definition {made.version}"
            else:
                usual = {each.name for each in definition.stages} - {definition.on_failure}
                done = {stage for stage, run in runs.items() if run.status in (DONE, *PASSED)}
                if (made.status == DONE) != (usual <= done) and made.status in (LIVE, DONE):
                    wrong = f"has status {made.status}, and {sorted(done)} done of {sorted(usual)}"
                if made.status == DONE and not wrong:
                    wrong = _both_ways(definition.stages, runs)
            statuses = {run.status for run in runs.values()}
            if made.status == FAILED and FAILED not in statuses:
                wrong = "is given up, and none of its stages is"
            if made.status == CANCELLED and READY in statuses:
                wrong = "is cancelled, and a stage of it may run"
            if made.status == DONE and statuses & {READY, PUBLISHING}:
                wrong = "is done, and a stage of it is not"
            if wrong:
                yield Violation(
                    "instances_are_what_their_stages_are",
                    f"instance {instance_id} of {flow} {wrong}",
                )


def _both_ways(stages: Sequence[StageSpec], runs: Mapping[str, RunRow]) -> str:
    """P14: what a stage waits for has come, or it has waited for too long: one of the two."""
    for stage in stages:
        run, other = runs.get(stage.name), branch_of(stage)
        if run is None or not other:
            continue
        late = other in runs and runs[other].status in (READY, DONE, FAILED)
        if late != (run.status == TOO_LATE):
            return f"has {stage.name} with status {run.status}, and goes its other way: {late}"
    return ""


def counters_agree(flows: Flows) -> Iterator[Violation]:
    """P12: what is counted is what there is, and what there was: nothing is uncounted by being
    dropped."""
    for flow in flows.declared:
        flows.judged["counters_agree"] += 1
        rows = flow.rows
        live, *ended, following = rows.counts
        now = Counter(each.status for each in rows.instances.values())
        known = [now[status] for status in (DONE, FAILED, CANCELLED)]
        gone = following - 1 - len(rows.instances)
        are_fewer = any(count < least for count, least in zip(ended, known, strict=True))
        if live != now[LIVE] or are_fewer or sum(ended) - sum(known) != gone:
            yield Violation(
                "counters_agree",
                f"{flow} counts {rows.counts[:4]} instances that are live, done, failed and "
                f"cancelled; there are {[now[LIVE], *known]}, and {gone} were dropped",
            )
        for stage, (ready, done, failed) in sorted(rows.stage_counts.items()):
            found = Counter(run.status for (of, _), run in rows.runs.items() if of == stage)
            is_ready = ready == found[READY] + found[PUBLISHING]
            if not is_ready or done < found[DONE] or failed < found[FAILED]:
                yield Violation(
                    "counters_agree",
                    f"{flow} counts {(ready, done, failed)} of stage {stage}, there are {found}",
                )


def every_instance_ends(flows: Flows) -> Iterator[Violation]:
    """A pipeline that was to finish has looked at all its input, and no instance is left; P9: no
    output is on its way."""
    for event in flows.history.events("finishing"):
        for flow in flows.declared:
            if event.subject != flow.name:
                continue
            flows.judged["every_instance_ends"] += 1
            instances = flow.rows.instances
            left = sorted(each for each, made in instances.items() if made.status == LIVE)
            way = sorted(key for key, run in flow.rows.runs.items() if run.status == PUBLISHING)
            ends = {
                at.partition: contents.next_offset
                for at in flow.rows.inputs
                if (contents := flows.contents(at.partition, at.stream_id)) is not None
            }
            behind = [
                (at.partition, at.next_offset)
                for at in flow.rows.inputs
                if at.next_offset < ends.get(at.partition, 0)
            ]
            unread = [
                partition
                for partition, _ in flows.stream(flow.spec.input)
                if partition not in {at.partition for at in flow.rows.inputs}
                and flows.sets[partition].reference.bounds.get(flow.input_id)
            ]
            if left or behind or way or unread:
                yield Violation(
                    "every_instance_ends",
                    f"{flow} is not done: instances {left[:5]} are left, outputs of {way[:5]} are "
                    f"on their way, its input is at {behind} of {ends}, {unread} are not read",
                )


def stages_fail_after_all_attempts(flows: Flows) -> Iterator[Violation]:
    """A stage is given up when its attempts are used up, and not before, unless it has cost as many
    runners, and says so (P18). How many it had when is not known of a pipeline that somebody has
    changed; an output that is lost uses all of them."""
    for flow in flows.declared:
        if flows.applied(flow.name, deletes=False) > 1:
            continue
        # A stage that waits has none.
        run_stages = [each for each in flow.spec.stages if each.wait is None]
        most = {stage.name: stage.retry.max_attempts for stage in run_stages}
        for (stage, instance_id), run in sorted(flow.rows.runs.items()):
            if run.status != FAILED:
                continue
            flows.judged["stages_fail_after_all_attempts"] += 1
            lost = f"stage {stage!r} has lost {most.get(stage)} runners "
            if run.attempts < most.get(stage, 0) and not (run.reason or "").startswith(lost):
                yield Violation(
                    "stages_fail_after_all_attempts",
                    f"stage {stage} of instance {instance_id} of {flow} was given up after "
                    f"{run.attempts} of {most[stage]} attempts",
                )


def given_up_is_told_once(flows: Flows) -> Iterator[Violation]:
    """P11: each instance that is given up has a letter, and each time one. Attempts are counted on,
    so no two letters are the same."""
    for flow in flows.declared:
        if not flow.spec.dead_letters:
            continue
        told: Counter[tuple[int, int]] = Counter()
        letters: Counter[tuple[object, ...]] = Counter()
        for partition, contents in flows.stream(flow.spec.dead_letters):
            for offset, value in contents.values.items():
                if flows.sets[partition].tells_of_instance(flow.spec.dead_letters, offset):
                    said = json.loads(value)
                    instance = said["instance"], said["created_ms"]
                    letters[(*instance, said["stage"], said["attempts"])] += 1
                    told[instance] += 1
        if letters:
            flows.judged["given_up_is_told_once"] += 1
        for letter, count in letters.items():
            if count > 1:
                yield Violation("given_up_is_told_once", f"{flow} has {count} letters of {letter}")
        for instance_id, made in sorted(flow.rows.instances.items()):
            key = instance_id, made.created_ms
            if made.status == FAILED and not told[key] and instance_id not in flow.rows.letters:
                yield Violation(
                    "given_up_is_told_once",
                    f"instance {instance_id} of {flow} was given up, and has no letter",
                )


# --- outputs --------------------------------------------------------------------------------------


def one_output_per_stage(flows: Flows) -> Iterator[Violation]:
    """E3, P9: each stage that is done has an output of its own, where it declares one, at the place
    that it tells; and what pipelines write to holds nothing else, but what pipelines wrote that
    somebody has deleted, or of instances that ended long ago."""
    written: set[str] = set()
    told: dict[tuple[str, int], list[tuple[Flow, str, int]]] = {}
    inherited: set[str] = set()
    for flow in flows.declared:
        streams = {
            stage.output.stream
            for spec in (flow.spec, *flow.definitions.values())
            for stage in spec.stages
            if stage.output is not None
        }
        written |= streams
        if flows.applied(flow.name, deletes=True):
            inherited |= streams
        for (stage, instance_id), run in sorted(flow.rows.runs.items()):
            is_told = run.partition is not None and run.offset is not None
            if run.status == DONE and is_told != _has_output(flow, stage, instance_id):
                yield Violation(
                    "one_output_per_stage",
                    f"stage {stage} of instance {instance_id} of {flow} is done with"
                    f"{'' if is_told else 'out'} an output, and declares "
                    f"{'none' if is_told else 'one'}",
                )
            if run.status == DONE and is_told:
                place = f"{run.stream_id}@{run.partition}", run.offset or 0
                told.setdefault(place, []).append((flow, stage, instance_id))
    for stream in sorted(written):
        for partition, contents in flows.stream(stream):
            flows.judged["one_output_per_stage"] += 1
            where = f"{contents.stream_id}@{partition}"
            here = {at: each for (place, at), each in told.items() if place == where}
            yield from _at_one_place(flows, where, here, contents)
            if stream not in inherited:
                yield from _of_nobody(flows, where, here, contents)


def _has_output(flow: Flow, stage: str, instance_id: int) -> bool:
    """Whether an instance's stage declares one, as its definition has it. One that was done before
    a retry is as it was."""
    definition = flow.definitions.get(flow.rows.instances[instance_id].version)
    run = flow.rows.runs[stage, instance_id]
    for each in definition.stages if definition is not None else ():
        if each.name == stage:
            return each.output is not None or run.offset is not None
    return run.offset is not None


def _at_one_place(
    flows: Flows, where: str, here: Mapping[int, list[tuple[Flow, str, int]]], contents: Contents
) -> Iterator[Violation]:
    """What is told to be in a partition is there, and is that."""
    lost = flows.has_lost(where.partition("@")[2])
    for offset, owners in sorted(here.items()):
        flow, stage, instance_id = owners[0]
        who = f"stage {stage} of instance {instance_id} of {flow}"
        if len(owners) > 1:
            yield Violation(
                "one_output_per_stage",
                f"offset {offset} of {where} is the output of {who} and of {owners[1][1:]}",
            )
        if offset < contents.first_offset or lost:
            continue
        if offset >= contents.next_offset:
            yield Violation(
                "one_output_per_stage", f"the output of {who}, offset {offset} of {where}, is lost"
            )
        made = output_of(contents.values.get(offset, ""))
        created_ms = flow.rows.instances[instance_id].created_ms
        wanted = flow.id, stage, instance_id, created_ms
        if made is not None and made[:4] != wanted:
            yield Violation(
                "one_output_per_stage",
                f"the output of {who} is told to be at offset {offset} of {where}; that is of "
                f"{made}",
            )


def _of_nobody(
    flows: Flows, where: str, here: Mapping[int, list[tuple[Flow, str, int]]], contents: Contents
) -> Iterator[Violation]:
    """What is in a partition is of a stage that is done, or was before a retry from the start."""
    nobodys = []
    for offset in range(contents.first_offset, contents.next_offset):
        if offset not in here:
            made = output_of(contents.values.get(offset, ""))
            if made is None or not _was_made(flows, made):
                nobodys.append(offset)
    if nobodys:
        yield Violation(
            "one_output_per_stage",
            f"offsets {nobodys[:5]} of {where} are outputs of nobody; the first one is "
            f"{contents.values.get(nobodys[0], '')!r}",
        )


def _was_made(flows: Flows, made: Made) -> bool:
    """Whether it may be of a stage that was done, and is no more: its instance has ended long ago,
    or was retried from the start."""
    for flow in flows.declared:
        if flow.id != made.pipeline_id:
            continue
        if flows.has_lost(flow.spec.replica_set):
            return True
        instance = flow.rows.instances.get(made.instance_id)
        if instance is None or instance.created_ms != made.created_ms:
            return flow.has_dropped and made.instance_id < flow.rows.counts[4]
        run = flow.rows.runs.get((made.stage, made.instance_id))
        is_before = run is not None and made.attempt <= run.attempts_before
        whole = any(each.is_whole for each in flows.steered(flow.name, "retry"))
        return is_before and (whole or made.stage in _on_failure(flow))
    return False


def _on_failure(flow: Flow) -> set[str]:
    return {each.on_failure for each in (flow.spec, *flow.definitions.values())}


def one_output_per_attempt(flows: Flows) -> Iterator[Violation]:
    """E3: an attempt has one output, and not two attempts of a stage have one unless it was done
    again, from the start: in all partitions together."""
    for flow in flows.declared:
        found: dict[Made, list[str]] = {}
        of_stages: dict[tuple[str, int, int], set[int]] = {}
        streams = {stage.output.stream for stage in flow.spec.stages if stage.output is not None}
        for stream in sorted(streams):
            for partition, contents in flows.stream(stream):
                for offset, value in contents.values.items():
                    made = output_of(value)
                    if made is not None and made.pipeline_id == flow.id:
                        found.setdefault(made, []).append(f"{partition}@{offset}")
                        of_stages.setdefault(made[1:4], set()).add(made.attempt)
        again = any(each.is_whole for each in flows.steered(flow.name, "retry"))
        if found:
            flows.judged["one_output_per_attempt"] += 1
        for made, places in found.items():
            if len(places) > 1:
                yield Violation(
                    "one_output_per_attempt", f"the {str(made)!r} of {flow} is at {places}"
                )
        for (stage, instance_id, _), attempts in of_stages.items():
            if len(attempts) > 1 and not again and stage not in _on_failure(flow):
                yield Violation(
                    "one_output_per_attempt",
                    f"stage {stage} of instance {instance_id} of {flow} has outputs of attempts "
                    f"{sorted(attempts)}",
                )


def completions_stay(flows: Flows) -> Iterator[Violation]:
    """A stage whose completion was confirmed is done, unless it was to be done again."""
    known = {f"{flow.name}#{flow.id}": flow for flow in flows.declared}
    for settle in flows.history.of(Settle):
        flow = known.get(settle.group)
        if settle.how != "complete" or settle.outcome != "ok" or flow is None:
            continue
        again = any(each.is_whole for each in flows.steered(flow.name, "retry"))
        if flow.has_dropped or flows.has_lost(flow.spec.replica_set):
            continue
        for first, last in settle.ranges:
            for instance_id in range(first, last + 1):
                run = flow.rows.runs.get((settle.member, instance_id))
                flows.judged["completions_stay"] += 1
                may_be_open = again or _is_off_the_way(flow, settle.member, instance_id)
                if run is None or (run.status != DONE and not may_be_open):
                    yield Violation(
                        "completions_stay",
                        f"stage {settle.member} of instance {instance_id} of {settle.group} was "
                        f"completed by {settle.client}; the tables have {run}",
                    )
                    return


def _is_off_the_way(flow: Flow, stage: str, instance_id: int) -> bool:
    """Whether an instance may be done without the stage: it is for failures, or one of an earlier
    definition that this instance has caught up with a later one of."""
    instance = flow.rows.instances.get(instance_id)
    spec = flow.spec if instance is None else flow.definitions.get(instance.version, flow.spec)
    return stage in _on_failure(flow) or all(each.name != stage for each in spec.stages)


_ALL: Final[tuple[FlowCheck, ...]] = (
    one_instance_per_trigger,
    nothing_is_passed_over,
    instances_are_what_their_stages_are,
    counters_agree,
    every_instance_ends,
    given_up_is_told_once,
    stages_fail_after_all_attempts,
    one_output_per_stage,
    one_output_per_attempt,
    completions_stay,
    *waits.CHECKS,
)


def _of_one(check: FlowCheck) -> Callable[[Evidence], Iterator[Violation]]:
    @wraps(check)
    def judge(evidence: Evidence) -> Iterator[Violation]:
        known = evidence.reference
        homes = {
            spec_of(known.specs[each][0]).replica_set
            for each in known.pipelines
            if known.objects.get(each, ("",))[0] == "Pipeline"
        }
        if len(homes) != 1 or len(known.replica_sets) > 1:
            # Of several sets all are judged together.
            return iter(())
        return check(Flows(evidence.history, {homes.pop(): evidence}, evidence.judged))

    return judge


def _of_several(check: FlowCheck) -> Callable[[Cluster], Iterator[Violation]]:
    @wraps(check)
    def judge(cluster: Cluster) -> Iterator[Violation]:
        return check(Flows(cluster.history, cluster.sets))

    return judge


CHECKS: Final = tuple(map(_of_one, _ALL))
REGION_CHECKS: Final = tuple(map(_of_several, _ALL))
