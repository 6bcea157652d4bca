"""How much shorter retentions would drop at once, asked of those who have the records.

The metadata set's leader judges a change, and the records are anywhere in the cluster. What is not
told within a second is not known, and counts as something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from hadron.metadata.judging import Key, Losses, key_of
from hadron.metadata.shortening import shortened
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.state.streams.retention import Kept

CountKept = Callable[[str, int, int], Awaitable[Kept]]
"""Told (partition, stream's id, a time in ms); raises `HadronError` or `OSError`."""

_ANSWER_WITHIN_S: Final = 1.0


async def losses(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    count: CountKept,
    now_ms: int,
) -> Losses:
    """What each limit that is shortened drops, in words; "" where that is nothing."""
    found: dict[tuple[Key, str], str] = {}
    async with trio.open_nursery() as nursery:
        for declared in objects:
            before = existing.get(key_of(declared))
            if before is not None and _is_shortened(before, declared):
                nursery.start_soon(_look, before, declared, count, now_ms, found)
    return found


def _is_shortened(before: SchemaObject, after: SchemaObject) -> bool:
    assert isinstance(before.spec, StreamSpec) == isinstance(after.spec, StreamSpec)
    return (
        isinstance(before.spec, StreamSpec)
        and isinstance(after.spec, StreamSpec)
        and bool(shortened(before.spec.retention, after.spec.retention))
    )


async def _look(
    before: SchemaObject,
    after: SchemaObject,
    count: CountKept,
    now_ms: int,
    found: dict[tuple[Key, str], str],
) -> None:
    assert isinstance(before.spec, StreamSpec)
    assert isinstance(after.spec, StreamSpec)
    limits, kept = after.spec.retention, dict[str, Kept]()

    async def ask(partition: str) -> None:
        try:
            with trio.move_on_after(_ANSWER_WITHIN_S):
                kept[partition] = await count(partition, before.id, now_ms - limits.max_age_ms)
        except (HadronError, OSError):
            # Not known, as what is away.
            return

    async with trio.open_nursery() as nursery:
        for partition in before.spec.partitions:
            nursery.start_soon(ask, partition)
    silent = [each for each in before.spec.partitions if each not in kept]
    key = key_of(after)
    if limits.max_age_ms:
        older = sum(each.older for each in kept.values())
        of = f"{older} of {sum(each.records for each in kept.values())} records"
        found[key, "max_age"] = _told(of if older else "", silent)
    if limits.max_bytes:
        beyond = sum(max(0, each.bytes - limits.max_bytes) for each in kept.values())
        of = f"{beyond} of {sum(each.bytes for each in kept.values())} bytes"
        found[key, "max_bytes"] = _told(of if beyond else "", silent)


def _told(goes: str, silent: Sequence[str]) -> str:
    """Partitions that are away may lose anything."""
    unknown = f"unknown at {', '.join(silent)}, which did not tell" if silent else ""
    return ", ".join(filter(None, [f"about {goes}" if goes else "", unknown]))
