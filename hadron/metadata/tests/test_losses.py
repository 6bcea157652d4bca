"""What is asked of those who have the records that a shorter retention would drop."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import trio
from trio.testing import MockClock

from hadron.metadata.judging import Key, Losses, key_of
from hadron.metadata.losses import CountKept, losses
from hadron.model.errors import PeerError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.state.streams.retention import Kept

DAY_MS = 86_400_000


def stream(number: int, retention: Retention, *partitions: str) -> SchemaObject:
    spec = StreamSpec(partitions=partitions or ("a",), retention=retention)
    return SchemaObject(kind="Stream", name=f"s{number}", spec=spec, id=number + 1)


async def found(many: int, count: CountKept, *partitions: str) -> Losses:
    before = [stream(number, Retention(), *partitions) for number in range(many)]
    shorter = Retention(max_age_ms=DAY_MS, max_bytes=100)
    after = [stream(number, shorter, *partitions) for number in range(many)]
    existing: dict[Key, SchemaObject] = {key_of(each): each for each in before}
    return await losses(after, existing, count, 2 * DAY_MS)


async def test_of_many_streams_a_few_are_asked_for_at_a_time(autojump_clock: MockClock) -> None:
    """A change that shortens 9,000 stopped the leader's loop for 4 s: all answered at once."""
    open_now, most = 0, 0

    async def count(partition: str, stream_id: int, before_ms: int) -> Kept:
        nonlocal open_now, most
        assert (partition, before_ms) == ("a", DAY_MS)
        open_now += 1
        most = max(most, open_now)
        await trio.sleep(0.001)
        open_now -= 1
        return Kept(10, 4, 150) if stream_id % 2 else Kept(0, 0, 0)

    told = await found(500, count)
    assert most <= 64
    assert len(told) == 1_000
    assert told[("Stream", "default", "s0"), "max_age"] == "about 4 of 10 records"
    assert told[("Stream", "default", "s0"), "max_bytes"] == "about 50 of 150 bytes"
    assert told[("Stream", "default", "s1"), "max_age"] == ""


async def test_who_is_silent_keeps_nobody_waiting_for_longer(autojump_clock: MockClock) -> None:
    async def count(partition: str, stream_id: int, _before_ms: int) -> Kept:
        if partition == "away":
            await trio.sleep_forever()
        if partition == "failing":
            raise PeerError("it is not known")
        return Kept(1, 1, 1)

    began = trio.current_time()
    told = await found(200, count, "failing", "a", "away")
    assert trio.current_time() - began == 1
    assert len(told) == 400
    for name in ("s0", "s199"):
        assert told[("Stream", "default", name), "max_age"] == (
            "about 1 of 1 records, unknown at failing, away, which did not tell"
        )
