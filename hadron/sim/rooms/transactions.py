"""Clients that do transactions over sets whose leaders fail at any moment, over wires that lose,
delay, double and reorder; and what must be true once all of that has ended."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from hadron.fakes.scheduling import SimTime, run_seeded
from hadron.fakes.trace import Trace
from hadron.model.batch_building import encode_values
from hadron.model.errors import FencedError, HadronError
from hadron.model.transactions import TransactionId
from hadron.sim.rooms.played import Played
from hadron.sim.rooms.transaction_sets import (
    INPUTS,
    SETS,
    Leader,
    World,
    acknowledging,
    driven,
    publishing,
)
from hadron.sim.watch.leftovers import leftovers
from hadron.state.transactions import decisions, participations
from hadron.state.transactions.participations import Participation
from hadron.transactions import participant
from hadron.transactions.callers import Caller
from hadron.transactions.driver import Outcome, State
from hadron.transactions.limits import Limits
from hadron.transactions.messages import (
    Add,
    Answer,
    Asked,
    Block,
    Commit,
    Committed,
    CommitUnknown,
    Fate,
    Request,
    Results,
    Rollback,
    RolledBack,
    Statement,
    Told,
    Unfit,
)

_CLIENTS = 8

_HEALING_S = 60.0
"""Longer than the idle limit, and than any pause between questions."""


_CALM_S = 10.0
"""In which an operator does anything."""


@dataclass
class Done:
    """A statement, as the test knows it: a record's value, or an offset."""

    target: str
    statement: Statement
    value: str = ""
    offset: int = -1


@dataclass
class Plan:
    """What a client wanted, and what it was told."""

    transaction: TransactionId
    done: list[Done]
    is_committed: bool = False
    is_rolled_back: bool = False
    is_unknown: bool = False
    receipts: list[dict[str, Results]] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)


class Call:
    """A client's connection: in order, with a delay; the leader learns late that it was cut."""

    def __init__(self, world: World, leader: Leader) -> None:
        self.world = world
        self.leader = leader
        self.is_cut = False
        self.plans: dict[TransactionId, Plan] = {}
        self.old: list[Request] = []
        self.numbers: Iterator[TransactionId] = iter(())
        self._free_at = 0.0
        self._caller: Caller = leader.part.join(self._answer)

    def _answer(self, answer: Answer) -> None:
        self.world.later(self.world.chance.uniform(0.0, 0.01), lambda: self._told(answer))

    def _told(self, answer: Answer) -> None:
        if isinstance(answer, Block):
            first = answer.first
            self.numbers = (first._replace(number=first.number + n) for n in range(answer.size))
            return
        plan = self.plans.get(answer.transaction)
        if plan is None or isinstance(answer, Unfit) or self.is_cut:
            return
        if isinstance(answer, Committed):
            plan.is_committed = True
            plan.receipts.append(dict(answer.results))
        elif isinstance(answer, RolledBack):
            plan.is_rolled_back = True
        else:
            assert isinstance(answer, CommitUnknown)
            plan.is_unknown = True
        plan.answered.set()

    def send(self, request: Request) -> None:
        """Goes there in its turn, even when the call is cut meanwhile: that is learnt late, too."""
        now = trio.current_time()
        chance = self.world.chance
        self._free_at = max(self._free_at, now) + chance.uniform(1e-5, 0.004)
        if chance.random() < 0.04:
            # The connection stands still.
            self._free_at += chance.uniform(0.0, 1.5)
        self.world.later(self._free_at - now, lambda: self._caller.receive(request))
        self.old.append(request)

    def cut(self) -> None:
        """The client is away, and does not hear what is said to it any more."""
        if not self.is_cut:
            self.is_cut = True
            self.world.later(self.world.chance.uniform(0.0, 2.0), self._caller.leave)


class Client:
    """Does transactions, one or two at a time, until told to stop."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.number = number
        self.plans: list[Plan] = []
        self.is_stopped = False
        self._count = 0

    async def run(self) -> None:
        while not self.is_stopped:
            leader = self.world.sets[self.chance.choice(SETS)].leader
            if leader is None or leader.is_deposed:
                await trio.sleep(0.1)
                continue
            call = Call(self.world, leader)
            await trio.sleep(0.02)
            for _ in range(self.chance.randint(1, 4)):
                async with trio.open_nursery() as nursery:
                    for _ in range(self.chance.choice((1, 1, 2))):
                        nursery.start_soon(self._one, call)
                if call.is_cut or not leader.leads:
                    break
            call.cut()

    def _plan(self, transaction: TransactionId) -> Plan:
        chance, done = self.chance, []
        sets = chance.sample(SETS, chance.choice((1, 1, 2, 2, 3, 4)))
        for _ in range(chance.randint(1, 5)):
            target = chance.choice(sets)
            self._count += 1
            if chance.random() < 0.25:
                offset = chance.randrange(INPUTS)
                done.append(Done(target, acknowledging(target, offset), offset=offset))
            else:
                value = f"{self.number}-{self._count}"
                done.append(Done(target, publishing(target, value), value=value))
        return Plan(transaction, done)

    async def _one(self, call: Call) -> None:
        chance = self.chance
        transaction = next(call.numbers, None)
        if transaction is None:
            return
        plan = self._plan(transaction)
        self.plans.append(plan)
        call.plans[transaction] = plan
        statements = [each.statement for each in plan.done]
        at = 0
        rest = min(len(statements), chance.choice((0, 0, 2, 5)))
        while at < len(statements) - rest:
            some = chance.randint(1, len(statements) - rest - at)
            self._say(call, Add(transaction, at, statements[at : at + some]))
            at += some
            if chance.random() < 0.4:
                await trio.sleep(chance.expovariate(20))
        if chance.random() < 0.1:
            self._say(call, Rollback(transaction))
        elif chance.random() < 0.9:
            self._say(call, Commit(transaction, at, statements[at:]))
        if chance.random() < 0.15:
            await trio.sleep(chance.expovariate(100))
            call.cut()
        with trio.move_on_after(3.0):
            # Of a crash nobody tells.
            while not (plan.answered.is_set() or call.is_cut or call.leader.is_gone):  # noqa: ASYNC110
                await trio.sleep(0.02)
        if not (plan.is_committed or plan.is_rolled_back):
            call.cut()
            await self._ask(plan)

    def _say(self, call: Call, request: Request) -> None:
        if call.is_cut:
            return
        call.send(request)
        if self.chance.random() < 0.15:
            call.send(request)
        if self.chance.random() < 0.15:
            call.send(self.chance.choice(call.old))

    async def _ask(self, plan: Plan) -> None:
        """Until its driver knows."""
        while True:
            await trio.sleep(0.02)
            leader = self.world.sets[plan.transaction.replica_set].leader
            if leader is None:
                continue
            with contextlib.suppress(HadronError):
                with trio.move_on_after(2.0):
                    outcome = await leader.part.driver.outcome(plan.transaction)
                    if note(plan, outcome):
                        return


def note(plan: Plan, outcome: Outcome) -> bool:
    """What an outcome says; whether it is the last word."""
    if outcome.state is State.ABORTED:
        plan.is_rolled_back = True
    elif outcome.state is State.COMMITTED:
        plan.is_committed = True
        if outcome.unfinished:
            return False
        plan.receipts.append(dict(outcome.results))
    return outcome.state is not State.OPEN


async def trouble(world: World, until: float) -> None:
    """Leaders fail, and others take over; now and then one fails before its ballot has begun."""
    chance = random.Random(world.chance.random())
    while trio.current_time() < until:
        await trio.sleep(chance.expovariate(1.5))
        replica_set = world.sets[chance.choice(SETS)]
        for _ in range(chance.choice((1, 1, 3))):
            replica_set.fail(chance, crashes=chance.random() < 0.5)
            await trio.sleep(chance.choice((0.0, 0.01, 0.2)))
            replica_set.take_over(chance)
            await trio.sleep(chance.uniform(0.0, 0.3))
        if chance.random() < 0.3:
            replica_set.fail(chance, crashes=chance.random() < 0.5)
            away = replica_set
            world.later(chance.uniform(0.0, 4.0), lambda it=away: it.take_over(chance))  # type: ignore[misc]


class Operator:
    """Ends at participants what others drive (`hadron tx resolve`). While leaders fail, only what
    is harmless: commits what its driver has decided, and waits for. Once all is well, anything:
    the driver answers then, and nothing comes of it (PROTOCOL E4)."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.is_calm = self.is_stopped = False
        self._history = history

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while not self.is_stopped:
                await trio.sleep(self.chance.expovariate(4.0))
                leader = self.world.sets[self.chance.choice(SETS)].leader
                if leader is None:
                    continue
                found = participations.held(leader.db, after_lsn=0, limit=100)
                if found and (act := self._choose(leader, self.chance.choice(found))):
                    nursery.start_soon(self._act, leader, *act)

    def _choose(self, leader: Leader, each: Participation) -> tuple[TransactionId, bool] | None:
        """Of which transaction, and whether to commit it there."""
        if self.is_calm:
            return each.transaction, self.chance.random() < 0.5
        driver = self.world.sets[each.transaction.replica_set]
        decided = driver.leader and decisions.find(driver.leader.db, each.transaction)
        if decided and decided.lsn <= driver.committed:
            waiting = {(of.replica_set, of.prepared_lsn) for of in decided.unfinished}
            if (leader.set.name, each.prepared_lsn) in waiting:
                if self.chance.random() < 0.5:
                    # It is lost, for longer than an operator waits for its word.
                    driver.fail(self.chance, crashes=True)
                    self.world.later(5.0, lambda: driver.take_over(self.chance))
                return each.transaction, True
        return None

    async def _act(self, leader: Leader, transaction: TransactionId, commit: bool) -> None:
        history, name = self._history, leader.set.name
        began = len(leader.sent), len(leader.heard)
        try:
            with trio.fail_after(_HEALING_S / 4):
                await leader.part.participant.resolve(transaction, commit=commit)
        except (FencedError, trio.TooSlowError):
            # Of a crash nobody tells.
            return
        except HadronError as error:
            history.refused[error.code] += 1
            return
        history.forced += 1
        asked = transaction.replica_set, Asked((transaction,))
        asked_s = next((sent[0] for sent in leader.sent[began[0] :] if sent[1:] == asked), None)
        if asked_s is None:
            history.problems.append(f"{transaction} is ended at {name}, and nobody was asked")
            return
        for heard_s, message in leader.heard[began[1] :]:
            if (
                isinstance(message, Told)
                and message.transaction == transaction
                and asked_s <= heard_s < asked_s + participant._WORD_S
            ):
                if commit or message.fate is not Fate.OVER:
                    fate = message.fate.value
                    history.problems.append(
                        f"{transaction} is ended at {name}, though it is {fate}"
                    )
                return


async def _play(seed: int, length_s: float, history: History) -> None:
    async with trio.open_nursery() as nursery:
        # In some worlds drivers' own sets are participants, too.
        home = 1 if seed % 3 == 1 else 2_000
        world = World(seed, nursery, limits=Limits(home_statements=home))
        await trio.sleep(0.1)
        clients = [Client(world, number) for number in range(_CLIENTS)]
        world.loss, world.doubling = 0.1, 0.1
        world.delay_s = world.chance.choice((0.001, 0.02))
        world.commits_s = world.chance.choice((0.002, 0.1))
        world.begins_s = 1.0
        async with trio.open_nursery() as playing:
            for client in clients:
                playing.start_soon(client.run)
            playing.start_soon(trouble, world, trio.current_time() + length_s)
            operator = Operator(world, history)
            playing.start_soon(operator.run)
            await trio.sleep(length_s)
            world.loss = world.doubling = 0.0
            world.commits_s, world.begins_s = 0.002, 0.0
            for client in clients:
                client.is_stopped = True
            await trio.sleep(4.0)
            for replica_set in world.sets.values():
                replica_set.take_over(world.chance)
            operator.is_calm = True
            await trio.sleep(_CALM_S)
            operator.is_stopped = True
            with trio.move_on_after(_HEALING_S):
                # Those that still ask are answered.
                while playing.child_tasks:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.5)
            if playing.child_tasks:
                history.problems.append("some clients are never told what became of theirs")
                playing.cancel_scope.cancel()
        await trio.sleep(_HEALING_S)
        history.plans += [plan for client in clients for plan in client.plans]
        history.problems += judge(world, history.plans)
        nursery.cancel_scope.cancel()


def judge(world: World, plans: Sequence[Plan]) -> Iterator[str]:
    """What is wrong, in words."""
    for replica_set in world.sets.values():
        yield from replica_set.leftovers()
        leader = replica_set.leader
        assert leader is not None
        machine = leader.part.driver.machine
        yield from (f"{replica_set.name} still has {each}" for each in machine.shown(0.0))
        if machine.held_bytes:
            yield f"{replica_set.name} holds {machine.held_bytes} bytes"
        for left in leftovers(leader.part, nodes=len(SETS), objects=2):
            yield f"{replica_set.name} has {left}"
    places: dict[bytes, list[tuple[str, int]]] = {}
    for name, replica_set in world.sets.items():
        for offset, data in replica_set.values().items():
            places.setdefault(data, []).append((name, offset))
    acknowledged: dict[str, set[int]] = {name: set() for name in world.sets}
    for plan in plans:
        yield from _judge_one(world, plan, places, acknowledged)
    for name, replica_set in world.sets.items():
        if acknowledged[name] != replica_set.acknowledged():
            lost = sorted(acknowledged[name] - replica_set.acknowledged())
            torn = sorted(replica_set.acknowledged() - acknowledged[name])
            yield f"{name}: {lost} are not acknowledged, and {torn} are, by nothing committed"


def _judge_one(
    world: World,
    plan: Plan,
    places: dict[bytes, list[tuple[str, int]]],
    acknowledged: dict[str, set[int]],
) -> Iterator[str]:
    is_decided = driven(world, plan.transaction) is not None
    name = str(plan.transaction)
    if plan.is_committed and not is_decided:
        yield f"{name}: committed, it was said, and there is no decision"
    if plan.is_rolled_back and is_decided:
        yield f"{name}: aborted, it was said, and it is decided"
    for each in plan.done:
        if each.offset >= 0:
            if is_decided:
                acknowledged[each.target].add(each.offset)
            continue
        found = places.get(encode_values([each.value.encode()], 0), [])
        if len(found) != is_decided:
            yield f"{name}: {each.value} is there {len(found)} times, decided: {is_decided}"
    for receipts in plan.receipts:
        taken = dict.fromkeys(world.sets, 0)
        for each in plan.done:
            results = receipts.get(each.target, ())
            at = taken[each.target]
            taken[each.target] += 1
            if at >= len(results):
                yield f"{name}: there is no receipt for {each.value or each.offset}"
            elif each.value:
                place = (each.target, results[at].base_offset)
                if place not in places.get(encode_values([each.value.encode()], 0), []):
                    yield f"{name}: {each.value} is not at {place}, as its receipt says"


@dataclass
class History:
    """What is wrong with it, and how much there was in it."""

    problems: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    forced: int = 0
    """Acts of an operator that were done."""
    refused: Counter[str] = field(default_factory=Counter)
    """Others, by their errors' codes."""


def play_one(seed: int, length_s: float = 12.0) -> History:
    history = History()

    async def main(_time: SimTime) -> None:
        await _play(seed, length_s, history)

    run_seeded(seed, main, Trace())
    return history


def play(seed: int) -> Played:
    """Two histories of that seed: in some of three drivers' own sets are participants, too."""
    found, log = Played(), hashlib.blake2b(digest_size=8)
    for number in (2 * seed, 2 * seed + 1):
        try:
            history = play_one(number)
        except Exception as error:  # a bug may end a driver
            found.complaints.append(f"raised: history {number}: {type(error).__name__}: {error}")
            continue
        found.complaints += [f"whole: history {number}: {each}" for each in history.problems]
        found.steps += len(history.plans)
        for plan in history.plans:
            log.update(f"{plan.transaction} {plan.is_committed} {plan.receipts}".encode())
    found.digest = log.hexdigest()
    return found
