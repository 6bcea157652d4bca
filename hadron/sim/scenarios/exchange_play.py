"""What scenarios of exchanges are written in: publishers and subscribers that note what they did
and got, and the judge of that (docs/EXCHANGES.md)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.client import Client
from hadron.client.exchanges.messages import Messages
from hadron.model.errors import HadronError, OutcomeUnknownError
from hadron.model.topics import matches
from hadron.sim.scenarios.play import Play

EXCHANGE: Final = "x"
TOPICS: Final = ("a", "a.b", "b.b", "b.c.d")
_VALUE_BYTES: Final = 200


@dataclass(slots=True)
class Sent:
    """One message, by its number in the whole history.

    Attributes:
        state: "ok", "unknown", or "refused".
    """

    publisher: str
    topic: str
    began_s: float
    state: str = "unknown"


@dataclass(slots=True)
class Taken:
    """What one subscription was handed.

    Attributes:
        got: (message, missed before it, interrupted before it).
        ended_s: when it was ended, or judged.
    """

    patterns: tuple[str, ...]
    group: str
    began_s: float
    got: list[tuple[int, int, bool]] = field(default_factory=list)
    ended_s: float = float("inf")
    missed: int = 0
    interruptions: int = 0

    def takes(self, topic: str) -> bool:
        return any(matches(each, topic) for each in self.patterns)


class ExchangePlay:
    """Publishers and subscribers of one exchange in a play's world."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.sent: list[Sent] = []
        self.taken: list[Taken] = []
        self.random = random.Random(f"{play.world.seed}/exchanges")

    async def declare(self, more: str = "") -> None:
        home = self.play.world.config.name
        async with self.play.world.client("o1") as client:
            await client.apply(f"kind: Exchange\nname: {EXCHANGE}\nreplica_set: {home}\n{more}")

    # --- publishing -----------------------------------------------------------------------------

    async def publish(
        self, host: str, count: int, *, pause_s: float = 0.0, topic: str = "", many: int = 1
    ) -> None:
        """So many calls, one after the other, of `many` messages each."""
        async with self.play.world.client(host, request_timeout_s=8.0) as client:
            for _ in range(count):
                await self._publish(client, host, topic, many)
                await trio.sleep(pause_s)

    async def _publish(self, client: Client, host: str, topic: str, many: int) -> None:
        messages = []
        began_s = trio.current_time()
        first = len(self.sent)
        for number in range(first, first + many):
            chosen = topic or self.random.choice(TOPICS)
            self.sent.append(Sent(host, chosen, began_s))
            messages.append((chosen, {"n": number, "x": "x" * _VALUE_BYTES}))
        try:
            await client.exchange(EXCHANGE).publish_many(messages)
        except OutcomeUnknownError:
            return
        except HadronError:
            for number in range(first, first + many):
                self.sent[number].state = "refused"
            return
        for number in range(first, first + many):
            self.sent[number].state = "ok"

    # --- subscribing ----------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribed(
        self, client: Client, patterns: Sequence[str], group: str = "", pause_s: float = 0.0
    ) -> AsyncIterator[Taken]:
        """For the length of a block, with a task that takes what comes, and `pause_s` for each."""
        # One that takes its time has room for some seconds of it.
        room = 20_000 if pause_s else 1 << 20
        async with (
            client.exchange(EXCHANGE).subscribe(
                patterns, group=group or None, max_buffer_bytes=room
            ) as messages,
            trio.open_nursery() as nursery,
        ):
            taken = Taken(tuple(patterns), group, trio.current_time())
            self.taken.append(taken)
            nursery.start_soon(self._take, messages, taken, pause_s)
            yield taken
            taken.ended_s = trio.current_time()
            # What it has missed before the end is told with what comes last.
            await trio.sleep(2.0)
            nursery.cancel_scope.cancel()

    async def _take(self, messages: Messages, taken: Taken, pause_s: float) -> None:
        try:
            async for message in messages:
                taken.got.append((message.value["n"], message.missed, message.interrupted))
                taken.missed, taken.interruptions = messages.missed, messages.interruptions
                if pause_s:
                    await trio.sleep(pause_s)
        finally:
            taken.missed, taken.interruptions = messages.missed, messages.interruptions

    # --- judging --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Raises `AssertionError` naming the rule that is broken."""
        in_groups: Counter[tuple[str, int]] = Counter()
        for taken in self.taken:
            numbers = [number for number, _, _ in taken.got]
            assert len(numbers) == len(set(numbers)), "X1: a subscription got a message twice"
            assert all(taken.takes(self.sent[each].topic) for each in numbers), (
                "X1: a subscription got what its patterns do not take"
            )
            if taken.group:
                in_groups.update((taken.group, each) for each in numbers)
            self._judge_order(numbers)
            told = sum(missed for _, missed, _ in taken.got)
            assert told <= taken.missed, "X3: more is told than was missed"
            if not taken.interruptions:
                assert not any(interrupted for *_, interrupted in taken.got)
                if not taken.group:
                    self._judge_gaps(taken, numbers)
        assert all(count == 1 for count in in_groups.values()), (
            "X1: two members of a group got a message"
        )
        assert any(each.state == "ok" for each in self.sent), "nothing was published"
        assert any(taken.got for taken in self.taken), "nothing was got"

    def _judge_order(self, numbers: list[int]) -> None:
        for publisher in {each.publisher for each in self.sent}:
            own = [each for each in numbers if self.sent[each].publisher == publisher]
            assert own == sorted(own), "X2: a publisher's messages came out of order"

    def _judge_gaps(self, taken: Taken, numbers: list[int]) -> None:
        due = [
            number
            for number, each in enumerate(self.sent)
            if each.state == "ok"
            and taken.began_s <= each.began_s < taken.ended_s
            and taken.takes(each.topic)
        ]
        lacking = set(due) - set(numbers)
        assert len(lacking) <= taken.missed, (
            f"X3: {len(lacking)} messages did not come, {taken.missed} are told"
        )
