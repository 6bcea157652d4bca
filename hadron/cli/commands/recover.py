"""`hadron recover`: too few disks remember what was acknowledged; go on with what there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hadron.node.replica_set import ReplicaSetConfig


@click.command("recover", short_help="Let a disk count again that may have lost records.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="The replica set's configuration file, or the directory of a local cluster.",
)
@click.option(
    "--replica-set",
    metavar="NAME",
    help="Whose node it is, where the directory has several replica sets.",
)
@click.option("--node", metavar="NAME", help="Whose disk, on this machine.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The disk of `hadron dev --data DIR` instead.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Acknowledged records that this disk has lost may be lost for good.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context,
    config: Path | None,
    replica_set: str | None,
    node: str | None,
    data: Path | None,
    accept_loss: bool,
    debug: bool,
) -> None:
    """Let a stopped node count in majorities again with the log that its disk has.

    A node counts in no majority when its disk may have lost what it acknowledged: its write-ahead
    log was damaged, or its machine lost power with `durability: os`. Normally the others teach it,
    and nothing is lost. Where too few of them remember, for instance because all machines lost
    power, nobody can: `hadron status` shows what is waited for.

    This command says: take this disk's log as it is. If a record was acknowledged by disks that
    all lost it, it is lost then, and its offset may be given to another one. Start every node that
    still has its disk, and wait, before you decide; recover as few as are needed, those with the
    most entries first. A node that comes back later with what was lost stops, and keeps it.

    A start that finds damage sets the file aside, as hadron.db.aside in the data directory, and
    begins an empty one. This command looks at both, and takes the log that goes further.

    Stop the node for this command only (`hadron cluster down` stops a local cluster's), and copy
    its data directory first.

    \b
    Examples:
      hadron recover --config hadron-cluster --node n1 --accept-loss
      hadron recover --config /etc/hadron/p0.yaml --node n1 --accept-loss
      hadron recover --data hadron-data --accept-loss
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    named = [config is not None, node is not None]
    if any([*named, replica_set]) if data is not None else not all(named):
        raise click.UsageError("say whose disk: --config FILE and --node NAME, or --data DIR", ctx)
    if not accept_loss:
        raise click.UsageError(
            "records that were acknowledged may be lost by this, for good; say --accept-loss", ctx
        )
    from hadron.node.recovery import recover
    from hadron.node.world import SystemDisk

    loaded, node = _disk_of(config, replica_set or "", node, data)
    recovered = recover(loaded, node, SystemDisk())
    end = recovered.end
    if recovered.was_whole:
        click.echo(
            f"{node} counts already and has lost nothing, there is nothing to recover: its log "
            f"ends at entry {end.lsn} of ballot {end.ballot}"
        )
        return
    click.echo(
        f"{node} counts again, with a log that ends at entry {end.lsn} of ballot {end.ballot}, "
        f"chain {end.chain.hex()}"
    )
    if recovered.aside is not None:
        wal = Path(f"{recovered.aside}-wal")
        beside = f" and {wal}" if wal.exists() else ""
        click.echo(f"what was there is kept in {recovered.aside}{beside}")
    click.echo("whatever was acknowledged after that by disks that lost it too is lost")


def _disk_of(
    config: Path | None, replica_set: str, node: str | None, data: Path | None
) -> tuple[ReplicaSetConfig, str]:
    from hadron.node.config import load_config
    from hadron.node.replica_set import single_node_config
    from hadron.node.supervision.fleet import find_config_of

    if data is not None:
        single = single_node_config(data, "127.0.0.1:7000")
        return single, single.leader.name
    assert config is not None
    assert node is not None
    return load_config(find_config_of(config, replica_set), os.environ), node
