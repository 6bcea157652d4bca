"""What a blocking delivery needs of whoever has handed it out; `faces.deliveries` has the calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from hadron.client.consuming.deliveries import AnyDelivery, AnyDeliveryBatch, Source


class AckIntake(Protocol):
    """Takes acknowledgements, from any thread."""

    @property
    def source(self) -> Source: ...

    def ack(self, delivery: AnyDelivery[Any]) -> None: ...

    def nack(
        self, delivery: AnyDelivery[Any], delay_s: float | timedelta | None, reason: str
    ) -> None: ...

    def extend(self, delivery: AnyDelivery[Any]) -> None: ...

    def ack_batch(self, batch: AnyDeliveryBatch[Any]) -> None: ...

    def nack_batch(
        self, batch: AnyDeliveryBatch[Any], delay_s: float | timedelta | None, reason: str
    ) -> None: ...

    def extend_batch(self, batch: AnyDeliveryBatch[Any]) -> None: ...


class DeliveryBase(AnyDelivery[AckIntake]):
    """One record given to this member, to be acknowledged; by any thread."""


class DeliveryBatchBase(AnyDeliveryBatch[AckIntake]):
    """Records of one partition given to this member together, in order."""
