"""A member of a group without a network, for the tests of this room: it speaks as the port does,
and hears what a member's call would carry."""

from __future__ import annotations

from typing import Any

from hadron.delivery.driver import GroupDriver
from hadron.delivery.joining import Joining, WantedOptions
from hadron.delivery.port import Ack, DeliveryRange, MemberSink, Nack, Said
from hadron.delivery.sessions import MemberSession
from hadron.server.groups.messages import CallSink
from hadron.serving.tests.stack import FakeCall, Stack
from hadron.wire.messages import groups_pb2

OPTIONS = ("order", "ack_deadline_ms", "max_attempts", "dead_letter_stream", "ephemeral")


class Consumer:
    """A member of a group of stream 1, and what came on its call."""

    def __init__(self, stack: Stack, group: str = "billing") -> None:
        self.stack = stack
        self.group = group
        self.call = FakeCall()
        self.driver: GroupDriver
        self.session: MemberSession

    async def join(
        self, max_in_flight: int = 100, start: str = "earliest", **more: Any
    ) -> Consumer:
        call: Any = self.call
        sink: MemberSink = CallSink(call)
        options = {name: more.pop(name) for name in OPTIONS if name in more}
        joining = Joining(
            self.group, start, max_in_flight, options=WantedOptions(**options), **more
        )
        self.driver, self.session = await self.stack.groups.subscribe(sink, 1, joining)
        return self

    @property
    def fence(self) -> tuple[int, int, int]:
        """What it was told when it joined."""
        (fence,) = [m.opened.fence for m, _ in self.call.sent if m.WhichOneof("kind") == "opened"]
        return fence.ballot.epoch, fence.ballot.incarnation, fence.delivery

    def leave(self) -> None:
        self.stack.groups.leave(self.session)

    @property
    def deliveries(self) -> list[groups_pb2.SubscribeEvent.Delivery]:
        return [m.delivery for m, _ in self.call.sent if m.WhichOneof("kind") == "delivery"]

    @property
    def offsets(self) -> list[int]:
        """Everything delivered, in order."""
        return [
            offset for d in self.deliveries for offset in range(d.first_offset, d.last_offset + 1)
        ]

    async def until(self, *offsets: int) -> None:
        await self.call.until(lambda: self.offsets == list(offsets))

    def delivery_of(self, offset: int) -> int:
        """The number of the latest delivery that has it."""
        return next(
            d.delivery
            for d in reversed(self.deliveries)
            if d.first_offset <= offset <= d.last_offset
        )

    def acknowledge(self, first: int, last: int, confirmation: int = 0, delivery: int = 0) -> None:
        number = delivery or self.delivery_of(first)
        self.say(Ack([DeliveryRange(number, first, last)], confirmation))

    def refuse(self, offset: int, delay_s: float, reason: str = "") -> None:
        number = self.delivery_of(offset)
        self.say(Nack([DeliveryRange(number, offset, offset)], delay_s, reason))

    def say(self, said: Said) -> None:
        self.driver.receive(self.session, said)

    def events(self, kind: str) -> list[Any]:
        """What came of one kind, in order."""
        return [getattr(m, kind) for m, _ in self.call.sent if m.WhichOneof("kind") == kind]

    async def confirmed(self, confirmation: int) -> list[groups_pb2.Range]:
        """Wait for the confirmation; returns what was refused."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [m.acked for m, _ in self.call.sent if m.acked.confirmation == confirmation]
            return bool(found)

        await self.call.until(look)
        return list(found[0].refused)


async def progress(stack: Stack) -> list[tuple[Any, ...]]:
    return await stack.rows(
        "SELECT g.floor, a.first, a.last FROM hadron_group g LEFT JOIN hadron_group_ack a"
        " USING (group_id)"
        " ORDER BY a.first"
    )
