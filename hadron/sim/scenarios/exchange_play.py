"""What scenarios of exchanges are written in: publishers and subscribers that note what they did
and got (`actors.messages`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from hadron.client import Client
from hadron.sim.actors.messages import TOPICS, MessageBook, Taken
from hadron.sim.scenarios.play import Play

EXCHANGE: Final = "x"


class ExchangePlay:
    """Publishers and subscribers of one exchange in a play's world."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.book = MessageBook(EXCHANGE)
        self.random = random.Random(f"{play.world.seed}/exchanges")

    async def declare(self, more: str = "") -> None:
        home = self.play.world.config.name
        async with self.play.world.client("o1") as client:
            await client.apply(f"kind: Exchange\nname: {EXCHANGE}\nreplica_set: {home}\n{more}")

    async def publish(
        self, host: str, count: int, *, pause_s: float = 0.0, topic: str = "", many: int = 1
    ) -> None:
        """So many calls, one after the other, of `many` messages each."""
        async with self.play.world.client(host, request_timeout_s=8.0) as client:
            for _ in range(count):
                topics = [topic or self.random.choice(TOPICS) for _ in range(many)]
                await self.book.publish(client, host, topics)
                await trio.sleep(pause_s)

    def subscribed(
        self, client: Client, patterns: Sequence[str], group: str = "", pause_s: float = 0.0
    ) -> AbstractAsyncContextManager[Taken]:
        return self.book.subscribed(client, patterns, group, pause_s)

    def judge(self) -> None:
        """Raises `AssertionError` naming the rule that is broken."""
        complaints = self.book.complaints(gaps=True)
        assert not complaints, "; ".join(complaints)
        assert any(each.state == "ok" for each in self.book.sent), "nothing was published"
        assert any(taken.got for taken in self.book.taken), "nothing was got"
