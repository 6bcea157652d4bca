"""`hadron pipeline run` of a pipeline with `mode: stream`: its query in the foreground, stopped
gently by the first signal."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hadron.cli.pipelines.stage_running import Signals, start_spark, tell_where_spark_shows
from hadron.cli.root import INTERRUPTED
from hadron.model.errors import HadronError
from hadron.model.words import counted
from hadron.spark.failures import TRACEBACK, brief

if TYPE_CHECKING:
    from hadron.model.schema import SchemaObject
    from hadron.spark.streaming import Batch

_TELL_EVERY_S: Final = 5.0
"""Where it is no terminal: micro-batches may end several times a second."""

_MAX_DOING: Final = 200
"""Characters of what Spark says that it does."""


def run_stream(
    url: str,
    found: SchemaObject,
    master: str,
    *,
    checkpoints: Path | None,
    reset: bool,
    until_idle: bool,
) -> int:
    """Run until SIGINT or SIGTERM; a second one ends it at once. With `until_idle` until all that
    is there now is read. Returns the exit status.

    Raises `RequestError` where another runner has the checkpoint, or that is not what the sink
    knows, before Spark is started in vain; else what `StreamRunner.run` raises.
    """
    from hadron.cli.patience import connected_sync
    from hadron.cli.pipelines.streaming import checkpoint_of
    from hadron.model.pipelines import StreamPipelineSpec, sink_of
    from hadron.spark.session import end
    from hadron.spark.streaming import StreamRunner

    assert isinstance(found.spec, StreamPipelineSpec)
    with connected_sync(url) as client:
        checkpoint = checkpoint_of(client, found, checkpoints)
    with checkpoint.held(), Signals().caught() as signals:
        with connected_sync(url) as client:
            sink = client.sink(sink_of(found.name, found.id)).progress()
        if reset:
            checkpoint.begin_anew(sink)
        follows = checkpoint.follows(sink, found.spec.source.start)
        spark = start_spark(master, f"hadron {found.name}")
        try:
            shown = _Shown(found.name)
            runner = StreamRunner(
                url,
                found,
                spark,
                checkpoint,
                follows=follows,
                until_idle=until_idle,
                on_batch=shown.batch,
                on_wait=shown.wait,
                on_pause=shown.pause,
            )
            signals.stop_with(runner.stop)
            tell_where_spark_shows(spark)
            try:
                runner.run()
            finally:
                shown.end()
        finally:
            end(spark)
    click.echo(
        f"published {counted(runner.batches, 'batch', 'batches')} "
        f"of {counted(runner.rows, 'record')}"
    )
    return INTERRUPTED if signal.SIGINT in signals.received else 0


class _Shown:
    """A line that is kept up to date on a terminal; elsewhere one every few seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stdout.isatty()
        self._since_s = time.monotonic()
        self._told_s = time.monotonic()
        self._is_first = True
        self._rows = self._batches = 0
        self._latest: Batch | None = None

    def batch(self, batch: Batch) -> None:
        self._told_s = 0.0 if self._is_first else self._told_s
        self._is_first = False
        self._rows += batch.rows
        self._batches += 1
        self._latest = batch
        if self._is_terminal or time.monotonic() - self._told_s >= _TELL_EVERY_S:
            self._tell()

    def wait(self, doing: str) -> None:
        """Before the first batch: whoever waits is to know whether something happens."""
        if self._is_first and time.monotonic() - self._told_s >= _TELL_EVERY_S:
            self._told_s = time.monotonic()
            # Of a query that has failed it is pages; its error is told right behind.
            line = brief(doing.partition(TRACEBACK)[0], _MAX_DOING).rstrip(" :")
            click.echo(f"{self._name}: no batch has ended yet; Spark: {line}", err=True)

    def pause(self, error: HadronError, pause_s: float) -> None:
        self.end()
        click.echo(f"{self._name}: {error.message}; again in {pause_s:.1f} s", err=True)

    def end(self) -> None:
        """Nothing is left untold, and the next line is another one."""
        if self._latest is not None and self._batches:
            self._tell()
        if self._latest is not None and self._is_terminal:
            click.echo()
        self._latest = None

    def _tell(self) -> None:
        batch = self._latest
        assert batch is not None
        now_s = time.monotonic()
        rate = self._rows / max(now_s - self._since_s, 0.001)
        line = (
            f"{self._name}: batch {batch.number:,}: {counted(self._rows, 'record')} "
            f"in {counted(self._batches, 'batch', 'batches')}, {rate:,.0f}/s, "
            f"the last in {batch.seconds:.2f} s"
        )
        if batch.lag is not None:
            line += f"; {batch.lag:,} to come"
        click.echo(f"\r{line}\x1b[K" if self._is_terminal else line, nl=not self._is_terminal)
        self._since_s = self._told_s = now_s
        self._rows = self._batches = 0
