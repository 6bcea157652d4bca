"""A call with a streamed input, a streamed answer, or both, as the program that calls sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import anyio

from hadron.client.endpoints.calls import (
    MAY_CHANGE,
    NOT_RUN,
    EndpointCalls,
    Shape,
    Told,
    in_time,
    spec_of,
    tried_again,
    unpack,
)
from hadron.client.endpoints.channel import Channel
from hadron.client.endpoints.items import Inflow, Outflow, Packed, pack
from hadron.client.terms.opening import EnteredOnce
from hadron.model.backoff import Backoff
from hadron.model.errors import CallUnknownError, HadronError, RequestError
from hadron.model.schema import SchemaObject
from hadron.wire.call_items import Item


class _Waiter:
    """`channel.Waiter`: what comes goes to who takes it."""

    def __init__(self, grant: Callable[[int], None]) -> None:
        self.inflow = Inflow(grant)
        self.outflow = Outflow()
        self.headers: dict[str, str] = {}
        self.has_answered = False

    def value(self, packed: Packed, item: Item) -> None:
        self._note(item)
        self.has_answered = True
        self.inflow.put(packed, end=item.end)
        if item.end:
            self.outflow.end()

    def end(self, item: Item) -> None:
        self._note(item)
        self.inflow.end()
        self.outflow.end()

    def fail(self, error: HadronError, item: Item | None) -> None:
        if item is not None:
            self._note(item)
        self.inflow.end(error)
        self.outflow.end(error)

    def credit(self, size: int) -> None:
        self.outflow.granted(size)

    def _note(self, item: Item) -> None:
        if item.headers:
            self.headers.update(item.headers)


class CallStream(EnteredOnce):
    """A call that is under way, of `async with client.call_stream(...) as call`.

    `send` what goes in, and `end` it; take the answer with `async for value in call`, or with
    `result` where there is one value. Leaving the block cancels what is not over.
    """

    def __init__(
        self, calls: EndpointCalls, told: Told, packed: Packed | None, answer_type: Any
    ) -> None:
        self._calls = calls
        self._told = told
        self._packed = packed
        self._shape = Shape(has_value=packed is not None, is_single=False)
        self._answer_type = answer_type
        self._item: SchemaObject | None = None
        self._channel: Channel | None = None
        self._deadline_s = 0.0
        self._backoff = Backoff(calls.session.ports.random)
        self._number = 0
        self._unknown: CallUnknownError | None = None
        """Of a try that another one has followed."""
        self._is_closed = False
        self._waiter = _Waiter(self._grant)
        self._has_ended = packed is not None

    def __repr__(self) -> str:
        return f"<CallStream {self}>"

    def __str__(self) -> str:
        state = "not open yet" if self._channel is None else "open"
        if self._waiter.inflow.has_ended:
            state = "answered"
        return f"to {self._told.endpoint!r}, {state}"

    async def __aenter__(self) -> Self:
        self._enter("call")
        self._told = in_time(self._told)
        self._deadline_s = anyio.current_time() + self._told.timeout_s
        await self._calls.attempt_until(self._told, self._shape, self._deadline_s, self._open)
        return self

    async def _open(self, item: SchemaObject, channel: Channel, left_s: float) -> None:
        opening = self._calls.opening(item, self._told, self._shape, left_s)
        if self._packed is not None:
            self._waiter.outflow.spend(len(self._packed[1]))
        self._item, self._channel = item, channel
        self._number = channel.open(
            self._waiter,
            opening,
            self._packed,
            end=True,
            within_s=self._told.timeout_s,
            may_repeat=spec_of(item).idempotent,
        )

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give it up, if it is not over."""
        self._is_closed = True
        if self._channel is not None:
            self._channel.cancel(self._number)
        closed = RequestError("the call was closed", "use it within its block")
        self._waiter.inflow.end(closed)
        self._waiter.outflow.end(closed)

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer, once the first of it has come."""
        return self._waiter.headers

    # --- what goes in -----------------------------------------------------------------------------

    async def send(self, value: Any) -> None:
        """One value of the input; waits while the server has not taken what was sent before.

        Raises what ended the call, and `RequestError` once the input was ended, or the answer is
        complete: then nobody takes it any more.
        """
        if self._has_ended:
            raise RequestError("the input of the call has ended", "send before `end`")
        packed = pack(value)
        if not await self._waiter.outflow.wait():
            raise RequestError("the server has answered, and takes nothing more", "read the answer")
        assert self._channel is not None
        self._waiter.outflow.spend(len(packed[1]))
        self._channel.send(self._number, packed)

    async def end(self) -> None:
        """Say that nothing more is sent."""
        if not self._has_ended:
            self._has_ended = True
            if self._channel is not None:
                self._channel.end(self._number)

    # --- the answer -------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        packed = await self._take()
        if packed is None:
            raise StopAsyncIteration
        return self._unpack(packed)

    async def _take(self) -> Packed | None:
        """The next value as it was sent; None at the end. Raises what ended it."""
        try:
            return await self._taken()
        except NOT_RUN as error:
            # By the last try, which says nothing of the one that was lost with its leader.
            if self._unknown is None:
                raise
            raise tried_again(self._unknown, error.message) from error

    async def _taken(self) -> Packed | None:
        """Of this try, or of others behind it."""
        while True:
            waiter = self._waiter
            try:
                return await waiter.inflow.take()
            except MAY_CHANGE as error:
                await self._again(waiter, error)

    async def _again(self, waiter: _Waiter, error: HadronError) -> None:
        """Call once more, where that can do no harm (ENDPOINTS N1) and all that was sent is here.
        Raises `error`, or what has ended the last try."""
        assert self._item is not None
        item = self._item
        self._calls.check_again(item, error)
        if isinstance(error, CallUnknownError):
            self._unknown = error
        if self._packed is None or waiter.has_answered:
            raise error
        await anyio.sleep(self._backoff.next_s())
        if self._is_closed:
            raise error
        if self._waiter is not waiter:
            # Another task, which takes from it too, has done so.
            return
        fresh = self._waiter = _Waiter(self._grant)
        try:
            await self._calls.attempt_until(
                self._told, self._shape, self._deadline_s, self._open, item, error
            )
        except BaseException as ended:
            # Nobody answers to it: who takes from it next, or does already, is not to wait. After
            # a cancellation that one tries again.
            fresh.fail(ended if isinstance(ended, HadronError) else error, None)
            raise

    async def result(self) -> Any:
        """End the input, and return the one value of the answer. Raises `RequestError` where there
        are none, or several."""
        await self.end()
        packed = await self._take()
        if packed is None:
            raise RequestError("the answer has no value", "loop over the call")
        if await self._take() is not None:
            raise RequestError("the answer has several values", "loop over the call")
        return self._unpack(packed)

    def _unpack(self, packed: Packed) -> Any:
        return unpack(packed, self._answer_type, self._told.endpoint)

    def _grant(self, size: int) -> None:
        if self._channel is not None:
            self._channel.grant(self._number, size)


async def take_some(call: CallStream, max_bytes: int) -> list[Packed]:
    """Values of the answer as they came, for who hands them on: those that are here, up to so many
    bytes or one; none at the end."""
    packed = await call._take()
    return [] if packed is None else call._waiter.inflow.with_rest(packed, max_bytes)
