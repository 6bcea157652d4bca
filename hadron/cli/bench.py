"""`hadron bench`: measure a cluster of its own on this machine."""

from __future__ import annotations

import click
from click.core import ParameterSource

from hadron.cli.printing import output_option

_nodes = click.option(
    "--nodes", type=click.IntRange(1, 7), default=3, show_default=True,
    help="Nodes of the replica set.",
)
_record_bytes = click.option(
    "--record-bytes", type=click.IntRange(1, 1 << 19), default=100, show_default=True,
    help="Size of each record's value.",
)
_durability = click.option(
    "--durability", type=click.Choice(["fsync", "os"]), default="fsync", show_default=True,
    help="What an acknowledged record survives.",
)
_seconds = click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True,
    help="How long each measurement takes.",
)


@click.group("bench", invoke_without_command=True, short_help="Measure a cluster of its own.")
@_nodes
@_record_bytes
@_durability
@_seconds
@output_option
@click.pass_context
def command(
    ctx: click.Context, /, nodes: int, record_bytes: int, durability: str, seconds: float,
    output: str,
) -> int:
    """Start a cluster, measure publishing, reading and consuming, and stop it again.

    \b
    Examples:
      hadron bench
      hadron bench --nodes 1 --durability os --output json
      hadron bench groups --records 1000000
    """
    if ctx.invoked_subcommand is not None:
        for option in ctx.params:
            if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE:
                name = option.replace("_", "-")
                raise click.UsageError(f"say --{name} behind {ctx.invoked_subcommand!r}", ctx)
        return 0
    from hadron.bench.main import run

    return run(nodes, record_bytes, durability, output, seconds)


@command.command("groups")
@_nodes
@_record_bytes
@_durability
@_seconds
@click.option("--records", type=click.IntRange(min=1), default=10_000_000, show_default=True,
              help="Records in the long log, which a short one is compared with.")
@click.option("--fill-seconds", type=click.FloatRange(min=1), default=300.0, show_default=True,
              help="How long filling a log may take; it has fewer records then.")
@click.option("--idle-members", type=click.IntRange(1, 5_000), default=200, show_default=True,
              help="Members whose memory is measured, each on a connection of its own.")
@click.option("--holes", type=click.IntRange(1, 90_000), default=50_000, show_default=True,
              help="Records held back between acknowledged ones.")
@output_option
def groups(
    nodes: int, record_bytes: int, durability: str, seconds: float, records: int,
    fill_seconds: float, idle_members: int, holes: int, output: str,
) -> int:
    """Measure consumer groups: many groups, many members, idle ones, one that stops reading, and
    deliveries behind a long log and a large acknowledged set.

    \b
    Examples:
      hadron bench groups
      hadron bench groups --nodes 1 --seconds 2 --records 100000 --output json
    """
    from hadron.bench.groups import Plan, run

    return run(
        Plan(
            nodes=nodes, record_bytes=record_bytes, durability=durability, seconds=seconds,
            log_records=records, fill_s=fill_seconds, idle_members=idle_members, holes=holes,
        ),
        output,
    )
