"""Records that a transaction acknowledges, on nodes: the next leader keeps them from everybody."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import ConflictError
from hadron.model.transactions import DONE, TransactionId
from hadron.node.tests.support import STREAM, make_stream, send
from hadron.node.tests.test_resync import promoted
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Command, encode
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    Prepared,
    WriteIntents,
)
from hadron.testing.nodes import Nodes, running_nodes

T = TransactionId("local/p1", 1, 7, 1)


async def execute(nodes: Nodes, leader: str, command: Command) -> Any:
    leadership = nodes.node(leader).member._leadership
    assert leadership is not None
    return await leadership.controller.execute(command)


async def prepare(nodes: Nodes, *ranges: tuple[int, int]) -> Prepared:
    leadership = nodes.node("n1").member._leadership
    assert leadership is not None
    ((group_id,),) = await leadership.controller.query(
        lambda db: db.execute("SELECT group_id FROM hadron_group").fetchall()
    )
    command = WriteIntents(T, 0, (encode(AckRecords(group_id, ranges)),))
    prepared = await leadership.controller.execute(command)
    assert isinstance(prepared, Prepared)
    return prepared


async def given(client: Client, order: Literal["none", "strict"], *, within_s: float) -> list[int]:
    """What a member is given in that time; it acknowledges everything."""
    offsets: list[int] = []
    async with client.subscribe(STREAM, group="g", order=order) as subscription:
        with trio.move_on_after(within_s):
            async for delivery in subscription:
                offsets.append(delivery.offset)
                await delivery.ack()
                await subscription.flush()
    return offsets


@pytest.mark.long
@pytest.mark.parametrize("leader", ["n1", "n2"])
@pytest.mark.parametrize("ends", ["committed", "rolled back"])
async def test_over_a_failover(tmp_path: Path, clock: MockClock, leader: str, ends: str) -> None:
    """n1 leads again, or n2 does, while record 1 is a transaction's."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["0", "1", "2", "3"])
            async with client.subscribe(STREAM, group="g") as subscription:
                assert (await anext(subscription)).offset == 0
        prepared = await prepare(nodes, (1, 1))
        await nodes.wait_in_step()
        await nodes.crash()
        if leader != "n1":
            promoted(nodes, leader)
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await given(client, "none", within_s=3.0) == [0, 2, 3]
            (group,) = await client.describe_group(STREAM, "g")
            assert (group.group.floor, group.group.acknowledged_above) == (1, 2)
            assert (group.group.in_transactions, group.group.oldest_transaction) == (1, str(T))
            assert group.group.oldest_transaction_ms > 0
            if ends == "committed":
                finish = FinishTransaction(T, prepared.prepared_lsn, 1)
                assert await execute(nodes, leader, finish) == (DONE,)
            else:
                await execute(nodes, leader, AbortTransaction(T))
            expected = [] if ends == "committed" else [1]
            assert await given(client, "none", within_s=3.0) == expected
            (group,) = await client.describe_group(STREAM, "g")
            assert (group.group.floor, group.group.in_transactions) == (4, 0)


@pytest.mark.long
async def test_in_order_nothing_passes_it_over_a_failover(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["0", "1", "2"])
            async with client.subscribe(STREAM, group="g", order="strict") as subscription:
                assert (await anext(subscription)).offset == 0
                prepared = await prepare(nodes, (0, 0))
        await nodes.restart()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await given(client, "strict", within_s=3.0) == []
            (group,) = await client.describe_group(STREAM, "g")
            assert f"transaction {T} is acknowledging offset 0" in group.held_back
            await execute(nodes, "n1", FinishTransaction(T, prepared.prepared_lsn, 1))
            assert await given(client, "strict", within_s=3.0) == [1, 2]


async def test_who_acknowledges_it_alone_is_told_whose_it_is(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["0", "1"])
            async with client.subscribe(STREAM, group="g") as subscription:
                first, second = await anext(subscription), await anext(subscription)
                await prepare(nodes, (0, 0))
                await first.ack()
                await second.ack()
                with pytest.raises(ConflictError, match=f"transaction {T} holds offsets 0 to 0"):
                    await subscription.flush()
                await execute(nodes, "n1", AbortTransaction(T))
                await first.ack()
                await subscription.flush()
            (group,) = await client.describe_group(STREAM, "g")
            assert group.group.floor == 2
