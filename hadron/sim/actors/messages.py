"""Publishers and subscribers of exchanges, in a world that loses them and their leader; and the
book of what each of them said and was handed, which is held against X1 to X7
(`docs/EXCHANGES.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from hadron.client import Client
from hadron.client.exchanges.messages import Messages
from hadron.model.errors import HadronError, OutcomeUnknownError
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec
from hadron.model.topics import matches
from hadron.sim.actors.clients import STREAM, Actor, ClientActor
from hadron.sim.actors.part import Part
from hadron.sim.evidence.history import History, Publish
from hadron.sim.world.replica_set import World

PLAIN: Final = "messages"
BRIDGED: Final = "messages-of-events"
TOPICS: Final = ("a", "a.b", "b.b", "b.c.d")
_PATTERNS: Final = (("*",), ("a.*", "a"), ("*.b", "*"), ("b.>",), (">",))
_GROUPS: Final = ("", "g", "g")

_VALUE_BYTES: Final = 200
_DRAIN_S: Final = 20.0

_SHARE: Final = 0.2
"""Of random worlds."""


def has_messages(seed: int | str) -> bool:
    return Random(f"messages/{seed}").random() < _SHARE


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

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.got]

    def takes(self, topic: str) -> bool:
        return any(matches(each, topic) for each in self.patterns)


@dataclass
class MessageBook:
    """What publishers said and subscribers were handed, of one exchange."""

    exchange: str
    sent: list[Sent] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)

    async def publish(self, client: Client, publisher: str, topics: Sequence[str]) -> str:
        """Publish a message on each of these topics, in one call; returns what became of them."""
        first, began_s = len(self.sent), trio.current_time()
        messages = []
        for number, topic in enumerate(topics, first):
            self.sent.append(Sent(publisher, topic, began_s))
            messages.append((topic, {"n": number, "x": "x" * _VALUE_BYTES}))
        state = "ok"
        try:
            await client.exchange(self.exchange).publish_many(messages)
        except OutcomeUnknownError:
            state = "unknown"
        except HadronError:
            state = "refused"
        for number in range(first, first + len(topics)):
            self.sent[number].state = state
        return state

    @asynccontextmanager
    async def subscribed(
        self, client: Client, patterns: Sequence[str], group: str = "", pause_s: float = 0.0
    ) -> AsyncIterator[Taken]:
        """For the length of a block, with a task that takes what comes, and `pause_s` for each."""
        # One that takes its time has room for some seconds of it.
        room = 20_000 if pause_s else 1 << 20
        async with (
            client.exchange(self.exchange).subscribe(
                patterns, group=group or None, max_buffer_bytes=room
            ) as messages,
            trio.open_nursery() as nursery,
        ):
            taken = Taken(tuple(patterns), group, trio.current_time())
            self.taken.append(taken)
            nursery.start_soon(_take, messages, taken, pause_s)
            yield taken
            taken.ended_s = trio.current_time()
            # What it has missed before the end is told with what comes last.
            await trio.sleep(2.0)
            nursery.cancel_scope.cancel()

    def complaints(self, *, gaps: bool) -> list[str]:
        """The rules that are broken. `gaps`: whether all that was said while somebody was
        subscribed has had its time to arrive."""
        found = []
        in_groups: Counter[tuple[str, int]] = Counter()
        for taken in self.taken:
            numbers = taken.numbers
            if len(numbers) != len(set(numbers)):
                found.append("X1 a subscription got a message twice")
            if not all(taken.takes(self.sent[each].topic) for each in numbers):
                found.append("X1 a subscription got what its patterns do not take")
            if taken.group:
                in_groups.update((taken.group, each) for each in numbers)
            if (publisher := self._out_of_order(numbers)) is not None:
                found.append(f"X2 the messages of {publisher} came out of order")
            if sum(missed for _, missed, _ in taken.got) > taken.missed:
                found.append("X3 more is told than was missed")
            if not taken.interruptions:
                if any(interrupted for *_, interrupted in taken.got):
                    found.append("X7 an interruption is told, and none is counted")
                if gaps and not taken.group and (gap := self.gap(taken)):
                    found.append(gap)
        if any(count > 1 for count in in_groups.values()):
            found.append("X1 two members of a group got a message")
        return found

    def _out_of_order(self, numbers: Sequence[int]) -> str | None:
        """A publisher whose messages did not come as it said them. One that it was not told of may
        have been under way while it said the next."""
        latest: dict[str, int] = {}
        for number in numbers:
            sent = self.sent[number]
            if sent.state != "ok":
                continue
            if number < latest.get(sent.publisher, -1):
                return sent.publisher
            latest[sent.publisher] = number
        return None

    def gap(self, taken: Taken) -> str:
        """X3: what one that was never interrupted has missed without a word, "" when nothing."""
        due = {
            number
            for number, each in enumerate(self.sent)
            if each.state == "ok"
            and taken.began_s <= each.began_s < taken.ended_s
            and taken.takes(each.topic)
        }
        lacking = due.difference(taken.numbers)
        if len(lacking) <= taken.missed:
            return ""
        return f"X3 {len(lacking)} messages did not come, {taken.missed} are told"


async def _take(messages: Messages, taken: Taken, pause_s: float) -> None:
    try:
        async for message in messages:
            taken.got.append((message.value["n"], message.missed, message.interrupted))
            taken.missed, taken.interruptions = messages.missed, messages.interruptions
            if pause_s:
                await trio.sleep(pause_s)
    finally:
        taken.missed, taken.interruptions = messages.missed, messages.interruptions


class _BookedActor(ClientActor):
    """One whose deeds are in the book."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, book: MessageBook
    ) -> None:
        super().__init__(world, history, host, seed)
        self._book = book


class PublishingActor(_BookedActor):
    """Publishes, some messages at a time."""

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(3, 30)):
            if self.stopping:
                return
            count = self.random.choice((1, 1, 2, 7))
            topics = [self.random.choice(TOPICS) for _ in range(count)]
            await self._book.publish(client, self.name, topics)
            await self.pause(0.2)


class SubscribingActor(_BookedActor):
    """Subscribes for a while, alone or in a group, and reads at its own pace."""

    async def session(self, client: Client) -> None:
        patterns = self.random.choice(_PATTERNS)
        group = self.random.choice(_GROUPS)
        pause_s = self.random.choice((0.0, 0.0, 0.3))
        async with self._book.subscribed(client, patterns, group, pause_s):
            with trio.move_on_after(self.random.choice((0.5, 5.0, 30.0))):
                await self._stopped.wait()


class BridgedActor(ClientActor):
    """Follows the stream's records through the bridge; `heard` is what each subscription got."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self.heard: list[list[str]] = []

    async def session(self, client: Client) -> None:
        heard: list[str] = []
        self.heard.append(heard)
        async with client.exchange(BRIDGED).subscribe(">") as messages:
            with trio.move_on_after(self.random.choice((2.0, 30.0))):
                async for message in messages:
                    # Some write what is no text; nobody notes that by its value.
                    if isinstance(message.value, str):
                        heard.append(message.value)
                    if self.stopping:
                        return


class Messaging(Part):
    """All of them in one world."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self.book = MessageBook(PLAIN)
        self._bridged: list[BridgedActor] = []
        self._complaints: list[str] = []

    def objects(self) -> list[SchemaObject]:
        home = self._world.config.name
        bridge = ExchangeSpec(replica_set=home, from_stream=STREAM, topic="all.{stream}")
        return [
            SchemaObject(kind="Exchange", name=PLAIN, spec=ExchangeSpec(replica_set=home)),
            SchemaObject(kind="Exchange", name=BRIDGED, spec=bridge),
        ]

    def actors(self) -> Iterator[Actor]:
        world, history, book = self._world, self._history, self.book
        for host in ("xp0", "xp1"):
            yield PublishingActor(world, history, host, f"{world.seed}/{host}", book)
        for host in ("xs0", "xs1", "xs2", "xs3"):
            yield SubscribingActor(world, history, host, f"{world.seed}/{host}", book)
        self._bridged.append(BridgedActor(world, history, "xb0", f"{world.seed}/xb0"))
        yield self._bridged[0]

    async def drain(self) -> None:
        """Once all is healed, who is subscribed hears what is said."""
        most_s = trio.current_time() + 3 * _DRAIN_S
        while trio.current_time() < most_s:
            book = self.book
            try:
                async with (
                    self._world.client("xd") as client,
                    book.subscribed(client, ["drain.>"]) as taken,
                ):
                    said = [await book.publish(client, "xd", ["drain.a"] * 5) for _ in range(4)]
            except HadronError:
                said = ["refused"]
            if set(said) == {"ok"} and not taken.interruptions:
                if gap := book.gap(taken):
                    self._complaints.append(gap)
                return
            await trio.sleep(0.2)
        self._complaints.append("X7 nobody can publish and hear it, and all is well")

    def complaints(self) -> list[str]:
        """The rules that are broken, once the history is whole."""
        heard = [each for actor in self._bridged for each in actor.heard]
        return [*self._complaints, *self.book.complaints(gaps=False), *self._of_the_bridge(heard)]

    def _of_the_bridge(self, heard: Sequence[Sequence[str]]) -> Iterator[str]:
        """X6: each record once, in the stream's order, and none that was said not to be logged."""
        offsets: dict[str, int] = {}
        refused: set[str] = set()
        twice: set[str] = set()
        for entry in self._history.entries:
            if not isinstance(entry, Publish) or entry.stream != STREAM:
                continue
            if entry.outcome == "refused":
                refused.update(entry.values)
            elif entry.failover:
                twice.update(entry.values)
            elif entry.outcome == "ok" and entry.acks != "leader":
                offsets.update((value, offset) for offset, value in entry.offsets())
        for values in heard:
            counts = Counter(value for value in values if value not in twice)
            if any(count > 1 for count in counts.values()):
                yield "X6 a bridge published a record twice"
            if wrong := refused.intersection(counts):
                yield f"X6 a bridge published {min(wrong)!r}, which was said not to be logged"
            order = [offsets[value] for value in values if value in offsets]
            if order != sorted(order):
                yield "X6 a bridge published records out of order"
