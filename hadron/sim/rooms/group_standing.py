"""What nobody deals with holds up nothing else (GROUPS G14): members of a world of groups deal with
whatever comes, but each keeps one record of those that it has, as if it worked on it all day.

All else must come to somebody, within what pauses and drains there are. Left out is what the rules
hold back, and say so: what follows a kept record of its key, what is to be alone with a member
(G16), and what is on its way to the dead letters.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import trio

from hadron.delivery.telling import held_back
from hadron.model.ranges import Range
from hadron.sim.rooms.group_calls import Call, Token
from hadron.sim.rooms.group_lives import Life
from hadron.sim.rooms.group_world import Seat, World

_FOR_S: Final = 100.0
"""A drain takes 30 s, and so does the longest pause before a record is delivered again."""

_STEP_S: Final = 0.25
"""Below the shortest deadline, and half of the shortest silence."""

_TROUBLE_S: Final = 4.0
"""First, some give everything back, or die: those that are tried, and emptied, are among those that
keep one."""

_WINDOW: Final = 30
"""Of each member: what one record leaves of it is worth a delivery."""


class Mood(enum.Enum):
    """What a member is like before all is well."""

    WELL = "it deals with what it gets"
    AWAY = "what it needs is away: it gives all back"
    DYING = "it ends, with all that it has, and comes again"


@dataclass(slots=True)
class Part:
    """What a seat does here."""

    mood: Mood
    returns: bool
    """Once all is well, if it is gone then."""
    call: Call | None = None
    kept: int = -1
    """It keeps this one on `call`."""


async def stand(world: World) -> None:
    """Complains of what comes to nobody."""
    world.log.has_room, world.log.is_slow = True, False
    await _end_transactions(world)
    parts = {seat: _part(world, seat) for seat in world.seats}
    began = trio.current_time()
    world.append()
    while (now := trio.current_time()) < began + _FOR_S and not world.rules.complaints:
        if (is_well := now >= began + _TROUBLE_S) and any(
            part.mood is not Mood.WELL for part in parts.values()
        ):
            _mend(world, parts)
        for seat, part in parts.items():
            _act(world, seat, part, comes=part.returns or not is_well)
        await trio.sleep(_STEP_S)
        _beat(world)
        lives = world.rules.lives.values()
        if is_well and not any(_left_over(world, life) for life in lives):
            break
    for life in world.rules.lives.values():
        if left := _left_over(world, life):
            what = f"{left[:5]}, {len(left)} in all"
            world.rules.complain(f"{life.name}: {what}, come to nobody, and members have room")
    for seat, part in parts.items():
        if part.call is not None:
            world.leave(seat)


async def _end_transactions(world: World) -> None:
    until = trio.current_time() + _FOR_S
    while world.transactions and trio.current_time() < until:
        world.end()
        await trio.sleep(_STEP_S)
        _beat(world)


def _part(world: World, seat: Seat) -> Part:
    chance, call = world.chance, seat.open_call
    part = Part(chance.choice(list(Mood)), returns=chance.random() < 0.5)
    if call is not None and call.life is not None and chance.random() < 0.7:
        offset = _to_keep(call, call.life)
        if offset is not None:
            part.call, part.kept = call, offset
            if part.mood is Mood.DYING:
                part.mood = Mood.WELL
            world.rules.reached["kept all day"] += 1
    return part


def _mend(world: World, parts: dict[Seat, Part]) -> None:
    """All is well from here on. Who has died, and does not come again, is not there."""
    for seat, part in parts.items():
        if part.mood is Mood.DYING and not part.returns:
            world.leave(seat)
        part.mood = Mood.WELL
    world.append()


def _to_keep(call: Call, life: Life) -> int | None:
    """The first that it was given, but for one that is to be alone with it, or is tried with it."""
    if life.is_strict:
        return None
    found = [
        (given.number, offset)
        for offset, given in life.held.items()
        if given.holder is call.holder
        and given.number != call.holder.tried
        and offset not in life.apart
    ]
    return min(found)[1] if found else None


def _act(world: World, seat: Seat, part: Part, *, comes: bool) -> None:
    """A member deals with all that it has, or does not, and is still at work on what it keeps."""
    call = seat.open_call
    if call is None or call.life is None:
        if comes:
            world.join(seat, is_healthy=True)
        return
    # Else the leader would look at it, whether it should or not.
    if not call.writable:
        call.set_writable(is_writable=True)
    if call.holder.max_in_flight != _WINDOW:
        call.flow(_WINDOW)
    own = list[tuple[Token, Range]]()
    for offset, given in sorted(call.life.held.items()):
        if given.holder is not call.holder:
            continue
        records = (world.rules.number_at(offset),)
        token = Token(call, call.life.number, call.ballot, given.number, offset, offset, records)
        if (call, offset) == (part.call, part.kept):
            call.extend([(token, (offset, offset))])
        else:
            own.append((token, (offset, offset)))
    if not own:
        return
    if part.mood is Mood.DYING and world.chance.random() < 0.7:
        world.leave(seat)
    elif part.mood is Mood.AWAY:
        call.refuse(own, 0.0, is_unseen=False)
    else:
        call.acknowledge(own, confirms=True)


def _beat(world: World) -> None:
    for seat in world.seats:
        if seat.open_call is not None:
            seat.open_call.beats()


def _left_over(world: World, life: Life) -> list[int]:
    """What comes to nobody although it could."""
    driver = world.leadership.groups.live(world.stream, life.name)
    rules = world.rules
    if driver is None or not driver.members:
        return []
    reason = held_back(driver.machine, len(rules.records))
    if "limit" in reason and "all groups" not in reason:
        return []
    open_ = [
        each
        for each in range(rules.floor(life), len(rules.records))
        if each not in life.progress.settled
    ]
    most = life.options.max_attempts
    waits_rightly = {
        each
        for each in open_
        if each in life.held or each in life.apart or 0 < most <= life.ended.get(each, 0)
    }
    # Who has something of its own may wait for what others have, who has nothing may not (G17).
    if waits_rightly and (life.is_strict or "limit" in reason):
        return []
    keys = {rules.records[each].key for each in waits_rightly} - {""} if life.is_by_key else set()
    return [
        each for each in open_ if each not in waits_rightly and rules.records[each].key not in keys
    ]
