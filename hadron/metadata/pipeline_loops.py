"""Pipelines whose outputs come back to their own input, by themselves or through others.

When every pipeline on such a way takes every record, each instance starts another one, for ever:
that is refused. Where one of them has triggers, it depends on the types of the outputs, which only
the records know: that is told.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from hadron.model.pipelines import PipelineSpec, StreamPipelineSpec, matches_type
from hadron.model.problems import ValuePath, shorten
from hadron.model.schema import SchemaObject

Place = tuple[str, str]
"""(namespace, stream): what a pipeline reads, and where its outputs go."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An output that leads back to its pipeline's input.

    Attributes:
        path: where the output's stream is declared.
        through: the pipelines on the way, this one left out.
        is_endless: all of them, this one too, take every record.
    """

    path: ValuePath
    stream: str
    through: tuple[SchemaObject, ...]
    is_endless: bool

    def __str__(self) -> str:
        """As the beginning of a sentence."""
        if not self.through:
            return f"{shorten(self.stream)} is the pipeline's own input"
        names = ", ".join(shorten(each.name) for each in self.through)
        return f"{shorten(self.stream)} leads back to the pipeline's input, through {names}"


class Loops:
    """Who reads what, of all pipelines that there are."""

    def __init__(self, objects: Iterable[SchemaObject]) -> None:
        self._readers: dict[Place, list[SchemaObject]] = {}
        for obj in objects:
            if isinstance(obj.spec, PipelineSpec | StreamPipelineSpec):
                self._readers.setdefault(_input(obj), []).append(obj)
        self._suspects = self._find_suspects()

    def _find_suspects(self) -> set[Place]:
        """The places that may lie on a loop: no order of all places has them, in which outputs come
        after inputs. Mostly there are none, however many pipelines there are."""
        sources: dict[Place, set[Place]] = {}
        for place, readers in self._readers.items():
            sources.setdefault(place, set())
            for output in (each for reader in readers for _, each in _outputs(reader)):
                sources.setdefault(output, set()).add(place)
        order = TopologicalSorter(sources)
        with contextlib.suppress(CycleError):
            order.prepare()
        suspects = set(sources)
        while ready := order.get_ready():
            order.done(*ready)
            suspects.difference_update(ready)
        return suspects

    def of(self, obj: SchemaObject) -> list[Loop]:
        """For each output of this pipeline that comes back to its input: how. An endless way counts
        before a shorter one."""
        found: list[Loop] = []
        start = _input(obj)
        for path, output in _outputs(obj):
            if not {output, start} <= self._suspects:
                continue
            endless = self._way(output, start, True) if _takes_all(obj) else None
            way = self._way(output, start, False) if endless is None else endless
            if way is not None:
                found.append(Loop(path, output[1], way, endless is not None))
        return found

    def _way(self, start: Place, end: Place, only_all: bool) -> tuple[SchemaObject, ...] | None:
        """The pipelines on a shortest way; None where there is no way."""
        came: dict[Place, tuple[Place, SchemaObject] | None] = {start: None}
        ahead = deque([start])
        while ahead:
            place = ahead.popleft()
            if place == end:
                way: list[SchemaObject] = []
                while (step := came[place]) is not None:
                    place = step[0]
                    way.append(step[1])
                return tuple(reversed(way))
            for reader in self._readers.get(place, ()):
                if only_all and not _takes_all(reader):
                    continue
                for _, following in _outputs(reader):
                    if following not in came and following in self._suspects:
                        came[following] = place, reader
                        ahead.append(following)
        return None


def _input(obj: SchemaObject) -> Place:
    spec = obj.spec
    if isinstance(spec, StreamPipelineSpec):
        return obj.namespace, spec.source.stream
    assert isinstance(spec, PipelineSpec)
    return obj.namespace, spec.input


def _outputs(obj: SchemaObject) -> list[tuple[ValuePath, Place]]:
    """Each with where it is declared."""
    spec = obj.spec
    if isinstance(spec, StreamPipelineSpec):
        return [(("to", "stream"), (obj.namespace, spec.to.stream))]
    assert isinstance(spec, PipelineSpec)
    return [
        (("stages", index, "output", "stream"), (obj.namespace, stage.output.stream))
        for index, stage in enumerate(spec.stages)
        if stage.output is not None
    ]


def _takes_all(obj: SchemaObject) -> bool:
    return not isinstance(obj.spec, PipelineSpec) or matches_type(obj.spec.triggers, "")
