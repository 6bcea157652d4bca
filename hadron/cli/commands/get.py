"""`hadron get`: schema objects of a kind, or one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.completing import names_of
from hadron.cli.objects import KindType, object_to_dict, require_namespace
from hadron.cli.printing import output_of, print_rows
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject

_COLUMNS = {
    "Stream": {"partitions": "PARTITIONS", "retention": "RETENTION"},
    "Pipeline": {
        "mode": "MODE",
        "input": "INPUT",
        "output": "OUTPUT",
        "replica_set": "REPLICA SET",
        "stages": "STAGES",
        "max_parallel": ">MAX PARALLEL",
    },
    "Namespace": {"description": "~DESCRIPTION"},
    "Queue": {
        "replica_set": "REPLICA SET",
        "lanes": "LANES",
        "max_attempts": ">MAX ATTEMPTS",
        "lease": ">LEASE",
    },
    "Schedule": {"cron": "CRON", "target": "TARGET", "catch_up": "CATCH UP"},
    "Exchange": {
        "replica_set": "REPLICA SET",
        "subscriptions": ">SUBSCRIPTIONS",
        "published_per_s": ">PUBLISHED/S",
        "deliveries_per_s": ">DELIVERIES/S",
        "dropped": ">DROPPED",
        "from_stream": "FROM",
        "to_stream": "TO",
        "description": "~DESCRIPTION",
    },
    "Endpoint": {
        "replica_set": "REPLICA SET",
        "input": "INPUT",
        "output": "OUTPUT",
        "servers": ">SERVERS",
        "in_flight": ">IN FLIGHT",
        "waiting": ">WAITING",
        "p50": ">P50",
        "p99": ">P99",
    },
    "Token": {"access": "ACCESS", "namespaces": "NAMESPACES", "expires": "EXPIRES"},
}
_ASKED: Final = 20
"""Exchanges of a listing of which their leaders are asked."""

_ALL_COLUMNS = {
    "kind": "KIND",
    "namespace": "NAMESPACE",
    "name": "NAME",
    "id": ">ID",
    "description": "~DESCRIPTION",
}


@click.command("get", short_help="List schema objects of a kind.")
@click.argument("kind", type=KindType(takes_all=True))
@click.argument("name", required=False, shell_complete=names_of())
@click.option(
    "--namespace",
    "-n",
    default="",
    shell_complete=names_of("Namespace"),
    metavar="NAME",
    help="Objects of this namespace; of that in the server's URL else.",
)
@click.option("--all-namespaces", "-A", is_flag=True, help="Objects of every namespace.")
@output_of("table", "json", "yaml", help="How to print; yaml is what `hadron apply` takes.")
@connects
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    name: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
) -> None:
    """List objects of KIND, or the one called NAME, in a namespace.

    KIND is namespace, stream, pipeline, queue, schedule, exchange, endpoint or token, in any case,
    singular or plural; or all.

    \b
    Examples:
      hadron get streams
      hadron get pipeline departures -o json
      hadron get all --all-namespaces -o yaml > schema.yaml
    """
    from hadron.model.errors import NotFoundError
    from hadron.model.ids import DEFAULT_NAMESPACE
    from hadron.model.kinds import how_to_make

    if namespace and all_namespaces:
        raise click.UsageError("give --namespace or --all-namespaces, not both", ctx)
    with session_of(ctx).connect() as client:
        # A namespace stands in none.
        everywhere = all_namespaces or kind == "Namespace"
        within = "" if everywhere else namespace or client.namespace
        found = client.objects(kind, within, name or "")
        if within and not found:
            require_namespace(client, within)
        doing = _doing(client, kind, found) if output == "table" else {}
    where = f" in namespace {within!r}" if within else ""
    if name and not found:
        listing = f"hadron get {f'{kind.lower()}s' if kind else 'all'}"
        make = f"; or {how_to_make(kind, within or DEFAULT_NAMESPACE, name)}" if kind else ""
        raise NotFoundError(
            f"there is no {kind or 'object'} {name!r}{where}",
            f"`{listing}{'' if everywhere else ' --all-namespaces'}` lists all{make}",
        )
    if output == "yaml":
        _print_yaml(found)
    elif output == "json":
        print_rows({}, [object_to_dict(each) for each in found], output)
    else:
        columns = (
            {"namespace": "NAMESPACE", "name": "NAME", **_COLUMNS[kind], "id": ">ID"}
            if kind
            else _ALL_COLUMNS
        )
        rows = [{**_row(each), **doing.get(each.id, {})} for each in found]
        print_rows(columns, rows, output)
        if within and not found:
            click.echo(f"nothing{where}; --all-namespaces shows all", err=True)


def _doing(client: SyncClient, kind: str, found: list[SchemaObject]) -> dict[int, dict[str, Any]]:
    """What leaders say of exchanges, by id; of a few, and of those of the client's namespace; and
    of endpoints."""
    if kind == "Endpoint":
        return _live(client, found)
    if kind != "Exchange":
        return {}
    from hadron.cli.commands.exchange import doing

    told: dict[int, dict[str, Any]] = {}
    away = set()
    for each in [each for each in found if each.namespace == client.namespace][:_ASKED]:
        home = getattr(each.spec, "replica_set", "")
        if home not in away:
            told[each.id] = doing(client, each.name)
            if "error" in told[each.id]:
                # One wait is enough for whoever looks.
                away.add(home)
    return told


def _print_yaml(found: list[SchemaObject]) -> None:
    from hadron.model.documents.rendering import to_yaml

    click.echo("---\n".join(map(to_yaml, found)), nl=False)


def _live(client: SyncClient, found: Sequence[SchemaObject]) -> dict[int, dict[str, Any]]:
    """What leaders say of endpoints, by id; of those of the client's namespace."""
    from hadron.cli.endpoints.shown import rows_of

    ids = {each.name: each.id for each in found if each.namespace == client.namespace}
    rows = rows_of(client, list(ids))
    return {ids[name]: row for name, row in rows.items() if name in ids}


def _row(found: SchemaObject) -> dict[str, Any]:
    from hadron.model.pipelines import PipelineSpec, StreamPipelineSpec
    from hadron.model.services import EndpointSpec, QueueSpec, ScheduleSpec, TokenSpec
    from hadron.model.units import format_duration

    row = object_to_dict(found)
    spec = found.spec
    if isinstance(spec, PipelineSpec):
        row["mode"] = "stage"
        row["output"] = list(
            dict.fromkeys(each.output.stream for each in spec.stages if each.output is not None)
        )
        row["stages"] = [each.name for each in spec.stages]
        row["max_parallel"] = spec.max_parallel
    elif isinstance(spec, StreamPipelineSpec):
        row |= {"input": spec.source.stream, "output": spec.to.stream}
    if "retention" in row:
        row["retention"] = ", ".join(map(str, row["retention"].values()))
    if isinstance(spec, QueueSpec):
        row["lanes"] = spec.lane_names
        row["max_attempts"] = spec.max_attempts
        row.setdefault("lease", format_duration(spec.lease_ms))
    elif isinstance(spec, ScheduleSpec):
        target = spec.target
        where = (target.queue, target.lane) if target.queue else (target.stream, target.partition)
        kind = "queue" if target.queue else "stream"
        row["target"] = " ".join([kind, *filter(None, where)])
        row["catch_up"] = spec.catch_up
    elif isinstance(spec, EndpointSpec):
        row |= {"input": spec.input, "output": spec.output}
    elif isinstance(spec, TokenSpec):
        row["namespaces"] = spec.namespaces or (found.namespace,)
        row.setdefault("expires", "never")
    return row
