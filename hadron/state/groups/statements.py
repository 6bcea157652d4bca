"""Deliveries that transactions acknowledge (PROTOCOL E2).

Safety rule: what somebody else has acknowledged is refused, or both would go on with their outputs.
A group can only go by a deletion between its statement's check and its end, and its progress by a
reset; then nothing is acknowledged, and the statement says so.
"""

from __future__ import annotations

from typing import Final

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.transactions import DELETED, DONE, Lock, StatementResult
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Context, Feature, Statement
from hadron.state.transactions import locks
from hadron.state.transactions.events import RecordsAcknowledged


def _check_ack(context: Context, command: AckRecords) -> None:
    """Raises `NotFoundError` without the group, `RequestError` for what is acknowledged already, or
    does not exist."""
    group_id = command.group_id
    floor, next_offset = groups.reach(context.db, group_id)
    for first, last in command.ranges:
        if not 0 <= first <= last < next_offset:
            raise RequestError(
                f"offsets {first} to {last} cannot be acknowledged, the stream ends at "
                f"{next_offset}"
            )
        if first < floor or groups.unacknowledged(context.db, group_id, first, last) != [
            (first, last)
        ]:
            raise RequestError(
                f"of offsets {first} to {last}, consumer group {group_id} has acknowledged some",
                "they were delivered to somebody else meanwhile, who is done with them: roll back, "
                "and go on with what is delivered now",
            )


def _ack(context: Context, command: AckRecords) -> StatementResult:
    try:
        floor = groups.acknowledge(context.db, command.group_id, command.ranges)
    except NotFoundError:
        return DELETED
    context.emit(RecordsAcknowledged(command.group_id, command.ranges, floor))
    return DONE


def _ack_locks(command: AckRecords) -> tuple[Lock, ...]:
    return (locks.deliveries(command.group_id, command.ranges),)


FEATURE: Final = Feature(
    name="group statements",
    statements={AckRecords: Statement(check=_check_ack, apply=_ack, locks=_ack_locks)},
)
