"""Gives a node's disk back what it has lost: damaged entries, from a peer whose copy fits.

Whoever reads something damaged, on whatever path, is refused it and tells this. An entry is fetched
from the leader first, then from the others, and written where the hash chain says that it belongs
(`storage.repair`). Where that cannot be done, because SQLite cannot read the pages any more, or
because the log of everybody who answers begins later, a snapshot replaces the whole file. Where
nobody is left to ask, the node goes on with what it has, refuses what is damaged, and says so.

An entry that only a leader had, because no member had stored it yet, is given back by nobody, and
nothing can be logged after it: its disk counts as lost then, and the members rebuild it.
*(n1 leads, its last entries are on no other disk, and one of them is damaged. n2 and n3 cannot be
sent what follows; a snapshot that holds the entry never comes.)*
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import apsw
import trio

from hadron.model.backoff import Backoff
from hadron.model.batch import check_body, read_head
from hadron.model.errors import CorruptionError, HadronError, NotFoundError, PeerError, TrimmedError
from hadron.model.ids import NO_BALLOT, LogPosition
from hadron.model.limits import MAX_ATTACHMENT_BYTES
from hadron.model.ports import Random
from hadron.replication.ballot import run_on_writer
from hadron.replication.entries import pack, unpack
from hadron.replication.membership import Membership
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.state.streams import partitions as streams
from hadron.storage.bodies import damaged_entry
from hadron.storage.database import READ_ERRORS, in_words, is_about_file, is_damage, transaction
from hadron.storage.log import Entry, read_after
from hadron.storage.pages import Mending
from hadron.storage.repair import (
    NotFittingError,
    is_logged,
    put_back,
    put_back_body,
    read_body,
    wrong_with,
)
from hadron.storage.store import Store
from hadron.wire.calls import Call
from hadron.wire.connection import Connection
from hadron.wire.messages import check_number, integrity_pb2, method, position_from, position_to
from hadron.wire.services import Served, served

_log = logging.getLogger(__name__)

_READ_COPY: Final = method("ReadCopy")
_TIMEOUT_S: Final = 10.0

_PATIENCE_S: Final = 3.0
"""How long a read waits for a repair. Fetching an entry takes milliseconds where a peer has it."""

_MIN_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0

_MAX_KNOWN: Final = 1_000
"""Damaged entries kept in mind; what more there is will be met again."""


_MAX_BESIDE: Final = 256
"""Entries on the same page as a damaged one that are asked for, to put that page together."""

_MAX_COPIES_BYTES: Final = 64 << 20
"""Of bodies that readers are given from memory while a snapshot is on its way."""

_ALONE_S: Final = 3.0
"""How long members' logs must have stood still before an entry for it to be on no way to them: a
leader sends from memory what it has just written."""


_Copy = tuple[LogPosition | None, Entry]
"""A peer's copy of an entry, and what it continues there; None once that was trimmed."""

_NEVER: Final = (NotFoundError, TrimmedError, CorruptionError)
"""What a peer says that has no copy, or none that fits; anything else may pass."""


class _AheadError(NotFoundError, travels=False):
    """The log of the peer ends before the entry."""

    def __init__(self, end: int) -> None:
        super().__init__(f"its log ends at entry {end}")
        self.end = end


class _UnreadableError(CorruptionError):
    """SQLite cannot read the pages: nothing can be put back into this file."""


class Repairer:
    """Repairs one store. `run` must be running. Everything is called on the event loop."""

    def __init__(
        self,
        membership: Membership,
        store: Store,
        links: PeerLinks,
        random: Random,
        *,
        committed_lsn: Callable[[], int],
        resync: Callable[[str, int], None],
        on_lost: Callable[[CorruptionError], None],
    ) -> None:
        """
        Args:
            resync: told (reason, lsn) when only a snapshot that holds `lsn` can help.
            on_lost: told when nothing can: no other log ever held the entry.
        """
        self._membership = membership
        self._store = store
        self._links = links
        self._random = random
        self._committed_lsn = committed_lsn
        self._resync = resync
        self._on_lost = on_lost
        self._damaged: dict[int, str] = {}
        self._changed = trio.Event()
        self._wanted = trio.Event()
        self._hopeless: dict[int, str] = {}
        self._alone: dict[int, tuple[dict[str, int], float]] = {}
        """Where the logs end of members who lack an entry, and since when."""
        self.repaired = 0
        """How many entries were given back since the start."""
        self.wants_snapshot = False
        """Whether one is to replace this node's file, which ends this repairer."""

    @property
    def trouble(self) -> str:
        """For people; "" while nothing is known to be damaged."""
        for lsn, reason in self._hopeless.items():
            return reason if lsn not in self._damaged else f"{self._damaged[lsn]}; {reason}"
        for reason in self._damaged.values():
            return f"repairing: {reason}"
        return ""

    @property
    def is_repairing(self) -> bool:
        """Whether an entry is damaged that some other member may give back."""
        return bool(self._damaged) and bool(self._membership.peers)

    def found(self, error: CorruptionError) -> bool:
        """Something here is damaged; whether it is an entry, which may be repaired in a moment."""
        if not error.lsn:
            self.found_tables(error.message, is_about_file(error))
            return False
        if error.lsn not in self._damaged and len(self._damaged) < _MAX_KNOWN:
            _log.error("found damage: %s", error.message)
            self._damaged[error.lsn] = error.message
            self._wanted.set()
        return error.lsn in self._damaged

    def found_tables(self, text: str, is_unreadable: bool) -> None:
        """Something is wrong that is not in an entry."""
        if self._membership.is_leader and not is_unreadable:
            self._say_hopeless(
                0,
                f"{text}; a leader does not doubt its own tables: compare the members with "
                "`hadron verify`, and promote one that is sound",
            )
        else:
            self._cannot(0, text)

    async def heal(self, error: CorruptionError) -> bool:
        """`found`, and wait a little; whether the entry is whole now. Where a snapshot will make
        it whole, who asks again later is served: the error says so."""
        if self.found(error):
            with trio.move_on_after(_PATIENCE_S):
                while error.lsn in self._damaged and error.lsn not in self._hopeless:
                    await self._changed.wait()
            if error.lsn not in self._damaged:
                return True
        error.retryable = error.retryable or self.wants_snapshot
        return False

    def _settle(self, lsn: int) -> None:
        self._damaged.pop(lsn, None)
        self._store.readers.copies.pop(lsn, None)
        self._hopeless.pop(lsn, None)
        self._alone.pop(lsn, None)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Repair what is found, for ever."""
        backoff = Backoff(self._random, _MIN_PAUSE_S, _MAX_PAUSE_S)
        while True:
            if not self._damaged:
                await self._wanted.wait()
                backoff.reset()
            self._wanted = trio.Event()
            links_changed = self._links.changed
            for lsn in sorted(self._damaged):
                try:
                    await self._repair(lsn)
                except HadronError as error:
                    # The writer has met it as well, and decides.
                    _log.info("entry %d is not repaired: %s", lsn, error)
            if self._damaged:
                with trio.move_on_after(backoff.next_s()):
                    await _first_of(links_changed, self._wanted)

    async def _repair(self, lsn: int) -> None:
        if lsn > self._store.log.head.lsn:
            # A tail that was dropped; tables that have diverged may still name it.
            self._settle(lsn)
            return
        logged = is_logged(self._store.log, lsn)
        wrong = await self._look(lsn, logged)
        if not wrong:
            # Dropped, trimmed, or repaired meanwhile.
            self._settle(lsn)
            return
        why: list[str] = []
        refusals = 0
        ends: dict[str, int] = {}
        for link in self._sources():
            if self._has_moved(lsn, logged):
                break
            try:
                await self._give_back(link, lsn, logged)
            except _UnreadableError as error:
                self._cannot(lsn, f"{wrong}, and cannot be written anew: {error.message}")
                return
            except HadronError as error:
                why.append(f"{link.name}: {error.message}")
                refusals += isinstance(error, _NEVER)
                if isinstance(error, _AheadError):
                    ends[link.name] = error.end
            else:
                if self._has_moved(lsn, logged):
                    break
                self.repaired += 1
                _log.warning("repaired entry %d from %s: %s", lsn, link.name, wrong)
                self._settle(lsn)
                return
        if self._has_moved(lsn, logged):
            # What is wrong now, if anything, is another question.
            self._wanted.set()
        elif self._is_only_here(lsn, ends) and len(ends) == len(why):
            self._wait_alone(lsn, wrong, ends)
        elif why and refusals == len(self._membership.peers):
            # Their logs begin later, or say otherwise: a snapshot helps, or shows who is wrong.
            self._cannot(lsn, f"{wrong}; nobody can give it back: {'; '.join(why)}")
        else:
            self._nobody(lsn, why)

    def _is_only_here(self, lsn: int, ends: dict[str, int]) -> bool:
        """Whether this node leads, and no majority has the entry: those whose logs end before it
        are so many that they meet every one, and remember what they held (PROTOCOL B3)."""
        own = self._membership
        remembering = [
            link.name
            for link in self._links.connected()
            if link.name in ends and link.answer is not None and link.answer.is_member
        ]
        return (
            own.is_leader
            and self._store.identity.current.promised.epoch == own.epoch
            and lsn > self._committed_lsn()
            and len(remembering) >= own.amnesia_quorum
        )

    def _wait_alone(self, lsn: int, wrong: str, ends: dict[str, int]) -> None:
        """Give the node's file up when the others' logs have long stood still."""
        known, since_s = self._alone.get(lsn, ({}, 0.0))
        if known != ends:
            self._alone[lsn] = ends, trio.current_time()
        elif trio.current_time() - since_s >= _ALONE_S:
            self._on_lost(
                CorruptionError(
                    f"{wrong}, and no other member ever had it: "
                    + ", ".join(f"{name} ends at {end}" for name, end in ends.items())
                )
            )
            return
        self._say_hopeless(lsn, "no other member's log goes so far")

    def _has_moved(self, lsn: int, logged: bool) -> bool:
        """Whether the entry was trimmed, or dropped, while others were asked for it."""
        log = self._store.log
        return is_logged(log, lsn) != logged or lsn > log.head.lsn

    async def _look(self, lsn: int, logged: bool) -> str:
        """What is wrong with an entry by what the file holds, not by what anybody remembers of it;
        "" when nothing is."""
        try:
            return await self._store.readers.run_cold(partial(_wrong_with, lsn, logged))
        except CorruptionError as error:
            return error.message

    def _sources(self) -> list[PeerLink]:
        """Who is connected, the leader first."""
        leader = self._membership.leader
        return sorted(self._links.connected(), key=lambda link: link.name != leader)

    def _nobody(self, lsn: int, why: list[str]) -> None:
        if why:
            self._say_hopeless(lsn, f"not repaired yet: {'; '.join(why)}")
        elif self._membership.peers:
            self._say_hopeless(
                lsn, "no other member is connected; it is repaired as soon as one is"
            )
        else:
            self._say_hopeless(
                lsn,
                "there is no other member to repair it from; what is damaged is not served. "
                "Put a backup in place (`hadron restore`)",
            )

    def _say_hopeless(self, lsn: int, reason: str) -> None:
        if self._hopeless.get(lsn) != reason:
            _log.error("%s", f"entry {lsn} is not repaired: {reason}" if lsn else reason)
            self._hopeless[lsn] = reason
        self._announce()

    def _cannot(self, lsn: int, reason: str) -> None:
        """Only a snapshot can help, if anybody has one."""
        if not self._membership.peers:
            self._say_hopeless(
                lsn,
                f"{reason}; there is no other member to take a snapshot from: put a backup in "
                "place (`hadron restore`)",
            )
            return
        self.wants_snapshot = True
        self._resync(reason, lsn)
        self._say_hopeless(lsn, "a snapshot of another member is to replace this node's file")

    # --- fetching -------------------------------------------------------------------------------

    async def _give_back(self, link: PeerLink, lsn: int, logged: bool) -> None:
        """Repair an entry by a peer's copy; on return the file has it, and has been read to say so.

        Raises `_UnreadableError` when it cannot be brought there, `NotFittingError` for a copy that
        is not of what was lost, and what the peer says.
        """
        entries = await (self._fetch_entries(link, lsn) if logged else self._fetch_body(link, lsn))
        copies = {entry.lsn: entry for _, entry in entries}
        mending = await self._mend(list(copies), copies)
        if mending.wanted:
            for number in sorted(mending.wanted)[:_MAX_BESIDE]:
                with contextlib.suppress(HadronError):
                    copies[number] = (await _ask(link.connection, number))[1]
            mending = await self._mend([entry.lsn for _, entry in entries], copies)
        wrong = await self._look(lsn, logged)
        if wrong and mending.is_sound and not self._has_moved(lsn, logged):
            # The pages are what was written: then it was written wrongly, once.
            await self._write(entries, logged)
            wrong = await self._look(lsn, logged)
        if wrong and not self._has_moved(lsn, logged):
            if logged and len(entries) == 1 and lsn - 1 > self._store.log.anchor.lsn:
                raise NotFoundError(f"its log begins after entry {lsn - 1}, which may be the one")
            await self._keep_copy(copies[lsn])
            raise _UnreadableError(wrong)

    async def _mend(self, lsns: list[int], copies: dict[int, Entry]) -> Mending:
        found: Mending = await run_on_writer(self._store, partial(self._store.mend, lsns, copies))
        if found.mended:
            _log.info("pages %s were given back what was written there", sorted(found.mended))
        return found

    async def _fetch_entries(self, link: PeerLink, lsn: int) -> list[_Copy]:
        """The entry, and the one before it unless a log begins between them: which of two
        neighbours is the damaged one cannot be told from a chain that does not continue."""
        entries: list[_Copy] = []
        if lsn - 1 > self._store.log.anchor.lsn:
            with contextlib.suppress(NotFoundError):
                before = await _ask(link.connection, lsn - 1)
                entries += [before] if before[0] is not None else []
        copy = await _ask(link.connection, lsn)
        if copy[0] is None:
            raise NotFoundError(f"its log begins after entry {lsn}")
        return [*entries, copy]

    async def _fetch_body(self, link: PeerLink, lsn: int) -> list[_Copy]:
        previous, entry = await _ask(link.connection, lsn)
        await self._store.readers.run_once(partial(_check_body, entry))
        return [(previous, entry)]

    async def _write(self, entries: Sequence[_Copy], logged: bool) -> None:
        log = self._store.log

        def write(db: apsw.Connection) -> None:
            before, last = entries[0][0], entries[-1][1]
            if logged:
                assert before is not None
                put_back(db, log, before, [entry for _, entry in entries])
            elif last.lsn <= log.anchor.lsn and _check_body(last, db):
                put_back_body(db, last.lsn, last.body)
            # Else it was dropped meanwhile, with the tail that it was in: another entry may take
            # its place.

        def job(db: apsw.Connection) -> None:
            try:
                with transaction(db):
                    write(db)
            except READ_ERRORS as error:
                if not is_damage(error):
                    raise
                raise _UnreadableError(in_words(error)) from None
            except NotFittingError:
                raise
            except CorruptionError as error:
                raise _UnreadableError(error.message) from None

        await run_on_writer(self._store, job)

    async def _keep_copy(self, entry: Entry) -> None:
        """Let readers have the peer's copy while this node's own place for it is lost."""
        copies = self._store.readers.copies
        if sum(map(len, copies.values())) + len(entry.body) > _MAX_COPIES_BYTES:
            return
        with contextlib.suppress(CorruptionError):
            if await self._store.readers.run_once(partial(_check_body, entry)):
                copies[entry.lsn] = bytes(entry.body)

    # --- serving --------------------------------------------------------------------------------

    def methods(self) -> tuple[Served, ...]:
        """Of `hadron.v1.Integrity`, for peers."""
        pb = integrity_pb2
        return (served("ReadCopy", pb.ReadCopyRequest, pb.ReadCopyResponse, self._read_copy),)

    def _read_copy(
        self,
        call: Call[integrity_pb2.ReadCopyRequest, integrity_pb2.ReadCopyResponse],
        request: integrity_pb2.ReadCopyRequest,
        _attachment: memoryview,
    ) -> None:
        lsn = check_number("lsn", request.lsn)

        async def answer() -> None:
            end = self._store.log.head.lsn
            if lsn > end:
                call.send(integrity_pb2.ReadCopyResponse(last_lsn=end), end=True)
                return
            try:
                # Without healing: two members whose copies are damaged would wait for each other.
                previous, entry = await self._store.readers.run_once(partial(_copy, lsn))
            except CorruptionError as error:
                self.found(error)
                raise
            headers, bodies = pack([entry])
            call.send(
                integrity_pb2.ReadCopyResponse(
                    previous=None if previous is None else position_to(previous), entry=headers[0]
                ),
                bodies,
                end=True,
            )

        call.spawn_within(MAX_ATTACHMENT_BYTES, answer)


def _wrong_with(lsn: int, logged: bool, db: apsw.Connection) -> str:
    if logged:
        return wrong_with(db, lsn)
    if streams.body_of(db, lsn) is None:
        return ""
    body = read_body(db, lsn)
    if body is None:
        return f"the body of entry {lsn} is missing"
    try:
        check_body(body)
    except CorruptionError as error:
        return f"the body of entry {lsn} is damaged: {error.message}"
    return ""


def _check_body(entry: Entry, db: apsw.Connection) -> bool:
    """Whether somebody here needs the body of a peer's entry; what is known of it, and of the
    batches in it, tells whether it is the same. Raises `NotFittingError` when it is not.

    An entry of one ballot and number is the same everywhere; where the peer has trimmed it, it was
    committed there, as it was here.
    """
    named = streams.body_of(db, entry.lsn)
    if named is None:
        return False
    known = named.known
    is_same = entry.ballot == NO_BALLOT or (
        entry.ballot == known.ballot and entry.now_ms == known.append_ms
    )
    if not is_same or len(entry.body) != known.size:
        raise NotFittingError(
            f"the copy of entry {entry.lsn}'s body is of ballot {entry.ballot} with "
            f"{len(entry.body)} bytes, it was of {known.ballot} with {known.size}"
        )
    check_body(entry.body)
    for batch in named.batches:
        count = read_head(batch.bytes_in(entry.body)).n
        if count != batch.count:
            raise NotFittingError(
                f"the copy of entry {entry.lsn}'s body has {count} records where it had "
                f"{batch.count}"
            )
    return True


def _copy(lsn: int, db: apsw.Connection) -> tuple[LogPosition | None, Entry]:
    """This node's own copy of an entry, verified; only its body once its log row was trimmed.

    Raises `NotFoundError` when there is none, `CorruptionError` when it is damaged.
    """
    try:
        previous, entries = read_after(db, lsn, max_bytes=1)
    except TrimmedError:
        body = read_body(db, lsn)
        if body is None:
            raise NotFoundError(f"entry {lsn} was trimmed, and its body dropped") from None
        try:
            check_body(body)
        except CorruptionError as error:
            raise damaged_entry(lsn, error.message) from None
        return None, Entry(lsn, NO_BALLOT, 0, b"", body, b"")
    if not entries:
        raise NotFoundError(f"the log here ends before entry {lsn}")
    return previous, entries[0]


async def _ask(connection: Connection | None, lsn: int) -> tuple[LogPosition | None, Entry]:
    if connection is None:
        raise PeerError("it went away")
    answer, attachment = await connection.request(
        _READ_COPY, integrity_pb2.ReadCopyRequest(lsn=lsn), timeout_s=_TIMEOUT_S
    )
    if not answer.HasField("entry"):
        raise _AheadError(answer.last_lsn)
    (entry,) = unpack([answer.entry], attachment)
    if entry.lsn != lsn:
        raise PeerError(f"it sent entry {entry.lsn} for {lsn}")
    return position_from(answer.previous) if answer.HasField("previous") else None, entry


async def _first_of(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)
