"""The blocking face of `hadron.client.handling.stage`, made of it by `make faces`."""

from __future__ import annotations

from hadron.client.blocking.handling import StageInvocationsBase


class SyncStageInvocations(StageInvocationsBase):
    """Invocations of a stage. Made by `SyncClient.stage`; loop over it, in a `with` block or
    without one. Several threads may loop over one in a block.

    The program has at most `max_in_flight` that have not ended; those whose records are at a leader
    that is away wait beside them. When the connection to the pipeline's leader is lost all go to
    another runner at once, and what is said of them later counts if it is first. Leaving the loop,
    or its block, gives back what has not ended, without using up an attempt.

    The stage's timeout runs for an invocation from when it is handed out. One that has not ended by
    then has failed, and what is said of it later is stale.
    """
