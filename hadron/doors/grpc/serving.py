"""Serve: a program that serves an endpoint for as long as its call is open.

To the node's client it is a handler, which ends when the program has said its last word, and is
given values as they came: one that is decoded and encoded again is another one. Safety
rule: a call that nobody waits for any more keeps its slot until then (ENDPOINTS N3), and what a
program says of a call that is over, late or a second time, nobody hears (N2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from hadron.client.endpoints.calls import MAX_TIMEOUT_S, decoded, spec_of
from hadron.client.endpoints.handlers import undecoded
from hadron.client.endpoints.incoming import IncomingCall
from hadron.client.endpoints.items import Packed, headers_of
from hadron.client.endpoints.serving import DEFAULT_CALLS, Serving
from hadron.doors.clients import Clients
from hadron.doors.grpc.messages import value_message, value_of
from hadron.doors.grpc.requests import parse, receive_opening, senseless
from hadron.doors.grpc.rpc import Talk
from hadron.doors.grpc.statuses import stopping
from hadron.model.errors import (
    CallFailedError,
    ConnectionLostError,
    DeadlineExceededError,
    HadronError,
    OverloadedError,
    RequestError,
)
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.record import encode_value
from hadron.model.services import STREAM
from hadron.wire._pb import calls_pb2 as pb
from hadron.wire._pb import records_pb2

_BAD_ANSWER: Final = "BadAnswer"
"""The type of the error that a caller is told when a program answers with what is no answer."""

_MAX_IN_FLIGHT: Final = 1_000
"""Of one Serve call."""

_FRAME_BYTES: Final = 16
"""Of a value's message, beside the value."""

_MAX_TYPE: Final = 200
"""Characters of an error's type."""


class _Given:
    """A call that the program has, and what it has said of it."""

    def __init__(self, number: int, call: IncomingCall) -> None:
        self.number = number
        self.call = call
        self.values: deque[tuple[Any, int]] = deque()
        """Of the answer, and what each counts as held."""
        self.is_told = False
        """The program knows of it, and owes a last word."""
        self.is_over = False
        self.error: HadronError | None = None
        self.feeding = trio.CancelScope()
        self._news = trio.Event()

    def wake(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()

    async def change(self) -> None:
        await self._news.wait()

    def give_up(self, error: HadronError) -> None:
        """Its caller is told this, and the program that it was cancelled: its last word is still to
        come."""
        if self.error is None and not self.is_over:
            self.error = error
            self.wake()

    def end(self, error: HadronError | None = None) -> None:
        """The last word."""
        if not self.is_over:
            self.is_over, self.error = True, error
            self.wake()

    async def take(self) -> tuple[Any, int] | None:
        """The next value of the answer, and what it counts; None at the end. Raises what ended
        it."""
        while not self.values:
            if self.error is not None:
                raise self.error
            if self.is_over:
                return None
            await self.change()
        return self.values.popleft()


class Served:
    """One Serve call: `answer` or `answer_all` is what the client runs for each call."""

    def __init__(self, talk: Talk, nursery: trio.Nursery, most: int, *, is_single: bool) -> None:
        """
        Args:
            nursery: of the Serve call; streamed inputs are passed on there.
            is_single: an answer is one value.
        """
        self._talk = talk
        self._nursery = nursery
        self._is_single = is_single
        # Also those of an earlier leader, which the client does not count any more.
        self._slots = trio.Semaphore(most)
        self._open: dict[int, _Given] = {}
        self._last = 0
        self._kept_bytes = 0
        """Of answers that nobody has taken yet."""
        self.opened = trio.Event()
        self.is_leaving = False
        self._is_draining = False
        self.until_drained = trio.CancelScope()

    # --- what the client runs -------------------------------------------------------------------

    @undecoded
    async def answer(self, value: Any, call: IncomingCall) -> Any:
        """`value` is `Packed` or None, of streams an iterator of `Packed`."""
        async with self._given(value, call) as given:
            found = await given.take()
            if found is None:
                raise _bad_answer("the call was ended without a value")
            self._dealt_with(found[1])
            return found[0]

    @undecoded
    async def answer_all(self, value: Any, call: IncomingCall) -> AsyncIterator[Any]:
        async with self._given(value, call) as given:
            while (found := await given.take()) is not None:
                self._dealt_with(found[1])
                yield found[0]

    def _dealt_with(self, size: int) -> None:
        self._kept_bytes -= size
        self._talk.rpc.consumed(size)

    @asynccontextmanager
    async def _given(self, value: Any, call: IncomingCall) -> AsyncIterator[_Given]:
        """From when the program is given the call until its last word on it, whoever waits."""
        is_stream = hasattr(value, "__aiter__")
        message = None if is_stream else _message_of(value)
        with self._held(message.ByteSize() if message is not None else 0):
            async with self._slots:
                await self.opened.wait()
                self._last += 1
                given = self._open[self._last] = _Given(self._last, call)
                try:
                    await self._tell(given, message)
                    if is_stream:
                        self._nursery.start_soon(self._feed, given, value)
                    yield given
                finally:
                    given.feeding.cancel()
                    with trio.CancelScope(shield=True):
                        await self._wait_end(given)

    async def _tell(self, given: _Given, value: records_pb2.Value | None) -> None:
        call = given.call
        event = pb.ServerEvent(
            call=pb.ServerEvent.Incoming(
                id=given.number,
                value=value,
                headers=call.headers,
                attempt=call.attempt,
                left_ms=int(call.left_s * 1_000),
                caller=call.caller,
            )
        )
        await self._talk.send(event.SerializeToString())
        given.is_told = True

    @contextmanager
    def _held(self, size: int) -> Iterator[None]:
        """For as long as a call has a value that is kept. Raises `CallFailedError`."""
        try:
            self._talk.rpc.hold(size)
        except OverloadedError as error:
            raise CallFailedError(
                error.message, error.hint, retryable=True, type=error.code
            ) from None
        try:
            yield
        finally:
            self._talk.rpc.give(size)

    async def _feed(self, given: _Given, values: AsyncIterator[Packed]) -> None:
        """A streamed input, no faster than the program reads it."""
        number = given.number
        with given.feeding:
            try:
                async for value in values:
                    told = pb.ServerEvent.Input(id=number, value=_message_of(value))
                    await self._talk.send(pb.ServerEvent(input=told).SerializeToString())
            except Exception as error:
                # Of a caller that sends what is no value.
                why = f"the input cannot be read: {error}"
                given.give_up(CallFailedError(why, type=type(error).__name__))
                return
            ended = pb.ServerEvent.InputEnded(id=number)
            await self._talk.send(pb.ServerEvent(input_ended=ended).SerializeToString())

    async def _wait_end(self, given: _Given) -> None:
        if not given.is_told:
            given.end()
        elif not given.is_over:
            cancelled = pb.ServerEvent.Cancelled(id=given.number)
            await self._talk.send(pb.ServerEvent(cancelled=cancelled).SerializeToString())
        while True:
            while given.values:
                self._dealt_with(given.values.popleft()[1])
            if given.is_over:
                break
            await given.change()
        del self._open[given.number]

    async def watch(self, serving: Serving) -> None:
        """Raises what ended it: the endpoint was deleted, for example."""
        await serving.wait()
        if not (self.is_leaving or self._is_draining):
            raise ConnectionLostError(
                "this node's way to the endpoint's leader has ended", "serve it again, at any node"
            )

    def release(self) -> None:
        """The program says nothing more."""
        for given in self._open.values():
            given.end()

    # --- what the program says ------------------------------------------------------------------

    async def listen(self, serving: Serving, silence_s: float) -> None:
        """Up to its end."""
        while True:
            with trio.move_on_after(silence_s) as waiting:
                data = await self._talk.take()
            if waiting.cancelled_caught:
                if self._kept_bytes:
                    # What it says may be behind what a caller does not take.
                    continue
                raise DeadlineExceededError(
                    f"the server has said nothing for {silence_s:g} s",
                    "say `alive` as often as `open` promises, or set no `silence_ms`",
                )
            if data is None:
                return
            request = parse(pb.ServerRequest, data)
            kind = request.WhichOneof("said")
            self._kept_bytes += len(data)
            if kind == "answer" and self._answered(request.answer, len(data)):
                # Until its value is taken: a program is not read on behind a window of these.
                continue
            self._dealt_with(len(data))
            if kind == "answer":
                continue
            if kind == "end":
                self._ended(request.end, None)
            elif kind == "failure":
                self._ended(request.failure, _failure_of(request.failure))
            elif kind == "drain":
                self.drain(serving)
            elif kind != "alive":
                raise senseless(
                    self._talk, kind, "after `open` say answer, end, failure, drain or alive"
                )

    def _find(self, number: int) -> _Given | None:
        """None where it is over. Raises `RequestError` for one that never was."""
        if not 0 < number <= self._last:
            raise RequestError(
                f"a server speaks of call {number}, which it was never given",
                "answer by the id that came with `call`",
            )
        given = self._open.get(number)
        return None if given is None or given.is_over else given

    def _answered(self, answer: pb.ServerRequest.Answer, size: int) -> bool:
        """Whether somebody is to take its value."""
        given = self._find(answer.id)
        if given is None:
            return False
        try:
            if (length := answer.value.ByteSize()) > MAX_CALL_MESSAGE_BYTES + _FRAME_BYTES:
                raise RequestError(
                    f"{length} bytes are over the limit of {MAX_CALL_MESSAGE_BYTES}",
                    "answer in pieces, of an endpoint with `output: stream`",
                )
            value = value_of(answer.value)
            given.call.answer_headers.update(headers_of(answer.headers))
        except HadronError as error:
            given.end(_bad_answer(error.message, error.hint))
            return False
        given.values.append((value, size))
        if self._is_single:
            given.end()
        given.wake()
        return True

    def _ended(self, said: Any, error: HadronError | None) -> None:
        given = self._find(said.id)
        if given is None:
            return
        try:
            given.call.answer_headers.update(headers_of(said.headers))
        except HadronError as refused:
            error = error or _bad_answer(refused.message, refused.hint)
        given.end(error)

    def drain(self, serving: Serving, error: HadronError | None = None) -> None:
        """The program gets no more calls, and may answer those that it has; then its stream ends,
        by an error or without. A second time does nothing."""
        if not self._is_draining:
            self._is_draining = True
            self._nursery.start_soon(self._drain, serving, error)

    async def _drain(self, serving: Serving, error: HadronError | None) -> None:
        await serving.drain()
        if error is not None:
            raise error
        self.until_drained.cancel()


class ServingCalls:
    """At one door."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def serve(self, talk: Talk) -> None:
        asked = await receive_opening(talk, pb.ServerRequest)
        if asked.max_in_flight > _MAX_IN_FLIGHT:
            raise RequestError(
                f"max_in_flight is {asked.max_in_flight}",
                f"at most {_MAX_IN_FLIGHT}; call Serve several times for more",
            )
        client = await self._clients.of(asked.namespace or DEFAULT_NAMESPACE)
        is_single = spec_of(await client._endpoints.find(asked.endpoint)).output != STREAM
        most = asked.max_in_flight or DEFAULT_CALLS
        async with trio.open_nursery() as nursery:
            served = Served(talk, nursery, most, is_single=is_single)
            try:
                async with client.serve(
                    asked.endpoint,
                    served.answer if is_single else served.answer_all,
                    max_in_flight=most,
                    region=asked.region,
                    name=asked.name or f"gRPC {talk.rpc.peer}"[:100],
                    drain_s=MAX_TIMEOUT_S,
                ) as serving:
                    nursery.start_soon(served.watch, serving)
                    opened = pb.ServerEvent(opened=pb.ServerEvent.Opened())
                    await talk.send(opened.SerializeToString())
                    served.opened.set()
                    talk.rpc.on_drain = lambda: served.drain(serving, stopping())
                    with served.until_drained:
                        await served.listen(serving, asked.silence_ms / 1_000 or float("inf"))
                    # What it has not answered it never will: its callers are told.
                    served.is_leaving = True
                    serving.close()
            finally:
                # Not before: to the client it would look like answers.
                served.release()
            nursery.cancel_scope.cancel()


def _message_of(packed: Packed | None) -> records_pb2.Value:
    """Raises `CallFailedError` for what is not what it is said to be."""
    if packed is None:
        packed = encode_value(None)
    try:
        decoded(packed)
    except RequestError as error:
        raise CallFailedError(
            error.message, "send bytes, text or JSON", type="ValidationError"
        ) from None
    encoding, data = packed
    return value_message(encoding, bytes(data))


def _failure_of(said: pb.ServerRequest.Failure) -> CallFailedError:
    return CallFailedError(
        said.message or "the call has failed",
        said.hint,
        retryable=said.retryable,
        type=said.type[:_MAX_TYPE] or "CallFailedError",
    )


def _bad_answer(message: str, hint: str = "") -> CallFailedError:
    return CallFailedError(f"the endpoint's server: {message}", hint, type=_BAD_ANSWER)
