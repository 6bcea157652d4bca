"""The blocking face of `hadron.client.consuming.deliveries`, made of it by `make faces`."""

from __future__ import annotations

from datetime import timedelta

from hadron.client.blocking.deliveries import DeliveryBase, DeliveryBatchBase


class SyncDelivery(DeliveryBase):
    """One record given to this member, to be acknowledged; by any thread."""

    def ack(self) -> None:
        """The record is dealt with. Returns before that is committed; see `SyncSubscription.flush`.

        Once the connection is lost that has brought it, or its deadline has passed, the ack counts
        if nobody else has got the record meanwhile (PROTOCOL D2).
        """
        self._subscription.ack(self)

    def nack(self, delay_s: float | timedelta | None = None, reason: str = "") -> None:
        """Give the record back, to be delivered again; once it was acknowledged, this does nothing.

        Without `delay_s` it comes again after 0.1 s, and after twice as long each further time, up
        to 30 s. With it, after so many seconds, at most 49 days; 0 is at once, to another member
        if there is one, but from the third attempt on less than a second grows as well. A member
        that gives back more than 32 records in a row and acknowledges none gets single ones, ever
        more rarely, until it acknowledges one (unless its delays are a second or more). In strict
        order everything behind the record waits for it, by key what has its key.

        The delay is in the leader's memory: when another node leads, or this one starts again, the
        record is delivered at once. `reason` stands in the dead letter when this was the last
        attempt. Raises `RequestError` for a delay that makes no sense.
        """
        self._subscription.nack(self, delay_s, reason)

    def extend(self) -> None:
        """Still at work: the ack deadline starts again, for all records that came together. For
        what another member has got meanwhile it does nothing: `flush` tells of that.
        """
        self._subscription.extend(self)


class SyncDeliveryBatch(DeliveryBatchBase):
    """Records of one partition given to this member together, in order."""

    def ack(self) -> None:
        """All of them are dealt with; like `SyncDelivery.ack`."""
        self._subscription.ack_batch(self)

    def nack(self, delay_s: float | timedelta | None = None, reason: str = "") -> None:
        """Give all of them back; like `SyncDelivery.nack`."""
        self._subscription.nack_batch(self, delay_s, reason)

    def extend(self) -> None:
        """Still at work: the ack deadline of all of them starts again."""
        self._subscription.extend_batch(self)
