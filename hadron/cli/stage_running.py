"""`hadron pipeline run`: a stage runner in the foreground, stopped gently by the first signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click

from hadron.cli.root import INTERRUPTED

if TYPE_CHECKING:
    from hadron.spark.runner import MicroBatch, StageRunner


def run_stages(
    url: str, pipeline: str, master: str, stages: Sequence[str], max_batch: int
) -> int:
    """Run until SIGINT or SIGTERM; a second one ends it at once. Returns the exit status."""
    from hadron.spark.runner import StageRunner
    from hadron.spark.session import session

    _check_exists(url, pipeline)
    # Before the handlers: pyspark sets one of its own, which would cancel what is under way.
    spark = session(master, f"hadron {pipeline}")
    try:
        runner = StageRunner(
            url, pipeline, stages=stages, max_batch=max_batch, spark=spark, on_progress=_show
        )
        with _stopped_by_signals(runner) as received:
            totals = runner.run()
    finally:
        spark.stop()
    click.echo(f"completed {totals.completed:,} stages in {totals.micro_batches:,} micro-batches")
    return INTERRUPTED if signal.SIGINT in received else 0


def _check_exists(url: str, pipeline: str) -> None:
    """Raise `NotFoundError` before Spark is started in vain."""
    import hadron
    from hadron.cli.pipelines import progress_rows

    with hadron.connect_sync(url) as client:
        progress_rows(client, pipeline)


@contextlib.contextmanager
def _stopped_by_signals(runner: StageRunner) -> Iterator[list[int]]:
    """Yields the list of signals that came."""
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            # At once, wherever the program is: what is under way will be handed out again.
            os._exit(128 + number)
        click.echo("finishing what is under way; once more to stop at once", err=True)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(batch: MicroBatch) -> None:
    """One line per micro-batch."""
    seconds = batch.input_s + batch.spark_s + batch.output_s
    parts = [f"{batch.stage}: {batch.completed:,} of {batch.invocations:,} in {seconds:.2f} s"]
    if batch.stale:
        parts.append(f"{batch.stale:,} done by others")
    if batch.failed:
        parts.append(f"{batch.failed:,} failed: {batch.reason}")
    click.echo("; ".join(parts))
