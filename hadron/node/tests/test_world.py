"""The real disk, beside threads that wait for something else."""

from __future__ import annotations

import threading

import trio
import trio.testing

from hadron.node.world import SystemDisk


async def test_names_that_nobody_looks_up_keep_no_thread_of_the_disks() -> None:
    threads = trio.to_thread.current_default_thread_limiter()
    over = threading.Event()

    def look_up() -> None:
        over.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(int(threads.total_tokens)):
            nursery.start_soon(trio.to_thread.run_sync, look_up)
        try:
            await trio.testing.wait_all_tasks_blocked()
            assert not threads.available_tokens
            with trio.fail_after(60):
                assert await SystemDisk().do(lambda: "read") == "read"
        finally:
            over.set()
