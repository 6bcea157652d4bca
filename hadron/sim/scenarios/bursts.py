"""PROTOCOL E1, E6: transactions that a client commits at the same time share a batch, and an entry;
each has an outcome of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from hadron.client.schema.catalog import Catalog
from hadron.partition.controller import Controller
from hadron.sim.actors.raw_producer import ask_once
from hadron.sim.actors.transactions import Noted
from hadron.sim.notes.wrapping import wrapped
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.transaction_play import (
    OUTCOME,
    Answer,
    End,
    RawCall,
    Transactor,
    expected,
    failing,
    raw_call,
    transactor,
)
from hadron.sim.world.regions import EUROPE
from hadron.sim.world.replica_set import World
from hadron.state.machine import Command
from hadron.state.transactions.joint_decisions import DecideRun
from hadron.wire.messages import transaction_to, transactions_pb2

_BURST: Final = 6
"""Transactions that are committed at the same time: the first one leaves alone."""

_SOON_S: Final = 1.0
"""Where nothing fails each of them is answered so soon."""

_GONE: Final = "gone"
"""A stream that is deleted."""


@region_scenario("E1: each that shares an entry has its own outcome", nodes=(1, 3, 1))
async def leader_that_fails_with_a_run(play: RegionPlay) -> None:
    """A client commits six transactions at the same time, and Europe's leader loses its power when
    it is to log the entry that most of them share, or has logged it and said nothing. Another
    client asks what became of each: the leader that is back, and then another node that leads."""
    europe = play.europe
    done: list[Noted] = []
    async with transactor(play) as client, transactor(play, "x2") as other:
        done += await _quiet_burst(client)
        for is_logged in (True, False):
            async with failing(europe, DecideRun, is_logged=is_logged):
                made = await _burst(client)
            fates = Counter(each.operation.told[0] for each in made)
            fate = "committed" if is_logged else "rolled back"
            # The first one is an entry of its own.
            if fates[fate] < _BURST - 1:
                raise AssertionError(f"the entry is logged: {is_logged}, and they are {fates}")
            done += made
            await _ask_all(other, done)
            done += await _quiet_burst(client)
        europe.promote("e2")
        for name in europe.names:
            europe.hand_out(name)
            await europe.restart(name)
        await europe.wait_serving()
        await _ask_all(other, done)


async def _burst(client: Transactor, **named: Any) -> list[Noted]:
    """Each has two records for Europe. All are over, and known, when this returns."""
    made: list[Noted] = []

    async def do() -> None:
        made.append(await client.do(EUROPE, EUROPE, driver=EUROPE, **named))

    async with trio.open_nursery() as nursery:
        for _ in range(_BURST):
            nursery.start_soon(do)
    return made


async def _quiet_burst(client: Transactor) -> list[Noted]:
    """While nothing fails."""
    began_s = trio.current_time()
    made = await _burst(client)
    took_s = trio.current_time() - began_s
    told = [each.operation.told for each in made]
    if took_s > _SOON_S or told != [["committed"]] * _BURST:
        raise AssertionError(f"nothing fails, and after {took_s:.1f} s they are told {told}")
    return made


async def _ask_all(client: Transactor, made: Sequence[Noted]) -> None:
    """Of each, as somebody who has not begun it."""
    for noted in made:
        found = await client.client.outcome(noted.operation.transaction)
        if found.state == "committed":
            noted.tell("committed", receipts=found.receipts)
        elif found.state == "aborted":
            noted.tell("rolled back", "its driver says so")
        else:
            raise AssertionError(f"{noted.operation.transaction} is {found.state}")


@region_scenario("E1: what refuses one that shares an entry refuses all of them")
async def run_that_is_refused(play: RegionPlay) -> None:
    """The stream that a client's transactions publish to is deleted, and it does not know; another
    one says a wrong number of records. All of them are rolled back, at once, and asked about; then
    each is said again, by itself, and comes to nothing."""
    await play.declare(_GONE)
    await play.regions.wait_same_schema()
    async with transactor(play) as client:
        await _quiet_burst(client)
        await client.client.stream(_GONE)
        known = client.client._catalog

        def deaf(original: Any) -> Any:
            return lambda catalog, message: catalog is not known and original(catalog, message)

        with wrapped(Catalog, _take=deaf):
            await play.delete(_GONE, "c3")
            await play.regions.wait_same_schema()
            made = await _burst(client, stream=_GONE)
        if not all(each.operation.asked for each in made):
            raise AssertionError("the client knows that the stream is gone")
        await _ask_all(client, made)
        told = Counter(one for each in made for one in each.operation.told)
        if told != {"rolled back": 2 * _BURST}:
            raise AssertionError(f"their stream is gone, and they are told {told}")
    async with raw_call(play, EUROPE) as call:
        first = call.block.first_number
        values = [f"refused {number}" for number in range(4)]
        for operation in expected(play, EUROPE, *values):
            play.history.refused(operation, "the records are not as many as they say")
        call.say(first, *values, end=End.COMMIT, records=(1, 1, 1))
        await _answers(call, range(first, first + 3), "rolled_back")
        for number in range(first, first + 3):
            call.say(number, values[number - first], end=End.COMMIT)
            await _answers(call, [number], "unfit")
            await _expect_outcome(play, call, number, Answer.ABORTED)
        await _goes_on(play, call, first + 3)


@region_scenario("E6: what shares an entry comes twice, and is done once")
async def run_that_is_said_again(play: RegionPlay) -> None:
    """A client says three transactions that share a batch twice, while Europe's leader is slow to
    log them; somebody asks about each of them meanwhile. They are committed, and all of that is
    said again, and each one by itself."""
    async with raw_call(play, EUROPE) as call, trio.open_nursery() as nursery:
        first = call.block.first_number
        values = [f"run {number}" for number in range(6)]
        operations = expected(play, EUROPE, *values)
        async with _slow_to_log(play.europe, nursery):
            again = call.say(first, *values, end=End.COMMIT, records=(1, 2, 3))
            again()
            for number in range(first, first + 3):
                await _expect_outcome(play, call, number, Answer.OPEN)
        if await call.answer(first) != "committed":
            raise AssertionError("they are not committed")
        again()
        await _answers(call, range(first, first + 3), "unfit")
        for number in range(first, first + 3):
            call.say(number, values[number - first], end=End.COMMIT)
            await _answers(call, [number], "unfit")
            await _expect_outcome(play, call, number, Answer.COMMITTED)
        for operation in operations:
            play.history.unknown(operation, "it is committed")
        await _goes_on(play, call, first + 3)


@asynccontextmanager
async def _slow_to_log(world: World, nursery: trio.Nursery) -> AsyncIterator[None]:
    """The set's leader takes a while until it begins to log what transactions share; the block ends
    before it has."""
    has_come, over = trio.Event(), trio.Event()

    def submits(original: Any) -> Any:
        def submit(controller: Controller, command: Command, body: Any = b"", **named: Any) -> None:
            log = partial(original, controller, command, bytes(body), **named)
            if type(command) is DecideRun and controller.node in world.disks:
                has_come.set()
                nursery.start_soon(later, log)
            else:
                log()

        return submit

    async def later(log: Any) -> None:
        await over.wait()
        log()

    with wrapped(Controller, submit=submits):
        yield
        with trio.fail_after(5.0):
            await has_come.wait()
    over.set()


async def _answers(call: RawCall, numbers: Sequence[int], kind: str) -> None:
    """Each of them is answered so, soon."""
    for number in numbers:
        with trio.fail_after(_SOON_S):
            found = await call.answer(number)
        if found != kind:
            raise AssertionError(f"{number} is {found}, not {kind}")


async def _expect_outcome(play: RegionPlay, call: RawCall, number: int, state: Any) -> None:
    request = transactions_pb2.OutcomeRequest(
        transaction=transaction_to(call.id(number)), final=True
    )
    answer = await ask_once(play.europe, "e1", "w2", OUTCOME, request, [], 10.0)
    if answer.state != state:
        raise AssertionError(f"what became of {number}: {answer.state}, not {state}")


async def _goes_on(play: RegionPlay, call: RawCall, number: int) -> None:
    """The call takes other transactions."""
    (operation,) = expected(play, EUROPE, f"after all {number}")
    call.say(number, f"after all {number}", end=End.COMMIT)
    await _answers(call, [number], "committed")
    play.history.unknown(operation, "it is committed")
