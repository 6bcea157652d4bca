"""What the log must have of a group once its leader has nothing on the way there: who leads next
knows of nothing else (PROTOCOL D2, GROUPS G4)."""

from __future__ import annotations

from hadron.sim.rooms.group_lives import Life
from hadron.sim.rooms.group_world import World


def check_rest(world: World) -> None:
    """Called whenever time has passed; looks at groups whose leaders are at rest."""
    for life in world.rules.lives.values():
        driver = world.leadership.groups.live(world.stream, life.name)
        is_at_rest = driver is not None and driver.ledger.is_idle and not world.log.waiting
        if is_at_rest and life.driver is driver:
            _check(world, life)


def _check(world: World, life: Life) -> None:
    """What was acknowledged is settled, and what was in vain is counted."""
    progress, rules = life.progress, world.rules
    first = max(rules.first, progress.floor)
    lost = [each for each in life.accepted if each >= first and each not in progress.settled]
    if lost:
        rules.complain(f"{life.name}: {sorted(lost)} were acknowledged, and are never logged")
    for offset, number in life.ended.items():
        logged = progress.attempts.get(offset, 0)
        if number > logged and offset >= first and offset not in progress.settled:
            rules.complain(
                f"{life.name}: {number} attempts of {offset} have ended, {logged} are logged"
            )
