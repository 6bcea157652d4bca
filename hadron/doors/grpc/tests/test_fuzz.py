"""What strangers send is decoded, or refused with an error of ours: nothing else comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.doors.grpc.messages import fields_of, new_record
from hadron.doors.grpc.reading import parse, position_of
from hadron.doors.grpc.relay import offered, parsed, with_attachment
from hadron.doors.grpc.statuses import status_of
from hadron.model.errors import HadronError
from hadron.model.record import NewRecord, encode_value
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.messages import streams_pb2

METHODS = sorted(offered().values(), key=lambda each: each.number)
REQUESTS: list[Any] = [pb.PublishRequest, pb.ReadRequest, pb.ConsumeRequest, pb.StatementRequest]
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


@settings(max_examples=1_000, deadline=None)
@given(text=st.text(max_size=40))
def test_places_in_a_stream_are_decoded_or_refused(text: str) -> None:
    decoded(position_of, text, 1_700_000_000_000)


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
