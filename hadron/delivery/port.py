"""The port of members: how a group's leader tells them, and what they say.

What carries it is not known here: whoever has a member's call (`server.groups.messages`) is its
sink. Both ways records go as ranges, and an acknowledgement costs one object, however many it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from hadron.delivery.effects import Assignment
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_RANGES
from hadron.model.transactions import TransactionId
from hadron.state.groups.progress import GroupOptions, Token

# --- what members say -----------------------------------------------------------------------


class DeliveryRange(NamedTuple):
    """Records of one delivery, both offsets inclusive."""

    delivery: int
    first: int
    last: int


class Ack(NamedTuple):
    """These are dealt with.

    Attributes:
        confirmation: the number of the one it asks for, once that is committed; 0 for none.
        late_ballot: in which they were delivered, where that is not said by the call.
    """

    ranges: Sequence[DeliveryRange] = ()
    confirmation: int = 0
    late_ballot: Ballot | None = None


class Nack(NamedTuple):
    """These are given back.

    Attributes:
        delay_s: until they may be delivered again; None for as long as the leader chooses.
        is_unseen: nobody has looked at them, and the attempt does not count.
    """

    ranges: Sequence[DeliveryRange]
    delay_s: float | None = None
    reason: str = ""
    is_unseen: bool = False


class Extend(NamedTuple):
    """Their deadline begins again; without any, that of all that the member holds."""

    ranges: Sequence[DeliveryRange] = ()


class Heartbeat(NamedTuple):
    """A sign of life."""


class Flow(NamedTuple):
    """From now on the member holds so many records at most; 0 for none, for a while."""

    max_in_flight: int


Said: TypeAlias = Ack | Nack | Extend | Heartbeat | Flow


def check_ranges(ranges: Sequence[DeliveryRange]) -> None:
    """Raises `RequestError` for what no member says."""
    if len(ranges) > MAX_RANGES:
        raise RequestError(
            f"{len(ranges)} ranges in one message are more than {MAX_RANGES}",
            "send them in several messages",
        )
    for _, first, last in ranges:
        if first > last:
            raise RequestError(
                f"offsets {first} to {last} are no range", "the first must not be above the last"
            )


# --- what members are told ------------------------------------------------------------------


class Opened(NamedTuple):
    """What a member is told first.

    Attributes:
        ballot: in which its deliveries will be.
        dead_letter_stream: by name; "" for none, and for one that was deleted.
        fence: the last token from before the group was made, or reset.
        skipped: records that retention has dropped before the group had come to them.
    """

    ballot: Ballot
    floor: int
    options: GroupOptions
    dead_letter_stream: str
    is_ephemeral: bool
    fence: Token
    skipped: int = 0


class MemberSink(Protocol):
    """Where a member is told. Nothing here waits, and where nobody listens nothing happens.

    Attributes:
        on_writable: called when it may be told more again.
    """

    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool:
        """Whether the way there allows another message."""
        ...

    @property
    def peer(self) -> str:
        """Who it is, in words, with the address."""
        ...

    @property
    def deaf_s(self) -> float:
        """Seconds, in all, for which nobody has listened to it here."""
        ...

    def open(self, opened: Opened) -> None: ...

    def deliver(self, given: Assignment, batch: StampedBatch, *, attach: bool) -> None:
        """Records of a batch; `attach`: the batch goes along."""
        ...

    def end_batch(self) -> None:
        """What was delivered since the last end is all of the batch."""
        ...

    def beat(self) -> None:
        """It has been heard of."""
        ...

    def confirm(self, confirmation: int, refused: Sequence[DeliveryRange], floor: int) -> None:
        """All that it has acknowledged is committed, but for what was refused."""
        ...

    def revoke(self, ranges: Sequence[DeliveryRange], reason: str) -> None:
        """It does not hold these any more."""
        ...

    def tell_conflict(self, item: DeliveryRange, transaction: TransactionId) -> None:
        """It cannot end these now; it holds them for a transaction."""
        ...

    def fail(self, error: HadronError) -> None:
        """It is told nothing more, for this reason."""
        ...
