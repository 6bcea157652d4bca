"""Messages of very many parts, which take a hundred times their bytes once they are parsed; and who
else has a turn while there are many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio

from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.exchanging import Exchanging
from hadron.doors.grpc.fields import MalformedError, TooManyError, check_fields, fields, split
from hadron.doors.grpc.limits import Limits
from hadron.doors.grpc.publishing import Publishing
from hadron.doors.grpc.relay import parsed
from hadron.doors.grpc.requests import parse, published
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.tests.support import text
from hadron.doors.grpc.transacting import Transacting, _ack
from hadron.model.errors import HadronError, RecordTooLargeError, RequestError
from hadron.wire._pb import calls_pb2 as calls
from hadron.wire._pb import messages_pb2 as messages
from hadron.wire._pb import records_pb2 as pb
from hadron.wire._pb import stages_pb2 as stages
from hadron.wire.messages import method

MIB = 1 << 20


def of(number: int, what: bytes) -> bytes:
    """A field that says so many bytes."""
    size, length = len(what), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + length + what


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (pb.ConsumeRequest, of(1, of(5, b"") * MIB)),  # open.partitions
        (pb.ConsumeRequest, of(2, of(1, b"\x01" * MIB))),  # ack.ids
        (pb.ConsumeRequest, of(2, b"\x08\x01" * MIB)),  # the same, one by one
        (pb.PublishedRecord, of(5, b"") * MIB),  # headers
        (pb.StatementRequest, of(3, of(2, b"\x01" * MIB))),  # ack.ids
        (messages.SubscriptionRequest, of(3, b"") * MIB),  # patterns
        (calls.SingleCallRequest, of(4, b"") * MIB),  # headers
        (stages.WorkRequest, of(2, of(2, of(5, b"") * MIB))),  # complete.output.headers
        (pb.ReadRequest, b"\x98\x06\x01" * MIB),  # what nobody knows
        (pb.PublishedRecord, of(5, of(1, b"") * MIB)),  # a header's name, again and again
    ],
)
def test_a_message_of_very_many_parts_is_not_parsed(kind: Any, data: bytes) -> None:
    with pytest.raises(RequestError, match="more than 20000 fields") as refused:
        parse(kind, data)
    assert refused.value.hint == "say less in a message"


def test_more_records_than_a_request_may_have_are_not_parsed() -> None:
    data = of(2, b"s") + of(3, b"") * MIB
    with pytest.raises(RequestError, match="a request with more than 10000 records"):
        published(pb.PublishRequest, "records", data, "a request with {} records")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("ListGroups", RecordTooLargeError, "is too large for"),
        # It may have an attachment, which is looked for.
        ("Produce", RequestError, "more than 20000 fields"),
    ],
)
def test_what_is_too_large_for_a_call_of_frames_is_not_parsed(
    name: str, error: type[HadronError], said: str
) -> None:
    with pytest.raises(error, match=said):
        parsed(method(name), of(1, b"x") * (2 * MIB))


def test_what_is_large_by_its_bytes_is_taken() -> None:
    record = text("x" * MIB, headers={"a": "b"}, key=pb.Key(text="k"), timestamp_ms=-1)
    whole = pb.PublishRequest(namespace="n", stream="s", records=[record] * 3)
    data = whole.SerializeToString()
    check_fields(pb.PublishRequest.DESCRIPTOR, data)
    request, parts = published(pb.PublishRequest, "records", data, "{}")
    assert [parse(pb.PublishedRecord, each) for each in parts] == [record] * 3
    request.records.extend(whole.records)
    assert request == whole
    asked = method("Produce").request(stream="s", attachment=b"x" * (16 * MIB))
    message, attachment = parsed(method("Produce"), asked.SerializeToString())
    assert (message.stream, message.attachment, len(attachment)) == ("s", b"", 16 * MIB)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b" + b"\x0c",  # a group
        b"\x0a\x05abcd",
        b"\x0a",
        b"\x09\x01",
        b"\x08" + b"\xff" * 11,
        b"\xff",
    ],
)
def test_what_is_no_message_is_none(data: bytes) -> None:
    with pytest.raises(MalformedError):
        list(fields(data, 0, len(data)))


def test_other_fields_beside_the_parts_are_counted() -> None:
    with pytest.raises(TooManyError):
        split(of(1, b"") * 30_000, 3, 10)


class _ReachedError(Exception):
    """All was looked at."""


class _NoClients:
    async def of(self, _namespace: str) -> Any:
        raise _ReachedError


async def _publish() -> None:
    request = pb.PublishRequest(stream="s", records=[text("x")] * 5_000)
    with pytest.raises(_ReachedError):
        await Publishing(cast(Any, _NoClients()))._begin(request.SerializeToString())


async def _publish_messages() -> None:
    new = messages.NewMessage(topic="t", value=pb.Value(text="x"))
    talk = _talk()
    talk.rpc.receive(messages.MessagesRequest(messages=[new] * 5_000).SerializeToString())
    with pytest.raises(_ReachedError):
        await Exchanging(cast(Any, _NoClients()), Limits()).publish(talk)


async def _answer() -> None:
    talk = _talk()
    for _ in range(5_000):
        await talk.send(b"x")
        # The program takes it.
        talk.rpc.written(1)


async def _acknowledge() -> None:
    class Some:
        def claim(self, ids: list[int]) -> dict[int, int]:
            return {each: each for each in ids}

        async def ack(self, _delivery: int) -> None:
            pass

    some: Any = Some()
    await _ack(some, some, {}, range(5_000))


def _talk() -> Talk:
    return Talk(Rpc(Lane(lambda _: None), cast(Any, _Deaf()), "/", {}, ""))


class _Deaf:
    def send(self, data: bytes) -> None: ...


@pytest.mark.parametrize("does", [_publish, _publish_messages, _answer, _acknowledge])
async def test_while_there_is_much_others_go_on(does: Callable[[], Awaitable[None]]) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await does()
        nursery.cancel_scope.cancel()
    assert turns >= 5_000 // 200


async def test_a_statement_says_one_thing() -> None:
    """Which of two would count is not to be told: they are read one by one."""
    talk = _talk()
    two = pb.StatementRequest(publish=pb.PublishRequest(stream="s", records=[text("x")]))
    rollback = pb.StatementRequest(rollback=pb.StatementRequest.Rollback())
    talk.rpc.receive(two.SerializeToString() + rollback.SerializeToString())
    nothing: Any = None
    with pytest.raises(RequestError, match="says several things"):
        await Transacting(nothing, nothing)._serve(talk, nothing, nothing, {})
