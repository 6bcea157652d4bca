"""A process beside the bench that has its part in what is measured.

Rule: it is started by the main thread. The kernel ends what is leashed with the *thread* that has
started it, and those that an event loop starts processes in end after some seconds without work: a
client whose noise was to be measured would have been gone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import IO

import anyio.to_thread

from hadron.model.errors import HadronError
from hadron.node.supervision.processes import environment, leashed


@contextmanager
def started(command: Sequence[str], trouble: str) -> Iterator[subprocess.Popen[bytes]]:
    """Within this block `python …` runs, leashed, whose output may be read.

    Args:
        trouble: what is to be said where it has ended before the block does: what was measured
            beside it was measured alone.
    """
    assert threading.current_thread() is threading.main_thread(), threading.current_thread()
    process = subprocess.Popen(
        leashed([sys.executable, *command]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
        if process.poll() is not None:
            raise HadronError(f"{trouble}: it ended with status {process.returncode}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@asynccontextmanager
async def beside(
    module: str, arguments: Sequence[str], *, begun: bytes, trouble: str
) -> AsyncIterator[int]:
    """Within this block `python -m module …` runs; gives its process id.

    Args:
        begun: the line that it prints once it does its part.
        trouble: what is to be said where it ends without that, or before the block does.
    """
    with started(["-m", module, *arguments], trouble) as process:
        out: IO[bytes] | None = process.stdout
        assert out is not None
        said = await anyio.to_thread.run_sync(out.readline, abandon_on_cancel=True)
        if said != begun:
            raise HadronError(trouble)
        yield process.pid
