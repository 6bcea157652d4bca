"""An event loop in a thread of its own, for the blocking client.

As anyio's `start_blocking_portal`, which waits for its thread for ever when Ctrl-C comes while that
one begins: nobody has told it to stop then.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import Context
from threading import Thread

import anyio
from anyio.from_thread import BlockingPortal


@contextmanager
def open_portal(backend: str) -> Iterator[BlockingPortal]:
    """A running loop; its tasks are cancelled when the block fails, and waited for otherwise."""
    begun: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            begun.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(serve, backend=backend)
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)

    # A context of its own: what the caller's says of event loops does not hold in the thread.
    thread = Thread(target=Context().run, args=(run,), name="hadron-client", daemon=True)
    thread.start()
    failed = True
    try:
        yield begun.result()
        failed = False
    finally:
        # A second Ctrl-C leaves here, and the thread ends with the process.
        _stop(begun.result(), cancel=failed)
        thread.join()


def _stop(portal: BlockingPortal, *, cancel: bool) -> None:
    # RuntimeError: it has stopped by itself.
    with suppress(RuntimeError):
        portal.call(portal.stop, cancel)
