"""Several tasks with one streaming call, without a network."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hadron.client.endpoints.calls import told
from hadron.client.endpoints.stream import CallStream
from hadron.model.errors import CallUnknownError, DeadlineExceededError, HadronError
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.wire.call_items import Item


class Calls:
    """An `EndpointCalls` whose every try after the first one takes long, and fails."""

    def __init__(self, ending: HadronError) -> None:
        self.session = SimpleNamespace(ports=SimpleNamespace(random=random.Random(1)))
        self.channel = SimpleNamespace(open=self.open, cancel=lambda _number: None)
        self.tries = 0
        self._ending = ending

    def open(self, *_told: Any, **_more: Any) -> int:
        return 1

    def opening(self, *_told: Any) -> None: ...

    def check_again(self, _item: Any, _error: HadronError) -> None: ...

    async def attempt_until(self, _a: Any, _b: Any, _c: Any, attempt: Any, *_d: Any) -> None:
        self.tries += 1
        if self.tries == 1:
            spec = EndpointSpec(replica_set="r", idempotent=True)
            item = SchemaObject(kind="Endpoint", name="e", spec=spec)
            await attempt(item, self.channel, 1.0)
            return
        await anyio.sleep(0.3)
        raise self._ending


async def test_a_try_that_fails_ends_all_who_wait_for_the_answer() -> None:
    calls: Any = Calls(DeadlineExceededError("late"))
    errors: list[HadronError] = []

    async def take() -> None:
        with pytest.raises(DeadlineExceededError) as raised:
            await anext(call)
        errors.append(raised.value)

    async with CallStream(calls, told("e", 5.0, "", None), (0, b"v"), None) as call:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                tasks.start_soon(take)
                await anyio.wait_all_tasks_blocked()
                call._waiter.fail(CallUnknownError("lost"), Item())
    assert len(errors) == 2
    assert calls.tries == 2


async def test_who_takes_behind_a_cancelled_try_makes_another_one() -> None:
    calls: Any = Calls(DeadlineExceededError("late"))
    async with CallStream(calls, told("e", 5.0, "", None), (0, b"v"), None) as call:
        call._waiter.fail(CallUnknownError("lost"), Item())
        with anyio.move_on_after(0.2):
            await anext(call)
        assert calls.tries == 2
        with anyio.fail_after(5), pytest.raises(DeadlineExceededError):
            await anext(call)
        assert calls.tries == 3
