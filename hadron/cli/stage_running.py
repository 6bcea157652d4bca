"""`hadron pipeline run`: a stage runner in the foreground, stopped gently by the first signal."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hadron.spark.runner import MicroBatch


def run_stages(
    url: str, pipeline: str, master: str, stages: Sequence[str], max_batch: int
) -> int:
    """Run until SIGINT or SIGTERM; a second one ends it at once. Returns the exit status."""
    from hadron.spark.runner import StageRunner

    runner = StageRunner(
        url, pipeline, master=master, stages=stages, max_batch=max_batch, on_progress=_show
    )
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        click.echo("finishing what is under way; once more to stop at once", err=True)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        totals = runner.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    click.echo(f"completed {totals.completed:,} stages in {totals.micro_batches:,} micro-batches")
    return 130 if signal.SIGINT in received else 0


def _show(batch: MicroBatch) -> None:
    """One line per micro-batch."""
    seconds = batch.input_s + batch.spark_s + batch.output_s
    parts = [f"{batch.stage}: {batch.completed:,} of {batch.invocations:,} in {seconds:.2f} s"]
    if batch.stale:
        parts.append(f"{batch.stale:,} done by others")
    if batch.failed:
        parts.append(f"{batch.failed:,} failed: {batch.reason}")
    click.echo("; ".join(parts))
