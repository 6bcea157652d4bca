"""Streams that come and go under one name, told apart.

A stream that was deleted and created again is another stream (PROTOCOL D3): where that may happen a
history calls it `name#id`, and so do the files that it is held against. What clients did with one
that is gone at the end cannot be held against anything; what leaders gave to its groups can. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from hadron.sim.evidence.history import Deliver, Entry, History, Publish, Read, Serve, Settle
from hadron.sim.evidence.node_files import NodeFile

PASSING: Final = ("passing0", "passing1")
"""The streams that come and go."""


def label(name: str, object_id: int) -> str:
    """What a history calls a stream that may come and go."""
    return f"{name}#{object_id}"


def plain(name: str) -> str:
    """What a stream that a history calls so was declared as."""
    return name.partition("#")[0]


def labelled_in(history: History) -> frozenset[str]:
    """Names of streams that the history tells apart."""
    return frozenset(
        plain(entry.stream)
        for entry in history.entries
        if isinstance(entry, Publish | Read | Deliver | Settle | Serve) and "#" in entry.stream
    )


def labelled(file: NodeFile, names: Collection[str]) -> NodeFile:
    """A file that calls streams with these names as a history does."""
    return replace(
        file,
        objects={
            object_id: (
                kind,
                namespace,
                label(name, object_id) if kind == "Stream" and name in names else name,
            )
            for object_id, (kind, namespace, name) in file.objects.items()
        },
    )


def streams_of(files: Iterable[NodeFile]) -> frozenset[str]:
    """Those that exist, as any of the files has them."""
    return frozenset(
        name for file in files for kind, _, name in file.objects.values() if kind == "Stream"
    )


def of_those_that_exist(entries: Iterable[Entry], streams: Collection[str]) -> list[Entry]:
    """Without what was done with others, as far as it cannot be judged."""
    kept = list(entries)
    served = {(each.stream, each.group) for each in kept if isinstance(each, Serve)}
    return [
        entry
        for entry in kept
        if not isinstance(entry, Publish | Read | Deliver | Settle)
        or "#" not in entry.stream
        or entry.stream in streams
        or (isinstance(entry, Settle) and (entry.stream, entry.group) in served)
    ]
