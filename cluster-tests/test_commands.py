"""What somebody at a terminal is told when the cluster cannot answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from crew import PATIENCE_S, environment
from load import STREAM, start_nodes

import hadron
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster


@pytest.mark.long
async def test_pub_without_a_leader(plain: LocalCluster) -> None:
    """It is told soon what `pub` waits for, and after a while that this does not help."""
    await declare(plain)
    plain.kill("n1")
    async with publishing(plain) as (process, told):
        assert "the leader n1 of local/p0" in await anext(told)
        error, hint = [line async for line in told]
        assert error.startswith("error: not sent, and not in the log")
        assert "the leader n1 of local/p0" in error
        assert hint.startswith("hint: ")
        assert await process.wait() == 1


@pytest.mark.long
async def test_pub_without_a_majority(plain: LocalCluster) -> None:
    """The leader takes the connection and answers nothing, until a replica is back."""
    await declare(plain)
    plain.kill("n2")
    plain.kill("n3")
    async with publishing(plain) as (process, told):
        assert "the leader has not answered" in await anext(told)
        await start_nodes(plain, "n3")
        assert [line async for line in told] == []
        assert await process.wait() == 0


async def declare(cluster: LocalCluster) -> None:
    spec = StreamSpec(partitions=(cluster.config.name,))
    async with hadron.connect(cluster.url) as client:
        applied = await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
    # A replica that does not know yet that it is committed would have to ask the leader.
    for name in ("n2", "n3"):
        await trio.to_thread.run_sync(
            cluster.wait_for,
            name,
            "the stream",
            lambda status: status.metadata_index >= applied.metadata_index,
        )


@asynccontextmanager
async def publishing(
    cluster: LocalCluster,
) -> AsyncIterator[tuple[trio.Process, AsyncIterator[str]]]:
    """`hadron pub`, and the lines that it writes to standard error."""
    process = await trio.lowlevel.open_process(
        [
            sys.executable,
            "-m",
            "hadron",
            "--server",
            cluster.url,
            "pub",
            STREAM,
            "a record",
            "--timeout",
            "15s",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with trio.fail_after(PATIENCE_S):
        try:
            yield process, _lines(process)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stderr is not None
                await process.stderr.aclose()


async def _lines(process: trio.Process) -> AsyncIterator[str]:
    assert process.stderr is not None
    rest = ""
    async for data in process.stderr:
        *lines, rest = (rest + data.decode()).split("\n")
        for line in lines:
            yield line
    assert not rest, rest
