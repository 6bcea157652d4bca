"""`hadron recover`: too few disks remember what was acknowledged; go on with what there is."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("recover", short_help="Let a disk count again that may have lost records.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", required=True,
              help="The replica set's configuration file.")
@click.option("--node", metavar="NAME", required=True, help="Whose disk, on this machine.")
@click.option("--accept-loss", is_flag=True,
              help="Acknowledged records that this disk has lost may be lost for good.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context, config: Path, node: str, accept_loss: bool, debug: bool
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

    \b
    Example:
      hadron recover --config cluster.yaml --node n1 --accept-loss
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    if not accept_loss:
        raise click.UsageError(
            "records that were acknowledged may be lost by this, for good; say --accept-loss", ctx
        )
    from hadron.node.config import load_config
    from hadron.node.restore import recover
    from hadron.node.world import SystemDisk

    loaded = load_config(config, os.environ)
    end = recover(loaded, node, SystemDisk())
    click.echo(
        f"{node} counts again, with a log that ends at entry {end.lsn} of ballot {end.ballot}, "
        f"chain {end.chain.hex()}"
    )
    click.echo("whatever was acknowledged after that by disks that lost it too is lost")
