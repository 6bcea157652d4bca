"""Who operates a pipeline while others are at work with it: declares it anew, deletes it, retries
and cancels instances, starts some by hand, and fills in old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, Self

import trio

from hadron.client import Client
from hadron.model.errors import ConflictError, HadronError, NotFoundError, RequestError
from hadron.sim.actors.clients import ClientActor
from hadron.sim.actors.pipelines import FLOW, ORDERS, Places, alone, changed_flow
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World

_DELETIONS: Final = 2
"""Of the pipeline, in a run: all its input may trigger it again."""

_WAYS: Final = {"declare": 6, "retry": 4, "cancel": 2, "start_some": 2, "fill": 3, "delete": 3}
"""How often each is done, relative to the others."""


class PipelineOperator(ClientActor):
    """Changes the pipeline while instances of it live, deletes it and declares it again, and lets
    failed instances run once more. In the end there is one."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._deletions = 0
        self._start = "earliest"
        self._places = alone(self.partition)
        self.finished = trio.Event()
        """From here on nobody changes it, or lets anything run again."""

    def at(self, places: Places) -> Self:
        """Where the pipeline is."""
        self._places = places
        return self

    async def run(self) -> None:
        await super().run()
        while not self.finished.is_set():
            try:
                async with self.world.client(self.host, connect_timeout_s=3.0) as client:
                    await self._declare(client, is_last=True)
                    self.finished.set()
            except HadronError:
                await trio.sleep(0.2)

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 6)):
            await trio.sleep(self.random.uniform(0.2, 3.0))
            if self.stopping:
                return
            how = self.random.choices(list(_WAYS), list(_WAYS.values()))[0]
            if how == "delete" and self._deletions >= _DELETIONS:
                how = "retry"
            await self._do(client, how)

    async def _do(self, client: Client, how: str) -> None:
        if how == "declare":
            await self._declare(client)
            if self.random.random() < 0.4:
                # What failed before there was a stage that there is now.
                await self._retry(client)
        elif how == "delete":
            await self._delete(client)
        else:
            await getattr(self, f"_{how}")(client)

    async def _declare(self, client: Client, *, is_last: bool = False) -> None:
        flow = changed_flow(self.random, self._places, self._start, is_last=is_last)
        noted = self.history.apply(self.name, [("Pipeline", FLOW)])
        try:
            # A stage may be gone.
            applied = await client.apply([flow], allow_destructive=True)
        except HadronError as error:
            self.ended(noted, error)
            raise
        noted.metadata_index = applied.metadata_index
        self.history.ok(noted)

    async def _retry(self, client: Client) -> None:
        """All that failed, or some of them, now and then from the start."""
        from_start = self.random.random() < 0.2
        with self._steering("retry", is_whole=from_start):
            failed = await client.instances(FLOW, status="failed", limit=10)
            chosen = self.random.choice((None, [each.id for each in failed[:3]] or None))
            await client.retry_instances(FLOW, chosen, from_start=from_start)

    async def _cancel(self, client: Client) -> None:
        """Some that live, or have failed; now and then all."""
        with self._steering("cancel"):
            status = self.random.choice(("live", "live", "failed"))
            found = await client.instances(FLOW, status=status, limit=10)
            chosen = [each.id for each in found if self.random.random() < 0.5]
            if self.random.random() < 0.1:
                await client.cancel_instances(FLOW, status=status)
            elif chosen:
                await client.cancel_instances(FLOW, chosen, status=status)

    async def _start_some(self, client: Client) -> None:
        """Of records that have made instances before, or not yet."""
        place, following = await self._some_input(client)
        offsets = [self.random.randrange(following) for _ in range(2)] if following else []
        if offsets:
            with self._steering("start", place, offsets):
                await client.start_instances(FLOW, ORDERS, offsets, partition=place)

    async def _fill(self, client: Client) -> None:
        """A backfill of old records, which is let go on, paused, or ended, later."""
        place, following = await self._some_input(client)
        first, last = (self.random.randint(0, following) for _ in range(2))
        again = self.random.random() < 0.3
        offsets = sorted((first, last))
        with self._steering("backfill", place, offsets, is_whole=again):
            number = await client.start_backfill(
                FLOW, *offsets, partition=place, per_s=self.random.choice((0, 5)), again=again
            )
            await self.pause(0.3)
            for status in self.random.choice(((), ("paused",), ("paused", "running"))):
                await client.control_backfill(FLOW, number, status)
            if self.random.random() < 0.1:
                await client.control_backfill(FLOW, number, "cancelled")

    async def _some_input(self, client: Client) -> tuple[str, int]:
        """A partition, and where it ends."""
        place = self.random.choice(self._places.inputs)
        (known,) = await client.offsets(ORDERS, partition=place)
        return place, known.next_offset

    @contextmanager
    def _steering(
        self,
        what: Literal["start", "backfill", "cancel", "retry"],
        place: str = "",
        offsets: Sequence[int] = (),
        *,
        is_whole: bool = False,
    ) -> Iterator[None]:
        noted = self.history.steer(self.name, FLOW, what, place, offsets, is_whole=is_whole)
        try:
            yield
        except (NotFoundError, RequestError, ConflictError) as error:
            # Of an earlier try it may be known that it was done.
            self.history.unknown(noted, error)
        except HadronError as error:
            self.history.unknown(noted, error)
            raise
        else:
            self.history.ok(noted)

    async def _delete(self, client: Client) -> None:
        noted = self.history.apply(self.name, [("Pipeline", FLOW)], deletes=True)
        try:
            gone = await client.delete([("Pipeline", "default", FLOW)], allow_destructive=True)
        except HadronError as error:
            # It may be an earlier try that has done it.
            self.history.unknown(noted, error)
            raise
        self._deletions += 1
        noted.ids = [item.id for item in gone]
        self.history.ok(noted)
        self._start = self.random.choice(("earliest", "latest", "3"))
        await self.pause(0.5)
        await self._declare(client)
