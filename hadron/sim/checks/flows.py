"""Pipelines as their homes' files have them, over all replica sets at once: what checks of them
share. Inputs and outputs may be at others than a pipeline's home, whose tables say what became of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec
from hadron.sim.evidence.evidence import Contents, Evidence, Violation
from hadron.sim.evidence.history import CLUSTER, Apply, History, Steer
from hadron.sim.evidence.node_files import PipelineRows

LIVE: Final = 1
READY: Final = 1
DONE: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
PUBLISHING: Final = 4
TOO_LATE: Final = 6
PASSED: Final = (5, TOO_LATE)
"""Of stages: skipped, or they have waited for too long and the instance has gone another way."""


class Flow(NamedTuple):
    """A pipeline that is declared, as its home has it."""

    id: int
    name: str
    spec: PipelineSpec
    input_id: int
    rows: PipelineRows

    @property
    def has_dropped(self) -> bool:
        """Whether instances are gone that had ended."""
        return len(self.rows.instances) < self.rows.counts[4] - 1

    @property
    def definitions(self) -> dict[int, PipelineSpec]:
        """By version."""
        return {version: spec_of(text) for version, text in self.rows.definitions.items()}

    def __str__(self) -> str:
        return f"pipeline {self.name}"


def spec_of(text: str) -> PipelineSpec:
    found = spec_from_json("Pipeline", text)
    assert isinstance(found, PipelineSpec)
    return found


@dataclass
class Flows:
    """What became of all pipelines, by the files of all sets.

    Attributes:
        sets: each replica set, by its name.
    """

    history: History
    sets: Mapping[str, Evidence]
    judged: Counter[str] = field(default_factory=Counter)

    @cached_property
    def declared(self) -> list[Flow]:
        """Each where it lives."""
        found = []
        for name, evidence in self.sets.items():
            known = evidence.reference
            for object_id, rows in sorted(known.pipelines.items()):
                kind, space, called = known.objects.get(object_id, ("", "", ""))
                if kind == "Pipeline" and rows.counts:
                    spec = spec_of(known.specs[object_id][0])
                    if spec.replica_set == name:
                        streams = known.objects.items()
                        wanted = "Stream", space, spec.input
                        input_id = next((each for each, name in streams if name == wanted), 0)
                        found.append(Flow(object_id, called, spec, input_id, rows))
        return found

    def contents(self, partition: str, stream_id: int) -> Contents | None:
        evidence = self.sets.get(partition)
        if evidence is None:
            return None
        known = evidence.streams.values()
        return next((each for each in known if each.stream_id == stream_id), None)

    def stream(self, name: str) -> Iterator[tuple[str, Contents]]:
        """Its partitions."""
        for partition, evidence in self.sets.items():
            if name in evidence.streams:
                yield partition, evidence.streams[name]

    def applied(self, name: str, *, deletes: bool) -> int:
        """How often a pipeline may have been declared, or deleted."""
        return sum(
            each.deletes == deletes
            and each.outcome != "refused"
            and ("Pipeline", name) in map(tuple, each.objects)
            for each in self.history.of(Apply)
        )

    def steered(self, name: str, what: str) -> list[Steer]:
        """What people may have done with it."""
        return [
            each
            for each in self.history.of(Steer)
            if (each.pipeline, each.what) == (name, what) and each.outcome != "refused"
        ]

    def has_lost(self, partition: str) -> bool:
        """Whether a set has gone on without the end of its log, or from a backup."""
        nodes = {file.name for file in self.sets[partition].files}
        return any(
            (event.kind == "reconfigure" and event.detail == "loss" and event.subject in nodes)
            or (event.kind == "restore" and event.detail == CLUSTER)
            for event in self.history.events("reconfigure", "restore")
        )


FlowCheck = Callable[[Flows], Iterator[Violation]]
