"""Programs with a Spark in them, which are killed at chosen moments, and what the files of leaders
tell of the sink that they write to.

    watch = Watch(fleet, home="meta", name="copies")
    program = SparkProgram([sys.executable, …], log=directory / "life-1.log")
    watch.wait_staged(7, PATIENCE_S, program.check); program.kill(with_workers=True)

A moment of some milliseconds is not met by asking a leader: its file is looked at instead, as any
tool may.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import psutil
from crew import environment

from hadron.node.supervision.local_fleet import LocalFleet
from hadron.state.sinks.progress import SINK
from hadron.state.sinks.staging import STAGED
from hadron.state.transactions.decisions import DECISION
from hadron.state.transactions.participations import PARTICIPATION

_LOOK_EVERY_S: Final = 0.001
_SAID: Final = 2_000
"""Characters of what a program that has ended by itself had to say."""

_LABEL: Final = re.compile(r"(\S+) query \S+ batch (\d+)")
"""Of what a task stages."""


class SparkProgram:
    """A process that has a Spark: the program, its Java, which is the driver, and what that runs.

    Args:
        log: what it prints goes to its end.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, cwd: Path, variables: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=cwd,
                env={**environment(), **variables},
                # Whoever interrupts the tests ends it by what is written here.
                start_new_session=True,
            )
        self._own = psutil.Process(self._process.pid)
        self._java: psutil.Process | None = None
        self._known: dict[int, psutil.Process] = {}

    def check(self) -> None:
        """Raises `AssertionError` when it has ended by itself."""
        assert self._process.poll() is None, f"it has ended by itself: {self._said()}"

    def wait(self, within_s: float) -> None:
        """Until it has ended as it should."""
        assert self._process.wait(within_s) == 0, self._said()

    def wait_failed(self, within_s: float, saying: str) -> None:
        """Until it has given up, with these words."""
        assert self._process.wait(within_s) > 0
        assert saying in self._said(), self._said()

    def find_java(self) -> None:
        """Know it, so that killing it takes no time."""
        self._java = self._java or next(filter(_is_java, self._own.children()), None)
        assert self._java, f"there is no Java yet: {self._said()}"

    def kill(self, *, with_workers: bool) -> None:
        """SIGKILL the program and its Java. What that has started dies with them, as on a machine
        that loses power; or finds out by itself that nobody is there any more."""
        drivers = [each for each in (self._java, self._own) if each]
        _signal(signal.SIGSTOP, drivers)
        self._look()
        _signal(signal.SIGKILL, [*self._known.values()] if with_workers else drivers)
        self._process.wait()

    def kill_java(self) -> None:
        """SIGKILL the Java alone: the program finds out."""
        self.find_java()
        self._look()
        _signal(signal.SIGKILL, [self._java] if self._java else [])

    def end(self) -> None:
        """Nothing is left of it."""
        if self._process.poll() is None:
            self.kill(with_workers=True)
        for each in self._known.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def _look(self) -> None:
        """Know what there is of it now: orphans are nobody's."""
        for each in (self._own, *self._own.children(recursive=True)):
            self._known[each.pid] = each

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-_SAID:]


def _is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "java"
    return False


def _signal(number: signal.Signals, processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def kill_tree(process: psutil.Process) -> None:
    """SIGKILL a process and all that it has started, as when its machine loses power."""
    _signal(signal.SIGSTOP, [process])
    with contextlib.suppress(psutil.NoSuchProcess):
        _signal(signal.SIGKILL, [*process.children(recursive=True), process])


class Watch:
    """What leaders' files say of one sink, as it is while a program writes to it.

    Args:
        home: the set that drives what the sink publishes.
        name: the sink's.
    """

    def __init__(self, fleet: LocalFleet, home: str, name: str) -> None:
        self._name = name
        self._sets = {
            each: _open(cluster.database(cluster.leader)) for each, cluster in fleet.items()
        }
        self._home = self._sets[home]
        self._old: set[bytes] = set()

    def close(self) -> None:
        for each in self._sets.values():
            each.close()

    # --- now ------------------------------------------------------------------------------------

    def published(self) -> int:
        """The highest batch; -1 where there is none."""
        found = _one(
            self._home, f"SELECT batch FROM {SINK} WHERE name = ?", f"default/{self._name}"
        )
        return -1 if found is None else int(found)

    def staged(self) -> int:
        """The highest batch of which something waits to be published; -1 where there is none."""
        return max((batch for each, batch in self._staged() if each not in self._old), default=-1)

    def forget_staged(self) -> None:
        """What is staged now is of the past: it waits for its end."""
        self._old = {attempt for attempt, _ in self._staged()}

    def _staged(self) -> Iterator[tuple[bytes, int]]:
        for db in self._sets.values():
            rows: Any = db.execute(f"SELECT attempt, label FROM {STAGED}").fetchall()
            for attempt, label in rows:
                found = _LABEL.fullmatch(label)
                if found and found[1] == self._name:
                    yield attempt, int(found[2])

    def is_committing(self) -> bool:
        """Whether a transaction is under way: some set has prepared it, or it is decided and some
        set has not finished it."""
        return any(
            _one(db, f"SELECT 1 FROM {PARTICIPATION} WHERE results IS NULL LIMIT 1")
            for db in self._sets.values()
        ) or bool(_one(self._home, f"SELECT 1 FROM {DECISION} WHERE finished_ms IS NULL LIMIT 1"))

    # --- moments --------------------------------------------------------------------------------

    def wait_staged(self, batch: int, within_s: float, check: Callable[[], None]) -> int:
        """Until something of this batch, or of a later one, is staged; returns which."""
        self._wait(lambda: self.staged() >= batch, within_s, check)
        return self.staged()

    def wait_committing(self, batch: int, within_s: float, check: Callable[[], None]) -> None:
        """Until this batch is being committed, or already is."""
        self._wait(lambda: self.is_committing() or self.published() >= batch, within_s, check)

    def wait_published(self, batch: int, within_s: float, check: Callable[[], None]) -> None:
        """Until this batch is published."""
        self._wait(lambda: self.published() >= batch, within_s, check)

    def wait_quiet(self, within_s: float) -> None:
        """Until no transaction is under way any more."""
        self._wait(lambda: not self.is_committing(), within_s, lambda: None)

    def _wait(
        self, condition: Callable[[], bool], within_s: float, check: Callable[[], None]
    ) -> None:
        until_s = time.monotonic() + within_s
        while not condition():
            check()
            assert time.monotonic() < until_s, (
                f"staged {self.staged()}, published {self.published()} after {within_s:g} s"
            )
            time.sleep(_LOOK_EVERY_S)


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(5_000)
    return db


def _one(db: apsw.Connection, sql: str, *bindings: Any) -> Any:
    return db.execute(sql, bindings).get


def committed(checkpoints: Path) -> int:
    """The highest batch that Spark knows to be published, by the one checkpoint that is here; -1
    where there is none."""
    names = [path.name for path in checkpoints.glob("**/commits/*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)
