"""Questions that the product answers from its tables, asked of a file at the end of a run: what
nobody asked in the run is answered as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from hadron.model.ports import Database
from hadron.sim.model import asked_pipelines
from hadron.sim.model.groups import Window, numbered, ranges_of
from hadron.sim.model.machine import GROUPS, PIPELINES, STREAMS, Model
from hadron.state import slices
from hadron.state.groups import progress as groups
from hadron.state.streams import partitions as streams
from hadron.state.streams import retention

_PLACES: Final = 12
"""Of a stream, evenly spread over its batches, are asked for."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A question (its name, what was given) and what the product has said."""

    question: str
    given: tuple[Any, ...]
    answer: Any

    @property
    def area(self) -> str:
        if self.question == "window":
            return GROUPS
        return PIPELINES if self.is_of_pipelines else STREAMS

    @property
    def is_of_pipelines(self) -> bool:
        return self.question in asked_pipelines.QUESTIONS


def ask(db: Database) -> list[Answered]:
    """Of every stream, group and pipeline of a file."""
    found = ask_of_pipelines(db)
    for stream_id in streams.all_bounds(db):
        rows = db.execute(
            "SELECT append_ms, bytes FROM hadron_stream_batch WHERE stream_id = ?"
            " ORDER BY base_offset",
            (stream_id,),
        ).fetchall()
        for at_ms in _times(rows):
            answer = streams.offset_at(db, stream_id, at_ms)
            found.append(Answered("offset at", (stream_id, at_ms), answer))
        for older_than_ms, max_bytes in _limits(rows):
            due = retention.due(
                db, stream_id, older_than_ms=older_than_ms, max_bytes=max_bytes, until_lsn=1 << 62
            )
            found.append(Answered("due", (stream_id, older_than_ms, max_bytes), due))
    for group_id, floor in db.execute("SELECT group_id, floor FROM hadron_group").fetchall():
        found += [
            Answered("window", (group_id, offset), groups.window(db, group_id, offset))
            for offset in (floor, floor + 1, floor + 5)
        ]
    return found


def ask_of_pipelines(db: Database) -> list[Answered]:
    return [Answered(*each) for each in asked_pipelines.ask(db)]


def _times(rows: list[Any]) -> Iterator[int]:
    for append_ms, _ in rows[:: max(1, len(rows) // _PLACES)]:
        yield from (append_ms - 1, append_ms, append_ms + 1)


def _limits(rows: list[Any]) -> Iterator[tuple[int, int]]:
    """(Older than, bytes) that drop nothing, some, and all but what is never dropped."""
    if rows:
        sizes = [size for _, size in rows]
        yield 0, 0
        yield 0, 1
        yield 0, sum(sizes) // 2
        yield 0, sizes[-1]
        yield rows[len(rows) // 2][0], 0
        yield rows[-1][0] + 1, 0


def expected(model: Model, asked: Answered) -> Any:
    """What the model says to it."""
    if asked.is_of_pipelines:
        return asked_pipelines.expected(model.pipelines, asked.question, asked.given)
    if asked.question == "offset at":
        return model.streams.offset_at(*asked.given)
    if asked.question == "due":
        return _due(model, *asked.given)
    group_id, offset = asked.given
    group = model.groups.by_id[group_id]
    passed = set(range(offset, group.floor))
    above = {each for each in group.acknowledged if each >= offset}
    return Window(
        [*ranges_of(passed), *ranges_of(above)],
        numbered({at: tried for at, tried in group.attempts.items() if at >= offset}),
    )


def _due(model: Model, stream_id: int, older_than_ms: int, max_bytes: int) -> dict[str, Any]:
    """The oldest batches that are too old, or over the bytes that are kept, but never the newest
    one for its bytes alone; as many as one entry drops, and one more."""
    batches = list(model.streams.batches.get(stream_id, []))
    total = left = sum(batch.size for batch in batches)
    looked_at = batches[: slices.SLICE_BATCHES + 1]
    first_offset = None
    oldest_ms = None
    for batch in looked_at:
        is_over = 0 < max_bytes < left and batch is not batches[-1]
        if not is_over and batch.append_ms >= older_than_ms:
            oldest_ms = batch.append_ms
            break
        left -= batch.size
        first_offset = batch.end
    return {
        "first_offset": first_offset,
        "held_back": False,
        "bytes": total,
        "oldest_ms": oldest_ms,
    }
