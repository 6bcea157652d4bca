"""Who looks at the records that stages wait for, in other sets' partitions."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import trio
from trio.testing import MockClock

from hadron.model.errors import NotFoundError, PeerError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.pipelines.awaiting import Awaiting
from hadron.pipelines.following import Reach

_THERE = "eu/p0"
_SPEC = StreamSpec(partitions=(_THERE,))
_PIPELINE = SchemaObject(kind="Pipeline", name="p", spec=_SPEC, id=1)


class _Cluster:
    """A catalog, a log here that awaits payments, and sets that nobody reaches."""

    def __init__(self) -> None:
        self.payments = SchemaObject(kind="Stream", name="payments", spec=_SPEC, id=7)
        self.asked: list[int] = []

    def stream(self, _namespace: str, _name: str) -> tuple[SchemaObject, StreamSpec]:
        return self.payments, _SPEC

    def by_id(self, object_id: int) -> SchemaObject:
        for each in (_PIPELINE, self.payments):
            if each.id == object_id:
                return each
        raise NotFoundError("it was deleted")

    async def query(self, _read: Any) -> set[str]:
        await trio.lowlevel.checkpoint()
        return {"payments"}

    async def converse(self, _name: str, stream_id: int, _index: int, _say: Any) -> None:
        self.asked.append(stream_id)
        raise PeerError("nobody answers")


async def test_a_stream_that_has_got_another_ones_name_is_looked_at_instead(
    autojump_clock: MockClock,  # noqa: ARG001
) -> None:
    cluster: Any = _Cluster()
    none: Any = SimpleNamespace()
    chance: Any = random.Random(1)
    awaiting = Awaiting(_PIPELINE, cluster, cluster, Reach("us/p0", none, cluster, chance), none)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(awaiting.run)
        await trio.sleep(30.0)
        assert set(cluster.asked) == {7}
        cluster.payments = msgspec.structs.replace(cluster.payments, id=8)
        awaiting.wake()
        await trio.sleep(30.0)
        cluster.asked.clear()
        await trio.sleep(30.0)
        assert set(cluster.asked) == {8}
        nursery.cancel_scope.cancel()
