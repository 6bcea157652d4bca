"""Schema objects: what a user declares, with every default filled in.

One object is (kind, namespace, name) and a specification. Specifications are stored as JSON of
these structs; fields are only ever added, with a default that means what was before.

A field is declared here and nowhere else: `documents.fields` takes a document's keys, in the same
order, from these structs, and shows them again. What values it may have, `documents.checks` says.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from hadron.model.errors import RequestError, SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import did_you_mean
from hadron.model.units import DURATION, SIZE, TIME

DEFAULT_LANE: Final = "default"
"""The lane of a queue that declares none."""

_MOST_DOUBLINGS: Final = 20
"""Of a pause before a retry: a second has become twelve days."""

Duration = Annotated[int, msgspec.Meta(extra={"quantity": DURATION})]
"""Milliseconds; a document's key has no `_ms`."""
Size = Annotated[int, msgspec.Meta(extra={"quantity": SIZE})]
"""Bytes."""
Time = Annotated[int, msgspec.Meta(extra={"quantity": TIME})]
"""Milliseconds since the Unix epoch; a document's key has no `_ms`."""


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long whole batches are kept; 0 means without limit."""

    max_age_ms: Duration = 0
    max_bytes: Size = 0


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A durable stream; its partitions are replica sets, by name."""

    partitions: tuple[str, ...]
    retention: Retention = Retention()
    description: str = ""
    written: tuple[tuple[str, str], ...] = ()
    """(path, text) of quantities that were written otherwise than they would be shown."""


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempts of one stage invocation; the n-th retry waits backoff_ms * 2 ** (n - 1)."""

    max_attempts: int = 5
    backoff_ms: Duration = 1_000

    def pause_ms(self, failures: int) -> int:
        """Before the next attempt, after so many in vain, 1 or more. Nodes must agree on it."""
        return self.backoff_ms << min(failures - 1, _MOST_DOUBLINGS)


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a stage's output goes. Empty partition: the handler's choice, else the pipeline's."""

    stream: str
    partition: str = ""


class StageSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage. It runs when `dependencies` and `after` are done and `delay_ms` has passed."""

    name: str
    engine: str = "spark"
    run: str = ""
    """`package.module:function`, for engine spark."""
    schema: str = ""
    """DDL of the JSON values, when the stage wants structs instead of strings."""
    dependencies: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    delay_ms: Duration = 0
    timeout_ms: Duration = 300_000
    retry: Retry = Retry()
    output: Output | None = None


class PipelineSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A DAG of stages on one replica set, one instance per matching record of `input`."""

    replica_set: str
    input: str
    triggers: tuple[str, ...] = ()
    """Event type patterns; none matches every record."""
    start: str = "latest"
    """"earliest", "latest", an offset, or an RFC 3339 time."""
    max_parallel: int = 1_000
    stages: tuple[StageSpec, ...]
    description: str = ""
    written: tuple[tuple[str, str], ...] = ()
    """(path, text) of quantities that were written otherwise than they would be shown."""


class NamespaceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    description: str = ""


class Lane(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a queue. Lanes share its workers by weight, so that none ever starves."""

    name: str
    weight: int = 1


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    description: str = ""
    written: tuple[tuple[str, str], ...] = ()
    """(path, text) of quantities that were written otherwise than they would be shown."""

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


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Puts `value` into `target` whenever it is due, exactly once per due time."""

    cron: str
    """Five or six fields, in UTC, or `@every DURATION`; see `hadron.model.cron`."""
    target: Target
    value: str = ""
    catch_up: str = "latest"
    """What becomes of due times that nobody was there for: "none", "latest" or "all"."""
    description: str = ""


class ExchangeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ephemeral publish/subscribe; `replica_set`'s leader knows who is subscribed."""

    replica_set: str
    description: str = ""


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Remote calls; `replica_set`'s leader knows which servers are live."""

    replica_set: str
    description: str = ""


class TokenSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lets whoever has a secret in. The secret itself is nowhere: see `hadron.model.tokens`."""

    access: str
    """"read"; "write", which includes it; "admin", which includes both and changes the schema."""
    namespaces: tuple[str, ...] = ()
    """Where it is good for that: none means the token's own, `*` means all."""
    expires_ms: Time = 0
    """Time from which it is refused, milliseconds since the Unix epoch; 0 is never."""
    sha256: str = ""
    """Of the secret, in lower-case hex; empty in what is declared leaves it as it is."""
    description: str = ""
    written: tuple[tuple[str, str], ...] = ()
    """(path, text) of quantities that were written otherwise than they would be shown."""


Spec = (
    StreamSpec | PipelineSpec | NamespaceSpec | QueueSpec | ScheduleSpec | ExchangeSpec
    | EndpointSpec | TokenSpec
)

SPECS: Final[dict[str, type[Spec]]] = {
    "Namespace": NamespaceSpec,
    "Stream": StreamSpec,
    "Pipeline": PipelineSpec,
    "Queue": QueueSpec,
    "Schedule": ScheduleSpec,
    "Exchange": ExchangeSpec,
    "Endpoint": EndpointSpec,
    "Token": TokenSpec,
}
"""The kinds that exist."""

KINDS_AS_WRITTEN: Final = {
    written: kind for kind in SPECS for written in (kind.lower(), f"{kind.lower()}s")
}
"""Each kind by what people write for it, in lower case."""


def proper_kind(written: str) -> str:
    """`Stream` for `stream`, `Streams` and `STREAM`. Raises `RequestError`."""
    kind = KINDS_AS_WRITTEN.get(written.lower())
    if kind is None:
        meant = did_you_mean(written.lower(), KINDS_AS_WRITTEN)
        raise RequestError(f"{written!r} is no kind{meant}", f"there are {', '.join(SPECS)}")
    return kind


NOT_BUILT: Final[dict[str, str]] = {
    "Queue": "jobs cannot be pushed or claimed",
    "Schedule": "nothing fires",
    "Exchange": "nobody can publish or subscribe",
    "Endpoint": "it cannot be called or served",
    "Token": "nobody is asked for one",
}
"""Kinds that are stored, and do nothing in this version: what that means to who declares one."""


def not_built(kind: str) -> str:
    """What to say to who declares an object of such a kind."""
    return f"kind {kind} is only stored by this version of Hadron: {NOT_BUILT[kind]} yet"


def label_of(kind: str, namespace: str, name: str) -> str:
    """`Stream default/flights`, for messages. A namespace stands in none."""
    return f"{kind} {name}" if kind == "Namespace" else f"{kind} {namespace}/{name}"


class SchemaObject(msgspec.Struct, frozen=True, kw_only=True):
    """A declared object. `id` is the metadata index of its creation, for ever (PROTOCOL D3)."""

    kind: str
    name: str
    spec: Spec
    namespace: str = DEFAULT_NAMESPACE
    id: int = 0
    metadata_index: int = 0

    @property
    def label(self) -> str:
        """`Stream default/flights`, for messages."""
        return label_of(self.kind, self.namespace, self.name)


def spec_to_json(spec: Spec) -> bytes:
    """Canonical JSON: keys in declaration order, defaults left out."""
    return msgspec.json.encode(spec)


def spec_from_json(kind: str, data: bytes | str) -> Spec:
    """Raises `SchemaError` naming the kind or the field."""
    cls = SPECS.get(kind)
    if cls is None:
        raise SchemaError(f"unknown kind {kind!r}", f"this version knows {', '.join(SPECS)}")
    try:
        return msgspec.json.decode(data, type=cls)
    except msgspec.DecodeError as error:
        raise SchemaError(f"the specification of a {kind} is malformed: {error}") from error


def matches_type(patterns: tuple[str, ...], event_type: str) -> bool:
    """Whether one of `patterns` matches: dot segments, `*` is one, `>` is one or more at the end.

    Everything, also records without a type, is matched by no patterns and by `>` alone.
    """
    if not patterns or ">" in patterns:
        return True
    return bool(event_type) and any(_matches(pattern, event_type) for pattern in patterns)


def _matches(pattern: str, event_type: str) -> bool:
    wanted, given = pattern.split("."), event_type.split(".")
    for index, segment in enumerate(wanted):
        if segment == ">":
            return index == len(wanted) - 1 and len(given) > index
        if index >= len(given) or (segment != "*" and segment != given[index]):
            return False
    return len(wanted) == len(given)


class Tombstone(msgspec.Struct, frozen=True, array_like=True):
    """An object that was deleted."""

    metadata_index: int
    """Of its deletion."""
    id: int
    kind: str
    namespace: str
    name: str

    @property
    def label(self) -> str:
        """`Stream default/flights`, for messages."""
        return label_of(self.kind, self.namespace, self.name)


class RegisteredSet(msgspec.Struct, frozen=True, array_like=True):
    """Which replica set a name belongs to."""

    name: str
    uuid: bytes
    epoch: int
    metadata_index: int
    """Of the last change."""
