"""Configurations that contradict each other: said on both sides, harmless, and over when fixed."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.tests.support import assert_no_traceback, make_stream, read_all, send
from hadron.testing.nodes import Nodes, running_nodes, with_nodes


def other_cluster(config: ReplicaSetConfig) -> ReplicaSetConfig:
    return replace(config, cluster="staging")


def fewer_members(config: ReplicaSetConfig) -> ReplicaSetConfig:
    return with_nodes(config, [node for node in config.nodes if node.name != "n2"])


@pytest.mark.parametrize(
    ("change", "what", "theirs", "ours"),
    [
        (other_cluster, "cluster", "staging", "test"),
        (
            fewer_members,
            "list of members",
            "n1 (leader), n3 (replica)",
            "n1 (leader), n2 (replica), n3 (replica)",
        ),
    ],
)
async def test_a_node_with_another_configuration_is_left_out_and_named(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[ReplicaSetConfig], ReplicaSetConfig],
    what: str,
    theirs: str,
    ours: str,
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        # A directory of its own: its old one belongs to the real cluster.
        changed = change(nodes.config)
        nodes.configs["n3"] = with_nodes(
            changed, [replace(node, data=tmp_path / f"other-{node.name}") for node in changed.nodes]
        )
        caplog.clear()
        await nodes.start("n3")
        await nodes.wait_for("mismatch", lambda: trouble_with_n3(nodes) != "")
        assert f"its {what} is {theirs}, ours is {ours}" in trouble_with_n3(nodes)
        await nodes.wait_for(
            "mismatch",
            lambda: f"its {what} is {ours}, ours is {theirs}" in nodes.status("n3").trouble,
        )
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert any(f"{what} is {theirs}, ours is {ours}" in text for text in warnings)
        assert any(f"{what} is {ours}, ours is {theirs}" in text for text in warnings)
        async with nodes.client() as client:
            await send(client, ["works without n3"])
        assert sum("the handshake with n3" in text for text in warnings) <= len(["n1", "n2"])
        await nodes.crash("n3")
        del nodes.configs["n3"]
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert trouble_with_n3(nodes) == ""
        async with nodes.client() as client:
            assert await read_all(client) == ["works without n3"]
    assert_no_traceback(caplog)


def trouble_with_n3(nodes: Nodes) -> str:
    peer = next(peer for peer in nodes.status("n1").peers if peer.name == "n3")
    return peer.trouble if peer.state == "mismatch" else ""


async def test_the_warning_is_not_repeated_at_every_attempt(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        nodes.configs["n2"] = replace(nodes.config, cluster="staging")
        await nodes.start()
        await nodes.wait_for(
            "waiting", lambda: "cluster is staging" in str(nodes.status("n1").peers)
        )
        first = len([r for r in caplog.records if r.levelname == "WARNING"])
        before = nodes.network.dials("n1", "n2")
        await nodes.wait_for("tried again", lambda: nodes.network.dials("n1", "n2") > before + 3)
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) <= first + 4


async def test_exchanged_addresses_are_noticed(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        n1, n2, n3 = nodes.config.nodes
        nodes.configs["n1"] = with_nodes(
            nodes.config, [n1, replace(n2, address=n3.address), replace(n3, address=n2.address)]
        )
        await nodes.start()
        await nodes.wait_for(
            "noticed", lambda: "are two addresses exchanged" in str(nodes.status("n1").peers)
        )
        assert nodes.status("n1").state == "waiting for a majority"
        assert nodes.status("n1").last_lsn == 0


async def test_data_of_another_replica_set_of_the_same_name(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path / "one", 3) as nodes:
        await nodes.wait_in_step()
    async with running_nodes(tmp_path / "two", 3, seed=2) as nodes:
        await nodes.wait_in_step()
        await nodes.crash("n3")
        nodes.wipe("n3")
        (tmp_path / "one" / "n3").rename(nodes.data("n3"))
        await nodes.start("n3")
        await nodes.wait_for("noticed", lambda: "replica set uuid is" in trouble_with_n3(nodes))
        assert "move the data directory away that is the wrong one" in trouble_with_n3(nodes)
