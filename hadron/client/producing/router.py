"""The partitions of one producer: a sender for each, and which one takes over from which.

Rule: records with a key and records without one share no sender where only the latter may go to
another partition (`failover="unkeyed"`): a batch moves as a whole or not at all. Records that name
their partition stay there: they share senders with those that do not move either. Apart from these
a stream with one partition has one sender, so that all of its records keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hadron.client.producing import failover as rules
from hadron.client.producing.outgoing_batch import OutgoingBatch
from hadron.client.producing.partitioner import Partitioner
from hadron.client.producing.sender import PartitionSender, Substitutes
from hadron.model.batch import partition_of
from hadron.model.errors import InvalidRecordError, NotFoundError
from hadron.model.record import NewRecord


class MakeSender(Protocol):
    """Makes the sender of one partition."""

    def __call__(self, partition: str, substitutes: Substitutes | None) -> PartitionSender: ...


class Lane:
    """Senders for one kind of record, one per partition in declared order.

    Args:
        moves: records may go to another partition of the lane.
        twice: in-doubt ones too.
    """

    def __init__(self, make: MakeSender, *, moves: bool, twice: bool) -> None:
        self.senders: list[PartitionSender] = []
        self.moves = moves
        self._make = make
        self._twice = twice
        self._turn = 0

    def add(self, partition: str) -> None:
        self.senders.append(self._make(partition, self if self.moves else None))

    def has_other(self, away: PartitionSender) -> bool:
        return any(sender is not away and not sender.is_away for sender in self.senders)

    def take_over(self, away: PartitionSender) -> None:
        """What may move goes to the others that are up, a batch to each in turn."""

        def may_move(batch: OutgoingBatch) -> bool:
            return rules.may_move(batch, twice=self._twice)

        batches = away.take(may_move)
        up = [sender for sender in self.senders if sender is not away and not sender.is_away]
        for batch in batches:
            self._turn += 1
            up[self._turn % len(up)].accumulator.adopt(batch)
        for sender in up if batches else ():
            sender.pump()


class Router:
    """Which sender takes a record.

    Args:
        make: makes senders; called again for partitions that are added later.
        failover: see `failover.Failover`.
        pinned: the one partition was asked for: it stays the only one.
        by_key: whether keys choose the partition.
        first: which partition the round of records without a key begins with.

    Attributes:
        partitioner: who sends records without keys tells it of them.
    """

    def __init__(
        self,
        make: MakeSender,
        partitions: list[str],
        *,
        failover: str,
        pinned: bool,
        by_key: bool,
        first: Callable[[int], int],
    ) -> None:
        moves = failover != "none" and not pinned
        twice = failover == "duplicate"
        self._pinned = pinned
        self._by_key = by_key
        self._separate = failover == "unkeyed" and by_key and not pinned
        keyed_move = moves and not self._separate
        self._keyed = Lane(make, moves=keyed_move, twice=twice)
        self._free = Lane(make, moves=True, twice=twice) if self._separate else self._keyed
        self._staying = Lane(make, moves=False, twice=False) if keyed_move else self._keyed
        self.partitions: list[str] = []
        self._add(partitions)
        self.partitioner = Partitioner(
            self._keyed.senders, self.senders_without_key, first(len(partitions)), by_key=by_key
        )
        self.choose = self.partitioner.choose
        self.skip = self.partitioner.skip

    @property
    def senders(self) -> list[PartitionSender]:
        """All of them."""
        senders = self._keyed.senders
        for lane in (self._free, self._staying):
            if lane is not self._keyed and lane.senders:
                senders = [*senders, *lane.senders]
        return senders

    @property
    def only(self) -> PartitionSender | None:
        """The sender of everything, if there is just one."""
        senders = self._keyed.senders
        return senders[0] if len(senders) == 1 else None

    def is_free(self, key: bytes | str | None) -> bool:
        """Whether a record with this key may go to any partition."""
        return key is None or not self._by_key

    def at(self, partition: str) -> PartitionSender:
        """The sender of records that name their partition; none of them goes elsewhere.

        Raises `NotFoundError` when the producer may not use that one, or there is none.
        """
        if partition not in self.partitions:
            raise NotFoundError(
                f"this producer has no partition {partition!r}",
                f"it has {', '.join(self.partitions)}",
            )
        for sender in self._staying.senders:
            if sender.accumulator.partition == partition:
                return sender
        self._staying.add(partition)
        return self._staying.senders[-1]

    def home_of(self, record: NewRecord) -> PartitionSender:
        """The sender of a record that names what is to be so in its partition, or that is known
        there by its number: it stays there, whoever is away.

        Raises `InvalidRecordError` when nothing says which one that is.
        """
        if record.partition is not None:
            return self.at(record.partition)
        if self.only is not None:
            return self.only
        if record.key is None or not self._by_key:
            raise InvalidRecordError(
                "a record that expects an offset, or has a sequence, may go to any of several "
                "partitions",
                f"name its partition: one of {', '.join(self.partitions)}; or give it a key",
            )
        return self.at(partition_of(record.key, self.partitions))

    def extend(self, partitions: list[str]) -> bool:
        """The stream has these partitions now; whether any is new. Those known so far come first,
        unless somebody has insisted."""
        new = [name for name in partitions if name not in self.partitions]
        if self._pinned or not new:
            return False
        self._add(new)
        self.partitioner.extend(self._keyed.senders, self.senders_without_key)
        return True

    @property
    def senders_without_key(self) -> list[PartitionSender]:
        """Those that records go to whose key, if any, does not choose the partition."""
        return self._free.senders or self._keyed.senders

    def _add(self, partitions: list[str]) -> None:
        self.partitions.extend(partitions)
        for name in partitions:
            self._keyed.add(name)
        if self._separate and len(self.partitions) > 1:
            for name in self.partitions[len(self._free.senders) :]:
                self._free.add(name)
