"""Sends the dead letters of one pipeline on its leader: what was given up, where it came from, and
why, as JSON. Repeating is safe: what was sent is not due any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import trio

from hadron.model.batch_building import BatchBuilder
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Clock
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.state.pipelines import letters as instance_letters
from hadron.state.pipelines.letters import Due, SendLetters

LETTER_TYPE: Final = "hadron.instance.failed"

_LETTERS_PER_ENTRY: Final = 500

_TARGET_BYTES: Final = MAX_BATCH_BYTES // 2
"""Where a batch is closed: a letter is some kilobytes at most."""


class Letters:
    """Of one pipeline. `run` must be running."""

    def __init__(
        self,
        item: SchemaObject,
        spec: Callable[[], PipelineSpec],
        controller: Controller,
        catalog: Catalog,
        clock: Clock,
    ) -> None:
        self._item = item
        self._spec = spec
        self._controller = controller
        self._catalog = catalog
        self._clock = clock
        self._moved = trio.Event()

    def wake(self) -> None:
        """Instances have failed, or something was declared."""
        self._moved.set()

    async def run(self) -> None:
        while True:
            self._moved = trio.Event()
            if not await self._send_some():
                await self._moved.wait()

    async def _send_some(self) -> bool:
        """Whether there may be more. Raises `NotFoundError` without the stream."""
        name = self._spec().dead_letters
        if not name:
            return False
        found = await self._controller.query(
            lambda db: instance_letters.due(db, self._item.id, _LETTERS_PER_ENTRY)
        )
        if not found:
            return False
        item, _ = self._catalog.stream(self._item.namespace, name)
        builder, ids = BatchBuilder(), list[int]()
        for each in found:
            builder.add(self._letter(each), self._clock.now_ms())
            ids.append(each.instance_id)
            if builder.size > _TARGET_BYTES:
                break
        data = builder.build()
        await self._controller.execute(
            SendLetters(self._item.id, tuple(ids), item.id, len(data)), data
        )
        return True

    def _letter(self, due: Due) -> NewRecord:
        told = {
            "pipeline": self._item.name,
            "instance": due.instance_id,
            "stage": due.stage,
            "reason": due.reason,
            "attempts": due.attempts,
            "created_ms": due.created_ms,
            "stream": self._catalog.name_of(due.stream_id),
            "partition": due.partition,
            "offset": due.offset,
        }
        key = f"{due.partition}/{due.offset}"
        return NewRecord(value=msgspec.json.encode(told), key=key, type=LETTER_TYPE)
