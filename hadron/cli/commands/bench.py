"""`hadron bench`: measure a cluster of its own on this machine."""

from __future__ import annotations

import click
from click.core import ParameterSource

from hadron.cli.bench_doors import grpc_command, http_command
from hadron.cli.bench_options import (
    durability_option,
    nodes_option,
    part_option,
    record_bytes_option,
    rounds_option,
    seconds_option,
)
from hadron.cli.printing import output_option


@click.group("bench", invoke_without_command=True, short_help="Measure a cluster of its own.")
@nodes_option
@record_bytes_option
@durability_option
@seconds_option
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    durability: str,
    seconds: float,
    output: str,
) -> int:
    """Start a cluster, measure publishing, reading and consuming, and stop it again.

    Each figure says how many records it stands on and how long they took; what is measured one at a
    time takes three rounds, of which the medians count.

    The commands below also judge what they find, by bars for two quiet cores. The status is 0
    whatever the verdicts are, and 1 where a measurement did not come to its end; `met` of
    `-o json` is for scripts that want more.

    \b
    Examples:
      hadron bench
      hadron bench --nodes 1 --durability os -o json
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


command.add_command(http_command)
command.add_command(grpc_command)


_PARTS = ("idle", "groups", "members", "stopped", "noisy", "log", "acknowledged")


@command.command("groups")
@nodes_option
@record_bytes_option
@durability_option
@part_option(_PARTS)
@click.option(
    "--quick",
    is_flag=True,
    help="Small and short, in about a minute: shows that it works, and little more.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=4.0,
    show_default=True,
    help="How long each measurement takes.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 99),
    metavar="N",
    default=3,
    show_default=True,
    help="How often each is repeated, in turn with what it is compared with.",
)
@click.option(
    "--records",
    type=click.IntRange(min=1_000),
    metavar="N",
    default=10_000_000,
    show_default=True,
    help="Records in the long log, which a short one is compared with.",
)
@click.option(
    "--fill-seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    default=240.0,
    show_default=True,
    help="How long filling a log may take; it has fewer records then.",
)
@click.option(
    "--idle-members",
    type=click.IntRange(1, 5_000),
    metavar="N",
    default=200,
    show_default=True,
    help="Members whose memory is measured, each on a connection of its own.",
)
@click.option(
    "--holes",
    type=click.IntRange(1, 65_000),
    metavar="N",
    default=60_000,
    show_default=True,
    help="Records held back between acknowledged ones.",
)
@output_option
@click.pass_context
def groups(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    durability: str,
    parts: tuple[str, ...],
    seconds: float,
    rounds: int,
    records: int,
    fill_seconds: float,
    idle_members: int,
    holes: int,
    output: str,
    *,
    quick: bool,
) -> int:
    """Measure consumer groups: many groups, many members, idle ones, one that stops reading, noisy
    ones, and deliveries behind a long log and a large acknowledged set.

    \b
    Parts:
      idle          memory of a member that waits
      groups        records/s of 1, 10 and 100 groups on one stream
      members       records/s of 1 to 200 members of one group
      stopped       what a member that stops reading costs others
      noisy         what clients that keep the leader busy cost a producer
      log           a delivery, with 10 thousand and 10 million records in the log
      acknowledged  a delivery, behind small and large acknowledged sets

    \b
    Examples:
      hadron bench groups
      hadron bench groups --quick --nodes 1
      hadron bench groups --part log --part acknowledged -o json
    """
    from hadron.bench.ground import Plan
    from hadron.bench.groups import run

    def chosen(name: str, value: int | float, quickly: int | float) -> int | float:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return quickly if quick and not given else value

    return run(
        Plan(
            nodes=nodes,
            record_bytes=record_bytes,
            durability=durability,
            seconds=chosen("seconds", seconds, 1.0),
            rounds=int(chosen("rounds", rounds, 1)),
            log_records=int(chosen("records", records, 200_000)),
            fill_s=fill_seconds,
            idle_members=int(chosen("idle_members", idle_members, 50)),
            holes=int(chosen("holes", holes, 20_000)),
            parts=parts,
        ),
        output,
    )


_TRANSACTION_PARTS = ("one", "sets", "bulk", "steps")


@command.command("transactions", short_help="Measure what transactions cost.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 7),
    metavar="N",
    default=3,
    show_default=True,
    help="Nodes of each replica set.",
)
@record_bytes_option
@durability_option
@seconds_option
@rounds_option
@click.option(
    "--records",
    type=click.IntRange(1_000),
    metavar="N",
    default=400_000,
    show_default=True,
    help="Records that are consumed and published again, in each round.",
)
@part_option(_TRANSACTION_PARTS)
@click.option("--quick", is_flag=True, help="A look: one round, a second each.")
@output_option
@click.pass_context
def transactions_command(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    durability: str,
    seconds: float,
    rounds: int,
    records: int,
    parts: tuple[str, ...],
    output: str,
    *,
    quick: bool,
) -> int:
    """Measure transactions beside the same work without them, in the same run.

    \b
    Parts:
      one    of one replica set, beside plain sends; 1, 16 and 256 at a time
      sets   of two and four replica sets, beside as many plain sends
      bulk   1,000 records at once, beside send_many
      steps  a stream consumed and published to another one, in transactions of 1,000 records

    \b
    Examples:
      hadron bench transactions
      hadron bench transactions --quick --nodes 1 --part steps
      hadron bench transactions --part one -o json
    """
    from hadron.bench.transactions import Plan, run

    def chosen(name: str, value: float, quickly: float) -> float:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return quickly if quick and not given else value

    return run(
        Plan(
            nodes=nodes,
            record_bytes=record_bytes,
            durability=durability,
            seconds=chosen("seconds", seconds, 1.0),
            rounds=int(chosen("rounds", rounds, 1)),
            records=int(chosen("records", records, 100_000)),
            parts=parts,
        ),
        output,
    )


@command.command("endpoints", short_help="Measure what remote calls cost.")
@nodes_option
@click.option(
    "--value-bytes",
    type=click.IntRange(0, 1 << 20),
    metavar="N",
    default=100,
    show_default=True,
    help="Size of each value, both ways.",
)
@seconds_option
@rounds_option
@output_option
def endpoints_command(
    nodes: int, value_bytes: int, seconds: float, rounds: int, output: str
) -> int:
    """Measure calls one at a time, beside plain requests to the leader in the same run, and 64 at
    once; and a streamed answer.

    \b
    Examples:
      hadron bench endpoints
      hadron bench endpoints --seconds 1 --rounds 1 -o json
    """
    from hadron.bench.endpoints import Plan, run

    return run(Plan(nodes, value_bytes, seconds, rounds), output)


_PIPELINE_PARTS = ("instances", "latency", "waiting")


@command.command("pipelines", short_help="Measure what stages cost that a program runs.")
@nodes_option
@record_bytes_option
@durability_option
@rounds_option
@click.option(
    "--instances",
    type=click.IntRange(1_000),
    metavar="N",
    default=30_000,
    show_default=True,
    help="Instances of each round.",
)
@click.option(
    "--triggers",
    type=click.IntRange(20),
    metavar="N",
    default=300,
    show_default=True,
    help="Records that latency is taken from.",
)
@click.option(
    "--waiting",
    type=click.IntRange(1_000),
    metavar="N",
    default=1_000_000,
    show_default=True,
    help="Instances that wait for their delay at the same time.",
)
@part_option(_PIPELINE_PARTS)
@click.option("--quick", is_flag=True, help="A look: one round of few.")
@output_option
@click.pass_context
def pipelines_command(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    durability: str,
    rounds: int,
    instances: int,
    triggers: int,
    waiting: int,
    parts: tuple[str, ...],
    output: str,
    *,
    quick: bool,
) -> int:
    """Measure pipelines with `engine: handler`, whose handlers do nothing: instances a second, how
    soon a record has its output, and what instances cost that wait for their delay.

    \b
    Examples:
      hadron bench pipelines
      hadron bench pipelines --quick --nodes 1
      hadron bench pipelines --part latency -o json
    """
    from hadron.bench.pipelines import Plan, run

    def chosen(name: str, value: int, quickly: int) -> int:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return quickly if quick and not given else value

    return run(
        Plan(
            nodes=nodes,
            record_bytes=record_bytes,
            durability=durability,
            rounds=chosen("rounds", rounds, 1),
            instances=chosen("instances", instances, 5_000),
            triggers=chosen("triggers", triggers, 100),
            waiting=chosen("waiting", waiting, 20_000),
            parts=parts,
        ),
        output,
    )


_EXCHANGE_PARTS = ("fan-out", "latency", "subscriptions")


@command.command("exchanges", short_help="Measure fan-out to many subscribers.")
@click.option(
    "--nodes", type=click.IntRange(1, 7), metavar="N", default=1, show_default=True, help="Nodes."
)
@record_bytes_option
@seconds_option
@rounds_option
@click.option(
    "--subscribers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Subscriptions that get every message.",
)
@click.option(
    "--messages",
    type=click.IntRange(10),
    metavar="N",
    default=1_000,
    show_default=True,
    help="Messages, one at a time, that latency is taken from.",
)
@click.option(
    "--idle",
    type=click.IntRange(100, 110_000),
    metavar="N",
    default=100_000,
    show_default=True,
    help="Patterns of subscriptions that get nothing.",
)
@part_option(_EXCHANGE_PARTS)
@click.option("--quick", is_flag=True, help="A look: one round, a second.")
@output_option
@click.pass_context
def exchanges_command(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    seconds: float,
    rounds: int,
    subscribers: int,
    messages: int,
    idle: int,
    parts: tuple[str, ...],
    output: str,
    *,
    quick: bool,
) -> int:
    """Measure exchanges: deliveries a second to many subscribers, how soon a message is there, and
    what it costs beside very many subscriptions that it does not concern.

    \b
    Examples:
      hadron bench exchanges
      hadron bench exchanges --quick --part fan-out
      hadron bench exchanges --subscribers 1000 -o json
    """
    from hadron.bench.exchanges import Plan, run

    def chosen(name: str, value: float, quickly: float) -> float:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return quickly if quick and not given else value

    return run(
        Plan(
            nodes=nodes,
            record_bytes=record_bytes,
            seconds=chosen("seconds", seconds, 1.0),
            rounds=int(chosen("rounds", rounds, 1)),
            subscribers=subscribers,
            messages=int(chosen("messages", messages, 200)),
            idle=int(chosen("idle", idle, 10_000)),
            parts=parts,
        ),
        output,
    )


_SPARK_PARTS = ("sink", "read", "completions", "latency", "bad", "handlers")


@command.command("spark", short_help="Measure reading, writing and stages on Spark.")
@nodes_option
@record_bytes_option
@durability_option
@rounds_option
@click.option(
    "--rows",
    type=click.IntRange(1_000),
    metavar="N",
    default=2_000_000,
    show_default=True,
    help="Rows that are read, and written, in each round.",
)
@click.option(
    "--instances",
    type=click.IntRange(1_000),
    metavar="N",
    default=100_000,
    show_default=True,
    help="Instances of each round that a runner completes.",
)
@click.option(
    "--triggers",
    type=click.IntRange(2),
    metavar="N",
    default=30,
    show_default=True,
    help="Records that latency with Spark is taken from.",
)
@part_option(_SPARK_PARTS)
@click.option("--quick", is_flag=True, help="A look: one round of few.")
@output_option
@click.pass_context
def spark_command(
    ctx: click.Context,
    /,
    nodes: int,
    record_bytes: int,
    durability: str,
    rounds: int,
    rows: int,
    instances: int,
    triggers: int,
    parts: tuple[str, ...],
    output: str,
    *,
    quick: bool,
) -> int:
    """Measure Spark beside a cluster: rows a second to a stream and from it, beside the same rows
    in Parquet; completions a second of stages that do nothing, and how soon a record has its
    output.

    \b
    Parts:
      sink         rows/s of a batch write
      read         rows/s of a batch read, and of one from Parquet in the same session
      completions  completions/s through a runner, in large micro-batches
      latency      from trigger to output, with a warm runner
      bad          seconds of a micro-batch, for 1 % and 10 % of which a function raises
      handlers     both of stages that a program runs itself, as `hadron bench pipelines`

    \b
    Examples:
      hadron bench spark
      hadron bench spark --quick --nodes 1
      hadron bench spark --part read --part sink -o json
    """
    from hadron.bench.spark import Plan, run

    def chosen(name: str, value: int, quickly: int) -> int:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return quickly if quick and not given else value

    return run(
        Plan(
            nodes=nodes,
            record_bytes=record_bytes,
            durability=durability,
            rounds=chosen("rounds", rounds, 1),
            rows=chosen("rows", rows, 200_000),
            instances=chosen("instances", instances, 20_000),
            handled=5_000 if quick else 30_000,
            bad=1_000 if quick else 5_000,
            triggers=chosen("triggers", triggers, 10),
            parts=parts,
        ),
        output,
    )
