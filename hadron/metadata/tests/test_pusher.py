"""Whom the schema is pushed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from hadron.metadata.pusher import SchemaPusher, Target
from hadron.metadata.tests.support import ComparedName
from hadron.serving.catalog import Catalog


class _Sets:
    def __init__(self) -> None:
        self.changed = trio.Event()
        self.known: list[Target] = []

    def targets(self) -> Sequence[Target]:
        return [Target(*each) for each in self.known]

    def are(self, names: Sequence[str]) -> None:
        self.known = [Target(name, b"u" * 16, 1, "host:1") for name in names]
        self.changed.set()
        self.changed = trio.Event()


class _Pusher(SchemaPusher):
    """Which only notes for whom there is a task."""

    def __init__(self, sets: _Sets) -> None:
        anything: Any = None
        super().__init__(anything, anything, Catalog([], 0), anything, sets, anything)  # type: ignore[arg-type]
        self.served: set[str] = set()

    async def _keep(self, target: Target, scope: trio.CancelScope) -> None:
        self.served.add(target.name)
        with scope:
            await trio.sleep_forever()
        self.served.discard(target.name)


async def test_a_set_is_not_looked_for_among_all_others(nursery: trio.Nursery) -> None:
    """Four thousand replica sets: whenever one of them moved, each was sought among all."""
    sets = _Sets()
    pusher = _Pusher(sets)
    nursery.start_soon(pusher.run)
    names = [ComparedName(f"local/p{number}") for number in range(100)]
    ComparedName.times = 0
    for known in (names, names[1:], names[10:]):
        sets.are(known)
        await trio.testing.wait_all_tasks_blocked()
        assert pusher.served == set(known)
    nursery.cancel_scope.cancel()
    assert ComparedName.times < 5 * len(names)
