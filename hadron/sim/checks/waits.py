"""Checks of stages that wait (docs/PIPELINES.md P14): for a record with the key of their trigger,
which its value says (`made.keyed`), or for a signal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hadron.model.pipelines import StageSpec, matches_type
from hadron.sim.checks.flows import DONE, FAILED, READY, TOO_LATE, Flow, FlowCheck, Flows
from hadron.sim.evidence.evidence import Contents, Violation
from hadron.sim.evidence.history import Settle
from hadron.sim.evidence.made import keyed
from hadron.sim.evidence.node_files import InstanceRow, RunRow


def the_first_record_counts(flows: Flows) -> Iterator[Violation]:
    """A stage that waited for a record has one with the key of its trigger, and of a type that it
    waits for; and the first one of those behind its trigger, where they are in its home's log.
    Values say the types, too. What was retried, or filled in, may have come late."""
    for flow in flows.declared:
        if flows.steered(flow.name, "retry") or flows.steered(flow.name, "backfill"):
            continue
        for instance, stage, run in _waits(flow):
            trigger = flows.contents(instance.partition, instance.stream_id)
            wanted = keyed(trigger.values.get(instance.offset, "")) if trigger is not None else None
            known = flows.contents(run.partition or "", run.stream_id or 0)
            if trigger is None or wanted is None or known is None or run.status != DONE:
                continue
            assert stage.wait is not None
            flows.judged["the_first_record_counts"] += 1
            fitting = _fitting(known, wanted.key, stage)
            who = f"stage {stage.name} of the instance of {wanted.key} of {flow}"
            if run.offset not in fitting:
                yield Violation(
                    "the_first_record_counts",
                    f"{who} has waited for offset {run.offset} of {run.partition}, which is "
                    f"{known.values.get(run.offset or 0)!r}",
                )
            if run.partition == instance.partition == flow.spec.replica_set:
                began = trigger.lsns[instance.offset]
                earlier = [
                    each
                    for each in fitting
                    if each < (run.offset or 0) and known.lsns[each] > began
                ]
                if earlier:
                    yield Violation(
                        "the_first_record_counts",
                        f"{who} has waited for offset {run.offset} of {run.partition}; "
                        f"{earlier} came before, behind its trigger",
                    )


def _fitting(contents: Contents, key: str, stage: StageSpec) -> list[int]:
    """Offsets of the records that it may wait for."""
    assert stage.wait is not None
    return [
        offset
        for offset, value in contents.values.items()
        if (said := keyed(value)) is not None
        and said.key == key
        and matches_type(stage.wait.types, said.does)
    ]


def who_was_signalled_goes_on(flows: Flows) -> Iterator[Violation]:
    """A stage does not wait whose signal was confirmed, nor has it waited for too long: it is done,
    or its turn does not come. It is not done if its signal was refused, or there was none."""
    for flow in flows.declared:
        if flows.has_lost(flow.spec.replica_set):
            continue
        asked: dict[tuple[str, int], set[str]] = {}
        for settle in flows.history.of(Settle):
            if settle.how == "signal" and settle.group == f"{flow.name}#{flow.id}":
                for first, last in settle.ranges:
                    for instance_id in range(first, last + 1):
                        outcomes = asked.setdefault((settle.member, instance_id), set())
                        outcomes.add(settle.outcome)
        if not asked:
            continue
        flows.judged["who_was_signalled_goes_on"] += 1
        for (stage, instance_id), run in sorted(flow.rows.runs.items()):
            outcomes = asked.get((stage, instance_id), set())
            wrong = ""
            if "ok" in outcomes and run.status in (READY, FAILED, TOO_LATE):
                wrong = f"was signalled, and has status {run.status}"
            if "refused" in outcomes and run.status in (READY, DONE):
                wrong = f"does not wait any more, somebody was told, and has status {run.status}"
            if not outcomes and run.status == DONE and _waits_for_people(flow, stage):
                wrong = "is done, and nobody has signalled it"
            if wrong:
                yield Violation(
                    "who_was_signalled_goes_on",
                    f"stage {stage} of instance {instance_id} of {flow} {wrong}",
                )


def _waits_for_people(flow: Flow, stage: str) -> bool:
    return any(
        each.name == stage and each.wait is not None and each.wait.signal
        for each in flow.spec.stages
    )


def _waits(flow: Flow) -> Iterator[tuple[InstanceRow, StageSpec, RunRow]]:
    """Whatever waits for records, as its instance has it."""
    definitions = flow.definitions
    for (name, instance_id), run in sorted(flow.rows.runs.items()):
        instance = flow.rows.instances.get(instance_id)
        definition = definitions.get(instance.version) if instance is not None else None
        if instance is None or definition is None:
            continue
        for stage in definition.stages:
            if stage.name == name and stage.wait is not None and stage.wait.stream:
                yield instance, stage, run


CHECKS: Final[tuple[FlowCheck, ...]] = (the_first_record_counts, who_was_signalled_goes_on)
