"""Links between leaders: what is said arrives, whichever end has opened the call, and whatever
became of the calls before."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.metadata.adopter import SchemaAdopter
from hadron.metadata.pusher import Target, Wires
from hadron.model.errors import ConnectionLostError, HadronError
from hadron.model.ports import Transport
from hadron.model.transactions import TransactionId
from hadron.node import leader_links
from hadron.node.leader_links import LeaderLinks
from hadron.serving.tests.stack import EvenRandom, FakeCall
from hadron.transactions.messages import Asked, Prepare
from hadron.transactions.part import Transactions
from hadron.wire.connection import Cork
from hadron.wire.dialing import DIAL_TIMEOUT_S
from hadron.wire.messages import transactions_pb2

US, EU = "us/p0", "eu/p0"
NOTHING = memoryview(b"")


class Sets:
    """One other replica set, whose leader has an address."""

    def __init__(self) -> None:
        self.changed = trio.Event()

    def names(self) -> Sequence[str]:
        return [EU]

    async def seek(self, names: Collection[str]) -> None:
        pass

    def targets(self) -> Sequence[Target]:
        return [Target(EU, b"u" * 16, 1, "eu:7000")]


class SilentNetwork:
    """Nobody answers there."""

    def __init__(self) -> None:
        self.dials = 0

    async def dial(self, address: str) -> Transport:
        assert address == "eu:7000"
        self.dials += 1
        await trio.sleep_forever()
        raise AssertionError


class Leadership:
    """What links need of theirs: they may speak, and hear why somebody did not answer."""

    replica_set = US

    def __init__(self) -> None:
        self.troubles: list[str] = []

    def part(self, kind: type[Any]) -> Any:
        assert kind in (SchemaAdopter, Transactions)
        return self

    def check_registered(self) -> None:
        pass

    def unanswered(self, _replica_set: str, error: HadronError) -> None:
        self.troubles.append(str(error))


class TheirCall(FakeCall):
    """A call that the other set's leader has opened."""

    def __init__(self, links: LeaderLinks) -> None:
        super().__init__()
        self.on_message: Callable[[Any, memoryview], None] = lambda _message, _attachment: None
        self.on_end: Callable[[HadronError | None], None] = lambda _error: None
        opening = transactions_pb2.CoordinateRequest(cluster="test", speaker=EU, replica_set=US)
        call: Any = self
        links.accept(call, opening, NOTHING)

    def end(self) -> None:
        pass

    @property
    def heard(self) -> list[int]:
        """The numbers of the transactions that it was asked about."""
        return [each.transaction.number for said, _ in self.sent for each in said.messages]


class Scene:
    def __init__(self) -> None:
        self.leadership, self.network = Leadership(), SilentNetwork()
        leading: Any = self.leadership
        network: Any = self.network
        wires = Wires(network, EvenRandom(), Cork(), 60.0, 60.0, lambda _connection: None)
        self.links = LeaderLinks(leading, "test", Sets(), wires, EvenRandom())

    async def ask(self, number: int) -> None:
        self.links.send(EU, Asked((TransactionId(EU, 1, 1, number),)))
        await wait_all_tasks_blocked()


@pytest.fixture
async def scene(autojump_clock: MockClock) -> AsyncIterator[Scene]:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.links.run)
        yield scene
        nursery.cancel_scope.cancel()


async def test_what_is_said_leaves_on_a_call_of_the_other_end(scene: Scene) -> None:
    call = TheirCall(scene.links)
    await scene.ask(1)
    await scene.ask(2)
    assert call.heard == [1, 2]
    assert not scene.network.dials


async def test_statements_that_wait_to_be_said_are_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transactions may be rolled back long since; what is not said drives nobody."""
    monkeypatch.setattr(leader_links, "MAX_WAITING_BYTES", 3_000)
    for number in range(1, 6):
        scene.links.send(EU, Prepare(TransactionId(US, 1, 1, number), 0, (), bytes(1_000)))
    await scene.ask(6)
    call = TheirCall(scene.links)
    await wait_all_tasks_blocked()
    assert call.heard == [3, 4, 5, 6]


@pytest.mark.long
async def test_what_cannot_be_said_to_anybody_is_dropped_and_told(scene: Scene) -> None:
    scene.links.send(EU, Prepare(TransactionId(US, 1, 1, 1), 0, (), bytes(1_000)))
    await scene.ask(1)
    await trio.sleep(DIAL_TIMEOUT_S + 1)
    assert scene.leadership.troubles == [
        "the leader of eu/p0 at eu:7000 does not answer: no connection within 5 s"
    ]
    call = TheirCall(scene.links)
    await scene.ask(2)
    assert call.heard == [2]


@pytest.mark.long
async def test_a_link_speaks_again_whose_dialing_failed_with_nothing_to_say(scene: Scene) -> None:
    """It was said on the other end's call meanwhile, which then broke."""
    await scene.ask(1)
    assert scene.network.dials == 1
    first = TheirCall(scene.links)
    await wait_all_tasks_blocked()
    assert first.heard == [1]
    first.on_end(ConnectionLostError("it broke"))
    await trio.sleep(DIAL_TIMEOUT_S + 1)
    assert [each.split(": ")[-1] for each in scene.leadership.troubles] == [
        "it broke",
        "no connection within 5 s",
    ]
    second = TheirCall(scene.links)
    await scene.ask(2)
    assert second.heard == [2]
    assert first.heard == [1]


async def test_a_call_that_takes_no_more_is_spoken_on_once_it_does(scene: Scene) -> None:
    call = TheirCall(scene.links)
    call.writable = False
    await scene.ask(1)
    assert not call.heard
    call.writable = True
    call.on_writable()
    await wait_all_tasks_blocked()
    assert call.heard == [1]
