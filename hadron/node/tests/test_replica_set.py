"""A replica set at work: nodes that go away, come back, lag, and lead again."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import DeadlineExceededError, HadronError, NotReadyError
from hadron.model.ids import Ballot
from hadron.node.tests.support import (
    ALL,
    LEADER,
    MAJORITY,
    assert_no_traceback,
    chains,
    fetch,
    make_stream,
    produce,
    read_all,
    send,
    visible_end,
)
from hadron.replication.tests.support import open_store
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import groups_pb2, method

LIST_GROUPS = method("ListGroups")
PRODUCER = b"producer".ljust(16, b".")


async def test_writes_go_on_without_one_replica(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await nodes.crash("n3")
        await send(client, ["a", "b"])
        assert await read_all(client) == ["a", "b"]
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert chains(nodes, "n3") == chains(nodes, "n1")


async def test_writes_wait_for_a_majority_and_then_succeed(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await nodes.crash("n2", "n3")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, client, ["waits"])
            await nodes.wait_for(
                "written", lambda: nodes.status("n1").last_lsn > nodes.status("n1").committed_lsn
            )
            assert await read_all(client) == []
            await nodes.start("n2")
        assert await read_all(client) == ["waits"]


async def test_a_replica_catches_up_from_the_log_under_traffic(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await nodes.crash("n3")
        sent: list[str] = []
        stopping = trio.Event()

        async def traffic() -> None:
            async with client.producer("events", linger_ms=0) as producer:
                while not stopping.is_set():
                    value = f"{len(sent)} " + "x" * 2_000
                    await producer.send(value)
                    sent.append(value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(traffic)
            await nodes.wait_for("behind", lambda: len(sent) >= 100)
            await nodes.start("n3")
            await nodes.wait_for("caught up", lambda: nodes.status("n3").applied_lsn >= len(sent))
            stopping.set()
        await nodes.wait_in_step()
        assert await read_all(client) == sent
        assert chains(nodes, "n3") == chains(nodes, "n1")
    assert_no_traceback(caplog)


async def test_an_idle_leader_takes_a_replica_back(tmp_path: Path, clock: MockClock) -> None:
    """Nothing is written, so only the connection's end tells the leader to begin again."""
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        await nodes.restart("n3")
        await nodes.wait_for("following", lambda: nodes.status("n3").state == "following")
        await nodes.wait_for(
            "in sync", lambda: all(p.state == "in sync" for p in nodes.status("n1").peers)
        )
        nodes.network.break_connections("n3")
        await nodes.wait_for("noticed", lambda: nodes.status("n3").state != "following")
        await nodes.wait_for("following", lambda: nodes.status("n3").state == "following")


async def test_a_restarted_replica_applies_what_was_committed_meanwhile(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await send(client, ["last"])
        await nodes.crash("n3")
        await nodes.start("n3")
        await nodes.wait_in_step("n3")


async def test_a_leader_comes_back_with_everything_acknowledged(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        sent: list[str] = []
        for round_number in range(4):
            values = [f"{round_number}/{number}" for number in range(20)]
            await send(client, values)
            sent.extend(values)
            before = nodes.status("n1").ballot.incarnation
            await nodes.restart("n1")
            await nodes.wait_serving()
            assert nodes.status("n1").ballot.incarnation > before
            assert await read_all(client) == sent
        await nodes.wait_in_step()
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")


async def test_a_batch_sent_again_after_a_restart_keeps_its_offset(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"before")
            first = await produce(connection, b"x", b"y", producer_id=PRODUCER, sequence=0)
        await nodes.restart("n1")
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            again = await produce(connection, b"x", b"y", producer_id=PRODUCER, sequence=0)
            assert (again.base_offset, again.duplicate) == (first.base_offset, True)
            assert again.append_ms == first.append_ms
            following = await produce(connection, b"z", producer_id=PRODUCER, sequence=2)
            assert (following.base_offset, following.duplicate) == (first.base_offset + 2, False)
            assert await fetch(connection) == [b"before", b"x", b"y", b"z"]


async def test_a_repetition_is_not_answered_before_the_original_is_committed(
    tmp_path: Path, clock: MockClock
) -> None:
    """A2's history: applied, not committed, the connection drops, the retry meets dedupe."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        nodes.network.isolate("n1", "n2", "n3")
        for _ in range(2):
            async with nodes.connection("n1") as connection:
                with pytest.raises(DeadlineExceededError):
                    await produce(connection, b"x", producer_id=PRODUCER, sequence=0, timeout_s=1)
        nodes.network.heal_all()
        async with nodes.connection("n1") as connection:
            answer = await produce(connection, b"x", producer_id=PRODUCER, sequence=0)
            assert (answer.base_offset, answer.duplicate) == (0, True)


async def cut_off_with_a_tail(nodes: Nodes) -> None:
    """n1 alone holds `tail`, acknowledged by nobody but itself."""
    await make_stream(nodes)
    async with nodes.connection("n1") as connection:
        await produce(connection, b"kept", acks=ALL)
        await nodes.wait_in_step()
        nodes.network.isolate("n1", "n2", "n3")
        answer = await produce(connection, b"tail", acks=LEADER)
        assert answer.base_offset == 1
        with pytest.raises(DeadlineExceededError):
            await produce(connection, b"more", acks=MAJORITY, timeout_s=1)
        assert await fetch(connection) == [b"kept"]
        assert await visible_end(connection) == 1
        assert await fetch(connection, 1) == []


async def test_what_only_the_leader_has_is_invisible_until_it_is_committed(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await cut_off_with_a_tail(nodes)
        nodes.network.heal_all()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"next")
            assert await fetch(connection) == [b"kept", b"tail", b"more", b"next"]


async def test_reads_from_the_disk_stop_at_the_watermark_too(
    tmp_path: Path, clock: MockClock
) -> None:
    """After a restart nothing is in memory, and the table holds more than may be seen."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"kept")
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        nodes.network.isolate("n1", "n2", "n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"tail", acks=LEADER)
            assert await fetch(connection) == [b"kept"]
            nodes.network.heal_all()
            await produce(connection, b"next")
            assert await fetch(connection) == [b"kept", b"tail", b"next"]


async def test_a_restarted_leader_commits_its_tail(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await cut_off_with_a_tail(nodes)
        await nodes.crash("n1")
        await nodes.start("n1")
        async with nodes.connection("n1") as connection:
            with pytest.raises(NotReadyError):
                await fetch(connection)
        nodes.network.heal_all()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"kept", b"tail", b"more"]


async def test_a_tail_that_was_lost_with_its_disk_was_never_seen(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await cut_off_with_a_tail(nodes)
        await nodes.crash("n1")
        nodes.wipe("n1")
        nodes.network.break_connections("n1")
        nodes.network.heal_all()
        await nodes.start("n1")
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"kept"]
            answer = await produce(connection, b"other")
            assert answer.base_offset == 1


async def test_all_waits_for_the_slowest(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.crash("n3")
        async with nodes.connection("n1") as connection, trio.open_nursery() as nursery:
            answers: list[int] = []

            async def produce_all() -> None:
                answers.append((await produce(connection, b"a", acks=ALL)).base_offset)

            nursery.start_soon(produce_all)
            before = nodes.status("n1").last_lsn
            await nodes.wait_for("written", lambda: nodes.status("n1").last_lsn > before)
            assert (await produce(connection, b"b", acks=MAJORITY)).base_offset == 1
            assert await fetch(connection) == [b"a", b"b"]
            assert not answers
            await nodes.start("n3")
        assert answers == [0]
        assert chains(nodes, "n3")[-1][0] >= nodes.status("n1").last_lsn - 1


async def test_all_is_not_answered_before_the_majority_has_it(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            assert (await produce(connection, b"a", acks=ALL)).base_offset == 0
            assert await fetch(connection) == [b"a"]


@pytest.mark.long
async def test_a_leader_that_nobody_follows_answers_no_question_about_state(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            await connection.request(LIST_GROUPS, groups_pb2.ListGroupsRequest())
            nodes.network.isolate("n1", "n2", "n3")
            with trio.fail_after(20), pytest.raises(NotReadyError, match="1 of 3 members answered"):
                await connection.request(LIST_GROUPS, groups_pb2.ListGroupsRequest())
            # With an entry that cannot be committed as well.
            await produce(connection, b"x", acks=LEADER)
            with trio.fail_after(20), pytest.raises(NotReadyError, match="1 of 3 members answered"):
                await connection.request(LIST_GROUPS, groups_pb2.ListGroupsRequest())
            nodes.network.heal_all()
            await nodes.wait_in_step()
            await connection.request(LIST_GROUPS, groups_pb2.ListGroupsRequest())


@pytest.mark.long
async def test_a_silent_one_way_cut_ends_in_a_new_connection(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2 hears n1, but nothing comes back: n1 gives the connection up and dials again."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        nodes.network.cut_one_way("n2", "n1")
        await send(client, ["without n2"])
        await nodes.wait_for("gone", lambda: nodes.status("n1").peers[0].state == "connecting")
        nodes.network.heal_all()
        await nodes.wait_in_step()
        assert chains(nodes, "n2") == chains(nodes, "n1")


async def test_subscribers_hear_that_their_leader_went_away(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        seen: list[str] = []

        async def consume() -> None:
            async with client.subscribe("events", group="g") as subscription:
                async for delivery in subscription:
                    seen.append(delivery.value)
                    await delivery.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await send(client, ["one"])
            await nodes.wait_for("seen", lambda: "one" in seen)
            leadership = nodes.node("n1").member._leadership
            assert leadership is not None
            # As a peer's answer fences it: through the controller alone.
            leadership.controller.feeding.peer_fenced("n2", Ballot(1, 99))
            await nodes.wait_for("deposed", lambda: nodes.status("n1").state != "serving")
            await nodes.wait_serving()
            await send(client, ["two"])
            await nodes.wait_for("seen", lambda: "two" in seen)
            nursery.cancel_scope.cancel()


async def test_a_promise_that_the_leader_never_heard_of_costs_one_more_ballot(
    tmp_path: Path, clock: MockClock
) -> None:
    """n3 promised a ballot that was never won, to a leader whose disk is lost: it refuses the
    ballot of the others until the leader has gone above it."""
    async with running_nodes(tmp_path, 5) as nodes:
        await nodes.wait_in_step()
        await nodes.crash("n1", "n5")
        store = open_store(nodes.data("n5"), "n5")
        store.identity.promise(Ballot(1, 9), nodes.config.digest)
        store.close()
        nodes.wipe("n1")
        await nodes.start("n1")
        await nodes.wait_serving()
        assert nodes.status("n1").ballot.incarnation < 9
        await nodes.start("n5")
        await nodes.wait_for("led above it", lambda: nodes.status("n1").ballot.incarnation > 9)
        await nodes.wait_serving()
        await nodes.wait_in_step()


async def test_errors_are_ours(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 2) as nodes:
        await make_stream(nodes)
        await nodes.crash("n2")
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"x", timeout_s=0.5)
