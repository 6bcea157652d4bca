"""Promises, logs that grow and are trimmed, repairs, copies and restores."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import apsw

from hadron.client import Client
from hadron.model.ids import Ballot, LogPosition
from hadron.node import recovery, restore
from hadron.node.places import look
from hadron.replication import repair, resync
from hadron.replication.feed import Feed
from hadron.replication.feeding import Feeding
from hadron.replication.follower import FollowerLog
from hadron.replication.repair import Repairer
from hadron.sim.watch.copies import promised_on
from hadron.sim.watch.entries import tables_lsn
from hadron.sim.watch.known import Known, Wrappers
from hadron.sim.world.backups import Backups
from hadron.sim.world.replica_set import World
from hadron.storage.generations import DATABASE
from hadron.storage.identity import IdentityFile
from hadron.storage.log import Log
from hadron.storage.snapshot import Copying, Manifest


class HearsLogs:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (
                FollowerLog,
                {
                    "promise": self.promises,
                    "prepare_append": self.appends,
                    "apply_ahead": self.applies_ahead,
                },
            ),
            (Feed, {"_on_answer": self.hears_answers, "offer": self.offers}),
            (Log, {"trim": self.trims}),
            (repair, {"put_back": self.writes_anew}),
            (Repairer, {"_give_back": self.gives_back}),
            (Copying, {"step": self.copies_all}),
            (Manifest, {"encode": self.describes}),
            (IdentityFile, {"note_mark": self.marks_down, "end_run": self.ends_run}),
            (
                Backups,
                {
                    "take": self.backs_up,
                    "take_all": self.backs_up_all,
                    "restore": self.restores,
                    "restore_all": self.restores_all,
                },
            ),
            (resync, {"switch_to": self.resyncs}),
            (restore, {"switch_to": self.switches}),
            (recovery, {"switch_to": self.switches}),
        ]

    def promises(self, original: Any) -> Any:
        def promise(
            follower: FollowerLog, ballot: Ballot, *given: Any, **named: Any
        ) -> LogPosition:
            position: LogPosition = original(follower, ballot, *given, **named)
            view = self._known.by_part.get(follower)
            if view is not None and view.is_alive:
                self._known.ballots.promised(view, ballot)
            return position

        return promise

    def appends(self, original: Any) -> Any:
        def prepare_append(follower: FollowerLog, *given: Any) -> Any:
            prepared = original(follower, *given)
            view = self._known.by_part.get(follower)
            if view is not None:
                view.wrote = prepared.size > 0
            return prepared

        return prepare_append

    def hears_answers(self, original: Any) -> Any:
        def on_answer(feed: Feed, answer: Any) -> None:
            original(feed, answer)
            self._look_at(feed)

        return on_answer

    def offers(self, original: Any) -> Any:
        def offer(feed: Feed, group: Any) -> None:
            original(feed, group)
            self._look_at(feed)

        return offer

    def _look_at(self, feed: Feed) -> None:
        host = feed._host
        view = self._known.views.get(host.node) if isinstance(host, Feeding) else None
        if view is not None:
            mark = self._known.ballots.marks.get((view.replica_set, host.ballot))
            self._known.feeds.looked_at(feed, mark)

    def applies_ahead(self, original: Any) -> Any:
        def apply_ahead(follower: FollowerLog, connection: apsw.Connection) -> Any:
            view = self._known.by_part.get(follower)
            if view is not None:
                view.is_ahead = True
            return original(follower, connection)

        return apply_ahead

    def trims(self, original: Any) -> Any:
        def trim(log: Log, until_lsn: int, *, max_rows: int) -> None:
            original(log, until_lsn, max_rows=max_rows)
            view = self._known.by_part.get(log)
            if view is not None:
                applied_lsn = tables_lsn(view.store.writer.connection)
                self._known.ballots.trimmed(view, log.anchor.lsn, applied_lsn)

        return trim

    def writes_anew(self, original: Any) -> Any:
        def put_back(connection: apsw.Connection, log: Log, *given: Any) -> list[int]:
            lsns: list[int] = original(connection, log, *given)
            view = self._known.by_part.get(log)
            if view is not None:
                self._known.repairs.repaired(view, lsns)
            return lsns

        return put_back

    def gives_back(self, original: Any) -> Any:
        async def give_back(repairer: Repairer, link: Any, lsn: int, logged: bool) -> None:
            await original(repairer, link, lsn, logged)
            view = self._known.by_part.get(repairer._store)
            if view is not None:
                self._known.repairs.repaired(view, [lsn])

        return give_back

    def copies_all(self, original: Any) -> Any:
        def step(copying: Copying) -> LogPosition | None:
            end: LogPosition | None = original(copying)
            if end is not None:
                self._known.copies.made(copying._target, end)
            return end

        return step

    def describes(self, original: Any) -> Any:
        def encode(manifest: Manifest) -> bytes:
            self._known.branches.described(manifest)
            encoded: bytes = original(manifest)
            return encoded

        return encode

    def ends_run(self, original: Any) -> Any:
        def end_run(identity: IdentityFile, mark: LogPosition) -> None:
            original(identity, mark)
            view = self._known.by_part.get(identity)
            if view is not None:
                view.has_ended = True

        return end_run

    def marks_down(self, original: Any) -> Any:
        def note_mark(identity: IdentityFile, mark: LogPosition) -> None:
            view = self._known.by_part.get(identity)
            if view is not None:
                self._known.branches.marked(view, mark)
            original(identity, mark)

        return note_mark

    def resyncs(self, original: Any) -> Any:
        def switch_to(directory: Path, generation: Path, disk: Any) -> None:
            self._known.copies.replaces(directory, generation / DATABASE)
            self._known.copies.installed(generation / DATABASE)
            original(directory, generation, disk)

        return switch_to

    def switches(self, original: Any) -> Any:
        def switch_to(directory: Path, generation: Path, disk: Any) -> None:
            self._known.copies.installed(generation / DATABASE)
            original(directory, generation, disk)

        return switch_to

    def backs_up(self, original: Any) -> Any:
        async def take(backups: Backups, *given: Any) -> Path:
            known = self._known.copies.known()
            path: Path = await original(backups, *given)
            self._known.copies.taken(path, known)
            return path

        return take

    def backs_up_all(self, original: Any) -> Any:
        async def take_all(backups: Backups, client: Client, *given: Any) -> Path:
            known = self._known.copies.known()
            path: Path = await original(backups, client, *given)
            for part in look(path).inside:
                self._known.copies.taken(part.path, known)
            topology = await client.topology()
            self._known.copies.of_cluster(path, topology.metadata)
            return path

        return take_all

    def restores(self, original: Any) -> Any:
        def restored(backups: Backups, world: World, name: str, backup: Path) -> None:
            # What an earlier disk of the node has promised went with that.
            promised = promised_on(world.data(name))
            original(backups, world, name, backup)
            self._known.ballots.restored[name] = promised

        return restored

    def restores_all(self, original: Any) -> Any:
        def restore_all(backups: Backups, worlds: Collection[World], backup: Path) -> None:
            for world in worlds:
                self._known.ballots.forget(world.config.name)
                self._known.branches.forget(world.config.name)
                self._known.confirming.forget(world.config.name)
                self._known.awaited.forget(world.config.name)
            self._known.meanings.forget()
            original(backups, worlds, backup)

        return restore_all
