"""What happens to disks, and what a node has left in its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hadron.fakes.disk import SimDisk
from hadron.fakes.files import SimFile
from hadron.fakes.volume import Volume
from hadron.sim.watch.flushes import WAL
from hadron.sim.watch.known import Known, Wrappers
from hadron.sim.world.replica_set import World


class HearsDisks:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (
                SimDisk,
                {
                    "flip_bits": self.damages,
                    "change_rows": self.damages,
                    "lies": self.lies,
                    "wipe": self.wipes,
                    "flip_live": self.flips,
                    "power_off": self.powers_off,
                },
            ),
            (Volume, {"written": self.writes}),
            (World, {"recover": self.recovers, "_ended": self.ends}),
        ]

    def writes(self, original: Any) -> Any:
        def written(
            volume: Volume, path: str | Path, file: SimFile, offset: int, data: bytes
        ) -> None:
            if not offset and str(path).endswith(WAL):
                self._known.flushes.begins_anew(volume, str(path))
            original(volume, path, file, offset, data)

        return written

    def damages(self, original: Any) -> Any:
        def damage(disk: SimDisk, *given: Any, **named: Any) -> Any:
            self._known.ballots.forgetful.add(disk.name)
            return original(disk, *given, **named)

        return damage

    def wipes(self, original: Any) -> Any:
        def wipe(disk: SimDisk) -> None:
            self._known.ballots.restored.pop(disk.name, None)
            original(disk)

        return wipe

    def flips(self, original: Any) -> Any:
        def flip(disk: SimDisk, *given: Any, **named: Any) -> Any:
            self._known.ballots.flipped.add(disk.name)
            return original(disk, *given, **named)

        return flip

    def recovers(self, original: Any) -> Any:
        def recover(world: World, name: str) -> None:
            self._known.ballots.recovered.add(world.config.name)
            self._known.ballots.forget(world.config.name)
            self._known.branches.forget(world.config.name)
            self._known.confirming.forget(world.config.name)
            self._known.awaited.forget(world.config.name)
            self._known.meanings.forget()
            self._known.ballots.unflushed.discard(name)
            original(world, name)

        return recover

    def powers_off(self, original: Any) -> Any:
        def power_off(disk: SimDisk, style: Any) -> None:
            view = self._known.views.get(disk.name)
            self._known.ballots.lost_power(disk.name, view)
            wal = ""
            if view is not None and view.is_alive:
                wal = view.volume.name(f"{view.store.path}-wal")
            original(disk, style)
            if disk.broken.is_lying:
                self._known.mixed.add(disk.name)
            if view is not None and wal:
                self._known.ballots.left_log(view, disk.volume.path / wal)

        return power_off

    def lies(self, original: Any) -> Any:
        def lie(disk: SimDisk) -> Any:
            is_lying = original(disk)
            if is_lying:
                self._known.ballots.forgetful.add(disk.name)
            return is_lying

        return lie

    def ends(self, original: Any) -> Any:
        def ended(world: World, name: str, life: Any) -> None:
            # The connections are gone; what is still counted would be for ever.
            budget = life.node.host.budget
            left = budget.calls, budget.held_bytes, budget._incomplete_bytes, budget._reading_bytes
            if any(left):
                self._known.complaints.add(
                    "connections leave nothing in the budget",
                    f"{name} has ended, and counts {left} of calls, bytes held, coming, read",
                )
            original(world, name, life)

        return ended
