"""What a group's member is given and what it says to it, noted into a history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import trio

from hadron.client.consuming.subscription import Subscription
from hadron.model.errors import ConnectionLostError
from hadron.model.ranges import Range
from hadron.sim.evidence.history import History, Settle

_FLUSH_S: Final = 8.0


class Dealings:
    """Of one member, in one session after the other.

    Args:
        history: where they go.
        group: its name.
        stream: what the group is a group of.
    """

    def __init__(self, history: History, group: str, stream: str) -> None:
        self._history = history
        self._group, self._stream = group, stream
        self._member = ""
        self._unconfirmed: list[Settle] = []
        """Acknowledged here; whether it has arrived, `flush` tells."""

    def begin(self, member: str) -> None:
        """A session begins, under a name of its own, which is its client's too; nobody can tell any
        more what has arrived of the one before."""
        self._member = member
        self._unconfirmed = []

    @property
    def many_unconfirmed(self) -> bool:
        """Whether it is time to ask."""
        return len(self._unconfirmed) > 20

    def given(self, partition: str, offset: int, values: Sequence[str], *, attempt: int) -> None:
        """Records from this offset on, without a gap."""
        self._history.deliver(
            self._member,
            self._group,
            self._member,
            self._stream,
            partition,
            offset,
            values,
            attempt=attempt,
        )

    def settle(
        self, how: Literal["ack", "nack"], partition: str, ranges: Iterable[Range]
    ) -> Settle:
        """To be called before it is said."""
        return self._history.settle(
            self._member, self._group, self._member, self._stream, partition, ranges, how=how
        )

    def acknowledged(self, settle: Settle) -> None:
        """It was said."""
        self._unconfirmed.append(settle)

    async def flush(self, subscription: Subscription) -> None:
        """Wait, not for ever, until what was acknowledged has arrived."""
        settles, self._unconfirmed = self._unconfirmed, []
        with trio.move_on_after(_FLUSH_S):
            try:
                await subscription.flush()
            except ConnectionLostError as error:
                for settle in settles:
                    self._history.unknown(settle, error)
            else:
                for settle in settles:
                    self._history.ok(settle)
