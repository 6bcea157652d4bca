"""`hadron restore`: one node, or a whole replica set, from a backup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hadron.node.replica_set import ReplicaSetConfig


@click.command("restore", short_help="Restore a node, or a whole replica set, from a backup.")
@click.argument("backup", type=click.Path(path_type=Path), metavar="BACKUP")
@click.option("--config", type=click.Path(path_type=Path), metavar="DIR|FILE",
              help="The replica set's configuration file, or the directory of a local cluster.")
@click.option("--node", metavar="NAME",
              help="Restore this node of FILE; the others teach it what it lacks.")
@click.option("--all", "everyone", is_flag=True,
              help="Restore every node of FILE: all disks are lost. Needs --accept-loss.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR",
              help="Restore the node of `hadron dev --data DIR`. Needs --accept-loss.")
@click.option("--accept-loss", is_flag=True,
              help="What was acknowledged after the backup may be lost for good.")
@click.option("--overwrite", is_flag=True, help="Replace data that is there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context, backup: Path, config: Path | None, node: str | None, everyone: bool,
    data: Path | None, accept_loss: bool, overwrite: bool, debug: bool,
) -> None:
    """Write a backup into data directories of stopped nodes. It is verified before and after.

    With --node, that node counts in no majority until the others have taught it what it lacks:
    nothing is lost. A node with an empty disk does the same by itself; a backup saves it the way
    over the network.

    With --all, a new history begins where the backup ends; raise `epoch` in FILE first. Members
    that were not restored are refused by the others. Move the directories of nodes on other
    machines there before they start.

    \b
    Examples:
      hadron restore backups/monday --config cluster.yaml --node n2
      hadron restore backups/monday --config cluster.yaml --all --accept-loss
      hadron restore backups/monday --data hadron-data --accept-loss
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    _check_usage(ctx, config, [node is not None, everyone, data is not None])
    if node is None and not accept_loss:
        raise click.UsageError(
            "a new history begins: everything that was acknowledged after the backup is lost; "
            "say --accept-loss", ctx,
        )
    if data is not None:
        _restore_single(backup, data, overwrite)
        return
    from hadron.node.config import load_config
    from hadron.node.supervision.detached import given_config

    assert config is not None
    loaded = load_config(given_config(config), os.environ)
    if node is not None:
        _restore_one(backup, loaded, node, overwrite)
    else:
        _restore_all(backup, loaded, overwrite)
        click.echo(
            f"start every node with {loaded.path}, or a file with a higher epoch than its "
            f"{loaded.epoch}: `{_start(loaded, 'NODE')}`"
        )


def _start(config: ReplicaSetConfig, node: str) -> str:
    """The command that starts a node with this file, as its cluster was started before."""
    from hadron.node.supervision.detached import DEFAULT_DIRECTORY, FILE_NAME, was_started_here

    assert config.path is not None
    if was_started_here(config):
        default = Path(DEFAULT_DIRECTORY) / FILE_NAME
        given = "" if config.path.absolute() == default.absolute() else f" --config {config.path}"
        return f"hadron cluster up{given}"
    return f"hadron node --config {config.path} --name {node}"


def _check_usage(ctx: click.Context, config: Path | None, targets: list[bool]) -> None:
    if sum(targets) != 1:
        raise click.UsageError("say what to restore: --node NAME, --all, or --data DIR", ctx)
    if targets[-1] and config is not None:
        raise click.UsageError("--data and --config exclude each other", ctx)
    if not targets[-1] and config is None:
        raise click.UsageError("name the replica set's configuration file with --config", ctx)


def _restore_one(backup: Path, config: ReplicaSetConfig, node: str, overwrite: bool) -> None:
    from hadron.cli.backup import describe
    from hadron.node.restore import restore_node
    from hadron.node.world import SystemDisk

    manifest = restore_node(backup, config, node, SystemDisk(), overwrite=overwrite)
    click.echo(describe(manifest))
    click.echo(f"restored and verified in {config.node(node).data}")
    click.echo(
        f"{node} counts in no majority until the others have taught it; start it with "
        f"`{_start(config, node)}`"
    )


def _restore_all(backup: Path, config: ReplicaSetConfig, overwrite: bool) -> None:
    from hadron.cli.backup import describe
    from hadron.node.restore import restore_set
    from hadron.node.world import SystemClock, SystemDisk, SystemRandom

    founded = restore_set(
        backup, config, SystemDisk(), SystemRandom(), SystemClock(), overwrite=overwrite
    )
    click.echo(describe(founded.manifest))
    for directory in founded.directories:
        click.echo(f"restored and verified in {directory}")
    click.echo(
        f"a new history of {config.name} begins with entry {founded.first.lsn}, ballot "
        f"{founded.first.ballot}, uuid {founded.uuid.hex()}; what was acknowledged after entry "
        f"{founded.manifest.lsn} is lost"
    )


def _restore_single(backup: Path, data: Path, overwrite: bool) -> None:
    from hadron.model.errors import ConfigurationError
    from hadron.node.backup import read_backup
    from hadron.node.replica_set import single_node_config
    from hadron.storage.identity import read_epoch

    manifest = read_backup(backup)
    config = single_node_config(
        data, "127.0.0.1:7000", epoch=1 + max(manifest.epoch, read_epoch(data))
    )
    theirs = (manifest.cluster, manifest.replica_set)
    if theirs != (config.cluster, config.name):
        raise ConfigurationError(
            f"the backup is of replica set {theirs[1]} in cluster {theirs[0]}, not of "
            "`hadron dev`'s",
            "name that replica set's configuration file with --config, and --node or --all",
        )
    _restore_all(backup, config, overwrite)
    click.echo(f"start it with `hadron dev --data {data}`")
