"""Nothing acknowledged is lost or doubled when wires are cut, slow or broken."""

from __future__ import annotations

import random
from typing import Final, Literal

import pytest
import trio
from load import Load, under_load
from report import Row

from hadron.testing.cluster import FaultyCluster
from hadron.testing.proxy import Weather

Way = Literal["both", "there", "back"]

SEED: Final = 20_251_208
WAYS: Final[tuple[Way, ...]] = ("both", "there", "back")


async def test_cuts_of_every_kind(cluster: FaultyCluster, row: Row) -> None:
    async with under_load(cluster, row) as load:
        cut(load, ["n1"], ["n2"])
        await load.wait_more(50)
        load.heal()
        # Both replicas hear the leader, which hears nobody.
        cut(load, ["n1"], ["n2", "n3"], "back")
        assert await load.is_still()
        load.heal()
        await load.progress()
        cut(load, ["n1"], ["n2", "n3"], "there")
        assert await load.is_still()
        # What was under way is lost with the connections; what is new finds nobody at first.
        for name in ("n2", "n3"):
            cluster.refuse("n1", name)
            cluster.reset("n1", name)
        await trio.sleep(0.2)
        load.heal()
        await load.progress()


@pytest.mark.long
async def test_clients_are_cut_off(cluster: FaultyCluster, row: Row) -> None:
    """Answers get lost on their way: a retry must find that the record is there."""
    async with under_load(cluster, row) as load:
        for _ in range(3):
            cut(load, ["n1"], ["c1"], "there")
            await trio.sleep(0.2)
            cluster.reset("n1", "c1")
            cluster.reset("c1", "n1")
            load.heal()
            await load.progress()
        # A member of the group is gone; what it held goes to the other one.
        cut(load, ["n1"], ["c3"])
        await load.wait_more(50)
        load.heal()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_twenty_partitions(five: FaultyCluster, row: Row) -> None:
    """Any nodes from any others, either way or both, for moments or beyond every timeout."""
    chance = random.Random(SEED)
    limit_s = five.config.settings.silence_limit_s
    async with under_load(five, row) as load:
        for turn in range(20):
            side = chance.sample(five.names, chance.randint(1, 4))
            other = [name for name in five.names if name not in side]
            cut(load, side, other, chance.choice(WAYS))
            for name in ("n1", "n4"):
                # Delays stay in force for others meanwhile: messages overtake one another.
                five.weather(name, "n5", Weather(delay_s=chance.choice([0.0, 0.05])))
            seconds = limit_s + 2 if turn % 7 == 3 else chance.uniform(0.5, 4.0)
            await trio.sleep(seconds)
            if turn % 3 == 1:
                for one in side:
                    for two in other:
                        five.reset(one, two)
            load.heal()
            await load.progress()
            await load.wait_more(30)


def cut(load: Load, side: list[str], other: list[str], way: Way = "both") -> None:
    """Cut every wire between two sides; "there" is what the first side sends."""
    load.fault("cut", detail=f"{' '.join(side)} | {' '.join(other)} {way}")
    for one in side:
        for two in other:
            if way != "back":
                load.cluster.cut_one_way(one, two)
            if way != "there":
                load.cluster.cut_one_way(two, one)
