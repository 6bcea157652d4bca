"""PROTOCOL E1, E2, E4 to E8: transactions over several replica sets, whose leaders fail, are cut
off, and hear everything twice."""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import Any, Final

import trio

from hadron.client import Transaction
from hadron.model.errors import ConflictError, HadronError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.pipelines import FLOW
from hadron.sim.actors.raw_producer import ask_once
from hadron.sim.actors.steps import MAKERS, Maker, StepActor
from hadron.sim.actors.transactions import DEALS, Noted
from hadron.sim.faults.repeating import repeating
from hadron.sim.notes.groups import noting_groups
from hadron.sim.notes.wrapping import wrapped
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.regions import PATIENT
from hadron.sim.scenarios.transaction_play import (
    OUTCOME,
    Answer,
    End,
    Transactor,
    declare_deals,
    drain_deals,
    expected,
    failing,
    raw_call,
    transactor,
    until_prepared,
)
from hadron.sim.world.regions import AMERICA, EUROPE, METADATA
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import FinishTransaction, ForgetTransactions, WriteIntents
from hadron.transactions import driver as driving
from hadron.wire.messages import pipelines_pb2, transaction_to, transactions_pb2

_STEPS: Final = (
    (AMERICA, WriteIntents),
    (EUROPE, Decide),
    (AMERICA, FinishTransaction),
    (EUROPE, NoteFinished),
    (AMERICA, ForgetTransactions),
)
"""Of a transaction that Europe drives: who logs what, in this order."""

_TURNS: Final = "turns"
"""Whose records have a stage each."""


@region_scenario("E6: what a leader has left is gone on with")
async def transaction_whose_leaders_fail_at_each_step(play: RegionPlay) -> None:
    """The driver, or the participant, loses its power when it is to log each step of a transaction,
    or has logged it and said nothing. Another transaction follows each time."""
    async with transactor(play) as client:
        for who, what in _STEPS:
            for is_logged in (False, True):
                async with failing(play.regions.sets[who], what, is_logged=is_logged):
                    await client.do(EUROPE, AMERICA, driver=EUROPE)
                done = await client.do(AMERICA, EUROPE, driver=EUROPE)
                if done.operation.told != ["committed"]:
                    raise AssertionError(f"nothing fails, and it is told {done.operation.told}")


@region_scenario("E4: what is decided is done by whoever was away")
async def transaction_of_which_a_part_is_away(play: RegionPlay) -> None:
    """All is prepared when America is cut off from the metadata set, which drives: it decides,
    Europe does its part. The driver is started again; then America is back."""
    regions = play.regions

    async def cut() -> None:
        await until_prepared(play.america)
        await until_prepared(play.europe)
        await trio.sleep(0.2)
        regions.cut(play.metadata, play.america)

    async def join() -> None:
        await trio.sleep(8.0)
        await play.metadata.restart("m1")
        await trio.sleep(2.0)
        regions.join(play.metadata, play.america)

    async with transactor(play) as client, trio.open_nursery() as nursery:
        for starts_again in (True, False):
            if starts_again:
                nursery.start_soon(join)
            else:
                nursery.start_soon(_later, 12.0, partial(regions.join, play.metadata, play.america))
            await client.do(EUROPE, AMERICA, driver=METADATA, pause=cut)
            await trio.sleep(15.0)


async def _later(delay_s: float, act: Any) -> None:
    await trio.sleep(delay_s)
    act()


@region_scenario("E4: what is open is asked about, and kept")
async def transaction_that_is_open_for_long(play: RegionPlay) -> None:
    """Its intents are in America for so long that it asks Europe, and asks again after its leader
    has lost its power. Then it is committed; another one is rolled back."""

    async def wait() -> None:
        await until_prepared(play.america)
        await trio.sleep(3.0)
        await play.america.crash(power=True)
        await play.america.start()
        await play.america.wait_serving()
        await trio.sleep(4.0)

    async with transactor(play) as client:
        for rolls_back in (False, True):
            done = await client.do(
                AMERICA, EUROPE, driver=EUROPE, pause=wait, rolls_back=rolls_back
            )
            if done.operation.told[0] != ("rolled back" if rolls_back else "committed"):
                raise AssertionError(f"it is told {done.operation.told}")


@region_scenario("E2, E8: what leaders say comes twice, and late")
async def leaders_that_hear_everything_again(play: RegionPlay) -> None:
    """Whatever leaders say to each other comes again: at once, or when it is over and forgotten;
    some of it does not come at first. Three clients do transactions, some are rolled back."""
    regions = play.regions
    chance = random.Random(f"repeating/{regions.seed}")
    async with trio.open_nursery() as nursery:
        with repeating(nursery, chance, regions.faults, share=1.0, lost=0.3):
            async with trio.open_nursery() as clients:
                for number in range(3):
                    clients.start_soon(_do_some, play, number)
            await trio.sleep(4.0)
            nursery.cancel_scope.cancel()


@region_scenario("E7: what is said again is the same, whatever its leader knows by then")
async def stage_ends_that_leaders_hear_again(play: RegionPlay) -> None:
    """Transactions that America drives end a stage in Europe, ten times. Whatever leaders say comes
    again, and some of it does not come at first: each is committed nevertheless."""
    regions = play.regions
    chance = random.Random(f"repeating/{regions.seed}")
    stage = StageSpec(name="work", engine="handler")
    spec = PipelineSpec(replica_set=EUROPE, input=_TURNS, start="earliest", stages=(stage,))
    async with transactor(play) as client, trio.open_nursery() as nursery:
        await client.client.create_stream(_TURNS, partitions=[EUROPE])
        await client.client.apply([SchemaObject(kind="Pipeline", name=FLOW, spec=spec)])
        # Europe has heard of them by then.
        await trio.sleep(1.0)
        for _ in range(10):
            await client.do(EUROPE, driver=EUROPE, stream=_TURNS)
        async with client.client.run_stages(FLOW, engine="handler", max_batch=1) as run:
            with repeating(nursery, chance, regions.faults, share=1.0, lost=0.3):
                for _ in range(10):
                    given = await anext(run)
                    run.grant()
                    done = await client.do(AMERICA, driver=AMERICA, more=partial(_end, given))
                    if done.operation.told != ["committed"]:
                        raise AssertionError(f"nothing fails, and it is told {done.operation.told}")
                await trio.sleep(4.0)
                nursery.cancel_scope.cancel()


async def _end(given: pipelines_pb2.Invocations, tx: Transaction) -> None:
    await tx.complete(given)


async def _do_some(play: RegionPlay, first: int) -> None:
    drivers = (EUROPE, AMERICA, METADATA)
    async with transactor(play, f"x{first}") as client:
        for number in range(first, first + 10):
            await client.do(
                EUROPE,
                AMERICA,
                EUROPE,
                driver=drivers[number % 3],
                rolls_back=number % 3 == 2 or number % 4 == 3,
                pause=partial(trio.sleep, 0.3),
            )


@region_scenario("E6: what comes late or twice meets no other transaction")
async def client_that_says_everything_again(play: RegionPlay) -> None:
    """A client says each thing twice, and what it has said of one transaction again while the next
    one is open: statements, commits, rollbacks. Some records are to be there once, others not."""
    history = play.history
    async with raw_call(play, EUROPE) as call:
        start = call.block.first_number
        late: list[Any] = []
        for number in range(start, start + 6):
            values = [f"raw {number} {index}" for index in range(4)]
            here = expected(play, EUROPE, *values[:2])
            there = expected(play, AMERICA, *values[2:])
            again = [call.say(number, *values[:2])]
            again.append(call.say(number, *values[2:], place=AMERICA, first=2))
            for each in (*again, *late):
                each()
            await until_prepared(play.america)
            is_kept = number % 3 != 2
            end = End.COMMIT if is_kept else End.ROLLBACK
            again.append(call.say(number, first=4, end=end))
            kind = await call.answer(number)
            if kind != ("committed" if is_kept else "rolled_back"):
                raise AssertionError(f"{number} is {kind}")
            for operation in (*here, *there):
                if is_kept:
                    history.unknown(operation, "it is committed")
                else:
                    history.refused(operation, "it was rolled back")
            late = again
            for each in again:
                each()
            await trio.sleep(0.2)
            await _expect(play, values, is_kept=is_kept)


async def _expect(play: RegionPlay, values: list[str], *, is_kept: bool) -> None:
    """All of them can be read, once each, or none."""
    async with play.regions.client("c2", connect_timeout_s=60.0) as client:
        found = [
            record.value.decode()
            for place in (EUROPE, AMERICA)
            async for record in client.read("events", partition=place)
        ]
    counts = {value: found.count(value) for value in values}
    if set(counts.values()) != {int(is_kept)}:
        raise AssertionError(f"it is {'' if is_kept else 'not '}committed; there are {counts}")


@region_scenario("E6: an outcome that was asked for is the last word", settings=PATIENT)
async def commit_that_comes_late(play: RegionPlay) -> None:
    """A client's connection stands still: it asks on another one what became of its transactions,
    of which one has begun and one has not, and is told that they are not committed. Then arrives
    what it has said."""
    network, europe = play.regions.network, play.europe
    async with raw_call(play, EUROPE) as call:
        first = call.block.first_number
        values = [f"late {number}" for number in range(3)]
        operations = expected(play, EUROPE, *values)
        call.say(first, values[0])
        await trio.sleep(0.5)
        network.delay("w1", "e1", 6.0)
        call.say(first, first=1, end=End.COMMIT)
        call.say(first + 1, values[1], end=End.COMMIT)
        await trio.sleep(0.5)
        for number in (first, first + 1):
            request = transactions_pb2.OutcomeRequest(
                transaction=transaction_to(call.id(number)), final=True
            )
            answer = await ask_once(europe, "e1", "w2", OUTCOME, request, [], 10.0)
            if answer.state != Answer.ABORTED:
                raise AssertionError(f"{number} is not aborted, but {answer.state}")
        await trio.sleep(8.0)
        network.wire("w1", "e1").be_normal()
        call.say(first + 2, values[2], end=End.COMMIT)
        if await call.answer(first + 2) != "committed":
            raise AssertionError("the call goes on no more")
        for operation in operations[:2]:
            play.history.refused(operation, "its driver has said so")
        play.history.unknown(operations[2], "it is committed")


@region_scenario("E1: a leader that loses a decision says nothing of it", nodes=(1, 3, 1))
async def decision_that_outlives_its_leader(play: RegionPlay) -> None:
    """Europe's leader has sent a decision to its replicas, and hears no answer. Another one is made
    leader, has the decision, and finishes it. Whoever has asked is told that, or nothing."""
    europe, network = play.europe, play.regions.network

    async def cut() -> None:
        await until_prepared(play.america)
        for name in ("e2", "e3"):
            network.cut_one_way(name, "e1")
        nursery.start_soon(promote)

    async def promote() -> None:
        await trio.sleep(1.0)
        europe.promote("e2")
        for name in ("e2", "e3"):
            europe.hand_out(name)
            await europe.crash(name)
            await europe.start(name)
        await trio.sleep(3.0)
        for name in ("e2", "e3"):
            network.heal(name, "e1")
        # It hears of its successor.
        await trio.sleep(5.0)
        europe.hand_out("e1")
        await europe.restart("e1")

    async with transactor(play) as client:
        for _ in range(2):
            await client.do(EUROPE, AMERICA, driver=EUROPE)
        async with trio.open_nursery() as nursery:
            await client.do(EUROPE, AMERICA, driver=EUROPE, pause=cut)
        await europe.wait_serving()


@region_scenario("E1: another set that has its name has no part in a set's transactions")
async def second_set_that_is_asked_for_transactions(play: RegionPlay) -> None:
    """Somebody starts Europe's node with an empty disk, from the same file. Nobody is told that
    what Europe has decided is aborted, and nothing is begun with ids that Europe has given."""
    async with transactor(play) as client:
        for _ in range(2):
            decided = await client.do(AMERICA, driver=EUROPE)
        async with trio.open_nursery() as nursery:
            async with play.europe.another() as other:
                await other.wait_serving()
                nursery.start_soon(partial(client.do, AMERICA, driver=EUROPE))
                await trio.sleep(5.0)
                await _ask_another(client, decided)
            await play.europe.start()
            await play.europe.wait_serving()
        await client.do(EUROPE, AMERICA, driver=EUROPE)


async def _ask_another(client: Transactor, decided: Noted) -> None:
    transaction = decided.operation.transaction
    with contextlib.suppress(HadronError):
        found = await client.client.outcome(transaction)
        raise AssertionError(f"somebody else says that {transaction} is {found.state}")


@region_scenario("E6: what cannot be prepared is not decided")
async def participant_without_room(play: RegionPlay) -> None:
    """America's disk is full, so that no intent can be written. Then there is room again."""
    america = play.america
    disk = america.disks[america.config.leader.name]
    reserve = america.config.settings.disk_reserve_bytes
    async with transactor(play) as client:
        for has_room in (True, False, True):
            if has_room:
                disk.heal()
            else:
                disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 2
            await trio.sleep(2.0)
            done = await client.do(EUROPE, AMERICA, driver=EUROPE)
            if done.operation.told != ["committed" if has_room else "rolled back"]:
                raise AssertionError(f"room: {has_room}, and it is told {done.operation.told}")


@region_scenario("G15, E7: what a transaction acknowledges is nobody else's")
async def deliveries_that_two_want(play: RegionPlay) -> None:
    """Two members take turns with deliveries whose deadline is short. A transaction acknowledges
    some, and stays open until long after it; another one wants the same, and so does the other
    member. Now and then Europe's leader loses its power meanwhile."""
    plan = GroupPlan(MAKERS, ack_deadline_s=0.5)
    with noting_groups(play.history, (DEALS,)):
        await declare_deals(play)
        members = [_Greedy(play, driver, plan) for driver in _DRIVERS]
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.run)
            for _ in range(3):
                await trio.sleep(2.5)
                await play.europe.crash(power=True)
                await play.europe.start()
                await play.europe.wait_serving()
            await trio.sleep(2.0)
            for member in members:
                member.stop()
        await drain_deals(play, plan, members)


_DRIVERS: Final = (EUROPE, AMERICA)


class _Greedy(Maker):
    """Has two transactions acknowledge each delivery, which takes them long."""

    def __init__(self, play: RegionPlay, driver: str, plan: GroupPlan) -> None:
        world, host = play.regions.metadata, f"y{_DRIVERS.index(driver)}"
        seed = f"{world.seed}/{host}"
        super().__init__(world, play.history, host, seed, (EUROPE, AMERICA), plan=plan)
        self._driver = driver

    async def session(self, client: Any) -> None:
        await self.resolve(client)
        self._dealings.begin(self.name)
        async with client.subscribe(
            DEALS, member=self.name, max_in_flight=3, heartbeat_s=0.2, **self.plan.options(0)
        ) as subscription:
            with self._leaving(), trio.move_on_after(4.0):
                async for batch in subscription.batches():
                    self._given(batch.records, batch.attempt)
                    async with trio.open_nursery() as nursery:
                        for number in range(2):
                            nursery.start_soon(self._want, client, batch, number)
                    if self.stopping:
                        return

    async def _want(self, client: Any, batch: Any, number: int) -> None:
        await trio.sleep(0.1 * number)
        try:
            async with client.transaction(driver=self._driver) as tx:
                noted = self._note(tx._work, batch.records)
                try:
                    batch._unclaim()
                    await tx.ack(batch)
                    for record in batch.records:
                        await self._make(tx, noted, record)
                    await trio.sleep(1.5)
                    if self.random.random() < 0.3:
                        await tx.rollback()
                    else:
                        noted.asks()
                        await tx.commit()
                finally:
                    self.over(noted)
        except HadronError:
            # Its deadline, or another one's transaction, is over some time.
            await trio.sleep(0.2)


@region_scenario("G15, E7: what was refused has taken nothing")
async def statements_refused_behind_others(play: RegionPlay) -> None:
    """A transaction holds a delivery of another group. One that wants a free one and that is
    refused; the next one takes the free one alone."""
    plan = GroupPlan(MAKERS)
    with noting_groups(play.history, (DEALS,)):
        await declare_deals(play, 1)
        member = _Two(play, AMERICA, plan)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run)
            with trio.fail_after(60.0):
                await member.seen.wait()
            member.stop()
        await drain_deals(play, plan, [member])


class _Two(_Greedy):
    """A member of two groups, one of which nobody notes."""

    def __init__(self, play: RegionPlay, driver: str, plan: GroupPlan) -> None:
        super().__init__(play, driver, plan)
        self._europe = play.europe
        self.seen = trio.Event()

    async def session(self, client: Any) -> None:
        await self.resolve(client)
        if self.seen.is_set():
            return
        self._dealings.begin(self.name)
        async with (
            client.subscribe(DEALS, member=self.name, **self.plan.options(0)) as makers,
            client.subscribe(DEALS, group="holders", start="earliest") as holders,
        ):
            with self._leaving():
                free, held = await anext(makers), await anext(holders)
                self._given([free.record], free.attempt)
                async with client.transaction(driver=self._driver) as holder:
                    await holder.ack(held)
                    await holder.begin()
                    await until_prepared(self._europe)
                    held._unclaim()
                    try:
                        await self._take(client, free, held)
                    except ConflictError:
                        pass
                    else:
                        raise AssertionError(f"{held} was acknowledged by two transactions")
                    await self._take(client, free)
                    # What another group acknowledges is in no history.
                    await holder.rollback()
                self.seen.set()

    async def _take(self, client: Any, free: Any, *others: Any) -> None:
        async with client.transaction(driver=self._driver) as tx:
            noted = self._note(tx._work, [free.record])
            try:
                for each in (free, *others):
                    await tx.ack(each)
                await self._make(tx, noted, free.record)
                noted.asks()
                await tx.commit()
            finally:
                self.over(noted)


@region_scenario("E1: what was forgotten is not called aborted", nodes=(1, 1, 1))
async def outcomes_that_are_forgotten(play: RegionPlay) -> None:
    """A driver forgets what is over as soon as it can. Who asks then, it or who leads next, is told
    that it was forgotten: it is committed all the same."""
    soon = wrapped(driving, _FORGET_AFTER=lambda _: 1, KEPT_MS=lambda _: 0)
    with soon:
        async with transactor(play) as client:
            done = [await client.do(EUROPE, AMERICA, driver=EUROPE) for _ in range(6)]
            await play.europe.crash("e1", power=True)
            await play.europe.start("e1")
            await play.europe.wait_serving()
            states = set()
            for noted in done:
                outcome = await client.client.outcome(noted.operation.transaction)
                states.add(outcome.state)
            if "forgotten" not in states:
                raise AssertionError(f"nothing was forgotten: {states}")


@region_scenario("E7, D2: a delivery that another member has is nobody's to acknowledge")
async def delivery_that_was_given_to_another(play: RegionPlay) -> None:
    """A member has made something of a delivery when its deadline has passed, and another one has
    got it: of the two transactions that acknowledge it, one is done."""
    plan = GroupPlan(MAKERS, ack_deadline_s=0.5)
    with noting_groups(play.history, (DEALS,)):
        await declare_deals(play, 6)
        members = [_Slow(play, driver, plan) for driver in _DRIVERS]
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.run)
            await trio.sleep(8.0)
            for member in members:
                member.stop()
        await drain_deals(play, plan, members)


class _Slow(_Greedy):
    """Takes long before it begins a transaction."""

    async def _want(self, client: Any, batch: Any, number: int) -> None:
        if not number:
            await trio.sleep(self.random.choice((0.0, 0.7, 0.9)))
            await super()._want(client, batch, number)


@region_scenario("K13, E2: each record has its outputs once", nodes=(1, 3, 1))
async def steps_while_leaders_fail(play: RegionPlay) -> None:
    """Two members make an output of each record, which may be in the other region, in the
    transaction that acknowledges it, while leaders lose their power."""
    plan = GroupPlan(MAKERS)
    with noting_groups(play.history, (DEALS,)):
        await declare_deals(play, 30)
        world = play.regions.metadata
        members = [
            StepActor(
                world, play.history, host, f"{world.seed}/{host}", (EUROPE, AMERICA), plan=plan
            )
            for host in ("y0", "y1")
        ]
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.run)
            for who in (play.europe, play.america, play.europe, play.america):
                await trio.sleep(1.5)
                name = who.config.leader.name
                await who.crash(name, power=True)
                await who.start(name)
                await who.wait_serving()
            for member in members:
                member.stop()
        await drain_deals(play, plan, members)
