"""Nodes as they open their disks, follow, lead, stop, and say how they are."""

from __future__ import annotations

from typing import Any

import apsw

from hadron.node.member import Member
from hadron.partition.controller import Controller
from hadron.replication.follower import FollowerLog
from hadron.replication.life import Life
from hadron.replication.quorum import Quorum
from hadron.sim.watch.known import Known, Wrappers
from hadron.sim.watch.views import NodeView
from hadron.storage.log import Log
from hadron.storage.store import Store


class HearsNodes:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._counts: dict[Quorum, Controller] = {}

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (Store, {"__init__": self.opened}),
            (FollowerLog, {"__init__": self.follows}),
            (Controller, {"__init__": self.leads, "stop": self.stops}),
            (Member, {"_report": self.lives}),
            (Quorum, {"admit": self.admits}),
        ]

    def opened(self, original: Any) -> Any:
        def open_store(store: Store, *given: Any, **named: Any) -> None:
            original(store, *given, **named)
            volume = named["disk"]
            if not hasattr(volume, "files"):
                return  # Another tool's, on a real disk.
            if volume.is_dead or volume.is_foreign:
                return
            view = self._known.views[named["node"]] = NodeView(
                named["node"], store, volume, is_fsynced=named["durability"] == "fsync"
            )
            for part in (store, store.readers, store.identity, store.log):
                self._known.by_part[part] = view
            self._known.entries.opened(view)
            self._known.histories.opened(
                view.name,
                view.replica_set,
                store.writer.connection,
                is_sound=view.name not in self._known.mixed,
            )
            self._known.ballots.opened(view)
            self._known.meanings.opened(view)

        return open_store

    def follows(self, original: Any) -> Any:
        def follow(
            follower: FollowerLog, connection: apsw.Connection, log: Log, identity: Any, *given: Any
        ) -> None:
            original(follower, connection, log, identity, *given)
            view = self._known.by_part.get(identity)
            if view is not None:
                view.follower = follower
                view.start_applied = follower.applied_lsn
                view.told_lsn = follower.committed_lsn
                self._known.by_part[follower] = view

        return follow

    def leads(self, original: Any) -> Any:
        def lead(controller: Controller, store: Store, *given: Any, **named: Any) -> None:
            original(controller, store, *given, **named)
            view = self._known.by_part.get(store)
            if view is not None and view.is_alive:
                view.controller = controller
                self._known.by_part[controller] = view
                self._known.leaders[controller.observers] = controller
                self._known.by_part[controller._committer] = view
                self._counts[controller.quorum] = controller
                self._known.ballots.leads(view, controller)

        return lead

    def admits(self, original: Any) -> Any:
        def admit(quorum: Quorum, member: str) -> bool:
            if quorum in self._counts:
                self._known.ballots.admits(self._counts[quorum], member)
            has_moved: bool = original(quorum, member)
            return has_moved

        return admit

    def stops(self, original: Any) -> Any:
        def stop(controller: Controller, *given: Any) -> None:
            gate, lines = controller._gate, controller._queued
            left = () if controller._stopped else (*lines._rationed, *lines._others)
            due = gate._bytes - sum(submission.size for submission in left)
            original(controller, *given)
            view = self._known.by_part.get(controller)
            if view is not None and view.is_alive and gate._bytes != due:
                # It is the node's: what this leadership leaves in it is counted for ever.
                self._known.complaints.add(
                    "leaders leave nothing in the gate",
                    f"{view.name} leads no more, and counts {gate._bytes - due} bytes of commands "
                    "that waited then",
                )

        return stop

    def lives(self, original: Any) -> Any:
        def report(member: Member, life: Life, *said: Any) -> None:
            original(member, life, *said)
            view = self._known.by_part.get(member._store)
            if view is None or not view.is_alive:
                return
            if (life is Life.SERVING) is not member._host.door.is_open:
                self._known.complaints.add(
                    "who serves lets in",
                    f"{view.name} says that it is {life}, and its door is "
                    f"{'open' if member._host.door.is_open else 'closed'}",
                )

        return report
