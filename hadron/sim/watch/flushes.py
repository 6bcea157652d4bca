"""PROTOCOL F2: a write-ahead log begins anew once all that it has is in the file, and flushed.

Whoever begins it anew overwrites what it had: of the pages that went into the file, and were not
flushed, a power loss then leaves some and not others, and in neither place all.
"""

from __future__ import annotations

from collections.abc import Mapping

from hadron.fakes.volume import Volume
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.views import Complaints, NodeView

WAL = "-wal"


class Flushes:
    """Every node whose commits are flushed, on a disk that keeps what it says it keeps."""

    def __init__(
        self, complaints: Complaints, ballots: Ballots, views: Mapping[str, NodeView]
    ) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._views = views

    def begins_anew(self, volume: Volume, path: str) -> None:
        """A write-ahead log gets its first bytes, perhaps once more."""
        file = path.removesuffix(WAL)
        for view in self._views.values():
            if view.volume is not volume or file != str(view.store.path):
                continue
            is_kept = view.is_fsynced and view.name not in self._ballots.forgetful
            if is_kept and view.is_alive and view.unsynced(file):
                self._complaints.add(
                    "F2 what a log gives away is flushed",
                    f"{view.name} begins its write-ahead log anew, and of what it had has written "
                    "pages into the file that are not flushed",
                )
