"""Queues, schedules, exchanges, endpoints and tokens, each on its own."""

from __future__ import annotations

from typing import Final

from hadron.model.cron import CRON_FORM, check_cron
from hadron.model.documents.kind import Kind
from hadron.model.documents.names import SET_NAME_FORM, check_named, check_replica_set
from hadron.model.documents.problem import Notes
from hadron.model.documents.waits import MAX_ATTEMPTS, check_wait
from hadron.model.errors import RequestError
from hadron.model.ids import NAME_FORM, is_valid_name, is_valid_replica_set_name
from hadron.model.problems import one_of, shorten
from hadron.model.services import (
    SINGLE,
    STREAM,
    EndpointSpec,
    ExchangeSpec,
    QueueSpec,
    ScheduleSpec,
    Target,
    TokenSpec,
)
from hadron.model.tokens import is_valid_hash
from hadron.model.topics import TEMPLATE_FORM, wrong_in_template

CATCH_UP: Final = ("none", "latest", "all")
ACCESS: Final = ("read", "write", "admin")
SHAPES: Final = (SINGLE, STREAM)

MAX_LANES: Final = 100
"""A claim looks at each of them."""
MAX_WEIGHT: Final = 1_000
MAX_PRIORITY: Final = 1_000_000
MAX_WAITING: Final = 100_000
"""Calls of one endpoint that wait: some hundred bytes each, and what they carry is bounded, too."""
MAX_NAMESPACES: Final = 1_000
MAX_SCHEDULED_BYTES: Final = 64 << 10
"""What a schedule puts into its target is part of the schema, which every node keeps."""

_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that RFC 3339 can write."""


def _check_exchange(notes: Notes, spec: ExchangeSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    for key in ("from_stream", "to_stream"):
        if name := getattr(spec, key):
            check_named(notes, (key,), name, is_valid_name, "the name of a stream")
    if spec.from_stream and spec.from_stream == spec.to_stream:
        found = f"{shorten(spec.to_stream)}, from which records come: each would come twice"
        notes.note(("to_stream",), found, "another stream, or only one of the two")
    if spec.topic and not spec.from_stream:
        found = f"{shorten(spec.topic)}, and no from_stream"
        notes.note(("topic",), found, "no topic: it is of what comes from a stream")
    elif wrong := wrong_in_template(spec.topic):
        notes.note(("topic",), wrong, TEMPLATE_FORM)


def _check_endpoint(notes: Notes, spec: EndpointSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    for key, shape in (("input", spec.input), ("output", spec.output)):
        if shape not in SHAPES:
            found = f"{shorten(shape)} is unknown{notes.meant(shape, SHAPES)}"
            notes.note((key,), found, one_of(SHAPES))
    if spec.idempotent and spec.input == STREAM:
        # Nobody keeps what was streamed, so it could not be given to another server.
        notes.note(("idempotent",), "true with a streamed input", "input: single, or no idempotent")
    check_wait(notes, ("hedge_after",), spec.hedge_after_ms, 0)
    if spec.hedge_after_ms and not spec.idempotent:
        notes.note(("hedge_after",), "a call would run twice", "idempotent: true beside it")
    if spec.hedge_after_ms and spec.output == STREAM:
        notes.note(("hedge_after",), "two streams of answers", "output: single beside it")
    if not 0 <= spec.max_waiting <= MAX_WAITING:
        notes.note(("max_waiting",), f"{spec.max_waiting}", f"0 to {MAX_WAITING}")


def _check_queue(notes: Notes, spec: QueueSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    if len(spec.lanes) > MAX_LANES:
        notes.note(("lanes",), f"{len(spec.lanes)} lanes", f"at most {MAX_LANES}")
    seen: set[str] = set()
    for index, lane in enumerate(spec.lanes):
        path = ("lanes", index)
        check_named(notes, (*path, "name"), lane.name, is_valid_name, NAME_FORM)
        if lane.name and lane.name in seen:
            found = f"{shorten(lane.name)} is another lane's name"
            notes.note((*path, "name"), found, "unique names")
        seen.add(lane.name)
        if not 1 <= lane.weight <= MAX_WEIGHT:
            notes.note((*path, "weight"), f"{lane.weight}", f"1 to {MAX_WEIGHT}")
    if not 1 <= spec.max_attempts <= MAX_ATTEMPTS:
        notes.note(("max_attempts",), f"{spec.max_attempts}", f"1 to {MAX_ATTEMPTS}")
    check_wait(notes, ("lease",), spec.lease_ms, 1)
    check_wait(notes, ("backoff",), spec.backoff_ms, 0)
    check_wait(notes, ("result_ttl",), spec.result_ttl_ms, 0)


def _check_schedule(notes: Notes, spec: ScheduleSpec) -> None:
    if not spec.cron:
        notes.note(("cron",), "missing", CRON_FORM)
    else:
        try:
            check_cron(spec.cron)
        except RequestError as error:
            expected = error.hint.removeprefix("expected ") or CRON_FORM
            notes.note(("cron",), error.message, expected)
    if spec.catch_up not in CATCH_UP:
        found = f"{shorten(spec.catch_up)} is unknown{notes.meant(spec.catch_up, CATCH_UP)}"
        notes.note(("catch_up",), found, one_of(CATCH_UP))
    size = len(spec.value.encode(errors="replace"))
    if size > MAX_SCHEDULED_BYTES:
        notes.note(("value",), f"{size} bytes", f"at most {MAX_SCHEDULED_BYTES}")
    _check_target(notes, spec.target)


def _check_target(notes: Notes, target: Target) -> None:
    if bool(target.queue) == bool(target.stream):
        found = "both a queue and a stream" if target.queue else "neither a queue nor a stream"
        notes.note(("target",), found, "{queue: NAME} or {stream: NAME, partition: NAME}")
        return
    kind = "queue" if target.queue else "stream"
    name = target.queue or target.stream
    check_named(notes, ("target", kind), name, is_valid_name, f"the name of a {kind}")
    alien = ("partition", "type", "key") if target.queue else ("lane", "priority")
    for key in alien:
        if getattr(target, key):
            what = "a stream" if target.queue else "a queue"
            found = f"{shorten(str(getattr(target, key)))}, which only {what} has"
            notes.note(("target", key), found, f"no {key} with a {kind}")
    if target.stream:
        path = ("target", "partition")
        check_named(notes, path, target.partition, is_valid_replica_set_name, SET_NAME_FORM)
    elif target.lane:
        check_named(notes, ("target", "lane"), target.lane, is_valid_name, "a lane of the queue")
    if abs(target.priority) > MAX_PRIORITY:
        expected = f"{-MAX_PRIORITY} to {MAX_PRIORITY}"
        notes.note(("target", "priority"), f"{target.priority}", expected)
    for key in ("type", "key"):
        size = len(getattr(target, key).encode(errors="replace"))
        if size > MAX_SCHEDULED_BYTES:
            notes.note(("target", key), f"{size} bytes", f"at most {MAX_SCHEDULED_BYTES}")


def _check_token(notes: Notes, spec: TokenSpec) -> None:
    if not spec.access:
        notes.note(("access",), "missing", one_of(ACCESS))
    elif spec.access not in ACCESS:
        found = f"{shorten(spec.access)} is unknown{notes.meant(spec.access, ACCESS)}"
        notes.note(("access",), found, one_of(ACCESS))
    if len(spec.namespaces) > MAX_NAMESPACES:
        found = f"{len(spec.namespaces)} namespaces"
        notes.note(("namespaces",), found, f"at most {MAX_NAMESPACES}, or * for all")
    seen: set[str] = set()
    for index, name in enumerate(spec.namespaces):
        path = ("namespaces", index)
        if name != "*":
            check_named(notes, path, name, is_valid_name, "a namespace's name, or * for all")
        elif len(spec.namespaces) > 1:
            notes.note(path, "* beside others", "* alone, or namespaces by name")
        if name in seen:
            notes.note(path, f"{shorten(name)} again", "each namespace once")
        seen.add(name)
    if not 0 <= spec.expires_ms <= _LAST_MS:
        notes.note(("expires",), "out of range", "a time from 1970 to 9999")
    if spec.sha256 and not is_valid_hash(spec.sha256):
        # Not shown: it may be the secret itself.
        found = "not a SHA-256"
        expected = (
            "64 lower-case hex digits, the SHA-256 of a random secret; or no sha256, then "
            "`hadron apply` makes a secret and prints it once"
        )
        notes.note(("sha256",), found, expected)


KINDS: Final = (
    Kind(
        name="Queue", spec=QueueSpec, check=_check_queue, missing="jobs cannot be pushed or claimed"
    ),
    Kind(name="Schedule", spec=ScheduleSpec, check=_check_schedule, missing="nothing fires"),
    Kind(name="Exchange", spec=ExchangeSpec, check=_check_exchange),
    Kind(name="Endpoint", spec=EndpointSpec, check=_check_endpoint),
    Kind(name="Token", spec=TokenSpec, check=_check_token, missing="nobody is asked for one"),
)
