"""Callers and servers of endpoints, in a world that loses them and their leader; and the book of
what each of them did, which is held against N1 to N4 and N10 (`docs/ENDPOINTS.md`).

A call's value is a token of its own, and its answer the same one: so an answer that is another
call's shows, and so does a call that is run twice.

Over several replica sets both endpoints live at one of them. Who calls or serves is in a region,
and may be unable to dial the nodes of that set: other nodes forward for it then (CLUSTER R11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
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
from hadron.sim.world.regions import Regions
from hadron.sim.world.replica_set import World

ONCE: Final = "calls-once"
TWICE: Final = "calls-twice"

_LATE_S: Final = 2.0
"""A caller hears of its deadline so late at most: when its leader says nothing, it looks now and
then, and its own loop may be paused."""

_DRAIN_S: Final = 20.0

_DRAINING: Final = "ed"
"""The host of who calls at the end."""

_IN_A_ROW: Final = 12
_MOST_CALLS: Final = 60
"""Once all is well so many of a region's calls, one after the other, are run there, before it has
made so many. Two servers of which either is as good as the other would do that once in some
hundred times."""

_SHARE: Final = 0.2
"""Of random worlds."""


def has_calls(seed: int | str) -> bool:
    return Random(f"calls/{seed}").random() < _SHARE


@dataclass(frozen=True)
class Place:
    """Where somebody is.

    Attributes:
        region: that it says to be in; "" for none.
        behind: nodes that it cannot dial, whenever it connects.
    """

    region: str = ""
    behind: tuple[str, ...] = ()

    def take(self, world: World, host: str) -> None:
        """`host` is there from now on."""
        world.network.isolate(host, *self.behind)


@dataclass
class Book:
    """What callers and servers have noted.

    Attributes:
        runs: how often each token's handler has begun.
        regions: of the server that has begun it last.
        answered: calls that got their answer.
        errors: how the others ended, by the error's name.
    """

    runs: Counter[str] = field(default_factory=Counter)
    regions: dict[str, str] = field(default_factory=dict)
    answered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def complain(self, rule: str, text: str) -> None:
        self.complaints.append(f"{rule} {text}, at {trio.current_time():.2f} s")


class _Placed(ClientActor):
    def __init__(
        self, world: World, history: History, host: str, book: Book, place: Place | None = None
    ) -> None:
        super().__init__(world, history, host, f"{world.seed}/{host}")
        self._book = book
        self._place = place or Place()


class ServingActor(_Placed):
    """Serves both endpoints, a few calls at a time."""

    stays = True

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
        self._place.take(self.world, self.host)
        most = self.random.randint(1, 3)
        # The process's number, which a server is called by else, would be in the trace.
        how: dict[str, Any] = {"max_in_flight": most, "drain_s": 1.0, "name": self.name}
        how["region"] = self._place.region
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
            book.regions[token] = self._place.region
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


class CallingActor(_Placed):
    """Calls, several at a time; gives some up."""

    _calls = 0

    async def session(self, client: Client) -> None:
        self._place.take(self.world, self.host)
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
            await call_once(client, endpoint, token, timeout_s, self._book, self._place.region)
            took_s = trio.current_time() - began_s
            if took_s > timeout_s + _LATE_S:
                self._book.complain("N4", f"{token} took {took_s:.2f} s, its time was {timeout_s}")


async def call_once(
    client: Client, endpoint: str, token: str, timeout_s: float, book: Book, region: str = ""
) -> bool:
    """Whether it was answered; what came is noted."""
    try:
        answer = await client.call(endpoint, token, timeout_s=timeout_s, region=region)
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
    """All of them in one world.

    Args:
        servers: how many there are, where `serving` does not say where each of them is.
        home: the replica set of both endpoints; None for the world's own.
        serving, calling: where servers and callers are.
    """

    def __init__(
        self,
        world: World,
        history: History,
        *,
        servers: int = 2,
        home: str | None = None,
        serving: Sequence[Place] = (),
        calling: Sequence[Place] = (),
    ) -> None:
        self._world = world
        self._history = history
        self._home = home or world.config.name
        self._serving = dict(zip(_numbered("es"), serving or [Place()] * servers, strict=False))
        self._calling = dict(zip(_numbered("ec"), calling or [Place()] * 2, strict=False))
        self.book = Book()

    def objects(self) -> list[SchemaObject]:
        once = EndpointSpec(replica_set=self._home)
        twice = EndpointSpec(replica_set=self._home, idempotent=True)
        return [
            SchemaObject(kind="Endpoint", name=ONCE, spec=once),
            SchemaObject(kind="Endpoint", name=TWICE, spec=twice),
        ]

    def hosts(self) -> list[str]:
        return list(self._serving)

    def actors(self) -> Iterator[Actor]:
        of = self._world, self._history
        for host, place in self._serving.items():
            yield ServingActor(*of, host, self.book, place)
        for host, place in self._calling.items():
            yield CallingActor(*of, host, self.book, place)

    def complaints(self) -> list[str]:
        return self.book.complaints

    async def drain(self) -> None:
        """Once all is healed, and servers are there, who calls is answered: nobody has slots of
        calls that are over. And who is in a region is answered by those who serve there."""
        most_s = trio.current_time() + 3 * _DRAIN_S
        for endpoint in (ONCE, TWICE):
            for number in range(8):
                while trio.current_time() < most_s:
                    if await self._ask(endpoint, f"{endpoint}/{number}"):
                        break
                    await trio.sleep(0.2)
                else:
                    self.book.complain("N3", f"nobody answers {endpoint}, and all is well")
                    return
        served = {place.region for place in self._serving.values()}
        for place in dict.fromkeys(self._calling.values()):
            if place.region and place.region in served:
                await self._drain_from(place)

    async def _drain_from(self, place: Place) -> None:
        place.take(self._world, _DRAINING)
        near, seen = 0, []
        for number in range(_MOST_CALLS):
            token = await self._ask(TWICE, f"{place.region}/{number}", place.region)
            seen.append(self.book.regions[token] if token else "none")
            near = near + 1 if seen[-1] == place.region else 0
            if near == _IN_A_ROW:
                return
            if not token:
                await trio.sleep(0.2)
        self.book.complain("N10", f"calls of {place.region} are run at {', '.join(seen)}")

    async def _ask(self, endpoint: str, label: str, region: str = "") -> str:
        """The call's token, if it was answered."""
        try:
            async with self._world.client(_DRAINING) as client:
                token = f"drain/{label}/{trio.current_time()}"
                if await call_once(client, endpoint, token, _DRAIN_S, self.book, region):
                    return token
        except HadronError:
            pass
        return ""


def _numbered(name: str) -> Iterator[str]:
    return (f"{name}{number}" for number in count())


def over_sets(regions: Regions, history: History) -> Calling:
    """Endpoints at one of several replica sets, with callers and servers in each region, of which
    some reach that set through the nodes of others only. Of a stream of chance of its own."""
    chance = Random(f"where calls are/{regions.seed}")
    home = regions.sets[chance.choice(list(regions.sets))]
    places = [
        Place(world.config.name.partition("/")[0], behind)
        for world in regions.regions
        for behind in [tuple(home.names) if world is not home and chance.random() < 0.7 else ()]
    ]
    return Calling(
        regions.metadata,
        history,
        home=home.config.name,
        serving=(*places, chance.choice(places)),
        calling=places,
    )
