"""The judge of several replica sets: each by itself, as any, and what holds between them.

Between them: every set's schema is what the metadata set's log says (PROTOCOL A4), a record is
published once, in one of the partitions that it may be in (D1), and an acknowledged change of the
schema stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from hadron.sim.checks import pipelines, transactions
from hadron.sim.checks.checker import SHOWN, Verdict, check_evidence
from hadron.sim.evidence.evidence import Violation
from hadron.sim.evidence.history import CLUSTER, Apply, Event, Publish
from hadron.sim.evidence.regions import Cluster
from hadron.sim.evidence.schema_log import SchemaLog, State, state_of


def _recovered_at(cluster: Cluster) -> int:
    """When an operator last went on with a metadata set that may have lost its log's end; 0: never.
    What other sets had adopted of that stays there, and the metadata set's log does not say it."""
    nodes = {file.name for file in cluster.files[cluster.metadata]}
    return max(
        (
            event.at
            for event in cluster.history.events("reconfigure")
            if event.detail == "loss" and event.subject in nodes
        ),
        default=0,
    )


def _taken_back(cluster: Cluster) -> Iterator[Apply]:
    """Changes of the schema that a restored backup need not have: they were acknowledged after it
    was begun, and before it was restored."""
    entries = cluster.history.entries
    for place, event in enumerate(entries):
        if isinstance(event, Event) and event.kind == "restore" and event.detail == CLUSTER:
            for before in entries[:place]:
                if isinstance(before, Apply) and before.ended > event.at:
                    yield before


RegionCheck = Callable[[Cluster], Iterable[Violation]]


def schema_is_the_metadata_sets(cluster: Cluster) -> Iterator[Violation]:
    """Every node's schema, as of its index, is what the metadata set's log says for it."""
    log = SchemaLog.of(cluster)
    has_lost = _recovered_at(cluster) > 0
    for name, files in cluster.files.items():
        for file in files:
            if 0 in file.damage or file.applied_lsn == 0:
                continue
            found = state_of(file)
            if has_lost:
                found = found.without(found.objects.keys() - log.ids)
            expected = log.at.get(file.schema_index)
            if expected is None:
                yield Violation(
                    "schema_is_the_metadata_sets",
                    f"{file.name} of {name} stands at index {file.schema_index}, where the "
                    f"metadata set's schema never stood",
                )
            elif difference := expected.difference(found):
                yield Violation(
                    "schema_is_the_metadata_sets",
                    f"{file.name} of {name} at index {file.schema_index}: {difference}",
                )


def pushes_follow_each_other(cluster: Cluster) -> Iterator[Violation]:
    """What a set has logged of the schema leads from index to index without a gap, and each time to
    what the metadata set had there."""
    log = SchemaLog.of(cluster)
    if _recovered_at(cluster):
        return
    for name, evidence in cluster.sets.items():
        if name != cluster.metadata:
            for trouble in log.adopted_wrongly(evidence.reference, evidence.committed):
                yield Violation("pushes_follow_each_other", f"{name}: {trouble}")


def schema_arrives_everywhere(cluster: Cluster) -> Iterator[Violation]:
    """Once everything is healed all nodes stand at the metadata set's index."""
    if not cluster.history.events("heal"):
        return
    end = max((file.schema_index for file in cluster.files[cluster.metadata]), default=0)
    for name, files in cluster.files.items():
        for file in files:
            if 0 not in file.damage and file.schema_index != end:
                yield Violation(
                    "schema_arrives_everywhere",
                    f"{file.name} of {name} stands at index {file.schema_index}, the metadata set "
                    f"at {end}",
                )


def schema_changes_stay(cluster: Cluster) -> Iterator[Violation]:
    """As of the index that came with an acknowledgement, what was declared exists; and what was
    deleted is gone for ever."""
    log = SchemaLog.of(cluster)
    recovered_at = _recovered_at(cluster)
    taken_back = {id(operation) for operation in _taken_back(cluster)}
    for operation in cluster.history.of(Apply):
        if operation.outcome != "ok" or operation.began < recovered_at:
            continue
        if id(operation) in taken_back:
            continue
        if operation.deletes:
            if kept := log.end.objects.keys() & set(operation.ids):
                yield Violation(
                    "schema_changes_stay",
                    f"{operation.client} was told that {operation.objects} are deleted; the log "
                    f"still has {sorted(kept)}",
                )
            continue
        state: State = log.at.get(operation.metadata_index, State())
        known = {(kind, name) for kind, _, name, _, _ in state.objects.values()}
        for item in operation.objects:
            if tuple(item) not in known:
                yield Violation(
                    "schema_changes_stay",
                    f"{item} was declared at index {operation.metadata_index}, where the metadata "
                    "set's log does not have it",
                )


def published_once(cluster: Cluster) -> Iterator[Violation]:
    """No record is in two partitions, unless its producer prefers twice to unknown; and each is in
    one that it may be in."""
    publishes = {
        value: publish for publish in cluster.history.of(Publish) for value in publish.values
    }
    places: dict[str, str] = {}
    for name, evidence in cluster.sets.items():
        for stream, contents in evidence.streams.items():
            for offset, value in contents.values.items():
                publish = publishes.get(value)
                if publish is None:
                    continue
                place = f"{stream}@{offset} of {name}"
                if publish.allowed and name not in publish.allowed:
                    yield Violation(
                        "published_once",
                        f"{value!r} may be in {', '.join(publish.allowed)} only; it is at {place}",
                    )
                if value in places and publish.failover != "duplicate":
                    yield Violation(
                        "published_once",
                        f"{value!r} of {publish.client} (failover {publish.failover or 'none'}, "
                        f"{publish.outcome}) is at {places[value]} and at {place}",
                    )
                places[value] = place


CHECKS: Final[tuple[RegionCheck, ...]] = (
    schema_is_the_metadata_sets,
    pushes_follow_each_other,
    schema_arrives_everywhere,
    schema_changes_stay,
    published_once,
    *transactions.REGION_CHECKS,
    *pipelines.REGION_CHECKS,
)


def check_regions(cluster: Cluster) -> Verdict:
    """Judge each replica set by itself, and all of them together."""
    violations: list[Violation] = []
    judged: set[str] = set()
    for name, evidence in cluster.sets.items():
        verdict = check_evidence(evidence)
        judged |= verdict.judged
        violations.extend(
            Violation(f"{name}: {each.invariant}", each.message) for each in verdict.violations
        )
    for judge in CHECKS:
        violations.extend(islice(judge(cluster), SHOWN))
    return Verdict.of(cluster.history, violations, judged)
