"""Pipelines whose outputs come back to their own input, by themselves or through others.

When every pipeline on such a way takes every record, each instance starts another one, for ever:
that is refused. Where one of them has triggers, it depends on the types of the outputs, which only
the records know: that is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hadron.model.pipelines import PipelineSpec, StreamPipelineSpec, matches_type
from hadron.model.problems import ValuePath, shorten, some_of
from hadron.model.schema import SchemaObject

Place = tuple[str, str]
"""(namespace, stream): what a pipeline reads, and where its outputs go."""

_WAYS: Final = 10
"""Loops of which it is told through whom: each may be as long as there are pipelines."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An output that leads back to its pipeline's input.

    Attributes:
        path: where the output's stream is declared.
        through: the pipelines on the way, this one left out; None where it was not looked for.
        is_endless: all of them, this one too, take every record.
    """

    path: ValuePath
    stream: str
    through: tuple[SchemaObject, ...] | None
    is_endless: bool

    def __str__(self) -> str:
        """As the beginning of a sentence."""
        if self.through == ():
            return f"{shorten(self.stream)} is the pipeline's own input"
        told = f"{shorten(self.stream)} leads back to the pipeline's input"
        if self.through is None:
            return told
        return f"{told}, through {some_of([shorten(each.name) for each in self.through])}"


class Loops:
    """Who reads what, of all pipelines that there are.

    Which places lie on loops is found out once, at a cost that grows with the pipelines and their
    outputs; which way a loop goes, with one look at all of it, for the first that are asked for.
    """

    def __init__(self, objects: Iterable[SchemaObject]) -> None:
        self._readers: dict[Place, list[SchemaObject]] = {}
        for obj in objects:
            if isinstance(obj.spec, PipelineSpec | StreamPipelineSpec):
                self._readers.setdefault(_input(obj), []).append(obj)
        self._knots = {each: _knots(self._following(each)) for each in (False, True)}
        """By whether only pipelines that take every record count."""
        self._ways_left = _WAYS

    def _following(self, only_all: bool) -> dict[Place, list[Place]]:
        """Where the outputs of those go who read a place."""
        following: dict[Place, list[Place]] = {}
        for place, readers in self._readers.items():
            outputs = [
                output
                for reader in readers
                if not only_all or _takes_all(reader)
                for _, output in _outputs(reader)
            ]
            following[place] = outputs
        return following

    def of(self, obj: SchemaObject, *, only_endless: bool = False) -> list[Loop]:
        """For each output of this pipeline, which is among the objects, that comes back to its
        input: how. An endless way counts before a shorter one."""
        found: list[Loop] = []
        start, takes_all = _input(obj), _takes_all(obj)
        for path, output in _outputs(obj):
            is_endless = takes_all and self._comes_back(output, start, True)
            if is_endless or (not only_endless and self._comes_back(output, start, False)):
                way = self._way(output, start, is_endless)
                found.append(Loop(path, output[1], way, is_endless))
        return found

    def _comes_back(self, output: Place, start: Place, only_all: bool) -> bool:
        """Whether what goes from one to the other by a pipeline comes back."""
        knot = self._knots[only_all]
        return output == start or (output in knot and knot[output] == knot.get(start))

    def _way(self, start: Place, end: Place, only_all: bool) -> tuple[SchemaObject, ...] | None:
        """The pipelines on a shortest way, which there is; None once enough were told of others."""
        if start != end and not self._ways_left:
            return None
        self._ways_left -= start != end
        knot = self._knots[only_all]
        came: dict[Place, tuple[Place, SchemaObject]] = {}
        ahead = deque([start])
        while end not in came and start != end:
            place = ahead.popleft()
            for reader in self._readers[place]:
                if only_all and not _takes_all(reader):
                    continue
                for _, following in _outputs(reader):
                    if following not in came and knot[following] == knot[end]:
                        came[following] = place, reader
                        ahead.append(following)
        way: list[SchemaObject] = []
        while end != start:
            end, reader = came[end]
            way.append(reader)
        return tuple(reversed(way))


def _knots(following: Mapping[Place, Iterable[Place]]) -> dict[Place, int]:
    """The same number for places that can all be reached from each other, in one walk over all of
    them: H. N. Gabow, "Path-based depth-first search for strong and biconnected components",
    Information Processing Letters 74 (2000). Without recursion, as a way may be of any length."""
    numbers: dict[Place, int] = {}
    found: dict[Place, int] = {}
    undecided: list[Place] = []
    heads: list[Place] = []
    """The first place of each knot on the way here, as far as is known."""
    for root in following:
        walk: list[tuple[Place, Iterator[Place]]] = []
        ahead: Place | None = root if root not in numbers else None
        while ahead is not None or walk:
            if ahead is not None:
                numbers[ahead] = len(numbers)
                undecided.append(ahead)
                heads.append(ahead)
                walk.append((ahead, iter(following.get(ahead, ()))))
            place, left = walk[-1]
            ahead = None
            for each in left:
                if each not in numbers:
                    ahead = each
                    break
                while each not in found and numbers[heads[-1]] > numbers[each]:
                    heads.pop()
            else:
                walk.pop()
                if heads[-1] == place:
                    heads.pop()
                    while place not in found:
                        found[undecided.pop()] = numbers[place]
    return found


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
