"""How much shorter retentions would drop at once, asked of those who have the records.

The metadata set's leader judges a change, and the records are anywhere in the cluster. What is not
told within a second is not known, and counts as something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import trio

from hadron.metadata.judging import Key, Losses, key_of
from hadron.metadata.shortening import shortened
from hadron.model.errors import HadronError
from hadron.model.problems import some_of
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.state.streams.retention import Kept

CountKept = Callable[[str, int, int], Awaitable[Kept]]
"""Told (partition, stream's id, a time in ms); raises `HadronError` or `OSError`."""

_ANSWER_WITHIN_S: Final = 1.0

_AT_ONCE: Final = 64
"""Asked for at a time, of all partitions together; one of each if there are more."""


async def losses(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    count: CountKept,
    now_ms: int,
) -> Losses:
    """What each limit that is shortened drops, in words; "" where that is nothing."""
    changes: list[tuple[SchemaObject, StreamSpec, StreamSpec]] = []
    for declared in objects:
        before = existing.get(key_of(declared))
        if before is not None and _is_shortened(before, declared):
            assert isinstance(before.spec, StreamSpec)
            assert isinstance(declared.spec, StreamSpec)
            changes.append((before, before.spec, declared.spec))
    asked: dict[str, list[tuple[int, int]]] = {}
    for before, spec, after in changes:
        for partition in spec.partitions:
            wanted = before.id, now_ms - after.retention.max_age_ms
            asked.setdefault(partition, []).append(wanted)
    kept = await _ask(asked, count)
    found: dict[tuple[Key, str], str] = {}
    for before, spec, after in changes:
        there = {
            each: kept[each, before.id] for each in spec.partitions if (each, before.id) in kept
        }
        silent = [each for each in spec.partitions if each not in there]
        for limit, text in _dropped(after.retention, there.values(), silent):
            found[key_of(before), limit] = text
    return found


async def _ask(
    asked: Mapping[str, Sequence[tuple[int, int]]], count: CountKept
) -> dict[tuple[str, int], Kept]:
    """What is told within a second, by partition and stream. A few are asked for at a time: of ten
    thousand streams that one change shortens, all would answer in one turn of the loop. Who is away
    takes nobody else's turn.

    Args:
        asked: by partition, streams' ids and times in ms.
    """
    kept: dict[tuple[str, int], Kept] = {}

    async def ask_on(partition: str, ahead: Iterator[tuple[int, int]]) -> None:
        for stream_id, before_ms in ahead:
            try:
                kept[partition, stream_id] = await count(partition, stream_id, before_ms)
            except (HadronError, OSError):
                # Not known, as what is away. It may have failed at once.
                await trio.lowlevel.checkpoint()

    with trio.move_on_after(_ANSWER_WITHIN_S):
        async with trio.open_nursery() as nursery:
            for partition, streams in asked.items():
                ahead = iter(streams)
                for _ in range(min(len(streams), max(1, _AT_ONCE // len(asked)))):
                    nursery.start_soon(ask_on, partition, ahead)
    return kept


def _is_shortened(before: SchemaObject, after: SchemaObject) -> bool:
    assert isinstance(before.spec, StreamSpec) == isinstance(after.spec, StreamSpec)
    return (
        isinstance(before.spec, StreamSpec)
        and isinstance(after.spec, StreamSpec)
        and bool(shortened(before.spec.retention, after.spec.retention))
    )


def _dropped(
    limits: Retention, kept: Collection[Kept], silent: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """By limit."""
    if limits.max_age_ms:
        older = sum(each.older for each in kept)
        of = f"{older} of {sum(each.records for each in kept)} records"
        yield "max_age", _told(of if older else "", silent)
    if limits.max_bytes:
        beyond = sum(max(0, each.bytes - limits.max_bytes) for each in kept)
        of = f"{beyond} of {sum(each.bytes for each in kept)} bytes"
        yield "max_bytes", _told(of if beyond else "", silent)


def _told(goes: str, silent: Sequence[str]) -> str:
    """Partitions that are away may lose anything."""
    unknown = f"unknown at {some_of(silent)}, which did not tell" if silent else ""
    return ", ".join(filter(None, [f"about {goes}" if goes else "", unknown]))
