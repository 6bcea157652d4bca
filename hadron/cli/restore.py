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
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", required=True,
              help="The replica set's configuration file.")
@click.option("--node", metavar="NAME", help="Restore this node; the others are its teachers.")
@click.option("--all", "everyone", is_flag=True,
              help="Restore every node of FILE: all disks are lost. Needs --accept-loss.")
@click.option("--accept-loss", is_flag=True,
              help="What was acknowledged after the backup may be lost for good.")
@click.option("--overwrite", is_flag=True, help="Replace data that is there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context, backup: Path, config: Path, node: str | None, everyone: bool,
    accept_loss: bool, overwrite: bool, debug: bool,
) -> None:
    """Write a backup into data directories of stopped nodes. It is verified first.

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
    """
    from hadron.cli.session import session_of
    from hadron.node.config import load_config

    session_of(ctx).debug |= debug
    if (node is None) == (not everyone):
        raise click.UsageError("say either --node NAME or --all", ctx)
    loaded = load_config(config, os.environ)
    if everyone:
        if not accept_loss:
            raise click.UsageError(
                "--all founds a new history: everything acknowledged after the backup is lost; "
                "say --accept-loss", ctx,
            )
        _restore_all(backup, loaded, overwrite)
    else:
        assert node is not None
        _restore_one(backup, loaded, node, overwrite)


def _restore_one(backup: Path, config: ReplicaSetConfig, node: str, overwrite: bool) -> None:
    from hadron.cli.backup import describe
    from hadron.node.restore import restore_node
    from hadron.node.world import SystemDisk

    manifest = restore_node(backup, config, node, SystemDisk(), overwrite=overwrite)
    click.echo(describe(manifest))
    click.echo(f"restored and verified in {config.node(node).data}")
    click.echo(
        f"{node} counts in no majority until the others have taught it; start it with "
        f"`hadron node --config {config.path} --name {node}`"
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
