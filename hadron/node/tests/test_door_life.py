"""A door opens before its node runs, and closes before that ends, whatever ends it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from hadron.node.door_life import run_behind


class Scene:
    """A door, a node, and what happened."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.failure: Exception | None = None
        self.door_failure: Exception | None = None
        self.ends = trio.Event()
        self.closes = trio.Event()
        self.closes.set()

    async def run(self) -> None:
        await run_behind(self._open, self._run, self._close)

    async def _open(self, nursery: trio.Nursery) -> None:
        if self.door_failure is not None:
            raise self.door_failure
        nursery.start_soon(self._until_cancelled, "door")

    async def _run(self) -> None:
        try:
            await self.ends.wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.story.append("node ended")

    async def _until_cancelled(self, name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.story.append(f"{name} ended")

    async def _close(self) -> None:
        self.story.append("closing")
        await self.closes.wait()
        self.story.append("closed")


async def test_who_is_cancelled_closes_the_door_first() -> None:
    scene = Scene()
    scene.closes = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert scene.story == ["closing"], "while who is in may end"
            scene.closes.set()
    assert scene.story[:2] == ["closing", "closed"]
    assert sorted(scene.story[2:]) == ["door ended", "node ended"]


async def test_a_node_that_ends_while_its_door_closes() -> None:
    scene = Scene()
    scene.closes = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            scene.ends.set()
            await trio.testing.wait_all_tasks_blocked()
            scene.closes.set()
    assert scene.story.count("closing") == 1


@pytest.mark.parametrize("failure", [None, ValueError("a disk")])
async def test_a_node_that_ends_by_itself(failure: Exception | None) -> None:
    scene = Scene()
    scene.failure = failure
    scene.ends.set()
    caught: Any = None
    try:
        await scene.run()
    except ValueError as error:
        caught = error
    assert caught is failure, "as it is"
    assert scene.story == ["node ended", "closing", "closed", "door ended"]


async def test_a_door_that_cannot_open() -> None:
    scene = Scene()
    scene.door_failure = ValueError("a port")
    with pytest.raises(ValueError, match="a port"):
        await scene.run()
    assert scene.story == ["closing", "closed"]
