"""Queues, schedules, exchanges, endpoints and tokens, as they are declared."""

from __future__ import annotations

from typing import Final

import msgspec

from hadron.model.schema import Duration, Spec, Time

DEFAULT_LANE: Final = "default"
"""The lane of a queue that declares none."""

SINGLE: Final = "single"
STREAM: Final = "stream"
"""What goes one way of an endpoint's calls."""

DEFAULT_WAITING: Final = 1_000


class Lane(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a queue. Lanes share its workers by weight, so that none ever starves."""

    name: str
    weight: int = 1


class QueueSpec(Spec, frozen=True, kw_only=True):
    """A work queue on one replica set. The n-th retry of a job waits backoff_ms * 2 ** (n - 1)."""

    replica_set: str
    lanes: tuple[Lane, ...] = ()
    """None means one, called `default`."""
    max_attempts: int = 5
    lease_ms: Duration = 30_000
    """How long a claimed job stays with its worker without a heartbeat."""
    backoff_ms: Duration = 1_000
    result_ttl_ms: Duration = 3_600_000
    """How long a finished job's result can be asked for; 0 keeps none."""

    @property
    def lane_names(self) -> tuple[str, ...]:
        return tuple(lane.name for lane in self.lanes) or (DEFAULT_LANE,)


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a schedule puts what is due: a job into a queue, or a record into a stream.

    The schedule lives where its target does: on the queue's replica set, or on `partition`, so
    that a firing and what it puts there are one entry.
    """

    queue: str = ""
    lane: str = ""
    """Of the queue; empty for its first one."""
    priority: int = 0
    stream: str = ""
    partition: str = ""
    """Of the stream."""
    type: str = ""
    """The record's event type."""
    key: str = ""
    """The record's key; empty for none."""


class ScheduleSpec(Spec, frozen=True, kw_only=True):
    """Puts `value` into `target` whenever it is due, exactly once per due time."""

    cron: str
    """Five or six fields, in UTC, or `@every DURATION`; see `hadron.model.cron`."""
    target: Target
    value: str = ""
    catch_up: str = "latest"
    """What becomes of due times that nobody was there for: "none", "latest" or "all"."""


class ExchangeSpec(Spec, frozen=True, kw_only=True):
    """Ephemeral publish/subscribe; `replica_set`'s leader knows who is subscribed."""

    replica_set: str
    from_stream: str = ""
    """Whose records there are published as they become visible."""
    topic: str = ""
    """Of those: a template (`hadron.model.topics.expand`); empty for the record's type."""
    to_stream: str = ""
    """Where what is published is logged, with the topic as its type."""


class EndpointSpec(Spec, frozen=True, kw_only=True):
    """Remote calls; `replica_set`'s leader knows which servers are live, and connects both."""

    replica_set: str
    input: str = SINGLE
    """What a caller sends: `single`, one value; or `stream`, as many as it likes."""
    output: str = SINGLE
    """What a server answers with."""
    idempotent: bool = False
    """Whether a call may be run twice: one whose server is lost is given to another one then."""
    hedge_after_ms: Duration = 0
    """After so long without an answer a call is given to a second server as well; 0 is never."""
    max_waiting: int = DEFAULT_WAITING
    """Calls that wait for a server that has room; more are refused."""


class TokenSpec(Spec, frozen=True, kw_only=True):
    """Lets whoever has a secret in. The secret itself is nowhere: see `hadron.model.tokens`."""

    access: str
    """"read"; "write", which includes it; "admin", which includes both and changes the schema."""
    namespaces: tuple[str, ...] = ()
    """Where it is good for that: none means the token's own, `*` means all."""
    expires_ms: Time = 0
    """Time from which it is refused, milliseconds since the Unix epoch; 0 is never."""
    sha256: str = ""
    """Of the secret, in lower-case hex; empty in what is declared leaves it as it is."""
