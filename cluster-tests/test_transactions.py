"""Nothing tears transactions: thousands are under way while processes are killed, paused and cut
off."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
from report import Row
from transacting import (
    AF,
    AP,
    CLIENTS,
    DOOMED,
    EU,
    SETS,
    US,
    Found,
    Known,
    TransactionLoad,
    judge,
    under_transactions,
)
from transactor import Begun, Ended

from hadron.testing.fleet import FaultyFleet

SEED: Final = 20_260_214
TRANSACTIONS: Final = 10_000
"""Committed."""

RECORDS: Final = 1_000
"""Consumed in some of them."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultyFleet]:
    """Four replica sets, of which any can be cut off from any other and from any client."""
    with FaultyFleet(tmp_path, SETS, clients=(*CLIENTS, DOOMED)) as running:
        yield running


@pytest.mark.timeout(300)
async def test_leaders_die_amid_transactions(fleet: FaultyFleet, row: Row) -> None:
    async with under_transactions(fleet, row) as load:
        await load.feed(50)
        await load.kill_client()
        for name in (EU, AP):
            await killed(load, name)
        await load.kill_client()
        await cut(load, US, EU, 0.5)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_ten_thousand_transactions(fleet: FaultyFleet, row: Row) -> None:
    """Over four replica sets, from processes of which one dies again and again."""
    chance = random.Random(SEED)
    async with under_transactions(fleet, row) as load:
        await load.kill_client()
        rounds = [
            partial(killed, load, EU),
            partial(killed, load, US),
            partial(killed, load, AP),
            partial(killed, load, AF),
            partial(killed, load, EU, AF),
            partial(killed, load, US, AP),
            partial(all_killed, load, EU),
            partial(all_killed, load, US),
            partial(replica_killed, load, EU),
            partial(replica_killed, load, US),
            partial(paused, load, EU, 1.0),
            partial(paused, load, US, 12.0),
            partial(paused, load, AP, 1.0),
            partial(paused, load, AF, 3.0),
            partial(cut, load, EU, US, 1.0),
            partial(cut, load, EU, AP, 3.0),
            partial(cut, load, US, AF, 12.0),
            partial(cut, load, AP, AF, 1.0),
            partial(cut_off_from_clients, load, EU, 1.0),
            partial(cut_off_from_clients, load, AP, 3.0),
        ]
        chance.shuffle(rounds)
        for number, break_something in enumerate(rounds, start=1):
            await load.feed(RECORDS // len(rounds))
            await break_something()
            await load.kill_client()
            due = TRANSACTIONS * number // len(rounds)
            while len(load.done) < due:
                await load.wait_more(min(500, due - len(load.done)))


def test_the_judge_sees_what_is_wrong() -> None:
    """Each in evidence of its own, beside one transaction that is as it should be."""
    good = Known(
        Begun("good", [("eu", "good#0"), ("us", "good#1")], [(EU, 0)], False),
        "eu/p0/1.0/1",
        Ended("good", "committed", [("good#0", EU, 0), ("good#1", US, 0)]),
    )
    at = {"good#0": [("eu", EU, 0)], "good#1": [("us", US, 0)]}
    eu, us = [("eu", EU, 1)], [("us", US, 1)]
    for told, ended, state, places in (
        ("", "committed", "", {"bad#0": eu, "bad#1": us}),
        ("", None, "aborted", {}),
        ("torn", "unknown", "committed", {"bad#0": eu}),
        ("torn", None, "", {"bad#1": us}),
        ("lost", "committed", "", {}),
        ("lost", "committed", "", {"bad#0": [("eu", EU, 2)], "bad#1": us}),
        ("doubled", "committed", "", {"bad#0": [*eu, ("eu", EU, 2)], "bad#1": us}),
        ("rolled back", "rolled back", "", {"bad#0": eu, "bad#1": us}),
        ("says its driver", "unknown", "aborted", {"bad#0": eu, "bad#1": us}),
        ("says its driver", None, "committed", {}),
        ("of no transaction", None, "", {"alien": eu}),
    ):
        receipts = [("bad#0", EU, 1), ("bad#1", US, 1)] if ended == "committed" else []
        bad = Known(
            Begun("bad", [("eu", "bad#0"), ("us", "bad#1")], [], False),
            "eu/p0/1.0/2",
            None if ended is None else Ended("bad", ended, receipts),  # type: ignore[arg-type]
            state,
        )
        all_at = {**at, **places}
        found = [
            Found(
                name,
                node,
                {
                    value: some
                    for value, where in all_at.items()
                    if (some := [place for place in where if place[1] == name])
                },
                {(EU, 0)} if name == EU else set(),
            )
            for name, node in ((EU, "n1"), (EU, "n2"), (US, "n1"))
        ]
        violations = list(judge({"good": good, "bad": bad}, found, {}, Row("judged")))
        if told:
            assert any(told in each for each in violations), (told, violations)
        else:
            assert violations == []


# --- what breaks ----------------------------------------------------------------------------------


async def killed(load: TransactionLoad, *names: str) -> None:
    """SIGKILL leaders, which come back."""
    async with load.outage():
        for name in names:
            load.row.kills += 1
            load.fleet[name].kill(load.fleet[name].leader)
        for name in names:
            await load.start(name)


async def all_killed(load: TransactionLoad, name: str) -> None:
    """SIGKILL every node of a replica set at once."""
    async with load.outage():
        load.row.kills += len(load.fleet[name].names)
        load.fleet.kill(name)
        await trio.sleep(0.5)
        await load.start(name)


async def replica_killed(load: TransactionLoad, name: str) -> None:
    async with load.outage():
        load.row.kills += 1
        load.fleet[name].kill("n2")
        await load.wait_more(50)
        await load.start(name)


async def paused(load: TransactionLoad, name: str, seconds: float) -> None:
    """The leader keeps its connections and answers nothing (SIGSTOP), then goes on as if nothing
    was."""
    cluster = load.fleet[name]
    async with load.outage():
        cluster.pause(cluster.leader)
        await trio.sleep(seconds)
        cluster.resume(cluster.leader)
        await load.start(name)


async def cut(load: TransactionLoad, one: str, other: str, seconds: float) -> None:
    """Two replica sets cannot reach each other; what they have sent arrives later, or never."""
    load.row.partitions += 1
    async with load.outage():
        load.fleet.cut(one, other)
        await trio.sleep(seconds)
        load.fleet.reset(one, other)
        load.fleet.cut(one, other)
        await trio.sleep(0.5)
        load.fleet.heal_all()


async def cut_off_from_clients(load: TransactionLoad, name: str, seconds: float) -> None:
    """Those lose the answers to commits, and have to ask."""
    async with load.outage():
        for client in (*CLIENTS, DOOMED):
            load.row.partitions += 1
            load.fleet.cut(name, client)
        await trio.sleep(seconds)
        for client in (*CLIENTS, DOOMED):
            load.fleet.reset(name, client)
        load.fleet.heal_all()
