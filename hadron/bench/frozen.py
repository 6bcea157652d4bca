"""A member of a group that stops reading: a process of its own, frozen once it has joined.

Freezing is what a swap storm, a debugger or a laptop's lid does: the connection stays, the kernel's
buffers fill up, and nothing is read from them any more.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from hadron.bench.beside import beside
from hadron.client import connect
from hadron.model.errors import HadronError

WINDOW: Final = 100_000
"""Records that it would take without acknowledging any: more than connections buffer."""

_JOINED: Final = b"joined\n"
_STOPPED_OR_GONE: Final = os.WSTOPPED | os.WEXITED | os.WNOWAIT


@asynccontextmanager
async def frozen_member(url: str, stream: str, group: str) -> AsyncIterator[None]:
    """Within this block the group has a member that reads nothing. Raises `HadronError` where it
    ends instead."""
    trouble = f"the member that is to freeze did not join group {group!r}, or did not stay in it"
    async with beside(
        "hadron.bench.frozen", (url, stream, group), begun=_JOINED, trouble=trouble
    ) as pid:
        os.kill(pid, signal.SIGSTOP)
        # A signal is sent before it has arrived: on a busy machine the member reads on for a while.
        found = await anyio.to_thread.run_sync(os.waitid, os.P_PID, pid, _STOPPED_OR_GONE)
        if found is None or found.si_code != os.CLD_STOPPED:
            raise HadronError(trouble)
        yield


async def _join(url: str, stream: str, group: str) -> None:
    # It never looks at what it gets, and it is not to be sent away while somebody measures.
    async with (
        connect(url) as client,
        client.subscribe(stream, group=group, max_in_flight=WINDOW, heartbeat_s=0),
    ):
        os.write(sys.stdout.fileno(), _JOINED)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(partial(_join, *sys.argv[1:]), backend="trio")
