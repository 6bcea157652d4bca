"""Where a run is listened to: each function of the product that is wrapped, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from hadron.client import Client
from hadron.client.accumulator import PartitionAccumulator
from hadron.client.consumer import Consumer
from hadron.client.deliveries import Delivery
from hadron.client.feed import Feed, Parcel
from hadron.client.membership import Membership
from hadron.client.outgoing import OutgoingBatch
from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Assignment, Exhausted
from hadron.delivery.progress import LoggedLedger, Receipt
from hadron.delivery.sessions import MemberSession
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.node import recovery, restore
from hadron.node.cluster_backup import find_backups
from hadron.node.member import Member
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupWriter, WrittenGroup
from hadron.partition.observers import Observers
from hadron.partition.submission import Submission
from hadron.partition.waiters import MAJORITY
from hadron.replication import repair, resync
from hadron.replication.follower import FollowerLog
from hadron.replication.life import Life
from hadron.replication.quorum import Quorum
from hadron.replication.repair import Repairer
from hadron.serving.schema_copy import SchemaCopy
from hadron.serving.visible import VisibleStreams
from hadron.sim import node_files
from hadron.sim.backups import Backups
from hadron.sim.connections import SimTransport
from hadron.sim.disk import SimDisk
from hadron.sim.model.histories import Histories
from hadron.sim.node_files import NodeFile
from hadron.sim.watch.answers import Answers, Told, for_others
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.branches import Branches
from hadron.sim.watch.copies import Copies, promised_on
from hadron.sim.watch.entries import Acknowledged, Ends, Entries, tables_lsn
from hadron.sim.watch.meanings import Meanings
from hadron.sim.watch.reads_on import ReadsOn
from hadron.sim.watch.repairs import Repairs
from hadron.sim.watch.sending import Sending
from hadron.sim.watch.serving import Serving
from hadron.sim.watch.views import Complaints, NodeView, Question
from hadron.sim.world import World
from hadron.sim.wrapping import wrapped
from hadron.state.events import BatchAppended
from hadron.state.machine import Command, Context, Event, StateMachine
from hadron.storage.generations import DATABASE, current_database
from hadron.storage.identity import IdentityFile
from hadron.storage.log import Log
from hadron.storage.snapshot import Copying, Manifest
from hadron.storage.store import Readers, Store
from hadron.wire.calls import Call, Handler
from hadron.wire.connection import Connection
from hadron.wire.messages import Method, streams_pb2

_APPEND = "Append"
_UNDER_BALLOTS = ("Probe", "ReadLog", "Resync")
"""What else only a leader asks, with its ballot."""


class Watcher:
    """Hears everything, and tells those who judge.

    Attributes:
        views: every node by its name, as it was opened last.
    """

    def __init__(self) -> None:
        self.complaints = Complaints()
        self.views: dict[str, NodeView] = {}
        ends, acknowledged = Ends(), Acknowledged()
        self.ballots = Ballots(self.complaints, self.views)
        self.answers = Answers(self.complaints, self.ballots, ends, acknowledged)
        self.meanings = Meanings(self.complaints, self.ballots)
        self.entries = Entries(self.complaints, ends, acknowledged, self.meanings)
        self.serving = Serving(self.complaints, self.ballots, acknowledged)
        self.reads_on = ReadsOn(self.complaints)
        self.sending = Sending(self.complaints)
        self.branches = Branches(self.complaints, self.ballots)
        self.repairs = Repairs(self.complaints, self.branches)
        self.copies = Copies(self.complaints, self.views, self.branches)
        self.histories = Histories(self.complaints.add)
        self.mixed: set[str] = set()
        """Nodes whose disks lied about syncs and lost power: their files' pages may be of different
        times, which no database survives, and each of them is sound."""
        self._by_part: dict[Any, NodeView] = {}
        self._questions: dict[Call, Question] = {}
        self._lsns: dict[int, tuple[Event, int]] = {}
        self._leaders: dict[Observers, Controller] = {}
        self._counts: dict[Quorum, Controller] = {}
        self._handlers: dict[int, tuple[Mapping[int, Handler], dict[int, Handler]]] = {}

    @property
    def violations(self) -> list[str]:
        return self.complaints.found

    def judge(self) -> None:
        """At the end of a run: what takes its whole history."""
        self._judging(self.histories.judge)

    def _judging(self, judge: Callable[..., None], *given: Any) -> None:
        """What goes wrong here is nobody's damage."""
        try:
            judge(*given)
        except apsw.Error:
            raise
        except Exception as error:
            self.complaints.add("who watches is at fault", f"{type(error).__name__}: {error}")

    # --- nodes ----------------------------------------------------------------------------------

    def opened(self, original: Any) -> Any:
        def open_store(store: Store, *given: Any, **named: Any) -> None:
            original(store, *given, **named)
            volume = named["disk"]
            if not hasattr(volume, "files"):
                return  # Another tool's, on a real disk.
            if volume.is_dead:
                return
            view = self.views[named["node"]] = NodeView(
                named["node"], store, volume, is_fsynced=named["durability"] == "fsync"
            )
            for part in (store, store.readers, store.identity, store.log):
                self._by_part[part] = view
            self.entries.opened(view)
            self.histories.opened(
                view.name, view.replica_set, store.writer.connection,
                is_sound=view.name not in self.mixed,
            )
            self.ballots.opened(view)
            self.meanings.opened(view)

        return open_store

    def follows(self, original: Any) -> Any:
        def follow(
            follower: FollowerLog, connection: apsw.Connection, log: Log, identity: Any,
            *given: Any,
        ) -> None:
            original(follower, connection, log, identity, *given)
            view = self._by_part.get(identity)
            if view is not None:
                view.follower = follower
                view.start_applied = follower.applied_lsn
                view.told_lsn = follower.committed_lsn
                self._by_part[follower] = view

        return follow

    def leads(self, original: Any) -> Any:
        def lead(controller: Controller, store: Store, *given: Any, **named: Any) -> None:
            original(controller, store, *given, **named)
            view = self._by_part.get(store)
            if view is not None and view.is_alive:
                view.controller = controller
                self._by_part[controller] = view
                self._leaders[controller.observers] = controller
                self._by_part[controller._writer] = view
                self._counts[controller.quorum] = controller
                self.ballots.leads(view, controller)

        return lead

    def admits(self, original: Any) -> Any:
        def admit(quorum: Quorum, member: str) -> bool:
            if quorum in self._counts:
                self.ballots.admits(self._counts[quorum], member)
            has_moved: bool = original(quorum, member)
            return has_moved

        return admit

    def stops(self, original: Any) -> Any:
        def stop(controller: Controller, *given: Any) -> None:
            gate, lines = controller._gate, controller._waiting
            left = () if controller._stopped else (*lines._of_groups, *lines._others)
            due = gate._bytes - sum(submission.size for submission in left)
            original(controller, *given)
            view = self._by_part.get(controller)
            if view is not None and view.is_alive and gate._bytes != due:
                # It is the node's: what this leadership leaves in it is counted for ever.
                self.complaints.add(
                    "leaders leave nothing in the gate",
                    f"{view.name} leads no more, and counts {gate._bytes - due} bytes of commands "
                    "that waited then",
                )

        return stop

    def lives(self, original: Any) -> Any:
        def report(member: Member, life: Life, trouble: str) -> None:
            original(member, life, trouble)
            view = self._by_part.get(member._store)
            if view is None or not view.is_alive:
                return
            if (life is Life.SERVING) is not member._host.door.is_open:
                self.complaints.add(
                    "who serves lets in",
                    f"{view.name} says that it is {life}, and its door is "
                    f"{'open' if member._host.door.is_open else 'closed'}",
                )

        return report

    # --- tables ---------------------------------------------------------------------------------

    def reads(self, original: Any) -> Any:
        async def run_once(readers: Readers, read: Callable[[apsw.Connection], Any]) -> Any:
            if readers not in self._by_part:
                return await original(readers, read)
            stood = 0

            def noted(connection: apsw.Connection) -> Any:
                nonlocal stood
                result = read(connection)
                stood = tables_lsn(connection)
                return result

            result = await original(readers, noted)
            self.answers.read(stood)
            return result

        return run_once

    def waits(self, original: Any) -> Any:
        async def wait_committed(controller: Controller, lsn: int) -> None:
            await original(controller, lsn)
            self.answers.waited(controller)

        return wait_committed

    def queries(self, original: Any) -> Any:
        async def query(controller: Controller, read: Callable[[Any], Any]) -> Any:
            before = self.answers.begin_bounded()
            has_read = False

            def noted(db: Any) -> Any:
                nonlocal has_read
                result = read(db)
                has_read = True
                return result

            try:
                return await original(controller, noted)
            except BaseException:
                if has_read:
                    # The wait failed, and what was read went with it. What a read raises is told.
                    self.answers.end_bounded(before)
                raise

        return query

    def bounded(self, original: Any) -> Any:
        async def read(*given: Any, **named: Any) -> Any:
            before = self.answers.begin_bounded()
            try:
                return await original(*given, **named)
            finally:
                self.answers.end_bounded(before)

        return read

    def reads_schema(self, original: Any) -> Any:
        async def read_committed(copy: SchemaCopy, read: Any) -> Any:
            before = self.answers.begin_bounded()
            result = await original(copy, read)
            view = self._by_part.get(copy._store)
            if result is not None and view is not None:
                self.answers.schema_read(view, before)
            self.answers.end_bounded(before)
            return result

        return read_committed

    def applies(self, original: Any) -> Any:
        def apply(state_machine: StateMachine, context: Context, command: Command) -> Any:
            looked = partial(self.entries.applied, partial(original, state_machine))
            return self.histories.applied(looked, context, command, self.entries.is_heard)

        return apply

    def applies_part(self, original: Any) -> Any:
        def apply(state_machine: StateMachine, context: Context, command: Command) -> Any:
            return self.entries.applied(partial(original, state_machine), context, command)

        return apply

    def reads_file(self, original: Any) -> Any:
        def read_tables(file: NodeFile, db: apsw.Connection) -> None:
            original(file, db)
            view = self.views.get(file.name)
            if view is not None and view.name not in self.mixed:
                self._judging(self.histories.read_file, file.name, view.replica_set, db)

        return read_tables

    # --- commands -------------------------------------------------------------------------------

    def submits(self, original: Any) -> Any:
        def submit(
            controller: Controller, command: Command, body: bytes | memoryview = b"", *,
            acks: int = MAJORITY, done: Any,
        ) -> None:
            told = Told(self.answers, controller, type(command).__name__, acks, done)
            original(controller, command, body, acks=acks, done=told)

        return submit

    def judges(self, original: Any) -> Any:
        def run(
            writer: GroupWriter, connection: apsw.Connection, submission: Submission, *others: Any
        ) -> None:
            original(writer, connection, submission, *others)
            if isinstance(submission.done, Told):
                submission.done.lsn = writer._log.head.lsn
                submission.done.is_logged = submission.logged
            for event in submission.events:
                self._lsns[id(event)] = (event, submission.lsn)

        return run

    def prepares(self, original: Any) -> Any:
        def prepare(writer: GroupWriter, *given: Any) -> WrittenGroup:
            group: WrittenGroup = original(writer, *given)
            view = self._by_part.get(writer)
            self.branches.prepared(group)
            if view is not None and view.controller is not None:
                self.entries.stamped(view, group, len(view.controller.quorum.members))
            return group

        return prepare

    def writes(self, original: Any) -> Any:
        def persisted(
            controller: Controller, group: WrittenGroup | None, error: BaseException | None
        ) -> None:
            self.ballots.wrote(controller, group)
            view = self._by_part.get(controller)
            if view is not None and view.is_alive and error is None:
                self.histories.written(view.store.writer.connection)
            original(controller, group, error)

        return persisted

    def releases(self, original: Any) -> Any:
        def release(controller: Controller) -> None:
            self.ballots.releases(controller)
            self.branches.releases(controller)
            self.meanings.releases(controller)
            with for_others():
                original(controller)
            self.answers.released(controller)

        return release

    def tells(self, original: Any) -> Any:
        def tell(observers: Observers, events: Sequence[Event]) -> None:
            lsn = max(self._lsns.pop(id(event), (event, 0))[1] for event in events)
            if observers in self._leaders:
                self.answers.shows(self._leaders[observers], lsn)
            original(observers, events)

        return tell

    def makes_visible(self, original: Any) -> Any:
        def make(visible: VisibleStreams, *given: Any) -> None:
            original(visible, *given)
            self.answers.makes_visible(visible)

        return make

    def advances(self, original: Any) -> Any:
        def advance(visible: VisibleStreams, event: BatchAppended) -> None:
            mark = self.ballots.marks.get((visible._replica_set, visible._ballot))
            if mark is not None:
                self.answers.moves(mark, event.stream_id, event.base_offset + event.count)
            original(visible, event)

        return advance

    def delivers(self, original: Any) -> Any:
        def deliver(session: MemberSession, given: Assignment, batch: StampedBatch) -> None:
            self.answers.delivered(
                session.driver, given.first, given.last, given.attempt
            )
            self.serving.delivered(session, given, batch)
            original(session, given, batch)

        return deliver

    def acknowledges(self, original: Any) -> Any:
        def acknowledge(ledger: LoggedLedger, ranges: Sequence[tuple[int, int]]) -> None:
            self.answers.acknowledged(ledger, ranges)
            self.serving.acknowledged(ledger, ranges)
            original(ledger, ranges)

        return acknowledge

    def confirms(self, original: Any) -> Any:
        def confirm(ledger: LoggedLedger, receipt: Receipt) -> None:
            self.answers.asked_to_confirm(ledger, receipt)
            original(ledger, receipt)

        return confirm

    def confirmed(self, original: Any) -> Any:
        def answer(receipt: Receipt, floor: int) -> None:
            self.answers.confirms(receipt)
            original(receipt, floor)

        return answer

    # --- groups ---------------------------------------------------------------------------------

    def joins(self, original: Any) -> Any:
        def join(driver: GroupDriver, *given: Any) -> MemberSession:
            session: MemberSession = original(driver, *given)
            self.serving.joined(driver, session)
            return session

        return join

    def receives(self, original: Any) -> Any:
        def receive(driver: GroupDriver, session: MemberSession, message: Any) -> None:
            self.serving.look(driver)
            self.serving.said(driver, session, message)
            original(driver, session, message)

        return receive

    def works(self, original: Any) -> Any:
        def work(driver: GroupDriver, *given: Any) -> None:
            self.serving.look(driver)
            original(driver, *given)

        return work

    def exhausts(self, original: Any) -> Any:
        def note_ended(driver: GroupDriver) -> None:
            self.serving.exhausted(driver, driver.machine.exhausted)
            original(driver)

        return note_ended

    def puts_back(self, original: Any) -> Any:
        def refused(driver: GroupDriver, dead: Exhausted) -> None:
            self.serving.put_back(driver, dead)
            original(driver, dead)

        return refused

    def beats(self, original: Any) -> Any:
        def beat(member: Membership, *given: Any) -> None:
            original(member, *given)
            self.serving.beats(member)

        return beat

    def claims(self, original: Any) -> Any:
        def claim(member: Membership, feed: Feed, parcel: Parcel) -> None:
            original(member, feed, parcel)
            if parcel._skipped:
                self.serving.acknowledged_at_once(parcel)

        return claim

    def hands_out(self, original: Any) -> Any:
        async def hand_out(consumer: Consumer) -> Any:
            given = await original(consumer)
            if given is not None:
                one = isinstance(given, Delivery)
                parcels, records = ([given._parcel], [given.record]) if one else given
                self.serving.handed_out(consumer, parcels, records)
            return given

        return hand_out

    # --- producers ------------------------------------------------------------------------------

    def launches(self, original: Any) -> Any:
        def launch(accumulator: PartitionAccumulator, batch: OutgoingBatch) -> OutgoingBatch:
            self.sending.leaves(accumulator, batch)
            launched: OutgoingBatch = original(accumulator, batch)
            return launched

        return launch

    def refuses(self, original: Any) -> Any:
        def refused(
            accumulator: PartitionAccumulator, batch: OutgoingBatch, error: HadronError
        ) -> None:
            self.sending.failed(batch, error)
            original(accumulator, batch, error)
            self.sending.counted(accumulator)

        return refused

    def parts_with(self, original: Any) -> Any:
        def take(accumulator: PartitionAccumulator, *given: Any) -> Any:
            taken, under_way = original(accumulator, *given)
            for batch in taken:
                self.sending.taken(batch)
            self.sending.counted(accumulator)
            return taken, under_way

        return take

    def counts(self, original: Any) -> Any:
        def change(accumulator: PartitionAccumulator, *given: Any) -> Any:
            result = original(accumulator, *given)
            self.sending.counted(accumulator)
            return result

        return change

    def resolves(self, original: Any) -> Any:
        def resolve(batch: OutgoingBatch, *given: Any) -> None:
            original(batch, *given)
            self.sending.resolved(batch)

        return resolve

    # --- logs -----------------------------------------------------------------------------------

    def promises(self, original: Any) -> Any:
        def promise(
            follower: FollowerLog, ballot: Ballot, *given: Any, **named: Any
        ) -> LogPosition:
            position: LogPosition = original(follower, ballot, *given, **named)
            view = self._by_part.get(follower)
            if view is not None and view.is_alive:
                self.ballots.promised(view, ballot)
            return position

        return promise

    def appends(self, original: Any) -> Any:
        def prepare_append(follower: FollowerLog, *given: Any) -> Any:
            prepared = original(follower, *given)
            view = self._by_part.get(follower)
            if view is not None:
                view.wrote = prepared.size > 0
            return prepared

        return prepare_append

    def applies_all(self, original: Any) -> Any:
        def apply_all(follower: FollowerLog, connection: apsw.Connection) -> None:
            view = self._by_part.get(follower)
            if view is not None:
                view.is_ahead = True
            original(follower, connection)

        return apply_all

    def trims(self, original: Any) -> Any:
        def trim(log: Log, until_lsn: int, *, max_rows: int) -> None:
            original(log, until_lsn, max_rows=max_rows)
            view = self._by_part.get(log)
            if view is not None:
                applied_lsn = tables_lsn(view.store.writer.connection)
                self.ballots.trimmed(view, log.anchor.lsn, applied_lsn)

        return trim

    def writes_anew(self, original: Any) -> Any:
        def put_back(connection: apsw.Connection, log: Log, *given: Any) -> list[int]:
            lsns: list[int] = original(connection, log, *given)
            view = self._by_part.get(log)
            if view is not None:
                self.repairs.repaired(view, lsns)
            return lsns

        return put_back

    def gives_back(self, original: Any) -> Any:
        async def give_back(repairer: Repairer, link: Any, lsn: int, logged: bool) -> None:
            await original(repairer, link, lsn, logged)
            view = self._by_part.get(repairer._store)
            if view is not None:
                self.repairs.repaired(view, [lsn])

        return give_back

    def copies_all(self, original: Any) -> Any:
        def step(copying: Copying) -> LogPosition | None:
            end: LogPosition | None = original(copying)
            if end is not None:
                self.copies.made(copying._target, end)
            return end

        return step

    def describes(self, original: Any) -> Any:
        def encode(manifest: Manifest) -> bytes:
            self.branches.described(manifest)
            encoded: bytes = original(manifest)
            return encoded

        return encode

    def ends_run(self, original: Any) -> Any:
        def end_run(identity: IdentityFile, mark: LogPosition) -> None:
            original(identity, mark)
            view = self._by_part.get(identity)
            if view is not None:
                view.has_ended = True

        return end_run

    def marks_down(self, original: Any) -> Any:
        def note_mark(identity: IdentityFile, mark: LogPosition) -> None:
            view = self._by_part.get(identity)
            if view is not None:
                self.branches.marked(view, mark)
            original(identity, mark)

        return note_mark

    def resyncs(self, original: Any) -> Any:
        def switch_to(directory: Path, generation: Path, disk: Any) -> None:
            self.copies.replaces(current_database(directory), generation / DATABASE)
            self.copies.installed(generation / DATABASE)
            original(directory, generation, disk)

        return switch_to

    def switches(self, original: Any) -> Any:
        def switch_to(directory: Path, generation: Path, disk: Any) -> None:
            self.copies.installed(generation / DATABASE)
            original(directory, generation, disk)

        return switch_to

    def backs_up(self, original: Any) -> Any:
        async def take(backups: Backups, *given: Any) -> Path:
            known = self.copies.known()
            path: Path = await original(backups, *given)
            self.copies.taken(path, known)
            return path

        return take

    def backs_up_all(self, original: Any) -> Any:
        async def take_all(backups: Backups, client: Client, *given: Any) -> Path:
            known = self.copies.known()
            path: Path = await original(backups, client, *given)
            for part in find_backups(path).values():
                self.copies.taken(part, known)
            topology = await client.topology()
            self.copies.of_cluster(path, topology.metadata)
            return path

        return take_all

    def restores(self, original: Any) -> Any:
        def restored(backups: Backups, world: World, name: str, backup: Path) -> None:
            # What an earlier disk of the node has promised went with that.
            promised = promised_on(world.data(name))
            original(backups, world, name, backup)
            self.ballots.restored[name] = promised

        return restored

    def restores_all(self, original: Any) -> Any:
        def restore_all(backups: Backups, worlds: Collection[World], backup: Path) -> None:
            for world in worlds:
                self.ballots.forget(world.config.name)
                self.branches.forget(world.config.name)
            self.meanings.forget()
            original(backups, worlds, backup)

        return restore_all

    # --- disks ----------------------------------------------------------------------------------

    def damages(self, original: Any) -> Any:
        def damage(disk: SimDisk, *given: Any, **named: Any) -> Any:
            self.ballots.forgetful.add(disk.name)
            return original(disk, *given, **named)

        return damage

    def wipes(self, original: Any) -> Any:
        def wipe(disk: SimDisk) -> None:
            self.ballots.restored.pop(disk.name, None)
            original(disk)

        return wipe

    def flips(self, original: Any) -> Any:
        def flip(disk: SimDisk, *given: Any, **named: Any) -> Any:
            self.ballots.flipped.add(disk.name)
            return original(disk, *given, **named)

        return flip

    def recovers(self, original: Any) -> Any:
        def recover(world: World, name: str) -> None:
            self.ballots.recovered.add(world.config.name)
            self.ballots.forget(world.config.name)
            self.branches.forget(world.config.name)
            self.meanings.forget()
            self.ballots.unflushed.discard(name)
            original(world, name)

        return recover

    def powers_off(self, original: Any) -> Any:
        def power_off(disk: SimDisk, style: Any) -> None:
            view = self.views.get(disk.name)
            self.ballots.lost_power(disk.name, view)
            wal = ""
            if view is not None and view.is_alive:
                wal = view.volume.name(f"{view.store.path}-wal")
            original(disk, style)
            if disk.broken.is_lying:
                self.mixed.add(disk.name)
            if view is not None and wal:
                self.ballots.left_log(view, disk.volume.path / wal)

        return power_off

    def lies(self, original: Any) -> Any:
        def lie(disk: SimDisk) -> Any:
            is_lying = original(disk)
            if is_lying:
                self.ballots.forgetful.add(disk.name)
            return is_lying

        return lie

    def ends(self, original: Any) -> Any:
        def ended(world: World, name: str, life: Any) -> None:
            # The connections are gone; what is still counted would be for ever.
            budget = life.node.host.budget
            left = budget.calls, budget.held_bytes, budget._incomplete_bytes, budget._reading_bytes
            if any(left):
                self.complaints.add(
                    "connections leave nothing in the budget",
                    f"{name} has ended, and counts {left} of calls, bytes held, coming, read",
                )
            original(world, name, life)

        return ended

    # --- the wire -------------------------------------------------------------------------------

    def connects(self, original: Any) -> Any:
        def connect(
            connection: Connection, transport: Any, *,
            handlers: Mapping[int, Handler] | None = None, **named: Any,
        ) -> None:
            if handlers and isinstance(transport, SimTransport):
                handlers = self._heard(handlers)
            original(connection, transport, handlers=handlers, **named)

        return connect

    def _heard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Handlers that note each question; of one node all connections share them."""
        known = self._handlers.get(id(handlers))
        if known is None or known[0] is not handlers:
            heard: dict[int, Handler] = {
                number: partial(self._asked, handler) for number, handler in handlers.items()
            }
            known = self._handlers[id(handlers)] = handlers, heard
        return known[1]

    def _asked(self, handler: Handler, call: Call, message: Any, attachment: memoryview) -> None:
        view = self._view_of(call.connection)
        if view is not None:
            if call.method.name == _APPEND:
                self.ballots.append_arrived(view, message)
            follower = view.follower
            self._questions[call] = Question(
                view, call.method.service, call.method.name, message,
                next(self.ballots.order),
                follower.stored_applied_lsn if follower is not None else 0,
                view.identity.promised,
            )
        handler(call, message, attachment)

    def _view_of(self, connection: Any) -> NodeView | None:
        """The node at this end; None for clients, and for nodes that have crashed."""
        transport = getattr(connection, "_transport", None)
        if isinstance(transport, SimTransport) and transport.host.is_alive:
            view = self.views.get(transport.host.name)
            return view if view is not None and view.is_alive else None
        return None

    def sends(self, original: Any) -> Any:
        def send(
            call: Call, message: Any, attachments: Sequence[Any] = (), *, end: bool = False
        ) -> None:
            question = self._questions.get(call)
            if question is not None and not call._ended_here:
                if question.method == _APPEND:
                    self.ballots.append_answered(question, message)
                elif question.method in _UNDER_BALLOTS:
                    self.ballots.answered_under(question)
                elif question.method == "OpenSnapshot":
                    self.answers.copy_opened(question, message)
                    if question.view.is_alive:
                        self.copies.given_out(question.view)
                else:
                    if question.service == "Schema" and question.view.is_alive:
                        self._shows_schema(question, message)
                    self.answers.answers(question, message)
                if end:
                    del self._questions[call]
            original(call, message, attachments, end=end)

        return send

    def _shows_schema(self, question: Question, message: Any) -> None:
        if question.method == "GetObjects":
            self.meanings.shown(question.view, message.objects, message.metadata_index)
        elif question.method == "WatchSchema":
            self.meanings.shown(question.view, message.objects, message.to_index)

    def fails(self, original: Any) -> Any:
        def fail(call: Call, error: HadronError) -> None:
            question = self._questions.pop(call, None)
            if question is not None and not call._ended_here:
                self.meanings.refused(question.view, question.message, error)
                self.answers.refuses(question, error)
            original(call, error)

        return fail

    def calls(self, original: Any) -> Any:
        def call(
            connection: Connection, method: Method, message: Any, *others: Any,
            on_message: Callable[[Any, memoryview], None], **named: Any,
        ) -> Call:
            view = self._view_of(connection)
            if isinstance(message, streams_pb2.FetchRequest):
                on_message = self.reads_on.asks(message, on_message)
            if view is not None:
                if method.name == _APPEND:
                    self.ballots.append_sent(view, message)
                    self.branches.append_sent(view, message)
                    on_message = self._answered(view, connection, message, on_message)
                else:
                    self.answers.asks(view, method.service, method.name)
            opened: Call = original(
                connection, method, message, *others, on_message=on_message, **named
            )
            return opened

        return call

    def _answered(
        self, view: NodeView, connection: Connection, request: Any,
        on_message: Callable[[Any, memoryview], None],
    ) -> Callable[[Any, memoryview], None]:
        peer = connection.peer.rpartition(":")[0]
        # Whoever starts again meanwhile may have lost its memory since it answered.
        asked = self.views.get(peer)
        number = next(self.ballots.order)

        def heard(answer: Any, attachment: memoryview) -> None:
            self.ballots.append_heard(view, request, answer, peer, asked, number)
            on_message(answer, attachment)

        return heard


@contextmanager
def watching() -> Iterator[Watcher]:
    """Watch all nodes of all worlds for the length of the block; open worlds inside of it."""
    watcher = Watcher()
    with ExitStack() as undo:
        for owner, wrappers in _wrappers(watcher):
            undo.enter_context(wrapped(owner, **wrappers))
        yield watcher


def _wrappers(watcher: Watcher) -> list[tuple[Any, dict[str, Callable[[Any], Any]]]]:
    return [
        (Store, {"__init__": watcher.opened}),
        (FollowerLog, {
            "__init__": watcher.follows, "promise": watcher.promises,
            "prepare_append": watcher.appends, "apply_all": watcher.applies_all,
        }),
        (Controller, {
            "__init__": watcher.leads, "submit": watcher.submits,
            "query": watcher.queries, "wait_committed": watcher.waits,
            "_on_persisted": watcher.writes,
            "_release": watcher.releases, "stop": watcher.stops,
        }),
        (Member, {"_report": watcher.lives}),
        (Quorum, {"admit": watcher.admits}),
        (Observers, {"tell": watcher.tells}),
        (GroupWriter, {"_run": watcher.judges, "prepare": watcher.prepares}),
        (Readers, {"run_once": watcher.reads}),
        (VisibleStreams, {
            "__init__": watcher.makes_visible, "_advance": watcher.advances,
            "read": watcher.bounded, "ballot_before": watcher.bounded,
            "offset_at": watcher.bounded,
        }),
        (SchemaCopy, {"_read_committed": watcher.reads_schema}),
        (MemberSession, {"deliver": watcher.delivers}),
        (GroupDriver, {
            "join": watcher.joins, "receive": watcher.receives, "pump": watcher.works,
            "leave": watcher.works, "_expire": watcher.works, "close": watcher.works,
            "_note_ended": watcher.exhausts, "_dead_letters_refused": watcher.puts_back,
        }),
        (Membership, {
            "opened": watcher.beats, "beat": watcher.beats, "_claim": watcher.claims,
        }),
        (Consumer, {"__anext__": watcher.hands_out, "next_batch": watcher.hands_out}),
        (PartitionAccumulator, {
            "_launch": watcher.launches, "refused": watcher.refuses, "take": watcher.parts_with,
            "adopt": watcher.counts, "acked": watcher.counts, "_give_up": watcher.counts,
        }),
        (OutgoingBatch, {"_done": watcher.resolves}),
        (LoggedLedger, {
            "acknowledge": watcher.acknowledges, "confirm": watcher.confirms,
        }),
        (Receipt, {"answer": watcher.confirmed}),
        (Log, {"trim": watcher.trims}),
        (repair, {"put_back": watcher.writes_anew}),
        (Repairer, {"_give_back": watcher.gives_back}),
        (Copying, {"step": watcher.copies_all}),
        (Manifest, {"encode": watcher.describes}),
        (IdentityFile, {"note_mark": watcher.marks_down, "end_run": watcher.ends_run}),
        (Backups, {
            "take": watcher.backs_up, "take_all": watcher.backs_up_all, "restore": watcher.restores,
            "restore_all": watcher.restores_all,
        }),
        (resync, {"switch_to": watcher.resyncs}),
        (restore, {"switch_to": watcher.switches}),
        (recovery, {"switch_to": watcher.switches}),
        (StateMachine, {"apply": watcher.applies, "apply_part": watcher.applies_part}),
        (node_files, {"_read_tables": watcher.reads_file}),
        (SimDisk, {
            "flip_bits": watcher.damages, "change_rows": watcher.damages, "lies": watcher.lies,
            "wipe": watcher.wipes,
            "flip_live": watcher.flips,
            "power_off": watcher.powers_off,
        }),
        (World, {"recover": watcher.recovers, "_ended": watcher.ends}),
        (Connection, {"__init__": watcher.connects, "call": watcher.calls}),
        (Call, {"send": watcher.sends, "fail": watcher.fails}),
    ]
