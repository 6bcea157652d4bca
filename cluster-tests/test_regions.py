"""A region goes away and comes back while producers and a group work in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from regions import EU, META, SETS, US, WORKERS, RegionLoad, under_load
from report import Row
from schema_probe import declare, wait_index

import hadron
from hadron.model.errors import HadronError
from hadron.testing.fleet import FaultyFleet


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[FaultyFleet]:
    """Two regions of three nodes each, and the metadata set; the load's clients can be cut off."""
    with FaultyFleet(tmp_path, SETS, clients=tuple(WORKERS)) as running:
        yield running


@pytest.mark.timeout(300)
async def test_a_region_goes_away_and_comes_back(regions: FaultyFleet, row: Row) -> None:
    """It is killed, it is paused, and nobody can reach it."""
    async with under_load(regions, row) as load:
        await killed(load, US, row)
        await paused(load, EU)
        await unreachable(load, US, row)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_regions_go_away_in_every_way(regions: FaultyFleet, row: Row) -> None:
    async with under_load(regions, row) as load:
        for region in (US, EU, US, EU):
            await killed(load, region, row)
            await paused(load, region)
            await unreachable(load, region, row)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_sets_that_cannot_reach_each_other(regions: FaultyFleet, row: Row) -> None:
    """Records go on to where clients get by themselves, and where others can take them."""
    async with under_load(regions, row) as load:
        for region in (US, EU):
            await alone(load, region, row)
        for region in (US, EU):
            await half_reachable(load, region, row)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_metadata_set_is_away(regions: FaultyFleet, row: Row) -> None:
    async with under_load(regions, row) as load:
        await without_metadata(load, row)


async def killed(load: RegionLoad, region: str, row: Row) -> None:
    """SIGKILL all nodes of a region's set, and start them again after a while."""
    async with load.outage(f"{region} was killed", region):
        row.kills += len(load.fleet[region].names)
        load.kill(region)
        await load.goes_on()
        await load.start(region)


async def paused(load: RegionLoad, region: str) -> None:
    """Its nodes keep their connections and answer nothing (SIGSTOP)."""
    async with load.outage(f"{region} was paused", region):
        load.fleet.pause(region)
        await load.goes_on()
        load.fleet.resume(region)


async def unreachable(load: RegionLoad, region: str, row: Row) -> None:
    """Cut off from the other region, from the metadata set, and from all clients."""
    async with load.outage(f"{region} was cut off from everybody", region):
        for side in (*SETS, *WORKERS):
            if side != region:
                row.partitions += 1
                load.fleet.cut(region, side)
        await load.goes_on()
        load.fleet.heal_all()


async def alone(load: RegionLoad, region: str, row: Row) -> None:
    """Cut off from the other region and from the metadata set; clients reach it as before."""
    async with load.outage(f"{region} was cut off from the other sets"):
        for side in SETS:
            if side != region:
                row.partitions += 1
                load.fleet.cut(region, side)
        async with hadron.connect(load.fleet[EU].url) as client:
            index = await declare(client, f"declared-without-{region.replace('/', '-')}", EU, US)
        await load.goes_on()
        load.fleet.heal_all()
    await wait_index(load.fleet, index)


async def half_reachable(load: RegionLoad, region: str, row: Row) -> None:
    """Some clients cannot reach a region, nor can the metadata set: nodes of the other region can,
    and forward what those clients send. Not at once: that nothing comes back on a connection is
    held against it only after a while."""
    async with load.outage(f"half of the clients could not reach {region}"):
        for side in (META, "c1", "c3"):
            row.partitions += 1
            load.fleet.cut(region, side)
        await load.goes_on()
        # Its keys are bound to their partitions.
        forwarded_s = await load.wait_taken(region, job="k1")
        row.notes.append(f"{region} took forwarded records after {forwarded_s:.2f} s more")
        load.fleet.heal_all()


async def without_metadata(load: RegionLoad, row: Row) -> None:
    """Producers and consumers do not need it; who changes the schema is told who is missing."""
    async with load.outage(f"{META} was killed"):
        row.kills += len(load.fleet[META].names)
        load.kill(META)
        async with hadron.connect(load.fleet.url, request_timeout_s=1.0) as client:
            with pytest.raises(HadronError) as caught:
                await declare(client, "too-early", EU)
            assert META in str(caught.value), caught.value
        await load.goes_on()
        await load.start(META)
    async with hadron.connect(load.fleet.url) as client:
        index = await declare(client, "in-time", EU, US)
    await wait_index(load.fleet, index)
