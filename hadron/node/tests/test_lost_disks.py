"""Nodes whose disk is lost: they count for nothing until they have heard enough (PROTOCOL B3)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from hadron.model.errors import DeadlineExceededError, PeerError
from hadron.node.tests.support import (
    assert_no_traceback,
    chains,
    fetch,
    is_member,
    make_stream,
    produce,
    replace_disk,
    wait_for_lost_memory,
)
from hadron.testing.nodes import Nodes, running_nodes


async def put_x_on_n1_and_n2(nodes: Nodes) -> None:
    """X is acknowledged by n1 and n2 while n3 is cut off."""
    await make_stream(nodes)
    await nodes.wait_in_step()
    nodes.network.isolate("n3", "n1", "n2")
    async with nodes.connection("n1") as connection:
        await produce(connection, b"X")
    nodes.network.break_connections("n3")
    await nodes.wait_in_step("n2")


def has_trouble(nodes: Nodes, name: str) -> bool:
    return bool(nodes.status(name).trouble)


async def test_a_wiped_replica_rebuilds_and_counts_again(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hadron.node.member")
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            for number in range(50):
                await produce(connection, b"%d" % number)
        await replace_disk(nodes, "n2")
        await nodes.wait_in_step()
        assert chains(nodes, "n2") == chains(nodes, "n1")
        await nodes.crash("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"counted on n2", timeout_s=20)
    assert_no_traceback(caplog)
    said = [each.message for each in caplog.records if each.name == "hadron.node.member"]
    # Once for each when the replica set was founded, which nobody had to be taught.
    assert sum("its disk is new; it counts in no majority" in each for each in said) == 4
    assert sum("rebuilt from its peers up to entry" in each for each in said) == 1


async def test_a_wiped_replica_makes_no_majority_while_the_other_is_away(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await put_x_on_n1_and_n2(nodes)
        await nodes.crash("n2")
        nodes.wipe("n2")
        await nodes.crash("n3")
        await nodes.start("n2")
        await nodes.wait_for(
            "copied", lambda: nodes.status("n2").last_lsn == nodes.status("n1").last_lsn
        )
        # n3 followed this ballot once; it may have promised a higher one since, to somebody who
        # had n2's promise as well.
        async with nodes.connection("n1") as connection:
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"Y", timeout_s=2)
            assert not is_member(nodes, "n2")
            status = nodes.status("n2")
            assert status.lacks_memory
            assert status.trouble == (
                "this node's disk is new; it counts in no majority until it has been taught"
            )
            nodes.network.heal_all()
            await nodes.start("n3")
            await nodes.wait_in_step()
            assert await fetch(connection) == [b"X", b"Y"]
        await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))
        assert not nodes.status("n2").lacks_memory
        await nodes.wait_for("well", lambda: not nodes.status("n2").trouble)


async def test_two_without_memory_of_x_do_not_lead(tmp_path: Path, clock: MockClock) -> None:
    """X on n1 and n2, n3 lags. n2 is wiped while n3 is away, then n1 starts again: only one of
    three remembers, and {n2, n3} without X must not become a majority either."""
    async with running_nodes(tmp_path, 3) as nodes:
        await put_x_on_n1_and_n2(nodes)
        await nodes.crash()
        nodes.wipe("n2")
        nodes.network.heal_all()
        await nodes.start("n1", "n2")
        await wait_for_lost_memory(nodes)
        assert nodes.status("n1").state == "waiting for a majority"
        assert nodes.status("n1").memories_missing == 1
        assert not is_member(nodes, "n2")
        await nodes.start("n3")
        await nodes.wait_serving()
        assert nodes.status("n1").memories_missing == 0
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]


async def test_a_wiped_replica_promises_but_is_not_heard_about_the_log(
    tmp_path: Path, clock: MockClock
) -> None:
    """The wiped n2 is connected when n1 asks for promises: its empty log says nothing."""
    async with running_nodes(tmp_path, 3) as nodes:
        await put_x_on_n1_and_n2(nodes)
        await nodes.crash()
        nodes.wipe("n2")
        nodes.network.heal_all()
        await nodes.start("n2", "n3", "n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")


async def test_a_wiped_leader_does_not_lead_with_one_member_that_remembers(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await put_x_on_n1_and_n2(nodes)
        await nodes.crash()
        nodes.wipe("n1")
        nodes.network.heal_all()
        await nodes.start("n1", "n3")
        await wait_for_lost_memory(nodes)
        assert "this node's disk does not" in nodes.status("n1").trouble
        assert "n2 cannot be reached" in nodes.status("n1").trouble
        assert chains(nodes, "n1") == []
        await nodes.start("n2")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]
            await produce(connection, b"Y")
        assert is_member(nodes, "n1")


async def test_a_leader_that_is_back_and_does_not_lead_yet_does_not_count_as_away(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.crash()
        nodes.wipe("n1")
        nodes.wipe("n2")
        await nodes.start("n2", "n3")
        for name in ("n2", "n3"):
            await nodes.wait_for("told", partial(has_trouble, nodes, name))
            assert "does not answer" in nodes.status(name).trouble
        await nodes.start("n1")
        await wait_for_lost_memory(nodes)
        await nodes.wait_for("no trouble", lambda: not nodes.status("n3").trouble)
        await nodes.wait_for("that of its disk", lambda: "answer" not in nodes.status("n2").trouble)
        assert nodes.status("n3").state == "waiting for the leader"


@pytest.mark.long
async def test_a_client_whose_time_is_up_is_told_what_the_leader_waits_for(
    tmp_path: Path, clock: MockClock
) -> None:
    """And not that a replica, which it has asked since, is none."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.crash()
        nodes.wipe("n1")
        nodes.wipe("n2")
        await nodes.start("n2", "n3", "n1")
        await wait_for_lost_memory(nodes)
        for timeout_s in (1, 2, 3, 5, 10):
            async with nodes.client(request_timeout_s=timeout_s) as client:
                with pytest.raises(PeerError) as caught:
                    async with client.producer("s"):
                        pass
            assert "node n1 does not serve: waiting for 2 members" in caught.value.message
            assert "and for the way out" in caught.value.hint


async def lose_a_long_log(nodes: Nodes) -> None:
    """n1 starts with an empty disk; what n2 has is more than one copied chunk, and n3 lags."""
    await put_x_on_n1_and_n2(nodes)
    async with nodes.connection("n1") as connection:
        for number in range(8):
            await produce(connection, bytes([number]) * 700_000)
    await nodes.wait_in_step("n2")
    await nodes.crash()
    nodes.wipe("n1")
    nodes.network.heal_all()
    await nodes.start()


async def test_a_wiped_leader_copies_a_long_log_from_the_most_advanced(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await lose_a_long_log(nodes)
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")
        async with nodes.connection("n1") as connection:
            assert (await fetch(connection))[0] == b"X"


async def test_a_wiped_leader_that_is_cut_off_while_copying(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await lose_a_long_log(nodes)
        while nodes.status("n1").last_lsn == 0:
            await trio.lowlevel.checkpoint()
        copied = nodes.status("n1").last_lsn
        await nodes.restart("n1")
        assert nodes.status("n1").last_lsn >= copied or not is_member(nodes, "n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")


def all_are_members(nodes: Nodes) -> bool:
    return all(is_member(nodes, name) for name in nodes.names)


async def test_of_two_either_may_lose_its_disk(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 2) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        for wiped in ("n2", "n1"):
            await nodes.wait_in_step()
            await nodes.crash()
            nodes.wipe(wiped)
            await nodes.start()
            await nodes.wait_serving()
            async with nodes.connection("n1") as connection:
                assert await fetch(connection) == [b"X"]
            await nodes.wait_for("members", partial(all_are_members, nodes))


async def test_a_member_that_was_taught_counts_at_the_next_ballot(
    tmp_path: Path, clock: MockClock
) -> None:
    """Fenced and elected again over the same connections: what n2 said of itself when they were
    made is out of date."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await replace_disk(nodes, "n2")
        await nodes.wait_in_step()
        await nodes.crash("n3")
        nodes.network.break_connections("n3")
        leadership = nodes.node("n1").member._leadership
        assert leadership is not None
        before = leadership.controller.ballot
        higher = before._replace(incarnation=before.incarnation + 3)
        leadership.controller.feeding.peer_fenced("n3", higher)
        await nodes.wait_for("deposed", lambda: nodes.status("n1").state != "serving")
        await nodes.wait_serving()


async def test_one_disk_and_no_other_member(tmp_path: Path, clock: MockClock) -> None:
    """A node alone whose `node.db` is lost cannot know what it promised: the operator decides."""
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        await nodes.crash()
        (nodes.data("n1") / "node.db").unlink()
        await nodes.start()
        await nodes.wait_for("refusing", lambda: "hadron recover" in nodes.status("n1").trouble)


async def test_five_nodes_with_two_lost_disks(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 5) as nodes:
        await make_stream(nodes)
        nodes.network.isolate("n5", "n1", "n2", "n3", "n4")
        nodes.network.isolate("n4", "n1", "n2", "n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step("n2", "n3")
        await nodes.crash()
        for name in ("n1", "n2"):
            nodes.wipe(name)
        nodes.network.heal_all()
        await nodes.start("n1", "n2", "n4", "n5")
        await wait_for_lost_memory(nodes, 3)
        await nodes.start("n3")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]


async def test_a_learner_alone_with_its_leader_does_not_commit(
    tmp_path: Path, clock: MockClock
) -> None:
    """n3 never followed this ballot, so a taught n2 would be one of only two that know of it."""
    async with running_nodes(tmp_path, 4) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n3", "n4")
        async with nodes.connection("n1") as connection:
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"no majority", timeout_s=1)
