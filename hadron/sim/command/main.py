"""The command line of the simulator.

    python -m hadron.sim --seeds 200                    seeds 0 to 199
    python -m hadron.sim --seed 17                      one seed, and what led to a violation
    python -m hadron.sim --seed 17 --replay             one seed, with all that happens
    python -m hadron.sim --seeds 200 --check-traces     and again, elsewhere: same traces?
    python -m hadron.sim --seeds 50 --coverage          lines that run under the simulator alone
    python -m hadron.sim --mutants                      planted bugs: is each of them caught?
    python -m hadron.sim --chance 40                    bugs that chance draws: how many are?

The exit status is 1 when there was a violation or a trace that differed, and when nothing at all
was acknowledged: such a run has shown nothing. It is 2 for options that do not go together, 130
after SIGINT (what had been found by then is printed) and 141 when nobody reads the output.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from hadron.fakes.trace import Trace
from hadron.sim.command.options import parse
from hadron.sim.command.processes import run_elsewhere
from hadron.sim.command.summary import Progress, Summary, decode_outcome, encode_outcome
from hadron.sim.mutants import MUTANTS
from hadron.sim.mutants.chance import PREFIX, number_of
from hadron.sim.mutants.hunt import Found, Report, describe, hunt, hunt_anywhere, hunt_elsewhere
from hadron.sim.rooms import play_rooms
from hadron.sim.runs.region_workload import RegionsRun
from hadron.sim.runs.run import Outcome, run_in, run_seed
from hadron.sim.runs.shapes import Shape, shape_of
from hadron.sim.runs.small_limits import limited
from hadron.sim.runs.workload import RandomRun
from hadron.sim.scenarios import SCENARIOS
from hadron.sim.world.regions import open_regions

_OTHER_HASHES: Final = 4711
"""PYTHONHASHSEED of second runs; first ones have 0."""
_INTERRUPTED: Final = 130
_CUT_OFF: Final = 141
"""What shells report for a process that SIGINT or SIGPIPE has ended."""

_COLLECT_EVERY: Final = 20_000
"""Objects more than before at which a worker's garbage collector looks at the youngest."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = parse(arguments)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        status = _dispatch(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. What is still buffered must not be tried again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CUT_OFF
    except BaseException as error:
        # One that comes while a world runs is passed on by its nurseries, in groups.
        if not _is_interrupt(error):
            raise
        print("interrupted", file=sys.stderr, flush=True)
        return _INTERRUPTED
    finally:
        logging.disable(disabled)
    return status


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_interrupt, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


def _dispatch(options: argparse.Namespace) -> int:
    if options.mutants or options.mutant or options.chance:
        return _hunt(options)
    if options.worker:
        return _work(options)
    if options.seed is not None:
        return _run_one(options)
    if options.coverage:
        from hadron.sim.command.coverage import measure

        print("counting lines, which takes several times as long …", file=sys.stderr, flush=True)
        return measure(options.start, options.seeds)
    return _run(options)


def run_default(seed: int, trace: Trace | None = None) -> Outcome:
    """What the command line runs for a seed: the random workload under every kind of fault, over
    one replica set or several; then each room's own world."""
    shape = shape_of(seed)
    with limited(shape.limits):
        outcome = _run_shape(seed, shape, trace)
    play_rooms(seed, outcome)
    return outcome


def _run_shape(seed: int, shape: Shape, trace: Trace | None) -> Outcome:
    if shape.set_nodes is not None:
        trace = trace or Trace()
        opening = open_regions(seed, nodes=shape.set_nodes, settings=shape.settings, trace=trace)
        return run_in(seed, opening, RegionsRun(shape.plan, shape.retention), trace=trace)
    return run_seed(
        seed,
        RandomRun(plan=shape.plan, retention=shape.retention),
        nodes=shape.nodes,
        spares=1,
        settings=shape.settings,
        trace=trace,
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
        found = _hunt_one(options.mutant, seeds, options.patience)
        print(msgspec.json.encode(found).decode(), flush=True)
        return 0
    report = Report()
    if options.mutant:
        hunted: Iterable[Found] = [_hunt_one(options.mutant, seeds, options.patience)]
    elif options.mutants:
        hunted = hunt_elsewhere(MUTANTS, options.jobs, seeds, options.patience)
    else:
        # The first seeds are as good as any: what `--start` says is the first bug.
        names = [
            f"{PREFIX}{number}" for number in range(options.start, options.start + options.chance)
        ]
        hunted = hunt_elsewhere(names, options.jobs, range(options.seeds), options.patience)
    for found in hunted:
        report.found.append(found)
        if options.output != "json":
            print(describe(found), flush=True)
    if options.output == "json":
        print(json.dumps(report.to_json()))
    else:
        print(report.describe()[-1])
    return report.status()


def _hunt_one(name: str, seeds: range, patience_s: float) -> Found:
    number = number_of(name)
    if number is not None:
        return hunt_anywhere(number, run_default, seeds=seeds, patience_s=patience_s)
    return hunt(MUTANTS[name], run_default, seeds=seeds, patience_s=patience_s)


def _run_one(options: argparse.Namespace) -> int:
    """One seed in this process: all that happens with `--replay`, else what led to a violation."""
    outcome = run_default(options.seed, Trace(show=print if options.replay else None))
    summary = Summary()
    summary.add(outcome)
    if options.check_traces:
        seeds = range(options.seed, options.seed + 1)
        for line in run_elsewhere(seeds, 1, hash_seed=_OTHER_HASHES, collect=False):
            again = decode_outcome(line)
            summary.compare(again.seed, outcome.trace_hash, again.trace_hash)
    if options.output == "json":
        print(json.dumps(summary.to_json()))
        return summary.status()
    if outcome.violations and not options.replay:
        print("\n".join(outcome.story))
    print("\n".join(summary.describe()))
    return summary.status()


def _run(options: argparse.Namespace) -> int:
    started_s = time.monotonic()
    summary = Summary()
    seeds = range(options.start, options.start + options.seeds)
    interrupted = False
    try:
        _run_seeds(seeds, options, summary)
    except KeyboardInterrupt:
        # What hours have found is worth more than a clean end; a second one ends it all.
        interrupted = True
        print(f"interrupted after {summary.seeds} of {len(seeds)} seeds", file=sys.stderr)
    summary.wall_s = time.monotonic() - started_s
    if options.output == "json":
        print(json.dumps(summary.to_json()))
    else:
        print("\n".join(summary.describe()))
    return _INTERRUPTED if interrupted else summary.status()


def _run_seeds(seeds: range, options: argparse.Namespace, summary: Summary) -> None:
    first: dict[int, str] = {}
    shown = Progress(len(seeds) * (2 if options.check_traces else 1))
    for line in run_elsewhere(seeds, options.jobs):
        outcome = decode_outcome(line)
        first[outcome.seed] = outcome.trace_hash
        summary.add(outcome)
        shown.step(summary)
    if options.check_traces:
        for line in run_elsewhere(seeds, options.jobs, hash_seed=_OTHER_HASHES, collect=False):
            outcome = decode_outcome(line)
            summary.compare(outcome.seed, first[outcome.seed], outcome.trace_hash)
            shown.step(summary)
