"""The real world behind the ports: this machine's clock, randomness and disk."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import trio

T = TypeVar("T")


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class SystemRandom:
    def __init__(self) -> None:
        self._jitter = random.SystemRandom()

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._jitter.uniform(low, high)


class SystemDisk:
    """`ports.Disk` of this machine."""

    vfs: Final = "unix"
    has_threads: Final = True

    async def do(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def write_file(self, path: Path, data: bytes) -> None:
        scratch = path.with_name(f"{path.name}.new")
        with open(scratch, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
