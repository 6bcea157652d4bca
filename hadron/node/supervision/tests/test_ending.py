"""A signal ends a block also where Python raises nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hadron.node.supervision.processes import environment

_PROGRAM = """
import os, signal, sys, time
from hadron.node.supervision.ending import ended_by_signals

class Deaf:
    def __del__(self):
        print("finalizer", flush=True)
        signal.raise_signal({number})
        time.sleep(600)

with ended_by_signals():
    try:
        Deaf()
        time.sleep(600)
    finally:
        signal.raise_signal({number})
        print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_a_finalizer_swallows_comes_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(number=int(number))],
        capture_output=True,
        cwd=tmp_path,
        env=environment(),
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "finalizer\nstopped\n", "")
