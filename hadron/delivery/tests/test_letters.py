"""Letters of records that no client of ours would send (GROUPS G4): whatever a batch held that was
let in, its records can be written as dead letters; and of a stream that is not here any more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hadron.delivery.effects import Exhausted
from hadron.delivery.letters import DAMAGE, Origin, encode_letters
from hadron.delivery.tests.support import Consumer
from hadron.model.batch import StampedBatch, judge_batch
from hadron.model.batch_building import BatchBuilder
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch
from hadron.model.schema import StreamSpec
from hadron.server.groups.messages import describe
from hadron.serving.tests.stack import SET, Stack, leading, until
from hadron.state.groups import views

ORIGIN = Origin(1, "orders", "local/p0", "billing", 5, 2)


def letters_of(records: list[NewRecord]) -> list[Record]:
    """All letters of a batch, each of which is one that a stream takes."""
    builder = BatchBuilder()
    for record in records:
        builder.add(record, 1, max_bytes=1 << 30)
    data = builder.build(codec="zstd")
    judge_batch(data)
    count = len(records)
    batch = StampedBatch(0, count, 1, 1, 1, data)
    found, offset = list[Record](), 0
    while offset < count:
        body, last = encode_letters(batch, ORIGIN, offset, Exhausted(offset, count - 1, 3, "why"))
        assert len(body) <= MAX_BATCH_BYTES
        judge_batch(body)
        found += decode_batch(body).records()
        assert offset <= last == len(found) - 1
        offset = last + 1
    return found


@pytest.mark.parametrize("size", [1_000, 40_000, 3 << 20])
def test_long_ids(size: int) -> None:
    count = 1 if size > 1 << 20 else 200
    found = letters_of([NewRecord(b"v", id="x" * size) for _ in range(count)])
    assert len(found) == count
    assert all((DAMAGE in letter.headers) == (size > 1 << 20) for letter in found)


def test_long_types() -> None:
    found = letters_of([NewRecord(b"v", type=f"{number}" * 200_000) for number in range(8)])
    assert [len(letter.type) for letter in found] == [200_000] * 8
    (letter,) = letters_of([NewRecord(b"v", type="x" * 1_900_000)])
    assert letter.type == ""
    assert DAMAGE in letter.headers


def trouble_of_the_group(stack: Stack, summary: views.GroupSummary) -> str:
    """As `hadron group list` tells it."""
    led: Any = SimpleNamespace(
        catalog=stack.catalog,
        controller=stack.controller,
        locks=stack.locks,
        part=lambda _: stack.groups,
        replica_set=SET,
        visible=stack.visible,
    )
    told = describe(led, summary)
    assert told is not None
    assert told.dead_letter_stream == "letters"
    return told.trouble


async def test_of_a_stream_that_has_no_partition_here_any_more(tmp_path: Path) -> None:
    """The letter would be where nobody reads, and its record settled."""
    async with leading(tmp_path) as stack:
        for name in ("flights", "letters"):
            await stack.stream(name)
        await stack.append(1, b"0")
        member = await Consumer(stack).join(max_attempts=1, dead_letter_stream="letters")
        (summary,) = await stack.controller.query(views.summaries)
        assert trouble_of_the_group(stack, summary) == ""
        moved = StreamSpec(partitions=("local/p1",))
        assert await stack.declare("Stream", "letters", moved) == 2
        member.refuse(0, 0)
        await until(lambda: member.driver._letters.is_idle)
        assert member.driver.machine.waiting.ranges() == [(0, 0)]
        assert stack.visible.bounds(2).next_offset == 0
        found = trouble_of_the_group(stack, summary)
        assert "'letters' has no partition on local/p0 any more" in found
