"""The processes of a load: each is `worker.py` with a plan, tells what is acknowledged to it, and
is told when to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio
import worker as worker_module
from worker import Acked, Plan

import hadron

PATIENCE_S: Final = 60.0
"""How long anything may take that has no bar, on a busy machine."""


class Worker:
    """A process of the load."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.halted = trio.Event()

    async def halt(self) -> None:
        """Until its producers have ended."""
        await self._order(b"halt\n")
        with trio.fail_after(PATIENCE_S):
            await self.halted.wait()

    async def end(self) -> None:
        """Until it has written its history."""
        await self._order(b"end\n")
        with trio.fail_after(PATIENCE_S):
            assert await self.process.wait() == 0

    async def _order(self, order: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(order)


async def run_worker(
    plan: Plan, heard: Callable[[Acked], None], task_status: trio.TaskStatus[Worker]
) -> None:
    """A worker's process from its start to its end; what is acknowledged to it is told to `heard`.
    What it has to say, and that is nothing as a rule, goes into a file beside its history."""
    path = Path(plan.history).with_suffix(".log")
    with path.open("ab") as log:
        process = await trio.lowlevel.open_process(
            [sys.executable, worker_module.__file__, msgspec.json.encode(plan).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
        )
    worker = Worker(process)
    task_status.started(worker)
    try:
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line == b"halted":
                    worker.halted.set()
                else:
                    heard(msgspec.json.decode(line, type=Acked))
        if await process.wait():
            said = path.read_text()
            raise AssertionError(f"worker {plan.name} ended with {process.returncode}: {said}")
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


def environment() -> dict[str, str]:
    """This process's, with this Hadron importable in the child as it is here."""
    root = str(Path(hadron.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
