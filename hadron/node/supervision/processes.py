"""Node processes: starting one, telling it from another that got its pid, and ending it.

Safety rule: a process is signalled by its pid only after its start time was compared, so a pid
that the system gave to somebody else meanwhile is never touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from hadron.model.errors import HadronError
from hadron.node.replica_set import CANNOT_GO_ON
from hadron.node.world import SystemDisk

_LEASH: Final = Path(__file__).with_name("leash.py")
_CLOCK_SLACK_S: Final = 2.0
"""Start times since the Unix epoch may move a little with the wall clock."""
_LOG_LINES: Final = 12
_LOG_BYTES: Final = 64 << 10
POLL_S: Final = 0.02

NODE_PROGRAM: Final = (sys.executable, "-m", "hadron.cli", "node")
"""What runs as a node, without `--config` and `--name`."""


class ClusterError(HadronError):
    """A local cluster's process did not do what was asked of it.

    Attributes:
        lacks_majority: a node that was waited for still waits for a majority of its replica set.
    """

    lacks_majority = False


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process for ever: its pid and when it started.

    Linux counts from the boot that has the id `boot`. Where that is "", as elsewhere, or where a
    container hides it, `started_s` counts from the Unix epoch. *(Ticks of a boot that nobody knows
    may be a stranger's after the next one. On Linux the epoch's would be a sum with the
    time of the boot, which moves with the wall clock: once that was set, every node that runs would
    be taken for another process.)*
    """

    pid: int
    started_s: float
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The process that has this pid now. Raises `ClusterError` when there is none."""
        try:
            boot = SystemDisk().boot_id()
            if boot and sys.platform.startswith("linux"):
                return cls(pid, _since_boot_s(pid), boot)
            return cls(pid, psutil.Process(pid).create_time())
        except (psutil.Error, OSError) as error:
            raise ClusterError(f"process {pid} ended at once") from error

    @property
    def alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        try:
            now = ProcessIdentity.of(self.pid)
            is_zombie = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except (ClusterError, psutil.Error):
            return False
        slack_s = 0.0 if self.boot else _CLOCK_SLACK_S
        is_same = self.boot == now.boot and abs(now.started_s - self.started_s) <= slack_s
        return is_same and not is_zombie

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def stop(self, timeout_s: float) -> bool:
        """SIGTERM, wait, and SIGKILL when that was not enough; whether SIGTERM was enough."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if wait_until(lambda: not self.alive, timeout_s):
            return True
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.alive, timeout_s)
        return False


def _since_boot_s(pid: int) -> float:
    """When a process started, to the tick, so that equal ones are equal (Linux)."""
    # The name of the program comes second, in parentheses, and may have any in itself.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    # The 22nd, of which the first two are gone.
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `condition` holds; False when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def spawn_node(
    config: Path,
    name: str,
    log: Path,
    *,
    die_with_parent: bool,
    program: Sequence[str] = NODE_PROGRAM,
) -> subprocess.Popen[bytes]:
    """Start `hadron node --config … --name …` in a session of its own, its output into `log`.

    Args:
        die_with_parent: on Linux, the kernel ends the node when the calling *thread* ends,
            however it ends; call from a thread that lives as long as the node should.
        program: instead of `hadron node`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*program, "--config", str(config), "--name", name]
    if die_with_parent:
        command = leashed(command)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            # Ctrl-C in a terminal is for whoever runs the cluster, not for its nodes.
            start_new_session=True,
        )


def leashed(command: Sequence[str]) -> list[str]:
    """The command as one that the kernel ends when the calling thread ends (Linux)."""
    return [sys.executable, "-S", str(_LEASH), str(os.getpid()), *command]


def environment() -> dict[str, str]:
    """This process's, with this Hadron importable in the child as it is here."""
    root = str(Path(__file__).resolve().parents[3])
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, given]) if given else root
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def last_words(log: Path) -> tuple[str, str]:
    """The error and the hint with which a node ended its log; "" where it did not end so. Of a
    node that could not go on, the error says both."""
    lines = [line.strip() for line in log_tail(log).splitlines()]
    if f" {CANNOT_GO_ON}: " in lines[-1]:
        return lines[-1].partition(f" {CANNOT_GO_ON}: ")[2], ""
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not begins or any(map(_is_logged, lines[begins[-1] :])):
        return "", ""
    error, *hint = lines[begins[-1] :]
    return error.removeprefix("error: "), " ".join(hint).removeprefix("hint: ")


def _is_logged(line: str) -> bool:
    """Whether a line begins with a date."""
    return line[:4].isdigit() and line[4:5] == "-"


def log_tail(log: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of a log, which may be that of years, indented, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty log)"
