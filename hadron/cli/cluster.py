"""`hadron cluster`: a local cluster of processes that stays up until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hadron.cli.printing import output_option, print_rows

if TYPE_CHECKING:
    from hadron.node.supervision.detached import DetachedCluster, DetachedNode

_Function = TypeVar("_Function", bound=Callable[..., Any])
_COLUMNS = {"node": "NODE", "role": "ROLE IN FILE", "address": "ADDRESS", "state": "STATE",
            "pid": ">PID", "log": "LOG"}


def _config_option(function: _Function) -> _Function:
    return click.option(
        "--config", type=click.Path(path_type=Path), metavar="DIR|FILE",
        help="A configuration file, or a directory for a new one with three nodes on ports 7000 "
             "to 7002.  [default: ./hadron-cluster]",
    )(function)


@click.group("cluster", short_help="Start, stop and show a local cluster of processes.")
def command() -> None:
    """A cluster of node processes on this machine.

    \b
    Example:
      hadron cluster up
      hadron status
      hadron cluster down
    """


@command.command("up")
@_config_option
def up(config: Path | None) -> None:
    """Start the nodes that do not run and wait until they serve. Repeated, it changes nothing.

    Nodes that are not ready in time stay up: they go on as soon as they can, and `hadron status`
    shows what they wait for. Nodes that run keep the file that they were started with.

    Commands run in this directory find the cluster in ./hadron-cluster by themselves; with
    another --config, set HADRON_URL as this command prints.

    \b
    Examples:
      hadron cluster up
      hadron cluster up --config config/three-nodes.yaml
    """
    from hadron.node.supervision.cluster import cluster_url

    cluster = _cluster(config, create=True)
    started = cluster.up(tell=_tell)
    said = cluster.ask()
    for node in cluster.nodes():
        done = "started" if node.name in started else "was running"
        pid = node.process.pid if node.process else "?"
        state, note = "no answer", ""
        if found := said.get(node.name):
            state = found.status.state
            note = _old_file(cluster.config.epoch, found.file.epoch)
        note = note if node.role else ", not in the file any more"
        click.echo(f"{node.name} {done}: {state}{_at(node.address)}, pid {pid}{note}")
    if any(found.file.epoch != cluster.config.epoch for found in said.values()):
        click.echo("\n`hadron cluster restart` gives every node the file as it is now")
    click.echo(f"\nconnect with:  export HADRON_URL={cluster_url(cluster.config)}")


@command.command("restart")
@_config_option
def restart(config: Path | None) -> None:
    """Restart the nodes with the configuration file as it is now, the leader first.

    Then the others, one after the other: a majority is up all the time. Nodes that do not run are
    started, and those that the file does not have any more are stopped. Nothing is stopped when
    the file does not fit what the nodes run with.

    \b
    Example:
      hadron promote n2 && hadron cluster restart
    """
    cluster = _cluster(config)
    epoch, name = cluster.config.epoch, cluster.config.name
    before = cluster.all_running()
    for node in cluster.restart(tell=_tell):
        leads = node.role == "leader"
        state = f"leads {name} with epoch {epoch}, serving" if leads else "follows"
        done = "started" if node.was_away else "restarted"
        click.echo(f"{node.name} {done}: {state} after {node.seconds:.2f} s")
    for gone in (name for name in before if name not in cluster.config.members):
        click.echo(f"{gone} stopped: {cluster.config_path} does not have it any more")


@command.command("down")
@_config_option
def down(config: Path | None) -> None:
    """Stop the nodes; their data stays.

    \b
    Example:
      hadron cluster down
    """
    stopped = _cluster(config).down()
    click.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@command.command("status")
@_config_option
@output_option
def status(config: Path | None, output: str) -> None:
    """Show which nodes run; `hadron status` shows how they are, and who leads.

    A node has the role that the file says once it has been started with this file.

    \b
    Example:
      hadron cluster status
    """
    from hadron.node.supervision.cluster import log_path

    cluster = _cluster(config)
    rows = [
        {
            "node": node.name, "role": node.role or None, "address": node.address or None,
            "state": _state(node),
            "pid": node.process.pid if node.process else None,
            "log": str(log_path(cluster.config, node.name)) if node.role else None,
        }
        for node in cluster.nodes()
    ]
    print_rows(_COLUMNS, rows, output)


def _state(node: DetachedNode) -> str:
    if node.process is None:
        return "stopped"
    return "running" if node.role else "running, not in the file any more"


def _at(address: str) -> str:
    return f" at {address}" if address else ""


def _old_file(newest: int, epoch: int) -> str:
    return "" if epoch == newest else f", with epoch {epoch} (the file has {newest})"


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _cluster(config: Path | None, *, create: bool = False) -> DetachedCluster:
    from hadron.node.supervision.detached import DetachedCluster, find_config

    return DetachedCluster(find_config(config, create=create))
