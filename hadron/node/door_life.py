"""A door's life around its node's.

Safety rule: whoever cancels a node with a door closes the door first. What is under way there may
end, for as long as the door allows, while the node that it needs still runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

Open = Callable[[trio.Nursery], Awaitable[None]]
Run = Callable[[], Awaitable[None]]


async def run_behind(open_door: Open, run: Run, close: Run) -> None:
    """Run a node, by `run`, until it ends, with a door open.

    Args:
        open_door: starts what serves, in the nursery; what it raises is raised, and no node runs.
        close: let in nobody else, and wait for who is in. It is called once, whatever the end is,
            and not cancelled.
    """
    failure: Exception | None = None
    life, waiting = trio.CancelScope(shield=True), trio.CancelScope()
    closed = trio.Event()

    async def close_when_it_is_time() -> None:
        try:
            with waiting:
                await trio.sleep_forever()
        finally:
            try:
                with trio.CancelScope(shield=True):
                    await close()
            finally:
                closed.set()
                life.cancel()

    async with trio.open_nursery() as around:
        around.start_soon(close_when_it_is_time)
        with life:
            async with trio.open_nursery() as nursery:
                try:
                    await open_door(nursery)
                    await run()
                except Exception as error:
                    # As it is, and not within a group of the door's.
                    failure = error
                waiting.cancel()
                await closed.wait()
                nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
