"""A Spark cluster of its own on this machine: a master and workers, as pyspark brings them.

with StandaloneSpark(tmp_path, workers=2) as spark:
    spark.url                  # spark://127.0.0.1:PORT
    spark.kill_worker(0)       # SIGKILL, and all that it runs
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.request import urlopen

import psutil
from crew import environment
from sparking import kill_tree

from hadron.node.supervision.cluster import free_ports
from hadron.spark.session import spark_environment

_HOST: Final = "127.0.0.1"
_STARTS_WITHIN_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.2
_MEMORY: Final = "1g"

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"


class StandaloneSpark:
    """Each worker has one core, and keeps what its executors leave in a directory of its own."""

    def __init__(self, directory: Path, *, workers: int) -> None:
        self._directory = directory
        self._count = workers
        self._port, self._pages = free_ports(2)
        self._master: psutil.Popen | None = None
        self._workers: list[psutil.Popen] = []

    @property
    def url(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            pages = ("--webui-port", str(self._pages))
            self._master = self._start("master", _MASTER, "--port", str(self._port), *pages)
            for number in range(self._count):
                self._workers.append(self._start_worker(number))
            self._wait_alive(self._count)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Nothing is left of it."""
        for each in filter(None, (*self._workers, self._master)):
            kill_tree(each)
            each.wait()

    def work_of(self, number: int) -> Path:
        """Where a worker's executors have written, each in a directory of its own."""
        return self._directory / f"worker-{number}"

    def executors(self, number: int) -> int:
        """How many a worker has started until now."""
        return len(list(self.work_of(number).glob("app-*/*/stderr")))

    def kill_worker(self, number: int) -> None:
        """SIGKILL it and its executors, as when its machine loses power."""
        kill_tree(self._workers[number])
        self._workers[number].wait()

    def _start_worker(self, number: int) -> psutil.Popen:
        sizes = ("--cores", "1", "--memory", _MEMORY, "--webui-port", "0")
        work = ("--work-dir", str(self.work_of(number)))
        return self._start(f"worker-{number}", _WORKER, *sizes, *work, self.url)

    def _start(self, name: str, what: str, *arguments: str) -> psutil.Popen:
        variables = spark_environment()
        program = os.path.join(variables["SPARK_HOME"], "bin", "spark-class")
        with (self._directory / f"{name}.log").open("ab") as log:
            return psutil.Popen(
                [program, what, "--host", _HOST, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), **variables},
                start_new_session=True,
            )

    def _wait_alive(self, workers: int) -> None:
        """Until the master knows so many workers."""
        until_s = time.monotonic() + _STARTS_WITHIN_S
        while (found := self._alive()) != workers:
            assert time.monotonic() < until_s, f"{found} workers; see {self._directory}/*.log"
            time.sleep(_LOOK_EVERY_S)

    def _alive(self) -> int:
        try:
            with urlopen(f"http://{_HOST}:{self._pages}/json/") as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return 0
