"""How long a record that was given back waits, a member that gives everything back, and one that is
to be empty. Pure.

A member that gives back what it gets as fast as it gets it would keep the leader busy with nothing
else, and use up every record's attempts in a second. So a record waits longer each time, and who
has given back many in a row without dealing with one is tried with single records, ever more
rarely, until one of them is acknowledged: what it needs is probably away.

RabbitMQ and NATS deliver at once again, as often as it takes; Pulsar waits a minute by default, and
its "negative ack backoff" is this one; a circuit breaker is the same for the member.
"""

from __future__ import annotations

from typing import Final

from hadron.model.backoff import doubled_s

FIRST_S: Final = 0.1
"""After the first attempt in vain: most of what is away for a moment is back."""

CAP_S: Final = 30.0
"""What somebody repairs is taken up again within half a minute."""

ASKED_FREE: Final = 2
"""Attempts after which a member's own delay counts as it is, 0 included: another member may be able
to use the record at once."""

ASKED_CAP_S: Final = 1.0
"""A delay from here on is always taken as it is: who asks for it knows what it waits for."""

FREE_IN_A_ROW: Final = 32
"""Ranges given back one after the other, or kept over their deadline, none acknowledged, before a
member rests."""

REST_CAP_S: Final = 5.0

LINGER_S: Final = 0.05
"""So long a member's credit waits for more, to be given in one message: a quarter of what it takes
is worth one at once. Where each record is a long job its other hands would be free as long as that
is not there."""

BATCH_LINGERS: Final = 100
"""As often, five seconds: where batches are wanted, and what is kept leaves no room for one."""

DRAIN_S: Final = 30.0
"""For so long a member that is to be empty gets nothing while it deals with nothing, either: who
works for longer on what it has would wait with free hands."""

DRAIN_PAUSE_S: Final = 180.0
"""After that, before one is emptied again: so a sixth of a member's time is lost at most."""


def again_after_s(attempt: int, asked_s: float | None, share: float) -> float:
    """Seconds until a record is delivered again after so many attempts.

    Args:
        asked_s: what the member wants; None leaves it to the leader.
        share: random, 0.5 to 1, so that what came back together does not come again together.
    """
    if asked_s is None:
        return share * doubled_s(FIRST_S, attempt - 1, CAP_S)
    if asked_s >= ASKED_CAP_S or attempt <= ASKED_FREE:
        return asked_s
    return max(asked_s, share * doubled_s(FIRST_S, attempt - ASKED_FREE - 1, ASKED_CAP_S))


def rest_s(rests: int, share: float) -> float:
    """Seconds for which a member gets nothing that has rested `rests` times already."""
    return share * doubled_s(FIRST_S, rests, REST_CAP_S)
