"""`hadron status` of a whole cluster, also of nodes that the client cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadron.cli.commands import status
from hadron.cli.commands.status import _troubles, collect
from hadron.testing.nodes import Cluster, running_cluster

SETS = {"meta/p0": 1, "eu/p0": 3, "us/p0": 1}


async def wait_known(cluster: Cluster) -> None:
    await cluster.wait_for(
        "all known",
        lambda: all(
            len(nodes.node(name).discovery.sets()) == len(SETS)
            for nodes in cluster.values()
            for name in nodes.running
        ),
    )


def states(report: dict[str, Any]) -> dict[str, str]:
    return {f"{row['replica_set']} {row['node']}": row["state"] for row in report["nodes"]}


async def test_any_node_tells_of_the_whole_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        await cluster.wait_for(
            "the schema pushed",
            lambda: all(
                not nodes.status(name).cluster_trouble
                for nodes in cluster.values()
                for name in nodes.names
            ),
        )
        for name in SETS:
            async with cluster.client(f"client-of-{name[:2]}", through=[name]) as client:
                report = await collect(client)
            assert list(states(report)) == [
                "meta/p0 n1",
                "eu/p0 n1",
                "eu/p0 n2",
                "eu/p0 n3",
                "us/p0 n1",
            ]
            assert set(states(report).values()) == {"serving", "following"}
            assert _troubles(report["nodes"]) == []


async def test_nodes_out_of_reach_are_asked_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_ANSWER_WITHIN_S", 0.3)
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        cluster.cut(["client"], cluster.hosts("eu/p0"))
        await cluster["eu/p0"].crash("n3")
        async with cluster.client(through=["us/p0"]) as client:
            report = await collect(client)
        assert states(report) == {
            "meta/p0 n1": "serving",
            "eu/p0 n1": "serving",
            "eu/p0 n2": "following",
            "eu/p0 n3": "unreachable",
            "us/p0 n1": "serving",
        }
        rows = {f"{row['replica_set']} {row['node']}": row for row in report["nodes"]}
        assert rows["eu/p0 n2"]["trouble"][0].startswith(
            "no answer within 0.3 s; what stands here it has told "
        )
        assert rows["eu/p0 n2"]["lag"] == 0


def row(replica_set: str, node: str, *trouble: str) -> dict[str, Any]:
    return {"replica_set": replica_set, "node": node, "trouble": list(trouble)}


def test_what_several_nodes_say_is_printed_once() -> None:
    rows = [
        row("eu", "n1", "the disk is full"),
        row("eu", "n2", "who is x?"),
        row("us", "n1", "who is x?\n at length", "b"),
        row("us", "n2", "who is x?"),
    ]
    assert _troubles(rows) == [
        "trouble at eu (n1): the disk is full",
        "trouble at eu (n2), us (n1, n2): who is x?",
        "trouble at us (n1): b",
    ]
    assert _troubles(rows[:2]) == ["trouble at n1: the disk is full", "trouble at n2: who is x?"]
