"""The blocking face of `hadron.client.consuming.subscription`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hadron.client.blocking.faces.deliveries import SyncDelivery, SyncDeliveryBatch
from hadron.client.blocking.faces.steps import SyncStep
from hadron.client.blocking.intake import Intake, SubscriptionBase
from hadron.client.consuming.steps import DEFAULT_MAX_RECORDS
from hadron.client.producing.new_records import Serializer


class SyncSubscription(SubscriptionBase):
    """A member of a group. Made by `SyncClient.subscribe`; used in a `with` block or, as well,
    without one and closed with `close`, with its client, or when the program ends. Any thread may
    take deliveries, each of which is given to one of them, acknowledge them, and close it; a loop
    over transactions is one thread's. Loops end when the subscription or the client is closed; what
    is acknowledged after that is delivered again.

    Iterate it for one `SyncDelivery` at a time, or `batches()`, or `poll`. When a connection is
    lost the member joins again by itself, for as long as it takes; what it had not acknowledged is
    delivered again, perhaps to another member. Partitions that are added to the stream are joined.
    What ends the membership for good is raised by the iteration, which ends when the subscription
    or the client is closed. Leaving the block sends the acks, then leaves the group: the rest goes
    to others.
    """

    def batches(self) -> Iterator[SyncDeliveryBatch]:
        """Batches of `batch_size`; without one, records as the leader sends them, consecutive
        ones of a stored batch at a time.
        """
        return self._batches()

    def poll(self, timeout_s: float | None = None) -> SyncDelivery | None:
        """The next record, or None when none comes within `timeout_s` (0: what is here already;
        None: wait for as long as it takes).

        Raises `ClosedError` when the subscription is closed, and what ended the membership.

        At the first use connecting and joining count as well: they go on after that, and a later
        call raises what they fail with.
        """
        return self._within(timeout_s, Intake.poll)

    def poll_batch(self, timeout_s: float | None = None) -> SyncDeliveryBatch | None:
        """Like `poll`, the next one of `batches()`."""
        return self._within(timeout_s, Intake.poll_batch)

    def transactions(
        self,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_wait_s: float = 0.0,
        partitioner: Literal["key", "round_robin"] = "key",
        region: str | None = None,
        codec: Literal["none", "zstd"] = "none",
        value_serializer: Serializer | None = None,
    ) -> Iterator[SyncStep]:
        """Records in steps, each a transaction: `for step in subscription.transactions()`.

        Work on `step.records`, publish with `step.publish` and `step.publish_many`; the end of the
        body commits what was published, with the records acknowledged, all or nothing: so each
        record has its outputs exactly once, whatever crashes. While one step commits the body works
        on the next; give `max_in_flight` room for three. Steps are committed in order; after one
        that fails, the next is rolled back as well, and the records of both are delivered again:
        behind what has come already, unless the group has an `order`.
        `break`, or an exception, rolls back the step (`step.commit()` before that does not);
        another loop goes on there. The loop ends when the subscription or the client is closed.

        Args:
            max_records: of a step, at most; they are of one partition. Of a group in order by key
                they have different keys, in strict order a step has one record.
            max_wait_s: how long the first of them waits for the others.
            partitioner, region, codec, value_serializer: as `SyncClient.transaction` has them.

        The iteration raises what ended the membership, and why steps cannot be committed, when that
        has happened three times in a row.
        """
        return self._steps(
            max_records=max_records,
            max_wait_s=max_wait_s,
            partitioner=partitioner,
            region=region,
            codec=codec,
            value_serializer=value_serializer,
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Until every ack so far is committed; while a partition is away, until it is back.

        Raises `ConnectionLostError` when some came too late, because others had got the records
        meanwhile and have not acknowledged them either, or when it takes longer than `timeout_s`
        (default: the client's `request_timeout_s`). Those records are delivered again.
        """
        self._lazy.get().flush(timeout_s)
