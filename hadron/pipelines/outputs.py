"""Outputs that go to partitions of other replica sets: what a pipeline needs for them."""

from __future__ import annotations

from typing import Protocol

from hadron.state.pipelines.publishing import PublishStages


class Outputs(Protocol):
    """Publishes what is decided here in another set's partition: all of it, or nothing."""

    async def publish(self, command: PublishStages, metadata_index: int, batch: memoryview) -> int:
        """Returns the first offset there, once the stages are done.

        Args:
            metadata_index: what the other set must know of the schema.

        Raises what the other set refuses it with, `StaleCompletionError` when a stage does not wait
        for its attempt, `ConflictError` when a transaction ends it.
        """
        ...
