"""Leading, from a won ballot to its end: the parts are put together here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from hadron.metadata.pusher import ReplicaSets, Wires
from hadron.model.errors import (
    FencedError,
    HadronError,
    ShuttingDownError,
    TrimmedError,
)
from hadron.model.ids import NO_BALLOT, LogPosition
from hadron.model.ports import Random
from hadron.node.parts import AskLeader, Surroundings, parts_of
from hadron.node.replica_set import ReplicaSetConfig
from hadron.partition.controller import Controller, Tuning
from hadron.partition.gate import ByteGate
from hadron.replication.ballot import (
    OutbidError,
    Won,
    ask_position,
    ask_promise,
    ask_resync,
    run_on_writer,
)
from hadron.replication.feed import Feed, find_common
from hadron.replication.follower import FollowerLog
from hadron.replication.life import Life, Report
from hadron.replication.membership import Membership, common_apply_version
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.serving.leading import Door, Leading
from hadron.serving.schema_copy import SchemaCopy
from hadron.serving.schema_copy import load as load_catalog
from hadron.serving.visible import VisibleStreams
from hadron.state import streams
from hadron.state.leadership import FollowRules, LeaderStarted, apply_version, latest_ballot
from hadron.storage.log import position_at
from hadron.storage.store import Store
from hadron.wire.connection import Cork

_log = logging.getLogger(__name__)

_SNAPSHOT_PAUSE_S: Final = 1.0
"""Before a peer that needs a snapshot is looked at again."""


_CLOCK_PERIOD_S: Final = 5.0
"""Between two looks at the peers' clocks: so long entries may be stamped by a clock that jumped."""

_RULES_PERIOD_S: Final = 1.0
"""Between two looks at the versions that the members run, until all of them run the newest."""


class Leadership:
    """Leads under one ballot."""

    def __init__(
        self,
        won: Won,
        *,
        config: ReplicaSetConfig,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        links: PeerLinks,
        door: Door,
        random: Random,
        cork: Cork,
        gate: ByteGate,
        on_fatal: Callable[[BaseException], None],
        on_trim: Callable[[int], None],
        schema_copy: SchemaCopy,
        sets: ReplicaSets | None = None,
        wires: Wires | None = None,
        ask: AskLeader | None = None,
    ) -> None:
        """
        Args:
            sets: the other replica sets of the cluster; None when there are none.
            wires: how they are reached.
            ask: asks the leader of one of them, once.
        """
        self._stamps = won.clock
        self.controller = Controller(
            store,
            follower,
            ballot=won.ballot,
            replica_set=config.name,
            node=membership.node,
            members=[name for name, _ in membership.members],
            started_lsn=store.log.head.lsn + 1,
            older=won.older,
            begins_epoch=won.begins_epoch,
            clock=self._stamps,
            cork=cork,
            gate=gate,
            tuning=Tuning(
                idle_notice_s=config.settings.idle_commit_notice_s,
                log_keep_bytes=config.settings.log_keep_bytes,
                log_max_lag_bytes=config.settings.log_max_lag_bytes,
            ),
            on_fatal=on_fatal,
            on_trim=on_trim,
        )
        self._won = won
        self._config = config
        self._membership = membership
        self._store = store
        self._follower = follower
        self._links = links
        self._door = door
        self._schema_copy = schema_copy
        self._surroundings = Surroundings(
            config, won.uuid, won.ballot.epoch, self._stamps, random, sets, wires, ask
        )
        self.leading: Leading | None = None

    async def run(self, report: Report) -> None:
        """Lead until stopped or fenced; raises the reason."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.controller.run)
                for link in self._links.links.values():
                    nursery.start_soon(self._feed_loop, link)
                nursery.start_soon(self._watch_clock)
                await self._serve(nursery, report)
        finally:
            # Also when the controller was fenced by a peer's answer: whoever is subscribed here
            # must hear of it.
            self.stop(ShuttingDownError(f"node {self._membership.node} does not lead any more"))

    async def _serve(self, nursery: trio.Nursery, report: Report) -> None:
        report(Life.RECONCILING, "waiting for a majority to store the ballot's first entry")
        rules = await self._apply_version()
        await self.controller.execute(
            LeaderStarted(
                self._membership.node, self._won.uuid, self._membership.members,
                self._membership.digest, rules, self._won.predecessor_digest,
                await self._above_index(),
            )
        )
        # So that the next leader knows which configurations do not count any more (PROTOCOL B5).
        await run_on_writer(self._store, self._follower.note_committed)
        # Everything in the tables is committed now: LeaderStarted covers all before it.
        bounds, catalog = await self.controller.query(
            lambda db: (streams.all_bounds(db), load_catalog(db))
        )
        visible = VisibleStreams(
            self._store, self._won.ballot, bounds, self._config.name, catalog
        )
        catalog.observe(self.controller.observers)
        visible.observe(self.controller.observers)
        self.leading = Leading(self._config.name, self.controller, catalog, visible)
        self.leading.add(parts_of(self.leading, self._surroundings))
        self._schema_copy.lead(catalog, self.controller)
        nursery.start_soon(self._raise_rules, rules)
        for part in self.leading.parts:
            nursery.start_soon(part.run)
        self._door.open(self.leading)
        report(Life.SERVING, "")
        _log.info(
            "serving as leader of %s with ballot %s from entry %d",
            self._config.name, self._won.ballot, self.controller.committed_lsn,
        )

    @property
    def troubles(self) -> list[str]:
        """What people must know of what this leadership does, in words."""
        if self.leading is None:
            return []
        return [trouble for part in self.leading.parts for trouble in part.troubles]

    async def _apply_version(self) -> int:
        """The rules to follow: those that every member knows."""
        in_force = await self._store.readers.run(apply_version)
        return common_apply_version(
            self._membership, in_force,
            {
                link.name: link.answer if link.connection is not None else None
                for link in self._links.links.values()
            },
        )

    async def _above_index(self) -> int:
        """Where the metadata set's schema goes on, once, after `recover`; else 0. The log may have
        lost its end, and with that indexes and ids that others remember (PROTOCOL D3)."""
        if self._config.metadata != self._config.name:
            return 0
        ballot = self._won.ballot
        latest = await self._store.readers.run(latest_ballot)
        if latest == NO_BALLOT or latest.recoveries >= ballot.recoveries:
            return 0
        return ballot.first_index

    async def _raise_rules(self, followed: int) -> None:
        """Go over to the newest rules once every member knows them: one that was away when this
        ballot began counts as old then, and so does one that is upgraded later."""
        while followed < self.controller.machine.version:
            await trio.sleep(_RULES_PERIOD_S)
            known = await self._apply_version()
            if known > followed:
                try:
                    await self.controller.execute(FollowRules(known))
                except HadronError as error:
                    _log.info("version %d of the rules has to wait: %s", known, error)
                else:
                    _log.info("%s goes on by version %d of its rules", self._config.name, known)
                    followed = known

    async def _watch_clock(self) -> None:
        """Stop leading when the clock has become wrong (PROTOCOL B8)."""
        while True:
            await trio.sleep(_CLOCK_PERIOD_S)
            try:
                await self._stamps.compare(self._links)
            except FencedError as error:
                self.stop(error)
                return

    def stop(self, reason: HadronError) -> None:
        """Fail what waits, end subscriptions, and make `run` raise `reason`."""
        self._door.close()
        self._schema_copy.end_leading()
        if self.leading is not None:
            self.leading.stop(reason)
        self.controller.stop(reason)

    # --- peers ----------------------------------------------------------------------------------

    async def _feed_loop(self, link: PeerLink) -> None:
        """Feed a peer whenever it is connected."""
        told = ""
        while True:
            changed = self._links.changed
            if link.connection is not None:
                try:
                    await self._feed(link)
                except OutbidError as error:
                    # Promised before this ballot was won, by a member that was away: start over
                    # above it.
                    self.stop(FencedError(error.message, "another ballot is needed"))
                    return
                except TrimmedError as error:
                    await self._send_to_snapshot(link, error)
                    # It comes back with a new connection once it has been reopened.
                    with trio.move_on_after(_SNAPSHOT_PAUSE_S):
                        await changed.wait()
                except HadronError as error:
                    # Why it ends again and again, a few times a second, is said once.
                    if str(error) != told:
                        told = str(error)
                        _log.warning("feeding %s ended: %s", link.name, error)
                await trio.sleep(0.05)
            else:
                told = ""
                await changed.wait()

    async def _send_to_snapshot(self, link: PeerLink, error: TrimmedError) -> None:
        """The log cannot bring the peer up to date any more."""
        if link.name not in self.controller.needs_snapshot:
            _log.warning("%s needs a snapshot: %s", link.name, error)
        self.controller.needs_snapshot[link.name] = str(error)
        if link.connection is not None:
            try:
                # As of now: an older copy might need what is trimmed since.
                await ask_resync(
                    link.connection, self._won.ballot, error.message, self.controller.written_lsn
                )
            except HadronError as refusal:
                _log.info("%s does not fetch a snapshot: %s", link.name, refusal)

    async def _feed(self, link: PeerLink) -> None:
        connection = link.connection
        if connection is None:
            return
        ballot = self._won.ballot
        last, first_lsn = await ask_promise(connection, self._membership, ballot, self._won.uuid)
        match = await find_common(
            self._own_position,
            lambda lsn: ask_position(connection, ballot, lsn),
            max(self._store.log.anchor.lsn, first_lsn - 1),
            min(last.lsn, self.controller.written_lsn),
            likely=last,
        )
        feed = Feed(
            self.controller, link.name, connection, match,
            window_bytes=self._config.settings.replication_window_bytes,
        )
        self._admit(link, feed)
        _log.info(
            "feeding %s, which has %d of %d entries",
            link.name, match.lsn, self.controller.written_lsn,
        )
        self.controller.attach(feed)
        try:
            await feed.run()
        finally:
            self.controller.detach(feed)
            if link.connection is connection and link.answer is not None:
                # It may have been taught meanwhile.
                link.answer.is_member = self.controller.quorum.is_voter(link.name)

    def _admit(self, link: PeerLink, feed: Feed) -> None:
        """Count the peer's disk, or teach it first (PROTOCOL B3)."""
        if link.answer is not None and link.answer.is_member:
            self.controller.quorum.admit(link.name)
        else:
            _log.info("%s has an empty or new disk; it counts once it has caught up", link.name)
            self.controller.teach(feed, self._won.uuid)

    async def _own_position(self, lsn: int) -> LogPosition | None:
        return await self._store.readers.run(lambda db: position_at(db, lsn))
