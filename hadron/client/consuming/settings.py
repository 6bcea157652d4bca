"""What a member asks for: the arguments of `Client.subscribe`, checked, and its first message.

Pure. Options of the group (`order` to `ephemeral`) are sent only when they are given: then they
must be what the group has, and a group that is new gets its defaults for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from hadron.client.terms.arguments import (
    check_deserializer,
    flag_of,
    instant_ms,
    seconds_of,
    text_of,
    text_or_none_of,
    whole_of,
)
from hadron.model import limits
from hadron.model.errors import RequestError
from hadron.model.record import Deserializer
from hadron.model.schema import SchemaObject
from hadron.wire.messages import groups_pb2

DEFAULT_MAX_IN_FLIGHT: Final = 1_000

DEFAULT_HEARTBEAT_S: Final = 3.0
DEFAULT_HEARTBEAT_MISSES: Final = 5
"""15 s of silence: a handler that blocks the event loop for some seconds does not cost the member
its records, and a connection that breaks is noticed at once anyway."""

Order = Literal["none", "strict", "key"]

ORDERS: Final = {
    "none": groups_pb2.ORDER_NONE,
    "strict": groups_pb2.ORDER_STRICT,
    "key": groups_pb2.ORDER_KEY,
}


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """See `Client.subscribe`."""

    group: str
    start: Literal["earliest", "latest"] | int | datetime = "earliest"
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    batch_size: int | None = None
    batch_wait_s: float = 0.0
    order: Order | None = None
    ack_deadline_s: float | None = None
    max_attempts: int | None = None
    dead_letter: str | None = None
    ephemeral: bool | None = None
    heartbeat_s: float = DEFAULT_HEARTBEAT_S
    heartbeat_misses: int = DEFAULT_HEARTBEAT_MISSES
    member: str = ""
    value_deserializer: Deserializer | None = None

    def checked(self) -> MemberSettings:
        """With plain numbers and texts. Raises `RequestError` naming the argument that is wrong."""
        if not self.group:
            raise RequestError("a subscription needs a group", 'for example group="billing"')
        start_text(self.start)
        check_deserializer(self.value_deserializer)
        if self.order is not None and self.order not in ORDERS:
            raise RequestError(
                f"{self.order!r} is not an order of deliveries",
                f"use {', '.join(map(repr, ORDERS))}",
            )
        if self.ephemeral is not None:
            flag_of("ephemeral", self.ephemeral)
        plain: dict[str, Any] = {"group": text_of("group", self.group)}
        for name in ("dead_letter", "member"):
            text = getattr(self, name)
            if text is not None:
                plain[name] = text_or_none_of(name, text)
        for convert, name, least, most in (
            (whole_of, "max_in_flight", 1, limits.MAX_IN_FLIGHT),
            (whole_of, "batch_size", 1, limits.MAX_IN_FLIGHT),
            (seconds_of, "batch_wait_s", 0, limits.MAX_BATCH_WAIT_MS // 1_000),
            (seconds_of, "ack_deadline_s", 0, limits.MAX_ACK_DEADLINE_MS // 1_000),
            (whole_of, "max_attempts", 0, limits.MAX_DELIVERY_ATTEMPTS),
            (seconds_of, "heartbeat_s", 0, limits.MAX_HEARTBEAT_MS // 1_000),
            (whole_of, "heartbeat_misses", 1, limits.MAX_HEARTBEAT_MISSES),
        ):
            value = getattr(self, name)
            if value is not None:
                plain[name] = convert(name, value, least, most)
        return replace(self, **plain)

    def opening(
        self, stream: SchemaObject, partition: str, *, added: bool = False
    ) -> groups_pb2.SubscribeRequest:
        """The first message to a partition's leader.

        Args:
            added: the partition was added while the member was there: from its first record on,
                also for those who wanted the latest, and offsets of other partitions mean nothing.
        """
        start = self.start
        if added and not isinstance(start, datetime):
            start = "earliest"
        return groups_pb2.SubscribeRequest(
            open=groups_pb2.SubscribeRequest.Open(
                namespace=stream.namespace,
                stream=stream.name,
                partition=partition,
                group=self.group,
                start=start_text(start),
                max_in_flight=self.max_in_flight,
                stream_id=stream.id,
                metadata_index=stream.metadata_index,
                options=self._options(),
                member=self.member,
                heartbeat_interval_ms=_ms(self.heartbeat_s),
                heartbeat_threshold=self.heartbeat_misses if self.heartbeat_s else 0,
                batch_size=self.batch_size or 0,
                batch_wait_ms=_ms(self.batch_wait_s),
            )
        )

    def _options(self) -> groups_pb2.GroupOptions:
        return groups_pb2.GroupOptions(
            order=ORDERS[self.order] if self.order is not None else None,
            ack_deadline_ms=None if self.ack_deadline_s is None else _ms(self.ack_deadline_s),
            max_attempts=self.max_attempts,
            dead_letter_stream=self.dead_letter,
            ephemeral=self.ephemeral,
        )


def start_text(start: object, called: str = "start") -> str:
    """The wire's form of where a group starts; `called`: the argument. Raises `RequestError`."""
    if isinstance(start, datetime):
        return since_text(instant_ms(called, start))
    is_offset = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if start not in ("earliest", "latest") and not is_offset:
        raise RequestError(
            f"{start!r} is not where a group can start",
            'use "earliest", "latest", an offset, or a datetime',
        )
    return str(start)


def since_text(at_ms: int) -> str:
    """The wire's form of a start at a time, in milliseconds since the Unix epoch."""
    return f"@{max(1, at_ms)}"


def _ms(seconds: float) -> int:
    """Milliseconds; what is not 0 stays so."""
    return max(1, round(seconds * 1_000)) if seconds else 0
