"""What the simulator's command line takes: each option with its bounds, and which go together.

An option that the others leave without an effect is a mistake, not noise: whoever types
`--seed 17 --seeds 200` wants one of the two, and a run that quietly does the other shows
something else than it seems to.
"""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Sequence
from typing import Final

from hadron.sim.mutants import MUTANTS
from hadron.sim.mutants.chance import number_of
from hadron.sim.mutants.hunt import PATIENCE_S, SEEDS

_SEEDS: Final = 100
_MOST_SEEDS: Final = 1_000_000
"""About two weeks on two cores; each one waits in memory for its turn."""
_LAST_SEED: Final = 2**63 - 1
"""Outcomes go from process to process as JSON with 64-bit integers."""

_ALONE: Final = ("seeds", "start", "jobs", "patience", "coverage", "mutants", "mutant", "chance")
"""Options that say nothing about one seed."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with `seeds`, `start`, `jobs` and `patience` filled in.

    Ends the process with status 2 and a line on the standard error for anything else.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.worker and (mistake := _mistake(options)):
        parser.error(mistake)
    is_hunt = options.mutants or options.mutant or options.chance
    filled = {"seeds": SEEDS if is_hunt else _SEEDS, "start": 0, "jobs": 2, "patience": PATIENCE_S}
    for name, value in filled.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _mistake(options: argparse.Namespace) -> str:
    """Why these options do not go together; "" when they do."""
    # By identity: --seed 0 is given, too.
    given = {
        name for name, value in vars(options).items() if value is not None and value is not False
    }

    def refuse(names: Sequence[str], why: str) -> str:
        return next((f"--{n.replace('_', '-')} {why}" for n in names if n in given), "")

    if options.seed is not None:
        if options.replay and options.output == "json":
            return "--output json has no effect with --replay, which prints lines for people"
        return refuse(_ALONE, "has no effect with --seed, which runs this one seed")
    if options.replay:
        return "--replay needs --seed K: the seed whose run to print"
    if options.mutants and options.mutant:
        return "--mutant has no effect with --mutants, which plants every bug"
    if options.chance and (options.mutants or options.mutant):
        return "--chance has no effect with --mutants or --mutant, which plant other bugs"
    if options.mutants or options.mutant or options.chance:
        if options.mutant and "jobs" in given:
            return "--jobs has no effect with --mutant: one bug is looked for in this process"
        return refuse(("coverage", "check_traces"), "has no effect while planted bugs are hunted")
    if options.coverage:
        return refuse(
            ("check_traces", "jobs", "output", "patience"),
            "has no effect with --coverage, which counts lines in one process",
        )
    return refuse(("patience",), "has no effect without --mutants, --mutant or --chance")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hadron.sim", description="Run a replica set in simulated worlds, by seed."
    )
    add = parser.add_argument
    add(
        "--seeds",
        type=_whole(1, _MOST_SEEDS),
        metavar="N",
        help=f"how many (default {_SEEDS}; for each planted bug at most {SEEDS})",
    )
    add(
        "--start",
        type=_whole(0, _LAST_SEED - _MOST_SEEDS),
        metavar="S",
        help="the first seed (default 0)",
    )
    add("--jobs", type=_whole(1, 1024), metavar="N", help="processes at a time (default 2)")
    add("--output", choices=("text", "json"), help="of the summary (default text)")
    add(
        "--seed",
        type=_whole(0, _LAST_SEED),
        metavar="K",
        help="run this one seed, in this process: its summary, and what led to a violation",
    )
    add("--replay", action="store_true", help="with --seed: print all that happens, as it happens")
    add("--check-traces", action="store_true", help="run each seed a second time and compare")
    add(
        "--coverage",
        action="store_true",
        help="print the lines that the seeds and every directed scenario covered, by room",
    )
    add("--mutants", action="store_true", help="plant every bug that there is, and look for it")
    add(
        "--mutant",
        type=_mutant,
        metavar="NAME",
        help="plant one bug, and look for it; chance/N is number N of --chance",
    )
    add(
        "--chance",
        type=_whole(1, _MOST_SEEDS),
        metavar="N",
        help="draw N bugs from the product's code, from number S of --start on, and look for each "
        "in every directed scenario, then in random seeds",
    )
    add(
        "--patience",
        type=_seconds,
        metavar="S",
        help="real seconds for random seeds with each planted bug, after the directed scenarios "
        f"(default {PATIENCE_S:g})",
    )
    for hidden in ("--worker", "--ask", "--scenarios", "--no-gc"):
        add(hidden, action="store_true", help=argparse.SUPPRESS)
    return parser


def _whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not from {least} to {most}")
        return value

    return read


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _mutant(text: str) -> str:
    if text in MUTANTS or number_of(text) is not None:
        return text
    near = difflib.get_close_matches(text, MUTANTS, n=1)
    meant = f"; is it {near[0]}?" if near else ""
    names = "\n".join(f"    {name}" for name in sorted(MUTANTS))
    raise argparse.ArgumentTypeError(f"no planted bug is called {text!r}{meant}\n{names}")
