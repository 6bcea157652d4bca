"""Records: what programs in other languages do, over a real connection to a real node."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hadron.doors.grpc.tests.support import RECORDS, Program, Said, details_of, text
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.messages import schema_pb2

SCHEMA = "/hadron.v1.Schema/"
Outcome = pb.TransactionOutcomeResponse


def consume(program: Program, said: Said, **opening: Any) -> Any:
    said.say(pb.ConsumeRequest(open=pb.ConsumeRequest.Open(**opening)))
    return program.stream(RECORDS + "Subscribe", pb.ConsumeEvent)(iter(said), timeout=60)


def acked(*ids: int) -> pb.ConsumeRequest:
    return pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(ids=ids))


def transact(program: Program, said: Said) -> Any:
    said.say(pb.StatementRequest(begin=pb.StatementRequest.Begin()))
    return program.stream(RECORDS + "Transact", pb.StatementEvent)(iter(said), timeout=60)


def outcome(program: Program, transaction: str) -> Any:
    call = program.unary(RECORDS + "Outcome", Outcome)
    return call(pb.TransactionOutcomeRequest(transaction=transaction), timeout=30)


def publishing(stream: str, *texts: str, **fields: Any) -> pb.StatementRequest:
    records = [text(each, **fields) for each in texts]
    return pb.StatementRequest(publish=pb.PublishRequest(stream=stream, records=records))


def test_a_record_is_read_as_it_was_published(program: Program, stream: str) -> None:
    wanted = pb.PublishedRecord(
        value=pb.Value(json='{"carrier": "UA"}'),
        key=pb.Key(text="UA"),
        type="flight.departed",
        timestamp_ms=1_700_000_000_000,
        headers={"gate": "B7"},
        id="flight-1",
    )
    publish = program.unary(RECORDS + "Publish", pb.PublishResponse)
    answer = publish(pb.PublishRequest(stream=stream, records=[wanted]), timeout=30)
    (run,) = answer.runs
    assert (run.base_offset, run.count, run.duplicate) == (0, 1, False)
    (found,) = program.read(stream)
    assert (found.stream, found.partition, found.offset) == (stream, run.partition, 0)
    assert found.value.json.replace(" ", "") == '{"carrier":"UA"}'
    assert found.key.text == "UA"
    assert (found.type, found.timestamp_ms, found.id) == (
        wanted.type,
        wanted.timestamp_ms,
        wanted.id,
    )
    assert dict(found.headers) == {"gate": "B7"}


def test_what_was_deleted_here_takes_no_record_more(program: Program, stream: str) -> None:
    """The door's producer knows so before the program does, as the program's own would."""
    found = program.unary(SCHEMA + "GetObjects", schema_pb2.GetObjectsResponse)(
        schema_pb2.GetObjectsRequest(kind="Stream", name=stream), timeout=30
    )
    apply = program.unary(SCHEMA + "ApplySchema", schema_pb2.ApplySchemaResponse)
    delete = program.unary(SCHEMA + "DeleteObjects", schema_pb2.DeleteObjectsResponse)
    name = schema_pb2.DeleteObjectsRequest.Name(kind="Stream", namespace="default", name=stream)
    for number in range(20):
        assert program.publish(stream, "x").runs[0].base_offset == bool(number)
        request = schema_pb2.DeleteObjectsRequest(names=[name], allow_destructive=True)
        delete(request, timeout=30)
        apply(schema_pb2.ApplySchemaRequest(objects=found.objects), timeout=30)
        assert program.publish(stream, "x").runs[0].base_offset == 0
        request.dry_run = True
        delete(request, timeout=30)


@pytest.mark.parametrize("kind", ["data", "text", "json"])
def test_kinds_of_values_are_kept(program: Program, stream: str, kind: str) -> None:
    given: Any = {kind: b"7" if kind == "data" else "7"}
    value = pb.Value(**given)
    publish = program.unary(RECORDS + "Publish", pb.PublishResponse)
    publish(pb.PublishRequest(stream=stream, records=[pb.PublishedRecord(value=value)]), timeout=30)
    (found,) = program.read(stream)
    assert found.value.WhichOneof("kind") == kind


@pytest.mark.parametrize(
    "written",
    ["123456789012345678901234567890.5", '{"a":1,"a":2}', "1.00", '"text"', "[ 1, null ]", "null"],
)
def test_json_stays_as_it_was_written(program: Program, stream: str, written: str) -> None:
    record = pb.PublishedRecord(value=pb.Value(json=f" {written}\n"))
    publish = program.unary(RECORDS + "Publish", pb.PublishResponse)
    publish(pb.PublishRequest(stream=stream, records=[record]), timeout=30)
    (found,) = program.read(stream)
    assert found.value.json == written


def test_many_records_in_a_request_keep_their_order(program: Program, stream: str) -> None:
    texts = [str(number) for number in range(1_000)]
    answer = program.publish(stream, *texts)
    assert sum(run.count for run in answer.runs) == 1_000
    assert program.texts(stream) == texts
    assert program.texts(stream, start="-3") == texts[-3:]
    assert program.texts(stream, start="10", limit=2) == ["10", "11"]


@pytest.mark.long
def test_a_stream_of_requests_is_answered_in_their_order(program: Program, stream: str) -> None:
    requests = [
        pb.PublishRequest(stream=stream, records=[text(str(number))]) for number in range(2_000)
    ]
    call = program.stream(RECORDS + "PublishStream", pb.PublishResponse)
    offsets = [answer.runs[0].base_offset for answer in call(iter(requests), timeout=60)]
    assert offsets == list(range(2_000))
    assert program.texts(stream) == [str(number) for number in range(2_000)]


def test_following_brings_what_comes_later(program: Program, stream: str) -> None:
    program.publish(stream, "before")
    records = program.read(stream, follow=True)
    assert next(records).value.text == "before"
    program.publish(stream, "after")
    assert next(records).value.text == "after"


def test_a_member_gets_records_until_they_are_acknowledged(program: Program, stream: str) -> None:
    program.publish(stream, "a", "b")
    said = Said()
    events = consume(program, said, stream=stream, group="g")
    assert next(events).opened.subscription
    first, second = next(events).delivery, next(events).delivery
    assert [each.record.value.text for each in (first, second)] == ["a", "b"]
    assert first.attempt == 1
    said.say(acked(first.id))
    said.say(
        pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(ids=[second.id], delay_ms=0, reason="no"))
    )
    again = next(events).delivery
    assert (again.record.value.text, again.attempt) == ("b", 2)
    said.say(acked(again.id))
    said.say(pb.ConsumeRequest(flush=pb.ConsumeRequest.Flush()))
    assert next(events).HasField("flushed")
    said.end()
    assert list(events) == []
    program.publish(stream, "c")
    said = Said()
    events = consume(program, said, stream=stream, group="g")
    next(events)
    assert next(events).delivery.record.value.text == "c"
    events.cancel()
    said.end()


def test_no_more_comes_than_credit_was_given_for(program: Program, stream: str) -> None:
    program.publish(stream, *(str(number) for number in range(10)))
    said = Said()
    events = consume(program, said, stream=stream, group="g", credit=2)
    next(events)
    assert [next(events).delivery.id for _ in range(2)] == [1, 2]
    said.say(acked(1, 2))
    said.say(pb.ConsumeRequest(flush=pb.ConsumeRequest.Flush()))
    assert next(events).HasField("flushed"), "and no third record before it"
    said.say(pb.ConsumeRequest(credit=pb.ConsumeRequest.Credit(records=1)))
    assert next(events).delivery.id == 3
    events.cancel()
    said.end()


def test_a_transaction_publishes_and_acknowledges_or_does_nothing(
    program: Program, stream: str
) -> None:
    program.publish(stream, "in")
    member = Said()
    events = consume(program, member, stream=stream, group="g")
    token = next(events).opened.subscription
    delivery = next(events).delivery

    said = Said()
    answers = transact(program, said)
    said.say(publishing(stream, "never"))
    said.say(pb.StatementRequest(rollback=pb.StatementRequest.Rollback()))
    assert [each.WhichOneof("said") for each in answers] == ["accepted", "accepted", "rolled_back"]

    said = Said()
    answers = transact(program, said)
    said.say(publishing(stream, "out", "put"))
    said.say(
        pb.StatementRequest(ack=pb.StatementRequest.Ack(subscription=token, ids=[delivery.id]))
    )
    said.say(pb.StatementRequest(commit=pb.StatementRequest.Commit()))
    *_, committing, last = answers
    assert committing.committing.transaction == last.committed.transaction != ""
    assert len(last.committed.receipts) == 2
    assert outcome(program, last.committed.transaction).state == Outcome.COMMITTED
    assert program.texts(stream) == ["in", "out", "put"]
    assert [next(events).delivery.record.value.text for _ in range(2)] == ["out", "put"]
    events.cancel()
    member.end()


def acking(token: str, *ids: int) -> pb.StatementRequest:
    return pb.StatementRequest(ack=pb.StatementRequest.Ack(subscription=token, ids=ids))


@pytest.mark.parametrize("end", ["rollback", "error", "no end"])
def test_what_a_transaction_has_not_acknowledged_may_be_dealt_with_otherwise(
    program: Program, stream: str, end: str
) -> None:
    program.publish(stream, "a", "b", "c")
    member = Said()
    events = consume(program, member, stream=stream, group="g")
    token = next(events).opened.subscription
    ids = [next(events).delivery.id for _ in range(3)]

    said = Said()
    answers = transact(program, said)
    said.say(acking(token, *ids, *ids))
    assert [next(answers).WhichOneof("said") for _ in range(2)] == ["accepted"] * 2
    other = Said()
    others = transact(program, other)
    next(others)
    other.say(acking(token, ids[0]))
    with pytest.raises(grpc.RpcError) as caught:
        next(others)
    assert f"delivery {ids[0]} is in a transaction" in caught.value.details()
    other.end()
    if end == "rollback":
        said.say(pb.StatementRequest(rollback=pb.StatementRequest.Rollback()))
        assert next(answers).HasField("rolled_back")
    else:
        if end == "error":
            said.say(publishing("missing", "x"))
        said.end()
        with pytest.raises(grpc.RpcError):
            list(answers)

    said = Said()
    answers = transact(program, said)
    said.say(acking(token, ids[0]))
    said.say(pb.StatementRequest(commit=pb.StatementRequest.Commit()))
    assert list(answers)[-1].HasField("committed")
    member.say(acked(ids[1]))
    member.say(pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(ids=[ids[2]], delay_ms=0)))
    again = next(events).delivery
    assert (again.record.value.text, again.attempt) == ("c", 2)
    member.say(acked(ids[0]))
    with pytest.raises(grpc.RpcError) as caught:
        next(events)
    assert f"delivery {ids[0]} was acknowledged before" in caught.value.details()
    member.end()


def test_what_became_of_a_transaction(program: Program, stream: str) -> None:
    said = Said()
    answers = transact(program, said)
    said.say(pb.StatementRequest(commit=pb.StatementRequest.Commit()))
    assert [each.WhichOneof("said") for each in answers] == ["accepted", "committed"], "of nothing"
    said = Said()
    answers = transact(program, said)
    said.say(publishing(stream, "once", expect_offset=9))
    said.say(pb.StatementRequest(commit=pb.StatementRequest.Commit()))
    with pytest.raises(grpc.RpcError):
        list(answers)
    with pytest.raises(grpc.RpcError) as caught:
        outcome(program, "nonsense")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        outcome(program, "local/p0/900.1/7")
    error = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "has had ballot 900.1" in error.details()


def test_a_transaction_whose_call_is_cut_off_does_nothing(program: Program, stream: str) -> None:
    said = Said()
    answers = transact(program, said)
    said.say(publishing(stream, "never"))
    assert [next(answers).WhichOneof("said") for _ in range(2)] == ["accepted", "accepted"]
    answers.cancel()
    said.end()
    program.publish(stream, "after")
    assert program.texts(stream) == ["after"]


def test_errors_say_what_is_wrong_and_whether_to_try_again(program: Program, stream: str) -> None:
    program.publish(stream, "first")
    with pytest.raises(grpc.RpcError) as caught:
        program.publish(stream, "second", expect_offset=5)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    info = details_of(error)["ErrorInfo"]
    assert (info.reason, info.domain) == ("OffsetMismatchError", "hadron")
    assert (info.metadata["expected"], info.metadata["actual"]) == ("5", "1")
    assert info.metadata["retryable"] == "false"
    with pytest.raises(grpc.RpcError) as caught:
        program.publish("nowhere", "x")
    error = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "nowhere" in error.details()


@pytest.mark.parametrize(
    ("path", "request_", "told"),
    [
        ("Publish", pb.PublishRequest(stream="s"), "0 records"),
        ("Publish", pb.PublishRequest(stream="s", records=[pb.PublishedRecord()]), "no value"),
        ("Publish", pb.PublishRequest(namespace="a b", stream="s", records=[text("x")]), "a b"),
        ("Read", pb.ReadRequest(stream="s", start="soon"), "soon"),
        ("Subscribe", acked(1), "without `open`"),
        ("Transact", pb.StatementRequest(commit=pb.StatementRequest.Commit()), "without `begin`"),
        ("Publish", b"\xff\xff\xff", "are no hadron.v1.PublishRequest"),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    program: Program, path: str, request_: Any, told: str
) -> None:
    call = program.stream(RECORDS + path, pb.Value)
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([request_]), timeout=30))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert told in error.details()
    assert details_of(error)["BadRequest"].field_violations


def test_a_group_keeps_its_options_and_refuses_others(program: Program, stream: str) -> None:
    said = Said()
    next(consume(program, said, stream=stream, group="g", order="key", ack_deadline_ms=30_000))
    other = Said()
    with pytest.raises(grpc.RpcError) as caught:
        next(consume(program, other, stream=stream, group="g", ack_deadline_ms=20_000))
    assert "has ack_deadline_s 30, this member asks for 20" in caught.value.details()
    said.end()
    other.end()


def test_a_delivery_is_acknowledged_once(program: Program, stream: str) -> None:
    program.publish(stream, "a")
    said = Said()
    events = consume(program, said, stream=stream, group="g")
    next(events)
    assert next(events).delivery.id == 1
    said.say(acked(1))
    said.say(acked(1))
    with pytest.raises(grpc.RpcError) as caught:
        next(events)
    assert "delivery 1 was acknowledged before" in caught.value.details()
    said.end()


@pytest.mark.parametrize(
    ("third", "found"), [({"type": "a b"}, []), ({"partition": "no/p0"}, ["a", "b"])]
)
def test_what_became_of_the_records_before_one_that_is_refused(
    program: Program, stream: str, third: dict[str, str], found: list[str]
) -> None:
    """What is wrong with a record by itself is seen before the first is sent."""
    records = [text("a"), text("b"), text("c", **third), text("d")]
    publish = program.unary(RECORDS + "Publish", pb.PublishResponse)
    with pytest.raises(grpc.RpcError) as caught:
        publish(pb.PublishRequest(stream=stream, records=records), timeout=30)
    assert "record 3 of " in caught.value.details()
    assert program.texts(stream) == found
    metadata = details_of(caught.value)["ErrorInfo"].metadata
    fates = {name: metadata[name] for name in ("published", "unknown", "lost") if name in metadata}
    assert fates == ({"published": "2", "unknown": "0", "lost": "2"} if found else {})
