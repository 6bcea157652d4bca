"""Drops what deleted objects have left on this replica set, and bodies that were kept for nothing,
on its leader: a slice at a time, each in a group commit of its own, so that other commands go in
between."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from hadron.partition.controller import Controller
from hadron.partition.observers import Order
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.perseverance import Apart, persevere
from hadron.state import bodies, dropping
from hadron.state.bodies import DropBodies
from hadron.state.dropping import DropObject
from hadron.state.events import BodyReleased
from hadron.state.slices import Dropped

_log = logging.getLogger(__name__)

_HELD_BACK_S: Final = 1.0
"""Until what a replica still needs is looked at again."""


class DropDriver(Part):
    """One per leadership. `run` must be running."""

    def __init__(self, controller: Controller, catalog: Catalog) -> None:
        self._controller = controller
        self._changed = trio.Event()
        self._apart = Apart("dropping")
        catalog.listen(self._wake)
        controller.observers.add(Order.DRIVERS, [BodyReleased], self._on_released)

    def _wake(self) -> None:
        self._changed.set()

    def _on_released(self, _events: Sequence[BodyReleased]) -> None:
        self._wake()

    async def run(self) -> None:
        """Drop whatever was deleted, for ever."""
        await persevere("dropping deleted objects", self._rounds)

    async def _rounds(self) -> None:
        while True:
            self._changed = trio.Event()
            is_left = await self._round()
            with trio.move_on_after(_HELD_BACK_S if is_left else float("inf")):
                await self._changed.wait()

    async def _round(self) -> bool:
        """Whether something had to be left."""
        is_left = await self._controller.read(bodies.has_unnamed)
        if is_left:
            is_left = not await self._apart.do("bodies", self._drop_bodies, otherwise=False)
        for object_id, kind in await self._controller.read(dropping.waiting):
            label = f"{kind.lower()} {object_id}"
            work = partial(self._drop, object_id, kind)
            is_left |= not await self._apart.do(label, work, otherwise=False)
        return is_left

    async def _drop_bodies(self) -> bool:
        """Whether none is left that nobody needs."""
        while True:
            dropped: Dropped = await self._controller.execute(
                DropBodies(self._controller.droppable_lsn)
            )
            if dropped.is_done or not dropped.rows:
                return dropped.is_done

    async def _drop(self, object_id: int, kind: str) -> bool:
        """Whether nothing is left of it."""
        rows = size = 0
        while True:
            dropped: Dropped = await self._controller.execute(
                DropObject(object_id, self._controller.droppable_lsn)
            )
            rows, size = rows + dropped.rows, size + dropped.bytes
            if dropped.is_done:
                _log.info(
                    "dropped what %s %d had here: %d rows, %d bytes of records",
                    kind.lower(),
                    object_id,
                    rows,
                    size,
                )
                return True
            if not dropped.rows:
                return False
