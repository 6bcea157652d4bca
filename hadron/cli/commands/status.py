"""`hadron status`: how every node of every replica set is, as each node itself says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.root import FAILED
from hadron.cli.session import connects, is_local_cluster, session_of
from hadron.model.errors import HadronError
from hadron.replication.life import Life

if TYPE_CHECKING:
    from hadron.cli.overview import Overview
    from hadron.client import Client
    from hadron.wire.messages import cluster_pb2

_ANSWER_WITHIN_S: Final = 2.0
"""A node that takes longer is shown as unreachable; a stopped process does not answer at all."""
_CONNECT_WITHIN_S: Final = 3.0
"""Nobody who asks how nodes are wants to wait for one to come up."""

_WELL: Final = frozenset({Life.SERVING, Life.FOLLOWING})

_HELPERS: Final = 4
"""Nodes that are asked about one that does not answer."""

_COLUMNS: Final = {
    "replica_set": "REPLICA SET",
    "node": "NODE",
    "role": "ROLE",
    "address": "ADDRESS",
    "state": "STATE",
    "ballot": "BALLOT",
    "last_lsn": ">LAST ENTRY",
    "committed_lsn": ">COMMITTED",
    "applied_lsn": ">APPLIED",
    "lag": ">LAG",
    "pid": ">PID",
}


@click.command("status", short_help="Show replica sets, roles, lag, ballots and trouble.")
@output_option
@click.option(
    "--check",
    is_flag=True,
    help="End with status 1 unless all nodes answer and none has any trouble.",
)
@connects
@click.pass_context
def command(ctx: click.Context, output: str, check: bool) -> int:
    """Ask every node of the cluster how it is.

    \b
    ROLE        the one in force: who leads is who serves, whatever a newer configuration file
                says that nodes were started with; what it changes is told below the table
    BALLOT      under which it works: the configuration's epoch, and how often it was led in it
    LAST ENTRY  the number of the last entry in its log; each replica set has a log of its own
    COMMITTED   the last entry that it knows to be on a majority of the disks
    APPLIED     the last entry whose command its tables have
    LAG         how many of the leader's entries are not yet known to be on its disk

    Ends with status 0 when some node could be asked, whatever it says, and with 1 when none could;
    scripts that want to know whether all is well say --check.

    \b
    Examples:
      hadron status
      hadron status --output json
      hadron status --check > /dev/null || page-somebody
    """
    report = anyio.run(_ask, session_of(ctx).url, backend="trio")
    if output == "json":
        print_json(report)
    else:
        _print(report)
    return FAILED if check and not is_well(report) else 0


def is_well(report: dict[str, Any]) -> bool:
    """Whether every node answers, leads or follows, and has no trouble."""
    return all(node["state"] in _WELL and not node["trouble"] for node in report["nodes"])


def _print(report: dict[str, Any]) -> None:
    click.echo(
        f"cluster {report['cluster']}, metadata on {report['metadata']}; no authentication, no TLS"
    )
    print_rows(_COLUMNS, report["nodes"], "table")
    for line in _troubles(report["nodes"]):
        click.echo(line)
    for pending in report["pending"]:
        click.echo(f"pending: {pending}")
    for text in report["ways_out"]:
        click.echo(f"way out: {text}")


def _troubles(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong, a line each; what several nodes say in the same words is said once."""
    who_says: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        for trouble in node["trouble"]:
            first, *_ = trouble.strip().splitlines() or [""]
            who_says.setdefault(first, []).append(node)
    several = len({node["replica_set"] for node in nodes}) > 1
    return [
        f"trouble at {_names(speakers, several)}: {trouble}"
        for trouble, speakers in who_says.items()
    ]


def _names(nodes: Sequence[dict[str, Any]], several: bool) -> str:
    """`n1, n2`; where there are several replica sets, `eu/p0 (n1, n2), us/p0 (n1)`."""
    by_set: dict[str, list[str]] = {}
    for node in nodes:
        by_set.setdefault(node["replica_set"], []).append(node["node"])
    if not several:
        return ", ".join(name for names in by_set.values() for name in names)
    return ", ".join(f"{known} ({', '.join(names)})" for known, names in by_set.items())


async def _ask(url: str) -> dict[str, Any]:
    from hadron.cli.patience import connected
    from hadron.client.connecting.url import parse_url

    endpoint = parse_url(url)
    config = "" if is_local_cluster(url) else " --config DIR|FILE"
    async with connected(url, _CONNECT_WITHIN_S) as client:
        return await collect(client, config, endpoint.addresses if endpoint.over_grpc else ())


async def collect(
    client: Client, config: str = " --config DIR|FILE", doors: Sequence[str] = ()
) -> dict[str, Any]:
    """The whole cluster's state, as `--output json` has it: nodes that this client cannot reach
    are asked by others.

    Args:
        config: the option with which other commands find the cluster's files.
        doors: of nodes, for gRPC: only these are reached, and under their own addresses.
    """
    from hadron.cli.overview import Overview

    topology = await client.topology()
    known = {each.name: Overview(each) for each in topology.replica_sets}
    await _learn(client, known)
    found: dict[str, cluster_pb2.StatusResponse | str] = {}
    async with anyio.create_task_group() as tasks:
        for address in {each for overview in known.values() for each in overview.addresses}:
            tasks.start_soon(_ask_node, client, address, found)
    helpers = [address for address, said in found.items() if not isinstance(said, str)]
    async with anyio.create_task_group() as tasks:
        for door in doors:
            tasks.start_soon(_ask_door, client, door, known, found, helpers)
    async with anyio.create_task_group() as tasks:
        for name, overview in known.items():
            for node in overview.newest.nodes:
                if helpers and isinstance(found[node.address], str):
                    tasks.start_soon(_ask_for_node, client, helpers, name, node, found)
    for overview in known.values():
        overview.found = found
    return {
        "cluster": topology.cluster,
        "metadata": topology.metadata,
        "nodes": [row for overview in known.values() for row in _rows(overview)],
        "pending": [text for overview in known.values() if (text := overview.pending())],
        "ways_out": [
            text
            for overview in known.values()
            if (text := overview.way_out(config, len(known) > 1))
        ],
        # Of this version; whoever checks for them is not to read help texts.
        "authentication": False,
        "tls": False,
    }


async def _learn(client: Client, known: dict[str, Overview]) -> None:
    """Ask every node for its configuration file, also those that only another one's file has."""
    from hadron.cli.overview import Overview

    asked: set[str] = set()

    async def ask(address: str) -> None:
        with contextlib.suppress(HadronError), anyio.move_on_after(_ANSWER_WITHIN_S):
            answer = await client.topology(address)
            for file in answer.replica_sets:
                overview = known.setdefault(file.name, Overview(file))
                overview.hear(file)
                if file.name == answer.replica_set:
                    overview.learn(address, file)

    while new := {each for overview in known.values() for each in overview.addresses} - asked:
        asked |= new
        async with anyio.create_task_group() as tasks:
            for address in new:
                tasks.start_soon(ask, address)


async def _ask_node(
    client: Client, address: str, found: dict[str, cluster_pb2.StatusResponse | str]
) -> None:
    """Note a node's status, or in words why there is none."""
    found[address] = f"no answer within {_ANSWER_WITHIN_S:g} s"
    try:
        with anyio.move_on_after(_ANSWER_WITHIN_S):
            found[address] = await client.status(address)
    except HadronError as error:
        found[address] = error.message


async def _ask_door(
    client: Client,
    door: str,
    known: Mapping[str, Overview],
    found: dict[str, cluster_pb2.StatusResponse | str],
    helpers: list[str],
) -> None:
    """Note the status of the node behind a door, which may ask others."""
    with contextlib.suppress(HadronError), anyio.move_on_after(_ANSWER_WITHIN_S):
        said = await client.status(door)
        helpers.append(door)
        for node in known[said.replica_set].newest.nodes if said.replica_set in known else ():
            if node.name == said.node:
                found[node.address] = said


async def _ask_for_node(
    client: Client,
    helpers: Sequence[str],
    replica_set: str,
    node: cluster_pb2.Node,
    found: dict[str, cluster_pb2.StatusResponse | str],
) -> None:
    """Let nodes that answer ask one that does not: perhaps they can reach it. The first that
    succeeds is enough."""
    from hadron.client.client import nodes_of

    reason = found[node.address]
    nodes = nodes_of(client)

    async def ask(helper: str) -> None:
        # One that does not answer, or is older and speaks of itself, has nothing to tell.
        with contextlib.suppress(HadronError):
            answer = await nodes.status_through(helper, replica_set, node.name)
            if (answer.replica_set, answer.node) == (replica_set, node.name):
                answer.trouble = answer.trouble or (
                    f"{reason}; what stands here it has told {helper}"
                )
                found[node.address] = answer
                tasks.cancel_scope.cancel()

    with anyio.move_on_after(_ANSWER_WITHIN_S):
        async with anyio.create_task_group() as tasks:
            # Of different sets, so that one is likely to be on the other side of what is cut.
            for helper in helpers[:: max(1, len(helpers) // _HELPERS)]:
                tasks.start_soon(ask, helper)


def _rows(overview: Overview) -> list[dict[str, Any]]:
    """One row per node of a replica set; lag is what its leader knows."""
    lags = overview.lags()
    silent = {node.name for node in overview.nodes if isinstance(overview.found[node.address], str)}
    return [
        _row(overview, node, overview.found[node.address], lags.get(node.name), silent)
        for node in overview.nodes
    ]


def _row(
    overview: Overview,
    node: cluster_pb2.Node,
    status: cluster_pb2.StatusResponse | str,
    lag: int | None,
    silent: set[str],
) -> dict[str, Any]:
    """
    Args:
        silent: nodes that do not answer. Each has one line of its own that says so; what all the
            others have to say about it is only in `peers`.
    """
    file = overview.files.get(node.address)
    named = {
        "replica_set": overview.newest.name,
        "node": node.name,
        "role": overview.role(node.name),
        "address": node.address,
        "file_epoch": file.epoch if file else None,
    }
    if isinstance(status, str):
        # What it had when it was last heard of says nothing about what it has.
        return {**named, "state": "unreachable", "lag": None, "trouble": [status]}
    # A replica's trouble is that of its way to the leader, which has a line of its own.
    told = {peer.trouble for peer in status.peers}
    troubles = [
        "" if status.trouble in told else status.trouble,
        *(_peer_trouble(peer) for peer in status.peers if peer.name not in silent),
        *status.cluster_trouble,
    ]
    return {
        **named,
        "state": status.state,
        "ballot": f"{status.ballot.epoch}.{status.ballot.incarnation}",
        "last_lsn": status.last_lsn,
        "committed_lsn": status.committed_lsn,
        "applied_lsn": status.applied_lsn,
        "lag": lag,
        "pid": status.pid,
        "chain": status.chain,
        "durability": status.durability,
        "metadata_index": status.metadata_index,
        "version": status.version,
        "started_ms": status.started_ms,
        "connections": status.connections,
        "peers": [
            {
                "name": peer.name,
                "state": peer.state,
                "match_lsn": peer.match_lsn,
                "trouble": peer.trouble,
            }
            for peer in status.peers
        ],
        "trouble": [trouble for trouble in troubles if trouble],
    }


def _peer_trouble(peer: cluster_pb2.StatusResponse.Peer) -> str:
    return f"with {peer.name} ({peer.state}): {peer.trouble}" if peer.trouble else ""
