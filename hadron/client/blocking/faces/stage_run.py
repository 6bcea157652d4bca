"""The blocking face of `hadron.client.pipelines.stage_run`, made of it by `make faces`."""

from __future__ import annotations

from hadron.client.blocking.invocations import StageRunBase
from hadron.wire.messages import pipelines_pb2


class SyncStageRun(StageRunBase):
    """Ready invocations of a pipeline. Made by `SyncClient.run_stages`; used in a `with` block, or
    without one and closed with `close`, with its client, or when the program ends. The loop ends
    when the run or the client is closed, by whatever thread.

    Iterate it; call `grant` for each micro-batch that is done, so that another one comes. What it
    has given is this program's for as long as the stage's timeout says. When the connection is
    lost, it goes to another runner at once; completing an invocation that was given away, and
    ended there, is refused by its attempt number.
    """

    def grant(self, count: int = 1) -> None:
        """Ask for `count` more micro-batches."""
        self._lazy.get().grant(count)

    def begin(self, invocations: pipelines_pb2.Invocations, code_version: str = "") -> None:
        """Say that this program works on a micro-batch, or still does: its stage's timeout runs
        from here. Iterating says it by itself, unless the run `takes_ahead`. `code_version`, of
        what runs it, is for the instances' stories.
        """
        self._lazy.get().begin(invocations, code_version)
