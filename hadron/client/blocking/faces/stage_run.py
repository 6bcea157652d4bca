"""The blocking face of `hadron.client.pipelines.stage_run`, made of it by `make faces`."""

from __future__ import annotations

from hadron.client.blocking.invocations import StageRunBase


class SyncStageRun(StageRunBase):
    """Ready invocations of a pipeline. Made by `SyncClient.run_stages`; used in a `with` block, or
    without one and closed with `close`, with its client, or when the program ends. The loop ends
    when the run or the client is closed, by whatever thread.

    Iterate it; call `grant` for each micro-batch that is done, so that another one comes. When
    the connection is lost, what is still waiting here goes to another runner; completing an
    invocation that was given away is refused by its attempt number.
    """

    def grant(self, count: int = 1) -> None:
        """Ask for `count` more micro-batches."""
        self._lazy.get().grant(count)
