"""A program that speaks gRPC with plain grpcio, and nothing else of ours than the messages."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from hadron.doors.grpc.statuses import DETAILS
from hadron.wire._pb import calls_pb2
from hadron.wire._pb import records_pb2 as pb

RECORDS = "/hadron.v1.Records/"
CALLS = "/hadron.v1.Calls/"
MESSAGES = "/hadron.v1.Messages/"


class Program:
    """One connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        # By itself grpcio gives programs of one process one connection.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(address, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.channel.close()

    def unary(self, path: str, response: Any) -> Any:
        return self.channel.unary_unary(
            path, request_serializer=to_bytes, response_deserializer=response.FromString
        )

    def stream(self, path: str, response: Any) -> Any:
        return self.channel.stream_stream(
            path, request_serializer=to_bytes, response_deserializer=response.FromString
        )

    def publish(self, stream: str, *texts: str, timeout: float = 30, **fields: Any) -> Any:
        request = pb.PublishRequest(stream=stream, records=[text(each, **fields) for each in texts])
        return self.unary(RECORDS + "Publish", pb.PublishResponse)(request, timeout=timeout)

    def read(self, stream: str, timeout: float = 30, **fields: Any) -> Iterator[Any]:
        call = self.channel.unary_stream(
            RECORDS + "Read",
            request_serializer=to_bytes,
            response_deserializer=pb.ReadResponse.FromString,
        )
        for answer in call(pb.ReadRequest(stream=stream, **fields), timeout=timeout):
            yield from answer.records

    def texts(self, stream: str, **fields: Any) -> list[str]:
        return [each.value.text for each in self.read(stream, **fields)]


class Said:
    """What a program says on a stream, as it comes to its mind."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Any]:
        while (message := self._waiting.get()) is not None:
            yield message

    def say(self, message: Any) -> None:
        self._waiting.put(message)

    def end(self) -> None:
        self._waiting.put(None)


class Server:
    """A Serve call of a program, which is open once this is made."""

    def __init__(self, program: Program, endpoint: str, **opening: Any) -> None:
        self._said = Said()
        self.say(open=calls_pb2.ServerRequest.Open(endpoint=endpoint, **opening))
        serve = program.stream(CALLS + "Serve", calls_pb2.ServerEvent)
        self.events = serve(iter(self._said), timeout=90)
        assert next(self.events).HasField("opened")

    def say(self, **said: Any) -> None:
        self._said.say(calls_pb2.ServerRequest(**said))

    def next(self, kind: str) -> Any:
        """What comes next, which is of this kind."""
        event = next(self.events)
        assert event.WhichOneof("said") == kind, event
        return getattr(event, kind)

    def answer(self, id: int, value: str, **said: Any) -> None:
        answer = calls_pb2.ServerRequest.Answer(id=id, value=pb.Value(text=value), **said)
        self.say(answer=answer)

    def end(self, id: int) -> None:
        self.say(end=calls_pb2.ServerRequest.End(id=id))

    def leave(self) -> None:
        """Say nothing more."""
        self._said.end()

    def vanish(self) -> None:
        self.events.cancel()
        self._said.end()


def to_bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def text(value: str, **fields: Any) -> pb.PublishedRecord:
    return pb.PublishedRecord(value=pb.Value(text=value), **fields)


def details_of(error: Any) -> dict[str, Any]:
    """By the name of their message."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers[DETAILS])
    found = {}
    for packed in status.details:
        kind = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])
        message = kind()
        packed.Unpack(message)
        found[kind.__name__] = message
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
