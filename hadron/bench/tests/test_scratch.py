"""A measurement that a signal ends leaves no files, and no processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hadron.node.supervision.processes import environment, wait_until

_PROGRAM = """
import sys
import anyio
from hadron.bench.beside import started
from hadron.bench.scratch import scratch

with scratch() as directory, started(["-c", "import time; time.sleep(600)"], "gone") as process:
    (directory / "data").write_bytes(b"x")
    print(process.pid, flush=True)
    anyio.run(anyio.sleep_forever, backend="trio")
"""


def _start(directory: Path, **options: object) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        env={**environment(), "TMPDIR": str(directory)},
        **options,
    )
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("has_ctrl_c", [True, False])
def test_a_signal_ends_it_as_ctrl_c_does(
    number: signal.Signals, has_ctrl_c: bool, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    if not has_ctrl_c:
        # As in a script's background, which children inherit.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process, child = _start(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert [each.name[:13] for each in tmp_path.iterdir()] == ["hadron-bench-"]
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert not list(tmp_path.iterdir())
    assert not psutil.pid_exists(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the leash is Linux's")
def test_who_is_killed_leaves_no_process(tmp_path: Path) -> None:
    process, child = _start(tmp_path)
    with process:
        process.kill()
    assert wait_until(lambda: not _runs(child), 30)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_who_has_hangups_ignored_goes_on(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, _ = _start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        process.send_signal(signal.SIGHUP)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
