"""`hadron promote`: write the configuration in which another node leads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hadron.node.promotion import Promotion


@click.command("promote", short_help="Let another node lead: write the next configuration.")
@click.argument("node", metavar="NODE")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="The configuration file, or the directory of a local cluster.  "
    "[default: ./hadron-cluster]",
)
@click.option(
    "--replica-set",
    metavar="NAME",
    help="Whose node it is, where the directory has several replica sets.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context,
    node: str,
    config: Path | None,
    replica_set: str | None,
    dry_run: bool,
    debug: bool,
) -> None:
    """Raise the configuration's epoch by one and make NODE, or REPLICA-SET/NODE, the leader in it.

    Nothing happens until nodes are started with the new file; this command says which. NODE leads
    as soon as it has been restarted and a majority has promised it; the others may still have the
    old file then, and an old leader with the old file can commit nothing. What was acknowledged
    stays.

    Restart soon after this: a node that crashes meanwhile starts with the new file, and if it is
    NODE, it takes over. `hadron status` asks nodes: it shows who leads, and knows of a new file
    once a node was started with it.

    Members are added and removed the same way, with an editor: raise `epoch`, change the nodes,
    start new ones first, then restart the leader and the others. A majority of the members so far
    must be among the new ones; go in steps if it is not. (From two members to one there is no such
    step: back up one of them, and `hadron restore --all` with the new file.)

    \b
    Examples:
      hadron promote n2
      hadron promote n2 --config /etc/hadron/p0.yaml --dry-run
      hadron promote gcp.us-east4/p0/n2 --config config/two-regions
    """
    from hadron.cli.session import session_of
    from hadron.node.promotion import plan, write
    from hadron.node.supervision.fleet import find_config_of

    session_of(ctx).debug |= debug
    # As `backup` and `restore` take it, and as messages of clusters write it.
    name, _, node = node.rpartition("/")
    if name and replica_set not in (None, name):
        raise click.UsageError(f"{name}/{node} is not of {replica_set}", ctx)
    replica_set = replica_set or name or None
    promotion = plan(find_config_of(config, replica_set or ""), node, os.environ)
    if not dry_run:
        write(promotion)
    old, new = promotion.old, promotion.new
    click.echo(
        f"{promotion.path}: epoch {old.epoch} -> {new.epoch}, leader {old.leader.name} -> "
        f"{new.leader.name}{' (dry run: nothing was written)' if dry_run else ''}"
    )
    if not dry_run:
        _say_what_to_restart(promotion, config, replica_set)


def _say_what_to_restart(promotion: Promotion, given: Path | None, replica_set: str | None) -> None:
    from hadron.node.supervision.detached import DetachedCluster

    new = promotion.new
    if any(node.process for node in DetachedCluster(promotion.path).nodes()):
        where = "" if given is None else f" --config {given}"
        where += "" if replica_set is None else f" --replica-set {replica_set}"
        click.echo(f"now:  hadron cluster restart{where}")
        return
    others = ", ".join(node.name for node in new.nodes if node.name != new.leader.name)
    click.echo(
        f"now:  give this file to the nodes, and restart {new.leader.name}; it leads from then on\n"
        f"then: restart {others}, one after the other"
    )
