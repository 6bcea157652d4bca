"""Looking endpoints up, without a network."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import anyio
import pytest

from hadron.client.endpoints.calls import EndpointCalls, check_answer_type, told, unpack
from hadron.client.endpoints.incoming import CURRENT, IncomingCall
from hadron.client.endpoints.methods import EndpointMethods
from hadron.client.endpoints.stream import CallStream
from hadron.model.errors import (
    DeadlineExceededError,
    HadronError,
    NotFoundError,
    PeerError,
    RequestError,
)
from hadron.model.record import JSON
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec

ITEM = SchemaObject(kind="Endpoint", name="e", spec=EndpointSpec(replica_set="r"))


class Catalog:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = anyio.Event()
        self.error: HadronError | None = None

    async def one(self, _kind: str, _name: str) -> SchemaObject:
        self.asked += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return ITEM


def a_client(catalog: Any) -> EndpointCalls:
    session: Any = SimpleNamespace()
    return EndpointCalls(session, catalog)


@dataclass
class Price:
    price: int


@pytest.mark.parametrize("kind", ["Price", 5, [], print, list["Missing"]])  # type: ignore[name-defined] # noqa: F821
async def test_an_answer_type_that_is_none_is_refused_before_anything_is_run(kind: Any) -> None:
    methods = EndpointMethods()
    with pytest.raises(RequestError, match="which no answer can be made into"):
        await methods.call("e", 1, answer_type=kind)
    with pytest.raises(RequestError, match="which no answer can be made into"):
        methods.call_stream("e", 1, answer_type=kind)


@pytest.mark.parametrize("kind", [Price, int | None, Annotated[int, [1]], list[Price], Any, None])
def test_any_other_answer_type_is_taken(kind: Any) -> None:
    check_answer_type(kind)


def test_an_answer_of_another_type_says_that_it_was_run() -> None:
    with pytest.raises(RequestError) as raised:
        unpack((JSON, b'"x"'), Price, "quote")
    assert raised.value.message.startswith(
        "endpoint 'quote' was run, and its answer does not fit: a value is no Price: "
    )
    assert "price (int)" in raised.value.hint
    assert unpack((JSON, b'{"price": 2}'), Price, "quote") == Price(2)


async def test_a_thousand_first_calls_ask_once_also_when_who_asked_is_cancelled() -> None:
    catalog, found = Catalog(), []
    calls = a_client(catalog)

    async def look(scope: anyio.CancelScope) -> None:
        with scope:
            found.append(await calls.known("e"))

    async with anyio.create_task_group() as tasks:
        scopes = [anyio.CancelScope() for _ in range(1_000)]
        for scope in scopes:
            tasks.start_soon(look, scope)
        await anyio.wait_all_tasks_blocked()
        assert catalog.asked == 1
        for scope in scopes[:500]:
            scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert catalog.asked <= 2
        catalog.may_answer.set()
    assert found == [ITEM] * 500
    assert await calls.known("e") == ITEM
    assert catalog.asked <= 2


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (NotFoundError("no such one", "make it"), 1),
        # Of those who came late to the first look nobody knows how long they have waited.
        (PeerError("nobody answers", "wait"), 2),
    ],
)
async def test_what_a_look_ends_with_is_told_to_all_who_wait(
    error: HadronError, asked: int
) -> None:
    catalog, errors = Catalog(), []
    catalog.error = error
    calls = a_client(catalog)

    async def look() -> None:
        with pytest.raises(type(error)) as raised:
            await calls.known("e")
        errors.append(raised.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(look)
        await anyio.wait_all_tasks_blocked()
        catalog.may_answer.set()
    assert [str(each) for each in errors] == [str(error)] * 10
    assert catalog.asked == asked
    # Not the same object in all tasks, but for those who have asked.
    assert len({id(each) for each in errors}) >= 9


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("left_s", "what", "asked"),
    [
        (0.0987654, "was not reached within 0.099 s", 1),
        (0.0, "endpoint 'e' was not called: the call that is run here is over its time", 0),
    ],
)
async def test_a_call_in_a_handler_names_the_time_that_it_has_had(
    is_stream: bool, left_s: float, what: str, asked: int
) -> None:
    """And not what it would have had elsewhere."""
    session: Any = SimpleNamespace(
        check_loop=lambda: None, ports=SimpleNamespace(random=random.Random(1))
    )
    catalog: Any = Catalog()
    calls, given = EndpointCalls(session, catalog), told("e", 30.0, "", None)
    stream = CallStream(calls, given, (0, b"v"), None)
    token = CURRENT.set(IncomingCall("outer", {}, "a test", 1, left_s, lambda: 0.0))
    try:
        with anyio.fail_after(5), pytest.raises(DeadlineExceededError, match=what):
            await (stream.__aenter__() if is_stream else calls.call(given, (0, b"v")))
    finally:
        CURRENT.reset(token)
    assert catalog.asked == asked
