"""Queues, schedules, exchanges, endpoints and tokens: read, judged alone and among others."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.metadata.deletion import validate_deletion
from hadron.metadata.judging import Key, key_of
from hadron.metadata.tokens import keep_hashes, missing_hashes
from hadron.metadata.validation import validate
from hadron.model.documents.reading import parse_documents
from hadron.model.errors import SchemaError
from hadron.model.kinds import spec_from_json
from hadron.model.schema import NamespaceSpec, SchemaObject, Spec, StreamSpec
from hadron.model.services import (
    EndpointSpec,
    ExchangeSpec,
    Lane,
    QueueSpec,
    ScheduleSpec,
    Target,
    TokenSpec,
)

HASH = "ab" * 32
OTHER_HASH = "cd" * 32


def test_everything_that_can_be_declared() -> None:
    text = f"""\
kind: Queue
name: emails
replica_set: a/p0
lanes: [{{name: priority, weight: 3}}, {{name: normal}}]
max_attempts: 7
lease: 45s
backoff: 2s
result_ttl: 0s
---
kind: Schedule
name: nightly
cron: 0 3 * * *
target: {{queue: emails, lane: priority, priority: -2}}
value: '{{"a": 1}}'
catch_up: all
---
kind: Schedule
name: tick
cron: "@every 5m"
target: {{stream: ticks, partition: a/p0, type: tick, key: k}}
---
{{kind: Exchange, name: prices, replica_set: a/p0, description: Prices.}}
---
{{kind: Endpoint, name: quote, namespace: shop, replica_set: a/p0}}
---
kind: Token
name: reader
access: read
namespaces: [default, shop]
expires: 2027-01-01T00:00:00Z
sha256: {HASH}
"""
    specs = [obj.spec for obj in parse_documents(text, "f.yaml")]
    assert specs == [
        QueueSpec(
            replica_set="a/p0",
            lanes=(Lane("priority", 3), Lane("normal", 1)),
            max_attempts=7,
            lease_ms=45_000,
            backoff_ms=2_000,
            result_ttl_ms=0,
        ),
        ScheduleSpec(
            cron="0 3 * * *",
            target=Target(queue="emails", lane="priority", priority=-2),
            value='{"a": 1}',
            catch_up="all",
        ),
        ScheduleSpec(
            cron="@every 5m", target=Target(stream="ticks", partition="a/p0", type="tick", key="k")
        ),
        ExchangeSpec(replica_set="a/p0", description="Prices."),
        EndpointSpec(replica_set="a/p0"),
        TokenSpec(
            access="read", namespaces=("default", "shop"), expires_ms=1_798_761_600_000, sha256=HASH
        ),
    ]


def _told(text: str) -> list[str]:
    with pytest.raises(SchemaError) as raised:
        parse_documents(text, "f")
    heading, *lines = raised.value.message.split("\n  ")
    return [line.removeprefix("f:") for line in lines or [heading]]


def test_every_mistake_in_a_queue_is_told_with_its_line() -> None:
    assert _told("""\
kind: Queue
name: q
replica_set: a//b
lanes:
  - {name: a, weight: 0}
  - {name: a, colour: red}
  - {weight: 2}
max_attempts: 0
lease: 0s
backoff: 30
""") == [
        "3: replica_set: 'a//b' is not a valid name, expected a replica set's name such as "
        "aws.us-east-1/p0",
        "5: lanes[0].weight: 0, expected 1 to 1000",
        "6: unknown key 'lanes[1].colour', expected one of name, weight",
        "6: lanes[1].name: 'a' is another lane's name, expected unique names",
        "7: lanes[2].name: missing, expected 1 to 100 of a-z A-Z 0-9 - _ and dots between "
        "non-empty segments",
        "8: max_attempts: 0, expected 1 to 1000",
        "9: lease: 0s is out of range, expected 1ms to 3650d",
        "10: backoff: '30' is not a duration, expected a duration such as 500ms, 1.5s, 5m, 1h30m "
        "or 7d",
    ]


def test_every_mistake_in_an_endpoint_is_told_with_its_line() -> None:
    assert _told("""\
kind: Endpoint
name: e
replica_set: a/p0
input: stream
output: many
idempotent: true
hedge_after: 100ms
max_waiting: 100001
""") == [
        "5: output: 'many' is unknown, expected single or stream",
        "6: idempotent: true with a streamed input, expected input: single, or no idempotent",
        "8: max_waiting: 100001, expected 0 to 100000",
    ]
    assert _told("""\
kind: Endpoint
name: e
replica_set: a/p0
output: stream
hedge_after: 100ms
""") == [
        "5: hedge_after: a call would run twice, expected idempotent: true beside it",
        "5: hedge_after: two streams of answers, expected output: single beside it",
    ]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("", "target: neither a queue nor a stream"),
        ("target: {queue: a, stream: b}", "target: both a queue and a stream"),
        ("target: {queue: a b}", "target.queue: 'a b' is not a valid name"),
        ("target: {queue: a, key: k}", "target.key: 'k', which only a stream has"),
        ("target: {queue: a, lane: /}", "target.lane: '/' is not a valid name"),
        ("target: {queue: a, priority: 1000001}", "target.priority: 1000001"),
        ("target: {stream: a}", "target.partition: missing"),
        ("target: {stream: a, partition: p, lane: x}", "target.lane: 'x', which only a queue has"),
        ("target: {queue: a}\nvalue: " + "x" * 65_537, "value: 65537 bytes"),
        ("target: {queue: a}\ncatch_up: some", "catch_up: 'some' is unknown"),
    ],
)
def test_a_schedule_has_one_target(target: str, told: str) -> None:
    (line,) = _told(f"kind: Schedule\nname: s\ncron: '* * * * *'\n{target}\n")
    assert told in line


def test_a_schedule_needs_a_cron_expression_that_makes_sense() -> None:
    target = "target: {queue: a}\n"
    (line,) = _told(f"kind: Schedule\nname: s\n{target}")
    assert line.startswith("1: cron: missing, expected five fields such as")
    assert _told(f"kind: Schedule\nname: s\ncron: '61 * * * *'\n{target}") == [
        "3: cron: '61' is no minute in '61 * * * *', expected 0 to 59, *, ranges a-b, steps */n, "
        "or a list of these"
    ]


def test_every_mistake_in_a_token_is_told_and_no_secret() -> None:
    lines = _told("""\
kind: Token
name: t
access: owner
namespaces: ["*", a, a]
expires: tomorrow
sha256: hadron_the-secret-itself
""")
    assert [line.split(",")[0] for line in lines] == [
        "3: access: 'owner' is unknown",
        "4: namespaces[0]: * beside others",
        "4: namespaces[2]: 'a' again",
        "5: expires: 'tomorrow' is not a time",
        "6: sha256: not a SHA-256",
    ]
    assert not any("the-secret" in line for line in lines)
    assert _told("kind: Token\nname: t\n") == ["1: access: missing, expected read, write or admin"]


# --- among others ---------------------------------------------------------------------------------


def _object(kind: str, name: str, spec: Spec) -> SchemaObject:
    return SchemaObject(kind=kind, name=name, spec=spec)


def _queue(*lanes: str, replica_set: str = "a") -> SchemaObject:
    spec = QueueSpec(replica_set=replica_set, lanes=tuple(map(Lane, lanes)))
    return _object("Queue", "emails", spec)


def _schedule(**target: Any) -> SchemaObject:
    return _object("Schedule", "nightly", ScheduleSpec(cron="* * * * *", target=Target(**target)))


def _token(*namespaces: str, sha256: str = HASH) -> SchemaObject:
    return _object("Token", "t", TokenSpec(access="read", namespaces=namespaces, sha256=sha256))


TICKS = _object("Stream", "ticks", StreamSpec(partitions=("a",)))
SHOP = _object("Namespace", "shop", NamespaceSpec())


def _existing(*objects: SchemaObject) -> dict[Key, SchemaObject]:
    return {key_of(obj): obj for obj in objects}


def _problems(
    *objects: SchemaObject, existing: tuple[SchemaObject, ...] = (), allow: bool = False
) -> list[str]:
    return list(
        map(
            str,
            validate(
                objects, _existing(*existing), replica_sets={"a", "b"}, allow_destructive=allow
            ),
        )
    )


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Queue", QueueSpec(replica_set="c")),
        ("Exchange", ExchangeSpec(replica_set="c")),
        ("Endpoint", EndpointSpec(replica_set="c")),
    ],
)
def test_replica_sets_must_be_known(kind: str, spec: Spec) -> None:
    obj = _object(kind, "x", spec)
    (told,) = _problems(obj)
    assert told.startswith(f"{kind} default/x: replica_set: there is no replica set 'c'")
    # What is there already stays: its replica set may just be away.
    assert _problems(obj, existing=(obj,)) == []


def test_a_schedules_target_must_exist() -> None:
    by_lane = _schedule(queue="emails", lane="slow")
    assert _problems(_schedule(queue="emails"), _queue()) == []
    assert _problems(by_lane, _queue("slow")) == []
    assert _problems(_schedule(queue="emails", lane="default"), _queue()) == []
    assert _problems(by_lane, existing=(_queue("fast"),)) == [
        "Schedule default/nightly: target.lane: queue emails has no lane 'slow', expected one of "
        "fast"
    ]
    (told,) = _problems(_schedule(queue="email"), _queue())
    assert "target.queue: there is no queue 'email' in namespace default (did you mean" in told
    assert _problems(_schedule(stream="ticks", partition="a"), TICKS) == []
    assert _problems(_schedule(stream="ticks", partition="b"), TICKS) == [
        "Schedule default/nightly: target.partition: 'b' is no partition of stream ticks, "
        "expected one of a"
    ]
    (told,) = _problems(_schedule(stream="emails", partition="a"), _queue())
    assert "there is no stream 'emails'" in told


def test_a_target_with_mistakes_of_its_own_is_not_judged_by() -> None:
    broken = _object("Queue", "emails", QueueSpec(replica_set="", lanes=(Lane(""),)))
    told = _problems(broken, _schedule(queue="emails", lane="x"))
    assert told
    assert all(line.startswith("Queue default/emails: ") for line in told)


def test_moving_a_queue_or_removing_a_lane_is_destructive() -> None:
    before = _queue("fast", "slow")
    assert _problems(_queue("slow", "fast", "new"), existing=(before,)) == []
    for changed, found in (
        (_queue("fast"), "lanes: lane 'slow' was removed, and may have jobs"),
        (_queue("fast", "slow", replica_set="b"), "replica_set: changed from 'a' to 'b'"),
    ):
        (told,) = _problems(changed, existing=(before,))
        assert found in told
        assert "`allow_destructive`" in told
        assert _problems(changed, existing=(before,), allow=True) == []


def test_a_lane_that_a_schedule_needs_is_kept_whoever_insists() -> None:
    before = _queue("fast", "slow"), _schedule(queue="emails", lane="slow")
    assert _problems(_queue("fast"), existing=before, allow=True) == [
        "Schedule default/nightly: target.lane: queue emails has no lane 'slow', expected one of "
        "fast"
    ]


def test_a_tokens_namespaces_must_exist() -> None:
    assert _problems(_token("default", "shop"), SHOP) == []
    assert _problems(_token("*")) == []
    (told,) = _problems(_token("default", "ship"), SHOP)
    assert "namespaces[1]: there is no namespace 'ship' (did you mean 'shop'?)" in told


def test_a_secret_stays_unless_another_one_is_given() -> None:
    silent, stored = _token(sha256=""), _token()
    assert keep_hashes([silent, TICKS], _existing(stored)) == [stored, TICKS]
    assert keep_hashes([silent], {}) == [silent]
    assert [str(problem) for problem in missing_hashes([silent, stored, TICKS])] == [
        "Token default/t: sha256: missing, expected the SHA-256 of a new random secret, in hex"
    ]
    other = _token(sha256=OTHER_HASH)
    assert keep_hashes([other], _existing(stored)) == [other]
    (told,) = _problems(other, existing=(stored,))
    assert "sha256: changed, which would lock out whoever has the present secret" in told
    assert _problems(other, existing=(stored,), allow=True) == []


def _refusals(*gone: SchemaObject, existing: tuple[SchemaObject, ...]) -> list[str]:
    keys = [key_of(obj) for obj in gone]
    return list(map(str, validate_deletion(keys, _existing(*existing), allow_destructive=True)))


def test_what_schedules_and_tokens_refer_to_is_not_deleted_before_them() -> None:
    by_queue, by_stream = _schedule(queue="emails"), _schedule(stream="ticks", partition="a")
    for target, schedule in ((_queue(), by_queue), (TICKS, by_stream)):
        (told,) = _refusals(target, existing=(target, schedule))
        assert f"{target.label}: Schedule default/nightly refers to it" in told
        assert _refusals(target, schedule, existing=(target, schedule)) == []
    (told,) = _refusals(SHOP, existing=(SHOP, _token("shop")))
    assert "Namespace shop: Token default/t refers to it" in told


def test_many_that_refer_to_one_are_told_in_one_line() -> None:
    streams = tuple(
        SchemaObject(
            kind="Stream", namespace="shop", name=f"s{number}", spec=StreamSpec(partitions=("a",))
        )
        for number in range(13)
    )
    (told,) = _refusals(SHOP, existing=(SHOP, *streams))
    assert "Stream shop/s0, Stream shop/s1," in told
    assert "s9 and 3 more refer to it" in told


def test_the_default_namespace_stays_and_that_is_all_there_is_to_say() -> None:
    default = _object("Namespace", "default", NamespaceSpec())
    assert _refusals(default, existing=(default, TICKS)) == [
        "Namespace default: the default namespace cannot be deleted"
    ]


@pytest.mark.parametrize("kind", ["Stream", "Pipeline"])
def test_a_specification_that_is_nested_too_deeply_is_malformed(kind: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (f'{{"unknown": {deep}}}', '{"description": "\ud800"}'):
        with pytest.raises(SchemaError, match=f"the specification of a {kind} is malformed"):
            spec_from_json(kind, text)
