"""Running commands: the one way in which a leader, a replica and a verification change tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw

from hadron.model.errors import HadronError, StorageError, VersionError
from hadron.model.ports import Database
from hadron.state import leadership
from hadron.state.machine import Command, Context, Event, NoChange

_log = logging.getLogger(__name__)

_REFUSALS: Final = (apsw.ConstraintError, apsw.MismatchError, apsw.SQLError)
"""SQLite's errors about a statement; all others are about the file or the disk."""


class DivergedError(StorageError):
    """This node's tables are not what its replica set's log makes of them; a snapshot has to
    replace them."""


@dataclass(slots=True)
class Outcome:
    """What a command came to.

    Attributes:
        command: as it is to be logged; None when nothing is: it was refused, or done before.
        result: the answer, unless there is an `error`.
        events: what has happened.
    """

    command: Command | None = None
    result: Any = None
    error: HadronError | None = None
    events: Sequence[Event] = ()


def execute(context: Context, command: Command) -> Outcome:
    """Run a command that somebody has submitted, inside the caller's transaction: tables are
    changed as the command says, or not at all.

    Raises what is wrong with the file or the disk; all else is an outcome.
    """
    db, machine = context.db, context.machine
    db.execute("SAVEPOINT command")
    try:
        sealed = machine.seal(context, command)
        result = machine.apply(context, sealed)
        leadership.check_rules(context, sealed)
    except NoChange as known:
        outcome = Outcome(result=known.result)
    except Exception as error:
        outcome = Outcome(error=_refusal(command, error))
    else:
        db.execute("RELEASE command")
        return Outcome(sealed, result, events=context.events)
    db.execute("ROLLBACK TO command")
    db.execute("RELEASE command")
    return outcome


def _refusal(command: Command, error: Exception) -> HadronError:
    """What `command` was refused with, to be told: one answer for all who apply it, or a leader
    goes on behind a command that ends a replica at every start (PROTOCOL A1).

    Raises `error` where it is about the file, the disk or memory, and refuses nothing.
    """
    if isinstance(error, HadronError):
        return error
    if isinstance(error, apsw.Error | MemoryError) and not isinstance(error, _REFUSALS):
        raise error
    # A hole in an `apply`'s own checks. Nothing of the command stays; were it the end of the node,
    # whoever sends it again would end the next one.
    name = type(command).__name__
    _log.error("%s could not be applied", name, exc_info=error)
    return HadronError(
        f"{name} cannot be applied: {type(error).__name__}: {error}",
        "this is a defect of Hadron; the node's log has the details",
    )


def check_transaction(db: Database) -> None:
    """Raises `StorageError` where the caller's transaction is gone. A failing disk makes SQLite end
    it, with all that was changed before; what follows would be committed by itself."""
    if not db.in_transaction:
        raise StorageError(
            "a transaction was ended by SQLite, as it does when a disk fails",
            "see the kernel's log for what is wrong with the disk",
        )


def execute_logged(context: Context, data: bytes) -> None:
    """Run a command that a leader has logged. It was accepted once, so whoever refuses it now has
    other tables: raises `DivergedError`, or `VersionError` for rules that this version does not
    have."""
    command = context.machine.decode(data)
    try:
        context.machine.apply(context, command)
    except VersionError:
        raise
    except Exception as error:
        known = isinstance(error, NoChange)
        said = "it was done before" if known else _refusal(command, error).message
        raise DivergedError(
            f"entry {context.lsn} ({type(command).__name__}) was accepted by its leader and is "
            f"refused here: {said}"
        ) from error
