"""What each entry of a log does, computed without `apply`: a transaction's statements are done by
the entry that finishes or decides it, whichever have brought them, and appends what is published of
what was staged. Pure."""

from __future__ import annotations

from hadron.model.transactions import TransactionId
from hadron.sim.model.machine import parts_of
from hadron.state.features import MACHINE
from hadron.state.machine import BatchShape, Command
from hadron.state.sinks.staging import PublishStaged, StageBatches
from hadron.state.streams.partitions import AppendBatch
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.joint_decisions import DecideAppends, DecideRun


class Doings:
    """Entries of one log, told in order, from wherever it begins."""

    def __init__(self) -> None:
        self._intents: dict[TransactionId, dict[int, tuple[bytes, ...]]] = {}
        self._staged: dict[bytes, list[BatchShape]] = {}

    def of(self, command: Command) -> list[Command] | None:
        """The commands that an entry does; None of statements that came before the log begins."""
        if isinstance(command, StageBatches):
            if not command.first_number:
                # What was there had expired, and was dropped.
                self._staged[command.attempt] = []
            self._staged.setdefault(command.attempt, []).extend(command.sizes)
            return []
        done = self._of(command)
        if done is None or not any(isinstance(each, PublishStaged) for each in done):
            return done
        if not all(
            len(self._staged.get(attempt, ())) == count
            for each in done
            if isinstance(each, PublishStaged)
            for attempt, count in each.attempts
        ):
            return None
        return [append for each in done for append in self._appends(each)]

    def _appends(self, command: Command) -> list[Command]:
        """What is published is appended as it was staged."""
        if not isinstance(command, PublishStaged):
            return [command]
        return [
            AppendBatch(command.stream_id, shape.records, shape.size, b"", 0, -1)
            for attempt, _ in command.attempts
            for shape in self._staged.pop(attempt)
        ]

    def _of(self, command: Command) -> list[Command] | None:
        if isinstance(command, WriteIntents):
            known = self._intents.setdefault(command.transaction, {})
            known[command.first_number] = command.statements
            return []
        if isinstance(command, AbortTransaction):
            self._intents.pop(command.transaction, None)
            return []
        if isinstance(command, FinishTransaction):
            known = self._intents.pop(command.transaction, {})
            statements = [each for _, some in sorted(known.items()) for each in some]
            if len(statements) != command.count:
                return None
            return list(map(MACHINE.decode, statements))
        if isinstance(command, Decide):
            return list(map(MACHINE.decode, command.statements))
        if isinstance(command, DecideRun):
            return [MACHINE.decode(command.statement)]
        if isinstance(command, DecideAppends):
            return [append for each in command.transactions for append in each.appends]
        return parts_of(command)


def has_own_batches(command: Command) -> bool:
    """Whether the entry's body has the batches of what it does. Nobody here publishes what was
    staged together with batches of the same entry."""
    return not isinstance(command, WriteIntents | FinishTransaction)
