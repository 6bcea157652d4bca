"""Consuming with a group: what users call. How it is done is in `consumer`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import anyio

from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.deliveries import Delivery, DeliveryBatch
from hadron.client.consuming.steps import DEFAULT_MAX_RECORDS, Steps, checked
from hadron.client.producing.new_records import Serializer
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.ending import after_block
from hadron.client.terms.opening import AsyncLoop, EnteredOnce
from hadron.client.transactions.calls import TransactionCalls
from hadron.client.transactions.settings import TransactionSettings
from hadron.model.errors import ClosedError


class DeliveryBatches(AsyncLoop):
    """`async for batch in subscription.batches()`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __repr__(self) -> str:
        return f"<DeliveryBatches to {self._consumer}>"

    def __aiter__(self) -> DeliveryBatches:
        return self

    async def __anext__(self) -> DeliveryBatch:
        taken = await self._consumer.next_batch()
        if taken is None:
            raise StopAsyncIteration
        return DeliveryBatch(self._consumer, *taken)


class Subscription(EnteredOnce, AsyncLoop):
    """A member of a group at some partitions. Made by `Client.subscribe`, used inside its block.

    Iterate it for one `Delivery` at a time, or `batches()`, or `poll`. When a connection is lost
    the member joins again by itself, for as long as it takes; what it had not acknowledged is
    delivered again, perhaps to another member. Partitions that are added to the stream are joined.
    What ends the membership for good is raised by the iteration, which ends when the subscription
    or the client is closed. Leaving the block sends the acks, then leaves the group: the rest goes
    to others.
    """

    def __init__(self, consumer: Consumer, transactions: TransactionCalls) -> None:
        self._consumer = consumer
        self._transactions = transactions

    def __repr__(self) -> str:
        return f"<Subscription to {self._consumer}>"

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._consumer

    async def __anext__(self) -> Delivery:
        return await self._consumer.__anext__()

    def batches(self) -> DeliveryBatches:
        """Batches of `batch_size`; without one, records as the leader sends them, consecutive
        ones of a stored batch at a time."""
        return DeliveryBatches(self._consumer)

    async def poll(self, timeout_s: float | None = None) -> Delivery | None:
        """The next record, or None when none comes within `timeout_s` (0: what is here already;
        None: wait for as long as it takes).

        Raises `ClosedError` when the subscription is closed, and what ended the membership.
        """
        self._consumer.check_process()
        with anyio.move_on_after(patience_of(timeout_s)):
            try:
                return await self._consumer.__anext__()
            except StopAsyncIteration:
                raise closed_error() from None
        return None

    async def poll_batch(self, timeout_s: float | None = None) -> DeliveryBatch | None:
        """Like `poll`, the next one of `batches()`."""
        self._consumer.check_process()
        with anyio.move_on_after(patience_of(timeout_s)):
            taken = await self._consumer.next_batch()
            if taken is None:
                raise closed_error()
            return DeliveryBatch(self._consumer, *taken)
        return None

    def transactions(
        self,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_wait_s: float = 0.0,
        partitioner: Literal["key", "round_robin"] = "key",
        region: str | None = None,
        codec: Literal["none", "zstd"] = "none",
        value_serializer: Serializer | None = None,
    ) -> Steps:
        """Records in steps, each a transaction: `async for step in subscription.transactions()`.

        Work on `step.records`, publish with `step.publish` and `step.publish_many`; the end of the
        body commits what was published, with the records acknowledged, all or nothing: so each
        record has its outputs exactly once, whatever crashes. While one step commits the body works
        on the next; give `max_in_flight` room for three. Steps are committed in order; after one
        that fails, the next is rolled back as well, and the records of both are delivered again:
        behind what has come already, unless the group has an `order`.
        `break`, or an exception, rolls back the step (`await step.commit()` before that does not);
        another loop goes on there. The loop ends when the subscription or the client is closed.

        Args:
            max_records: of a step, at most; they are of one partition. Of a group in order by key
                they have different keys, in strict order a step has one record.
            max_wait_s: how long the first of them waits for the others.
            partitioner, region, codec, value_serializer: as `Client.transaction` has them.

        The iteration raises what ended the membership, and why steps cannot be committed, when that
        has happened three times in a row.
        """
        settings = TransactionSettings(
            partitioner=partitioner, region=region, codec=codec, value_serializer=value_serializer
        ).checked()
        return Steps(
            self._consumer, self._transactions, settings, *checked(max_records, max_wait_s)
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Until every ack so far is committed; while a partition is away, until it is back.

        Raises `ConnectionLostError` when some came too late, because others had got the records
        meanwhile and have not acknowledged them either, or when it takes longer than `timeout_s`
        (default: the client's `request_timeout_s`). Those records are delivered again.
        """
        await self._consumer.flush(patience_of(timeout_s))

    async def close(self) -> None:
        """Send the acks and leave the group; a second time does nothing. Loops over the
        subscription end; what is acknowledged after this is delivered again."""
        await self._consumer.leave()

    # --- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Subscription:
        self._enter("subscription")
        await self._consumer.join()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        await self._consumer.leave(waits=after_block(error).waits)


def closed_error() -> ClosedError:
    """For who asks a closed subscription for more."""
    return ClosedError("the subscription is closed", "make another one with `client.subscribe`")
