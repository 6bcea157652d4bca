"""The tools of in-process tests: several replica sets on one network in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from hadron.model.schema import NamespaceSpec, SchemaObject
from hadron.node.runtime import Node
from hadron.testing.nodes import Nodes, running_cluster, running_nodes

SETS = {"meta": 1, "eu/p0": 3, "us/p0": 1}


async def test_every_set_serves_on_hosts_of_its_own(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        assert list(cluster) == list(SETS)
        assert cluster.hosts("eu/p0") == ["eu-p0-n1", "eu-p0-n2", "eu-p0-n3"]
        await cluster.wait_in_step()
        for name, nodes in cluster.items():
            status = nodes.status("n1")
            assert (status.replica_set, status.state) == (name, "serving")
            assert nodes.config.metadata == "meta"
        chains = {nodes.node("n1").status().chain for nodes in cluster.values()}
        assert len(chains) == 3


async def test_a_set_dies_and_comes_back_without_the_others(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        before = cluster["us/p0"].status("n1").ballot.incarnation
        await cluster.crash("eu/p0")
        assert cluster["eu/p0"].running == ()
        assert cluster["us/p0"].running == ("n1",)
        await cluster.start("eu/p0")
        await cluster.wait_serving("eu/p0")
        assert cluster["us/p0"].status("n1").ballot.incarnation == before


async def test_a_set_is_cut_off_from_another_and_not_from_itself(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        cluster.isolate("eu/p0", clients=["client"])
        await cluster["eu/p0"].restart("n1")
        await cluster.wait_serving("eu/p0")
        for host in ("meta-n1", "client"):
            with pytest.raises(trio.TooSlowError), trio.fail_after(0.05):
                await cluster.network.host(host).dial("eu-p0-n2:7000")
        await cluster.network.host("eu-p0-n1").dial("eu-p0-n2:7000")
        async with cluster.client("elsewhere", through=["eu/p0"]) as client:
            assert (await client.topology()).replica_set == "eu/p0"


async def test_a_condition_that_never_holds_fails_with_what_every_node_says(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        with pytest.raises(AssertionError, match=r"not done after 0.01 s: (?s:.*)us/p0: n1 serv"):
            await cluster.wait_for("done", lambda: False, patience_s=0.01)


def _break(node: Node) -> None:
    """The node stops at its next flush."""
    writer = node.member._store.writer

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        def execute(self, sql: str, *arguments: Any) -> Any:
            if sql == "COMMIT":
                raise apsw.IOError("disk I/O error: fsync")
            return connection.execute(sql, *arguments)

    connection = writer.connection
    writer.connection = Broken()  # type: ignore[assignment]


async def _stop_one(nodes: Nodes) -> None:
    _break(nodes.node("n1"))
    other = SchemaObject(kind="Namespace", name="other", spec=NamespaceSpec())
    async with nodes.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.apply, [other])
        await nodes.wait_for("n1 stopped", lambda: "n1" not in nodes.running)
        nursery.cancel_scope.cancel()


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _ignore_a_stop(directory: Path, again: bool) -> None:
    async with running_nodes(directory, 1) as nodes:
        await _stop_one(nodes)
        if again:
            await nodes.start("n1")


@pytest.mark.parametrize("again", [False, True])
async def test_a_node_that_nobody_asked_about_fails_the_test(tmp_path: Path, again: bool) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what it is, is looked at
        await _ignore_a_stop(tmp_path, again)
    assert "disk I/O error" in str(_leaf(raised.value))


async def test_a_node_that_was_asked_about_may_stop(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await _stop_one(nodes)
        assert "disk I/O error" in str(_leaf(await nodes.wait_stopped("n1")))


async def test_a_node_of_a_cluster_that_nobody_asked_about_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what it is, is looked at
        async with running_cluster(tmp_path, {"meta": 1, "us/p0": 1}) as cluster:
            await _stop_one(cluster["meta"])
    assert "disk I/O error" in str(_leaf(raised.value))
