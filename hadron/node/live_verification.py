"""Verifying running nodes: each looks through its own disk, then what they say is compared.

Nobody opens a running node's files from outside: what counts is what that node itself reads, and it
repairs at once what it can. Logs are compared by the chains that the nodes have computed anew, at
an entry that all of them know to be committed; tables by digests in the log (PROTOCOL A5).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from hadron.client import Client
from hadron.client.client import nodes_of
from hadron.model.errors import ConnectionLostError, HadronError, NotReadyError, PeerError
from hadron.node.verified import Agreement, TableComparison, Verified, VerifiedFile
from hadron.server.integrity import report_from
from hadron.storage.identity import Owner
from hadron.storage.report import Report
from hadron.wire.messages import cluster_pb2, integrity_pb2, method

_VERIFY: Final = method("Verify")
_COMPARE: Final = method("CompareTables")

_ANSWER_WITHIN_S: Final = 5.0

Progress = Callable[[str, str], None]
"""Told (node, how far it is)."""


async def verify_live(
    client: Client, on_progress: Progress = lambda _node, _text: None
) -> Verified:
    """Verify every node of every replica set that the client's cluster has.

    Raises `PeerError` when nobody tells which nodes there are. A node that cannot be asked is a
    problem in its report.
    """
    topology = await nodes_of(client).agreed_topology()
    verified = Verified()
    for replica_set in topology.replica_sets:
        await _verify_set(client, topology.cluster, replica_set, verified, on_progress)
    return verified


async def _verify_set(
    client: Client,
    cluster: str,
    replica_set: cluster_pb2.ReplicaSet,
    verified: Verified,
    on_progress: Progress,
) -> None:
    comparison = await _compare_tables(client, replica_set, on_progress)
    if comparison is not None:
        verified.tables.append(comparison)
    committed: dict[str, int | str] = {}
    async with trio.open_nursery() as nursery:
        for node in replica_set.nodes:
            nursery.start_soon(_ask_committed, client, node, committed)
    known = [lsn for lsn in committed.values() if isinstance(lsn, int)]
    until = min(known, default=0)
    files = {
        node.name: VerifiedFile(
            Path(node.address), Owner(cluster, replica_set.name, node.name, b""), True, Report()
        )
        for node in replica_set.nodes
    }
    async with trio.open_nursery() as nursery:
        for node in replica_set.nodes:
            nursery.start_soon(
                _verify_node,
                client,
                node,
                committed[node.name],
                until,
                files[node.name],
                on_progress,
            )
    verified.files.extend(files.values())
    agreement = _compare_chains(replica_set.name, [*files.values()], until)
    if agreement.problem or len(agreement.names) > 1:
        verified.agreements.append(agreement)


async def _ask_committed(
    client: Client, node: cluster_pb2.Node, committed: dict[str, int | str]
) -> None:
    committed[node.name] = f"no answer within {_ANSWER_WITHIN_S:g} s"
    try:
        with trio.move_on_after(_ANSWER_WITHIN_S):
            committed[node.name] = (await client.status(node.address)).committed_lsn
    except HadronError as error:
        committed[node.name] = error.message


async def _verify_node(
    client: Client,
    node: cluster_pb2.Node,
    committed: int | str,
    until: int,
    file: VerifiedFile,
    on_progress: Progress,
) -> None:
    report = file.report
    if isinstance(committed, str):
        report.add(f"{node.name} does not answer: {committed}")
        return
    if not until:
        report.skipped.append("its log; some node knows of no entry that is committed")
        return
    try:
        connection = await nodes_of(client).connect(node.address)
        async with connection.open_stream(
            _VERIFY, integrity_pb2.VerifyRequest(until_lsn=until)
        ) as answers:
            async for answer, _ in answers:
                on_progress(node.name, f"entry {answer.reached_lsn} of {until}")
                if answer.HasField("report"):
                    file.report = report_from(answer.report)
                    file.remedy = answer.report.remedy
                    return
        raise PeerError("it ended without a report")
    except HadronError as error:
        report.add(f"{node.name} could not verify its disk: {error.message}")
        if isinstance(error, ConnectionLostError) and await _answers(client, node):
            # A node closes its connections when another member's copy takes its file's place.
            file.remedy = "has started anew meanwhile"


async def _answers(client: Client, node: cluster_pb2.Node) -> bool:
    found: dict[str, int | str] = {}
    await _ask_committed(client, node, found)
    return isinstance(found[node.name], int)


def _compare_chains(replica_set: str, files: list[VerifiedFile], until: int) -> Agreement:
    """Of those who answered: that the others did not is in their own reports."""
    there = [file for file in files if until and file.report.last_lsn == until]
    chains = {file.report.chain for file in there}
    agreement = Agreement(replica_set, [file.name for file in there], 0, "")
    lacking = ", ".join(file.name for file in files if file not in there and file.report.ok)
    if len(chains) == 1:
        agreement.lsn, agreement.chain = until, next(iter(chains))
    if len(chains) > 1:
        agreement.problem = f"their logs differ at or before entry {until}, which is committed"
    elif lacking:
        agreement.problem = f"{lacking} cannot be compared: no chain at entry {until}"
    return agreement


async def _compare_tables(
    client: Client, replica_set: cluster_pb2.ReplicaSet, on_progress: Progress
) -> TableComparison | None:
    """None for a replica set of one."""
    if len(replica_set.nodes) < 2:
        return None
    leader = next(node for node in replica_set.nodes if node.role == "leader")
    comparison = TableComparison(replica_set.name, leader.name)
    try:
        connection = await nodes_of(client).connect(leader.address)
        async with connection.open_stream(
            _COMPARE, integrity_pb2.CompareTablesRequest()
        ) as answers:
            async for answer, _ in answers:
                comparison.rows = answer.rows
                on_progress(leader.name, f"{answer.rows} rows compared")
                if answer.lsn:
                    comparison.is_complete = answer.is_complete
                    comparison.members = [each.name for each in answer.members if each.is_compared]
                    comparison.problems = [
                        each.trouble for each in answer.members if not each.is_compared
                    ]
                    return comparison
        raise PeerError("it ended without an answer")
    except NotReadyError as error:
        comparison.problems = [f"not compared: {error.message}"]
    except HadronError as error:
        comparison.problems = [f"the leader could not have them compared: {error.message}"]
    return comparison
