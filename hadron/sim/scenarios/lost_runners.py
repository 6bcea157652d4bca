"""PIPELINES P18: records, code and networks that end runners, and who is given up for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import trio

from hadron.client import Client, StageInvocation
from hadron.model.errors import HadronError
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec
from hadron.model.schema import SchemaObject
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.pipelines import FLOW
from hadron.sim.scenarios.play import Play, scenario

_ATTEMPTS: Final = 3
_POISON: Final = "poison"
_STAGE: Final = "work"
_WORKS_S: Final = 0.3
"""How long a program collects what it works on at a time."""

_CUT_S: Final = 6.0
"""Longer than a leader waits for a runner's answer."""

_BACK_S: Final = 3.0
"""Longer than a client waits until it tries again."""

Fate = Literal["", "dies", "goes", "is cut off", "comes another way"]
"""What becomes of a program that works on something; "" when it gets that done."""

_MOST_DEATHS: Final = 3 + _ATTEMPTS
"""Under one leader, by one record: twice with whatever it is with, once with an eighth of that,
which is one or two, and then by itself."""


class _Programs:
    """All that run the stage, each on a host of its own, and begin again when they have ended.

    Attributes:
        fates: of all so far that was not "", in turn: which, and of which values.
    """

    def __init__(
        self, play: Play, room: int, fate: Callable[[frozenset[str]], Fate], count: int = 2
    ) -> None:
        """`room`: how many invocations one takes at a time. `fate`: by the values that it works
        on."""
        self.fates: list[tuple[Fate, frozenset[str]]] = []
        self._play = play
        self._room = room
        self._fate = fate
        self._count = count

    def alone(self, fate: Fate, value: str = _POISON) -> int:
        """How many had this fate that worked on that, and on nothing else."""
        return self.fates.count((fate, frozenset({value})))

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """For the length of the block."""
        async with trio.open_nursery() as nursery:
            for number in range(self._count):
                nursery.start_soon(self._begin_again, f"w{number}")
            yield
            nursery.cancel_scope.cancel()

    async def _begin_again(self, host: str) -> None:
        while True:
            with contextlib.suppress(HadronError), trio.CancelScope() as life:
                async with self._play.world.client(host, connect_timeout_s=60.0) as client:
                    await self._run(client, host, life)
            await trio.sleep(_WORKS_S)

    async def _run(self, client: Client, host: str, life: trio.CancelScope) -> None:
        held: list[StageInvocation] = []

        async def take() -> None:
            while True:
                held.append(await anext(stage))

        async with (
            client.stage(FLOW, _STAGE, max_in_flight=self._room, runner=host) as stage,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(take)
            while True:
                await trio.sleep(_WORKS_S)
                work = held[:]
                held.clear()
                values = frozenset(str(each.root.value) for each in work)
                fate = self._fate(values) if values else ""
                if fate:
                    self._play.world.trace.log(f"{host} {fate}, with {sorted(values)}")
                    self.fates.append((fate, values))
                if fate == "dies":
                    self._play.world.network.kill(host)
                    life.cancel()
                elif fate == "is cut off":
                    await self._cut_off(host)
                elif fate == "comes another way":
                    await self._come_another_way(host)
                if fate:
                    nursery.cancel_scope.cancel()
                    await trio.lowlevel.checkpoint()
                for each in work:
                    with contextlib.suppress(HadronError):
                        await each.complete(None)

    async def _cut_off(self, host: str) -> None:
        """Until its leader has given it up, and it has reached that again."""
        network = self._play.world.network
        network.isolate(host, *self._play.world.names)
        await trio.sleep(_CUT_S)
        for name in self._play.world.names:
            network.heal(host, name)
        await trio.sleep(_BACK_S)

    async def _come_another_way(self, host: str) -> None:
        """Through another node: it hears at once that the way to its leader is gone, and that hears
        nothing of it."""
        network = self._play.world.network
        network.cut(host, "n1")
        network.reset(host, "n1")
        await trio.sleep(_CUT_S)
        network.heal(host, "n1")


@scenario("P18: a record that ends its runner is given up, and what it was with is done")
async def record_that_ends_its_runner(play: Play) -> None:
    """One of 30 records ends each program that works on it, with all that this works on. When it
    has done so by itself another node leads, which counts from the beginning; records go on coming.
    All others are done, and it is given up after as many programs as it may have attempts."""
    programs = _Programs(play, 10, lambda values: "dies" if _POISON in values else "")
    await _declare(play)
    await play.fill(6)
    await play.publish(_POISON)
    await play.fill(13)
    with trio.fail_after(120.0):
        async with programs.at_work():
            while not programs.alone("dies"):
                await _check_losses(programs.fates)
            await play.promote("n2", play.world.names, *play.world.names)
            before = len(programs.fates)
            await play.fill(10)
            while await _count(play, "live"):
                await _check_losses(programs.fates[before:])
    async with play.world.client("c0") as client:
        (failed,) = await client.instances(FLOW, status="failed")
        assert await _count(play, "done") == 29
    since = [values for _, values in programs.fates[before:]]
    assert since.count(frozenset({_POISON})) == _ATTEMPTS, since
    (reason,) = (stage.reason for stage in failed.stages)
    assert reason.startswith(f"stage '{_STAGE}' has lost {_ATTEMPTS} runners that worked on this")
    assert failed.root.offset == 6


@scenario("P18: code that ends every runner costs no instance")
async def code_that_ends_every_runner(play: Play) -> None:
    """Every program ends with whatever it works on, one record at a time, more often than each may
    have attempts, also when one was cancelled in between: nobody is given up, and all is done once
    the code is mended."""
    is_mended = False
    programs = _Programs(play, 1, lambda _values: "" if is_mended else "dies")
    await _declare(play)
    values = [play.value() for _ in range(3)]
    await play.publish(*values, play.value())
    with trio.fail_after(180.0):
        async with programs.at_work():
            for attempts in (_ATTEMPTS, 2 * _ATTEMPTS):
                while any(programs.alone("dies", each) <= attempts for each in values):
                    await trio.sleep(0.5)
                    assert await _count(play, "failed") == 0
                if attempts == _ATTEMPTS:
                    await _cancel_the_last(play)
            is_mended = True
            while await _count(play, "live"):  # noqa: ASYNC110 - asked of the cluster
                await trio.sleep(0.5)
    assert await _count(play, "done") == len(values)


@scenario("P18: who goes, or is cut off and comes back, costs nothing")
async def runners_that_come_and_go(play: Play) -> None:
    """A record is given back, by itself, by more programs that go than it may have attempts. Then
    the network cuts off as many that have it; they are back soon, and go. From as many more it
    takes the direct way, and they are back before their leader has noticed. Others are done
    meanwhile; and so is this one in the end."""

    def fate(values: frozenset[str]) -> Fate:
        if _POISON not in values:
            return ""
        if programs.alone("goes") <= _ATTEMPTS:
            return "goes"
        if programs.alone("is cut off") <= _ATTEMPTS:
            return "is cut off"
        return "comes another way" if programs.alone("comes another way") <= _ATTEMPTS else ""

    # Of three one goes on with others, whoever is cut off.
    programs = _Programs(play, 1, fate, 3)
    await _declare(play)
    await play.publish(_POISON)
    with trio.fail_after(180.0):
        async with programs.at_work():
            while await _count(play, "done") < 20 or await _count(play, "live"):
                await play.fill(1)
                await trio.sleep(0.5)
    assert await _count(play, "failed") == 0
    assert programs.alone("is cut off") == programs.alone("comes another way") == _ATTEMPTS + 1


async def _check_losses(fates: list[tuple[Fate, frozenset[str]]]) -> None:
    """Those under one leader: with what a record takes along, and how often."""
    await trio.sleep(0.2)
    taken = [values for _, values in fates]
    assert len(taken) <= _MOST_DEATHS, f"it has ended programs with {taken}"
    assert all(len(values) <= 2 for values in taken[2:]), f"it does not run apart: {taken}"


async def _declare(play: Play) -> None:
    work = StageSpec(name=_STAGE, engine="handler", retry=Retry(max_attempts=_ATTEMPTS))
    flow = PipelineSpec(
        replica_set=play.world.config.name, input=STREAM, start="earliest", stages=(work,)
    )
    async with play.world.client("c0", connect_timeout_s=60.0) as client:
        await client.apply([SchemaObject(kind="Pipeline", name=FLOW, spec=flow)])


async def _cancel_the_last(play: Play) -> None:
    async with play.world.client("c0", connect_timeout_s=60.0) as client:
        live = await client.instances(FLOW, status="live")
        await client.cancel_instances(FLOW, [max(each.id for each in live)])


async def _count(play: Play, status: str) -> int:
    async with play.world.client("c0", connect_timeout_s=60.0) as client:
        return len(await client.instances(FLOW, status=status))
