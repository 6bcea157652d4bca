"""A member of a replica set at work: its parts, from one opening of its data directory to the next,
and what it is just now, replica or leader."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

import apsw
import trio

from hadron import __version__
from hadron.client.connecting.ports import ClientPorts
from hadron.metadata.pusher import Wires
from hadron.model.errors import CorruptionError, FencedError, HadronError, ShuttingDownError
from hadron.model.ids import Ballot
from hadron.model.limits import TOKEN_BYTES
from hadron.model.ports import Listener
from hadron.node import leader_links
from hadron.node.accepting import Acceptor
from hadron.node.causes import first_of
from hadron.node.host import Host
from hadron.node.leadership import Leadership
from hadron.node.other_sets import OtherSets, follow_registry
from hadron.node.replica_set import CANNOT_GO_ON
from hadron.node.status import StatusPage
from hadron.replication.ballot import Candidate, run_on_writer
from hadron.replication.follower import AppendOutcome, FollowerLog
from hadron.replication.life import Course, Life
from hadron.replication.membership import epoch_note
from hadron.replication.peers import PeerLinks
from hadron.replication.repair import Repairer
from hadron.replication.resync import Installation, Resync
from hadron.replication.scrub import Scrubber
from hadron.replication.service import ReplicationService
from hadron.replication.snapshots import SnapshotService
from hadron.replication.starts import PeerStarts
from hadron.replication.trimming import LogTrimmer
from hadron.replication.watermark import Watermark
from hadron.server.cluster import ClusterService
from hadron.server.forwarding import ForwardingService
from hadron.server.integrity import IntegrityService
from hadron.server.led import LED
from hadron.server.schema import SchemaService
from hadron.serving.entrance import Entrance
from hadron.serving.schema_copy import SchemaCopy
from hadron.storage.database import is_about_file, translated_errors
from hadron.storage.identity import Identity
from hadron.storage.store import Store
from hadron.wire.calls import Origin
from hadron.wire.connection import Connection
from hadron.wire.messages import cluster_pb2

_log = logging.getLogger(__name__)

_FENCED_PAUSE_S = 1.0


class Member:
    """Made with its files open, then `assemble`, `run`, `close`, `install`.

    Attributes:
        ended_by: what it cannot survive; its log says so.
    """

    def __init__(self, host: Host, *, gave_up: bool) -> None:
        """`gave_up`: a file of this process's was set aside before.

        Raises `DataDirectoryError`.
        """
        self._host = host
        self._gave_up = gave_up
        self.ended_by: BaseException | None = None
        self._unreadable: CorruptionError | None = None
        self._installation: Installation | None = None
        self._leadership: Leadership | None = None
        self._feed: Origin | None = None
        """The connection on which the leader's entries come, while it is open."""
        self._promised_on: Origin | None = None
        """The same of the latest candidate: it counts this disk by what it was promised with."""
        self._course = Course(leads=host.membership.is_leader)
        self._ended = trio.Event()
        self._store = self._open_store()
        self._store.known_committed = lambda: self._watermark.lsn
        self._counts = self._store.identity.current.is_member
        self._forgotten = self._store.forgotten
        """How this disk was found to hold less than it did, in words; "" when it was not."""

    def _open_store(self) -> Store:
        host = self._host
        return Store(
            host.node.data,
            cluster=host.config.cluster,
            replica_set=host.config.name,
            node=host.node.name,
            tables=host.machine.tables,
            durability=host.durability,
            checkpoint_bytes=host.settings.checkpoint_bytes,
            reader_threads=host.settings.reader_threads,
            disk=host.disk,
            clock=host.clock,
            post=_poster() if host.disk.has_threads else _call,
            on_fatal=self.fail,
            has_peers=len(host.config.nodes) > 1,
            reserve_bytes=host.settings.disk_reserve_bytes,
        )

    @property
    def identity(self) -> Identity:
        return self._store.identity.current

    def check_epoch(self) -> None:
        """That no newer configuration has been promised. Raises `ConfigurationError`."""
        membership = self._host.membership
        self._store.identity.check_epoch(membership.epoch, membership.digest)

    def assemble(self) -> None:
        """Put its parts together. Raises `CorruptionError` when the log cannot be read."""
        host, store = self._host, self._store
        with translated_errors(store.path):
            self._watermark = Watermark.noted_in(store.writer.connection)
            self._follower = FollowerLog(
                store.writer.connection,
                store.log,
                store.identity,
                host.machine,
                host.config.name,
                self._watermark,
            )
        self._trimmer = LogTrimmer(store, self._follower, lambda error: self._repairer.heal(error))
        self._schema_copy = SchemaCopy(store, self._follower)
        store.identity.name_disk(host.random.token_bytes(TOKEN_BYTES))
        starts = PeerStarts(store, host.random.token_bytes(TOKEN_BYTES), host.membership.addresses)
        replication = ReplicationService(
            host.membership,
            store,
            self._follower,
            host.clock,
            starts,
            on_promise=self._promised,
            on_append=self._appended,
            on_trim=self._trimmer.allow,
            on_resync=self._wanted,
            on_damage=lambda error: self._repairer.found(error),
            on_fatal=self.fail,
        )
        self._links = PeerLinks(
            host.membership,
            replication.own_identity,
            starts.note,
            self._forget,
            network=host.network,
            random=host.random,
            cork=host.cork,
            keepalive_s=host.settings.keepalive_s,
            silence_limit_s=host.settings.silence_limit_s,
        )
        self._resync = Resync(
            host.membership,
            store,
            self._follower,
            self._links,
            host.disk,
            host.random,
            on_ready=self._reopen_on,
            on_unreadable=self._cannot_read,
        )
        # Found out on the writer's thread, when it is this node that leads.
        self._follower.on_diverged = lambda reason: store.writer.post(
            partial(self._resync.want, reason)
        )
        self._repairer = Repairer(
            host.membership,
            store,
            self._links,
            host.random,
            committed_lsn=lambda: self._follower.committed_lsn,
            resync=lambda reason, lsn: self._resync.want(reason, min_lsn=lsn),
            on_lost=self._cannot_read,
        )
        store.readers.heal = self._repairer.heal
        self._scrubber = Scrubber(
            store,
            self._follower,
            host.random,
            interval_s=host.settings.scrub_interval_s,
            bytes_per_s=host.settings.scrub_bytes_per_second,
            found=self._repairer.found,
            found_tables=self._repairer.found_tables,
            is_repairing=lambda: bool(self._repairer.trouble),
        )
        self._offer(replication)

    def _offer(self, replication: ReplicationService) -> None:
        """What peers and clients can ask of this node."""
        host, store = self._host, self._store
        self._snapshots = SnapshotService(
            host.membership,
            store,
            self._follower,
            host.disk,
            host.clock,
            version=__version__,
            pin=self._trimmer.pin,
            found=self._repairer.found,
            search=self._scrubber.hurry,
            require_member=replication.require_member,
            confirm=self._confirm_leadership,
        )
        self._status = StatusPage(
            host.config,
            host.node.name,
            identity=lambda: store.identity.current,
            follower=self._follower,
            links=self._links,
            durability=host.durability,
            started_ms=host.started_ms,
            pid=os.getpid(),
            connections=lambda: self.acceptor.connections,
        )
        cluster = ClusterService(
            host.config.name,
            host.node.name,
            topology=host.discovery.topology,
            describe=self.status,
            describe_other=host.discovery.status_of,
        )
        self._forwarding = ForwardingService(
            host.config.name,
            host.discovery.leader,
            host.discovery.introduce,
            ClientPorts(host.network, host.clock, host.random),
            host.config.cluster,
        )
        services = (
            replication,
            cluster,
            self._forwarding,
            host.discovery,
            SchemaService(host.door, self._schema_copy),
            self._snapshots,
            self._repairer,
            IntegrityService(self._scrubber, self._repairer),
        )
        entrance = Entrance(host.door, replication.require_member)
        handlers = entrance.handlers(
            [*LED, *leader_links.METHODS, *(each for one in services for each in one.methods())]
        )
        self._forwarding.serve(handlers)
        self.acceptor = Acceptor(host, handlers, self._closed)

    async def run(self, listener: Listener, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled, or until something ends it; raises what it cannot survive."""
        try:
            await self._serve(listener, task_status)
        except ExceptionGroup as group:
            failed, mistakes = group.split(HadronError)
            if failed is None or mistakes is not None:
                raise
            if self.ended_by is None and self._store.lost is not None:
                self.fail(first_of(failed))
            if self.ended_by is None:
                raise
        if self.ended_by is not None:
            # What its tasks met after that has no other cause.
            raise self.ended_by

    async def _serve(self, listener: Listener, task_status: trio.TaskStatus[None]) -> None:
        host = self._host
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.acceptor.run, listener)
            nursery.start_soon(follow_registry, self._schema_copy, host.discovery)
            for part in (
                self._store,
                self._trimmer,
                self._schema_copy,
                self._links,
                host.discovery,
                self._forwarding,
                self._resync,
                self._repairer,
                self._scrubber,
                self._snapshots,
            ):
                nursery.start_soon(part.run)
            if host.membership.is_leader:
                nursery.start_soon(self._lead)
            else:
                nursery.start_soon(self._watch_leader)
            _log.info(
                "node %s of %s listens on %s%s, data in %s",
                host.node.name,
                host.config.name,
                listener.address,
                ""
                if listener.address == (dialed := host.discovery.address)
                else f", others dial {dialed}",
                host.node.data,
            )
            if not self._counts and host.membership.peers:
                _log.info(
                    "its disk %s; it counts in no majority before it has learnt from its peers",
                    self._lack,
                )
            if not host.membership.is_leader:
                self._report(Life.WAITING_FOR_LEADER, "")
            task_status.started()
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    # --- its end --------------------------------------------------------------------------------

    def may_set_aside(self, error: CorruptionError) -> bool:
        """Whether the file is given up for what the peers have: once, or a disk that damages all
        that it is given would be filled again and again."""
        if len(self._host.config.nodes) == 1 or self._gave_up:
            return False
        return error is self._unreadable or is_about_file(error)

    def set_aside(self, error: CorruptionError) -> None:
        """The next opening sets the file aside (PROTOCOL B3), and no copy in its place."""
        self._installation = None
        self._store.identity.forget_membership(error.message)

    def close(self) -> bool:
        """Returns whether everything is in the database file."""
        self._stop_leading(ShuttingDownError(f"node {self._host.node.name} is stopping"))
        is_whole = self._store.close(self._note_watermark)
        self._leadership = None
        return is_whole

    async def install(self) -> None:
        """Everything is closed: put a snapshot in the place of the database, if one has come."""
        if self._installation is not None:
            await self._host.disk.do(
                partial(
                    self._installation.finish,
                    self._host.node.data,
                    self._store.path,
                    self._host.disk,
                    self._store.identity.current.promised,
                )
            )

    def _closed(self, connection: Connection) -> None:
        if connection is self._feed:
            self._feed = None
        self._note_leader()

    # --- roles ----------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Win a ballot and lead, again and again."""
        host = self._host
        candidate = Candidate(
            host.membership,
            self._store,
            self._follower,
            self._links,
            host.clock,
            host.random,
            self._report,
            lambda reason, lsn, source: self._resync.want(reason, min_lsn=lsn, source=source),
            self._repairer.found,
        )
        fenced = ""
        while True:
            if self._store.identity.current.promised.epoch > host.membership.epoch:
                # Only a restart with a newer file changes that. The node goes on as a replica.
                if self._course.life is not Life.FOLLOWING:
                    self._report(Life.FENCED, self._old_file)
                await trio.sleep_forever()
            try:
                won = await candidate.win()
                if not self._store.identity.current.is_member:
                    continue  # What it has forgotten just now, the next ballot is to count.
                self._leadership = Leadership(
                    won,
                    config=host.config,
                    membership=host.membership,
                    store=self._store,
                    follower=self._follower,
                    watermark=self._watermark,
                    links=self._links,
                    door=host.door,
                    random=host.random,
                    cork=host.cork,
                    gate=host.gate,
                    on_fatal=self.fail,
                    on_trim=self._trimmer.allow,
                    schema_copy=self._schema_copy,
                    sets=OtherSets(host.discovery, host.config.name),
                    wires=Wires(
                        host.network,
                        host.random,
                        host.cork,
                        host.settings.keepalive_s,
                        host.settings.silence_limit_s,
                        host.discovery.introduce,
                    ),
                    ask=host.discovery.ask_leader,
                )
                await self._leadership.run(self._report)
            except* FencedError as group:
                text = str(first_of(group))
                if text != fenced:
                    fenced = text
                    _log.warning("not leading: %s", text)
                self._report(Life.FENCED, self._old_file or text)
            except* CorruptionError as group:
                # Met by a read, and so known to whoever repairs it or fetches a snapshot.
                damage = first_of(group)
                if not host.membership.peers or not is_about_file(damage):
                    raise damage from None
                if str(damage) != fenced:
                    fenced = str(damage)
                    _log.error("not leading: %s", damage)
                self._report(Life.DAMAGED, str(damage))
            self._leadership = None
            await trio.sleep(_FENCED_PAUSE_S)

    def _note_watermark(self, connection: apsw.Connection) -> None:
        """A leader writes it down when it begins, and now: else nobody who reads its file could
        tell what of it is committed."""
        if self._leadership is not None:
            self._follower.note_committed(connection)

    def _stop_leading(self, reason: HadronError) -> None:
        if self._leadership is not None:
            self._leadership.stop(reason)

    async def _confirm_leadership(self) -> None:
        if self._leadership is not None:
            await self._leadership.controller.confirm_leadership()

    def _promised(self, ballot: Ballot, name: str, connection: Origin) -> None:
        self._promised_on = connection
        # Of a replica set that is being founded all are members, and nothing is to be learnt.
        self._counts = self._store.identity.current.is_member
        if ballot.epoch > self._host.membership.epoch:
            self._host.door.point_to(name, self._host.membership.addresses.get(name, ""))
        leadership = self._leadership
        if leadership is not None and ballot > leadership.controller.ballot:
            leadership.stop(FencedError(f"this node has promised ballot {ballot} to {name}"))

    @property
    def _old_file(self) -> str:
        """That this node's configuration file is old, in words; "" when it is not (PROTOCOL B1)."""
        own, promised = self._host.membership, self._store.identity.current.promised
        if promised.epoch > own.epoch:
            return epoch_note(own, "the leader", promised.epoch)
        return next((note for link in self._links.connected() if (note := link.old_file)), "")

    async def _forget(self, name: str) -> None:
        """A peer has seen what this disk does not know of: it must be taught (PROTOCOL B3)."""
        if not self._store.identity.current.is_member:
            return
        later = f"{name} has seen a later start of"
        self._forgotten = f"this node's data directory is an old copy: {later} it"
        self._counts = False
        _log.warning("%s", self._memory_note)
        disk, identity = self._host.random.token_bytes(TOKEN_BYTES), self._store.identity
        try:
            await run_on_writer(self._store, lambda _: identity.forget_membership("", disk=disk))
        except HadronError as error:
            self.fail(error)  # Others count this disk until that is written down.
            raise
        for counted_on in filter(None, (self._feed, self._promised_on)):
            counted_on.close()  # Whoever counts this disk asks again.
        self._stop_leading(FencedError(f"{later} this node"))

    def _appended(self, ballot: Ballot, outcome: AppendOutcome, connection: Origin) -> None:
        self._feed = connection
        if not self._counts and self._store.identity.current.is_member:
            self._counts = True
            self._forgotten = ""
            _log.info(
                "rebuilt from its peers up to entry %d: it counts in majorities now",
                outcome.match_lsn,
            )
        leadership = self._leadership
        # A peer that appends under the ballot that this node leads with is mistaken.
        leads_on = leadership is not None and leadership.controller.ballot == ballot
        if self._course.life is not Life.FOLLOWING and not leads_on:
            self._report(Life.FOLLOWING, "")
        self._schema_copy.note_applied()

    def _wanted(self, reason: str, min_lsn: int, name: str) -> None:
        """The leader says that its log cannot bring this node up to date."""
        self._resync.want(reason, min_lsn=min_lsn, source=name)

    def _reopen_on(self, installation: Installation) -> None:
        self._installation = installation
        self._store.is_replaced = True
        self._ended.set()

    async def _watch_leader(self) -> None:
        """A replica's status follows its link to the leader, and the leader's to it."""
        while True:
            changed = self._links.changed
            self._note_leader()
            await changed.wait()

    def _note_leader(self) -> None:
        if self._host.membership.is_leader:
            return
        leader = self._links.links[self._host.membership.leader]
        if self._course.life is not Life.FOLLOWING:
            # All that troubles a replica meanwhile is this link, and is over when it is up again.
            self._report(self._course.life, leader.trouble)
        elif leader.connection is None and self._feed is None:
            # Only then: a leader that has nothing to send would not say again that it is there.
            self._report(Life.WAITING_FOR_LEADER, leader.trouble)

    def is_agreed(self) -> bool:
        """Whether a majority serves by this node's own configuration."""
        promised = self._store.identity.current.promised
        return promised.epoch == self._host.membership.epoch and self._course.is_at_work

    # --- for people -----------------------------------------------------------------------------

    def _report(self, life: Life, trouble: str, memories_missing: int = 0) -> None:
        if self._course.go(life, trouble, memories_missing):
            _log.info("%s%s", life, f": {trouble}" if trouble else "")
        self._host.discovery.refresh()
        if trouble or self._old_file:
            self._host.door.reason = trouble or self._old_file

    @property
    def _memory_note(self) -> str:
        """Why this disk counts in no majority (PROTOCOL B3)."""
        why = self._forgotten or f"this node's disk {self._lack}"
        return f"{why}; it counts in no majority until it has been taught"

    @property
    def _lack(self) -> str:
        """What a disk may lack that counts in no majority, where this start does not know why."""
        if not self._store.identity.has_forgotten:
            return "is new"
        end = self._store.log.head.lsn
        if not end:
            return "was a member's and has lost what it held"
        return f"has the log up to entry {end} and may lack what followed, as after a restore"

    def status(self) -> cluster_pb2.StatusResponse:
        """This node, as it sees itself."""
        leadership = self._leadership
        page = self._status.describe(
            self._course,
            leadership.controller if leadership is not None else None,
            self._schema_copy.index,
        )
        page.trouble = self._old_file or page.trouble
        page.cluster_trouble.extend(self._host.discovery.troubles())
        if leadership is not None:
            page.cluster_trouble.extend(leadership.troubles)
        if self._resync.progress:
            page.state, page.trouble = Life.RESYNCING, self._resync.progress
        elif locked := self._store.identity.trouble:
            page.trouble = locked
        elif trouble := (self._repairer.trouble or self._scrubber.trouble or self._store.trouble):
            page.trouble = trouble
        if leadership is not None and (waits := leadership.waits):
            page.trouble = waits
        # Of a set that is being founded all disks are new, and nobody is to be taught.
        others = any(link.answer.is_member for link in self._links.connected() if link.answer)
        if self._store.identity.has_forgotten or (page.lacks_memory and others):
            page.trouble = "; ".join(filter(None, [self._memory_note, page.trouble]))
        return page

    def _cannot_read(self, error: CorruptionError) -> None:
        """Not even what a snapshot leaves to this node's own file can be read, or must be: what is
        damaged there is on no other disk either."""
        self._unreadable = error
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Something happened that this node must not survive."""
        if self.ended_by is None:
            if isinstance(error, HadronError):
                # Of files that are gone anything may be met first, such as that they are read only.
                error = self._store.lost or error
            self.ended_by = error
            # The next opening tells of a file that it sets aside, and the node goes on.
            if not (isinstance(error, CorruptionError) and self.may_set_aside(error)):
                _log.critical("%s: %s", CANNOT_GO_ON, error)
        self._ended.set()


def _poster() -> Callable[[Callable[[], None]], None]:
    """How the writer's thread reaches the event loop; several reports wake it once."""
    token = trio.lowlevel.current_trio_token()
    return partial(token.run_sync_soon, idempotent=True)


def _call(report: Callable[[], None]) -> None:
    """Without threads a report is made where it is heard."""
    report()
