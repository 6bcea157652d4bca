"""Calls of endpoints: programs with plain grpcio call, and serve, over a real node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import hadron
from hadron.doors.grpc.tests.support import CALLS, Program, Said, Server, details_of, until
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire._pb import calls_pb2 as pb
from hadron.wire._pb import records_pb2

Declare = Callable[..., str]
Code = grpc.StatusCode


def begin(
    program: Program, endpoint: str, text: str = "x", timeout: float | None = 60, **more: Any
) -> Any:
    """A call that is under way."""
    call = program.unary(CALLS + "Call", pb.SingleCallResponse)
    metadata = more.pop("metadata", None)
    value = records_pb2.Value(text=text)
    request = pb.SingleCallRequest(endpoint=endpoint, value=value, **more)
    return call.future(request, timeout=timeout, metadata=metadata)


def answer_of(future: Any) -> str:
    response: pb.SingleCallResponse = future.result()
    return response.value.text


def error_of(future: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        future.result()
    return caught.value


def reason_of(error: Any) -> str:
    return str(details_of(error)["ErrorInfo"].reason)


def begin_stream(program: Program, said: Said, endpoint: str, **opening: Any) -> Any:
    said.say(pb.StreamCallRequest(open=pb.StreamCallRequest.Open(endpoint=endpoint, **opening)))
    return program.stream(CALLS + "CallStream", pb.StreamCallEvent)(iter(said), timeout=60)


ENDED = pb.StreamCallRequest(end=pb.StreamCallRequest.End())


def value(text: str) -> pb.StreamCallRequest:
    return pb.StreamCallRequest(value=records_pb2.Value(text=text))


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Any]:
    with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
        yield client


# --- one value for one ----------------------------------------------------------------------------


def test_a_program_serves_and_another_one_calls(program: Program, endpoint: Declare) -> None:
    name = endpoint()
    server = Server(program, name)
    metadata = [
        ("traceparent", "00-1-2-01"),
        ("hadron-header-tenant", "acme"),
        ("other", "no"),
        ("hadron-header-tenant", "inc."),
    ]
    call = begin(program, name, "seven", timeout=20, headers={"page": "3"}, metadata=metadata)
    given = server.next("call")
    assert (given.id, given.value.text, given.attempt) == (1, "seven", 1)
    assert given.headers == {"traceparent": "00-1-2-01", "tenant": "acme, inc.", "page": "3"}
    assert 0 < given.left_ms <= 20_500, "gRPC's deadline"
    server.answer(1, "eight", headers={"cache": "hit"})
    assert call.result().value.text == "eight"
    assert call.result().headers == {"cache": "hit"}
    server.vanish()


KINDS: list[dict[str, Any]] = [
    *({"data": b"\xff"}, {"text": "7"}, {"json": '{"a":[1,null]}'}, {"json": '"text"'}),
    *({"json": "1.00"}, {"json": "100000000000000000.01"}, {"json": '{"a":1,"a":2}'}),
]


@pytest.mark.parametrize("given", KINDS)
def test_kinds_of_values_are_kept_both_ways(
    program: Program, endpoint: Declare, given: dict[str, Any]
) -> None:
    name = endpoint()
    server = Server(program, name)
    request = pb.SingleCallRequest(endpoint=name, value=records_pb2.Value(**given))
    call = program.unary(CALLS + "Call", pb.SingleCallResponse).future(request, timeout=30)
    assert server.next("call").value == request.value
    server.say(answer=pb.ServerRequest.Answer(id=1, value=request.value))
    assert call.result().value == request.value
    server.vanish()


def test_python_calls_a_program_and_a_program_calls_python(
    program: Program, endpoint: Declare, client: Any
) -> None:
    name = endpoint()
    with client.serve(name, lambda order, call: [order, call.headers["page"]]):
        call = program.unary(CALLS + "Call", pb.SingleCallResponse)
        asked = pb.SingleCallRequest(
            endpoint=name, value=records_pb2.Value(json='{"n": 1}'), headers={"page": "3"}
        )
        assert call(asked, timeout=30).value.json.replace(" ", "") == '[{"n":1},"3"]'
    other = endpoint()
    server = Server(program, other)
    futures = [begin(program, other, str(number)) for number in range(50)]
    for _ in futures:
        given = server.next("call")
        server.answer(given.id, given.value.text * 2)
    assert [answer_of(each) for each in futures] == [str(number) * 2 for number in range(50)]
    server.vanish()


def test_an_endpoint_that_is_not_declared_is_unknown(program: Program) -> None:
    error = error_of(begin(program, "nowhere"))
    assert error.code() is Code.NOT_FOUND
    assert "nowhere" in error.details()
    with pytest.raises(grpc.RpcError) as caught:
        Server(program, "nowhere")
    assert caught.value.code() is Code.NOT_FOUND


def test_where_nobody_serves_that_is_said_at_once(program: Program, endpoint: Declare) -> None:
    error = error_of(begin(program, endpoint()))
    assert error.code() is Code.UNAVAILABLE
    assert reason_of(error) == "NoServerError"
    assert "RetryInfo" in details_of(error)


@pytest.mark.parametrize("is_retryable", [False, True])
def test_what_a_handler_fails_with_is_told(
    program: Program, endpoint: Declare, is_retryable: bool
) -> None:
    name = endpoint()
    server = Server(program, name)
    call = begin(program, name)
    failure = pb.ServerRequest.Failure(
        id=server.next("call").id,
        type="ValueError",
        message="an amount is below zero",
        hint="give 1 or more",
        retryable=is_retryable,
    )
    server.say(failure=failure)
    error = error_of(call)
    assert error.code() is Code.UNKNOWN
    assert "an amount is below zero (give 1 or more)" in error.details()
    info = details_of(error)["ErrorInfo"]
    assert (info.reason, info.metadata["type"]) == ("CallFailedError", "ValueError")
    assert info.metadata["retryable"] == str(is_retryable).lower()
    assert ("RetryInfo" in details_of(error)) is is_retryable
    server.vanish()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"answer": pb.ServerRequest.Answer(id=1)}, "there is no value"),
        ({"answer": pb.ServerRequest.Answer(id=1, value=records_pb2.Value(json="{"))}, "no JSON"),
        (
            {"answer": pb.ServerRequest.Answer(id=1, value=records_pb2.Value(data=bytes(5 << 20)))},
            "over the limit",
        ),
        (
            {
                "answer": pb.ServerRequest.Answer(
                    id=1, value=records_pb2.Value(text="x"), headers={"a": "x" * 9_000}
                )
            },
            "over the limit",
        ),
        ({"end": pb.ServerRequest.End(id=1)}, "without a value"),
    ],
)
def test_what_is_no_answer_fails_that_call_alone(
    program: Program, endpoint: Declare, said: dict[str, Any], told: str
) -> None:
    name = endpoint()
    server = Server(program, name)
    call = begin(program, name)
    server.next("call")
    server.say(**said)
    error = error_of(call)
    assert told in error.details()
    assert details_of(error)["ErrorInfo"].metadata["type"] == "BadAnswer"
    call = begin(program, name)
    server.answer(server.next("call").id, "as before")
    assert answer_of(call) == "as before"
    server.vanish()


def test_a_second_answer_is_heard_by_nobody(program: Program, endpoint: Declare) -> None:
    name = endpoint()
    server = Server(program, name, max_in_flight=1)
    for number in range(1, 4):
        call = begin(program, name)
        assert server.next("call").id == number
        server.answer(number, "first")
        server.answer(number, "second")
        server.end(number)
        assert answer_of(call) == "first"
    server.vanish()


def test_who_answers_what_it_was_not_given_is_told(program: Program, endpoint: Declare) -> None:
    server = Server(program, endpoint())
    server.answer(7, "x")
    with pytest.raises(grpc.RpcError) as caught:
        next(server.events)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert "call 7, which it was never given" in caught.value.details()


# --- time and cancellation ------------------------------------------------------------------------


def test_a_server_that_never_answers_costs_the_deadline_and_keeps_its_slot(
    program: Program, endpoint: Declare, client: Any
) -> None:
    name = endpoint(max_waiting=5)
    server = Server(program, name, max_in_flight=1)
    began = time.monotonic()
    error = error_of(begin(program, name, timeout=0.5))
    assert error.code() is Code.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 5
    assert server.next("call").left_ms <= 1_000
    assert server.next("cancelled").id == 1
    waiting = begin(program, name, "second", timeout=0.3)
    assert error_of(waiting).code() is Code.DEADLINE_EXCEEDED, "it still works on the first"
    # The program's own clock has ended it, a moment before the node's.
    until(lambda: client.endpoints(name)[0].waiting == 0)
    third = begin(program, name, "third")
    server.end(1)
    given = server.next("call")
    assert given.value.text == "third"
    server.answer(given.id, "done")
    assert answer_of(third) == "done"
    server.vanish()


def test_a_call_without_a_deadline_has_half_a_minute(program: Program, endpoint: Declare) -> None:
    name = endpoint()
    server = Server(program, name)
    call = begin(program, name, timeout=None)
    assert 25_000 < server.next("call").left_ms <= 30_000
    server.answer(1, "x")
    assert answer_of(call) == "x"
    server.vanish()


def test_who_cancels_is_not_worked_for(program: Program, endpoint: Declare) -> None:
    name = endpoint()
    server = Server(program, name)
    call = begin(program, name)
    server.next("call")
    began = time.monotonic()
    call.cancel()
    assert server.next("cancelled").id == 1
    assert time.monotonic() - began < 5
    server.answer(1, "late, and heard by nobody")
    again = begin(program, name)
    server.answer(server.next("call").id, "second")
    assert answer_of(again) == "second"
    server.vanish()


# --- servers that are lost, and that leave --------------------------------------------------------

_SERVE = """
import sys
from hadron.doors.grpc.tests.support import Program, Server
server = Server(Program(sys.argv[1]), sys.argv[2])
print("opened", flush=True)
for _ in range(int(sys.argv[3])):
    print(server.next("call").value.text, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_server_is_killed_with_calls_under_way(
    program: Program, endpoint: Declare, is_idempotent: bool
) -> None:
    name = endpoint(idempotent=is_idempotent)
    command = [sys.executable, "-c", _SERVE, program.address, name, "3"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "opened\n"
        calls = [begin(program, name, str(number)) for number in range(3)]
        assert sorted(dying.stdout.readline() for _ in calls) == ["0\n", "1\n", "2\n"]
        other = Server(program, name)
        dying.kill()
        began = time.monotonic()
        if not is_idempotent:
            for each in calls:
                error = error_of(each)
                assert error.code() is Code.UNKNOWN
                assert reason_of(error) == "CallUnknownError"
            assert time.monotonic() - began < 2
    given = []
    if is_idempotent:
        for _ in calls:
            again = other.next("call")
            assert again.attempt == 2
            given.append(again.value.text)
            other.answer(again.id, again.value.text)
        assert [answer_of(each) for each in calls] == ["0", "1", "2"]
    last = begin(program, name, "last")
    event = other.next("call")
    assert event.value.text == "last", "and nothing of the killed one's, unless it is idempotent"
    other.answer(event.id, "x")
    assert answer_of(last) == "x"
    assert sorted(given) == (["0", "1", "2"] if is_idempotent else [])
    other.vanish()


def test_a_server_that_drains_answers_what_it_has(
    program: Program, endpoint: Declare, client: Any
) -> None:
    name = endpoint()
    leaving = Server(program, name)
    call = begin(program, name)
    leaving.next("call")
    other = Server(program, name)
    leaving.say(drain=pb.ServerRequest.Drain())
    leaving.say(drain=pb.ServerRequest.Drain())
    until(lambda: any(each.is_leaving for each in client.endpoints(name)[0].servers))
    later = begin(program, name, "later")
    given = other.next("call")
    assert given.value.text == "later"
    other.answer(given.id, "from the other")
    assert answer_of(later) == "from the other"
    leaving.answer(1, "from who leaves")
    assert answer_of(call) == "from who leaves"
    assert list(leaving.events) == []
    other.vanish()


def test_who_says_nothing_more_leaves_its_callers_in_doubt(
    program: Program, endpoint: Declare
) -> None:
    name = endpoint()
    server = Server(program, name)
    call = begin(program, name)
    server.next("call")
    server.leave()
    assert reason_of(error_of(call)) == "CallUnknownError"
    assert all(each.HasField("cancelled") for each in server.events)


@pytest.mark.long
def test_a_server_that_falls_silent_is_lost(program: Program, endpoint: Declare) -> None:
    name = endpoint()
    server = Server(program, name, silence_ms=500)
    call = begin(program, name)
    server.next("call")
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        server.say(alive=pb.ServerRequest.Alive())
        time.sleep(0.1)
    assert not call.done(), "it said that it lives"
    assert reason_of(error_of(call)) == "CallUnknownError"
    with pytest.raises(grpc.RpcError) as caught:
        list(server.events)
    assert "has said nothing for 0.5 s" in caught.value.details()


def test_a_server_of_a_deleted_endpoint_is_told(
    program: Program, endpoint: Declare, client: Any
) -> None:
    name = endpoint()
    server = Server(program, name)
    client.delete([("Endpoint", "default", name)])
    with pytest.raises(grpc.RpcError) as caught:
        next(server.events)
    assert caught.value.code() is Code.NOT_FOUND
    assert name in caught.value.details()


# --- streams --------------------------------------------------------------------------------------


def test_an_input_and_an_answer_may_be_streams(program: Program, endpoint: Declare) -> None:
    name = endpoint(input="stream", output="stream")
    server = Server(program, name)
    said = Said()
    answers = begin_stream(program, said, name, headers={"page": "3"})
    given = server.next("call")
    assert not given.HasField("value")
    assert given.headers == {"page": "3"}
    for number in range(100):
        said.say(value(str(number)))
        assert server.next("input").value.text == str(number)
        server.answer(1, str(number * 2), headers={"first": "yes"} if number == 0 else {})
        answer = next(answers)
        assert answer.value.text == str(number * 2)
        assert answer.headers == ({"first": "yes"} if number == 0 else {})
    said.say(ENDED)
    server.next("input_ended")
    server.say(end=pb.ServerRequest.End(id=1, headers={"rows": "100"}))
    last = list(answers)
    assert [each.HasField("value") for each in last] == [False]
    assert last[0].headers == {"first": "yes", "rows": "100"}
    said.end()
    server.vanish()


def test_kinds_of_values_of_streams_are_kept_both_ways(program: Program, endpoint: Declare) -> None:
    name = endpoint(input="stream", output="stream")
    server = Server(program, name)
    said = Said()
    answers = begin_stream(program, said, name)
    server.next("call")
    for given in KINDS:
        value = records_pb2.Value(**given)
        said.say(pb.StreamCallRequest(value=value))
        assert server.next("input").value == value
        server.say(answer=pb.ServerRequest.Answer(id=1, value=value))
        assert next(answers).value == value
    answers.cancel()
    said.end()
    server.vanish()


def test_a_stream_may_be_answered_with_one_value_before_it_has_ended(
    program: Program, endpoint: Declare
) -> None:
    name = endpoint(input="stream")
    server = Server(program, name)
    said = Said()
    answers = begin_stream(program, said, name)
    said.say(value("1"))
    server.next("call")
    assert server.next("input").value.text == "1"
    server.answer(1, "enough")
    assert [each.value.text for each in answers] == ["enough"]
    said.end()
    server.vanish()


def test_who_cancels_a_stream_half_way_is_not_worked_for(
    program: Program, endpoint: Declare
) -> None:
    name = endpoint(input="stream", output="stream")
    server = Server(program, name, max_in_flight=1)
    said = Said()
    answers = begin_stream(program, said, name)
    server.next("call")
    said.say(value("1"))
    server.next("input")
    server.answer(1, "one")
    assert next(answers).value.text == "one"
    answers.cancel()
    assert server.next("cancelled").id == 1
    said.end()
    for _ in range(1_000):
        server.answer(1, "x" * 10_000)
    server.end(1)
    said = Said()
    answers = begin_stream(program, said, name)
    given = server.next("call")
    server.end(given.id)
    assert list(answers) == []
    said.end()
    server.vanish()


def test_a_streamed_answer_fails_behind_its_values(program: Program, endpoint: Declare) -> None:
    name = endpoint(output="stream")
    server = Server(program, name)
    said = Said()
    answers = begin_stream(program, said, name, value=records_pb2.Value(text="q"))
    assert server.next("call").value.text == "q"
    server.answer(1, "a")
    server.say(failure=pb.ServerRequest.Failure(id=1, type="KeyError", message="b"))
    assert next(answers).value.text == "a"
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert details_of(caught.value)["ErrorInfo"].metadata["type"] == "KeyError"
    said.end()
    server.vanish()


@pytest.mark.parametrize(
    ("spec", "opening", "more", "told"),
    [
        ({}, {}, [value("x")], "takes one value"),
        ({}, {"value": records_pb2.Value(text="x")}, [value("y")], "a value follows"),
        ({"input": "stream"}, {"value": records_pb2.Value(text="x")}, [], "takes a stream"),
        ({"input": "stream"}, {}, [pb.StreamCallRequest()], "says nothing"),
        ({"input": "stream"}, {}, [ENDED, value("x")], "a value follows"),
        ({"input": "stream"}, {}, [value("x"), None], "before the input did"),
        ({"input": "stream"}, {}, [pb.StreamCallRequest(value=records_pb2.Value())], "no value"),
        (
            {"input": "stream"},
            {},
            [pb.StreamCallRequest(value=records_pb2.Value(data=bytes(5 << 20)))],
            "over the limit",
        ),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    program: Program,
    endpoint: Declare,
    spec: dict[str, Any],
    opening: dict[str, Any],
    more: list[Any],
    told: str,
) -> None:
    name = endpoint(**spec)
    server = Server(program, name)
    said = Said()
    answers = begin_stream(program, said, name, **opening)
    for each in more:
        said.say(each)
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    assert caught.value.code() is Code.INVALID_ARGUMENT, caught.value
    assert told in caught.value.details()
    said.end()
    server.vanish()


@pytest.mark.parametrize("way", ["input", "output"])
def test_a_call_for_one_value_of_what_streams_runs_nothing(
    program: Program, endpoint: Declare, way: str
) -> None:
    name = endpoint(**{way: "stream"})
    server = Server(program, name)
    error = error_of(begin(program, name))
    assert error.code() is Code.INVALID_ARGUMENT
    assert name in error.details()
    assert f"{way}: stream" in error.details()
    assert "CallStream" in str(details_of(error))
    server.vanish()


def test_a_large_stream_waits_for_who_is_slow_and_nothing_else_does(
    program: Program, endpoint: Declare
) -> None:
    name = endpoint(input="stream", output="stream")
    other = endpoint()
    sent, count = 0, 160

    def requests() -> Iterator[Any]:
        nonlocal sent
        yield pb.StreamCallRequest(open=pb.StreamCallRequest.Open(endpoint=name))
        for _ in range(count):
            sent += 1
            yield pb.StreamCallRequest(value=records_pb2.Value(data=bytes(1 << 20)))
        yield ENDED

    with Program(program.address) as slow, Program(program.address) as caller:
        server = Server(slow, name)
        stream = caller.stream(CALLS + "CallStream", pb.StreamCallEvent)
        answers = stream(requests(), timeout=90)
        server.next("call")
        quick = Server(program, other)
        for number in range(100):
            call = begin(program, other, str(number))
            quick.answer(quick.next("call").id, "x")
            assert answer_of(call) == "x"
        # Windows of HTTP/2 grow by themselves, on either side of the node.
        assert sent < count * 3 // 4, "the others are still to be sent: nobody has read one"
        for _ in range(count):
            assert len(server.next("input").value.data) == 1 << 20
        server.next("input_ended")
        for _ in range(count):
            server.say(answer=pb.ServerRequest.Answer(id=1, value=records_pb2.Value(data=b"x")))
        server.end(1)
        assert sum(len(each.value.data) for each in answers) == count
        server.vanish()
        quick.vanish()
