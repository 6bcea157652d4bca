"""Why a driver rolls a transaction back, in words for its client. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hadron.model.errors import (
    HadronError,
    NotFoundError,
    OverloadedError,
    RecordTooLargeError,
    RequestError,
    TransactionExpiredError,
    UnreachableError,
)
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.transactions import TransactionId
from hadron.transactions.held import Phase, Transaction
from hadron.transactions.limits import MAX_STATEMENT_COMMAND_BYTES, Limits
from hadron.transactions.messages import Fate, Statement


def unfit(transaction: TransactionId, why: str, here: str) -> HadronError:
    return RequestError(
        f"transaction {transaction} {why}; this is {here}",
        "ask for its outcome; begin another one to do more",
    )


def other_results(came: int, expected: int) -> str:
    return f"it has finished {came} statements and is to finish {expected}"


def not_finished(
    transaction: TransactionId, participant: str, ballot: Ballot, error: HadronError
) -> str:
    """Why a participant does not finish what is decided; of what it does not know, also how that
    came. What is forgotten leaves no trace: nobody can tell which of these it was, so the driver
    must not take it for done (DISKS S7).

    Args:
        ballot: of the leadership that asks. A restore raises its epoch.
    """
    if not isinstance(error, NotFoundError):
        return str(error)
    home = transaction.replica_set
    causes = f"{participant} was restored, and has lost it; or it was aborted there by force"
    if ballot.epoch > transaction.epoch:
        causes = (
            f"{home} was restored, and {participant} has done it since that backup was made, or "
            f"has dropped it after an earlier restore; or {causes}"
        )
    # What is to be done first: lists show the beginning.
    return (
        f"{error}; if that stays so, look there for what it was to do, then `hadron tx resolve "
        f"{transaction} --give-up {participant} --accept-torn` ends the waiting, and changes "
        f"nothing there ({causes})"
    )


def by_operator(transaction: TransactionId) -> HadronError:
    return RequestError(
        f"transaction {transaction}: an operator has rolled it back",
        "nothing of it was done: do it again, unless the operator says otherwise",
    )


def resolved(transaction: TransactionId, participant: str, waits_for: Iterable[str]) -> HadronError:
    """Nothing can be ended there."""
    names = ", ".join(waits_for) or "nobody"
    if participant:
        return RequestError(
            f"transaction {transaction} is decided, and does not wait for {participant!r}",
            f"it waits for: {names}",
        )
    return RequestError(
        f"transaction {transaction} is committed, and cannot be rolled back",
        f"it waits for: {names}; `hadron tx resolve --help` says how to wait no more",
    )


def not_lost(transaction: TransactionId, fate: Fate, participant: str) -> HadronError:
    """To an operator who would end at a participant what its driver knows."""
    driver = transaction.replica_set
    if fate is Fate.WAIT:
        return RequestError(
            f"the driver of transaction {transaction}, {driver}, answers: it is not decided",
            f"`hadron tx resolve {transaction}` rolls it back there",
        )
    return RequestError(
        f"the driver of transaction {transaction}, {driver}, answers: it is {fate.value}",
        f"{participant} has heard it just now, and does it; where it cannot, have the driver give "
        "it up first",
    )


def no_participant(transaction: TransactionId) -> HadronError:
    """To an operator who would end at its driver what only that can decide."""
    return RequestError(
        f"{transaction.replica_set} drives transaction {transaction}, and is no participant of it",
        f"`hadron tx resolve {transaction}` rolls it back if it is not decided",
    )


def by_client() -> HadronError:
    return RequestError("its client has rolled it back")


def not_begun(transaction: TransactionId, ballot: Ballot) -> HadronError:
    """Nobody has begun it.

    Args:
        ballot: of the leadership that is asked.
    """
    home = transaction.replica_set
    return NotFoundError(
        f"there is no transaction {transaction}: no leadership of {home} has had ballot "
        f"{transaction.ballot} yet, it is at {ballot}",
        "compare the id with those of `hadron tx list`",
    )


def too_many_open(home: str, count: int) -> HadronError:
    return OverloadedError(
        f"{home} drives {count} open transactions, which is the limit",
        "commit some, or let another replica set drive",
    )


def too_large(number: int, statement: Statement) -> HadronError | None:
    """Of one statement; None when it is not."""
    body_bytes, command_bytes = len(statement.body), len(statement.command)
    if body_bytes <= MAX_BATCH_BYTES and command_bytes <= MAX_STATEMENT_COMMAND_BYTES:
        return None
    return RecordTooLargeError(
        f"statement {number} has {command_bytes} bytes and batches of {body_bytes}, the limits are "
        f"{MAX_STATEMENT_COMMAND_BYTES} and {MAX_BATCH_BYTES}",
        "make several statements of it",
    )


def too_much(held: Transaction, limits: Limits) -> HadronError:
    return RequestError(
        f"transaction {held.id} has {held.count} statements with {held.size} bytes, the limits are "
        f"{limits.statements} and {limits.transaction_bytes}",
        "do it in several transactions",
    )


def too_many_at(held: Transaction, name: str, limits: Limits) -> HadronError:
    return RequestError(
        f"transaction {held.id} has more than {limits.set_statements} statements at {name}, which "
        "does them in one entry",
        "do it in several transactions; records of one stream that are given together share a "
        "statement",
    )


def too_much_held(home: str, size: int, limits: Limits) -> HadronError:
    return OverloadedError(
        f"the open transactions at {home} hold {size} bytes, the limit is {limits.held_bytes}",
        "commit some first, or let another replica set drive",
    )


def unknown_set(name: str, home: str) -> HadronError:
    return RequestError(
        f"there is no replica set {name!r} that {home} knows",
        "one that has just started hears of them within seconds: do it again, or see `hadron "
        "status` for those that there are",
        retryable=True,
    )


def too_many_participants(held: Transaction, name: str) -> HadronError:
    return RequestError(
        f"transaction {held.id} has statements at {len(held.branches)} replica sets besides "
        f"{name}, which is the limit",
        "do it in several transactions",
    )


def too_many_unfinished(name: str, count: int) -> HadronError:
    return OverloadedError(
        f"{count} decided transactions wait for {name}, which is the limit: no more are begun with "
        "it until it is back",
        f"see `hadron status` for {name}",
    )


def gone_astray(held: Transaction, made: int) -> HadronError:
    return RequestError(
        f"transaction {held.id}: its client has made {made} statements, and {held.count} came",
        "do it again",
    )


def intents_lost(held: Transaction, name: str, before: int, now: int) -> HadronError:
    return RequestError(
        f"{name} has lost intents of transaction {held.id}: the first was in entry {before}, and "
        f"is in {now} now",
        "do it again; was it resolved by hand, or the replica set restored?",
        retryable=True,
    )


def overdue(
    held: Transaction, now: float, limits: Limits, reason: Callable[[str], str]
) -> HadronError | None:
    """Why an open transaction ends now.

    Args:
        reason: why a replica set is not heard of; "" while it is.
    """
    if held.phase is Phase.DECIDING:
        return None
    if held.phase is Phase.OPEN and now - held.touched_at > limits.idle_s:
        return idle(held, limits)
    if held.phase is Phase.OPEN and now - held.begun_at > limits.total_s:
        return open_for_long(held, limits)
    for name, branch in held.branches.items():
        if not branch.is_prepared and now - branch.since > limits.prepare_s:
            return away(held, name, reason(name), limits)
    return None


def idle(held: Transaction, limits: Limits) -> HadronError:
    return TransactionExpiredError(
        f"transaction {held.id} was idle for {limits.idle_s:g} s and was rolled back",
        "do it again, and wait for nothing slow between its statements",
    )


def open_for_long(held: Transaction, limits: Limits) -> HadronError:
    return TransactionExpiredError(
        f"transaction {held.id} was open for {limits.total_s:g} s and was rolled back",
        "do it again, in smaller ones",
    )


def away(held: Transaction, name: str, reason: str, limits: Limits) -> HadronError:
    return UnreachableError(
        f"{name} has not written what transaction {held.id} does there for {limits.prepare_s:g} s"
        f"{f': {reason}' if reason else ''}",
        f"it was rolled back; do it again when {name} is back",
    )
