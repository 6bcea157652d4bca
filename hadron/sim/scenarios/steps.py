"""CLIENTS K13: what members may count on that work in steps."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.steps import MAKERS, StepActor
from hadron.sim.actors.transactions import DEALS
from hadron.sim.notes.groups import noting_groups
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.transaction_play import declare_deals, drain_deals
from hadron.sim.world.regions import AMERICA, EUROPE


class _Hasty(StepActor):
    """One record at a time, of many that it has; many of these steps cannot be committed."""

    mistakes = 0.4
    holds = (30,)
    sizes = (1,)


@region_scenario("K13: no step is committed behind one that was not")
async def steps_behind_one_that_fails(play: RegionPlay) -> None:
    """A member makes an output of each record, which may be in the other region. Some of its steps
    are refused when they are to be committed, while the next one's body is at work, or has ended;
    answers take their time."""
    plan = GroupPlan(MAKERS)
    with noting_groups(play.history, (DEALS,)):
        await declare_deals(play, 30)
        world = play.regions.metadata
        places: Sequence[str] = (EUROPE, AMERICA)
        member = _Hasty(world, play.history, "y0", f"{world.seed}/y0", places, plan=plan)
        play.regions.network.delay("e1", "y0", 0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run)
            await trio.sleep(5.0)
            member.stop()
        play.regions.network.wire("e1", "y0").be_normal()
        await drain_deals(play, plan, [member])
