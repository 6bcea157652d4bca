"""Calls to endpoints: where they live, what is tried again, and one value for one.

A call is sent again by itself only where it is known not to have run, or where its leader was lost
with it and its endpoint is declared idempotent (ENDPOINTS N1).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import msgspec

from hadron.client.connecting.session import Session
from hadron.client.endpoints.channel import Channel
from hadron.client.endpoints.incoming import handed_on, time_left_s
from hadron.client.endpoints.items import Packed, headers_of
from hadron.client.endpoints.shapes import described, type_name, why_unusable
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import seconds_of, text_of, text_or_none_of
from hadron.model.backoff import Backoff
from hadron.model.call_shapes import misfit
from hadron.model.errors import (
    CallUnknownError,
    DeadlineExceededError,
    HadronError,
    MetadataBehindError,
    NoServerError,
    NotFoundError,
    OverloadedError,
    PeerError,
    RequestError,
)
from hadron.model.limits import MAX_CALL_MS, MAX_NAME_LENGTH
from hadron.model.problems import shorten
from hadron.model.record import JSON, TEXT, decode_value
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.wire.call_items import Item
from hadron.wire.messages import endpoints_pb2, method

_DESCRIBE: Final = method("DescribeEndpoints")

MAX_TIMEOUT_S: Final = MAX_CALL_MS / 1_000

MAY_CHANGE: Final = (CallUnknownError, NotFoundError, MetadataBehindError)
"""What may be otherwise at once: where it lives, or who serves."""

NOT_RUN: Final = (RequestError, NoServerError, OverloadedError, MetadataBehindError)
"""What says that a call was not run."""

NOTHING: Final = msgspec.UNSET
"""A value that is not given; None is one."""

RECENT_S: Final = 5.0
"""After so long it is looked up anew whether an endpoint takes, or gives, a stream."""

_LOOK_S: Final = 0.5

T = TypeVar("T")


class Told(msgspec.Struct, frozen=True):
    """How a program calls; the arguments of `Client.call`, checked.

    Attributes:
        caller: for whom, in words, where that is somebody else: a door calls for its programs.
    """

    endpoint: str
    timeout_s: float
    region: str
    headers: dict[str, str]
    caller: str


def told(
    endpoint: str,
    timeout_s: float,
    region: str,
    headers: Mapping[str, str] | None,
    caller: str = "",
) -> Told:
    """Raises `RequestError`."""
    region = text_or_none_of("region", region)
    if len(region) > MAX_NAME_LENGTH:
        # It goes with other calls' openings, which would not be sent either.
        raise RequestError(
            f"region {shorten(region)} has {len(region)} characters", f"at most {MAX_NAME_LENGTH}"
        )
    return Told(
        text_of("endpoint", endpoint),
        seconds_of("timeout_s", timeout_s, 0.001, MAX_TIMEOUT_S),
        region,
        headers_of(headers),
        caller,
    )


def in_time(told: Told) -> Told:
    """With no more time than is left of the call that is run here, if one is. Raises
    `DeadlineExceededError` where none is left."""
    left_s = time_left_s(told.timeout_s)
    if left_s == told.timeout_s:
        return told
    if left_s <= 0:
        raise DeadlineExceededError(
            f"endpoint {told.endpoint!r} was not called: the call that is run here is over its "
            "time",
            "what a handler calls has what is left of the time that its own caller has given",
        )
    return msgspec.structs.replace(told, timeout_s=left_s)


class Answer(NamedTuple):
    """One value, and what the server has said beside it."""

    packed: Packed
    headers: Mapping[str, str]


class Shape(NamedTuple):
    """What a program calls by (`call_shapes.misfit`)."""

    has_value: bool
    is_single: bool


SINGLE_CALL: Final = Shape(has_value=True, is_single=True)


class _Waiter:
    """`channel.Waiter`: one value for one."""

    __slots__ = ("answer", "done", "error")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: Answer | None = None
        self.error: HadronError | None = None

    def value(self, packed: Packed, item: Item) -> None:
        self.answer = Answer(packed, item.headers)
        if not item.end:
            self.error = RequestError(
                "the endpoint answers with a stream", "use `client.call_stream(...)`"
            )
        self.done.set()

    def end(self, _item: Item) -> None:
        if self.answer is None:
            self.error = RequestError(
                "the endpoint has answered with a stream, without a value",
                "use `client.call_stream(...)`",
            )
        self.done.set()

    def fail(self, error: HadronError, _item: Item | None) -> None:
        self.error = error
        self.done.set()

    def credit(self, size: int) -> None:
        """It sends one value."""


class _Look:
    """At where an endpoint lives, for which others wait, too."""

    __slots__ = ("error", "is_over")

    def __init__(self) -> None:
        self.is_over = anyio.Event()
        self.error: HadronError | None = None


class EndpointCalls:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog
        self._known: dict[str, SchemaObject] = {}
        self._looked_s: dict[str, float] = {}
        self._looks: dict[str, _Look] = {}
        """Under way, by the endpoint's name: a thousand first calls are one question."""
        self._channels: dict[str, Channel] = {}

    @property
    def session(self) -> Session:
        return self._session

    # --- where they live --------------------------------------------------------------------------

    async def find(self, name: str) -> SchemaObject:
        """The endpoint as it is now. Raises `NotFoundError`."""
        found = await self._catalog.one("Endpoint", name)
        self._known[name] = found
        self._looked_s[name] = anyio.current_time()
        return found

    async def known(self, name: str) -> SchemaObject:
        """The endpoint as it was when it was looked up last, and nobody has said otherwise since.
        Raises `NotFoundError`."""
        has_waited = False
        while (known := self._known.get(name)) is None:
            look = self._looks.get(name)
            if look is None:
                return await self._look(name)
            await look.is_over.wait()
            # Who came late to one that nobody has answered has not waited for as long: once more.
            if look.error is not None and (has_waited or not isinstance(look.error, PeerError)):
                # A copy: each that is raised has where it came through.
                raise copy.copy(look.error)
            has_waited = look.error is not None
        return known

    async def _look(self, name: str) -> SchemaObject:
        """`find`, for all who wait for it; when this one is cancelled, another of them looks."""
        look = self._looks[name] = _Look()
        try:
            return await self.find(name)
        except HadronError as error:
            look.error = error
            raise
        finally:
            del self._looks[name]
            look.is_over.set()

    async def recent(self, name: str) -> SchemaObject:
        """The same, for who chooses by it how to call: looked up anew every few seconds, but not
        waited for where that takes long. Raises `NotFoundError`."""
        now_s = anyio.current_time()
        if name in self._known and now_s - self._looked_s.get(name, now_s) >= RECENT_S:
            self._looked_s[name] = now_s
            with anyio.move_on_after(_LOOK_S), contextlib.suppress(PeerError):
                await self.find(name)
        return await self.known(name)

    def channel(self, replica_set: str) -> Channel:
        channel = self._channels.get(replica_set)
        if channel is None or channel.failure is not None:
            channel = self._channels[replica_set] = Channel(self._session, replica_set)
            channel.start()
        return channel

    async def fitting(self, name: str, shape: Shape) -> SchemaObject:
        """The endpoint, which may be called so. Raises `NotFoundError`, and `RequestError`."""
        item = await self.known(name)
        if _misfit(item, shape) is not None:
            # It may have been declared anew.
            item = await self.find(name)
            error = _misfit(item, shape)
            if error is not None:
                raise error
        return item

    def opening(
        self, item: SchemaObject, told: Told, shape: Shape, left_s: float
    ) -> endpoints_pb2.CallOpening:
        opening = endpoints_pb2.CallOpening(
            namespace=item.namespace,
            endpoint=item.name,
            metadata_index=item.metadata_index,
            timeout_ms=int(left_s * 1_000) or 1,
            region=told.region,
            caller=told.caller,
            is_single=shape.is_single,
        )
        headers = handed_on(told.headers)
        if headers:
            opening.headers.update(headers)
        return opening

    # --- calling ----------------------------------------------------------------------------------

    async def call(self, told: Told, packed: Packed) -> Answer:
        """Raises what ended it."""
        self._session.check_loop()
        told = in_time(told)
        deadline_s = anyio.current_time() + told.timeout_s
        trouble: HadronError | None = None
        item = self._known.get(told.endpoint)
        if item is not None and _misfit(item, SINGLE_CALL) is not None:
            item = None
        channel = None if item is None else self._channels.get(spec_of(item).replica_set)
        if item is not None and channel is not None and channel.is_ready:
            # Nearly always: nothing has to be waited for but the answer.
            try:
                opening = self.opening(item, told, SINGLE_CALL, told.timeout_s)
                return await self._ask(item, channel, opening, packed, told.timeout_s)
            except MAY_CHANGE as error:
                self.check_again(item, error)
                trouble = error

        async def attempt(item: SchemaObject, channel: Channel, left_s: float) -> Answer:
            opening = self.opening(item, told, SINGLE_CALL, left_s)
            return await self._ask(item, channel, opening, packed, told.timeout_s)

        return await self.attempt_until(told, SINGLE_CALL, deadline_s, attempt, item, trouble)

    async def attempt_until(
        self,
        told: Told,
        shape: Shape,
        deadline_s: float,
        attempt: Callable[[SchemaObject, Channel, float], Awaitable[T]],
        before: SchemaObject | None = None,
        trouble: HadronError | None = None,
    ) -> T:
        """Do `attempt` with the endpoint, the channel to its leader and the time that is left; and
        again, where that can do no harm.

        Args:
            before, trouble: of an attempt that was made already, the endpoint, and what ended it.
        """
        backoff = Backoff(self._session.ports.random)
        within = f"{round(told.timeout_s, 3):g} s"
        unknown = trouble if isinstance(trouble, CallUnknownError) else None
        try:
            while True:
                self._session.check_loop()
                ready = await self._ready(told, shape, deadline_s, trouble)
                if ready is None:
                    break
                item, channel = ready
                if trouble is not None and before is not None:
                    _check_changed(before, item, trouble)
                left_s = deadline_s - anyio.current_time()
                if left_s <= 0:
                    break
                try:
                    return await attempt(item, channel, left_s)
                except MAY_CHANGE as error:
                    self.check_again(item, error)
                    before, trouble = item, error
                    unknown = error if isinstance(error, CallUnknownError) else unknown
                await anyio.sleep(
                    min(backoff.next_s(), max(0.0, deadline_s - anyio.current_time()))
                )
        except NOT_RUN as error:
            # By whom it was sent to last, which says nothing of those before.
            if unknown is not None:
                raise tried_again(unknown, error.message) from error.__cause__
            raise
        if unknown is not None:
            raise tried_again(unknown, f"it was not answered within {within}")
        raise (
            trouble
            or DeadlineExceededError(
                f"the leader of endpoint {told.endpoint!r} was not reached within {within}",
                "see `hadron status`; the call was not run",
            )
        )

    async def _ready(
        self, told: Told, shape: Shape, deadline_s: float, trouble: HadronError | None
    ) -> tuple[SchemaObject, Channel] | None:
        """The endpoint, and a channel on which it may be called; None when that takes too long."""
        with anyio.move_on_after(deadline_s - anyio.current_time()):
            try:
                item = await self.fitting(told.endpoint, shape)
            except PeerError as error:
                # What has become of the call says more than that nobody answers now.
                if isinstance(trouble, CallUnknownError):
                    trouble = tried_again(trouble, error.message)
                raise trouble or error from error
            channel = self.channel(spec_of(item).replica_set)
            await channel.wait_ready()
            return item, channel
        return None

    def check_again(self, item: SchemaObject, error: HadronError) -> None:
        """Raises `error` for a call that has ended so, unless it was not run, or may be again: a
        leader that says it was lost has given it to as many servers as it may (ENDPOINTS N1)."""
        if isinstance(error, CallUnknownError) and not (
            error.leader_lost and spec_of(item).idempotent
        ):
            raise error
        self._known.pop(item.name, None)

    async def _ask(
        self,
        item: SchemaObject,
        channel: Channel,
        opening: endpoints_pb2.CallOpening,
        packed: Packed,
        within_s: float,
    ) -> Answer:
        waiter = _Waiter()
        may_repeat = spec_of(item).idempotent
        number = channel.open(
            waiter, opening, packed, end=True, within_s=within_s, may_repeat=may_repeat
        )
        try:
            await waiter.done.wait()
        finally:
            channel.cancel(number)
        if waiter.error is not None:
            raise waiter.error
        assert waiter.answer is not None
        return waiter.answer

    # --- looking ----------------------------------------------------------------------------------

    async def describe(
        self, name: str, *, timeout_s: float | None = None
    ) -> list[endpoints_pb2.DescribeEndpointsResponse.Endpoint]:
        """What lives of endpoints of the namespace, or of one, at their leaders."""
        items = (
            [await self.find(name)]
            if name
            else await self._catalog.listed(
                await self._catalog.objects("Endpoint", self._session.endpoint.namespace, "")
            )
        )
        found = []
        for home in sorted({spec_of(item).replica_set for item in items}):
            request = endpoints_pb2.DescribeEndpointsRequest(
                namespace=self._session.endpoint.namespace, endpoint=name
            )
            answer, _ = await self._session.request(home, _DESCRIBE, request, timeout_s=timeout_s)
            found += answer.endpoints
        return found


def _check_changed(before: SchemaObject, now: SchemaObject, error: HadronError) -> None:
    """Raises `error` where the endpoint, as it is now, is not to be called again behind it."""
    is_same = now.metadata_index == before.metadata_index
    if isinstance(error, NotFoundError) and is_same:
        raise error
    if isinstance(error, CallUnknownError) and not spec_of(now).idempotent:
        error.retryable = False
        raise error


def tried_again(unknown: CallUnknownError, last: str) -> CallUnknownError:
    """What ends a call of an idempotent endpoint that was lost, and all tries behind that."""
    return CallUnknownError(
        f"{unknown.message}; the call was tried again, as its endpoint is idempotent: {last}",
        unknown.hint,
        retryable=True,
    )


def _misfit(item: SchemaObject, shape: Shape) -> RequestError | None:
    label = f"endpoint {item.namespace}/{item.name}"
    return misfit(label, spec_of(item), has_value=shape.has_value, is_single=shape.is_single)


def spec_of(item: SchemaObject) -> EndpointSpec:
    assert isinstance(item.spec, EndpointSpec)
    return item.spec


def check_answer_type(kind: Any) -> None:
    """Before anything is run. Raises `RequestError`."""
    if kind is not None and (why := why_unusable(kind)):
        raise RequestError(
            f"answer_type is {kind!r}, which no answer can be made into: {why}",
            "give a dataclass, a msgspec.Struct, a model of pydantic, or plain types",
        )


def unpack(packed: Packed, answer_type: Any, endpoint: str) -> Any:
    """An answer as it was sent, or as what a program wants of it. Raises `RequestError` for what is
    none."""
    try:
        return decoded(packed) if answer_type is None else converted(*packed, answer_type)
    except RequestError as error:
        raise RequestError(
            f"endpoint {endpoint!r} was run, and its answer does not fit: {error.message}",
            error.hint,
        ) from error


def decoded(packed: Packed) -> Any:
    """A value as it was sent. Raises `RequestError` for one that is not what it is said to be: who
    has sent it need not be a client of ours."""
    encoding, data = packed
    try:
        return decode_value(encoding, bytes(data))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        said = "text" if encoding == TEXT else "JSON"
        raise RequestError(f"a value is said to be {said}, and is none: {error}") from error


def converted(encoding: int, data: bytes | memoryview, kind: Any) -> Any:
    """Raises `RequestError` that says where a value is not of its type."""
    try:
        if callable(getattr(kind, "model_validate", None)):
            # A model of pydantic, known by what it can do: the library is not needed here.
            return kind.model_validate(decode_value(encoding, bytes(data)))
        if encoding == JSON:
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(decode_value(encoding, bytes(data)), kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        hint = f"give {described(kind)}"
        raise RequestError(f"a value is no {type_name(kind)}: {error}", hint) from error
