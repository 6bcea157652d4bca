"""How much limits of retention would drop at once, asked of those who have the records: by those
that are shortened everywhere, and by all where a partition is added. It may have been there before,
and what was taken from the stream is kept without limits.

The metadata set's leader judges a change, and the records are anywhere in the cluster. What is not
told within a second is not known, and counts as something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from hadron.metadata.judging import Key, Losses, key_of
from hadron.metadata.shortening import shortened
from hadron.model.errors import HadronError, RequestError
from hadron.model.problems import some_of
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.state.streams.retention import Kept

CountKept = Callable[[str, int, int], Awaitable[Kept]]
"""Told (partition, stream's id, a time in ms); raises `HadronError` or `OSError`."""

_ANSWER_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Stream:
    """One that may lose something.

    Attributes:
        limits: as they will hold.
        counted: the partitions where a limit may drop something, by its key.
    """

    key: Key
    id: int
    limits: Retention
    counted: Mapping[str, Sequence[str]]

    @property
    def partitions(self) -> Sequence[str]:
        return list(dict.fromkeys(name for names in self.counted.values() for name in names))


async def losses(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    count: CountKept,
    now_ms: int,
    questions: trio.CapacityLimiter,
) -> Losses:
    """What each limit drops that is shortened, or comes to a partition that is added, in words; ""
    where that is nothing.

    Args:
        questions: how many are asked at the same time.
    """
    streams = list(_losing(objects, existing))
    asked: dict[str, list[_Stream]] = {}
    for stream in streams:
        for partition in stream.partitions:
            asked.setdefault(partition, []).append(stream)
    kept: dict[tuple[str, int], Kept] = {}
    async with trio.open_nursery() as nursery:
        for partition, some in asked.items():
            nursery.start_soon(_ask, partition, some, count, now_ms, questions, kept)
    return {
        (stream.key, limit): _lost(stream, limit, kept)
        for stream in streams
        for limit in stream.counted
    }


async def _ask(
    partition: str,
    streams: Sequence[_Stream],
    count: CountKept,
    now_ms: int,
    questions: trio.CapacityLimiter,
    kept: dict[tuple[str, int], Kept],
) -> None:
    """Ask a leader of one stream after the other. Who has left a question without an answer, which
    has a time of its own, is asked no further one."""
    is_silent = False
    left = iter(streams)

    async def ask_some() -> None:
        nonlocal is_silent
        for stream in left:
            async with questions:
                if is_silent:
                    return
                before_ms = now_ms - stream.limits.max_age_ms
                try:
                    with trio.fail_after(_ANSWER_WITHIN_S):
                        kept[partition, stream.id] = await count(partition, stream.id, before_ms)
                except RequestError:
                    # It is of this stream alone that it cannot tell.
                    continue
                except (HadronError, OSError, trio.TooSlowError):
                    is_silent = True

    async with trio.open_nursery() as nursery:
        for _ in range(min(len(streams), round(questions.total_tokens))):
            nursery.start_soon(ask_some)


def _losing(
    objects: Sequence[SchemaObject], existing: Mapping[Key, SchemaObject]
) -> Iterator[_Stream]:
    for declared in objects:
        before, after = existing.get(key_of(declared)), declared.spec
        if before is None or not isinstance(after, StreamSpec):
            continue
        assert isinstance(before.spec, StreamSpec)
        counted = _counted(before.spec, after)
        if any(counted.values()):
            yield _Stream(key_of(declared), before.id, after.retention, counted)


def _counted(before: StreamSpec, after: StreamSpec) -> dict[str, list[str]]:
    shorter = {each.key for each in shortened(before.retention, after.retention)}
    stay = frozenset(before.partitions)
    return {
        limit.key: [
            name
            for name in dict.fromkeys(after.partitions)
            if limit.key in shorter or name not in stay
        ]
        for limit in shortened(Retention(), after.retention)
    }


def _lost(stream: _Stream, limit: str, kept: Mapping[tuple[str, int], Kept]) -> str:
    partitions = stream.counted[limit]
    told = [kept[name, stream.id] for name in partitions if (name, stream.id) in kept]
    silent = [name for name in partitions if (name, stream.id) not in kept]
    return _told(_beyond(limit, stream.limits, told), silent)


def _beyond(key: str, limits: Retention, told: Sequence[Kept]) -> str:
    """What a limit drops of what partitions have, in words; "" for nothing."""
    if key == "max_age":
        goes, of, what = (
            sum(each.older for each in told),
            sum(each.records for each in told),
            "records",
        )
    else:
        goes = sum(max(0, each.bytes - limits.max_bytes) for each in told)
        of, what = sum(each.bytes for each in told), "bytes"
    return f"{goes} of {of} {what}" if goes else ""


def _told(goes: str, silent: Sequence[str]) -> str:
    """Partitions that are away may lose anything."""
    unknown = f"unknown at {some_of(silent)}, which did not tell" if silent else ""
    return ", ".join(filter(None, [f"about {goes}" if goes else "", unknown]))
