"""PROTOCOL E10, E11: what bulk writers stage and publish, while leaders fail, time passes, and
drivers do what they have done."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from hadron.client.sinks.sink import Sink
from hadron.model.errors import ConflictError, HadronError, RequestError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.sinks import UNKNOWN
from hadron.sim.actors.bulk import BULK, SINK, BulkWriter, Checkpoint
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.transaction_play import failing
from hadron.sim.world.regions import AMERICA, EUROPE, METADATA
from hadron.state.sinks.staging import GiveUpStaged, StageBatches
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import FinishTransaction, WriteIntents

_STEPS: Final = (
    (AMERICA, StageBatches),
    (AMERICA, WriteIntents),
    (METADATA, Decide),
    (AMERICA, FinishTransaction),
    (METADATA, NoteFinished),
    (AMERICA, GiveUpStaged),
)
"""Of a batch: who logs what, in this order."""

_KEPT_S: Final = 2.0


class _Driver(BulkWriter):
    """One that goes on until its batch is published."""

    def __init__(self, play: RegionPlay, sink: Sink, host: str) -> None:
        seed = random.Random(f"{play.regions.seed}/{host}")
        super().__init__(play.history, host, seed, (EUROPE, AMERICA))
        self.of = sink
        self._play = play

    async def batch(self, at: Checkpoint) -> None:
        """Whatever fails, and however often."""
        with trio.fail_after(90.0):
            while True:
                try:
                    if not await self.of.is_published(at.query, at.batch, at.follows):
                        await self.try_here(at)
                    return self.says_published(at)
                except HadronError as error:
                    self._play.regions.trace.log(f"{self.host}: {error}")
                    await trio.sleep(0.3)

    async def try_here(self, at: Checkpoint) -> bool:
        return await self.try_once(self.of, at)


@asynccontextmanager
async def _driving(
    play: RegionPlay, host: str = "b1", timeout_s: float = 5.0
) -> AsyncIterator[_Driver]:
    spec = StreamSpec(partitions=(EUROPE, AMERICA))
    assert await play.change([SchemaObject(kind="Stream", name=BULK, spec=spec)])
    await play.regions.wait_same_schema()
    async with play.regions.client(
        host, connect_timeout_s=60.0, request_timeout_s=timeout_s
    ) as client:
        yield _Driver(play, client.sink(SINK), host)


@region_scenario("E10: a batch is whole, whoever fails")
async def bulk_write_whose_leaders_fail_at_each_step(play: RegionPlay) -> None:
    """Tasks stage a batch in Europe and America; the metadata set publishes it. Each leader loses
    its power when it is to log each step of that, or has logged it and said nothing. Tasks die
    half-way, others lose, and the driver aborts what it has published."""
    at = Checkpoint("q")
    async with _driving(play) as driver:
        for who, what in _STEPS:
            for is_logged in (False, True):
                async with failing(play.regions.sets[who], what, is_logged=is_logged):
                    await driver.batch(at)
                at.batch += 1
        await _check_whole(play, driver, at)


@region_scenario("E10: what is being published does not expire")
async def publication_whose_driver_is_away_for_long(play: RegionPlay) -> None:
    """All of a batch is prepared when its driver fails, before it has decided, or behind that. It
    is away until long after what was staged has expired, and somebody wants to give that up."""
    at = Checkpoint("q")
    async with _driving(play) as driver, _driving(play, "b2", _KEPT_S / 2) as other:
        for is_logged in (False, True):
            write = driver.token()

            async def give_up(write: bytes = write, *, is_held: bool = not is_logged) -> None:
                await trio.sleep(2 * _KEPT_S)
                for partition in (EUROPE, AMERICA):
                    with suppress(ConflictError):
                        await other.of.give_up(write, [partition])
                        # What was decided may have been finished.
                        if is_held:
                            raise AssertionError(f"what {partition} has prepared was given up")

            async with (
                failing(play.metadata, Decide, is_logged=is_logged, away_s=4 * _KEPT_S) as gone,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_after, gone, give_up)
                try:
                    await driver.try_once(driver.of, at, write, _KEPT_S)
                except HadronError as error:
                    play.regions.trace.log(f"{driver.host}: {error}")
            await driver.batch(at)
            at.batch += 1
        await _check_whole(play, driver, at)


async def _after(event: trio.Event, act: Callable[[], Awaitable[None]]) -> None:
    await event.wait()
    await act()


@region_scenario("E11: a sink goes forward, with the query that it knows")
async def drivers_that_do_what_they_have_done(play: RegionPlay) -> None:
    """A driver repeats batches that are published, each staged anew; two drivers, of which each
    takes the other one for dead, have the same batch. Then other queries want its
    sink: they say nothing, or that it was forgotten, or name somebody else, and are refused; one
    that names it takes the sink over, and who was there is refused from then on."""
    at = Checkpoint("q")
    async with _driving(play) as driver, _driving(play, "b2") as other:
        for at.batch in range(3):
            await driver.batch(at)
            if await driver.try_here(at) or await other.try_here(at):
                raise AssertionError(f"batch {at.batch} was published again")
        for at.batch in range(3, 6):
            await _race(at, driver, other)
        for query, batch, follows in (
            ("r", 0, ""),
            ("r", 3, UNKNOWN),
            ("r", 0, UNKNOWN),
            ("r", 1, "s"),
        ):
            await _refused(other.try_here, Checkpoint(query, follows, batch))
        await _refused(other.try_here, Checkpoint("q", UNKNOWN, 1))
        new = Checkpoint("r", "q")
        for new.batch in range(2):
            await other.batch(new)
        await _refused(driver.try_here, Checkpoint("q", batch=6))
        await _refused(driver.try_here, Checkpoint("q", UNKNOWN, 0))


async def _race(at: Checkpoint, *drivers: _Driver) -> None:
    """Each has staged all of it before one publishes; one does."""
    done: list[bool] = []

    async def run(driver: _Driver) -> None:
        try:
            done.append(await driver.try_here(at))
        except RequestError:
            done.append(False)

    waiting: list[trio.Event] = [trio.Event() for _ in drivers]
    for driver, event in zip(drivers, waiting, strict=True):
        driver.staged = partial(_until_all, event, waiting)
    async with trio.open_nursery() as nursery:
        for driver in drivers:
            nursery.start_soon(run, driver)
    for driver in drivers:
        driver.staged = trio.lowlevel.checkpoint
    if done.count(True) != 1:
        raise AssertionError(f"batch {at.batch} was published by {done.count(True)} drivers")


async def _until_all(event: trio.Event, waiting: Sequence[trio.Event]) -> None:
    event.set()
    for each in waiting:
        await each.wait()


async def _refused(act: Callable[[Checkpoint], Awaitable[bool]], at: Checkpoint) -> None:
    try:
        is_done = await act(at)
    except RequestError:
        return
    if is_done:
        raise AssertionError(
            f"batch {at.batch} of {at.query}, which follows {at.follows!r}, is there"
        )


async def _check_whole(play: RegionPlay, driver: _Driver, at: Checkpoint) -> None:
    """All is there, and nothing is staged any more once it has expired."""
    orphan = await driver.attempt(driver.of, at, driver.token(), kept_s=_KEPT_S)
    driver.lost((orphan,))
    async with play.regions.client("b9", connect_timeout_s=60.0) as client:
        with trio.fail_after(60.0):
            while await client.staged():  # noqa: ASYNC110 - simulated time
                await trio.sleep(0.5)
        for partition in driver.partitions:
            values = [each.value async for each in client.read(BULK, partition=partition)]
            if len(values) != at.batch * 4:
                raise AssertionError(f"{len(values)} records of {at.batch} batches: {values}")
