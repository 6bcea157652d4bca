"""A producer's buffer, shared by its partitions so that one which takes nothing keeps only its own
callers waiting.

Rule: a partition may hold as much as is left for all (Choudhury and Hahne's dynamic thresholds, for
switches with shared memory): k partitions that are stuck leave 1/(k + 1) of the buffer to the
others, and nobody needs to know how many those are, or that they are stuck.
*(Records with a key wait for their partition. Its set is away: they fill the buffer, and everybody
waits for the delivery timeout.)*
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from hadron.client.producing.router import Router
from hadron.client.producing.sender import PartitionSender

Key = bytes | str | None


class SendBuffer:
    """Counts what has no outcome yet, and lets callers wait for room.

    Args:
        check_open: raises when nothing may be sent any more.
    """

    def __init__(self, max_bytes: int, router: Router, check_open: Callable[[], None]) -> None:
        self.bytes = 0
        self.only = router.only
        self._max_bytes = max_bytes
        self._router = router
        self._check_open = check_open
        self._waiting: dict[PartitionSender | None, anyio.Event] = {}
        """Who waits for one partition; or, without a key, for any that may have such records."""

    def place(self, key: Key, partition: str | None = None) -> PartitionSender:
        """Where a record with this key goes now, or one that names its partition. Raises
        `NotFoundError` when the producer has none of that name."""
        if partition is not None:
            return self._router.at(partition)
        return self.only or self._router.choose(key)

    def has_room(self, sender: PartitionSender) -> bool:
        if self.only is not None:
            return self.bytes < self._max_bytes
        return sender.accumulator.held_bytes + self.bytes < self._max_bytes

    def find(
        self, key: Key, partition: str | None
    ) -> tuple[PartitionSender | None, PartitionSender | None]:
        """What a record of these waits for, a partition or (None) any that may have it; and where
        it goes now, or None when there is no room."""
        sender = self.place(key, partition)
        is_free = partition is None and self._router.is_free(key)
        place = None if is_free else sender
        if self.has_room(sender):
            return place, sender
        # Without a key it may as well go elsewhere, a batch at a time as ever.
        return place, self._elsewhere(key) if is_free else None

    async def wait(self, key: Key, partition: str | None = None) -> PartitionSender:
        """Until there is room for a record of these; returns where it goes."""
        while True:
            self._check_open()
            place, sender = self.find(key, partition)
            if sender is not None:
                return sender
            event = self._waiting.setdefault(place, anyio.Event())
            await event.wait()

    def _elsewhere(self, key: Key) -> PartitionSender | None:
        for _ in self._router.senders:
            self._router.skip()
            sender = self.place(key)
            if self.has_room(sender):
                return sender
        return None

    def freed(self, size: int) -> None:
        """A batch has its outcome."""
        self.bytes -= size
        if self._waiting:
            self.look()

    def look(self) -> None:
        """Wake those for whom there is room now; also when a partition has gone away."""
        for place in list(self._waiting):
            if self._may_go_on(place):
                self._waiting.pop(place).set()

    def _may_go_on(self, place: PartitionSender | None) -> bool:
        if place is None:
            return any(map(self.has_room, self._router.senders_without_key))
        return place.is_away or self.has_room(place)

    def wake_all(self) -> None:
        """Nothing is sent any more, or there are more partitions."""
        waiting, self._waiting = self._waiting, {}
        for event in waiting.values():
            event.set()
