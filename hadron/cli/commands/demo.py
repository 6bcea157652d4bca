"""`hadron demo`: a replicated pipeline on real data, on this machine, verified at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hadron.model.errors import ConfigurationError

if TYPE_CHECKING:
    from hadron.demo.screen import Screen
    from hadron.demo.verify import Report
    from hadron.node.supervision.cluster import LocalCluster

_ROOM_BYTES: Final = 300 << 20
"""All that is written comes to 94 MB, and with less than 128 MiB left nodes refuse records
(`disk_reserve_bytes`); the rest is for others who write there."""
_WAY_OUT: Final = "TMPDIR names another directory: TMPDIR=/var/tmp hadron demo"


@click.command("demo", short_help="Run a replicated pipeline on real data, and verify it.")
@click.option("--keep", is_flag=True, help="Leave the cluster up afterwards, to be explored.")
@click.option(
    "--kill",
    "victim",
    type=click.Choice(["n1", "n2", "n3"]),
    default="n3",
    show_default=True,
    help="The node that is killed with SIGKILL half way, and brought back.",
)
@click.option(
    "--verify",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Only verify the files that `hadron demo --keep` left in DIR.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context, keep: bool, victim: str, directory: Path | None, debug: bool
) -> int:
    """Send January 2013's 27,004 departures from New York through a pipeline of two Spark stages,
    on a cluster of three processes, one of which is killed half way.

    It needs Hadron's Spark extra: pip install '.[spark]' in a clone, 'CLONE[spark]' elsewhere. Its
    files are temporary ones: TMPDIR says where.

    At the end every flight is looked for in each node's own file, and compared with what plain
    Python computes. The exit status is 0 only when nothing is missing, doubled or altered.

    \b
    Examples:
      hadron demo
      hadron demo --keep --kill n2
    """
    from hadron.cli.session import session_of
    from hadron.demo.run import print_report
    from hadron.demo.screen import Screen

    session_of(ctx).debug |= debug
    screen = Screen()
    report = _verify(directory) if directory else _play(keep, victim, screen)
    print_report(report, screen)
    return 0 if report.ok else 1


def _verify(directory: Path) -> Report:
    """Judge the files of a demo's nodes, running or not."""
    from hadron.demo.verify import verify
    from hadron.node.config import load_config
    from hadron.node.supervision.detached import FILE_NAME

    if not (directory / FILE_NAME).exists():
        raise ConfigurationError(
            f"no demo has left its files in {directory}: it has no {FILE_NAME}",
            "DIR is the one that `hadron demo --keep` prints",
        )
    config = load_config(directory / FILE_NAME, os.environ)
    return verify({node.name: node.data / "hadron.db" for node in config.nodes})


def _play(keep: bool, victim: str, screen: Screen) -> Report:
    from hadron.spark.extra import check_extra

    # Before anything is started or published: the stages would have nothing to run on, the nodes
    # would wait for room.
    check_extra()
    _check_room()
    from hadron.demo.run import run
    from hadron.node.supervision.cluster import LocalCluster
    from hadron.node.supervision.detached import RememberedCluster
    from hadron.node.supervision.ending import ended_by_signals

    # Whoever ends the demo, in whatever way, must not leave its processes behind.
    with ended_by_signals(), ExitStack() as stack:
        directory = Path(
            tempfile.mkdtemp(prefix="hadron-demo-")
            if keep
            else stack.enter_context(tempfile.TemporaryDirectory(prefix="hadron-demo-"))
        )
        if keep:
            click.echo(f"the cluster's files: {directory}")
        is_left_up = False
        cluster = RememberedCluster(directory) if keep else LocalCluster(directory)
        stack.callback(cluster.stop_all)
        try:
            report = run(cluster, victim, screen)
            if keep:
                _leave_up(cluster)
                is_left_up = True
        finally:
            if keep and not is_left_up:
                # It stays there, and nothing else says where.
                click.echo(f"the demo did not come to its end; its files: {directory}", err=True)
    return report


def _check_room() -> None:
    """Raise `ConfigurationError` where a demo's files have no room: nodes would wait for it."""
    try:
        directory = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no room for files: {error.strerror}", _WAY_OUT
        ) from error
    given = os.environ.get("TMPDIR")
    if given and os.path.realpath(given) != os.path.realpath(directory):
        # Python goes on with /tmp, which is what was not meant.
        raise ConfigurationError(
            f"TMPDIR={given} is no directory where files can be written", _WAY_OUT
        )
    free = shutil.disk_usage(directory).free
    if free < _ROOM_BYTES:
        raise ConfigurationError(
            f"{directory} has {free >> 20} MiB left, a demo needs {_ROOM_BYTES >> 20} MiB", _WAY_OUT
        )


def _leave_up(cluster: LocalCluster) -> None:
    from hadron.node.supervision.detached import DetachedCluster

    DetachedCluster(cluster.config_path).adopt(cluster)
    directory = cluster.directory
    click.echo(f"""
the cluster stays up; to explore it:
  export HADRON_URL={cluster.url}
  hadron status
  hadron read verdicts --from -10
  hadron describe pipeline departures
  sqlite3 'file:{cluster.database("n1")}?mode=ro'
  hadron demo --verify {directory}
and to stop it:
  hadron cluster down --config {directory}
""")
