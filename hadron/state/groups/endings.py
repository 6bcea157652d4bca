"""Deliveries that ended without an acknowledgement: counted, or the last one, and a dead letter.

Safety rule: a record becomes a dead letter and is acknowledged by one entry, and only if nobody had
acknowledged it: it is never lost between the two, and never both.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ports import Database
from hadron.model.ranges import Range, size
from hadron.state.groups import attempts
from hadron.state.groups import progress as groups
from hadron.state.groups.attempts import Attempts
from hadron.state.groups.progress import GROUP, GROUP_ACK
from hadron.state.machine import BatchShape, Command, Context, Feature
from hadron.state.streams import partitions as streams
from hadron.state.streams.producers import Appended
from hadron.state.transactions import locks

_ACK_WITHIN: Final = (
    f"SELECT first FROM {GROUP_ACK} WHERE group_id = ? AND first <= ? AND last >= ?"
    " AND first >= coalesce("
    f"(SELECT max(first) FROM {GROUP_ACK} WHERE group_id = ? AND first < ?), 0) LIMIT 1"
)
_COUNT_DEAD_LETTERS: Final = (
    f"UPDATE {GROUP} SET dead_lettered = dead_lettered + ? WHERE group_id = ?"
)
_GET_FLOOR: Final = f"SELECT floor FROM {GROUP} WHERE group_id = ?"


class EndDeliveries(Command[int], frozen=True, array_like=True, tag=14):
    """So many deliveries of some offsets have ended without an acknowledgement, and others, later
    ones of the same offsets perhaps, with one."""

    is_rationed: ClassVar[bool] = True
    is_joinable: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    group_id: int
    attempts: tuple[Attempts, ...]
    acknowledged: tuple[Range, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.attempts) + len(self.acknowledged)


class DeadLetterRecords(Command["DeadLettered"], frozen=True, array_like=True, tag=15):
    """Append the entry's body, a batch with these records of a group, to a stream's partition here,
    and acknowledge them.

    Attributes:
        group_id: 0 for an ephemeral group, of which nothing is known here.
        ranges: ascending and apart, as many offsets as the body has records.
        size: bytes of the body.
    """

    is_rationed: ClassVar[bool] = True
    is_joinable: ClassVar[bool] = True

    group_id: int
    out_stream_id: int
    ranges: tuple[Range, ...]
    size: int

    @property
    def count(self) -> int:
        """Of records."""
        return size(self.ranges)

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(self.count, self.size),)


class DeadLettered(msgspec.Struct, frozen=True):
    """Where the dead letters went, and the group's floor now."""

    appended: Appended
    floor: int


def apply_end_deliveries(context: Context, command: EndDeliveries) -> int:
    """Returns the group's floor. Raises `NotFoundError` without the group, `ConflictError` where it
    acknowledges what a transaction holds. Attempts of what is acknowledged already, as a dead
    letter perhaps, are not counted; of what a transaction holds they are: they are of deliveries
    before that one, and may have waited for the log for longer."""
    db, group_id = context.db, command.group_id
    floor = _floor(db, group_id)
    locks.check_free(context, locks.deliveries(group_id, command.acknowledged))
    for first, last, number in command.attempts:
        for a, b in groups.unacknowledged(db, group_id, max(first, floor), last):
            attempts.record(db, group_id, a, b, number)
    if not command.acknowledged:
        return floor
    return groups.acknowledge(db, group_id, command.acknowledged)


def apply_dead_letter_records(context: Context, command: DeadLetterRecords) -> DeadLettered:
    """Raises `NotFoundError` without the group or the stream, `RequestError` when one of the
    records is acknowledged already, `ConflictError` when a transaction holds one."""
    db, group_id = context.db, command.group_id
    count = command.count
    if not group_id:
        appended = streams.append(context, command.out_stream_id, count, command.size)
        return DeadLettered(appended, 0)
    floor = _floor(db, group_id)
    locks.check_free(context, locks.deliveries(group_id, command.ranges))
    for first, last in command.ranges:
        known = db.execute(_ACK_WITHIN, (group_id, last, first, group_id, first)).fetchone()
        if first < floor or known is not None:
            raise RequestError(
                f"of offsets {first} to {last}, group {group_id} has acknowledged some: they are "
                "no dead letters"
            )
    appended = streams.append(context, command.out_stream_id, count, command.size)
    db.execute(_COUNT_DEAD_LETTERS, (count, group_id))
    return DeadLettered(appended, groups.acknowledge(db, group_id, command.ranges))


def _floor(db: Database, group_id: int) -> int:
    row = db.execute(_GET_FLOOR, (group_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"consumer group {group_id} does not exist")
    floor: int = row[0]
    return floor


FEATURE: Final = Feature(
    name="group endings",
    commands={EndDeliveries: apply_end_deliveries, DeadLetterRecords: apply_dead_letter_records},
)
