"""Leading, from a won ballot to its end: the parts are put together here and nowhere else.

A `Leadership` runs the log of its ballot; what handlers and features are given of it is a
`Leading` (`serving.leading`), and what entries say of it is in `state.leadership`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from hadron.metadata.pusher import ReplicaSets, Wires
from hadron.model.errors import FencedError, HadronError, ShuttingDownError
from hadron.model.ids import NO_BALLOT
from hadron.model.ports import Random
from hadron.node.parts import Surroundings, parts_of
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.schema_driver import AskLeader
from hadron.node.settings import Settings
from hadron.partition.controller import Controller
from hadron.partition.gate import ByteGate
from hadron.replication.ballot import Won, run_on_writer
from hadron.replication.feeding import Feeding, Tuning
from hadron.replication.follower import FollowerLog
from hadron.replication.life import Life, Report
from hadron.replication.membership import Membership, common_apply_version
from hadron.replication.peers import PeerLinks
from hadron.replication.reaching import Reaching
from hadron.replication.watermark import Watermark
from hadron.serving.leading import Door, Leading, missing_majority
from hadron.serving.lock_table import LockTable
from hadron.serving.schema_copy import SchemaCopy
from hadron.serving.schema_copy import load as load_catalog
from hadron.serving.visible import VisibleStreams
from hadron.state.leadership import BeginBallot, FollowRules, apply_version, latest_ballot
from hadron.state.streams import partitions as streams
from hadron.state.transactions.locks import all_held
from hadron.storage.store import Store
from hadron.wire.connection import Cork

_log = logging.getLogger(__name__)

_CLOCK_PERIOD_S: Final = 5.0
"""Between two looks at the peers' clocks: so long entries may be stamped by a clock that jumped."""

_RULES_PERIOD_S: Final = 1.0
"""Between two looks at the versions that the members run, until all of them run the newest."""


class Leadership:
    """Leads under one ballot; `leading` is what is served meanwhile."""

    def __init__(
        self,
        won: Won,
        *,
        config: ReplicaSetConfig,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        watermark: Watermark,
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
        settings = config.settings
        feeding = Feeding(
            store,
            watermark,
            ballot=won.ballot,
            node=membership.node,
            members=[name for name, _ in membership.members],
            started_lsn=store.log.head.lsn + 1,
            older=won.older,
            begins_epoch=won.begins_epoch,
            cork=cork,
            tuning=_tuning(settings),
            on_trim=on_trim,
        )
        self.controller = Controller(
            store,
            follower,
            feeding,
            replica_set=config.name,
            clock=self._stamps,
            cork=cork,
            gate=gate,
            on_fatal=on_fatal,
            # Until this task's turn nobody is to be let in, or told anything.
            on_fenced=self.stop,
        )
        self._reaching = Reaching(
            feeding,
            membership,
            store,
            links,
            uuid=won.uuid,
            window_bytes=settings.replication_window_bytes,
            random=random,
            on_outbid=self.stop,
        )
        self._won, self._config, self._membership = won, config, membership
        self._store, self._follower = store, follower
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
                    nursery.start_soon(self._reaching.run, link)
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
            BeginBallot(
                self._membership.node,
                self._won.uuid,
                self._membership.members,
                self._membership.digest,
                rules,
                self._won.predecessor_digest,
                await self._above_index(),
            )
        )
        # So that the next leader knows which configurations do not count any more (PROTOCOL B5).
        await run_on_writer(self._store, self._follower.note_committed)
        # Everything in the tables is committed now: BeginBallot covers all before it.
        bounds, catalog, held = await self.controller.query(
            lambda db: (streams.all_bounds(db), load_catalog(db), all_held(db))
        )
        visible = VisibleStreams(self._store, self._won.ballot, bounds, self._config.name, catalog)
        catalog.observe(self.controller.observers)
        visible.observe(self.controller.observers)
        locks = LockTable(held, self.controller.log_now_ms)
        locks.observe(self.controller.observers)
        self.leading = Leading(self._config.name, self.controller, catalog, visible, locks)
        self.leading.add(parts_of(self.leading, self._surroundings))
        self._schema_copy.lead(catalog, self.controller)
        nursery.start_soon(self._raise_rules, rules)
        for part in self.leading.parts:
            nursery.start_soon(part.run)
        self._door.open(self.leading)
        report(Life.SERVING, "")
        _log.info(
            "serving as leader of %s with ballot %s from entry %d",
            self._config.name,
            self._won.ballot,
            self.controller.committed_lsn,
        )

    @property
    def waits(self) -> str:
        """Why nothing is committed, in words; "" while something is, or nothing is to be."""
        missing = missing_majority(self.controller) if self.leading is not None else ""
        return f"{missing}, writes wait" if missing else self.controller.feeding.stalls.trouble

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
            self._membership,
            in_force,
            {
                link.name: link.answer if link.connection is not None else None
                for link in self._links.links.values()
            },
        )

    async def _above_index(self) -> int:
        """Where the metadata set's schema goes on, once, after `recover`; else 0. The log may have
        lost its end, and with that indexes and ids that others remember (CLUSTER R7)."""
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


def _tuning(settings: Settings) -> Tuning:
    return Tuning(
        idle_notice_s=settings.idle_commit_notice_s,
        log_keep_bytes=settings.log_keep_bytes,
        log_max_lag_bytes=settings.log_max_lag_bytes,
    )
