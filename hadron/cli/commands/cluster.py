"""`hadron cluster`: a local cluster of processes that stays up until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hadron.cli.printing import output_option, print_rows

if TYPE_CHECKING:
    from hadron.node.replica_set import ReplicaSetConfig
    from hadron.node.supervision.detached import DetachedCluster, DetachedNode
    from hadron.node.supervision.fleet import Fleet

_Function = TypeVar("_Function", bound=Callable[..., Any])
_COLUMNS = {
    "replica_set": "REPLICA SET",
    "node": "NODE",
    "role": "ROLE IN FILE",
    "address": "ADDRESS",
    "state": "STATE",
    "pid": ">PID",
    "log": "LOG",
}


def _config_option(function: _Function) -> _Function:
    for decorate in (
        click.option(
            "--replica-set",
            "replica_sets",
            metavar="NAME",
            multiple=True,
            help="Only this one of several; repeatable.",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="DIR|FILE",
            help="A configuration file; or a directory with one for each replica set, or for a "
            "new one with three nodes on ports 7000 to 7002.  [default: ./hadron-cluster]",
        ),
    ):
        function = decorate(function)
    return function


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
def up(config: Path | None, replica_sets: tuple[str, ...]) -> None:
    """Start the nodes that do not run and wait until they serve. Repeated, it changes nothing.

    Nodes that are not ready in time stay up: they go on as soon as they can, and `hadron status`
    shows what they wait for. Nodes that run keep the file that they were started with.

    Commands run in this directory find the cluster in ./hadron-cluster by themselves; with
    another --config, set HADRON_URL as this command prints.

    \b
    Examples:
      hadron cluster up
      hadron cluster up --config config/three-nodes.yaml
      hadron cluster up --config config/two-regions
      hadron cluster up --config config/two-regions --replica-set aws.us-east-1/p0
    """
    fleet = _fleet(config, replica_sets, create=True)
    for warning in (text for each in fleet.clusters for text in each.config.warnings):
        click.echo(f"warning: {warning}", err=True)
    try:
        started = fleet.up(tell=_tell)
    except KeyboardInterrupt:
        click.echo(
            "interrupted: nodes that were started stay; see `hadron cluster status`, "
            "`hadron cluster down`",
            err=True,
        )
        raise
    are_old = [_print_nodes(fleet, *each) for each in started]
    if any(are_old):
        click.echo("\n`hadron cluster restart` gives every node the file as it is now")
    if len(fleet.clusters) > 1:
        strangers = fleet.wait_acquainted()
        for stranger in strangers:
            click.echo(f"warning: {stranger}; see `hadron status`", err=True)
        if not strangers:
            click.echo(f"all nodes know all {len(fleet.clusters)} replica sets")
    click.echo(f"\nconnect with:  export HADRON_URL={fleet.url}")
    nodes = [node for each in fleet.clusters for node in each.config.nodes]
    if http := next((node.http for node in nodes if node.http), None):
        click.echo(f"or over HTTP:  http://{http} (docs/HTTP.md)")
    if grpc := next((node.grpc for node in nodes if node.grpc), None):
        click.echo(f"or over gRPC:  {grpc} (docs/GRPC.md)")


def _print_nodes(fleet: Fleet, cluster: DetachedCluster, started: list[str]) -> bool:
    """Print how each node of a set is; whether one runs with another file."""
    said = cluster.ask()
    for node in cluster.nodes():
        done = "started" if node.name in started else "was running"
        pid = node.process.pid if node.process else "?"
        state, note = "no answer", ""
        if found := said.get(node.name):
            state = found.status.state
            note = _old_file(cluster.config.epoch, found.file.epoch)
        note = note if node.role else ", not in the file any more"
        who = _named(fleet, cluster.config.name, node.name)
        click.echo(f"{who} {done}: {state}{_at(node.address)}, pid {pid}{note}")
    return any(found.file.epoch != cluster.config.epoch for found in said.values())


@command.command("restart")
@_config_option
def restart(config: Path | None, replica_sets: tuple[str, ...]) -> None:
    """Restart the nodes with the configuration file as it is now, the leader first.

    Then the others, one after the other: a majority is up all the time. Nodes that do not run are
    started, and those that the file does not have any more are stopped. Nothing is stopped when
    the file does not fit what the nodes run with. Of several replica sets, one is restarted after
    the other.

    \b
    Example:
      hadron promote n2 && hadron cluster restart
    """
    fleet = _fleet(config, replica_sets)
    before = {each.config.name: each.all_running() for each in fleet.clusters}
    for of, node in fleet.restart(tell=_tell):
        leads = node.role == "leader"
        state = f"leads {of.name} with epoch {of.epoch}, serving" if leads else "follows"
        done = "started" if node.was_away else "restarted"
        who = _named(fleet, of.name, node.name)
        click.echo(f"{who} {done}: {state} after {node.seconds:.2f} s")
    for each in fleet.clusters:
        for gone in before[each.config.name]:
            if gone not in each.config.members:
                who = _named(fleet, each.config.name, gone)
                click.echo(f"{who} stopped: {each.config_path} does not have it any more")


@command.command("down")
@_config_option
def down(config: Path | None, replica_sets: tuple[str, ...]) -> None:
    """Stop the nodes; their data stays.

    \b
    Examples:
      hadron cluster down
      hadron cluster down --config config/two-regions --replica-set aws.us-east-1/p0
    """
    fleet = _fleet(config, replica_sets)
    stopped = [_named(fleet, *each) for each in fleet.down()]
    click.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@command.command("status")
@_config_option
@output_option
def status(config: Path | None, replica_sets: tuple[str, ...], output: str) -> None:
    """Show which nodes run; `hadron status` shows how they are, and who leads.

    A node has the role that the file says once it has been started with this file.

    \b
    Example:
      hadron cluster status
    """
    from hadron.node.supervision.cluster import log_path

    rows = [
        {
            "replica_set": each.config.name,
            "node": node.name,
            "role": node.role or None,
            "address": node.address or None,
            "state": _state(node),
            "pid": node.process.pid if node.process else None,
            "log": str(log_path(each.config, node.name)) if node.role else None,
            "last_words": _last_words(each.config, node),
        }
        for each in _fleet(config, replica_sets).clusters
        for node in each.nodes()
    ]
    print_rows(_COLUMNS, rows, output)
    if output == "table":
        for row in rows:
            if row["last_words"]:
                click.echo(f"{row['replica_set']} {row['node']} stopped: {row['last_words']}")


def _named(fleet: Fleet, replica_set: str, node: str) -> str:
    """A node, with its replica set where there are several."""
    return f"{replica_set} {node}" if fleet.has_several else node


def _last_words(config: ReplicaSetConfig, node: DetachedNode) -> str:
    """The error that ended a node which does not run; "" for one that was stopped in order."""
    from hadron.node.supervision.cluster import log_path
    from hadron.node.supervision.processes import last_words

    return "" if node.process or not node.role else last_words(log_path(config, node.name))[0]


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


def _fleet(config: Path | None, only: tuple[str, ...], *, create: bool = False) -> Fleet:
    from hadron.model.errors import ConfigurationError
    from hadron.node.supervision.fleet import Fleet, find_configs

    try:
        files = find_configs(config)
    except ConfigurationError:
        # A set that is named is there already: a new cluster's would not be it.
        if not create or only:
            raise
        files = find_configs(config, create=True)
        # Said before its nodes start: the name may be a slip.
        _tell(f"new cluster in {config or files[0].parent}")
    return Fleet(files, only)
