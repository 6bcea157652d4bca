"""Bounds of a driver and of its participants. Each number says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hadron.model.limits import (
    MAX_BATCH_BYTES,
    MAX_PARTICIPANTS,
    MAX_SET_STATEMENTS,
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

STATEMENT_BYTES: Final = 512
"""What a statement takes besides its own bytes while its driver holds it. What it locks is counted
where it is (`serving.lock_table`)."""

SWEEP_S: Final = 1.0
"""Between two looks at what is open for too long."""

MAX_ASKED: Final = 1_000
"""Transactions that one question may name."""

MAX_NOTES: Final = 256
MAX_NOTED_RESULTS: Final = MAX_SET_STATEMENTS
"""That participants have finished, and what with, in one entry: it is made as soon as there is that
much. One participant may have as many results on top, at 24 bytes each: half of what an entry may
have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a driver allows.

    Attributes:
        statements, transaction_bytes, participants: of one transaction.
        set_statements: of those, at one replica set.
        open_transactions, held_bytes: of a driver: not decided yet; not logged anywhere yet.
        unfinished: decided, and one replica set has not done its part.
        decisions, decision_bytes: kept for who asks for an outcome, and what their statements came
            to: with more, the oldest are forgotten before their time.
        home_bytes, home_command_bytes, home_statements: of what a transaction does at its driver's
            own set, to be done by the deciding entry; with more, that set is a participant like any
            other. What fits into an entry with its participants, and into 30 ms.
        idle_s: without a message of its client.
        total_s: from its first statement to the client's commit.
        prepare_s: a participant may be away for so long while it is to write intents.
        answer_s: a message is sent again when it is not answered for so long.
        note_s: that participants have finished is logged, and they are told to forget, so much
            later, with what others have finished by then. Nobody waits for it.
    """

    statements: int = MAX_TRANSACTION_STATEMENTS
    set_statements: int = MAX_SET_STATEMENTS
    transaction_bytes: int = MAX_TRANSACTION_BYTES
    participants: int = MAX_PARTICIPANTS
    open_transactions: int = 10_000
    held_bytes: int = 256 << 20
    unfinished: int = 10_000
    decisions: int = 4_000_000
    decision_bytes: int = 256 << 20
    home_bytes: int = MAX_BATCH_BYTES
    home_command_bytes: int = 1 << 20
    home_statements: int = 2_000
    idle_s: float = 30.0
    total_s: float = 300.0
    prepare_s: float = 10.0
    answer_s: float = 1.0
    note_s: float = 0.05


LIMITS: Final = Limits()
