"""Which lines of the rooms under test run under the simulator alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import hadron

ROOMS: Final = ("partition", "replication", "state", "server", "wire", "client")
"""Issue 3's bar is 80 % of the lines of these."""

_PACKAGE: Final = Path(hadron.__file__).parent


def measure(start: int, seeds: int) -> int:
    """Run seeds and directed scenarios in a process that counts lines, print the share per room;
    the exit status."""
    try:
        import coverage
    except ImportError:
        print("coverage is not installed; it comes with `pip install '.[dev]'`", file=sys.stderr)
        return 2
    sources = ",".join(str(_PACKAGE / room) for room in ROOMS)
    with tempfile.TemporaryDirectory(prefix="hadron-coverage-") as directory:
        data = Path(directory) / "lines"
        # A process of its own: what was imported before counting begins would not be counted.
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "coverage",
                "run",
                "--rcfile=/dev/null",
                f"--data-file={data}",
                f"--source={sources}",
                "--omit=*/tests/*,*/_pb/*",
                "-m",
                "hadron.sim",
                "--worker",
                "--start",
                str(start),
                "--seeds",
                str(seeds),
                "--scenarios",
            ],
            stdout=subprocess.DEVNULL,
        )
        if ended.returncode or not data.exists():
            print(f"the seeds ended with status {ended.returncode}", file=sys.stderr)
            return 1
        counted = coverage.Coverage(data_file=str(data), config_file=False)
        counted.load()
        return _print(counted)


def _print(counted: object) -> int:
    all_lines = all_run = 0
    for room in ROOMS:
        lines = run = 0
        worst: list[tuple[float, str]] = []
        for path in sorted((_PACKAGE / room).glob("*.py")):
            _, executable, _, missing, _ = counted.analysis2(str(path))  # type: ignore[attr-defined]
            if executable:
                lines += len(executable)
                run += len(executable) - len(missing)
                worst.append((1 - len(missing) / len(executable), path.name))
        all_lines, all_run = all_lines + lines, all_run + run
        least = ", ".join(f"{name} {share:.0%}" for share, name in sorted(worst)[:4])
        print(f"{room:12} {run / lines:6.1%} of {lines:5,} lines; least: {least}")
    print(f"{'all':12} {all_run / all_lines:6.1%} of {all_lines:5,} lines")
    return 0
