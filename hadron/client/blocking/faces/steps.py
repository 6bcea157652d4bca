"""The blocking face of `hadron.client.consuming.steps`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hadron.client.blocking.transacting import StepBase
from hadron.client.transactions.contents import Claimable, Published, PublishedMany
from hadron.model.record import Headers


class SyncStep(StepBase):
    """Some records of one partition, and what is done with them: a transaction.

    Attributes:
        records: in order.
        attempt: 1 when the group is given all of them for the first time.
    """

    def publish(
        self,
        stream: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
    ) -> Published:
        """Add a record to the step's transaction; see `SyncTransaction.publish`. When that was
        rolled back meanwhile, as its driver was lost, this goes nowhere: the records come again.
        """
        return self._call(
            lambda step: step.publish(
                stream,
                value,
                key=key,
                type=type,
                timestamp_ms=timestamp_ms,
                headers=headers,
                id=id,
                partition=partition,
                timestamp=timestamp,
                expect_offset=expect_offset,
                expect_key_offset=expect_key_offset,
            )
        )

    def publish_many(
        self, stream: str, values: Iterable[Any], *, partition: str | None = None
    ) -> PublishedMany:
        """Add many records: the fast way; see `SyncTransaction.publish_many`."""
        return self._call(lambda step: step.publish_many(stream, values, partition=partition))

    def ack(self, delivery: Claimable) -> None:
        """Acknowledge a delivery of another subscription with it; its own records are anyway."""
        self._call(lambda step: step.ack(delivery))

    def commit(self) -> None:
        """Commit now, before the body goes on, or leaves the loop. Raises why it is not committed,
        which may be that the step before it was not; the records are delivered again then.
        """
        self._call(lambda step: step.commit())

    def rollback(self) -> None:
        """Do nothing of it; its records are delivered again, as after an attempt that failed.
        Raises what `SyncTransaction.rollback` raises.
        """
        self._call(lambda step: step.rollback())
