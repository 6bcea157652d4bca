"""Groups by chance: members, transactions, retention, resets and leaders that fail, thousands of
steps a second; and what must be true all the while, and once everything has healed.

`delivery` is real, with its tables and `serving`'s view of them; `group_log` is all that is below,
`group_world` what happens, `group_rules` what must be true, `group_letters` what dead letters say,
`group_rest` what the log must have, and `group_standing` what must go on while each member works on
one record all day.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.fakes.scheduling import SimTime, StuckError, run_seeded
from hadron.fakes.trace import Trace
from hadron.sim.rooms.group_rest import check_rest
from hadron.sim.rooms.group_standing import stand
from hadron.sim.rooms.group_world import COMING_S, Seat, World
from hadron.sim.rooms.played import Played
from hadron.sim.runs.small_limits import drawn, limited
from hadron.sim.watch.leftovers import leftovers
from hadron.state.groups import progress as groups

_HEALING_S: Final = 3_000.0
"""Several of the longest pauses before a dead letter is tried again."""
_FORGOTTEN_S: Final = 20.0
"""After that nothing is left of members that are gone, and their promises are over."""

_HISTORIES: Final = 4
"""Of a seed."""


@dataclass
class History:
    """What one came to.

    Attributes:
        reached: how often what rarely happens did.
        digest: of all that its tasks did, and of what members were given.
    """

    complaints: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    digest: str = ""


async def _heal(world: World) -> None:
    """All that was wrong is mended; members deal with whatever comes."""
    # Who comes back behind the last leader is there by then, and leaves with the others.
    await trio.sleep(2 * COMING_S)
    while any(seat.is_joining for seat in world.seats):  # noqa: ASYNC110 - nobody tells
        await trio.sleep(0.1)
    for seat in world.seats:
        if (call := seat.open_call) is not None:
            call.set_writable(is_writable=True)
            world.leave(seat)
    world.log.has_room, world.log.is_slow = True, False
    world.seats = [Seat(f"h{each}", name) for each in range(2) for name in world.options]
    until = trio.current_time() + _HEALING_S
    pause_s = 0.05
    while trio.current_time() < until and not world.rules.complaints:
        for _ in range(len(world.transactions)):
            world.end()
        are_busy = [_deal(world, seat) for seat in world.seats]
        await trio.sleep(pause_s)
        world.rules.check_deadlines(trio.current_time())
        pause_s = 0.05 if any(are_busy) else min(20.0, pause_s * 1.3)
        if not (world.transactions or world.rules.left_over()) and all(
            seat.open_call is not None and not seat.open_call.asked for seat in world.seats
        ):
            break
    if not world.rules.complaints:
        _judge(world)
        await _all_leave(world)


async def _all_leave(world: World) -> None:
    """W9: nothing is kept of who was there."""
    for seat in world.seats:
        world.leave(seat)
    await trio.sleep(_FORGOTTEN_S)
    for text in leftovers(world.leadership.groups, nodes=0, objects=len(world.rules.lives) + 2):
        world.rules.complain(text)


def _deal(world: World, seat: Seat) -> bool:
    """Whether there was anything for it."""
    call = seat.open_call
    if call is None:
        world.join(seat, is_healthy=True)
        return False
    own = [token for token in seat.tokens if token.call is call]
    seat.tokens = []
    if own:
        parts = [(token, (token.first, token.last)) for token in own]
        call.acknowledge(parts, confirms=True)
    return bool(own)


def _judge(world: World) -> None:
    rules, db = world.rules, world.tables.db
    for each in rules.left_over():
        rules.complain(f"it does not heal: {each}")
    if world.transactions:
        rules.complain(f"transactions are not over: {list(world.transactions)}")
    for life in rules.lives.values():
        known = groups.find(db, world.stream, life.name)
        if known is None or known.floor != rules.floor(life) or known.window.attempts:
            rules.complain(f"{life.name}: the tables have {known}")
        driver = world.leadership.groups.live(world.stream, life.name)
        machine = driver.machine if driver is not None else None
        if machine is not None and (
            machine.in_flight
            or machine.waiting
            or machine.taken
            or (machine.keys is not None and machine.keys.behind)
        ):
            rules.complain(f"{life.name}: the leader still has something of it")
    for seat in world.seats:
        if seat.call is None or not seat.call.is_open or seat.call.asked:
            rules.complain(f"{seat.name} of {seat.group} is not there, or not answered")


@contextmanager
def _quiet() -> Iterator[None]:
    """Lost leaders and letters without a stream are what these histories are made of."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def history(seed: int) -> History:
    """One world's. What fails in it is a complaint, too."""
    found, trace, worlds = History(), Trace(), list[World]()

    async def main(_time: SimTime) -> None:
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery, check_rest)
            worlds.append(world)
            found.steps = await world.play()
            await stand(world)
            await _heal(world)
            nursery.cancel_scope.cancel()

    with _quiet(), limited(drawn(seed)):
        try:
            run_seeded(seed, main, trace)
        except (Exception, StuckError) as error:  # a bug may end a leader
            found.complaints += _told(error)
    for world in worlds:
        found.complaints[:0] = world.rules.complaints
        found.reached = world.rules.reached
    told = f"{trace.hexdigest()} {sorted(found.reached.items())}"
    found.digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
    return found


def _told(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _told(each)]
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" in {at.tb_frame.f_code.co_qualname}" if at is not None else ""
    return [f"raised{where}: {error!r}"]


def play(seed: int) -> Played:
    """Some histories of that seed."""
    found, log = Played(), hashlib.blake2b(digest_size=8)
    for number in range(seed * _HISTORIES, (seed + 1) * _HISTORIES):
        one = history(number)
        found.complaints += [f"groups: history {number}: {each}" for each in one.complaints]
        found.steps += one.steps
        log.update(one.digest.encode())
    found.digest = log.hexdigest()
    return found
