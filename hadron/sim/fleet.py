"""Seeds in processes of their own, several at a time, so that a run is not bound to one core.

Each process gets a handful of seeds: starting one takes half a second, and one that dies or hangs
takes few with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

from hadron.sim.run import Outcome
from hadron.sim.summary import encode_outcome

_SEEDS_PER_PROCESS: Final = 10
_PATIENCE_S: Final = 120.0
"""Real seconds for one seed, which takes one or two on an idle machine."""


def run_elsewhere(
    seeds: range, jobs: int, *, hash_seed: int = 0, collect: bool = True
) -> Iterator[bytes]:
    """The encoded outcomes of `seeds`, in the order in which they come.

    Args:
        jobs: processes at a time.
        hash_seed: PYTHONHASHSEED of theirs.
        collect: whether their garbage collector runs.
    """
    parts = [
        seeds[position : position + _SEEDS_PER_PROCESS]
        for position in range(0, len(seeds), _SEEDS_PER_PROCESS)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(_run_part, part, hash_seed, collect) for part in parts]
        for run in as_completed(runs):
            yield from run.result()


def _run_part(seeds: range, hash_seed: int, collect: bool) -> list[bytes]:
    command = [
        sys.executable, "-m", "hadron.sim", "--worker",
        "--start", str(seeds.start), "--seeds", str(len(seeds)),
    ]
    if not collect:
        command.append("--no-gc")
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    trouble = ""
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=_PATIENCE_S * len(seeds)
        )
        output = ended.stdout
        if ended.returncode:
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            trouble = f"its process ended with status {ended.returncode}: {' '.join(last)}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        trouble = f"its process had not ended after {_PATIENCE_S * len(seeds):g} real seconds"
    lines = output.splitlines()
    missing = seeds[len(lines) :]
    if missing:
        lines.append(encode_outcome(_failed(missing[0], trouble or "its process said nothing")))
        if len(missing) > 1:
            lines += _run_part(missing[1:], hash_seed, collect)
    return lines


def _failed(seed: int, trouble: str) -> Outcome:
    return Outcome(seed=seed, violations=[trouble])
