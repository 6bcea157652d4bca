"""`hadron pipeline run`: a stage runner in the foreground, stopped gently by the first signal.

Signals may come at any time, above all while Java starts, which takes seconds: Spark is started on
a thread of its own, so that an interrupt never tears it apart, and is always ended by us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from hadron.cli.pipelines.progress import Shown, is_idle, pace_shown
from hadron.cli.root import INTERRUPTED
from hadron.model.errors import HadronError
from hadron.model.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONFIG: Final = {"spark.ui.enabled": "true"}
"""Of Spark, for who looks on; where its port is taken it uses the next one."""

_POLL_S: Final = 0.1
"""How often signals are looked at while Spark starts: a wait without end would hold them up."""


def run_stages(
    url: str,
    pipeline: str,
    master: str,
    stages: Sequence[str],
    max_batch: int,
    *,
    until_idle: bool = False,
) -> int:
    """Run until SIGINT or SIGTERM; a second one ends it at once. With `until_idle` also until
    nothing is left to do. Returns the exit status: 1 when that left failed instances behind.

    Raises `NotFoundError` for the pipeline and `StageError` when there is no such stage, before
    Spark is started in vain. Users' modules are imported after it has started: what decorates their
    functions may need a session.
    """
    from hadron.spark.runner import StageRunner
    from hadron.spark.session import end

    names, some = _check(url, pipeline, stages)
    with Signals().caught() as signals, contextlib.ExitStack() as stack:
        until = stack.enter_context(_idle(url, pipeline, names)) if until_idle else None
        spark = start_spark(master, f"hadron {pipeline}")
        try:
            shown = Shown()
            runner = StageRunner(
                url,
                pipeline,
                stages=stages,
                max_batch=max_batch,
                spark=spark,
                on_progress=shown.batch,
                on_search=shown.search,
            )
            signals.stop_with(runner.stop)
            tell_where_spark_shows(spark)
            with pace_shown(url, pipeline, names, some):
                totals = runner.run(until)
        finally:
            end(spark)
    click.echo(
        f"completed {counted(totals.completed, 'stage')} "
        f"in {counted(totals.micro_batches, 'micro-batch', 'micro-batches')}"
    )
    if signal.SIGINT in signals.received:
        return INTERRUPTED
    if until_idle and totals.given_up:
        click.echo(
            f"{counted(totals.given_up, 'instance')} failed for good; `hadron pipeline instances "
            f"{pipeline} --status failed` says why, `hadron pipeline retry {pipeline} --failed` "
            "lets them run again",
            err=True,
        )
        return 1
    return 0


def _check(url: str, pipeline: str, stages: Sequence[str]) -> tuple[list[str], set[str]]:
    """Refuse what cannot work, see `run_stages`; returns the names of the stages that will run, and
    those that most instances never get to."""
    from hadron.cli.patience import connected_sync
    from hadron.cli.pipelines.shown import progress_rows, untyped_note
    from hadron.model.pipelines import PipelineSpec, branches_of
    from hadron.spark.failures import StageError
    from hadron.spark.functions import spark_stages

    with connected_sync(url) as client:
        (row,) = progress_rows(client, pipeline)
        found = client.objects(kind="Pipeline", name=pipeline)
    if row["untyped"]:
        click.echo(untyped_note(row), err=True)
    specs = [
        each.spec for each in found if each.id == row["id"] and isinstance(each.spec, PipelineSpec)
    ]
    names = [stage.name for spec in specs for stage in spark_stages(pipeline, spec, stages)]
    some = {name for spec in specs for name in (spec.on_failure, *branches_of(spec.stages))}
    if found and not names:
        raise StageError(
            f"no stage of pipeline {pipeline!r} runs on Spark",
            "its stages have `engine: handler`: a program of yours runs them, "
            "`client.stage(PIPELINE, STAGE).run(handler)`",
        )
    return names, some


@contextlib.contextmanager
def _idle(url: str, pipeline: str, stages: Sequence[str]) -> Iterator[Callable[[], bool]]:
    """What tells whether nothing is left to do for these stages (`is_idle`); once that is so, it
    tells people which backfills are paused."""
    from hadron.cli.patience import connected_sync
    from hadron.cli.pipelines.shown import backfill_notes, progress_rows

    with connected_sync(url) as client:

        def until() -> bool:
            try:
                (row,) = progress_rows(client, pipeline)
            except HadronError as error:
                if not error.retryable:
                    raise
                return False
            if not is_idle(row, stages):
                return False
            for note in backfill_notes(row):
                click.echo(note, err=True)
            return True

        yield until


def start_spark(master: str, app_name: str) -> SparkSession:
    """Start Spark on another thread, where pyspark leaves this process's signals alone."""
    from hadron.spark.session import session

    if sys.stderr.isatty():
        click.echo(f"starting Spark on {master}", err=True)
    future: Future[SparkSession] = Future()

    def start() -> None:
        try:
            future.set_result(session(master, app_name, _CONFIG))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=start, name="spark-start", daemon=True).start()
    while not future.done():
        threading.Event().wait(_POLL_S)
    return future.result()


def tell_where_spark_shows(spark: SparkSession) -> None:
    if spark.sparkContext.uiWebUrl:
        click.echo(f"Spark shows its jobs at {spark.sparkContext.uiWebUrl}", err=True)


class Signals:
    """SIGINT and SIGTERM: the first one stops gently, the second one at once."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._stop: Callable[[], None] | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[Signals]:
        """Handle signals within the block."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop_with(self, stop: Callable[[], None]) -> None:
        """What a signal calls from now on; called at once when one has come already."""
        self._stop = stop
        if self.received:
            stop()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        if len(self.received) > 1:
            # At once, wherever the program is: what is under way will be handed out again, and
            # Java ends by itself when its standard input does.
            os._exit(128 + number)
        if self._stop is None:
            click.echo("stopping as soon as Spark has started; once more to stop at once", err=True)
        else:
            click.echo("finishing what is under way; once more to stop at once", err=True)
            self._stop()
