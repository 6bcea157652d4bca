"""The real disk, beside threads that wait for something else."""

from __future__ import annotations

import threading

import trio

from hadron.node.world import SystemDisk


async def test_names_that_nobody_looks_up_keep_no_thread_of_the_disks() -> None:
    limit = int(trio.to_thread.current_default_thread_limiter().total_tokens)
    begun, over = threading.Semaphore(0), threading.Event()

    def look_up() -> None:
        begun.release()
        over.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(limit):
            nursery.start_soon(trio.to_thread.run_sync, look_up)
        try:
            with trio.fail_after(60):
                for _ in range(limit):
                    while not begun.acquire(blocking=False):
                        await trio.sleep(0.01)
                assert await SystemDisk().do(lambda: "read") == "read"
        finally:
            over.set()
