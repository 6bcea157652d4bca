"""PROTOCOL D: records that are logged under a condition, or by a producer with a name."""

from __future__ import annotations

from hadron.sim.scenarios.play import Play, scenario

_PRODUCER = b"a producer's id."


@scenario("D5: what was logged is not asked again whether it may be")
async def condition_of_a_record_that_was_logged(play: Play) -> None:
    """A record is logged at the offset that it expects, and the leader is killed, or loses its
    disk; its producer, which has no answer for all that it knows, sends it again."""
    world = play.world
    for number in range(3):
        first = await play.produce(
            str(number), producer=_PRODUCER, sequence=number, expect_offset=2 * number
        )
        await play.produce(f"other {number}")
        if number % 2:
            await play.lose("n1")
        else:
            await world.crash("n1", power=True)
        await world.start("n1")
        await world.wait_serving()
        again = await play.produce(
            str(number), producer=_PRODUCER, sequence=number, expect_offset=2 * number, again=first
        )
        if again.outcome != "ok" or not again.duplicate:
            raise AssertionError(f"what was logged is sent again: {again.outcome}")
        await world.wait_in_step()


@scenario("D5: a refusal is of what is committed")
async def refusal_by_an_uncommitted_record(play: Play) -> None:
    """A record is on n1's disk alone, where another expects to be. Then n1 loses its disk, and the
    record with it: nobody may have been told that it was there."""
    world = play.world
    await play.produce("0")
    await world.wait_in_step()
    play.part("n1")
    await play.produce("X", timeout_s=1.0)
    told = await play.produce("Y", expect_offset=1, timeout_s=1.0)
    if told.outcome == "refused":
        raise AssertionError("a record was refused for one that is not committed")
    await play.lose("n1")
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()
    if (await play.produce("Z", expect_offset=1)).runs != [(1, 1)]:
        raise AssertionError("there is something at the offset")
