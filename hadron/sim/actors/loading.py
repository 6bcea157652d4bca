"""Drivers of queries that load in bulk, in random worlds: each goes on where the checkpoint is, as
often as it dies, and some have one checkpoint, each taking the other one for dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from hadron.client import Client
from hadron.client.sinks.sink import Sink
from hadron.model.errors import RequestError
from hadron.sim.actors.bulk import SINK, BulkWriter, Checkpoint
from hadron.sim.actors.clients import ClientActor

_FORGOTTEN: Final = 0.15
"""Of batches that are published: whose driver dies before its checkpoint says so."""

_TAKEN_OVER: Final = 0.1
"""Of sessions that begin: with a newer query, which takes the sink over."""


class LoadingActor(ClientActor):
    """A driver. What it knows of the checkpoint when it begins, it goes by until it ends."""

    def __init__(self, *given: Any, at: Checkpoint) -> None:
        *rest, partitions = given
        super().__init__(*rest)
        self._partitions: Sequence[str] = partitions
        self._kept = at

    async def session(self, client: Client) -> None:
        sink = client.sink(SINK)
        # Each life is another process: its attempts and tokens are its own.
        driver = BulkWriter(self.history, self.name, self.random, self._partitions)
        at = replace(self._kept)
        if at.batch and self.random.random() < _TAKEN_OVER:
            at = replace(at, query=f"{at.query}+", follows=at.query, batch=0)
        for _ in range(self.random.randint(1, 4)):
            if self.stopping or not self._kept.left:
                break
            await self._batch(driver, sink, at)
            await self.pause(0.5)
        await self.pause(1.0 if self._kept.left else 20.0)

    async def _batch(self, driver: BulkWriter, sink: Sink, at: Checkpoint) -> None:
        self._kept.left -= 1
        try:
            if not await sink.is_published(at.query, at.batch, at.follows):
                await driver.try_once(sink, at, kept_s=self.random.choice((1.0, 6.0, 12.0)))
            elif self.random.random() < _FORGOTTEN:
                # It does not ask, or does not believe it, and has staged all of it once more.
                await driver.try_once(sink, at)
            driver.says_published(at)
        except RequestError:
            # Another query has the sink, or another driver a later batch of this one.
            if (progress := await sink.progress()) is not None and progress.query == at.query:
                at.batch = max(at.batch, progress.batch)
            raise
        if self.random.random() >= _FORGOTTEN:
            at.batch += 1
            self._keep(at)

    def _keep(self, at: Checkpoint) -> None:
        kept = self._kept
        if kept.query == at.query:
            kept.batch = max(kept.batch, at.batch)
        elif at.follows == kept.query:
            kept.query, kept.follows, kept.batch = at.query, at.follows, at.batch
