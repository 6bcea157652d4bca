"""The processes of a load: each is a program with a plan, tells what is acknowledged to it, and is
told when to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
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

    def __init__(self, process: trio.Process, log: Path) -> None:
        self.process = process
        self._log = log
        self.halted = trio.Event()
        self.ended = trio.Event()
        self._is_killed = False

    def kill(self) -> None:
        """SIGKILL."""
        self._is_killed = True
        self.process.kill()

    async def check(self) -> None:
        """Until the process is gone. Raises `AssertionError` when it has failed."""
        status = await self.process.wait()
        said = "" if self._is_killed else await trio.Path(self._log).read_text()
        assert self._is_killed or status == 0, f"{self._log.stem} ended with {status}: {said}"

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
    """A process of `worker.py` from its start to its end; what is acknowledged to it is told to
    `heard`."""

    def hear(line: bytes) -> None:
        heard(msgspec.json.decode(line, type=Acked))

    program = [worker_module.__file__, msgspec.json.encode(plan).decode()]
    log = Path(plan.history).with_suffix(".log")
    await run_program(program, log, hear, task_status)


async def run_program(
    program: Sequence[str],
    log: Path,
    heard: Callable[[bytes], None],
    task_status: trio.TaskStatus[Worker],
) -> None:
    """A process of a program that takes a worker's orders, from its start to its end; its lines are
    told to `heard`. What else it has to say, and that is nothing as a rule, goes into `log`."""
    with log.open("ab") as file:
        process = await trio.lowlevel.open_process(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=environment(),
        )
    worker = Worker(process, log)
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
                    heard(line)
        await worker.check()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            worker.ended.set()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


def environment() -> dict[str, str]:
    """This process's, with this Hadron importable in the child as it is here."""
    root = str(Path(hadron.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
