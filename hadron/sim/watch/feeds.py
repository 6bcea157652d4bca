"""PROTOCOL A3: what a member lacks is sent to it as long as there is room for it on the way, and on
its disk.

Nothing else need happen first: a feed that waits for the next write, with entries on the disk that
its member has not got, may wait for ever, and with it whoever waits for that member.
"""

from __future__ import annotations

from hadron.replication.feed import Feed
from hadron.sim.watch.marks import Mark
from hadron.sim.watch.views import Complaints


class Feeds:
    """Every feed of every leader."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    def looked_at(self, feed: Feed, mark: Mark | None) -> None:
        """Something has come for a feed that it may have waited for."""
        if mark is None or not mark.view.is_alive or not mark.controller.leads:
            return
        if feed._next > mark.written_lsn or not feed.may_send or feed._failure is not None:
            return
        wanted = feed._wanted
        if wanted.statistics().tasks_waiting and not wanted.is_set():
            self._complaints.add(
                "A3 what a member lacks is sent",
                f"{mark.view.name} has sent {feed.name} entries below {feed._next}, has "
                f"{mark.written_lsn} on its disk, and room on the way; it waits for something else",
            )
