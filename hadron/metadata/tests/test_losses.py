"""What limits of retention would drop: where it is asked, and what is made of the answers."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import math
from collections.abc import Mapping

import trio
from trio.testing import MockClock

from hadron.metadata.judging import Key, key_of
from hadron.metadata.losses import losses
from hadron.metadata.validation import validate
from hadron.model.errors import NotFoundError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.state.streams.retention import Kept

META, EU, US = "meta", "eu/p0", "us/p0"
KEY = ("Stream", "default", "s")
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def stream(retention: Retention, *partitions: str, id: int = 0, name: str = "s") -> SchemaObject:
    spec = StreamSpec(partitions=partitions, retention=retention)
    return SchemaObject(kind="Stream", name=name, spec=spec, id=id)


class Leaders:
    """What each has kept of the stream; the others are silent."""

    def __init__(self, **kept: Kept) -> None:
        self.kept = {{"meta": META, "eu": EU}[name]: each for name, each in kept.items()}
        self.asked: list[tuple[str, int, int]] = []

    async def count(self, partition: str, stream_id: int, before_ms: int) -> Kept:
        self.asked.append((partition, stream_id, before_ms))
        if partition not in self.kept:
            await trio.sleep_forever()
        return self.kept[partition]


async def lost(
    leaders: Leaders, before: SchemaObject, after: SchemaObject
) -> Mapping[tuple[Key, str], str]:
    return await losses(
        [after], {key_of(before): before}, leaders.count, NOW_MS, trio.CapacityLimiter(4)
    )


async def test_what_is_shortened_is_asked_everywhere() -> None:
    leaders = Leaders(meta=Kept(10, 2, 900), eu=Kept(10, 0, 4_000))
    before = stream(Retention(7 * DAY_MS, 5_000), META, EU, id=3)
    found = await lost(leaders, before, stream(Retention(DAY_MS, 1_000), META, EU))
    assert found == {
        (KEY, "max_age"): "about 2 of 20 records",
        (KEY, "max_bytes"): "about 3000 of 4900 bytes",
    }
    assert sorted(leaders.asked) == [(EU, 3, NOW_MS - DAY_MS), (META, 3, NOW_MS - DAY_MS)]


async def test_a_partition_that_is_added_is_asked_with_the_limits_that_will_hold() -> None:
    """It was there before: what has been kept since is dropped when it comes back."""
    leaders = Leaders(meta=Kept(10, 10, 9_000), eu=Kept(10, 4, 3_000))
    limits = Retention(DAY_MS, 2_000)
    before, after = stream(limits, META, id=3), stream(limits, META, EU)
    found = await lost(leaders, before, after)
    assert found == {
        (KEY, "max_age"): "about 4 of 10 records",
        (KEY, "max_bytes"): "about 1000 of 3000 bytes",
    }
    assert leaders.asked == [(EU, 3, NOW_MS - DAY_MS)]
    existing = {key_of(before): before}
    problems = validate(
        [after], existing, replica_sets={META, EU}, allow_destructive=False, losses=found
    )
    expected = "expected those before, a longer retention, or `allow_destructive` if it is meant"
    assert [str(each) for each in problems] == [
        "Stream default/s: partitions: 'eu/p0' added, which drops what is older than 1d at once: "
        f"about 4 of 10 records, {expected}",
        "Stream default/s: partitions: 'eu/p0' added, which drops what is beyond the newest 2kB of "
        f"a partition at once: about 1000 of 3000 bytes, {expected}",
    ]
    leaders.kept[EU] = Kept(0, 0, 0)
    found = await lost(leaders, before, after)
    assert (
        validate([after], existing, replica_sets={META, EU}, allow_destructive=False, losses=found)
        == []
    )


async def test_a_limit_that_is_shortened_counts_what_is_added_too() -> None:
    leaders = Leaders(meta=Kept(10, 1, 9_000), eu=Kept(10, 4, 3_000))
    before = stream(Retention(7 * DAY_MS, 2_000), META, id=3)
    found = await lost(leaders, before, stream(Retention(DAY_MS, 2_000), META, EU))
    assert found == {
        (KEY, "max_age"): "about 5 of 20 records",
        (KEY, "max_bytes"): "about 1000 of 3000 bytes",
    }


async def test_who_does_not_tell_may_have_something(autojump_clock: MockClock) -> None:
    leaders = Leaders(meta=Kept(0, 0, 0))
    before = stream(Retention(max_bytes=2_000), META, id=3)
    found = await lost(leaders, before, stream(Retention(max_bytes=2_000), META, US))
    assert found == {(KEY, "max_bytes"): "unknown at us/p0, which did not tell"}


async def test_nobody_is_asked_where_nothing_can_be_dropped() -> None:
    leaders = Leaders()
    for before, after in (
        (stream(Retention(DAY_MS), META, id=3), stream(Retention(7 * DAY_MS), META)),
        (stream(Retention(DAY_MS), META, EU, id=3), stream(Retention(DAY_MS), META)),
        (stream(Retention(), META, id=3), stream(Retention(), META, EU)),
    ):
        assert await lost(leaders, before, after) == {}
    new = [stream(Retention(DAY_MS), META)]
    assert await losses(new, {}, leaders.count, NOW_MS, trio.CapacityLimiter(4)) == {}
    assert leaders.asked == []


async def test_of_many_streams_few_are_asked_for_at_the_same_time(
    autojump_clock: MockClock,
) -> None:
    """A question's time is its own, however many there are before it."""
    asking = most = 0
    asked: list[str] = []

    async def count(partition: str, stream_id: int, _before_ms: int) -> Kept:
        nonlocal asking, most
        asked.append(partition)
        asking += 1
        most = max(most, asking)
        try:
            # Long, but in time.
            await trio.sleep(0.9 if partition == META else math.inf)
        finally:
            asking -= 1
        if stream_id == 7:
            raise NotFoundError("no object has the id 7")
        return Kept(0, 0, 0)

    before = [
        stream(Retention(), META, US, id=number, name=f"s{number}") for number in range(1, 101)
    ]
    after = [stream(Retention(DAY_MS), META, US, name=each.name) for each in before]
    existing = {key_of(each): each for each in before}
    found = await losses(after, existing, count, NOW_MS, trio.CapacityLimiter(16))
    assert most == 16
    assert asked.count(META) == 100
    assert asked.count(US) <= 16, "who is silent is not asked of every stream"
    assert len(found) == 100
    for (key, _), told in found.items():
        silent = "meta, us/p0" if key[2] == "s7" else "us/p0"
        assert told == f"unknown at {silent}, which did not tell"
