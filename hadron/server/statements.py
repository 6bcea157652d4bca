"""What stands in a transaction, from the wire to what is logged of it: each statement passes the
checks of the plain call that does the same alone, at the leader of the replica set that it is of.
How statements of a kind are read stands beside that call; `server.led` has all kinds.

Safety rule: the same statement becomes the same command however often it comes, and with nobody in
between: what is sent again is known by its bytes (PROTOCOL E2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hadron.model.errors import RequestError
from hadron.model.transactions import TransactionId
from hadron.serving.leading import Leading
from hadron.state.machine import Command, encode
from hadron.transactions.claims import Claim
from hadron.transactions.part import Transactions
from hadron.wire.messages import transactions_pb2

_KINDS: Final = transactions_pb2.Statement.DESCRIPTOR.oneofs_by_name["kind"]


@dataclass(frozen=True, slots=True)
class Reader:
    """How statements of one kind are read.

    Attributes:
        command: told (leading, whose statement it is, the statement, its batch), what is logged of
            it. Raises what refuses the plain call.
        takes_batch: others are refused when they come with one.
    """

    command: Callable[[Leading, TransactionId, transactions_pb2.Statement, memoryview], Command]
    takes_batch: bool = False


class Statements:
    """All kinds of statements.

    Args:
        rooms: of each, the readers by their kind's name in the message. All that `proto/` has must
            be there, once.
    """

    def __init__(self, *rooms: Mapping[str, Reader]) -> None:
        self._readers = {kind: reader for room in rooms for kind, reader in room.items()}
        named = sorted(kind for room in rooms for kind in room)
        assert named == sorted(field.name for field in _KINDS.fields), named

    def read(
        self,
        leading: Leading,
        claim: Claim,
        statement: transactions_pb2.Statement,
        batch: memoryview,
    ) -> bytes:
        """What is logged of a statement of this replica set. From here on nobody else ends what it
        ends (`Transactions.claims`).

        Raises what refuses the plain call, `ConflictError` for what another transaction ends, and
        `RequestError` for what is no statement.
        """
        command = self._command(leading, claim[0], statement, batch)
        locks = leading.controller.machine.statement(command).locks(command)
        if locks:
            leading.part(Transactions).claims.claim(claim, locks)
        return encode(command)

    def _command(
        self,
        leading: Leading,
        transaction: TransactionId,
        statement: transactions_pb2.Statement,
        batch: memoryview,
    ) -> Command:
        reader = self._readers.get(statement.WhichOneof("kind") or "")
        if len(batch) and not (reader is not None and reader.takes_batch):
            raise RequestError(
                f"a batch of {len(batch)} bytes comes with a statement that has none"
            )
        if reader is None:
            raise RequestError(
                "a statement says nothing that this version of Hadron knows",
                "a transaction publishes, acknowledges, completes or fails stages, advances sinks",
            )
        return reader.command(leading, transaction, statement, batch)
