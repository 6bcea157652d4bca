"""Callers and servers of endpoints, in a world that loses them and their leader; and the book of
what each of them did, which is held against N1 to N4 (`docs/ENDPOINTS.md`).

A call's value is a token of its own, and its answer the same one: so an answer that is another
call's shows, and so does a call that is run twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from hadron.client import Client, IncomingCall
from hadron.model.errors import DeadlineExceededError, HadronError, NoServerError, OverloadedError
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.sim.actors.clients import Actor, ClientActor
from hadron.sim.actors.part import Part
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World

ONCE: Final = "calls-once"
TWICE: Final = "calls-twice"

_LATE_S: Final = 2.0
"""A caller hears of its deadline so late at most: when its leader says nothing, it looks now and
then, and its own loop may be paused."""

_DRAIN_S: Final = 20.0

_SHARE: Final = 0.2
"""Of random worlds."""


def has_calls(seed: int | str) -> bool:
    return Random(f"calls/{seed}").random() < _SHARE


@dataclass
class Book:
    """What callers and servers have noted.

    Attributes:
        runs: how often each token's handler has begun.
        answered: calls that got their answer.
        errors: how the others ended, by the error's name.
    """

    runs: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def complain(self, rule: str, text: str) -> None:
        self.complaints.append(f"{rule} {text}, at {trio.current_time():.2f} s")


class ServingActor(ClientActor):
    """Serves both endpoints, a few calls at a time."""

    def __init__(self, world: World, history: History, host: str, seed: str, book: Book) -> None:
        super().__init__(world, history, host, seed)
        self._book = book

    async def run(self) -> None:
        await super().run()
        # Who drains is served to the end, by whom nothing befalls any more.
        while True:
            try:
                async with self.world.client(self.host) as client, self._serving(client):
                    await trio.sleep_forever()
            except HadronError:
                await trio.sleep(0.2)

    async def session(self, client: Client) -> None:
        async with self._serving(client):
            with trio.move_on_after(self.random.choice((1.0, 5.0, 30.0))):
                await self._stopped.wait()

    @asynccontextmanager
    async def _serving(self, client: Client) -> AsyncIterator[None]:
        most = self.random.randint(1, 3)
        # The process's number, which a server is called by else, would be in the trace.
        how: dict[str, Any] = {"max_in_flight": most, "drain_s": 1.0, "name": self.name}
        async with (
            client.serve(ONCE, self._handler(ONCE, most), **how),
            client.serve(TWICE, self._handler(TWICE, most), **how),
        ):
            yield

    def _handler(self, endpoint: str, most: int) -> Callable[[str, IncomingCall], Awaitable[str]]:
        at_once = 0

        async def handle(token: str, call: IncomingCall) -> str:
            nonlocal at_once
            book = self._book
            book.runs[token] += 1
            if endpoint == ONCE and book.runs[token] > 1:
                book.complain("N1", f"{token} is run {book.runs[token]} times")
            at_once += 1
            if at_once > most:
                book.complain("N3", f"{self.name} has {at_once} calls of {endpoint}, not {most}")
            if call.attempt > 1 and endpoint == ONCE:
                book.complain("N1", f"{token} comes as attempt {call.attempt}")
            try:
                await trio.sleep(self.random.choice((0.0, 0.01, 0.3, 2.0)))
            finally:
                at_once -= 1
            return token

        return handle


class CallingActor(ClientActor):
    """Calls, several at a time; gives some up."""

    def __init__(self, world: World, history: History, host: str, seed: str, book: Book) -> None:
        super().__init__(world, history, host, seed)
        self._book = book
        self._calls = 0

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(2, 10)):
            if self.stopping:
                return
            async with trio.open_nursery() as nursery:
                for _ in range(self.random.randint(1, 6)):
                    self._calls += 1
                    nursery.start_soon(self._call, client, f"{self.name}/{self._calls}")
            await self.pause(0.3)

    async def _call(self, client: Client, token: str) -> None:
        endpoint = self.random.choice((ONCE, TWICE))
        timeout_s = self.random.choice((0.2, 1.0, 4.0))
        began_s = trio.current_time()
        with trio.move_on_after(self.random.choice((0.1, 100.0, 100.0, 100.0))):
            await call_once(client, endpoint, token, timeout_s, self._book)
            took_s = trio.current_time() - began_s
            if took_s > timeout_s + _LATE_S:
                self._book.complain("N4", f"{token} took {took_s:.2f} s, its time was {timeout_s}")


async def call_once(
    client: Client, endpoint: str, token: str, timeout_s: float, book: Book
) -> bool:
    """Whether it was answered; what came is noted."""
    try:
        answer = await client.call(endpoint, token, timeout_s=timeout_s)
    except HadronError as error:
        book.errors[error.code] += 1
        never_run = isinstance(error, NoServerError | OverloadedError)
        if never_run and book.runs[token]:
            book.complain("N1", f"{token} was said not to have run: {error.message}")
        if isinstance(error, DeadlineExceededError) and timeout_s >= _DRAIN_S:
            book.complain("N3", f"{token} had {timeout_s} s, and no server: {error.message}")
        return False
    if answer != token:
        book.complain("N2", f"{token} got the answer {answer}")
    book.answered += 1
    return True


class Calling(Part):
    """All of them in one world."""

    def __init__(self, world: World, history: History, *, servers: int = 2) -> None:
        self._world = world
        self._history = history
        self._servers = servers
        self.book = Book()

    def objects(self) -> list[SchemaObject]:
        home = self._world.config.name
        return [
            SchemaObject(kind="Endpoint", name=ONCE, spec=EndpointSpec(replica_set=home)),
            SchemaObject(
                kind="Endpoint", name=TWICE, spec=EndpointSpec(replica_set=home, idempotent=True)
            ),
        ]

    def hosts(self) -> list[str]:
        return [f"es{number}" for number in range(self._servers)]

    def actors(self) -> Iterator[Actor]:
        world, history, book = self._world, self._history, self.book
        for host in self.hosts():
            yield ServingActor(world, history, host, f"{world.seed}/{host}", book)
        for host in ("ec0", "ec1"):
            yield CallingActor(world, history, host, f"{world.seed}/{host}", book)

    def complaints(self) -> list[str]:
        return self.book.complaints

    async def drain(self) -> None:
        """Once all is healed, and servers are there, who calls is answered: nobody has slots of
        calls that are over."""
        most_s = trio.current_time() + 3 * _DRAIN_S
        for endpoint in (ONCE, TWICE):
            for number in range(8):
                while trio.current_time() < most_s:
                    try:
                        async with self._world.client("ed") as client:
                            token = f"drain/{endpoint}/{number}/{trio.current_time()}"
                            if await call_once(client, endpoint, token, _DRAIN_S, self.book):
                                break
                    except HadronError:
                        pass
                    await trio.sleep(0.2)
                else:
                    self.book.complain("N3", f"nobody answers {endpoint}, and all is well")
                    return
