"""A running node: everything in its place, from the data directory to the listening port."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import apsw
import trio

from hadron import __version__
from hadron.client.ports import ClientPorts
from hadron.metadata.pusher import Wires
from hadron.model.errors import (
    ConfigurationError,
    CorruptionError,
    FencedError,
    HadronError,
    ShuttingDownError,
)
from hadron.model.ids import Ballot
from hadron.model.ports import Clock, Disk, Listener, Network, Random
from hadron.node.discovery import Discovery
from hadron.node.leadership import Leadership
from hadron.node.other_sets import OtherSets, follow_registry
from hadron.node.replica_set import CANNOT_GO_ON, ReplicaSetConfig
from hadron.node.status import StatusPage
from hadron.partition.gate import ByteGate
from hadron.replication.ballot import Candidate, run_on_writer
from hadron.replication.follower import AppendOutcome, FollowerLog
from hadron.replication.membership import Membership, epoch_note
from hadron.replication.peers import PeerLinks
from hadron.replication.repair import Repairer
from hadron.replication.resync import Installation, Resync
from hadron.replication.scrub import Scrubber
from hadron.replication.service import ReplicationService
from hadron.replication.snapshots import SnapshotService
from hadron.replication.starts import PeerStarts
from hadron.replication.trimming import LogTrimmer
from hadron.server.cluster import ClusterService
from hadron.server.forwarding import ForwardingService
from hadron.server.groups import GroupsService
from hadron.server.integrity import IntegrityService
from hadron.server.pipelines import PipelinesService
from hadron.server.schema import SchemaService
from hadron.server.streams import StreamsService
from hadron.serving.leading import Door, missing_majority
from hadron.serving.schema_copy import SchemaCopy
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.storage.database import is_about_file, translated_errors
from hadron.storage.store import Store
from hadron.wire.budget import Budget
from hadron.wire.calls import Carrier, Handler
from hadron.wire.connection import Connection, Cork
from hadron.wire.messages import cluster_pb2
from hadron.wire.sockets import about_open_files, most_connections

_log = logging.getLogger(__name__)

_FENCED_PAUSE_S = 1.0

_REFUSALS_TOLD_EVERY_S = 60.0
"""A process without a file descriptor left tries ten times a second."""


def membership_of(config: ReplicaSetConfig, node: str, machine: StateMachine) -> Membership:
    """What peers must agree with."""
    return Membership(
        cluster=config.cluster,
        replica_set=config.name,
        epoch=config.epoch,
        members=tuple((item.name, item.role) for item in config.nodes),
        node=node,
        digest=config.digest,
        addresses={item.name: item.address for item in config.nodes},
        apply_version=machine.version,
    )


class Node:
    """One member of a replica set. `run` serves until cancelled or until it must stop."""

    def __init__(
        self,
        config: ReplicaSetConfig,
        name: str,
        *,
        clock: Clock,
        random: Random,
        network: Network,
        disk: Disk,
        machine: StateMachine = MACHINE,
    ) -> None:
        """`machine` is what the log drives: another one than this version's is for tests."""
        self._machine = machine
        self._config = config
        self._settings = config.settings
        self._node = config.node(name)
        self._clock = clock
        self._random = random
        self._network = network
        self._disk = disk
        self._cork = Cork()
        self._gate = ByteGate(config.settings.max_pending_bytes)
        self._budget = Budget()
        self._membership = membership_of(config, name, machine)
        self._door = Door(name, config.leader.name, config.leader.address)
        self._leadership: Leadership | None = None
        self.ended_by: BaseException | None = None
        """What it cannot survive; its log says so."""
        self._gave_up = False
        self._unreadable: CorruptionError | None = None
        self._installation: Installation | None = None
        self._counts = False
        self._forgotten = ""
        """How this disk was found to hold less than it did, in words; "" when it was not."""
        self._feed: Carrier | None = None
        """The connection on which the leader's entries come, while it is open."""
        self._ended = trio.Event()
        self.address = self._node.address
        self.discovery = Discovery(
            config, name, uuid=lambda: self._store.identity.current.uuid,
            agreed=self._is_agreed, started_ms=clock.now_ms(), network=network, random=random,
            cork=self._cork,
        )

    async def run(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Open the data directory, listen, and serve. `task_status` is told when listening.

        Raises `DataDirectoryError`, `ConfigurationError` for an address that cannot be bound, and
        whatever forced the node to stop.
        """
        self._started_ms = self._clock.now_ms()
        listener: Listener | None = None
        is_whole = False
        try:
            while True:
                store = self._open_store()
                try:
                    if listener is None:
                        # Not after a snapshot: what this node promises while it runs, it keeps.
                        store.identity.check_epoch(self._config.epoch, self._membership.digest)
                    self._assemble(store)
                    listener = listener or await self._listen()
                    await self._serve(listener, task_status)
                except (CorruptionError, ExceptionGroup) as caught:
                    error = _damage_in(caught)
                    if error is None:
                        raise
                    if not self._may_set_aside(error):
                        raise error from None
                    self._gave_up = True
                    # Opening it again sets the file aside (PROTOCOL B3).
                    store.identity.forget_membership(error.message)
                finally:
                    self._stop_leading(ShuttingDownError(f"node {self._node.name} is stopping"))
                    is_whole = store.close(self._note_watermark)
                    self._leadership = None
                await self._prepare_reopening(store.path)
                if listener is not None:
                    task_status = trio.TASK_STATUS_IGNORED
        finally:
            if listener is not None:
                listener.close()
            # Of a start that was refused its error says everything.
            if listener is not None and self.ended_by is None:
                _log.info(
                    "stopped, %s", "everything is in the database file" if is_whole
                    else "the next start goes through the write-ahead log"
                )

    def _open_store(self) -> Store:
        return Store(
            self._node.data,
            cluster=self._config.cluster,
            replica_set=self._config.name,
            node=self._node.name,
            tables=self._machine.tables,
            durability=self._durability,
            checkpoint_bytes=self._settings.checkpoint_bytes,
            reader_threads=self._settings.reader_threads,
            disk=self._disk,
            clock=self._clock,
            post=_poster() if self._disk.has_threads else _call,
            on_fatal=self._fail,
            has_peers=len(self._config.nodes) > 1,
            reserve_bytes=self._settings.disk_reserve_bytes,
        )

    def _may_set_aside(self, error: CorruptionError) -> bool:
        """Whether the file is given up for what the peers have: once, or a disk that damages all
        that it is given would be filled again and again."""
        if len(self._config.nodes) == 1 or self._gave_up:
            return False
        return error is self._unreadable or is_about_file(error)

    async def _prepare_reopening(self, old: Path) -> None:
        """Everything is closed: put a snapshot in the place of the database, if one has come."""
        installation, self._installation = self._installation, None
        self._leadership = None
        self.ended_by = None
        self._ended = trio.Event()
        if installation is not None:
            promised = self._store.identity.current.promised
            await self._disk.do(
                partial(installation.finish, self._node.data, old, self._disk, promised)
            )

    @property
    def _durability(self) -> str:
        """With a single node there is no other memory to survive in (PROTOCOL C)."""
        return "fsync" if len(self._config.nodes) == 1 else self._settings.durability

    def _assemble(self, store: Store) -> None:
        self._store = store
        self._counts = store.identity.current.is_member
        self._forgotten = store.forgotten
        with translated_errors(store.path):
            self._follower = FollowerLog(
                store.writer.connection, store.log, store.identity, self._machine,
                self._config.name
            )
        self._trimmer = LogTrimmer(
            store, self._follower, lambda error: self._repairer.heal(error)
        )
        self._schema_copy = SchemaCopy(store, self._follower)
        store.identity.name_disk(self._random.token_bytes(16))
        starts = PeerStarts(store, self._random.token_bytes(16))
        replication = ReplicationService(
            self._membership, store, self._follower, self._clock, starts,
            on_promise=self._promised, on_append=self._appended,
            on_trim=self._trimmer.allow, on_resync=self._wanted,
            on_damage=lambda error: self._repairer.found(error), on_fatal=self._fail,
        )
        self._links = PeerLinks(
            self._membership, replication.own_identity, starts.note, self._forget,
            network=self._network,
            random=self._random, cork=self._cork, keepalive_s=self._settings.keepalive_s,
            silence_limit_s=self._settings.silence_limit_s,
        )
        self._resync = Resync(
            self._membership, store, self._follower, self._links, self._disk, self._random,
            on_ready=self._reopen_on, on_unreadable=self._cannot_read,
        )
        # Found out on the writer's thread, when it is this node that leads.
        self._follower.on_diverged = lambda reason: store.writer.post(
            partial(self._resync.want, reason)
        )
        self._repairer = Repairer(
            self._membership, store, self._links,
            committed_lsn=lambda: self._follower.committed_lsn,
            resync=lambda reason, lsn: self._resync.want(reason, min_lsn=lsn),
            on_lost=self._cannot_read,
            require_peer=replication.require_peer,
        )
        store.readers.heal = self._repairer.heal
        self._scrubber = Scrubber(
            store, self._follower, self._random,
            interval_s=self._settings.scrub_interval_s,
            bytes_per_s=self._settings.scrub_bytes_per_second, found=self._repairer.found,
            found_tables=self._repairer.found_tables,
            is_repairing=lambda: bool(self._repairer.trouble),
        )
        self._snapshots = SnapshotService(
            self._membership, store, self._follower, self._disk, self._clock,
            version=__version__, pin=self._trimmer.pin, found=self._repairer.found,
            search=self._scrubber.hurry,
            require_peer=replication.require_peer,
        )
        self._offer(replication)

    def _offer(self, replication: ReplicationService) -> None:
        """What peers and clients can ask of this node."""
        store = self._store
        self._status = StatusPage(
            self._config, self._node.name, identity=lambda: store.identity.current,
            follower=self._follower, links=self._links, durability=self._durability,
            started_ms=self._started_ms, pid=os.getpid(),
        )
        cluster = ClusterService(
            self._config.name, self._node.name, topology=self.discovery.topology,
            describe=self.status, describe_other=self.discovery.status_of,
        )
        self._forwarding = ForwardingService(
            self.discovery.leader, ClientPorts(self._network, self._clock, self._random)
        )
        services = (
            replication, cluster, self._forwarding, self.discovery, StreamsService(self._door),
            GroupsService(self._door), SchemaService(self._door, self._schema_copy),
            PipelinesService(self._door), self._snapshots, self._repairer,
            IntegrityService(self._door, self._scrubber, self._repairer),
        )
        self._handlers: dict[int, Handler] = {}
        for service in services:
            self._handlers.update(service.handlers())

    async def _listen(self) -> Listener:
        try:
            listener = await self._network.listen(self._node.listens_on)
        except OSError as error:
            raise ConfigurationError(
                f"node {self._node.name} cannot listen on {self._node.listens_on}: "
                f"{error.strerror or error}",
                "is another process using the port? change `address:`, or stop that process; where "
                "`address:` is not one of this machine's own, `listen:` says what is",
            ) from error
        if self._node.listen is None:
            # Port 0 has become one that is free.
            self.address = listener.address
        self.discovery.listens_at(self.address)
        return listener

    async def _serve(self, listener: Listener, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.run)
            nursery.start_soon(self._accept, listener, nursery)
            nursery.start_soon(self._trimmer.run)
            nursery.start_soon(self._schema_copy.run)
            nursery.start_soon(follow_registry, self._schema_copy, self.discovery)
            nursery.start_soon(self._links.run)
            nursery.start_soon(self.discovery.run)
            nursery.start_soon(self._forwarding.run)
            nursery.start_soon(self._resync.run)
            nursery.start_soon(self._repairer.run)
            nursery.start_soon(self._scrubber.run)
            nursery.start_soon(self._snapshots.run)
            if self._membership.is_leader:
                nursery.start_soon(self._lead)
            else:
                nursery.start_soon(self._watch_leader)
            _log.info(
                "node %s of %s listens on %s%s, data in %s",
                self._node.name, self._config.name, listener.address,
                "" if listener.address == self.address else f", others dial {self.address}",
                self._node.data,
            )
            if not self._counts and self._membership.peers:
                _log.info(
                    "its disk %s; it counts in no majority before it has learnt from its peers",
                    self._lack if self._store.identity.has_forgotten else "is new",
                )
            if not self._membership.is_leader:
                self._report("waiting for the leader", "")
            task_status.started()
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        if self.ended_by is not None:
            raise self.ended_by

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        most, is_full = most_connections(), False
        refused, told_s = 0, float("-inf")
        while True:
            try:
                transport = await listener.accept()
            except OSError as error:
                refused += 1
                if trio.current_time() - told_s >= _REFUSALS_TOLD_EVERY_S:
                    _log.warning(
                        "a connection could not be accepted: %s (tried %d times since this was "
                        "last said)%s", error, refused,
                        f"; {about_open_files()}" if error.errno == errno.EMFILE else "",
                    )
                    refused, told_s = 0, trio.current_time()
                await trio.sleep(0.1)
                continue
            if self._status.connections >= most:
                if not is_full:
                    _log.warning(
                        "%d connections are open, more are closed at once; %s",
                        most, about_open_files(),
                    )
                is_full = True
                transport.close()
                continue
            is_full = False
            connection = Connection(
                transport, dialed=False, handlers=self._handlers, cork=self._cork,
                gate=self._gate, budget=self._budget, keepalive_s=self._settings.keepalive_s,
                silence_limit_s=self._settings.silence_limit_s,
            )
            nursery.start_soon(self._connection, connection)

    async def _connection(self, connection: Connection) -> None:
        self._status.connections += 1
        try:
            await connection.run()
        except Exception:
            # A defect, but one connection's: the others and the node go on.
            _log.exception("serving %s failed", connection.peer)
        finally:
            self._status.connections -= 1
            if connection is self._feed:
                self._feed = None
        self._note_leader()

    # --- roles ----------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Win a ballot and lead, again and again."""
        candidate = Candidate(
            self._membership, self._store, self._follower, self._links, self._clock, self._random,
            self._report,
            lambda reason, source: self._resync.want(reason, source=source),
            self._repairer.found,
        )
        fenced = ""
        while True:
            if self._store.identity.current.promised.epoch > self._membership.epoch:
                # Only a restart with a newer file changes that. The node goes on as a replica.
                if self._status.state != "following":
                    self._report("fenced", self._old_file)
                await trio.sleep_forever()
            try:
                won = await candidate.win()
                self._leadership = Leadership(
                    won, config=self._config, membership=self._membership, store=self._store,
                    follower=self._follower, links=self._links, door=self._door,
                    random=self._random,
                    cork=self._cork, gate=self._gate, on_fatal=self._fail,
                    on_trim=self._trimmer.allow, schema_copy=self._schema_copy,
                    sets=OtherSets(self.discovery, self._config.name),
                    wires=Wires(
                        self._network, self._random, self._cork, self._settings.keepalive_s,
                        self._settings.silence_limit_s,
                    ),
                    ask=self.discovery.ask_leader,
                )
                await self._leadership.run(self._report)
            except* FencedError as group:
                text = str(_first(group))
                if text != fenced:
                    fenced = text
                    _log.warning("not leading: %s", text)
                self._report("fenced", self._old_file or text)
            except* CorruptionError as group:
                # Met by a read, and so known to whoever repairs it or fetches a snapshot.
                damage = _first(group)
                if not self._membership.peers or not is_about_file(damage):
                    raise damage from None
                if str(damage) != fenced:
                    fenced = str(damage)
                    _log.error("not leading: %s", damage)
                self._report("damaged", str(damage))
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

    def _promised(self, ballot: Ballot, name: str) -> None:
        # Of a replica set that is being founded all are members, and nothing is to be learnt.
        self._counts = self._store.identity.current.is_member
        if ballot.epoch > self._membership.epoch:
            self._door.point_to(name, self._membership.addresses.get(name, ""))
        leadership = self._leadership
        if leadership is not None and ballot > leadership.controller.ballot:
            leadership.stop(FencedError(f"this node has promised ballot {ballot} to {name}"))

    @property
    def _old_file(self) -> str:
        """That this node's configuration file is old, in words; "" when it is not (PROTOCOL B1)."""
        own, promised = self._membership, self._store.identity.current.promised
        if promised.epoch > own.epoch:
            return epoch_note(own, "the leader", promised.epoch)
        return next((note for link in self._links.connected() if (note := link.old_file)), "")

    async def _forget(self, name: str) -> None:
        """A peer has seen what this disk does not know of: it must be taught (PROTOCOL B3)."""
        if not self._store.identity.current.is_member:
            return
        self._forgotten = (
            f"this node's data directory is an old copy: {name} has seen a later start of it"
        )
        self._counts = False
        _log.warning("%s", self._memory_note)
        await run_on_writer(self._store, lambda _: self._store.identity.forget_membership(""))
        self._stop_leading(FencedError(f"{name} has seen a later start of this node"))

    def _appended(
        self, _ballot: Ballot, outcome: AppendOutcome, connection: Carrier
    ) -> None:
        self._feed = connection
        if not self._counts and self._store.identity.current.is_member:
            self._counts = True
            self._forgotten = ""
            _log.info(
                "rebuilt from its peers up to entry %d: it counts in majorities now",
                outcome.match_lsn,
            )
        if self._status.state != "following":
            self._report("following", "")
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
        if self._membership.is_leader:
            return
        leader = self._links.links[self._membership.leader]
        is_following = self._status.state == "following"
        if is_following and leader.connection is None and self._feed is None:
            # Only then: a leader that has nothing to send would not say again that it is there.
            self._report("waiting for the leader", leader.trouble)
        elif leader.trouble and not is_following:
            self._report(self._status.state, leader.trouble)

    def _is_agreed(self) -> bool:
        """Whether a majority serves by this node's own configuration."""
        if self._store.identity.current.promised.epoch != self._membership.epoch:
            return False
        return self._status.state == ("serving" if self._membership.is_leader else "following")

    # --- for people -----------------------------------------------------------------------------

    def _report(self, state: str, trouble: str) -> None:
        if state != self._status.state:
            _log.info("%s%s", state, f": {trouble}" if trouble else "")
        self._status.report(state, trouble)
        self.discovery.refresh()
        if trouble or self._old_file:
            self._door.reason = trouble or self._old_file

    @property
    def _memory_note(self) -> str:
        """Why this disk, which was a member's, counts in no majority (PROTOCOL B3)."""
        why = self._forgotten or f"this node's disk {self._lack}"
        return f"{why}; it counts in no majority until it has been taught"

    @property
    def _lack(self) -> str:
        """What a disk that was a member's may have lost, where this start does not know why."""
        end = self._store.log.head.lsn
        if not end:
            return "was a member's and has lost what it held"
        return f"has the log up to entry {end} and may lack what followed, as after a restore"

    def status(self) -> cluster_pb2.StatusResponse:
        """This node, as it sees itself."""
        leadership = self._leadership
        leading = leadership.leading if leadership is not None else None
        page = self._status.describe(
            leadership.controller if leadership is not None else None,
            self._schema_copy.index,
        )
        page.trouble = self._old_file or page.trouble
        page.cluster_trouble.extend(self.discovery.troubles())
        if leadership is not None:
            page.cluster_trouble.extend(leadership.troubles)
        if self._resync.progress:
            page.state, page.trouble = "resyncing", self._resync.progress
        elif self._repairer.trouble:
            page.trouble = self._repairer.trouble
        elif self._scrubber.trouble:
            page.trouble = self._scrubber.trouble
        elif self._store.space.is_low:
            page.trouble = self._store.space.trouble
        if leading is not None and (missing := missing_majority(leading.controller)):
            page.trouble = f"{missing}, writes wait"
        if self._store.identity.has_forgotten:
            page.trouble = "; ".join(filter(None, [self._memory_note, page.trouble]))
        return page

    def _cannot_read(self, error: CorruptionError) -> None:
        """Not even what a snapshot leaves to this node's own file can be read, or must be: what is
        damaged there is on no other disk either."""
        self._unreadable = error
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Something happened that this node must not survive."""
        if self.ended_by is None:
            self.ended_by = error
            # The next opening tells of a file that it sets aside, and the node goes on.
            if not (isinstance(error, CorruptionError) and self._may_set_aside(error)):
                _log.critical("%s: %s", CANNOT_GO_ON, error)
        self._ended.set()


def _poster() -> Callable[[Callable[[], None]], None]:
    """How the writer's thread reaches the event loop; several reports wake it once."""
    token = trio.lowlevel.current_trio_token()
    return partial(token.run_sync_soon, idempotent=True)


def _call(report: Callable[[], None]) -> None:
    """Without threads a report is made where it is heard."""
    report()


_Error = TypeVar("_Error", bound=BaseException)


def _first(group: BaseExceptionGroup[_Error]) -> _Error:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("_Error", error)


def _damage_in(error: CorruptionError | ExceptionGroup[Exception]) -> CorruptionError | None:
    """The damage that ended a node, if nothing else did."""
    if isinstance(error, CorruptionError):
        return error
    damage, others = error.split(CorruptionError)
    return _first(damage) if damage is not None and others is None else None
