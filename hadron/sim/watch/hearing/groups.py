"""Consumer groups on their leaders, and their members."""

from __future__ import annotations

from typing import Any

from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.membership import Membership
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
                    "_claim": self.claims,
                    "settle": self.waits,
                    "tell": self.tells,
                },
            ),
            (Channel, {"acknowledge": self.acknowledges}),
            (Consumer, {"__anext__": self.hands_out, "next_batch": self.hands_out}),
        ]

    def joins(self, original: Any) -> Any:
        def join(driver: GroupDriver, *given: Any) -> MemberSession:
            session: MemberSession = original(driver, *given)
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
            original(channel, parcel, first, last)

        return acknowledge

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
            return given

        return hand_out
