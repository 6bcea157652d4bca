"""Notes what befalls a world's nodes into a history, by listening at the world from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import trio

from hadron.model.errors import DataDirectoryError, FencedError, StorageError
from hadron.replication.follower import FollowerLog
from hadron.replication.resync import Installation
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World
from hadron.state.execute import DivergedError
from hadron.storage.generations import DATABASE

_DISK_FAULTS: Final = (
    "write error",
    "sync error",
    "read error",
    "disk full",
    "bit flip",
    "lying sync",
    "changed row",
    "bit flip beneath a running node",
    "deleted directory",
)


def open_history() -> History:
    """A history on the simulated time of the run that this is called in."""
    return History(lambda: round(trio.current_time() * 1_000_000_000))


class Stops(dict[str, BaseException]):
    """Takes the place of `World.failures` and keeps what is forgotten there at the next start."""

    def __init__(self, world: World, history: History) -> None:
        super().__init__(world.failures)
        self._world = world
        self._history = history
        self.unprovoked: dict[str, str] = {}
        """By node: a stop that no fault of its disk explains."""

    def __setitem__(self, name: str, error: BaseException) -> None:
        super().__setitem__(name, error)
        text = str(error).replace(str(self._world.root), "")
        self._history.event("fault", name, f"{type(error).__name__}: {text}")
        cause = _innermost(error)
        damaged = {event.subject for event in self._history.events("damage", "wipe")}
        faulty = any(self._world.faults[kind] for kind in _DISK_FAULTS)
        if isinstance(cause, DivergedError):
            provoked = name in damaged
        elif isinstance(cause, FencedError) and name in self._world.configs:
            # Started with the file of an epoch that is over: it must refuse.
            provoked = True
        else:
            provoked = isinstance(cause, StorageError | DataDirectoryError | OSError) and faulty
        if not provoked:
            self.unprovoked[name] = f"{type(cause).__name__}: {cause}"


def observe(world: World, history: History) -> Stops:
    """Note crashes, power losses, lost and damaged disks; returns why nodes stop from here on."""
    crash_now, wipe, promote = world.crash_now, world.wipe, world.promote

    def noted_crash(name: str, *, power: bool, **others: Any) -> None:
        if world.running(name):
            history.event("power" if power else "crash", name)
            if power and world.disks[name].broken.is_lying:
                history.event("damage", name, "what it called synced may be gone")
        crash_now(name, power=power, **others)

    def noted_wipe(name: str) -> None:
        history.event("wipe", name)
        wipe(name)

    def noted_promote(leader: str, members: Sequence[str] = ()) -> None:
        before = set(world.names)
        promote(leader, members)
        history.event("reconfigure" if before - set(world.names) else "promote", leader)

    # Through __dict__: the world's own calls of itself are heard as well.
    world.__dict__.update(crash_now=noted_crash, wipe=noted_wipe, promote=noted_promote)
    for name, disk in world.disks.items():
        disk.__dict__.update(
            flip_bits=_noted_damage(history, name, disk.flip_bits),
            change_rows=_noted_damage(history, name, disk.change_rows),
            flip_live=_noted_damage(history, name, disk.flip_live),
            spoil_log_header=_noted_damage(history, name, disk.spoil_log_header),
        )
    stops = Stops(world, history)
    world.failures = stops
    return stops


@contextmanager
def noting_divergence(world: World, history: History) -> Iterator[None]:
    """Note, for the length of the block, when a node finds that its tables are not what the log
    makes of them, and when it takes tables that are ahead of the watermark."""
    original, finish = FollowerLog._mark_diverged, Installation.finish

    def noted(follower: FollowerLog, connection: apsw.Connection, error: DivergedError) -> None:
        name = follower._identity.current.node
        if name in world.disks:
            history.event("diverged", name, error.message)
            world.awaiting_copies.add(name)
        original(follower, connection, error)

    def noted_finish(self: Installation, directory: Path, old: Path, *others: Any) -> None:
        finish(self, directory, old, *others)
        name = _whose(world, directory)
        if not name or (directory / DATABASE).resolve() == old:
            return
        world.awaiting_copies.discard(name)
        if not self.is_committed:
            history.event("ahead", name, f"a copy as of {self.position}")

    FollowerLog._mark_diverged = noted  # type: ignore[method-assign, assignment]
    Installation.finish = noted_finish  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FollowerLog._mark_diverged = original  # type: ignore[method-assign]
        Installation.finish = finish  # type: ignore[method-assign]


def _whose(world: World, directory: Path) -> str:
    """ "" when it is another replica set's."""
    owners = (name for name, disk in world.disks.items() if disk.volume.path == directory)
    return next(owners, "")


def _noted_damage(
    history: History, name: str, damage: Callable[..., list[str]]
) -> Callable[..., list[str]]:
    def noted(*args: Any, **kwargs: Any) -> list[str]:
        damaged = damage(*args, **kwargs)
        if damaged:
            history.event("damage", name, ", ".join(damaged))
        return damaged

    return noted


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
