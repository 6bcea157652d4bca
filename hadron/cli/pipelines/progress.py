"""What `hadron pipeline run` shows while it runs: micro-batches, failures, and how it goes on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.model.errors import HadronError
from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron.spark.runner import MicroBatch, Search

_LOOK_EVERY_S: Final = 5.0
_LOOKS: Final = 13
"""What the rate is taken from: the last minute."""

_KINDS: Final = 3
_KIND: Final = 150
"""How many kinds of failures a line tells, with how many characters of each."""

_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600


class Shown:
    """One line per micro-batch, one more when instances failed, and one, on a terminal kept up to
    date, while those are looked for that a function raises for."""

    def __init__(self) -> None:
        self._searched = ""
        self._is_terminal = sys.stderr.isatty()

    def batch(self, batch: MicroBatch) -> None:
        if self._searched and self._is_terminal:
            click.echo(err=True)
        self._searched = ""
        seconds = batch.input_s + batch.spark_s + batch.output_s
        parts = [f"{batch.stage}: {batch.completed:,} of {batch.invocations:,} in {seconds:.2f} s"]
        if batch.stale:
            parts.append(f"{batch.stale:,} done by others")
        click.echo("; ".join(parts))
        if batch.dropped:
            click.echo(f"{batch.stage}: {batch.dropped}", err=True)
        if batch.failed:
            click.echo(failure_line(batch), err=True)

    def search(self, search: Search) -> None:
        from hadron.spark.failures import brief

        if self._searched != search.stage:
            self._searched = search.stage
            click.echo(
                f"{search.stage}: {brief(search.reason)}; parting "
                f"{counted(search.invocations, 'instance')} to find which of them it is",
                err=True,
            )
        elif self._is_terminal:
            known = search.invocations - search.unknown
            click.echo(
                f"\r{search.stage}: {known:,} of {search.invocations:,} known", nl=False, err=True
            )


class Pace:
    """How fast stages get done, by whatever runners, and how long the rest takes at that rate.

    Args:
        some: stages that most instances never get to: what runs for one that is given up, or when
            another stage has waited for too long.
    """

    def __init__(self, some: Collection[str] = ()) -> None:
        self._some = frozenset(some)
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def line(self, now_s: float, row: dict[str, Any], stages: Collection[str]) -> str:
        """Of a pipeline's progress; "" when nothing is left, and nothing was done lately."""
        mine = [stage for stage in row["stages"] if stage["name"] in stages]
        done = sum(stage["done"] for stage in mine)
        to_come = row["input_lag"] + row["backfill_lag"]
        all_run = [stage for stage in mine if stage["name"] not in self._some]
        left = sum(_left(row, stage) for stage in all_run) + to_come * len(all_run)
        left += sum(_at_hand(stage) for stage in mine if stage not in all_run)
        self._looks.append((now_s, done))
        began_s, first = self._looks[0]
        rate = (done - first) / (now_s - began_s) if now_s > began_s else 0.0
        if not left and not rate:
            return ""
        text = f"stage runs: {done:,} done, {left:,} left, {rate:,.0f}/s"
        return f"{text}, {_span(left / rate)} to go" if left and rate else text


def _left(row: dict[str, Any], stage: dict[str, Any]) -> int:
    """Live instances that have not done a stage. Of failed ones, some may have: not fewer."""
    over = int(row["done"]) + int(row["failed"]) + int(row["cancelled"])
    waiting = int(row["live"]) - max(0, int(stage["done"]) - over)
    return max(waiting, _at_hand(stage))


def _at_hand(stage: dict[str, Any]) -> int:
    return int(stage["ready"]) + int(stage["running"])


def is_idle(row: dict[str, Any], stages: Collection[str]) -> bool:
    """Whether a pipeline's progress leaves nothing to do for these stages: its input is read to its
    end, no backfill runs, and none of their instances is ready, running, or waits for its next
    attempt. A backfill that is paused is waited for by nobody."""
    mine = [stage for stage in row["stages"] if stage["name"] in stages]
    to_come = row["input_lag"] or any(each["status"] == "running" for each in row["backfills"])
    return not to_come and not any(stage["ready"] or stage["running"] for stage in mine)


def _span(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {seconds % _MINUTE_S:.0f} s"
    return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"


@contextlib.contextmanager
def pace_shown(
    url: str, pipeline: str, stages: Collection[str], some: Collection[str] = ()
) -> Iterator[None]:
    """Within the block: how it goes on, every few seconds, while it does. `some`: as of `Pace`."""
    ended = threading.Event()
    thread = threading.Thread(
        target=_show_pace, args=(url, pipeline, stages, Pace(some), ended), name="pace", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _show_pace(
    url: str, pipeline: str, stages: Collection[str], pace: Pace, ended: threading.Event
) -> None:
    from hadron.cli.patience import connected_sync
    from hadron.cli.pipelines.shown import progress_rows

    with contextlib.suppress(HadronError), connected_sync(url) as client:
        while not ended.wait(_LOOK_EVERY_S):
            try:
                (row,) = progress_rows(client, pipeline)
            except HadronError as error:
                if not error.retryable:
                    raise
                continue
            line = pace.line(time.monotonic(), row, stages)
            if line and not ended.is_set():
                click.echo(line, err=True)


def failure_line(batch: MicroBatch) -> str:
    """How many instances of a micro-batch failed, what becomes of them, and why, in one line."""
    from hadron.spark.failures import brief

    line = f"{batch.stage}: {counted(batch.failed, 'instance')} failed{_outlook(batch)}: "
    if len(batch.reasons) == 1:
        return line + brief(batch.reasons[0][1])
    told = [f"{count:,}: {brief(reason, _KIND)}" for count, reason in batch.reasons[:_KINDS]]
    others = len(batch.reasons) - len(told)
    more = f"; and {counted(others, 'other kind')} of failures" if others > 0 else ""
    return line + "; ".join(told) + more


def _outlook(batch: MicroBatch) -> str:
    """` (attempt 3 of 5, again in 4 s)`: attempts of the instances that failed."""
    if batch.retry is None or not batch.failed_attempts:
        return ""
    last = batch.retry.max_attempts
    low, high = min(batch.failed_attempts), max(batch.failed_attempts)
    attempts = f"attempt {low}" if low == high else f"attempts {low} to {high}"
    given_up = batch.given_up
    again = f"again in {batch.retry.pause_ms(low) / 1000:g} s"
    if given_up == batch.failed:
        outlook = "given up"
    elif given_up:
        outlook = f"{given_up:,} given up, {batch.failed - given_up:,} {again}"
    else:
        outlook = again
    return f" ({attempts} of {last}, {outlook})"
