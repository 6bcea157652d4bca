"""One partition of a subscription: the member's call to the partition's leader.

Safety rule: a parcel belongs to the call it came on. When that call ends, the leader gives the
unacknowledged records out again, so what nobody has looked at is forgotten here. What the user has
acknowledged, before or after, is told to the leader on the next call (PROTOCOL D2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from hadron.client.connecting.outages import Outage
from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.client.consuming.acks import LateAcks
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.settings import since_text
from hadron.model.errors import (
    ConflictError,
    ConnectionLostError,
    DeadlineExceededError,
    HadronError,
    NotReadyError,
    PeerError,
)
from hadron.model.ports import Clock
from hadron.model.ranges import runs
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import ballot_from, groups_pb2, method

_log = logging.getLogger(__name__)

_SUBSCRIBE: Final = method("Subscribe")

_LATE_S: Final = 1.0
"""A leader that is asked so long after the member has come was away then."""

_HEARTBEAT: Final = groups_pb2.SubscribeRequest(heartbeat=groups_pb2.SubscribeRequest.Heartbeat())


class Membership:
    """A member of a group at one partition (`reconnecting_call.Owner`).

    Args:
        on_parcel: called with each parcel; in batch delivery with all those of a batch, one
            after the other, once it is complete.
        on_revoked: called with the channel and the number of a parcel of which others have some
            records now, and the range of these.
        on_ended: called with a channel that is over: all that it has brought and that is not
            acknowledged goes out again.
        clock: whose monotonic seconds pass while this process or its machine stands still.
        on_change: called when the call was opened, lost or has failed for good, and when there is
            something to acknowledge.
    """

    def __init__(
        self,
        session: Session,
        opening: groups_pb2.SubscribeRequest,
        *,
        on_parcel: Callable[[Parcel], None],
        on_revoked: Callable[[Channel, int, int, int], None],
        on_ended: Callable[[Channel], None],
        on_change: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.stream = opening.open.stream
        self.partition = opening.open.partition
        self.channel: Channel | None = None
        self.is_open = False
        """The leader has said that the member may expect parcels."""
        self.failure: HadronError | None = None
        self.trouble: HadronError | None = None
        self.conflict: ConflictError | None = None
        """The latest, since all that was acknowledged counted."""
        self.options: groups_pb2.GroupOptions | None = None
        """What the group has, once the leader has said so."""
        self.outage = Outage(self.partition)
        self._late = LateAcks()
        self._paused = False
        self._opening = opening
        promised_ms = opening.open.heartbeat_interval_ms * opening.open.heartbeat_threshold
        self._patience_s = promised_ms / 1_000 or float("inf")
        self._clock = clock.monotonic_s
        self._began_s, self._began_ms = clock.monotonic_s(), clock.now_ms()
        self._has_joined = False
        self._in_batches = bool(opening.open.batch_size)
        self._on_parcel = on_parcel
        self._on_revoked = on_revoked
        self._on_ended = on_ended
        self._on_change = on_change
        self._changed: anyio.Event | None = None
        self._is_closed = False
        self.reconnecting = ReconnectingCall(session, self.partition, _SUBSCRIBE, self)

    # --- the call (`reconnecting_call.Owner`) -------------------------------------------------

    def opening(self) -> groups_pb2.SubscribeRequest:
        """Who wants the latest of a partition that is away waits for what is logged from now on:
        its end is where it was when this began, as the clocks have it."""
        is_late = self._clock() - self._began_s > _LATE_S
        if self._opening.open.start != "latest" or self._has_joined or not is_late:
            return self._opening
        opening = groups_pb2.SubscribeRequest()
        opening.CopyFrom(self._opening)
        opening.open.start = since_text(self._began_ms)
        return opening

    def opened(self, call: OpenedCall) -> None:
        self.channel = Channel(call, self._late, self._late_ack)
        self.channel.held_until = self._clock() + self._patience_s

    def received(self, message: groups_pb2.SubscribeEvent, attachment: memoryview) -> None:
        channel = self.channel
        if channel is None:
            # The member has left, and its task has not got round to cancelling the call.
            return
        channel.heard = True
        kind = message.WhichOneof("kind")
        if kind == "delivery":
            self._delivered(channel, message, attachment)
            return
        channel.call.consumed(message.ByteSize())
        if kind == "acked":
            channel.confirmed(message.acked)
            self._reached(message.acked.floor)
        elif kind == "batch_end":
            self._batch_ended(channel)
        elif kind == "revoked":
            for entry in message.revoked.ranges:
                first, last = entry.first_offset, entry.last_offset
                channel.revoke(entry.delivery, first, last)
                self._on_revoked(channel, entry.delivery, first, last)
        elif kind == "conflict":
            self._conflicted(message.conflict)
        elif kind == "opened":
            channel.ballot = ballot_from(message.opened.ballot)
            self.options = message.opened.options
            if message.opened.skipped and not self._has_joined:
                self._tell_skipped(message.opened.skipped)
            self.is_open = self._has_joined = True
            self.outage.over()
            if message.opened.HasField("fence"):
                fence = message.opened.fence
                self._late.fenced((ballot_from(fence.ballot), fence.delivery))
            self._reached(message.opened.floor)
            self._late.floor_moved(message.opened.floor)
            channel.send_late()
            if self._paused:
                channel.pause()
            self._notify()

    def _tell_skipped(self, records: int) -> None:
        """Say what the group will not be given: retention was quicker. Only its leaders know."""
        _log.warning(
            "group %s has missed %d records of %s/%s so far: retention had dropped them before "
            "they were acknowledged; see `hadron group describe`",
            self._opening.open.group,
            records,
            self.stream,
            self.partition,
        )

    def _delivered(
        self, channel: Channel, message: groups_pb2.SubscribeEvent, attachment: memoryview
    ) -> None:
        delivery = message.delivery
        data = attachment if delivery.batch.length else memoryview(b"")
        batch = channel.batch(self.stream, self.partition, delivery.batch.base_offset, data)
        if batch is None:
            raise PeerError(
                f"{self.partition} delivered offset {delivery.first_offset} without its batch",
                "the node remembers another number of batches; are the versions the same?",
            )
        parcel = Parcel(
            channel,
            delivery,
            batch,
            message.ByteSize() + len(attachment),
            ends_batch=not self._in_batches,
            since=self._clock(),
        )
        self._claim(channel, parcel)
        if parcel.is_empty:
            channel.is_read(parcel.number)
            parcel.grant()
        elif self._paused:
            channel.give_back(parcel)
        elif self._in_batches:
            channel.gather(parcel)
        else:
            self._on_parcel(parcel)
        if delivery.ends_batch and self._in_batches:
            self._batch_ended(channel)

    def _claim(self, channel: Channel, parcel: Parcel) -> None:
        """What the user has dealt with already is acknowledged, and not handed out again."""
        known = self._late.claim(
            parcel.first, parcel.last, channel.ballot, parcel.attempt, parcel.written
        )
        if known:
            for first, last in runs(known):
                parcel.skip(first, last)
                channel.acknowledge(parcel, first, last)
            channel.send_acks()

    def _batch_ended(self, channel: Channel) -> None:
        for parcel in channel.complete():
            self._on_parcel(parcel)

    def _reached(self, floor: int) -> None:
        """Where an ephemeral group goes on whose leader has gone, and its memory with it."""
        if self.options is not None and self.options.ephemeral:
            self._opening.open.resume_offset = max(floor, self._opening.open.resume_offset)

    def lost(self, error: HadronError | None) -> None:
        was_open = self.is_open
        self._end()
        if was_open and isinstance(error, NotReadyError):
            # A leader that works has sent its members away: its group, which is in memory alone,
            # was reset. Where others were reset their leader says when it is joined again.
            self._late.forget()
            self._opening.open.ClearField("resume_offset")
        self.trouble = error
        if error is not None:
            self.outage.trouble(error)
        self._notify()

    def failed(self, error: HadronError) -> None:
        self._end()
        self.failure = error
        self._notify()

    def pause(self) -> None:
        """Get nothing more, on later calls either: what is on its way is given back unseen."""
        self._paused = True
        if self.is_open and self.channel is not None:
            self.channel.pause()

    def close(self) -> None:
        """Forget what is not acknowledged; it is given to others."""
        self._is_closed = True
        self._end()
        self._notify()

    def _end(self) -> None:
        self.is_open = False
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.end()
            self._on_ended(channel)

    def _late_ack(self) -> None:
        channel = self.channel
        if self.is_open and channel is not None:
            for parcel in channel.unread.values():
                self._claim(channel, parcel)
            channel.send_late()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
        self._on_change()

    def _conflicted(self, conflict: groups_pb2.SubscribeEvent.Conflict) -> None:
        spans = ", ".join(f"{each.first_offset} to {each.last_offset}" for each in conflict.ranges)
        self.conflict = error = ConflictError(
            f"transaction {conflict.transaction} holds offsets {spans} of group "
            f"{self._opening.open.group} at {self.partition}: what you say of them counts if that "
            "is rolled back",
            "acknowledge a record in a transaction or alone, not both",
        )
        _log.warning("%s", error.message)

    # --- signs of life --------------------------------------------------------------------------

    def beat(self, misses: int) -> None:
        """One more heartbeat; a leader that has answered none of `misses` is given up.

        While parcels wait to be read nothing is concluded: the answers may wait behind them.
        """
        self.look_at_clock()
        channel = self.channel
        if channel is None:
            return
        channel.silent_beats = 0 if channel.heard or channel.unread else channel.silent_beats + 1
        channel.heard = False
        if channel.silent_beats > misses:
            self.reconnecting.drop(
                DeadlineExceededError(
                    f"the leader of {self.partition} answered none of {misses} heartbeats",
                    "the member joins again by itself",
                )
            )
        elif self.is_open:
            if channel.silent_beats:
                self.reconnecting.probe()
            channel.ask_confirmation()
            channel.call.send(_HEARTBEAT)
            channel.held_until = self._clock() + self._patience_s

    def look_at_clock(self) -> None:
        """A member that has stood still for longer than it had promised, its process stopped or its
        machine suspended, knows that others have its records: it hands out no more of them, and
        joins again. What its user has in hand may still be acknowledged, as late."""
        channel = self.channel
        if channel is None or (late_s := self._clock() - channel.held_until) <= 0:
            return
        silent_s = late_s + self._patience_s
        _log.warning(
            "this member of %s at %s has stood still for %.1f s: it joins again",
            self._opening.open.group,
            self.partition,
            silent_s,
        )
        self._end()
        self.reconnecting.drop(
            DeadlineExceededError(
                f"this member stood still for {silent_s:.1f} s, {self._patience_s:g} s are allowed",
                "the member joins again by itself; is the process, or its event loop, stopped?",
            )
        )

    # --- acknowledgements -----------------------------------------------------------------------

    @property
    def _is_settled(self) -> bool:
        channel = self.channel
        if channel is None or not self.is_open:
            return not self._late
        return not (self._late or channel.acks.count or channel.unconfirmed)

    async def flush(self, timeout_s: float) -> None:
        """Until every ack so far is committed, over lost calls too.

        Raises `ConflictError` when a transaction had some of the records, `ConnectionLostError`
        when others did not count, or when it takes too long. All who
        wait at the same time hear of it, and of what nobody waited for the next one.
        """
        known = self._late.told
        await self.settle(timeout_s)
        if error := self.tell(known):
            raise error

    @property
    def told(self) -> int:
        """How many acknowledgements that did not count somebody has heard of."""
        return self._late.told

    async def settle(self, timeout_s: float) -> None:
        """Until it is known of every ack so far what came of it, or so long."""
        with anyio.move_on_after(timeout_s):
            while not (self._is_settled or self._is_closed or self.failure is not None):
                channel = self.channel
                if channel is not None and self.is_open:
                    confirmed = anyio.Event()
                    channel.send_late()
                    channel.send_acks(confirmed)
                    await confirmed.wait()
                else:
                    if self._changed is None:
                        self._changed = anyio.Event()
                    await self._changed.wait()

    def tell(self, known: int) -> HadronError | None:
        """What came of them, to somebody who knew of `known` before; it counts as heard."""
        lost = self._late.told = self._late.lost
        if lost > known:
            if self.conflict is not None:
                return self.conflict
            return ConnectionLostError(
                f"up to {lost - known} acknowledgements to {self.partition} came too late: others "
                "have the records, their attempts were used up, the group was reset, or the log "
                "has lost them",
                "what is still there, and not among the dead letters, is delivered again; a longer "
                "`ack_deadline_s`, or `extend` while at work",
            )
        if not self._is_settled:
            trouble = self.failure or self.trouble or "the leader does not confirm them"
            return ConnectionLostError(
                f"acknowledgements to {self.partition} are not confirmed in time: {trouble}",
                "their records may be delivered again",
            )
        self.conflict = None
        return None


async def flush_all(memberships: Sequence[Membership], timeout_s: float) -> None:
    """The same of several, together: who is away takes none of the others' time. Raises what they
    raise as one error, which tells of each."""
    known = {each: each.told for each in memberships}
    async with anyio.create_task_group() as tasks:
        for membership in memberships:
            tasks.start_soon(membership.settle, timeout_s)
    # Only here: who is cancelled before has heard of nothing.
    troubles = {each.partition: each.tell(known[each]) for each in memberships}
    found = [error for _, error in sorted(troubles.items()) if error is not None]
    if not found:
        return
    kind = next((type(each) for each in found if isinstance(each, ConflictError)), type(found[0]))
    raise kind(
        "; ".join(each.message for each in found), "; ".join({each.hint: None for each in found})
    )
