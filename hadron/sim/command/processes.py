"""Seeds in processes of their own, several at a time, so that a run is not bound to one core.

A process gets one seed after another, whoever is free takes the next: starting one costs as much as
a third of a seed, and no core waits at the end for a handful of seeds on another. A process that
dies or hangs takes one seed with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from threading import Timer
from typing import IO, Final

from hadron.sim.command.summary import encode_outcome
from hadron.sim.runs.run import Outcome

_SEEDS_PER_PROCESS: Final = 50
_PATIENCE_S: Final = 120.0
"""Real seconds for one seed, which takes some ten on an idle core."""


def run_elsewhere(
    seeds: range, jobs: int, *, hash_seed: int = 0, collect: bool = True
) -> Iterator[bytes]:
    """The encoded outcomes of `seeds`, in the order in which they come.

    Args:
        jobs: processes at a time.
        hash_seed: PYTHONHASHSEED of theirs.
        collect: whether their garbage collector runs.
    """
    workers = [_Worker(hash_seed, collect) for _ in range(min(jobs, len(seeds)))]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run(seed: int) -> bytes:
        worker = idle.get()
        try:
            return worker.run(seed)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(jobs)
    try:
        for done in as_completed([pool.submit(run, seed) for seed in seeds]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.end()


class _Worker:
    """A process that runs the seeds that it is told; another one in its place when it has died, and
    after a while, so that none grows for ever."""

    def __init__(self, hash_seed: int, collect: bool) -> None:
        self._command = [sys.executable, "-m", "hadron.sim", "--worker", "--ask"]
        if not collect:
            self._command.append("--no-gc")
        self._environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._seeds = 0

    def run(self, seed: int) -> bytes:
        """The encoded outcome: a violation when the process dies, or does not answer in time."""
        if self._seeds == _SEEDS_PER_PROCESS:
            self.end()
        process = self._process or self._start()
        self._seeds += 1
        assert process.stdin is not None
        assert process.stdout is not None
        patience = Timer(_PATIENCE_S, process.kill)
        patience.start()
        try:
            process.stdin.write(b"%d\n" % seed)
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        is_late = patience.finished.is_set()
        patience.cancel()
        if line.endswith(b"\n"):
            return line
        died = self.end()
        late = f"its process had not answered after {_PATIENCE_S:g} real seconds"
        return encode_outcome(Outcome(seed=seed, violations=[late if is_late else died]))

    def _start(self) -> subprocess.Popen[bytes]:
        # A file takes whatever it complains of; a pipe would have to be emptied all the time.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._seeds = 0
        return self._process

    def end(self) -> str:
        """No more seeds for this process, which ends now; how it ended."""
        process, errors = self._process, self._errors
        self._process = self._errors = None
        if process is None or errors is None:
            return ""
        with errors:
            process.communicate()
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"its process ended with status {process.returncode}: {' '.join(last)}"
