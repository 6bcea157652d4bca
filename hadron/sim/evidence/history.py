"""What clients did and saw, and what befell the nodes: the only evidence that the checker hears.

An operation is noted when it begins, as `unknown`, and completed when its caller is told; one that
nobody completes stays unknown. Ordering rule: `tick` gives strictly rising times, so two operations
of one history are never "at the same time", and one that ended before another began really did.
Knows nothing of the simulator: tests on real processes write the same histories. Their clock is
the machine's monotonic one, so what several processes wrote can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hadron.model.ranges import Range

Acks = Literal["leader", "majority", "all"]
Outcome = Literal["unknown", "ok", "refused"]


class Operation(msgspec.Struct, kw_only=True):
    """What a client asked for.

    Attributes:
        client: who asked.
        began: when, in nanoseconds.
        ended: when the outcome was told; 0 while it has not been.
        outcome: "ok"; "refused", which promises that nothing was done; or "unknown".
        error: what was told instead of success.
    """

    client: str
    began: int
    ended: int = 0
    outcome: Outcome = "unknown"
    error: str = ""


class Publish(Operation, tag="publish", kw_only=True):
    """Records in the order in which they were given.

    Attributes:
        producer: the idempotent producer, unique in the history; "" promises no order.
        runs: (base offset, count) of consecutive offsets that the values got, in order; empty
            unless the outcome is "ok".
        duplicate: a retry found them logged.
        failover: of the producer; with "duplicate" a record may be in the log more than once.
        allowed: partitions that the records may be in; empty: in any. `partition` is "" as long as
            nobody knows which one they are in.
    """

    producer: str
    stream: str
    partition: str
    values: list[str]
    acks: Acks = "majority"
    runs: list[tuple[int, int]] = []
    duplicate: bool = False
    failover: str = ""
    allowed: list[str] = []

    def offsets(self) -> Iterator[tuple[int, str]]:
        """(offset, value) of each acknowledged record."""
        numbers = (base + index for base, count in self.runs for index in range(count))
        return zip(numbers, self.values, strict=True)


class Read(Operation, tag="read", kw_only=True):
    """Visible records from `offset` on.

    Attributes:
        end: the watermark that came with them: the offset of the next record to become visible.
            -1 when the reader was not told.
    """

    stream: str
    partition: str
    offset: int
    values: list[str] = []
    end: int = -1


class Deliver(Operation, tag="deliver", kw_only=True):
    """A group's member was handed consecutive records; complete as soon as noted."""

    group: str
    member: str
    stream: str
    partition: str
    offset: int
    values: list[str]
    attempt: int


class Settle(Operation, tag="settle", kw_only=True):
    """A member acknowledged offsets, or gave them back. "ok" means that it was confirmed. Of a
    pipeline, a runner completed a stage, or somebody signalled one: then `group` is the pipeline as
    `name#id` (another one may have its name by now), `member` the stage, and `ranges` are
    instances."""

    group: str
    member: str
    stream: str
    partition: str
    ranges: list[Range]
    how: Literal["ack", "nack", "complete", "signal"] = "ack"


class Transact(Operation, tag="transact", kw_only=True):
    """Records and acknowledgements that are done together or not at all. What it publishes is noted
    as a `Publish` for each record too, and what it acknowledges as a `Settle`.

    Attributes:
        transaction: its id; "" while nothing was sent.
        values: what it publishes.
        acks: what it acknowledges, as (stream, partition, group, first and last offset).
        asked: when its client wanted it committed; 0: it did not, so far.
        told: what its client, or anybody who asked later, was told: "committed", "rolled back".
    """

    transaction: str = ""
    values: list[str] = []
    acks: list[tuple[str, str, str, int, int]] = []
    asked: int = 0
    told: list[str] = []


class Apply(Operation, tag="apply", kw_only=True):
    """Schema objects were declared, or deleted, as (kind, name).

    Attributes:
        metadata_index: of the schema that has them, when the caller was told.
        ids: of what was deleted.
    """

    objects: list[tuple[str, str]]
    metadata_index: int = 0
    deletes: bool = False
    ids: list[int] = []


class Regroup(Operation, tag="regroup", kw_only=True):
    """A group was reset or deleted. `to` is where it was asked to go on."""

    group: str
    stream: str
    partition: str
    what: Literal["reset", "delete"]
    to: str = ""


class Steer(Operation, tag="steer", kw_only=True):
    """People had a hand in a pipeline: they started instances of the records `offsets`, or a
    backfill of those from the first on, before the last; or cancelled instances, or let failed ones
    run again.

    Attributes:
        is_whole: with a backfill, also of records that were looked at; with a retry, from the
            start.
    """

    pipeline: str
    what: Literal["start", "backfill", "cancel", "retry"]
    partition: str = ""
    offsets: list[int] = []
    is_whole: bool = False


class Note(msgspec.Struct, kw_only=True):
    """What a leader did with a group, heard where it left the leader.

    Attributes:
        driver: of which serving of the group; see `Serve`.
    """

    at: int
    driver: int
    partition: str


class Serve(Note, tag="serve", kw_only=True):
    """A leader began to serve a group at its partition, with nobody in it.

    Attributes:
        group_id: another one after each reset; 0 for an ephemeral group.
        node, epoch, incarnation: the leader, and its ballot.
        order: "none", "strict" or "key".
        fence: (epoch, incarnation, delivery): acknowledgements of what was delivered up to this
            are from before the group was made or reset, and count for nothing.
    """

    group: str
    stream: str
    group_id: int
    epoch: int
    incarnation: int
    floor: int
    order: str = "none"
    ack_deadline_ms: int = 0
    max_attempts: int = 0
    dead_letter: str = ""
    fence: tuple[int, int, int] = (0, 0, 0)
    node: str = ""


class Join(Note, tag="join", kw_only=True):
    """A member joined: `session` is its number with this driver, `member` what it is called, the
    same when it joins again."""

    session: int
    member: str
    max_in_flight: int


class Assign(Note, tag="assign", kw_only=True):
    """Offsets, both ends inclusive, were sent to a member."""

    session: int
    number: int
    first: int
    last: int
    attempt: int


class Leave(Note, tag="leave", kw_only=True):
    """A member's call ended; with session 0 the leader stopped serving the group."""

    session: int = 0


class GaveBack(Note, tag="gave back", kw_only=True):
    """A member has said that its program was not handed these records of a delivery."""

    session: int
    number: int
    first: int
    last: int


class Stuck(Note, tag="stuck", kw_only=True):
    """Offsets, both ends inclusive, could not be made dead letters: they are delivered again."""

    first: int
    last: int


class Event(msgspec.Struct, tag="event", kw_only=True):
    """Something befell a node or the network.

    `kind` is one of `KINDS`; `subject` is the node, or "".
    """

    at: int
    kind: str
    subject: str = ""
    detail: str = ""


CLUSTER = "the cluster"
"""Detail of a "restore": everything was, from a backup that was begun at that time."""

KINDS = frozenset(
    {
        "start",
        "stop",
        "crash",
        "power",
        "wipe",
        "damage",
        "restore",
        "promote",
        "reconfigure",
        "cut",
        "heal",
        "fault",
        "leaving",
        "draining",
        "drained",
        "finishing",
        "diverged",
        "ahead",
        "retention",
        "published",
    }
)
"""crash: the process died, what it had written stays. power: what was not synced may be gone too.
wipe: the disk was lost. damage: bytes on it were changed. restore: a backup was put in its
place. promote: another node leads. reconfigure: members came or went. heal: from here on nothing
is broken any more. leaving: the member `subject` begins to leave its group. draining: the group
`subject`, or `group@stream`, is to be emptied, once and for all. finishing: the pipeline `subject`
is to do all that is left. drained: it has acknowledged everything below the offset `detail`.
diverged: the node's tables are not what its replica set's log makes of them. ahead: it has taken
another's, above the watermark. retention: the stream `subject` may have other limits from here on,
`detail` milliseconds and bytes. published: a batch is, said its sink: `subject` is its query and
number."""

Notes = Serve | Join | Assign | Leave | GaveBack | Stuck
Entry = Publish | Read | Deliver | Settle | Transact | Apply | Regroup | Steer | Event | Notes
O = TypeVar("O", bound=Operation)  # noqa: E741 - an operation

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class History:
    """Entries in the order in which they were noted.

    Args:
        now_ns: a monotonic clock: the simulator's, or `time.monotonic_ns`.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.entries: list[Entry] = []
        self._now_ns = now_ns
        self._last = 0

    def tick(self) -> int:
        """Now, in nanoseconds, later than any tick before."""
        self._last = max(self._last + 1, self._now_ns())
        return self._last

    # --- noting ---------------------------------------------------------------------------------

    def publish(
        self,
        client: str,
        producer: str,
        stream: str,
        partition: str,
        values: Sequence[str],
        *,
        acks: Acks = "majority",
        failover: str = "",
        allowed: Sequence[str] = (),
    ) -> Publish:
        return self._begin(
            Publish(
                client=client,
                began=self.tick(),
                producer=producer,
                stream=stream,
                partition=partition,
                values=list(values),
                acks=acks,
                failover=failover,
                allowed=list(allowed),
            )
        )

    def read(self, client: str, stream: str, partition: str, offset: int) -> Read:
        return self._begin(
            Read(
                client=client, began=self.tick(), stream=stream, partition=partition, offset=offset
            )
        )

    def deliver(
        self,
        client: str,
        group: str,
        member: str,
        stream: str,
        partition: str,
        offset: int,
        values: Sequence[str],
        *,
        attempt: int,
    ) -> Deliver:
        now = self.tick()
        return self._begin(
            Deliver(
                client=client,
                began=now,
                ended=now,
                outcome="ok",
                group=group,
                member=member,
                stream=stream,
                partition=partition,
                offset=offset,
                values=list(values),
                attempt=attempt,
            )
        )

    def settle(
        self,
        client: str,
        group: str,
        member: str,
        stream: str,
        partition: str,
        ranges: Iterable[Range],
        *,
        how: Literal["ack", "nack", "complete", "signal"] = "ack",
    ) -> Settle:
        return self._begin(
            Settle(
                client=client,
                began=self.tick(),
                group=group,
                member=member,
                stream=stream,
                partition=partition,
                ranges=list(ranges),
                how=how,
            )
        )

    def transact(self, client: str) -> Transact:
        return self._begin(Transact(client=client, began=self.tick()))

    def apply(
        self, client: str, objects: Iterable[tuple[str, str]], *, deletes: bool = False
    ) -> Apply:
        return self._begin(
            Apply(client=client, began=self.tick(), objects=list(objects), deletes=deletes)
        )

    def regroup(
        self,
        client: str,
        group: str,
        stream: str,
        partition: str,
        what: Literal["reset", "delete"],
        to: str = "",
    ) -> Regroup:
        return self._begin(
            Regroup(
                client=client,
                began=self.tick(),
                group=group,
                stream=stream,
                partition=partition,
                what=what,
                to=to,
            )
        )

    def steer(
        self,
        client: str,
        pipeline: str,
        what: Literal["start", "backfill", "cancel", "retry"],
        partition: str = "",
        offsets: Iterable[int] = (),
        *,
        is_whole: bool = False,
    ) -> Steer:
        return self._begin(
            Steer(
                client=client,
                began=self.tick(),
                pipeline=pipeline,
                what=what,
                partition=partition,
                offsets=list(offsets),
                is_whole=is_whole,
            )
        )

    def note(self, note: Notes) -> None:
        self.entries.append(note)

    def event(self, kind: str, subject: str = "", detail: str = "", *, at: int = 0) -> None:
        """`at`: an earlier tick, when that is what the event tells of. Raises `ValueError` for a
        kind that the checker does not know."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of event, there are {sorted(KINDS)}")
        now = self.tick()
        self.entries.append(Event(at=at or now, kind=kind, subject=subject, detail=detail))

    def _begin(self, operation: O) -> O:
        kinds = Publish | Read | Deliver | Settle | Transact | Apply | Regroup | Steer
        assert isinstance(operation, kinds)
        self.entries.append(operation)
        return operation

    def ok(self, operation: Operation) -> None:
        """The caller was told that it is done; fill in what it was told before."""
        operation.outcome, operation.ended = "ok", self.tick()

    def published(self, operation: Publish, offset: int, *, duplicate: bool) -> None:
        """The caller was told where its one record is, and whether it was there before."""
        operation.runs, operation.duplicate = [(offset, 1)], duplicate
        self.ok(operation)

    def refused(self, operation: Operation, error: BaseException | str) -> None:
        """The caller was told that nothing was done, and that nothing will be."""
        operation.outcome, operation.ended = "refused", self.tick()
        operation.error = _text(error)

    def unknown(self, operation: Operation, error: BaseException | str) -> None:
        """The caller was told that it may or may not be done."""
        operation.ended, operation.error = self.tick(), _text(error)

    # --- looking --------------------------------------------------------------------------------

    def of(self, kind: type[O]) -> list[O]:
        """Operations of one kind, in the order in which they began."""
        found = [entry for entry in self.entries if isinstance(entry, kind)]
        return sorted(found, key=lambda operation: operation.began)

    def events(self, *kinds: str) -> list[Event]:
        """Events of these kinds in order; all of them when none is named."""
        found = [
            entry
            for entry in self.entries
            if isinstance(entry, Event) and (not kinds or entry.kind in kinds)
        ]
        return sorted(found, key=lambda event: event.at)

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write JSON lines, one entry each."""
        path.write_bytes(b"".join(_encode(entry) + b"\n" for entry in self.entries))

    @classmethod
    def load(cls, *paths: Path) -> History:
        """Read what `save` wrote; several files are merged, if they share a clock."""
        history = cls(lambda: 0)
        for path in paths:
            history.entries.extend(map(_decode, path.read_bytes().splitlines()))
        history.entries.sort(key=_noted_at)
        history._last = max(map(_noted_at, history.entries), default=0)
        return history


def _noted_at(entry: Entry) -> int:
    return entry.began if isinstance(entry, Operation) else entry.at


def _text(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"
