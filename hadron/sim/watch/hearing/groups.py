"""Consumer groups on their leaders, and their members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.client.consuming.acks import AckBuffer
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.membership import Membership
from hadron.client.consuming.steps import Step, Steps
from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Effects, Exhausted
from hadron.delivery.port import DeliveryRange, Said
from hadron.delivery.sessions import MemberSession
from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.model.ranges import Range
from hadron.sim.watch.known import Known, Wrappers


class HearsGroups:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (
                GroupDriver,
                {
                    "join": self.joins,
                    "receive": self.receives,
                    "pump": self.works,
                    "leave": self.works,
                    "_expire": self.works,
                    "take": self.moves,
                    "untake": self.moves,
                    "close": self.works,
                    "_count": self.takes_acknowledgements,
                    "_carry_out": self.exhausts,
                    "_dead_letters_written": self.settles,
                    "_dead_letters_refused": self.puts_back,
                },
            ),
            (
                Membership,
                {
                    "opened": self.beats,
                    "beat": self.beats,
                    "_delivered": self.is_sent,
                    "_claim": self.claims,
                    "settle": self.waits,
                    "tell": self.tells,
                },
            ),
            (
                Channel,
                {
                    "acknowledge": self.acknowledges,
                    "send_nack": self.gives_back,
                    "revoke": self.is_taken_back,
                },
            ),
            (AckBuffer, {"add": self.collects}),
            (
                Consumer,
                {
                    "__anext__": self.hands_out,
                    "next_batch": self.hands_out,
                    "_wait_news": self.waits_for_more,
                    "give_back_unseen": self.leaves,
                },
            ),
            (Steps, {"__anext__": self.begins_step}),
        ]

    def joins(self, original: Any) -> Any:
        def join(driver: GroupDriver, *given: Any, **named: Any) -> MemberSession:
            session: MemberSession = original(driver, *given, **named)
            self._known.serving.joined(driver, session)
            return session

        return join

    def receives(self, original: Any) -> Any:
        def receive(driver: GroupDriver, session: MemberSession, said: Said) -> None:
            self._known.serving.look(driver)
            self._known.serving.said(driver, session, said)
            original(driver, session, said)

        return receive

    def works(self, original: Any) -> Any:
        def work(driver: GroupDriver, *given: Any) -> None:
            self._known.serving.look(driver)
            original(driver, *given)

        return work

    def moves(self, original: Any) -> Any:
        def move(driver: GroupDriver, *given: Any) -> None:
            before = {each.number: len(each.held) for each in driver.machine.held}
            original(driver, *given)
            self._known.serving.moved(driver, before)

        return move

    def takes_acknowledgements(self, original: Any) -> Any:
        def count(
            driver: GroupDriver,
            session: MemberSession,
            item: DeliveryRange,
            late: Ballot | None,
            now: float,
        ) -> list[Range]:
            counted: list[Range] = original(driver, session, item, late, now)
            self._known.serving.counted(driver, late, counted)
            return counted

        return count

    def exhausts(self, original: Any) -> Any:
        def carry_out(driver: GroupDriver, effects: Effects) -> None:
            self._known.serving.exhausted(driver, effects.exhausted)
            original(driver, effects)

        return carry_out

    def settles(self, original: Any) -> Any:
        def written(driver: GroupDriver, ranges: Any, floor: int) -> None:
            self._known.serving.settled(driver, ranges)
            original(driver, ranges, floor)

        return written

    def puts_back(self, original: Any) -> Any:
        def refused(driver: GroupDriver, dead: Exhausted) -> None:
            self._known.serving.put_back(driver, dead)
            original(driver, dead)

        return refused

    def beats(self, original: Any) -> Any:
        def beat(member: Membership, *given: Any) -> None:
            original(member, *given)
            self._known.serving.beats(member)
            self._known.confirming.opened(member)

        return beat

    def acknowledges(self, original: Any) -> Any:
        def acknowledge(channel: Channel, parcel: Parcel, first: int, last: int) -> None:
            self._known.confirming.acknowledged(channel, parcel, first, last)
            self._known.handing.acknowledges(channel)
            try:
                original(channel, parcel, first, last)
            finally:
                self._known.handing.acknowledges(None)

        return acknowledge

    def collects(self, original: Any) -> Any:
        def add(buffer: AckBuffer, delivery: int, first: int, last: int, written: Ballot) -> None:
            self._known.handing.acknowledged(delivery, first, last)
            original(buffer, delivery, first, last, written)

        return add

    def is_sent(self, original: Any) -> Any:
        def delivered(member: Membership, channel: Channel, message: Any, *given: Any) -> None:
            come = message.delivery
            self._known.handing.came(channel, come.delivery, come.first_offset, come.last_offset)
            original(member, channel, message, *given)

        return delivered

    def gives_back(self, original: Any) -> Any:
        def send_nack(
            channel: Channel, number: int, ranges: Iterable[Range], *given: Any, **named: Any
        ) -> None:
            ranges = list(ranges)
            self._known.handing.went(channel, number, ranges)
            original(channel, number, ranges, *given, **named)

        return send_nack

    def is_taken_back(self, original: Any) -> Any:
        def revoke(channel: Channel, number: int, first: int, last: int) -> None:
            self._known.handing.went(channel, number, [(first, last)])
            original(channel, number, first, last)

        return revoke

    def waits_for_more(self, original: Any) -> Any:
        async def wait(consumer: Consumer) -> None:
            self._known.handing.waits(consumer)
            await original(consumer)

        return wait

    def leaves(self, original: Any) -> Any:
        def give_back(consumer: Consumer) -> None:
            original(consumer)
            self._known.handing.leaves(consumer)

        return give_back

    def begins_step(self, original: Any) -> Any:
        async def begin(steps: Steps) -> Step:
            step: Step = await original(steps)
            self._known.handing.handed_out(step._parcels, step.records)
            return step

        return begin

    def waits(self, original: Any) -> Any:
        async def settle(member: Membership, timeout_s: float) -> None:
            self._known.confirming.asked(member)
            await original(member, timeout_s)

        return settle

    def tells(self, original: Any) -> Any:
        def tell(member: Membership, known: int) -> HadronError | None:
            error: HadronError | None = original(member, known)
            if error is None:
                self._known.confirming.confirmed(member)
            else:
                self._known.confirming.refused(member)
            return error

        return tell

    def claims(self, original: Any) -> Any:
        def claim(member: Membership, channel: Channel, parcel: Parcel) -> None:
            original(member, channel, parcel)
            if parcel._skipped:
                self._known.serving.acknowledged_at_once(parcel)

        return claim

    def hands_out(self, original: Any) -> Any:
        async def hand_out(consumer: Consumer) -> Any:
            given = await original(consumer)
            if given is not None:
                one = isinstance(given, Delivery)
                parcels, records = ([given._parcel], [given.record]) if one else given
                self._known.serving.handed_out(consumer, parcels, records)
                self._known.handing.handed_out(parcels, records)
            return given

        return hand_out
