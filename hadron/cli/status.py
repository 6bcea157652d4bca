"""`hadron status`: how every node of every replica set is, as each node itself says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.session import connects, session_of
from hadron.model.errors import HadronError

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.wire.messages import cluster_pb2

_ANSWER_WITHIN_S: Final = 2.0
"""A node that takes longer is shown as unreachable; a stopped process does not answer at all."""

_HELPERS: Final = 4
"""Nodes that are asked about one that does not answer."""

_COLUMNS: Final = {
    "replica_set": "REPLICA SET", "node": "NODE", "role": "ROLE", "address": "ADDRESS",
    "state": "STATE", "ballot": "BALLOT", "last_lsn": ">LAST", "committed_lsn": ">COMMITTED",
    "applied_lsn": ">APPLIED", "lag": ">LAG", "pid": ">PID",
}


@click.command("status", short_help="Show replica sets, roles, lag, ballots and trouble.")
@output_option
@connects
@click.pass_context
def command(ctx: click.Context, output: str) -> None:
    """Ask every node of the cluster how it is.

    LAG is how many log entries of the leader are not yet known to be on that replica's disk.

    \b
    Examples:
      hadron status
      hadron status --output json
    """
    report = anyio.run(_ask, session_of(ctx).url, backend="trio")
    if output == "json":
        print_json(report)
        return
    click.echo(f"cluster {report['cluster']}, metadata on {report['metadata']}")
    print_rows(_COLUMNS, report["nodes"], output)
    for line in _troubles(report["nodes"]):
        click.echo(line)


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
    import hadron

    async with hadron.connect(url) as client:
        return await collect(client)


async def collect(client: Client) -> dict[str, Any]:
    """The whole cluster's state, as `--output json` has it: nodes that this client cannot reach
    are asked by others."""
    topology = await client.topology()
    newest = await _newest(client, topology)
    members = [(known.name, node) for known in newest for node in known.nodes]
    found: dict[str, cluster_pb2.StatusResponse | str] = {}
    async with anyio.create_task_group() as tasks:
        for _, node in members:
            tasks.start_soon(_ask_node, client, node.address, found)
    helpers = [address for address, said in found.items() if not isinstance(said, str)]
    async with anyio.create_task_group() as tasks:
        for name, node in members:
            if helpers and isinstance(found[node.address], str):
                tasks.start_soon(_ask_for_node, client, helpers, name, node, found)
    nodes = [
        row
        for replica_set in newest
        for row in _rows(replica_set, found)
    ]
    return {"cluster": topology.cluster, "metadata": topology.metadata, "nodes": nodes}


async def _newest(
    client: Client, topology: cluster_pb2.TopologyResponse
) -> list[cluster_pb2.ReplicaSet]:
    """Every replica set as the node with the newest configuration file has it."""
    newest = {known.name: known for known in topology.replica_sets}

    async def ask(address: str) -> None:
        with contextlib.suppress(HadronError), anyio.move_on_after(_ANSWER_WITHIN_S):
            for known in (await client.topology(address)).replica_sets:
                if known.name not in newest or known.epoch > newest[known.name].epoch:
                    newest[known.name] = known

    async with anyio.create_task_group() as tasks:
        for address in {node.address for known in newest.values() for node in known.nodes}:
            tasks.start_soon(ask, address)
    return list(newest.values())


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


async def _ask_for_node(
    client: Client, helpers: Sequence[str], replica_set: str, node: cluster_pb2.Node,
    found: dict[str, cluster_pb2.StatusResponse | str],
) -> None:
    """Let nodes that answer ask one that does not: perhaps they can reach it. The first that
    succeeds is enough."""
    reason = found[node.address]

    async def ask(helper: str) -> None:
        # One that does not answer, or is older and speaks of itself, has nothing to tell.
        with contextlib.suppress(HadronError):
            answer = await client.status_through(helper, replica_set, node.name)
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


def _rows(
    replica_set: cluster_pb2.ReplicaSet, found: dict[str, cluster_pb2.StatusResponse | str]
) -> list[dict[str, Any]]:
    """One row per node of a replica set; lag is what its leader knows."""
    leader = next((node for node in replica_set.nodes if node.role == "leader"), None)
    said = found[leader.address] if leader else ""
    lags = {} if leader is None or isinstance(said, str) else _lags(leader.name, said)
    return [
        _row(replica_set, node, found[node.address], lags.get(node.name))
        for node in replica_set.nodes
    ]


def _lags(leader: str, status: cluster_pb2.StatusResponse) -> dict[str, int]:
    lags = {peer.name: max(0, status.last_lsn - peer.match_lsn) for peer in status.peers}
    return lags | {leader: 0}


def _row(
    replica_set: cluster_pb2.ReplicaSet, node: cluster_pb2.Node,
    status: cluster_pb2.StatusResponse | str, lag: int | None,
) -> dict[str, Any]:
    named = {
        "replica_set": replica_set.name, "node": node.name, "role": node.role,
        "address": node.address,
    }
    if isinstance(status, str):
        return {**named, "state": "unreachable", "lag": lag, "trouble": [status]}
    troubles = [status.trouble, *map(_peer_trouble, status.peers), *status.cluster_trouble]
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
            {"name": peer.name, "state": peer.state, "match_lsn": peer.match_lsn,
             "trouble": peer.trouble}
            for peer in status.peers
        ],
        "trouble": [trouble for trouble in troubles if trouble],
    }


def _peer_trouble(peer: cluster_pb2.StatusResponse.Peer) -> str:
    return f"with {peer.name} ({peer.state}): {peer.trouble}" if peer.trouble else ""
