"""All groups of a leadership that somebody uses: joining, resetting, deleting, looking at them.

An ephemeral group is nothing but its driver: it is forgotten some time after its last member has
gone. Safety rule: of a group's progress there is one keeper at a time. While a group is reset or
deleted nobody joins it, and a driver that was closed logs nothing any more under an id that counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.delivery.driver import GroupDriver
from hadron.delivery.ground import Ground
from hadron.delivery.joining import Joining, parse_start
from hadron.delivery.letters import Origin
from hadron.delivery.members import DeliveryNumbers
from hadron.delivery.port import DeliveryRange, MemberSink
from hadron.delivery.sessions import MemberSession
from hadron.model.errors import (
    HadronError,
    NotFoundError,
    NotReadyError,
    OffsetOutOfRangeError,
    OverloadedError,
    PeerError,
    RequestError,
    ShuttingDownError,
)
from hadron.model.ids import Ballot
from hadron.model.ports import Random
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import DELIVERIES, Lock, TransactionId
from hadron.model.words import counted
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.lock_table import LockTable
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state.groups import progress as groups
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.progress import CreateGroup, GroupOptions, Progress
from hadron.state.transactions.events import RecordsAcknowledged

_log = logging.getLogger(__name__)

EPHEMERAL_GRACE_S: Final = 30.0
"""An ephemeral group without members is remembered so long: a lost connection does not cost its
progress."""

MAX_EPHEMERAL: Final = 10_000
"""Ephemeral groups of one leader: some kilobytes each."""

_Key = tuple[int, str]


@dataclass(slots=True, eq=False)
class _Reading:
    """Somebody who joins is just reading a group's progress.

    Attributes:
        is_old: the group was changed meanwhile, or is served anew.
        moved: groups whose progress was made by transactions meanwhile.
    """

    key: _Key
    is_old: bool = False
    moved: set[int] = field(default_factory=set)


class Groups(Part):
    """All groups of a leadership that somebody uses."""

    def __init__(
        self,
        controller: Controller,
        visible: VisibleStreams,
        catalog: Catalog,
        replica_set: str,
        random: Random,
        locks: LockTable,
    ) -> None:
        self._random = random
        self._locks = locks
        self._controller = controller
        self._visible = visible
        self._catalog = catalog
        self._replica_set = replica_set
        self._drivers: dict[_Key, GroupDriver] = {}
        self._by_id: dict[int, GroupDriver] = {}
        """The durable ones of them."""
        self._reading: set[_Reading] = set()
        self._joining: Counter[_Key] = Counter()
        self._changing: set[_Key] = set()
        self._left_behind = trio.Event()
        self._ephemeral = 0
        self._ground: Ground | None = None
        visible.on_gone(self._end_streams)
        locks.listen(DELIVERIES, self._taken, self._freed)
        locks.on_acknowledged(self._acknowledged)

    async def run(self) -> None:
        """Must be running for groups to be served."""
        async with trio.open_nursery() as nursery:
            self._ground = Ground(
                self._controller,
                self._visible,
                self._catalog,
                nursery,
                DeliveryNumbers(),
                self._random,
            )
            try:
                await self._collect()
            finally:
                # Before the nursery is closed: a call that ends after that must not start anything
                # any more. Members must hear of it here: this may end before whoever knows a
                # better reason has a word.
                self._ground = None
                self.stop(ShuttingDownError("this node does not serve the group any more"))

    @property
    def _on(self) -> Ground:
        if self._ground is None:
            raise NotReadyError("this node does not serve groups yet, or no more")
        return self._ground

    # --- joining --------------------------------------------------------------------------------

    async def subscribe(
        self, sink: MemberSink, stream_id: int, joining: Joining
    ) -> tuple[GroupDriver, MemberSession]:
        """Make whom the sink tells a member; the group is created when it does not exist.

        Raises `RequestError` for what makes no sense, and for options that are not the group's.
        """
        joining.check()
        self._visible.bounds(stream_id)
        key = stream_id, joining.group
        if key in self._changing:
            raise NotReadyError(f"group {joining.group!r} is being reset or deleted")
        self._joining[key] += 1
        try:
            driver, skipped = self._drivers.get(key), 0
            if driver is None or not driver.is_ephemeral:
                driver, skipped = await self._find_or_make(key, joining)
            joining.options.check(
                joining.group,
                driver.progress.options,
                ephemeral=driver.is_ephemeral,
                dead_letter_stream=driver.dead_letter_stream,
            )
            return driver, driver.join(sink, joining, skipped=skipped)
        finally:
            self._joining[key] -= 1
            self._forget_if_idle(key)

    async def _find_or_make(self, key: _Key, joining: Joining) -> tuple[GroupDriver, int]:
        """And how many records retention has dropped before the group had come to them."""
        reading = _Reading(key)
        self._reading.add(reading)
        try:
            # Members may have acknowledgements of earlier ballots.
            await self._visible.learn_ends(key[0])
            progress = await self._read_progress(reading, joining)
        finally:
            self._reading.discard(reading)
        # Leading may have ended since the last answer, before its end has come to the groups.
        if reading.is_old or not self._controller.leads:
            raise NotReadyError(
                f"group {joining.group!r} was just reset or deleted, or is served anew",
                "join again",
            )
        # Somebody else serves it, or was quicker. Otherwise nobody has served the group since
        # `progress` was read: its driver would still be here.
        driver = self._drivers.get(key)
        if driver is None:
            driver = self._new_driver(key, progress)
        return driver, progress.skipped

    async def _read_progress(self, reading: _Reading, joining: Joining) -> Progress:
        """As it stands when this returns, unless the group has a driver by then, which hears of
        what transactions acknowledge. Where it has none only those do that were prepared before
        its last one went, and they come to an end."""
        while True:
            reading.moved.clear()
            if joining.options.ephemeral:
                progress = await self._begin_ephemeral(reading.key, joining)
            else:
                progress = await self._create(reading.key, joining)
            if reading.key in self._drivers or progress.group_id not in reading.moved:
                return progress

    def _outdate(self, key: _Key) -> None:
        """What those who are just joining have read of the group may be old."""
        for each in self._reading:
            each.is_old = each.is_old or each.key == key

    async def _create(self, key: _Key, joining: Joining) -> Progress:
        stream_id, name = key
        while True:
            floor = await self._start(stream_id, joining.start)
            options = await self._options_for_new(stream_id, joining)
            # Members of another group that had the name may still come and acknowledge.
            last = self._ground.numbers.last if self._ground is not None else 0
            try:
                progress = await self._controller.execute(
                    CreateGroup(stream_id, name, floor, options, last)
                )
            except OffsetOutOfRangeError:
                # What was the earliest offset may have been dropped on the way.
                if await self._start(stream_id, joining.start) == floor:
                    raise
            else:
                assert isinstance(progress, Progress)
                return progress

    async def _options_for_new(self, stream_id: int, joining: Joining) -> GroupOptions:
        """What the group gets if it is made by this. One that exists keeps its own, so a member
        that names some of them, and could not make such a group, may still join."""
        try:
            return joining.options.resolve(lambda name: self._dead_letter_stream(stream_id, name))
        except RequestError:
            known = await self._controller.query(
                lambda db: groups.find(db, stream_id, joining.group)
            )
            if known is None:
                raise
            return known.options

    async def _begin_ephemeral(self, key: _Key, joining: Joining) -> Progress:
        stream_id, name = key
        options = await self._options_for_new(stream_id, joining)
        known = await self._controller.query(lambda db: groups.find(db, stream_id, name))
        if known is not None:
            return known
        if self._ephemeral >= MAX_EPHEMERAL:
            raise OverloadedError(f"this leader has {self._ephemeral} ephemeral groups")
        floor, fence = joining.resume_offset, (0, 0, 0)
        if floor is None:
            floor = await self._start(stream_id, joining.start)
            self._check_start(stream_id, name, floor)
            # One that begins anew knows nothing of members that another one of the name had.
            fence = (*self._controller.ballot, self._on.numbers.last)
        # What it had got to may have been dropped by now.
        limits = self._visible.bounds(stream_id)
        floor = min(max(floor, limits.first_offset), limits.next_offset)
        return Progress(0, stream_id, name, floor, options, fence)

    def _check_start(self, stream_id: int, name: str, floor: int) -> None:
        limits = self._visible.bounds(stream_id)
        if not limits.first_offset <= floor <= limits.next_offset:
            raise OffsetOutOfRangeError(
                f"group {name!r} cannot start at offset {floor}: the stream has "
                f"{limits.first_offset} to {limits.next_offset}",
                "start at `earliest`, `latest`, or an offset in between",
            )

    def _dead_letter_stream(self, stream_id: int, name: str) -> int:
        """Raises `RequestError` unless dead letters of a stream here can go to stream `name`."""
        origin = self._catalog.by_id(stream_id)
        item, spec = self._catalog.stream(origin.namespace, name)
        assert isinstance(spec, StreamSpec)
        if self._replica_set not in spec.partitions:
            raise RequestError(
                f"dead letter stream {name!r} has no partition on {self._replica_set}",
                f"dead letters stay on the replica set of their record; it has: "
                f"{', '.join(spec.partitions)}",
            )
        if item.id == stream_id:
            raise RequestError(
                f"stream {name!r} cannot be its own dead letter stream",
                "the group would be given its dead letters again",
            )
        if spec.has_key_index:
            raise RequestError(
                f"stream {name!r} has an index of keys, which producers fill",
                "dead letters go to a stream without `keys: indexed`",
            )
        return item.id

    async def _start(self, stream_id: int, start: str) -> int:
        kind, number = parse_start(start)
        limits = self._visible.bounds(stream_id)
        if kind == "earliest":
            return limits.first_offset
        if kind == "latest":
            return limits.next_offset
        return number if kind == "offset" else await self._visible.offset_at(stream_id, number)

    def _new_driver(self, key: _Key, progress: Progress) -> GroupDriver:
        stream = self._stream(progress.stream_id)
        out_id = progress.options.dead_letter_stream_id
        letters = self._stream(out_id) if out_id else None
        is_ephemeral = progress.group_id == 0
        driver = GroupDriver(
            progress,
            self._on,
            origin=Origin(
                progress.stream_id,
                stream.name if stream is not None else "",
                self._replica_set,
                progress.name,
                progress.group_id,
                out_id,
            ),
            dead_letter_stream=letters.name if letters is not None else "",
            on_idle=lambda: self._idle(key),
            is_ephemeral=is_ephemeral,
        )
        self._drivers[key] = driver
        self._ephemeral += is_ephemeral
        if not is_ephemeral:
            self._by_id[progress.group_id] = driver
            for first, last, holder in self._locks.held(DELIVERIES, progress.group_id):
                driver.take(holder.transaction, [(first, last)])
        return driver

    def _stream(self, stream_id: int) -> SchemaObject | None:
        try:
            return self._catalog.by_id(stream_id)
        except NotFoundError:
            return None

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, session: MemberSession) -> None:
        session.driver.leave(session)

    def _idle(self, key: _Key) -> None:
        driver = self._drivers.get(key)
        if driver is not None and driver.is_closed:
            # It gave up. What somebody who is just joining has read of the group may be older than
            # what it has logged.
            self._outdate(key)
        if driver is None or not driver.is_ephemeral or driver.is_closed:
            self._forget_if_idle(key)
            return
        driver.idle_since = trio.current_time()
        if not driver.is_fading:
            driver.is_fading = True
            self._on.nursery.start_soon(self._forget_later, key, driver)

    async def _forget_later(self, key: _Key, driver: GroupDriver) -> None:
        while True:
            until = driver.idle_since + EPHEMERAL_GRACE_S
            await trio.sleep_until(until)
            if driver.idle_since + EPHEMERAL_GRACE_S <= until:
                break
        driver.is_fading = False
        if self._drivers.get(key) is driver and driver.is_idle and not self._joining[key]:
            self._forget(key, driver)

    def _forget_if_idle(self, key: _Key) -> None:
        driver = self._drivers.get(key)
        if driver is not None and (
            driver.is_closed
            or (
                driver.is_idle
                and not driver.is_ephemeral
                and not self._joining[key]
                and not driver.knows_more
            )
        ):
            self._forget(key, driver)
        if not self._joining[key]:
            del self._joining[key]

    def _forget(self, key: _Key, driver: GroupDriver, reason: HadronError | None = None) -> None:
        driver.close(reason)
        del self._drivers[key]
        self._by_id.pop(driver.progress.group_id, None)
        self._ephemeral -= driver.is_ephemeral

    def live(self, stream_id: int, name: str) -> GroupDriver | None:
        """The driver of a group that has members, or that is ephemeral."""
        return self._drivers.get((stream_id, name))

    def ephemeral(self) -> list[GroupDriver]:
        """The ephemeral groups."""
        return [driver for driver in self._drivers.values() if driver.is_ephemeral]

    def _end_streams(self, stream_ids: Collection[int]) -> None:
        """Streams were deleted: their groups went with them."""
        for key, driver in list(self._drivers.items()):
            if key[0] in stream_ids:
                gone = NotFoundError(f"the stream of consumer group {key[1]!r} was deleted")
                self._forget(key, driver, gone)

    def stop(self, reason: HadronError) -> None:
        """End all subscriptions."""
        drivers, self._drivers = list(self._drivers.values()), {}
        self._by_id.clear()
        for driver in drivers:
            driver.close(reason)

    # --- transactions (`serving.lock_table`) ----------------------------------------------------

    def check_held(
        self,
        transaction: TransactionId,
        stream_id: int,
        name: str,
        ballot: Ballot,
        ranges: Sequence[DeliveryRange],
    ) -> int:
        """The id of a durable group whose members hold all of these deliveries' records, or the
        transaction has taken them. Raises `RequestError` when they do not (any more), and for an
        ephemeral one."""
        driver = self._drivers.get((stream_id, name))
        if driver is None:
            raise RequestError(
                f"group {name!r} has no members at {self._replica_set}: nobody holds its records",
                "join it, and go on with what is delivered then",
            )
        if driver.is_ephemeral:
            raise RequestError(
                f"group {name!r} is ephemeral: its progress is in memory, and in no transaction",
                "make a durable one",
            )
        driver.check_held(transaction, ballot, ranges)
        return driver.progress.group_id

    def _taken(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._by_id.get(lock.owner_id)
        if driver is not None:
            driver.take(transaction, lock.ranges)

    def _freed(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._by_id.get(lock.owner_id)
        if driver is not None:
            driver.untake(transaction, lock.ranges)

    def _acknowledged(self, event: RecordsAcknowledged) -> None:
        for each in self._reading:
            each.moved.add(event.group_id)
        driver = self._by_id.get(event.group_id)
        if driver is not None:
            driver.finish(event.ranges, event.floor)

    # --- changing -------------------------------------------------------------------------------

    async def reset(
        self, stream_id: int, name: str, to: str, *, force: bool = False, create: bool = False
    ) -> tuple[int, int]:
        """Move a group's progress; returns its floor before and now.

        Raises `NotFoundError` without the group, unless it is to be created,
        `OffsetOutOfRangeError`, and `RequestError` while members are connected, unless `force`:
        those are sent away, and join again.
        """
        parse_start(to)
        reason = f"group {name!r} is being reset", "members join again"

        async def change(known: Progress) -> int:
            floor = await self._start(stream_id, to)
            self._check_start(stream_id, name, floor)
            self._check_members(stream_id, name, "reset", force=force)
            if known.group_id:
                # It may be refused. What members have in doubt they forget when they are told of
                # the fence; of the other error they would know already (GROUPS G8).
                self._send_away((stream_id, name), PeerError(*reason))
                await self._controller.execute(
                    ResetGroup(known.group_id, floor, self._on.numbers.last)
                )
            else:
                self._send_away((stream_id, name), NotReadyError(*reason))
                fence = (*self._controller.ballot, self._on.numbers.last)
                self._new_driver(
                    (stream_id, name), Progress(0, stream_id, name, floor, known.options, fence)
                )
                self._idle((stream_id, name))
            return floor

        new = Joining(name, to) if create else None
        return await self._change(stream_id, name, change, new)

    async def delete(self, stream_id: int, name: str, *, force: bool = False) -> int:
        """Forget a group; returns its floor. Raises as `reset` does."""
        reason = RequestError(f"group {name!r} was deleted")

        async def change(known: Progress) -> int:
            self._check_members(stream_id, name, "deleted", force=force)
            self._send_away((stream_id, name), reason)
            if known.group_id:
                await self._controller.execute(DeleteGroup(known.group_id))
            return known.floor

        before, _ = await self._change(stream_id, name, change)
        return before

    async def _change(
        self,
        stream_id: int,
        name: str,
        change: Callable[[Progress], Awaitable[int]],
        new: Joining | None = None,
    ) -> tuple[int, int]:
        """The floor before and after; `new` is how to create a group that is not there."""
        key = stream_id, name
        if key in self._changing:
            raise NotReadyError(f"group {name!r} is being reset or deleted")
        self._changing.add(key)
        try:
            # A group that is in no table has nothing that waits for a commit.
            await self._controller.confirm_leadership()
            driver = self._drivers.get(key)
            known = (
                driver.progress
                if driver is not None and driver.is_ephemeral
                else await self._controller.query(lambda db: groups.find(db, stream_id, name))
            )
            if known is None and new is not None:
                # Of an ephemeral one that somebody just begins there would be two keepers.
                self._outdate(key)
                known = await self._create(key, new)
            if known is None:
                raise NotFoundError(
                    f"stream {self._catalog.by_id(stream_id).name!r} has no group {name!r} on "
                    f"{self._replica_set}",
                    "`hadron group list` shows all groups",
                )
            before = driver.floor if driver is not None else known.floor
            after = await change(known)
        finally:
            self._changing.discard(key)
            # Also when it was refused, or nobody waits for its answer any more.
            self._left_behind.set()
        return before, after

    def _check_members(self, stream_id: int, name: str, what: str, *, force: bool) -> None:
        driver = self._drivers.get((stream_id, name))
        count = driver.members if driver is not None else 0
        count += self._joining[stream_id, name]
        if count and not force:
            members = counted(count, "member is", "members are")
            raise RequestError(
                f"group {name!r} cannot be {what}: {members} connected to {self._replica_set}",
                "stop them first, or say `force`",
            )

    def _send_away(self, key: _Key, reason: HadronError) -> None:
        """The group is about to change: whoever is there, or just joins, joins again."""
        self._outdate(key)
        driver = self._drivers.get(key)
        if driver is not None:
            self._forget(key, driver, reason)

    async def _collect(self) -> None:
        """Drop, slice by slice, what groups leave behind, for ever."""
        while True:
            # Before it looks: what is left from here on it looks for again.
            self._left_behind = trio.Event()
            await persevere("collecting what groups left behind", self._collect_slices)
            await self._left_behind.wait()

    async def _collect_slices(self) -> None:
        # Never by a read: a reset whose caller has gone may wait for its commit still, and this
        # is judged behind it.
        while await self._controller.execute(CollectGroups()):
            pass
