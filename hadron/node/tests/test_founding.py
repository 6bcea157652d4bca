"""The first start of a replica set, in any order, cut short anywhere."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import random
from itertools import permutations, product
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import NotLeaderError, NotReadyError
from hadron.model.ids import Ballot
from hadron.node.tests.support import (
    assert_no_traceback,
    chains,
    is_member,
    make_stream,
    read_all,
    send,
)
from hadron.replication.tests.support import open_store
from hadron.testing.nodes import running_nodes
from hadron.wire.connection import Connection
from hadron.wire.messages import method, schema_pb2

GET_OBJECTS = method("GetObjects")


async def ask(connection: Connection) -> None:
    await connection.request(GET_OBJECTS, schema_pb2.GetObjectsRequest())


@pytest.mark.parametrize("order", list(permutations(["n1", "n2", "n3"])), ids="-".join)
async def test_three_nodes_found_a_set_whatever_the_order(
    tmp_path: Path, clock: MockClock, order: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        for name in order[:2]:
            await nodes.start(name)
        first, second = order[:2]
        await nodes.wait_for(
            "connected",
            lambda: (
                nodes.status(first).peers[0].state != "connecting"
                or nodes.status(first).peers[1].state != "connecting"
            ),
        )
        for name in (first, second):
            async with nodes.connection(name) as connection:
                with pytest.raises((NotReadyError, NotLeaderError)):
                    await ask(connection)
            assert nodes.status(name).last_lsn == 0
        await nodes.start(order[2])
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert nodes.status("n1").ballot.incarnation == 1
        assert all(is_member(nodes, name) for name in order)
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")
    assert_no_traceback(caplog)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_sets_of_other_sizes(tmp_path: Path, clock: MockClock, count: int) -> None:
    async with running_nodes(tmp_path, count) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["a", "b"], acks="all")
            assert await read_all(client) == ["a", "b"]
        await nodes.wait_in_step()


async def test_the_waiting_node_says_for_whom(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        await nodes.start("n1")
        await nodes.wait_for("waiting", lambda: nodes.status("n1").trouble != "")
        assert nodes.status("n1").state == "waiting for a majority"
        trouble = nodes.status("n1").trouble
        assert "all 3 members, because the replica set is new" in trouble
        assert "n2, n3 cannot be reached" in trouble
        async with nodes.connection("n1") as connection:
            with pytest.raises(NotReadyError, match="waiting for all 3 members"):
                await ask(connection)


@pytest.mark.parametrize("founded", list(product([False, True], repeat=3)))
async def test_a_founding_that_reached_some_begins_again(
    tmp_path: Path, clock: MockClock, founded: tuple[bool, ...]
) -> None:
    """Whoever had promised already keeps the uuid that it was given: a second one would shut it
    out for ever."""
    uuid = b"first uuid".ljust(16, b".")
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        for name, was_founded in zip(nodes.names, founded, strict=True):
            store = open_store(nodes.data(name), name)
            if was_founded:
                store.identity.promise(Ballot(1, 4), nodes.config.digest)
                store.identity.become_member(uuid)
            store.close()
        await nodes.start()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert nodes.status("n1").ballot.incarnation == (5 if any(founded) else 1)
        # Two that are members already may begin without the third, and teach it.
        await nodes.wait_for("members", lambda: all(is_member(nodes, n) for n in nodes.names))
        await nodes.crash()
        found = set()
        for name in nodes.names:
            store = open_store(nodes.data(name), name)
            assert store.identity.current.is_member
            found.add(store.identity.current.uuid)
            store.close()
        assert len(found) == 1
        assert not any(founded) or found == {uuid}


@pytest.mark.parametrize("seed", range(12))
async def test_a_founding_cut_short_at_any_point_ends_well(
    tmp_path: Path, clock: MockClock, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        await nodes.start()
        for _ in range(4):
            victims = chance.sample(nodes.names, chance.randint(1, 3))
            for _ in range(chance.randint(1, 400)):
                await trio.lowlevel.checkpoint()
            await nodes.crash(*victims)
            chance.shuffle(victims)
            await nodes.start(*victims)
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["works"], acks="all")
    assert_no_traceback(caplog)


async def test_cutting_connections_while_founding(tmp_path: Path, clock: MockClock) -> None:
    chance = random.Random(7)
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        await nodes.start()
        for _ in range(20):
            for _ in range(chance.randint(1, 60)):
                await trio.lowlevel.checkpoint()
            nodes.network.break_connections(chance.choice(nodes.names))
        await nodes.wait_serving()
        await nodes.wait_in_step()
