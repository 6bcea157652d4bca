"""Whether a majority follows *now*, for many who ask (PROTOCOL A2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from hadron.replication.majority import MajorityRounds
from hadron.replication.quorum import Quorum

FIVE = ("n1", "n2", "n3", "n4", "n5")


class Peer:
    """A `Feed` whose peer answers when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Callable[[], None]] = []
        self.sent = 0

    def send_notice(self, on_answer: Callable[[], None]) -> None:
        self.asked.append(on_answer)
        self.sent += 1

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for on_answer in asked:
            on_answer()


class Asking:
    """n1 leads; all of its members count."""

    def __init__(self, nursery: trio.Nursery, members: tuple[str, ...] = FIVE) -> None:
        quorum = self.quorum = Quorum("n1", members, started_lsn=1)
        for name in members:
            quorum.admit(name)
        self.peers = {name: Peer(name) for name in members[1:]}
        self.rounds = MajorityRounds(quorum, self.peers, node="n1")  # type: ignore[arg-type]
        self.told: dict[str, tuple[int, bool]] = {}
        self._nursery = nursery

    async def ask(self, who: str, timeout_s: float = 60.0) -> None:
        async def wait() -> None:
            self.told[who] = await self.rounds.confirm(timeout_s)

        self._nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()

    async def answer(self, *names: str) -> None:
        for name in names:
            self.peers[name].answer()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def made() -> AsyncIterator[Asking]:
    async with trio.open_nursery() as nursery:
        yield Asking(nursery)
        nursery.cancel_scope.cancel()


async def test_a_majority_answers_and_that_is_told(made: Asking) -> None:
    await made.ask("a")
    await made.answer("n2")
    assert not made.told
    await made.answer("n3")
    assert made.told == {"a": (3, True)}


async def test_who_comes_while_it_is_under_way_waits_for_the_next(made: Asking) -> None:
    await made.ask("a")
    await made.answer("n2")
    for name in "bcdefgh":
        await made.ask(name)
    assert {peer.sent for peer in made.peers.values()} == {1}
    await made.answer("n3")
    assert list(made.told) == ["a"]
    assert {peer.sent for peer in made.peers.values()} == {2}, "one round for all seven"
    await made.answer("n4")
    assert list(made.told) == ["a"], "n4 alone has answered what was asked after them"
    await made.answer("n5")
    assert sorted(made.told) == list("abcdefgh")
    assert {peer.sent for peer in made.peers.values()} == {2}, "nobody wants another one"


async def test_a_slow_round_does_not_hold_up_the_next_one(
    mock_clock: trio.testing.MockClock, made: Asking
) -> None:
    await made.ask("a", 5.0)
    slow = {name: peer.asked.pop() for name, peer in made.peers.items()}
    mock_clock.jump(0.1)
    await made.ask("b", 5.0)
    assert {peer.sent for peer in made.peers.values()} == {1}
    mock_clock.jump(0.2)
    await trio.testing.wait_all_tasks_blocked()
    assert {peer.sent for peer in made.peers.values()} == {2}
    await made.answer("n2", "n3")
    assert made.told == {"a": (3, True), "b": (3, True)}, "what answers the second says it of both"
    for on_answer in slow.values():
        on_answer()


async def test_nobody_is_asked_again_and_again_for_one_who_waits(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
    made: Asking,
) -> None:
    await made.ask("a", 5.0)
    await trio.sleep(6)
    assert {peer.sent for peer in made.peers.values()} == {1}
    assert made.told == {"a": (1, False)}


async def test_what_was_lost_with_a_connection_is_asked_again(made: Asking) -> None:
    await made.ask("a")
    await made.ask("b")
    await made.answer("n2")
    for name in ("n3", "n4", "n5"):
        made.peers[name] = Peer(name)
        made.rounds.ask(made.peers[name])  # type: ignore[arg-type]
    await made.answer("n3")
    assert list(made.told) == ["a"]
    await made.answer("n4", "n5")
    assert sorted(made.told) == ["a", "b"]
    for peer in made.peers.values():
        made.rounds.ask(peer)  # type: ignore[arg-type]
        assert not peer.asked[1:], "nobody waits"


async def test_a_late_answer_of_an_earlier_round_confirms_no_later_one(made: Asking) -> None:
    await made.ask("a")
    late = made.peers["n4"].asked + made.peers["n5"].asked
    await made.answer("n2", "n3")
    await made.ask("b")
    for on_answer in late:
        on_answer()
    await trio.testing.wait_all_tasks_blocked()
    assert list(made.told) == ["a"]


async def test_who_has_no_memory_does_not_count(
    mock_clock: trio.testing.MockClock, made: Asking
) -> None:
    for name in ("n3", "n4", "n5"):
        made.quorum.demote(name)
    await made.ask("a", 30.0)
    await made.answer("n2", "n3", "n4", "n5")
    assert not made.told
    mock_clock.jump(30.0)
    await trio.testing.wait_all_tasks_blocked()
    assert made.told == {"a": (2, False)}
    made.quorum.admit("n3")
    made.rounds.ask(made.peers["n3"])  # type: ignore[arg-type]
    await made.ask("b")
    await made.answer("n3")
    await made.answer("n2", "n3")
    assert made.told["b"] == (3, True)


async def test_nobody_waits_once_the_ballot_is_over(made: Asking) -> None:
    await made.ask("a")
    await made.ask("b")
    made.rounds.stop()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(made.told) == ["a", "b"]
    assert not any(is_majority for _, is_majority in made.told.values())


async def test_one_alone_is_its_own_majority() -> None:
    async with trio.open_nursery() as nursery:
        made = Asking(nursery, ("n1",))
        for who in "ab":
            await made.ask(who)
        assert made.told == {"a": (1, True), "b": (1, True)}
