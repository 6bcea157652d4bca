"""What becomes of records whose partition is away (PROTOCOL D1). Pure.

Only a batch of which no copy can be in a log, or get there, goes to another partition: one that was
never sent, or whose every call was definitely refused. Every other one stays pinned to its
partition, with its sequence, until an answer or the delivery timeout.
*(A batch is logged and the set dies before it answers. Published elsewhere as well, it is there
twice once the set is back: no sequence is known in two partitions.)*
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from hadron.client.producing.outgoing_batch import BatchState, OutgoingBatch

Failover = Literal["unkeyed", "any", "none", "duplicate"]
"""Which records may go to another partition: those without a key, as the others would lose their
order; any; none; or any, in-doubt ones too, for those who prefer twice to unknown."""

FAILOVERS: Final[tuple[str, ...]] = get_args(Failover)

AWAY_AFTER_S: Final = 1.0
"""A partition that has not answered, or whose leader has not been found, for so long counts as
away: well above a slow fsync, and with a tick on top well below a pause of 3 s."""


def may_move(batch: OutgoingBatch, *, twice: bool) -> bool:
    """Whether a batch whose partition is away may be published in another one.

    Args:
        twice: also when it may be in the log of its own (`failover="duplicate"`).
    """
    if batch.is_conditional:
        return False
    if twice:
        return not batch.is_done
    if batch.state is BatchState.OPEN or batch.state is BatchState.QUEUED:
        return True
    return batch.state is BatchState.UNANSWERED and not batch.doubtful
