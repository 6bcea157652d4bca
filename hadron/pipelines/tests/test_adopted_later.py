"""Partitions here that a pipeline knows of before it has a cursor on them: that is looked for
whenever something is declared, whatever else goes on then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import CorruptionError
from hadron.model.pipelines import PipelineSpec, StageSpec, Wait
from hadron.model.record import NewRecord
from hadron.model.schema import StreamSpec
from hadron.pipelines.awaiting import AwaitedPartition
from hadron.pipelines.consumer import InputPartition
from hadron.serving.tests.stack import SET, Stack, leading
from hadron.state.pipelines import wait_inputs

WORK = StageSpec(name="work", engine="handler")
LIVE, DONE = 1, 2
CATALOG_TELLS = 2
"""So often a pipeline is woken by one change of the schema."""
PAID = StageSpec(name="paid", wait=Wait(stream="payments"))


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        with trio.fail_after(30):
            yield stack


async def declare(stack: Stack, stage: StageSpec) -> None:
    spec = PipelineSpec(stages=(stage,), replica_set=SET, input="in", start="earliest")
    await stack.declare("Pipeline", "p", spec)


async def send(stack: Stack, stream_id: int) -> None:
    builder = BatchBuilder()
    builder.add(NewRecord(value=b"x", key="k"), 1)
    await stack.append(stream_id, data=builder.build())


async def until(stack: Stack, sql: str, *rows: tuple[Any, ...]) -> None:
    while await stack.rows(sql) != list(rows):
        await wait_all_tasks_blocked(0.001)


class Gate:
    """Holds back the first answer of a method that is None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
        self.reached, self.opened = trio.Event(), trio.Event()
        self.asked = 0
        ask: Callable[..., Any] = getattr(owner, name)

        async def held_back(*args: Any) -> Any:
            self.asked += 1
            found = await ask(*args)
            if found is None:
                self.reached.set()
                await self.opened.wait()
            return found

        monkeypatch.setattr(owner, name, held_back)


async def instance_of_before(stack: Stack) -> int:
    """One that waits for payments, which its pipeline does not any more; now they have a partition
    here. Returns their id."""
    source = await stack.stream("in")
    payments = await stack.declare("Stream", "payments", StreamSpec(partitions=("eu/p0",)))
    await declare(stack, PAID)
    await send(stack, source)
    await until(stack, "SELECT status FROM hadron_instance", (LIVE,))
    await declare(stack, WORK)
    await stack.declare("Stream", "payments", StreamSpec(partitions=("eu/p0", SET)))
    return payments


async def is_told(stack: Stack, payments: int) -> None:
    await send(stack, payments)
    await until(stack, "SELECT status FROM hadron_instance", (DONE,))


async def test_a_cursor_that_is_opened_while_it_is_looked_for_is_found(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, AwaitedPartition, "cursor")
    payments = await instance_of_before(stack)
    await gate.reached.wait()
    await declare(stack, PAID)
    await wait_all_tasks_blocked(0.01)
    gate.opened.set()
    await is_told(stack, payments)


async def test_a_cursor_is_looked_for_when_something_is_declared_and_not_all_the_time(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it is not known what else is waited for."""
    gate = Gate(monkeypatch, AwaitedPartition, "cursor")
    gate.opened.set()
    payments = await instance_of_before(stack)
    await gate.reached.wait()
    await wait_all_tasks_blocked(0.01)
    before, read, reads = gate.asked, wait_inputs.all_awaited, 0

    def all_awaited(db: Any, pipeline_id: int) -> set[str]:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise CorruptionError("a page is damaged, until it is repaired")
        return read(db, pipeline_id)

    monkeypatch.setattr(wait_inputs, "all_awaited", all_awaited)
    await stack.stream("another")
    while reads < 2:
        await wait_all_tasks_blocked(0.01)
    assert gate.asked - before <= CATALOG_TELLS
    await declare(stack, PAID)
    await is_told(stack, payments)


async def test_an_input_that_is_adopted_while_it_is_looked_for_is_consumed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = InputPartition.cursor
    looks = 0

    async def not_adopted_yet(reading: InputPartition) -> Any:
        nonlocal looks
        looks += 1
        return None if looks == 1 else await ask(reading)

    monkeypatch.setattr(InputPartition, "cursor", not_adopted_yet)
    gate = Gate(monkeypatch, InputPartition, "cursor")
    source = await stack.stream("in")
    await declare(stack, WORK)
    await gate.reached.wait()
    await stack.stream("another")
    await wait_all_tasks_blocked(0.01)
    gate.opened.set()
    await send(stack, source)
    await until(stack, "SELECT status FROM hadron_instance", (LIVE,))
