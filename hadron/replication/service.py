"""Serves `hadron.v1.Replication`: what peers ask of this node, whatever its role."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import apsw

from hadron.model.errors import CorruptionError, FencedError, HandshakeError, NotReadyError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_PEER_UNSENT_BYTES
from hadron.model.ports import Clock
from hadron.model.principals import ANONYMOUS
from hadron.replication.appends import Append, AppendCall, JoinedAppends
from hadron.replication.entries import configuration_to, pack, unpack
from hadron.replication.follower import AppendOutcome, BadEntriesError, FollowerLog
from hadron.replication.membership import Membership, check_peer, identity_message
from hadron.replication.starts import CallingMember, PeerStarts
from hadron.storage.log import position_at, read_after
from hadron.storage.store import Store
from hadron.wire.budget import Budget
from hadron.wire.calls import AnyCall, Call, Origin
from hadron.wire.messages import (
    ballot_from,
    ballot_to,
    check_number,
    position_from,
    position_to,
    replication_pb2,
)
from hadron.wire.services import Served, served

_log = logging.getLogger(__name__)
_OUTCOMES: Final = {
    "": replication_pb2.AppendResponse.PERSISTED,
    "mismatch": replication_pb2.AppendResponse.MISMATCH,
    "fenced": replication_pb2.AppendResponse.FENCED,
}
"""By the reason of an `AppendOutcome`."""
_MAX_READ_BYTES = 4 << 20
_MAX_SAID = 500
"""Of a refused handshake that is logged and remembered: it repeats what a stranger has said."""


_Handshake: TypeAlias = Call[replication_pb2.HandshakeRequest, replication_pb2.HandshakeResponse]
_Promise: TypeAlias = Call[replication_pb2.PromiseRequest, replication_pb2.PromiseResponse]
_Probe: TypeAlias = Call[replication_pb2.ProbeRequest, replication_pb2.ProbeResponse]
_ReadLog: TypeAlias = Call[replication_pb2.ReadLogRequest, replication_pb2.ReadLogResponse]
_Resync: TypeAlias = Call[replication_pb2.ResyncRequest, replication_pb2.ResyncResponse]


class ReplicationService:
    """Answers peers.

    Args:
        on_promise: told of every ballot this node has promised to somebody else, so that a leader
            of a lower one stops.
        on_append: told after every group of appends of a leader, and where it came from: this node
            follows.
        on_trim: told up to where the leader lets the log go.
        on_resync: told (reason, lsn, leader) when this node is to fetch a snapshot that holds every
            entry up to that lsn.
        on_damage: told of a damaged entry of this node's own log.
        on_fatal: told when this node must stop.
    """

    def __init__(
        self,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        clock: Clock,
        starts: PeerStarts,
        *,
        on_promise: Callable[[Ballot, str, Origin], None],
        on_append: Callable[[Ballot, AppendOutcome, Origin], None],
        on_trim: Callable[[int], None],
        on_resync: Callable[[str, int, str], None],
        on_damage: Callable[[CorruptionError], object],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._membership = membership
        self._store = store
        self._follower = follower
        self._clock = clock
        self._starts = starts
        self._on_promise = on_promise
        self._on_append = on_append
        self._on_trim = on_trim
        self._on_resync = on_resync
        self._on_damage = on_damage
        self._on_fatal = on_fatal
        self._budget = Budget(MAX_PEER_UNSENT_BYTES)
        self._warned: dict[str, str] = {}
        self._latest_appends: JoinedAppends | None = None
        """Those that the writer was given last, until they are written."""

    def methods(self) -> tuple[Served, ...]:
        pb = replication_pb2
        return (
            served("Handshake", pb.HandshakeRequest, pb.HandshakeResponse, self._handshake),
            served("Promise", pb.PromiseRequest, pb.PromiseResponse, self._promise),
            served("Probe", pb.ProbeRequest, pb.ProbeResponse, self._probe),
            served("Append", pb.AppendRequest, pb.AppendResponse, self._append),
            served("ReadLog", pb.ReadLogRequest, pb.ReadLogResponse, self._read_log),
            served("Resync", pb.ResyncRequest, pb.ResyncResponse, self._resync),
        )

    def own_identity(self) -> replication_pb2.HandshakeRequest:
        identity = self._store.identity.current
        return identity_message(
            self._membership,
            uuid=identity.uuid,
            boot=identity.boot,
            start=self._starts.own,
            is_member=identity.is_member,
            disk=identity.disk,
        )

    def _handshake(
        self, call: _Handshake, request: replication_pb2.HandshakeRequest, _attachment: memoryview
    ) -> None:
        call.spawn(self._shake_hands, call, request)

    async def _shake_hands(
        self, call: _Handshake, request: replication_pb2.HandshakeRequest
    ) -> None:
        is_old_copy = False
        try:
            check_peer(self._membership, self._store.identity.current.uuid, request, None)
            self._starts.check_room(request.node)
        except HandshakeError as error:
            # Refused by answering who we are: the peer finds the difference and names it.
            # Names that nobody here has share one place: strangers could send any number of them.
            name = request.node if request.node in self._membership.addresses else ""
            said = str(error)[:_MAX_SAID]
            if self._warned.get(name) != said:
                self._warned[name] = said
                _log.warning("refused the handshake of %s: %s", call.peer, said)
        else:
            self._warned.pop(request.node, None)
            is_old_copy = await self._starts.note(request)
            call.origin.principal = ANONYMOUS if is_old_copy else self._starts.caller(request)
            call.origin.share(self._budget)
        own = self._store.identity.current
        call.send(
            replication_pb2.HandshakeResponse(
                identity=self.own_identity(),
                promised=ballot_to(own.promised),
                last=position_to(self._follower.head),
                is_member=own.is_member,
                committed_lsn=self._follower.committed_lsn,
                now_ms=self._clock.now_ms(),
                configurations=map(configuration_to, self._follower.configurations),
                is_old_copy=is_old_copy,
            ),
            end=True,
        )

    def require_member(self, call: AnyCall) -> None:
        """Raises `NotReadyError` before the handshake, `FencedError` when
        the node was started again since (PROTOCOL B3)."""
        caller = call.principal
        if not isinstance(caller, CallingMember):
            raise NotReadyError("shake hands first", "this method is for nodes of the replica set")
        if not self._starts.is_latest(caller):
            # Whoever is still there dials again.
            call.origin.close()
            error = FencedError(
                f"{caller.name} was started again since start {caller.start.boot}, which sent this"
            )
            _log.warning("a late message is dropped: %s", error)
            raise error

    def _promise(
        self, call: _Promise, request: replication_pb2.PromiseRequest, _attachment: memoryview
    ) -> None:
        name = _caller(call)
        ballot = ballot_from(request.ballot)

        def job(_: apsw.Connection) -> Any:
            return self._follower.promise(
                ballot, request.config_digest, request.replica_set_uuid, found=request.found
            )

        def done(last: Any, error: BaseException | None) -> None:
            highest = ballot_to(self._store.identity.current.promised)
            if isinstance(error, FencedError):
                call.send(
                    replication_pb2.PromiseResponse(
                        promised=False, highest=highest, reason=error.message
                    ),
                    end=True,
                )
            elif isinstance(error, NotReadyError):
                call.fail(error)
            elif error is not None:
                self._on_fatal(error)
            else:
                self._on_promise(ballot, name, call.origin)
                call.send(
                    replication_pb2.PromiseResponse(
                        promised=True,
                        highest=highest,
                        last=position_to(last),
                        first_lsn=self._follower.anchor.lsn + 1,
                        is_member=self._store.identity.current.is_member,
                    ),
                    end=True,
                )

        self._store.writer.submit(job, done)

    def _append(
        self, call: AppendCall, request: replication_pb2.AppendRequest, attachment: memoryview
    ) -> None:
        append = Append(
            call,
            ballot_from(request.ballot),
            position_from(request.previous),
            unpack(request.entries, attachment),
            request.committed_lsn,
            request.trim_lsn,
            request.grant_membership,
        )

        if append.entries and self._store.space.is_exhausted:
            # Others may have room; this node says with each answer whether it has some.
            raise self._store.space.refusal()

        latest, writer = self._latest_appends, self._store.writer
        if append.grants and not self._store.identity.current.is_member:
            # Before it is answered, and on the writer's thread. That it could not be, the answer
            # says; what a node does not survive, the writer.
            uuid = request.replica_set_uuid
            writer.submit(
                lambda _: self._follower.join(append.ballot, append.previous, uuid),
                lambda _result, _error: None,
            )
        if latest is None or not writer.waits_last(latest.prepare) or not latest.takes(append):
            joined = self._latest_appends = JoinedAppends(self._follower, append)
            writer.commit(joined.prepare, partial(self._appended, joined))

    def _appended(
        self, joined: JoinedAppends, outcome: AppendOutcome, error: BaseException | None
    ) -> None:
        if joined is self._latest_appends:
            # Nothing joins it any more, and its entries are not needed.
            self._latest_appends = None
        if isinstance(error, BadEntriesError):
            _log.error("refused entries from %s: %s", joined.origin.peer, error)
            joined.fail(error)
        elif isinstance(error, CorruptionError) and error.lsn:
            # What stands in the way of applying is repaired first; nothing was written.
            self._on_damage(error)
            joined.fail(NotReadyError(f"this node repairs its log: {error.message}"))
        elif error is not None:
            self._on_fatal(error)
        elif joined.grants and not (outcome.reason or self._store.identity.current.is_member):
            self._follower.stored_applied_lsn = outcome.applied_lsn
            joined.fail(NotReadyError("this disk does not count yet", self._store.identity.trouble))
        else:
            self._follower.stored_applied_lsn = outcome.applied_lsn
            for call, own in joined.outcomes(outcome):
                self._answer_append(call, own)
            if not outcome.reason:
                self._on_append(joined.ballot, outcome, joined.origin)
                self._on_trim(joined.trim_lsn)

    def _answer_append(self, call: AppendCall, outcome: AppendOutcome) -> None:
        call.send(
            replication_pb2.AppendResponse(
                outcome=_OUTCOMES[outcome.reason],
                match_lsn=outcome.match_lsn,
                promised=ballot_to(outcome.promised),
                applied_lsn=outcome.applied_lsn,
                low_on_space=self._store.space.is_low,
                stores_nothing=self._store.space.is_exhausted,
            ),
            end=True,
        )

    def _check_ballot(self, ballot: Ballot) -> None:
        promised = self._store.identity.current.promised
        if ballot < promised:
            raise FencedError(f"ballot {ballot} is below {promised}, which this node has promised")

    def _probe(
        self, call: _Probe, request: replication_pb2.ProbeRequest, _attachment: memoryview
    ) -> None:
        self._check_ballot(ballot_from(request.ballot))
        lsn = check_number("lsn", request.lsn)

        async def answer() -> None:
            position = await self._store.readers.run(lambda db: position_at(db, lsn))
            call.send(
                replication_pb2.ProbeResponse(
                    position=None if position is None else position_to(position)
                ),
                end=True,
            )

        call.spawn(answer)

    def _read_log(
        self, call: _ReadLog, request: replication_pb2.ReadLogRequest, _attachment: memoryview
    ) -> None:
        self._check_ballot(ballot_from(request.ballot))
        from_lsn = check_number("lsn", request.from_lsn)

        async def answer() -> None:
            size = min(request.max_bytes or _MAX_READ_BYTES, _MAX_READ_BYTES)

            previous, entries = await self._store.readers.run(
                lambda db: read_after(db, from_lsn, max_bytes=size)
            )
            headers, bodies = pack(entries)
            call.send(
                replication_pb2.ReadLogResponse(previous=position_to(previous), entries=headers),
                bodies,
                end=True,
            )

        call.spawn_within(_MAX_READ_BYTES, answer)

    def _resync(
        self, call: _Resync, request: replication_pb2.ResyncRequest, _attachment: memoryview
    ) -> None:
        name = _caller(call)
        self._check_ballot(ballot_from(request.ballot))
        self._on_resync(request.reason, check_number("lsn", request.min_lsn), name)
        call.send(replication_pb2.ResyncResponse(), end=True)


def _caller(call: AnyCall) -> str:
    """The member that calls; `require_member` has let it in."""
    caller = call.principal
    assert isinstance(caller, CallingMember)
    return caller.name
