"""Bulk writers, as Spark is one: tasks that stage, attempts that die and are tried again, and a
driver that publishes a batch, forgets that it has, and begins again where its checkpoint is.

Several drivers may have one checkpoint, each taking the others for dead; and a newer query may take
over the sink of an older one, which does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from hadron.client.sinks.sink import Sink, StagedAttempt
from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError, RequestError
from hadron.model.limits import TOKEN_BYTES
from hadron.sim.evidence.history import History, Publish, Transact
from hadron.sim.evidence.made import Written

BULK: Final = "bulk"
"""The stream."""

SINK: Final = "loads"

_MOST: Final = 12
"""Batches of all queries of a run."""


@dataclass(slots=True)
class Staged:
    """What one attempt has staged: the batches by partition, and their records."""

    attempt: bytes
    batches: dict[str, int] = field(default_factory=dict)
    records: list[tuple[str, str]] = field(default_factory=list)

    @property
    def told(self) -> StagedAttempt:
        return StagedAttempt(self.attempt, self.batches)


class Chosen:
    """The attempts that a driver wants to publish, or, with none asked for, those that lost."""

    def __init__(self, history: History, client: str, attempts: Sequence[Staged]) -> None:
        self._history = history
        self._operation: Transact = history.transact(client)
        self._publishes: list[Publish] = []
        for each in attempts:
            for partition, value in each.records:
                publish = history.publish(client, "", BULK, partition, [value])
                self._publishes.append(publish)
                self._operation.values.append(value)

    def asks(self) -> None:
        self._operation.asked = self._operation.asked or self._history.tick()

    def tell(self, outcome: str, why: str = "") -> None:
        """What is known of all of it for good."""
        self._operation.told.append(outcome)
        for each in (self._operation, *self._publishes):
            if outcome == "rolled back":
                self._history.refused(each, why)
        if outcome == "committed":
            # Where the records are nobody says.
            self._history.ok(self._operation)


@dataclass(slots=True)
class Checkpoint:
    """What is left of a query when its driver dies: the batch that it is at."""

    query: str
    follows: str = ""
    batch: int = 0
    left: int = _MOST


class BulkWriter:
    """The driver of one query, and its tasks."""

    def __init__(
        self, history: History, host: str, random: Any, partitions: Sequence[str], sink: str = SINK
    ) -> None:
        self.host = host
        self.history = history
        self.random = random
        self.partitions = tuple(partitions)
        self.sink = sink
        self.staged: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """What comes between the tasks and the publication."""
        self._attempts = 0

    def token(self) -> bytes:
        made: bytes = self.random.randbytes(TOKEN_BYTES)
        return made

    async def attempt(
        self,
        sink: Sink,
        at: Checkpoint,
        write: bytes,
        *,
        batches: int = 2,
        dies: bool = False,
        kept_s: float = 6.0,
    ) -> Staged:
        """One try of a task: some batches at each partition; or half of them, when it dies."""
        self._attempts += 1
        staged = Staged(self.token())
        by = f"{self.host}/{self._attempts}"
        for number in range(batches):
            for partition in self.partitions:
                if dies and number:
                    return staged
                value = f"{Written(at.query, at.batch, by)}{number}@{partition}"
                # It may be there when this fails.
                staged.records.append((partition, value))
                await sink.stage(
                    BULK,
                    partition,
                    [encode_values([value.encode()], 1)],
                    write=write,
                    attempt=staged.attempt,
                    first=staged.batches.get(partition, 0),
                    kept_s=kept_s,
                    label=f"{at.query} {at.batch}",
                )
                staged.batches[partition] = staged.batches.get(partition, 0) + 1
        return staged

    def lost(self, attempts: Sequence[Staged]) -> None:
        """Nobody will publish these."""
        if any(each.records for each in attempts):
            Chosen(self.history, self.host, attempts).tell("rolled back", "these have lost")

    async def try_once(
        self, sink: Sink, at: Checkpoint, write: bytes = b"", kept_s: float = 6.0
    ) -> bool:
        """A batch, with a task that dies half-way and one that loses; then the abort of a driver
        that does not know better. Whether this try has published it; raises what `Sink` does."""
        write = write or self.token()
        made: list[Staged] = []
        try:
            made = [
                await self.attempt(sink, at, write, dies=dies, kept_s=kept_s)
                for dies in (False, True, False, False)
            ]
        finally:
            if len(made) < 4:
                self.lost(made)
        first, *others, last = made
        self.lost(others)
        await self.staged()
        chosen = Chosen(self.history, self.host, (last, first))
        is_done = await self.publish(sink, at, write, (last, first), chosen)
        await sink.give_up(write, self.partitions)
        return is_done

    async def publish(
        self, sink: Sink, at: Checkpoint, write: bytes, attempts: Sequence[Staged], chosen: Chosen
    ) -> bool:
        """Returns whether this call has; raises what `Sink.publish` does."""
        chosen.asks()
        try:
            is_done = await sink.publish(
                BULK,
                [each.told for each in attempts],
                write=write,
                query=at.query,
                batch=at.batch,
                follows=at.follows,
            )
        except HadronError as error:
            if isinstance(error, RequestError) and not error.retryable:
                await self._ask(sink, at, chosen, str(error))
            raise
        if is_done:
            chosen.tell("committed")
        self.says_published(at)
        return is_done

    def says_published(self, at: Checkpoint) -> None:
        self.history.event("published", f"{at.query} {at.batch}")

    async def _ask(self, sink: Sink, at: Checkpoint, chosen: Chosen, why: str) -> None:
        """A batch was refused: nothing of it is there, unless another query has taken the sink over
        since it was published, and its driver was not told."""
        with suppress(HadronError):
            known = await sink.progress()
            if known is None or known.query == at.query:
                chosen.tell("rolled back", why)
