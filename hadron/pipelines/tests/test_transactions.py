"""Stages that transactions end."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.model.errors import ConflictError
from hadron.model.transactions import STAGES, Lock, TransactionId
from hadron.pipelines.driver import PipelineDriver
from hadron.pipelines.runners import Ended
from hadron.pipelines.tests.test_driver import (
    DECIDE,
    ENRICH,
    IN,
    PIPELINE,
    Runner,
    complete,
    declare,
    fail,
    instances,
)
from hadron.pipelines.tests.test_driver import stack as stack
from hadron.serving.tests.stack import SET, Stack, leading, until
from hadron.state.machine import encode
from hadron.state.pipelines.stage_runs import CompleteStages
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents

T = TransactionId("local/p1", 1, 7, 1)


async def prepare(stack: Stack, *ids: int) -> int:
    command = CompleteStages(PIPELINE, "decide", ids, (1,) * len(ids), 0, 0, ())
    prepared = await stack.controller.execute(WriteIntents(T, 0, (encode(command),)))
    lsn: int = prepared.prepared_lsn
    return lsn


async def begin(stack: Stack) -> tuple[PipelineDriver, Runner]:
    stage = replace(DECIDE, dependencies=(), output=None)
    driver = await declare(stack, stage)
    runner = Runner(driver, credit=9)
    await stack.append(IN, b"0", b"1")
    await runner.until(("decide", [1, 2], [1, 1]))
    runner.begin()
    return driver, runner


async def test_what_one_ends_nobody_else_is_given(stack: Stack, mock_clock: MockClock) -> None:
    driver, runner = await begin(stack)
    lsn = await prepare(stack, 1)
    await wait_all_tasks_blocked(0.01)
    mock_clock.jump(63.0)
    await runner.until(("decide", [1, 2], [1, 1]), ("decide", [2], [1]))
    for attempt in (complete(driver, "decide", [1], outputs=0), fail(driver, "decide", [1])):
        with pytest.raises(ConflictError, match=f"transaction {T} holds stage 'decide'"):
            await attempt
    await stack.controller.execute(FinishTransaction(T, lsn, 1))
    assert await instances(stack) == [(0, 2), (1, 1)]
    assert driver.dispatcher.assignments.assigned("decide") == {2}


async def test_what_is_said_is_the_same_command_whoever_hears_it(stack: Stack) -> None:
    """What a leader remembers of it changes, and is not in it."""
    driver = await declare(stack, replace(ENRICH, output=None))
    await stack.append(IN, b"x")
    ended = Ended("enrich", (1,), (1,))
    runner = Runner(driver)
    await runner.until(("enrich", [1], [1]))
    said = {driver.completion(ended, memoryview(b""))}
    runner.begin()
    said.add(driver.completion(ended, memoryview(b"")))
    driver.dispatcher.leave(runner.session)
    assert said == {driver.completion(ended, memoryview(b""))}


async def test_rolled_back_it_is_its_runners_again(stack: Stack, mock_clock: MockClock) -> None:
    driver, runner = await begin(stack)
    await prepare(stack, 1, 2)
    await wait_all_tasks_blocked(0.01)
    mock_clock.jump(63.0)
    await wait_all_tasks_blocked(0.001)
    await stack.controller.execute(AbortTransaction(T))
    assert (driver.dispatcher.assignments.assigned("decide"), len(runner.got)) == ({1, 2}, 1)
    await complete(driver, "decide", [1], outputs=0)
    await wait_all_tasks_blocked(0.01)
    mock_clock.jump(63.0)
    await runner.until(("decide", [1, 2], [1, 1]), ("decide", [2], [1]))


async def test_of_a_runner_that_has_gone_it_is_somebody_elses(stack: Stack) -> None:
    driver, runner = await begin(stack)
    await prepare(stack, 1)
    driver.dispatcher.leave(runner.session)
    other = Runner(driver, credit=9)
    await other.until(("decide", [2], [1]))
    await stack.controller.execute(AbortTransaction(T))
    await other.until(("decide", [2], [1]), ("decide", [1], [1]))


async def test_the_next_leader_knows_it_too(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        await stack.stream("in")
        await stack.stream("out")
        await begin(stack)
        await prepare(stack, 1)
    async with leading(tmp_path) as stack:
        await until(lambda: PIPELINE in stack.pipelines._drivers)
        runner = Runner(stack.pipelines.driver(PIPELINE), credit=9)
        await runner.until(("decide", [2], [1]))
        await stack.controller.execute(AbortTransaction(T))
        await runner.until(("decide", [2], [1]), ("decide", [1], [1]))


async def test_one_that_is_in_no_table_yet(stack: Stack) -> None:
    driver, _ = await begin(stack)
    own = TransactionId.of(SET, stack.controller.ballot, 1)
    stack.locks.take(own, [Lock(STAGES, PIPELINE, "decide", ((1, 1),))])
    with pytest.raises(ConflictError, match=f"transaction {own} holds stage 'decide'"):
        await complete(driver, "decide", [1], outputs=0)
    command = CompleteStages(PIPELINE, "decide", (1,), (1,), 0, 0, ())
    await stack.controller.execute(Decide(own, (), (encode(command),)))
    assert driver.dispatcher.assignments.assigned("decide") == {2}
    assert stack.locks.of_owner(STAGES, PIPELINE) == []
