"""The command line of the simulator.

    python -m hadron.sim --seeds 200                    seeds 0 to 199
    python -m hadron.sim --seed 17 --replay             one seed, with what happened
    python -m hadron.sim --seeds 200 --check-traces     and again, elsewhere: same traces?
    python -m hadron.sim --seeds 50 --coverage          lines that run under the simulator alone
    python -m hadron.sim --mutants                      planted bugs: is each of them caught?

The exit status is 1 when there was a violation or a trace that differed, and when nothing at all
was acknowledged: such a run has shown nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from hadron.sim.fleet import run_elsewhere
from hadron.sim.mutants import MUTANTS
from hadron.sim.mutants.hunt import (
    PATIENCE_S,
    SEEDS,
    Report,
    describe,
    hunt,
    hunt_elsewhere,
)
from hadron.sim.run import Outcome, run_seed
from hadron.sim.scenarios import SCENARIOS
from hadron.sim.shapes import shape_of
from hadron.sim.summary import Summary, decode_outcome, encode_outcome
from hadron.sim.trace import Trace
from hadron.sim.workload import RandomRun

_SEEDS: Final = 100

_COLLECT_EVERY: Final = 20_000
"""Objects more than before at which a worker's garbage collector looks at the youngest."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.seeds is None:
        options.seeds = SEEDS if options.mutants or options.mutant else _SEEDS
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _dispatch(options)
    finally:
        logging.disable(disabled)


def _dispatch(options: argparse.Namespace) -> int:
    if options.mutants or options.mutant:
        return _hunt(options)
    if options.worker:
        return _work(options)
    if options.replay or options.seed is not None:
        return _replay(options.seed if options.seed is not None else options.start)
    if options.coverage:
        from hadron.sim.coverage import measure

        return measure(options.start, options.seeds)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hadron.sim", description="Run a replica set in simulated worlds, by seed."
    )
    add = parser.add_argument
    add(
        "--seeds", type=_positive, metavar="N",
        help=f"how many (default {_SEEDS}; for each planted bug at most {SEEDS})",
    )
    add("--start", type=int, default=0, metavar="S", help="the first seed (default 0)")
    add("--jobs", type=_positive, default=2, metavar="N", help="processes at a time (default 2)")
    add("--output", choices=("text", "json"), default="text", help="of the summary")
    add("--seed", type=int, metavar="K", help="run this one seed, in this process")
    add("--replay", action="store_true", help="with --seed: print what happened")
    add("--check-traces", action="store_true", help="run each seed a second time and compare")
    add(
        "--coverage", action="store_true",
        help="print the lines that the seeds and every directed scenario covered, by room",
    )
    add("--mutants", action="store_true", help="plant every bug that there is, and look for it")
    add("--mutant", choices=tuple(MUTANTS), metavar="NAME", help="plant one bug, and look for it")
    add(
        "--patience", type=float, default=PATIENCE_S, metavar="S",
        help="real seconds for random seeds with each planted bug, after the directed scenarios "
        f"(default {PATIENCE_S:g})",
    )
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--ask", action="store_true", help=argparse.SUPPRESS)
    add("--scenarios", action="store_true", help=argparse.SUPPRESS)
    add("--no-gc", action="store_true", help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def run_default(seed: int, trace: Trace | None = None) -> Outcome:
    """What the command line runs for a seed: the random workload under every kind of fault."""
    shape = shape_of(seed)
    return run_seed(
        seed, RandomRun(plan=shape.plan, retention=shape.retention), nodes=shape.nodes,
        settings=shape.settings, trace=trace,
    )


def _work(options: argparse.Namespace) -> int:
    """Run seeds for another process, and directed scenarios; one line of JSON for each."""
    if options.no_gc:
        gc.disable()
    # Modules stay, and a run leaves less garbage than looking for it every 700 objects costs.
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
    for seed in _asked() if options.ask else range(options.start, options.start + options.seeds):
        print(encode_outcome(run_default(seed)).decode(), flush=True)
    for scenario in SCENARIOS.values() if options.scenarios else ():
        print(encode_outcome(scenario.play(options.start)).decode(), flush=True)
    return 0


def _asked() -> Iterator[int]:
    """Seeds from the standard input, one per line, as they come."""
    while line := sys.stdin.readline():
        yield int(line)


def _hunt(options: argparse.Namespace) -> int:
    """Look for planted bugs."""
    seeds = range(options.start, options.start + options.seeds)
    if options.worker:
        found = hunt(
            MUTANTS[options.mutant], run_default, seeds=seeds, patience_s=options.patience
        )
        print(msgspec.json.encode(found).decode(), flush=True)
        return 0
    report = Report()
    hunted = (
        hunt_elsewhere(options.jobs, seeds, options.patience) if options.mutants
        else [hunt(MUTANTS[options.mutant], run_default, seeds=seeds, patience_s=options.patience)]
    )
    for found in hunted:
        report.found.append(found)
        if options.output == "text":
            print(describe(found), flush=True)
    if options.output == "json":
        print(json.dumps(report.to_json()))
    else:
        print(report.describe()[-1])
    return report.status()


def _replay(seed: int) -> int:
    outcome = run_default(seed, Trace(show=print))
    summary = Summary()
    summary.add(outcome)
    print("\n".join(summary.describe()))
    return summary.status()


def _run(options: argparse.Namespace) -> int:
    started_s = time.monotonic()
    summary = Summary()
    first: dict[int, str] = {}
    seeds = range(options.start, options.start + options.seeds)
    for line in run_elsewhere(seeds, options.jobs):
        outcome = decode_outcome(line)
        first[outcome.seed] = outcome.trace_hash
        summary.add(outcome)
        if len(first) % 50 == 0:
            print(f"{len(first)} of {len(seeds)} seeds …", file=sys.stderr, flush=True)
    if options.check_traces:
        for line in run_elsewhere(seeds, options.jobs, hash_seed=4711, collect=False):
            outcome = decode_outcome(line)
            summary.compare(outcome.seed, first[outcome.seed], outcome.trace_hash)
    summary.wall_s = time.monotonic() - started_s
    if options.output == "json":
        print(json.dumps(summary.to_json()))
    else:
        print("\n".join(summary.describe()))
    return summary.status()
