"""A pid alone never gets a signal; a leash ends a node with its owner."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import hadron
from hadron.node.supervision import processes
from hadron.node.supervision.processes import ClusterError, ProcessIdentity, log_tail, wait_until
from hadron.node.world import SystemDisk

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def start(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_a_process_is_known_by_its_start() -> None:
    with start(SLEEP) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity.alive
        somebody_else = replace(identity, started_s=identity.started_s - 60)
        assert not somebody_else.alive
        assert somebody_else.stop(timeout_s=5)
        assert process.poll() is None
        identity.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not identity.alive
        assert identity.stop(timeout_s=5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no start in ticks")
def test_a_process_is_known_after_the_wall_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the boot is what /proc says of it, which moves with the clock."""
    linux = importlib.import_module("psutil._pslinux")
    own = ProcessIdentity.of(os.getpid())
    boot_s = linux.boot_time()
    monkeypatch.setattr(linux, "boot_time", lambda: boot_s + 5)
    assert own.alive
    assert ProcessIdentity.of(os.getpid()) == own


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no id of a boot")
def test_where_the_boot_has_no_id_time_counts_from_the_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ticks alone would be those of whoever has the pid, and started as late, after a reboot."""
    of_ticks = ProcessIdentity.of(os.getpid())
    monkeypatch.setattr(SystemDisk, "boot_id", lambda _: "")
    own = ProcessIdentity.of(os.getpid())
    assert own.alive
    assert own.started_s == psutil.Process().create_time()
    assert not replace(own, started_s=of_ticks.started_s).alive


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no id of a boot")
def test_a_process_of_an_earlier_boot_is_gone() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own.alive
    assert not replace(own, boot="11111111-2222-3333-4444-555555555555").alive


def test_a_zombie_is_not_alive() -> None:
    with start(SLEEP) as process:
        identity = ProcessIdentity.of(process.pid)
        process.kill()
        assert wait_until(lambda: not identity.alive, 10)


def test_one_that_ignores_sigterm_is_killed() -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(600)"
    )
    with start([sys.executable, "-c", stubborn]) as process:
        assert not ProcessIdentity.of(process.pid).stop(timeout_s=0.2)
        assert process.wait() == -signal.SIGKILL


def test_one_that_is_gone_has_no_identity() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ClusterError, match="ended at once"):
        ProcessIdentity.of(process.pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the leash is Linux's")
def test_the_leash_ends_a_child_whose_parent_is_killed() -> None:
    leash = str(Path(processes.__file__).with_name("leash.py"))
    parent = (
        "import os, subprocess, sys, time;"
        f"child = subprocess.Popen([sys.executable, {leash!r}, str(os.getpid()),"
        " sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('up', flush=True); print(child.pid, flush=True); time.sleep(600)"
    )
    with start([sys.executable, "-c", parent]) as process:
        assert process.stdout is not None
        child = ProcessIdentity.of(int(process.stdout.readline()))
        command = Path(f"/proc/{child.pid}/cmdline")
        assert wait_until(lambda: b"leash" not in command.read_bytes(), 10)
        process.kill()
        assert wait_until(lambda: not child.alive, 10)


def test_the_leash_refuses_a_parent_that_is_gone() -> None:
    leash = str(Path(processes.__file__).with_name("leash.py"))
    done = subprocess.run(
        [sys.executable, leash, str(os.getppid()), sys.executable, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        check=False,
    )
    if sys.platform.startswith("linux"):
        assert (done.returncode, done.stdout) == (1, "")


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    assert log_tail(log) == "  (no log)"
    log.write_text("")
    assert log_tail(log) == "  (empty log)"
    log.write_text("".join(f"line {number}\n" for number in range(99)))
    assert log_tail(log, 2) == "  line 97\n  line 98"


def test_of_a_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    with log.open("wb") as file:
        # It takes no room, and has more bytes than there is memory.
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\nline 98\nline 99\n")
    assert log_tail(log, 2) == "  line 98\n  line 99"


def test_a_child_imports_this_hadron_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its rooms are no modules of their own: `client` or `testing` may be somebody else's."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = (
        "import hadron, importlib.util as u; print(hadron.__file__);"
        "print([name for name in ('cli', 'client', 'testing', 'spark') if u.find_spec(name)])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [hadron.__file__, "[]"]
