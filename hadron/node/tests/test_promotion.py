"""Another leader, and other members, by a raised epoch (PROTOCOL B1, B5)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.model.errors import DeadlineExceededError, FencedError, NotLeaderError
from hadron.node.backup import find_node
from hadron.node.live_verification import verify_live
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.tests.support import (
    assert_no_traceback,
    chains,
    fetch,
    is_member,
    make_stream,
    produce,
    read_all,
    send,
)
from hadron.testing.nodes import Nodes, running_nodes


def changed(config: ReplicaSetConfig, *members: str, leader: str, epoch: int) -> ReplicaSetConfig:
    """The next configuration: these members, one of them leading."""
    directory = config.nodes[0].data.parent
    return replace(
        config,
        epoch=epoch,
        nodes=tuple(
            NodeConfig(
                name=name,
                role="leader" if name == leader else "replica",
                address=f"{name}:7000",
                data=directory / name,
            )
            for name in members
        ),
    )


def file_of(nodes: Nodes, config: ReplicaSetConfig, *names: str) -> None:
    """Give these nodes a new file; they read it when they start."""
    for name in names:
        nodes.configs[name] = config


async def test_a_replica_is_promoted_and_nothing_is_lost(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["before"])
            nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
            await nodes.restart("n2")
            # n1 and n3 still have the old file: they promise, and say that it is old.
            await nodes.wait_serving()
            await nodes.wait_for("fenced", lambda: nodes.status("n1").state == "following")
            assert "configuration file is old: it has epoch 1, the leader has 2" in (
                nodes.status("n1").trouble
            )
            # Once, and not by everybody else as well.
            assert [each.trouble for each in nodes.status("n2").peers] == ["", ""]
            # The same client: it is told where to go.
            await send(client, ["after"])
        for name in ("n1", "n3"):
            await nodes.restart(name)
            await nodes.wait_in_step()
            assert nodes.status(name).trouble == ""
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")
        async with nodes.client() as client:
            assert await read_all(client) == ["before", "after"]
    assert_no_traceback(caplog)


async def test_who_has_the_old_file_does_not_say_what_is_verified_or_copied(
    tmp_path: Path, clock: MockClock
) -> None:
    """In a cluster of one set nobody tells n1 of the new one."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
        await nodes.restart("n2")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.client(through=["n1"]) as client:
            assert (await find_node(client, None)).name == "n2"
        async with nodes.client(through=["n1"]) as client:
            verified = await verify_live(client)
        (tables,) = verified.tables
        assert (tables.leader, verified.ok) == ("n2", True), verified


async def test_a_stale_leader_commits_nothing(tmp_path: Path, clock: MockClock) -> None:
    """n1 is cut off from the others, not from its clients, while n2 takes over."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        nodes.network.isolate("n1", "n2", "n3")
        file_of(nodes, changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2), "n2", "n3")
        await nodes.restart("n2", "n3")
        await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
        async with nodes.connection("n1") as old, nodes.connection("n2") as new:
            with pytest.raises(DeadlineExceededError):
                await produce(old, b"lost", timeout_s=1)
            # It did not answer, and what it holds is not visible there either.
            assert await fetch(old) == []
            await produce(new, b"kept")
            nodes.network.heal_all()
            await nodes.wait_for("fenced", lambda: nodes.status("n1").state == "following")
            assert await fetch(new) == [b"kept"]
        async with nodes.connection("n1") as old:
            with pytest.raises(NotLeaderError) as refused:
                await produce(old, b"refused", timeout_s=1)
            assert "the leader is n2 at n2:7000" in str(refused.value.hint)
        # Its applied tail was not committed: it comes back by a snapshot, with the new file.
        file_of(nodes, nodes.configs["n2"], "n1")
        await nodes.restart("n1")
        nodes.config = nodes.configs["n2"]
        await nodes.wait_in_step()
        assert chains(nodes, "n1")[-1] == chains(nodes, "n2")[-1]


async def test_an_old_file_is_refused_at_start_once_a_newer_one_was_promised(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        file_of(nodes, changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2), "n2")
        await nodes.restart("n2")
        await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
        await nodes.wait_for("fenced", lambda: nodes.status("n1").state == "following")
        await nodes.crash("n1")
        with pytest.raises(FencedError) as refused:
            await nodes.start("n1")
        assert "the configuration has epoch 1, this node has promised epoch 2" in str(refused.value)
        assert "newest configuration file" in str(refused.value.hint)


async def test_an_old_leader_that_was_away_finds_itself_deposed(
    tmp_path: Path, clock: MockClock
) -> None:
    """It never heard of the new epoch, so nothing keeps it from starting; nobody follows it."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n1")
        file_of(nodes, changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2), "n2", "n3")
        await nodes.restart("n2", "n3")
        await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
        nodes.network.cut_one_way("n2", "n1")
        nodes.network.cut_one_way("n3", "n1")
        await nodes.start("n1")
        nodes.network.heal_all()
        await nodes.wait_for("told", lambda: "is old" in nodes.status("n1").trouble)
        await nodes.wait_for("following", lambda: nodes.status("n1").state == "following")
        assert nodes.status("n2").state == "serving"


async def test_two_files_of_one_epoch_that_differ(tmp_path: Path, clock: MockClock) -> None:
    """n2 and n3 are told that n2 leads, n1 that n3 does: never two leaders, and both say why."""
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        await nodes.crash()
        two = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
        three = changed(nodes.config, "n1", "n2", "n3", leader="n3", epoch=2)
        file_of(nodes, two, "n1", "n2")
        file_of(nodes, three, "n3")
        await nodes.start()
        await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
        await nodes.wait_for("told", lambda: "raise `epoch`" in str(nodes.status("n3").peers))
        assert nodes.status("n3").state != "serving"
        assert "its list of members is" in str(nodes.status("n2").peers)


async def test_promoted_back_and_forth_with_records_between(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        expected = []
        # One client for all of it: it has to find each new leader.
        async with nodes.client() as client:
            for epoch, leader in enumerate(("n2", "n3", "n1", "n3", "n2"), start=2):
                nodes.config = changed(nodes.config, "n1", "n2", "n3", leader=leader, epoch=epoch)
                await nodes.restart()
                await nodes.wait_serving()
                await send(client, [leader])
                expected.append(leader)
                assert await read_all(client) == expected
        await nodes.wait_in_step()
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")


# --- members ------------------------------------------------------------------------------------


async def test_members_are_added_and_count_once_they_have_caught_up(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        async with nodes.client("first") as client:
            await send(client, ["alone"])
        nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n1", epoch=2)
        # "Start them first" (B5): empty, they wait to be taught.
        await nodes.start("n2", "n3")
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await nodes.wait_for("members", lambda: is_member(nodes, "n2") and is_member(nodes, "n3"))
        async with nodes.client() as client:
            await send(client, ["three"], acks="all")
            await nodes.crash("n1")
            nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n3", epoch=3)
            await nodes.restart("n2", "n3")
            await nodes.wait_serving()
            await send(client, ["without the first one"])
            assert await read_all(client) == ["alone", "three", "without the first one"]


async def test_a_majority_of_new_members_does_not_serve_before_it_has_caught_up(
    tmp_path: Path, clock: MockClock
) -> None:
    """n1 alone remembers; with {n1, n2, n3} a majority needs n2 or n3, and both are away."""
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n1", epoch=2)
        await nodes.restart("n1")
        await nodes.wait_for(
            "waiting", lambda: "a majority of 2 of 3 members" in nodes.status("n1").trouble
        )
        assert "n2, n3 cannot be reached" in nodes.status("n1").trouble
        await nodes.start("n3")
        await nodes.wait_serving()


async def test_a_member_is_replaced(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client("first") as client:
            await send(client, ["X"])
        await nodes.crash("n3")
        nodes.config = changed(nodes.config, "n1", "n2", "n4", leader="n1", epoch=2)
        await nodes.start("n4")
        await nodes.restart("n1", "n2")
        await nodes.wait_serving()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n4"))
        await nodes.crash("n2")
        async with nodes.client() as client:
            await send(client, ["counted on n4"])
            assert await read_all(client) == ["X", "counted on n4"]


async def test_from_five_members_to_three(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 5) as nodes:
        await make_stream(nodes)
        async with nodes.client("first") as client:
            await send(client, ["X"], acks="all")
        nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
        await nodes.restart("n2")
        await nodes.wait_serving()
        await nodes.restart("n1", "n3")
        await nodes.wait_in_step("n1", "n2", "n3")
        # Whoever was removed, and was not told, hears that its file is old.
        await nodes.wait_for("told", lambda: "file is old" in nodes.status("n5").trouble)
        await nodes.crash("n1")
        async with nodes.client() as client:
            await send(client, ["two of three"])
            assert await read_all(client) == ["X", "two of three"]


async def test_without_a_majority_of_the_old_members_nothing_begins(
    tmp_path: Path, clock: MockClock
) -> None:
    """X may be on n2 and n3 alone; {n1, n4, n5} would be a majority of the new members."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["X"])
        await nodes.wait_in_step()
        await nodes.crash()
        nodes.config = changed(nodes.config, "n1", "n4", "n5", leader="n1", epoch=2)
        await nodes.start("n1", "n4", "n5")
        await nodes.wait_for(
            "refusing",
            lambda: (
                "a majority, 2, of the members of epoch 1 (n1, n2, n3)"
                in nodes.status("n1").trouble
            ),
        )
        assert "this file has only n1 of them: take the change back" in nodes.status("n1").trouble
        assert nodes.status("n4").last_lsn == 0
        # Nothing was promised yet, so it can be.
        nodes.configs.clear()
        nodes.config = changed(nodes.config, "n1", "n2", "n3", leader="n1", epoch=1)
        await nodes.crash("n1", "n4", "n5")
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == ["X"]


async def test_a_member_of_the_epoch_before_cannot_go_on_with_strangers(
    tmp_path: Path, clock: MockClock
) -> None:
    """n1, n2 and n4 make epoch 2; n4 alone is asked to go on with n5 and n6."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash()
        two = changed(nodes.config, "n1", "n2", "n4", leader="n1", epoch=2)
        file_of(nodes, two, "n1", "n2", "n4")
        await nodes.start("n2", "n4", "n1")
        await nodes.wait_for("promised", lambda: nodes.status("n2").ballot.epoch == 2)
        await nodes.crash()
        entries = {name: len(chains(nodes, name)) for name in ("n1", "n2")}
        three = changed(nodes.config, "n4", "n5", "n6", leader="n4", epoch=3)
        file_of(nodes, three, "n4", "n5", "n6")
        await nodes.start("n4", "n5", "n6")
        # What was committed may be with n1 and n2 only, and none of them is a member.
        await nodes.wait_for(
            "refusing",
            lambda: (
                nodes.status("n4").state in ("waiting for a majority", "fenced")
                and nodes.status("n4").trouble != ""
            ),
        )
        assert nodes.status("n4").last_lsn <= max(entries.values())
        assert nodes.status("n4").state != "serving"


async def test_a_set_is_not_founded_with_a_later_epoch(tmp_path: Path, clock: MockClock) -> None:
    """All members moved at once: nobody has the log, and an empty one must not take its place."""
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        nodes.config = replace(nodes.config, epoch=2)
        await nodes.start()
        await nodes.wait_for("refusing", lambda: "epoch" in nodes.status("n1").trouble)
        assert nodes.status("n1").state == "waiting for a majority"
        assert nodes.status("n1").last_lsn == 0
