"""The tools of in-process tests: several replica sets on one network in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hadron.testing.nodes import running_cluster

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
