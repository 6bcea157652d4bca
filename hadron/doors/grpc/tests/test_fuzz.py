"""What strangers send is decoded, or refused with an error of ours: nothing else comes of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.client.endpoints.incoming import IncomingCall
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.calling import headers_of
from hadron.doors.grpc.exchanging import new_message
from hadron.doors.grpc.messages import fields_of, new_record, value_message, value_of
from hadron.doors.grpc.reading import position_of
from hadron.doors.grpc.relay import offered, parsed, with_attachment
from hadron.doors.grpc.requests import parse
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.serving import Served
from hadron.doors.grpc.statuses import status_of
from hadron.model.errors import CallFailedError, HadronError
from hadron.model.record import NewRecord, encode_value
from hadron.wire._pb import calls_pb2, messages_pb2, stages_pb2
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.messages import streams_pb2

METHODS = sorted(offered().values(), key=lambda each: each.number)
REQUESTS: list[Any] = [pb.PublishRequest, pb.ReadRequest, pb.ConsumeRequest, pb.StatementRequest]
CALLED: list[Any] = [
    *(calls_pb2.SingleCallRequest, calls_pb2.StreamCallRequest, calls_pb2.ServerRequest),
    *(messages_pb2.MessagesRequest, messages_pb2.SubscriptionRequest, stages_pb2.WorkRequest),
]
SAMPLES = [
    pb.PublishRequest(
        stream="s",
        records=[
            pb.PublishedRecord(
                value=pb.Value(json='{"a": 1}'),
                key=pb.Key(text="k"),
                headers={"a": "b"},
                timestamp_ms=-1,
            )
        ],
    ).SerializeToString(),
    pb.ConsumeRequest(
        open=pb.ConsumeRequest.Open(stream="s", group="g", credit=1, order="key")
    ).SerializeToString(),
    calls_pb2.SingleCallRequest(
        endpoint="e", value=pb.Value(json="[1]"), headers={"a": "b"}
    ).SerializeToString(),
    messages_pb2.MessagesRequest(
        exchange="e",
        messages=[
            messages_pb2.NewMessage(topic="a.b", value=pb.Value(text="x"), headers={"a": ""})
        ],
    ).SerializeToString(),
    stages_pb2.WorkRequest(
        complete=stages_pb2.WorkRequest.Complete(
            id=1, output=pb.PublishedRecord(value=pb.Value(data=b"x"))
        )
    ).SerializeToString(),
    streams_pb2.ProduceRequest(stream="s", attachment=b"x" * 40).SerializeToString(),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message that was one."""
    data = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(data)))
    return bytes(data[:cut]) + draw(st.binary(max_size=20))


BYTES = st.binary(max_size=200) | damaged()


def decoded(decode: Callable[..., Any], *given: Any) -> Any:
    """None where it is refused, for which there is one code."""
    try:
        return decode(*given)
    except HadronError as error:
        refused = error
    assert status_of(refused).code.name == "INVALID_ARGUMENT"
    return None


@pytest.mark.long
@settings(max_examples=3_000, deadline=None)
@given(data=BYTES, kind=st.sampled_from(REQUESTS))
def test_requests_of_records_are_decoded_or_refused(data: bytes, kind: Any) -> None:
    request = decoded(parse, kind, data)
    for each in getattr(request, "records", ()):
        record = decoded(new_record, each)
        if record is None:
            continue
        assert isinstance(record, NewRecord)
        assert encode_value(record.value)
        assert set(fields_of(record)) < set(NewRecord.__struct_fields__)


@pytest.mark.long
@settings(max_examples=3_000, deadline=None)
@given(data=BYTES, method=st.sampled_from(METHODS))
def test_requests_of_all_methods_are_decoded_or_refused(data: bytes, method: Any) -> None:
    found = decoded(parsed, method, data)
    if found is None:
        return
    message, attachment = found
    assert isinstance(message, method.request)
    assert not getattr(message, "attachment", b"")
    again = with_attachment(message, memoryview(attachment))
    assert parsed(method, again) == (message, attachment)


@pytest.mark.long
@settings(max_examples=2_000, deadline=None)
@given(data=BYTES, kind=st.sampled_from(CALLED))
def test_requests_of_calls_and_messages_are_decoded_or_refused(data: bytes, kind: Any) -> None:
    request = decoded(parse, kind, data)
    for each in getattr(request, "messages", ()):
        record = decoded(new_message, each)
        assert record is None or encode_value(record.value)
    if request is not None and kind is calls_pb2.SingleCallRequest:
        headers = headers_of({"traceparent": "t", "x-bin": b"x"}, request.headers)
        assert headers.items() >= dict(request.headers).items()
        assert headers.keys() == {"traceparent", *request.headers}
        value = decoded(value_of, request.value)
        if value is not None:
            encoded = encode_value(value)
            assert encode_value(value_of(value_message(*encoded))) == encoded


Request = calls_pb2.ServerRequest
IDS = st.integers(0, 4)
VALUES = st.sampled_from([pb.Value(text="x"), pb.Value(json="[1]"), pb.Value(json="{"), pb.Value()])
SAID = st.one_of(
    st.builds(lambda id, value: Request(answer=Request.Answer(id=id, value=value)), IDS, VALUES),
    st.builds(lambda id: Request(end=Request.End(id=id)), IDS),
    st.builds(lambda id: Request(failure=Request.Failure(id=id, type="E")), IDS),
    st.just(Request(alive=Request.Alive())),
    st.just(Request()),
).map(Request.SerializeToString)
CALLS = 3


def fates_of(said: list[bytes]) -> dict[int, str]:
    """What becomes of calls 1 to 3: the first word on each counts, up to what makes no sense."""
    fates: dict[int, str] = {}
    for data in said:
        try:
            request = Request.FromString(data)
        except DecodeError:
            break
        kind = request.WhichOneof("said")
        if kind is None or kind == "open":
            break
        if kind in ("alive", "drain"):
            continue
        word = getattr(request, kind)
        if not 0 < word.id <= CALLS:
            break
        fate = "BadAnswer"
        if kind == "failure":
            fate = word.type or "CallFailedError"
        elif kind == "answer" and decoded(value_of, word.value) is not None:
            fate = repr(encode_value(value_of(word.value)))
        fates.setdefault(word.id, fate)
    return fates


@pytest.mark.long
@settings(max_examples=700, deadline=None)
@given(said=st.lists(SAID | SAID | SAID | BYTES, max_size=12))
def test_the_first_word_on_a_call_counts_whatever_a_server_says(said: list[bytes]) -> None:
    fates: dict[int, str] = {}

    async def scene() -> None:
        told: list[bytes] = []
        other: Any = SimpleNamespace(send=told.append)
        rpc = Rpc(Lane(lambda drain: drain()), other, "/", {}, "")
        talk = Talk(rpc)
        async with trio.open_nursery() as nursery:
            served = Served(talk, nursery, CALLS, is_single=True)
            served.opened.set()

            async def call(number: int) -> None:
                incoming = IncomingCall("e", {}, "a test", 1, 1.0, lambda: 0.0)
                try:
                    fates[number] = repr(encode_value(await served.answer(None, incoming)))
                except CallFailedError as error:
                    fates[number] = error.type

            for number in range(1, CALLS + 1):
                nursery.start_soon(call, number)
                await trio.testing.wait_all_tasks_blocked()
            assert len(told) == CALLS
            for data in said:
                rpc.receive(data)
            rpc.ended()
            serving: Any = SimpleNamespace(drain=trio.sleep_forever)
            code = "OK"
            try:
                await served.listen(serving, float("inf"))
            except HadronError as error:
                code = status_of(error).code.name
            assert code in ("OK", "INVALID_ARGUMENT")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            served.release()

    trio.run(scene)
    assert fates == fates_of(said)


@pytest.mark.long
@settings(max_examples=1_000, deadline=None)
@given(text=st.text(max_size=40))
def test_places_in_a_stream_are_decoded_or_refused(text: str) -> None:
    decoded(position_of, text, 1_700_000_000_000)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(message=st.text(max_size=5_000), hint=st.text(max_size=5_000))
def test_errors_fit_into_the_trailers_of_any_library(message: str, hint: str) -> None:
    message = message.encode(errors="replace").decode()
    hint = hint.encode(errors="replace").decode()
    for kind in HadronError.by_code.values():
        status = status_of(kind(message, hint))
        assert sum(len(value) for _, value in status.trailers) < 3_000
        assert len(status.message.encode()) < 1_100


@pytest.mark.parametrize("kind", [each for _, each in sorted(HadronError.by_code.items())])
def test_every_error_has_a_code(kind: type[HadronError]) -> None:
    assert status_of(kind("what", "way out")).code is not None
