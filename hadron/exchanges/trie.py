"""Which patterns take a topic, in a time that does not grow with how many there are. Pure.

A tree with a level for each segment: a topic is looked up by walking down its segments, at each by
the segment itself and by `*`. So it costs what matches, and at most two to the power of
`model.topics.MAX_SEGMENTS` nodes where somebody has subscribed to as many.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.here: dict[T, None] = {}
        """Whose pattern ends here."""
        self.rest: dict[T, None] = {}
        """Whose pattern ends here with `>`."""

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.here or self.rest)


class Trie(Generic[T]):
    """Items by their patterns, which were checked (`model.topics.check_pattern`).

    Attributes:
        nodes: how many there are: what its memory goes by.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self.nodes = 1

    def add(self, pattern: str, item: T) -> None:
        """Twice is once."""
        segments = pattern.split(".")
        takes_rest = segments[-1] == ">"
        if takes_rest:
            segments.pop()
        node = self._root
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = _Node()
                self.nodes += 1
            node = child
        (node.rest if takes_rest else node.here)[item] = None

    def remove(self, pattern: str, item: T) -> None:
        """What is not there is gone already."""
        segments = pattern.split(".")
        takes_rest = segments[-1] == ">"
        if takes_rest:
            segments.pop()
        path = [self._root]
        for segment in segments:
            child = path[-1].children.get(segment)
            if child is None:
                return
            path.append(child)
        (path[-1].rest if takes_rest else path[-1].here).pop(item, None)
        for segment in reversed(segments):
            if not path.pop().is_empty:
                return
            del path[-1].children[segment]
            self.nodes -= 1

    def match(self, topic: str) -> dict[T, None]:
        """The items whose pattern takes the topic, each once, in an order that is always the
        same."""
        found: dict[T, None] = {}
        level = [self._root]
        for segment in topic.split("."):
            following: list[_Node[T]] = []
            for node in level:
                found.update(node.rest)
                children = node.children
                if segment in children:
                    following.append(children[segment])
                if "*" in children:
                    following.append(children["*"])
            level = following
            if not level:
                return found
        for node in level:
            found.update(node.here)
        return found

    def __iter__(self) -> Iterator[T]:
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield from node.here
            yield from node.rest
            nodes.extend(node.children.values())
