"""Starting to lead: a ballot promised by a majority, and the most advanced log of that majority.

One protocol for every start (PROTOCOL B): who may count is decided here, from what peers report of
their disks. A node without a member record has no memory of what it may have promised, so it
counts for nothing until enough others, whose promises meet every majority, have been heard (B3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import apsw
import trio

from hadron.model.errors import CorruptionError, FencedError, HadronError, PeerError, TrimmedError
from hadron.model.ids import NO_BALLOT, Ballot, LogPosition
from hadron.model.ports import Clock, Random
from hadron.replication import skew
from hadron.replication.configurations import still_needed, what_is_missing
from hadron.replication.entries import configuration_from, unpack
from hadron.replication.feed import find_common
from hadron.replication.follower import BadEntriesError, FollowerLog
from hadron.replication.life import Life, Report
from hadron.replication.membership import Membership
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.replication.standing import Standing, stand
from hadron.state.execute import DivergedError
from hadron.state.leadership import Configuration
from hadron.storage.database import transaction
from hadron.storage.log import position_at
from hadron.storage.store import Store
from hadron.wire.connection import Connection
from hadron.wire.messages import (
    Method,
    ballot_from,
    ballot_to,
    method,
    position_from,
    replication_pb2,
)

_log = logging.getLogger(__name__)

_PROMISE: Final = method("Promise")
_PROBE: Final = method("Probe")
_READ_LOG: Final = method("ReadLog")
_RESYNC: Final = method("Resync")
_TIMEOUT_S: Final = 10.0
_COPY_BYTES: Final = 2 << 20
_SNAPSHOT_PAUSE_S: Final = 5.0
"""Between a ballot that was not won for want of a snapshot and the next."""


@dataclass(frozen=True, slots=True)
class Won:
    """A ballot that a majority has promised, over a log that holds everything committed."""

    ballot: Ballot
    uuid: bytes
    clock: skew.StampClock
    """What entries are stamped by: a majority's clocks agree with it."""
    older: tuple[Configuration, ...] = ()
    """Configurations, beside the own one, of which a majority must store the first entry."""
    begins_epoch: bool = False
    """Nobody has led with this configuration before."""

    @property
    def predecessor_digest(self) -> bytes:
        """Of the configuration that this one follows; empty when it does not follow another."""
        return self.older[-1].digest if self.older and self.begins_epoch else b""


class Promised(NamedTuple):
    """What a peer's disk holds, told with its promise."""

    last: LogPosition
    first_lsn: int
    """Of the rows that were not trimmed."""
    is_member: bool
    """Whether the disk remembers, as of the promise (PROTOCOL B3)."""


Promises: TypeAlias = dict[str, tuple[Connection, Promised]]
"""By the peer's name, with the connection on which it promised."""


def _remembering(promised: Promises, standing: Standing) -> set[str]:
    """Those who were known to remember, and did when they promised."""
    return {name for name in standing.voters if name in promised and promised[name][1].is_member}


class Candidate:
    """Wins ballots for the configured leader."""

    def __init__(
        self,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        links: PeerLinks,
        clock: Clock,
        random: Random,
        report: Report,
        resync: Callable[[str, int, str], None],
        on_damage: Callable[[CorruptionError], object],
    ) -> None:
        """
        Args:
            report: told what is being waited for.
            resync: told (reason, lsn, peer) when this node needs that peer's snapshot, one that
                holds every entry up to `lsn`; it is reopened on it while `win` waits.
            on_damage: told of a damaged entry in this node's log; it is repaired while `win` waits.
        """
        self._on_damage = on_damage
        self._resync = resync
        self._best = ""
        """Whose log was the most advanced one; "" for this node's own."""
        self._lacking = 0
        """The entry for want of which a snapshot is needed: one that ends before it leads back to
        where it was needed, for ever."""
        self._membership = membership
        self._store = store
        self._follower = follower
        self._links = links
        self._stamps = skew.StampClock(clock)
        self._random = random
        self._report = report

    async def win(self) -> Won:
        """Promise, gather, reconcile. Returns once this node may lead.

        Raises `FencedError` when a higher epoch exists or this node's clock is wrong,
        `DivergedError` when this node has applied entries that are not part of the chosen log and
        has no peers to get theirs from.
        """
        floor = 0
        while True:
            standing = await self._wait_for_voters()
            try:
                return await self._try(standing, floor)
            except OutbidError as outbid:
                if outbid.highest.epoch > self._membership.epoch:
                    raise FencedError(
                        f"a member has promised epoch {outbid.highest.epoch}, this "
                        f"configuration has {self._membership.epoch}",
                        "use the newest configuration file of the replica set",
                    ) from None
                floor = max(floor, outbid.highest.incarnation)
            except (TrimmedError, DivergedError) as error:
                if not self._membership.peers:
                    raise
                self._resync(error.message, self._lacking, self._best)
                self._report(Life.NEEDS_SNAPSHOT, error.message)
                # It ends with the reopening; another ballot only if a peer's log has changed.
                await trio.sleep(_SNAPSHOT_PAUSE_S)
            except CorruptionError as error:
                if not error.lsn:
                    raise
                self._on_damage(error)
                self._report(Life.RECONCILING, f"waiting for a repair: {error.message}")
                await trio.sleep(self._random.uniform(0.2, 0.5))
            except PeerError as error:
                bad = isinstance(error, BadEntriesError)
                _log.log(
                    logging.WARNING if bad else logging.INFO, "a ballot was not won: %s", error
                )
                self._report(Life.RECONCILING, f"a ballot was not won: {error}")
                await trio.sleep(self._random.uniform(0.05, 0.2))

    def _known_configurations(self) -> list[Configuration]:
        """What the logs of the members that can be asked say is needed, before they are compared.

        Raises `FencedError` when a log holds a newer configuration than this node's file.
        """
        answers = [
            link.answer
            for link in self._links.connected()
            if link.answer is not None and link.answer.is_member
        ]
        known = [
            configuration
            for answer in answers
            for configuration in map(configuration_from, answer.configurations)
        ]
        if self._store.identity.current.is_member:
            known += self._follower.configurations
        committed = max([self._follower.committed_lsn, *(each.committed_lsn for each in answers)])
        needed = still_needed(known, committed)
        self._check_epochs(needed)
        return needed

    def _check_epochs(self, needed: Sequence[Configuration]) -> None:
        own = self._membership
        for known in needed:
            if known.epoch > own.epoch:
                raise FencedError(
                    f"this configuration has epoch {own.epoch}, the replica set's log holds epoch "
                    f"{known.epoch}",
                    "use the newest configuration file of the replica set",
                )
            if known.epoch == own.epoch and known.digest != own.digest:
                raise FencedError(
                    f"the replica set's log holds another configuration of epoch {own.epoch}: "
                    f"{known}",
                    "raise `epoch` whenever node names or roles change",
                )

    async def _wait_for_voters(self) -> Standing:
        while True:
            identity = self._store.identity.current
            changed = self._links.changed
            standing = stand(
                self._membership,
                own_is_member=identity.is_member,
                own_log_is_empty=(
                    self._follower.head.lsn == 0 and not self._store.identity.has_forgotten
                ),
                reports={
                    link.name: (link.answer.is_member, _is_new(link.answer))
                    for link in self._links.connected()
                    if link.answer is not None
                },
                configurations=self._known_configurations(),
            )
            if not standing.missing:
                if await self._stamps.compare(self._links):
                    return standing
                self._report(Life.WAITING_FOR_MAJORITY, "waiting for the clocks of a majority")
                await trio.sleep(self._random.uniform(0.2, 0.5))
                continue
            self._report(
                Life.WAITING_FOR_MAJORITY,
                f"waiting for {standing.missing}",
                standing.memories_missing,
            )
            await changed.wait()

    async def _try(self, standing: Standing, floor: int) -> Won:
        asked = (*standing.voters, *standing.learners)
        links = [
            link
            for link in self._links.connected()
            if link.name in asked and link.answer is not None
        ]
        if len(links) != len(asked):
            raise PeerError("a member went away")
        identity = self._store.identity.current
        reported = [ballot_from(link.answer.promised).incarnation for link in links if link.answer]
        incarnation = 1 + max([floor, identity.promised.incarnation, *reported])
        ballot = Ballot(self._membership.epoch, incarnation)
        uuid = self._choose_uuid(standing, links)
        self._report(Life.RECONCILING, f"gathering promises for ballot {ballot}")
        await self._on_writer(
            lambda _: self._follower.promise(
                ballot, self._membership.digest, uuid, found=standing.founding
            )
        )
        promised = await self._gather(links, ballot, uuid, standing)
        voters = _remembering(promised, standing)
        await self._reconcile(
            {name: known for name, known in promised.items() if name in voters},
            ballot,
            counts_self=identity.is_member,
        )
        needed = await self._check_log(promised, voters, counts_self=identity.is_member)
        apply_and_join = self._apply_and_join(ballot, uuid, identity.is_member)
        while not (outcome := await self._on_writer(apply_and_join)):
            pass
        if isinstance(outcome, HadronError):
            raise outcome
        if (outbid := self._outbid(ballot)) is not None:
            raise outbid
        older = tuple(known for known in needed if known.epoch != ballot.epoch)
        return Won(ballot, uuid, self._stamps, older, begins_epoch=len(older) == len(needed))

    async def _check_log(
        self, promised: Promises, voters: set[str], *, counts_self: bool
    ) -> list[Configuration]:
        """The log is the chosen one now: look who its configurations ask for (PROTOCOL B5).

        Raises `FencedError` or `PeerError` when this ballot is not enough.
        """
        committed = max(
            [
                self._follower.committed_lsn,
                *(
                    link.answer.committed_lsn
                    for link in self._links.connected()
                    if link.answer is not None and link.name in promised
                ),
            ]
        )
        needed = still_needed(
            await self._on_writer(self._follower.configurations_in_log), committed
        )
        self._check_epochs(needed)
        for name, (connection, _) in promised.items():
            # One that came back may have lost what it promised with (PROTOCOL B3).
            if self._links.links[name].connection is not connection:
                raise PeerError(f"{name} went away")
        own = {self._membership.node}
        missing = what_is_missing(
            needed, {*promised, *own}, voters | own if counts_self else voters
        )
        if missing:
            raise PeerError(f"the log asks for {missing}")
        return needed

    def _choose_uuid(self, standing: Standing, links: list[PeerLink]) -> bytes:
        own = self._store.identity.current
        if own.uuid:
            return own.uuid
        known = [
            link.answer.identity.replica_set_uuid
            for link in links
            if link.answer is not None and link.answer.identity.replica_set_uuid
        ]
        if known:
            # Of a founding that was cut short too: another uuid would shut out whoever has it.
            return known[0]
        if standing.founding:
            return self._random.token_bytes(16)
        raise PeerError("no member knows the replica set's uuid")

    async def _gather(
        self, links: list[PeerLink], ballot: Ballot, uuid: bytes, standing: Standing
    ) -> Promises:
        promised: Promises = {}

        async def ask(link: PeerLink) -> None:
            connection = link.connection
            if connection is None:
                return
            try:
                answer = await ask_promise(
                    connection, self._membership, ballot, uuid, found=standing.founding
                )
            except PeerError as error:
                _log.info("%s did not promise ballot %s: %s", link.name, ballot, error)
                return
            promised[link.name] = (connection, answer)
            if link.connection is connection and link.answer is not None:
                # It may have learnt since its handshake that its disk is an old copy.
                link.answer.is_member = answer.is_member

        outbids: list[OutbidError] = []
        async with trio.open_nursery() as nursery:
            for link in links:
                nursery.start_soon(_collect_outbid, ask, link, outbids)
        if outbids:
            raise outbids[0]
        self._check_promises(promised, ballot, standing)
        return promised

    def _check_promises(self, promised: Promises, ballot: Ballot, standing: Standing) -> None:
        """A majority has promised, and enough of them remember. Raises `PeerError`."""
        have, needed = 1 + len(promised), self._membership.majority
        if standing.founding:
            needed = len(self._membership.members)
        if have < needed:
            raise PeerError(f"{have} of {needed} members promised ballot {ballot}")
        own = {self._membership.node}
        remembering = _remembering(promised, standing)
        if self._store.identity.current.is_member:
            remembering |= own
        configurations = self._known_configurations()
        if configurations:
            # Those say how many must remember; after the logs were compared, they say it for good.
            # Before: the logs of fewer say nothing of what is committed, and this one is kept.
            missing = what_is_missing(configurations, {*promised, *own}, remembering)
            if missing:
                raise PeerError(f"ballot {ballot} was not promised by {missing}")
            return
        have, needed = len(remembering), self._membership.amnesia_quorum
        if have < needed:
            raise PeerError(
                f"{have} of {needed} members that remember the log promised ballot {ballot}"
            )

    async def _reconcile(self, promised: Promises, ballot: Ballot, *, counts_self: bool) -> None:
        """Make this log hold what the most advanced log of the majority holds (PROTOCOL B2)."""
        own = self._follower.head
        self._lacking = 0
        best_name, best = "", own if counts_self else None
        for name, (_, known) in promised.items():
            last = known.last
            if best is None or (last.ballot, last.lsn) > (best.ballot, best.lsn):
                best_name, best = name, last
        self._best = best_name
        if best is None or best == own:
            return
        assert best_name
        connection, chosen = promised[best_name]
        self._lacking = chosen.first_lsn - 1
        self._report(Life.RECONCILING, f"copying entries up to {best.lsn} from {best_name}")
        common = await find_common(
            self._own_position,
            lambda lsn: ask_position(connection, ballot, lsn),
            max(self._follower.anchor.lsn, chosen.first_lsn - 1),
            min(own.lsn, best.lsn),
        )
        _log.info("copying entries %d to %d from %s", common.lsn + 1, best.lsn, best_name)
        await self._on_writer(lambda db: self._replace_after(db, common.lsn))
        copied = common.lsn
        while copied < best.lsn:
            self._lacking = copied + 1
            copied = await self._copy(connection, ballot, copied + 1)
        self._lacking = 0

    async def _copy(self, connection: Connection, ballot: Ballot, from_lsn: int) -> int:
        answer, attachment = await _ask(
            connection,
            _READ_LOG,
            replication_pb2.ReadLogRequest(
                ballot=ballot_to(ballot), from_lsn=from_lsn, max_bytes=_COPY_BYTES
            ),
        )
        entries = unpack(answer.entries, attachment)
        if not entries:
            raise PeerError(f"{connection.peer} has no entry {from_lsn} any more")

        def write(db: apsw.Connection) -> None:
            try:
                with transaction(db):
                    self._follower.append_copies(entries)
            except BaseException:
                self._store.log.reload()
                raise

        await self._on_writer(write)
        return entries[-1].lsn

    def _replace_after(self, db: apsw.Connection, lsn: int) -> None:
        try:
            self._follower.replace_after(db, lsn)
        except BaseException:
            self._store.log.reload()
            raise

    def _apply_and_join(
        self, ballot: Ballot, uuid: bytes, was_member: bool
    ) -> Callable[[apsw.Connection], bool | HadronError]:
        """A job that applies a slice of the log; it returns whether all is applied and this disk
        counts, or what ends the ballot."""

        def job(db: apsw.Connection) -> bool | HadronError:
            if was_member and not self._store.identity.current.is_member:
                # It was counted, and its log compared, as one that remembers (PROTOCOL B3).
                return PeerError("this disk was found to be an old copy meanwhile")
            if (outbid := self._outbid(ballot)) is not None:
                # What was not applied yet, that leader may drop.
                return outbid
            try:
                if not self._follower.apply_ahead(db):
                    return False
            except DivergedError as error:
                # A snapshot helps. Raised here, it would end the process as a failed disk does:
                # before the snapshot has come, at every start.
                return error
            self._store.identity.become_member(uuid)
            return True

        return job

    def _outbid(self, ballot: Ballot) -> PeerError | None:
        """While logs were compared, say: its disk counts for that leader now (PROTOCOL B1)."""
        promised = self._store.identity.current.promised
        if promised == ballot:
            return None
        return PeerError(f"this node has promised ballot {promised} meanwhile")

    async def _own_position(self, lsn: int) -> LogPosition | None:
        return await self._store.readers.run(lambda db: position_at(db, lsn))

    async def _on_writer(self, job: Callable[[apsw.Connection], Any]) -> Any:
        return await run_on_writer(self._store, job)


def _is_new(answer: Any) -> bool:
    """Whether a peer's log is empty and always was. One that has lost its log, but knows that it
    was a member, is no reason to found the replica set anew."""
    has_forgotten = answer.identity.replica_set_uuid and not answer.is_member
    return bool(answer.last.lsn == 0 and not has_forgotten)


async def run_on_writer(store: Store, job: Callable[[apsw.Connection], Any]) -> Any:
    """Run a job on the writer's thread and wait for it."""
    finished = trio.Event()
    outcome: list[tuple[Any, BaseException | None]] = []

    def done(result: Any, error: BaseException | None) -> None:
        outcome.append((result, error))
        finished.set()

    store.writer.submit(job, done)
    with trio.CancelScope(shield=True):
        await finished.wait()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


class OutbidError(HadronError):
    """A peer has promised a higher ballot, `highest`."""

    highest = NO_BALLOT


def _outbid(name: str, highest: Ballot, reason: str) -> OutbidError:
    error = OutbidError(f"{name} has promised ballot {highest}: {reason}")
    error.highest = highest
    return error


async def _collect_outbid(ask: Any, link: PeerLink, outbids: list[OutbidError]) -> None:
    try:
        await ask(link)
    except OutbidError as error:
        outbids.append(error)


async def ask_promise(
    connection: Connection,
    membership: Membership,
    ballot: Ballot,
    uuid: bytes,
    *,
    found: bool = False,
) -> Promised:
    """Ask a peer for its promise; returns where its log begins and ends.

    Raises `OutbidError` when it has promised a higher ballot, `PeerError` when it refuses or
    cannot be asked.
    """
    answer, _ = await _ask(
        connection,
        _PROMISE,
        replication_pb2.PromiseRequest(
            ballot=ballot_to(ballot),
            config_digest=membership.digest,
            leader=membership.node,
            replica_set_uuid=uuid,
            found=found,
        ),
    )
    if not answer.promised:
        highest = ballot_from(answer.highest)
        if highest > ballot:
            raise _outbid(connection.peer, highest, answer.reason)
        raise PeerError(f"{connection.peer} refused ballot {ballot}: {answer.reason}")
    return Promised(position_from(answer.last), max(1, answer.first_lsn), answer.is_member)


async def ask_position(connection: Connection, ballot: Ballot, lsn: int) -> LogPosition | None:
    """The position at `lsn` in a peer's log, None when it has no entry there."""
    answer, _ = await _ask(
        connection, _PROBE, replication_pb2.ProbeRequest(ballot=ballot_to(ballot), lsn=lsn)
    )
    return position_from(answer.position) if answer.HasField("position") else None


async def ask_resync(connection: Connection, ballot: Ballot, reason: str, min_lsn: int) -> None:
    """Tell a peer to fetch a snapshot that holds every entry up to `min_lsn`: the log cannot bring
    it up to date. It fetches in its own time. Raises `PeerError`."""
    await _ask(
        connection,
        _RESYNC,
        replication_pb2.ResyncRequest(ballot=ballot_to(ballot), reason=reason, min_lsn=min_lsn),
    )


async def _ask(connection: Connection, what: Method, message: Any) -> tuple[Any, memoryview]:
    """One question to a peer. Raises `TrimmedError` when it says so, else `PeerError` whatever it
    answers: a `CorruptionError` that came over the wire is about its disk, not this node's."""
    try:
        return await connection.request(what, message, timeout_s=_TIMEOUT_S)
    except (PeerError, TrimmedError):
        raise
    except HadronError as error:
        raise PeerError(f"{connection.peer}: {error.message}", error.hint) from error
