"""What another process has used, and percentiles."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from hadron.bench.stats import ProcessUse, percentile

_WORK = (
    "import sys, time\n"
    "while time.process_time() < 0.2: pass\n"
    "print('done', flush=True); sys.stdin.read()\n"
)


def test_the_cpu_time_of_another_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = ProcessUse(process.pid)
        seconds = used.cpu_s()
        counted = sum(psutil.Process(process.pid).cpu_times()[:2])
        assert used.rss_bytes() > 1_000_000
        process.stdin.close()
    assert seconds >= 0.2
    assert seconds == pytest.approx(counted, abs=0.1)


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([4, 3, 2, 1], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 101), 0.07) == 7
    assert (percentile([1, 2], 0.0), percentile([1, 2], 1.0)) == (1, 2)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
