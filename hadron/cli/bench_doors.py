"""`hadron bench http` and `hadron bench grpc`: what doors cost."""

from __future__ import annotations

import click

from hadron.cli.bench_options import (
    durability_option,
    nodes_option,
    part_option,
    record_bytes_option,
    rounds_option,
    seconds_option,
)
from hadron.cli.printing import output_option
from hadron.model.errors import ConfigurationError

_HTTP_PARTS = ("publish", "lines")


@click.command("http", short_help="Measure what the HTTP door costs.")
@nodes_option
@record_bytes_option
@durability_option
@seconds_option
@rounds_option
@click.option(
    "--records",
    type=click.IntRange(2_000),
    metavar="N",
    default=1_000_000,
    show_default=True,
    help="Lines of NDJSON in each round.",
)
@part_option(_HTTP_PARTS)
@output_option
def http_command(
    *,
    nodes: int,
    record_bytes: int,
    durability: str,
    seconds: float,
    rounds: int,
    records: int,
    parts: tuple[str, ...],
    output: str,
) -> int:
    """Measure publishing over HTTP, one record a request and as NDJSON.

    \b
    Examples:
      hadron bench http
      hadron bench http --nodes 1 --part publish --seconds 2
    """
    from hadron.bench.http import Plan, run

    plan = Plan(nodes, record_bytes, durability, seconds, rounds, records, parts)
    return run(plan, output)


_GRPC_PARTS = ("publish", "calls", "bare", "idle")


@click.command("grpc", short_help="Measure what the gRPC door costs.")
@nodes_option
@record_bytes_option
@durability_option
@seconds_option
@rounds_option
@click.option(
    "--subscriptions",
    type=click.IntRange(1),
    metavar="N",
    default=1_000,
    show_default=True,
    help="Open at once, with nothing to do.",
)
@part_option(_GRPC_PARTS)
@output_option
def grpc_command(
    *,
    nodes: int,
    record_bytes: int,
    durability: str,
    seconds: float,
    rounds: int,
    subscriptions: int,
    parts: tuple[str, ...],
    output: str,
) -> int:
    """Measure publishing and calling over gRPC, grpcio without a node, and what idle subscriptions
    cost.

    \b
    Examples:
      hadron bench grpc
      hadron bench grpc --nodes 1 --part publish --seconds 2
    """
    try:
        from hadron.bench.grpc import Plan, run
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise ConfigurationError(
            "grpcio is not installed",
            "install the extra: pip install '.[grpc]' in a clone, 'CLONE[grpc]' elsewhere",
        ) from error

    plan = Plan(nodes, record_bytes, durability, seconds, rounds, subscriptions, parts)
    return run(plan, output)
