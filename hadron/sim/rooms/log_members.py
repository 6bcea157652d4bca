"""A member of the logs' room: replication's own parts between two crashes, put together as
`node.member` and `node.leadership` do it, without what serves clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import apsw
import trio

from hadron.fakes.clocks import SimClock
from hadron.model.errors import FencedError, HadronError, ShuttingDownError
from hadron.partition.controller import Controller
from hadron.partition.gate import ByteGate
from hadron.partition.observers import Order
from hadron.replication.ballot import Candidate, Won, run_on_writer
from hadron.replication.feeding import Feeding, Tuning
from hadron.replication.follower import FollowerLog
from hadron.replication.membership import Membership
from hadron.replication.peers import LinkState, PeerLink
from hadron.replication.reaching import Reaching
from hadron.replication.resync import _contradiction
from hadron.replication.service import ReplicationService
from hadron.replication.starts import PeerStarts
from hadron.replication.trimming import LogTrimmer
from hadron.replication.watermark import Watermark
from hadron.sim.rooms.log_disks import MACHINE, SET, Disk, Store, Was
from hadron.sim.rooms.log_wires import Wire
from hadron.state.leadership import BeginBallot
from hadron.storage import snapshot
from hadron.storage.log import get_meta, position_at, set_meta
from hadron.wire.connection import Cork
from hadron.wire.messages import method

if TYPE_CHECKING:
    from hadron.sim.rooms.logs import World

_HANDSHAKE: Final = method("Handshake")
_COPY_PAUSE_S: Final = 0.3


class _Told(Watermark):
    """Of which the world hears."""

    def __init__(self, lsn: int, on_risen: Callable[[int], None]) -> None:
        super().__init__(lsn)
        self._on_risen = on_risen

    def rise(self, lsn: int) -> None:
        super().rise(lsn)
        self._on_risen(lsn)


class Links:
    """Those of a member to its peers, as `replication.peers.PeerLinks`."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.links = {
            name: PeerLink(name, role, f"{name}:1")
            for name, role in life.membership.members
            if name != life.name
        }
        self.changed = trio.Event()

    def connected(self) -> list[PeerLink]:
        return [link for link in self.links.values() if link.state is LinkState.CONNECTED]

    async def ask_again(self, link: PeerLink, timeout_s: float) -> Any:
        if link.connection is None:
            raise HadronError(f"{link.name} is not connected")
        own = self._life.service.own_identity()
        answer, _ = await link.connection.request(_HANDSHAKE, own, timeout_s=timeout_s)
        return answer

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def keep(self, link: PeerLink) -> None:
        """Dial a peer, shake hands, stay, for ever."""
        world, name = self._life.world, self._life.name
        while True:
            wire = world.dial(name, link.name)
            if wire is not None:
                with contextlib.suppress(HadronError):
                    await self._stay(link, wire)
            await trio.sleep(world.random.uniform(0.005, 0.05))

    async def _stay(self, link: PeerLink, wire: Wire) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.run)
            try:
                own = self._life.service.own_identity()
                answer, _ = await wire.request(_HANDSHAKE, own, timeout_s=5.0)
                if answer.is_old_copy or await self._life.starts.note(answer.identity):
                    raise HadronError("an old copy")
                link.connection, link.answer = wire, answer  # type: ignore[assignment]
                link.state = LinkState.CONNECTED
                self.tell()
                await wire.wait_closed()
            except HadronError:
                pass
            finally:
                link.connection = None
                link.state = LinkState.CONNECTING
                self.tell()
                nursery.cancel_scope.cancel()


class Life:
    """From a start to the next crash. `run` must be running."""

    def __init__(self, world: World, name: str, disk: Disk, membership: Membership) -> None:
        self.world, self.name, self.disk, self.membership = world, name, disk, membership
        self.store = Store(disk, name, world.random, lambda: world.wrote(self))
        store: Any = self.store
        self.watermark = _Told(
            get_meta(disk.db, "committed_lsn"), lambda lsn: world.committed(self, lsn)
        )
        self.follower = FollowerLog(
            disk.db, store.log, store.identity, MACHINE, SET, self.watermark
        )
        self.clock = SimClock()
        self.trimmer = LogTrimmer(store, self.follower, _no_healing)
        self.starts = PeerStarts(store, world.random.token_bytes(16), membership.addresses)
        self.service = ReplicationService(
            membership,
            store,
            self.follower,
            self.clock,
            self.starts,
            on_promise=self._promised,
            on_append=lambda *_: None,
            on_trim=self.trimmer.allow,
            on_resync=lambda reason, lsn, peer: self.want(reason, lsn, peer),
            on_damage=self.fail,
            on_fatal=self.fail,
        )
        self.handlers = {each.method.name: each.handle for each in self.service.methods()}
        self.links = Links(self)
        self.follower.on_diverged = lambda reason: self.want(reason, 0, "")
        self.controller: Controller | None = None
        self.leads = False
        self.copy: apsw.Connection | None = None
        """To go on with, once this has ended."""
        self._wanted: tuple[str, int, str] | None = None
        self._asked = trio.Event()
        self.ended = trio.Event()

    def fail(self, error: BaseException) -> None:
        if isinstance(error, ShuttingDownError):
            return
        self.world.complain("who ends itself", f"{self.name}: {error!r}")
        self.ended.set()

    @property
    def is_waiting(self) -> bool:
        """Whether it needs a copy."""
        return self._asked.is_set()

    async def run(self) -> None:
        try:
            await self._run()
        except* ShuttingDownError:
            if not self.store.writer.has_ended:
                raise

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.store.writer.run)
            nursery.start_soon(self.trimmer.run)
            nursery.start_soon(self._fetch_copies)
            for link in self.links.links.values():
                nursery.start_soon(self.links.keep, link)
            if self.membership.is_leader:
                nursery.start_soon(self._lead)
            await self.ended.wait()
            self._stop(ShuttingDownError("it ends"))
            nursery.cancel_scope.cancel()

    # --- leading --------------------------------------------------------------------------------

    def _stop(self, reason: HadronError) -> None:
        self.leads = False
        if self.controller is not None:
            self.controller.stop(reason)

    def _promised(self, ballot: Any, name: str, _origin: Any) -> None:
        self.world.promised(self, ballot)
        if self.controller is not None and ballot > self.controller.ballot:
            self._stop(FencedError(f"it has promised {ballot} to {name}"))

    async def _lead(self) -> None:
        links: Any = self.links
        candidate = Candidate(
            self.membership,
            self.store,  # type: ignore[arg-type]
            self.follower,
            links,
            self.clock,
            self.world.random,
            lambda *_: None,
            self.want,
            self.fail,
        )
        while True:
            if self.store.identity.current.promised.epoch > self.membership.epoch:
                await trio.sleep_forever()
            try:
                self.disk.is_ahead = True
                won = await candidate.win()
                await self._lead_under(won)
            except* (FencedError, ShuttingDownError):
                pass
            self.controller = None
            await trio.sleep(0.3)

    async def _lead_under(self, won: Won) -> None:
        store: Any = self.store
        members = [name for name, _ in self.membership.members]
        feeding = Feeding(
            store,
            self.watermark,
            ballot=won.ballot,
            node=self.name,
            members=members,
            started_lsn=store.log.head.lsn + 1,
            older=won.older,
            begins_epoch=won.begins_epoch,
            cork=Cork(),
            tuning=self.world.tuning,
            on_trim=lambda lsn: self.world.trims(self, lsn),
        )
        controller = self.controller = Controller(
            store,
            self.follower,
            feeding,
            replica_set=SET,
            clock=won.clock,
            cork=Cork(),
            gate=ByteGate(1 << 20),
            on_fatal=self.fail,
            on_fenced=self._stop,
        )
        controller.observers.add(Order.STREAMS, (Was,), lambda seen: self.world.shown(self, seen))
        reaching = Reaching(
            feeding,
            self.membership,
            store,
            self.links,  # type: ignore[arg-type]
            uuid=won.uuid,
            window_bytes=self.world.window_bytes,
            random=self.world.random,
            on_outbid=self._stop,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(controller.run)
                for link in self.links.links.values():
                    nursery.start_soon(reaching.run, link)
                await controller.execute(
                    BeginBallot(
                        self.name,
                        won.uuid,
                        self.membership.members,
                        self.membership.digest,
                        MACHINE.version,
                        won.predecessor_digest,
                    )
                )
                await run_on_writer(store, self.follower.note_committed)
                self.world.begun(self, won)
                self.leads = True
        finally:
            self._stop(ShuttingDownError(f"{self.name} does not lead any more"))

    # --- copies ---------------------------------------------------------------------------------

    def want(self, reason: str, min_lsn: int, source: str) -> None:
        """Its state is to be replaced by another member's."""
        self._wanted = reason, min_lsn, source
        self._asked.set()

    async def _fetch_copies(self) -> None:
        if self.follower.diverged:
            self.want(self.follower.diverged, 0, "")
        await self._asked.wait()
        while True:
            await trio.sleep(self.world.random.uniform(0.0, 2 * _COPY_PAUSE_S))
            assert self._wanted is not None
            for link in self.links.connected():
                source = self.world.lives.get(link.name)
                if source is not None and await self._take(source, self._wanted[1]):
                    self.ended.set()
                    return

    async def _take(self, source: Life, min_lsn: int) -> bool:
        """As `replication.resync` and `storage.snapshot` do it, between two databases in memory."""
        if source.follower.diverged:
            return False
        await source.store.writer.settled()
        copy = apsw.Connection(":memory:")
        with copy.backup("main", source.disk.db, "main") as backup:
            backup.step()
        committed = source.follower.committed_lsn
        try:
            at = snapshot._cut_off_tail(copy, is_committed=True)
        except HadronError:
            return False
        promised = self.store.identity.current.promised
        theirs = source.store.identity.current.promised
        own_ballot = self.membership.is_leader and promised.epoch == theirs.epoch
        shares = own_ballot or (
            source.controller is not None and at.ballot == source.controller.ballot == promised
        )
        is_committed = committed >= at.lsn
        await self.store.writer.settled()
        if self.store.identity.current.promised != promised or at.ballot > promised:
            return False
        own, end = self.disk.db, self.follower.head
        here = position_at(own, at.lsn)
        least = max(self.follower.committed_lsn, self.follower.anchor.lsn, min_lsn)
        if not is_committed and (not shares or _contradiction(at, here, end)):
            return False
        if here != at and (at.lsn < least or (here is None and at.lsn < end.lsn)):
            return False
        set_meta(copy, "committed_lsn", min(at.lsn, max(committed, self.follower.committed_lsn)))
        if here == at:
            snapshot._append_rows(own, copy, at)
        if snapshot.head_of(copy).lsn < self.follower.anchor.lsn or at.lsn < min_lsn:
            return False
        self.copy = copy
        self.disk.is_ahead = not is_committed
        return True


async def _no_healing(_error: HadronError) -> bool:
    return False


def tuning_of(keep_bytes: int, lag_bytes: int) -> Tuning:
    return Tuning(
        idle_notice_s=0.005,
        ring_bytes=4_000,
        log_keep_bytes=keep_bytes,
        log_max_lag_bytes=lag_bytes,
    )
