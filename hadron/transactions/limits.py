"""Bounds of a driver and of its participants. Each number says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hadron.model.limits import (
    MAX_BATCH_BYTES,
    MAX_PARTICIPANTS,
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_STATEMENTS,
)

MAX_STATEMENT_COMMAND_BYTES: Final = 1 << 19
"""Of one statement beside its batch: the largest is a completion of many stages. A third of what an
entry may have."""

CHUNK_BYTES: Final = 1 << 20
CHUNK_COMMAND_BYTES: Final = 1 << 19
CHUNK_STATEMENTS: Final = 512
"""One entry of intents: half of a largest body, so that a group of them is one transaction of the
writer. A statement that is larger is one of its own."""

MAX_CHUNKS_IN_FLIGHT: Final = 4
"""Entries of one transaction on their way to one participant: enough for its disk and the wire to
work at the same time, and no more than what others' commits may wait for."""

HOME_BODY_BYTES: Final = MAX_BATCH_BYTES
HOME_COMMAND_BYTES: Final = 1 << 20
"""What a transaction may do at its driver's own set, where it is one entry: what fits into one,
with its participants and what encodes them. Where another set drives it, it comes in many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a driver allows.

    Attributes:
        statements, transaction_bytes, participants: of one transaction.
        open_transactions, held_bytes: of a driver: not decided yet; not logged anywhere yet.
        unfinished: decided, and one replica set has not done its part.
        idle_s: without a message of its client.
        total_s: from its first statement to the client's commit.
        prepare_s: a participant may be away for so long while it is to write intents.
        answer_s: a message is sent again when it is not answered for so long.
    """

    statements: int = MAX_TRANSACTION_STATEMENTS
    transaction_bytes: int = MAX_TRANSACTION_BYTES
    participants: int = MAX_PARTICIPANTS
    open_transactions: int = 10_000
    held_bytes: int = 256 << 20
    unfinished: int = 10_000
    idle_s: float = 30.0
    total_s: float = 300.0
    prepare_s: float = 10.0
    answer_s: float = 1.0


LIMITS: Final = Limits()
