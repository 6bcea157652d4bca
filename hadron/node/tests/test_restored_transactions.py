"""Transactions of a replica set that was restored from a backup while the others went on."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.node.backup import backup_live, find_node
from hadron.node.restore import restore_set
from hadron.node.tests.test_transactions import EU, SETS, US, make_streams, until_over, values
from hadron.node.tests.transacting import Act, Breaker, End, driving, listed, publish, resolve, rows
from hadron.node.world import SystemDisk
from hadron.state.transactions.intents import FinishTransaction, ForgetTransactions
from hadron.testing.nodes import Cluster, SeededRandom, running_cluster
from hadron.wire.system import SystemClock


async def back_up(cluster: Cluster, name: str, destination: Path) -> None:
    async with cluster.client("operator") as client:
        node = await find_node(client, f"{name}/n1")
        await backup_live(client, node.address, destination, SystemDisk(), lambda _a, _b: None)


async def restore(cluster: Cluster, name: str, backup: Path) -> None:
    """It alone, which goes on."""
    nodes = cluster[name]
    await nodes.crash()
    nodes.config = replace(nodes.config, epoch=nodes.config.epoch + 1)
    restore_set(
        backup, nodes.config, SystemDisk(), SeededRandom("restored"), SystemClock(), overwrite=True
    )
    await nodes.start()
    await cluster.wait_serving()


async def test_what_a_restored_driver_does_not_know_to_be_done_waits_for_an_operator(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path / "c", SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            transaction = client.id(number)
            breaker.crash(cluster[US], "n1", at=FinishTransaction, is_logged=False)
            client.say(
                number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"), end=End.COMMIT
            )
            await breaker.crashed()
            await back_up(cluster, EU, tmp_path / "backup")
            await cluster[US].restart("n1")
            await client.answer(number)
        await until_over(cluster)
        await restore(cluster, EU, tmp_path / "backup")

        def troubles() -> str:
            return "\n".join(cluster[EU].status("n1").cluster_trouble)

        await cluster.wait_for("told", lambda: "nothing is known" in troubles())
        assert f"{US} is to finish 1 decided transaction" in troubles()
        assert f"{EU} was restored, and {US} has done it since that backup was" in troubles()
        assert [each.phase for each in await listed(cluster, EU)] == ["decided"]
        await resolve(cluster, EU, transaction, Act.GIVE_UP, US)
        await cluster.wait_for("given up", lambda: "is to finish" not in troubles())
        with trio.fail_after(60):
            while await listed(cluster, EU):  # noqa: ASYNC110 - it is noted in a moment
                await trio.sleep(0.1)
        assert await values(cluster, EU) == [b"a"]
        assert await values(cluster, US) == [b"b"]


async def test_what_a_restored_driver_has_not_decided_stays_where_it_was_done(
    tmp_path: Path,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path / "c", SETS) as cluster:
        ids = await make_streams(cluster)
        await back_up(cluster, EU, tmp_path / "backup")
        async with driving(cluster, EU) as client:
            number = await client.number()
            transaction = client.id(number)
            breaker.crash(cluster[US], "n1", at=ForgetTransactions, is_logged=False)
            client.say(
                number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"), end=End.COMMIT
            )
            await breaker.crashed()
        # Its driver has noted it by now, and would have it forgotten.
        await cluster[EU].crash()
        await cluster[US].start("n1")
        await restore(cluster, EU, tmp_path / "backup")
        await cluster.wait_for("forgotten", lambda: rows(cluster, US, "participation") == 0)
        (told,) = [text for text in caplog.messages if "is torn" in text]
        assert f"{transaction} is torn: it was finished at {US}, and {EU} says that it" in told
        assert "its driver was restored from a backup of before it decided this" in told
        assert await values(cluster, EU) == []
        assert await values(cluster, US) == [b"b"]
