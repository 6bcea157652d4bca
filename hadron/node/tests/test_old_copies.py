"""Disks that went back in time, and messages of a node's earlier start (PROTOCOL B3)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import (
    ConnectionLostError,
    CorruptionError,
    DeadlineExceededError,
    FencedError,
)
from hadron.model.ids import LogPosition
from hadron.node.backup import backup_directory
from hadron.node.recovery import recover
from hadron.node.tests.support import (
    chains,
    fetch,
    is_member,
    make_stream,
    produce,
    replace_disk,
    wait_for_lost_memory,
)
from hadron.node.verification import verify_paths
from hadron.node.world import SystemDisk
from hadron.replication.membership import identity_message
from hadron.replication.starts import PeerStarts
from hadron.storage.store import Store
from hadron.testing import nodes as testing_nodes
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import method, replication_pb2
from hadron.wire.system import SystemClock

HANDSHAKE, PROMISE = method("Handshake"), method("Promise")


async def keep_copy(nodes: Nodes, name: str, to: Path) -> None:
    """An image of a stopped node's disk."""
    await nodes.crash(name)
    shutil.copytree(nodes.data(name), to)
    await nodes.start(name)


def put_back(nodes: Nodes, name: str, copy: Path) -> None:
    nodes.wipe(name)
    shutil.copytree(copy, nodes.data(name))


def have_met(nodes: Nodes, name: str, peer: str) -> bool:
    """Whether `name` has shaken hands with the peer's present start."""
    return any(each.name == peer and each.state == "connected" for each in nodes.status(name).peers)


async def test_an_old_copy_is_no_voice_for_what_it_has_forgotten(
    tmp_path: Path, clock: MockClock
) -> None:
    """X on n1 and n2, n3 lags; n2's disk goes back to before X: {n1 wiped, n2, n3} has two that
    "remember", and neither knows X. n3 has seen n2's later start."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await keep_copy(nodes, "n2", tmp_path / "image")
        await nodes.wait_in_step()
        await nodes.wait_for("seen", lambda: have_met(nodes, "n3", "n2"))
        nodes.network.isolate("n3", "n1", "n2")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step("n2")
        await nodes.crash()
        put_back(nodes, "n2", tmp_path / "image")
        nodes.network.heal_all()
        await nodes.start("n2", "n3")
        await nodes.wait_for("noticed", lambda: not is_member(nodes, "n2"))
        told = (
            "this node's data directory is an old copy: n3 has seen a later start of it; it counts "
            "in no majority until it has been taught"
        )
        # Its disk knows a moment before it does.
        await nodes.wait_for("told", lambda: told in nodes.status("n2").trouble)
        nodes.wipe("n1")
        await nodes.start("n1")
        await wait_for_lost_memory(nodes)
        assert nodes.status("n1").state == "waiting for a majority"


async def test_an_old_copy_is_taught_and_counts_again(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await keep_copy(nodes, "n2", tmp_path / "image")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step()
        await nodes.crash("n2")
        put_back(nodes, "n2", tmp_path / "image")
        caplog.clear()
        await nodes.start("n2")
        await nodes.wait_for(
            "noticed", lambda: "this node's data directory is an old copy" in caplog.text
        )
        await nodes.wait_in_step()
        # Each of the others may say so, one after it was taught: then it is taught once more.
        await nodes.wait_for(
            "a member", lambda: is_member(nodes, "n2") and not nodes.status("n2").trouble
        )
        await nodes.crash("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"counted on n2", timeout_s=20)
        # It is not taken for an old copy again.
        caplog.clear()
        await nodes.restart("n1", "n2")
        await nodes.wait_serving()
        await nodes.wait_in_step("n2")
        assert "old copy" not in caplog.text
        assert chains(nodes, "n1") == chains(nodes, "n2")


@pytest.mark.parametrize("is_away", [True, False])
async def test_an_old_copy_that_was_taught_is_believed_by_who_comes_later(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_away: bool,
) -> None:
    """n1 teaches n2 while n3 is cut off from n2; or while n3's word, that n2 is an old copy, is on
    its way. With n3 gone, n2 must count."""
    note, may_tell = PeerStarts.note, trio.Event()

    async def note_late(self: PeerStarts, peer: replication_pb2.HandshakeRequest) -> bool:
        is_old_copy = await note(self, peer)
        if is_old_copy and self._store is nodes.node("n3").member._store:
            await may_tell.wait()
        return is_old_copy

    def own_start() -> bytes:
        return nodes.node("n2").member._links._own_identity().start

    def seen(name: str) -> bytes:
        return nodes.node(name).member._store.identity.peer_starts["n2"][-1].start

    monkeypatch.setattr(PeerStarts, "note", note_late)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await keep_copy(nodes, "n2", tmp_path / "image")
        await nodes.wait_for("seen by n1", lambda: seen("n1") == own_start())
        await nodes.wait_for("seen by n3", lambda: seen("n3") == own_start())
        await nodes.crash("n2")
        put_back(nodes, "n2", tmp_path / "image")
        if is_away:
            nodes.network.isolate("n3", "n2")
        await nodes.start("n2")
        await nodes.wait_for(
            "taught by n1", lambda: seen("n1") == own_start() and is_member(nodes, "n2")
        )
        caplog.clear()
        nodes.network.heal_all()
        may_tell.set()
        await nodes.wait_for(
            "met", lambda: have_met(nodes, "n3", "n2") and have_met(nodes, "n2", "n3")
        )
        assert is_member(nodes, "n2")
        assert "old copy" not in caplog.text
        await nodes.crash("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"counted on n2")


async def test_a_disk_that_was_exchanged_is_believed_by_who_was_away(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """n2 loses its disk and is taught while n3 is cut off: to n3 it begins to count again at 1."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        for _ in range(3):
            await nodes.restart("n2")
        await nodes.wait_in_step()
        nodes.network.isolate("n3", "n2")
        await replace_disk(nodes, "n2")
        caplog.clear()
        nodes.network.heal_all()
        await nodes.wait_for(
            "met", lambda: have_met(nodes, "n3", "n2") and have_met(nodes, "n2", "n3")
        )
        assert is_member(nodes, "n2")
        assert "old copy" not in caplog.text


async def test_an_old_copy_of_the_leader_does_not_lead_alone_with_the_one_that_lags(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await keep_copy(nodes, "n1", tmp_path / "image")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await nodes.wait_for("seen", lambda: have_met(nodes, "n3", "n1"))
        nodes.network.isolate("n3", "n1", "n2")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.crash()
        put_back(nodes, "n1", tmp_path / "image")
        nodes.network.heal_all()
        await nodes.start("n1", "n3")
        await wait_for_lost_memory(nodes)
        await nodes.start("n2")
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]


async def test_a_message_of_an_earlier_start_is_dropped(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A promise that n1's earlier start asked for arrives after its later one has led."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        member = nodes.node("n1").member
        own = member.identity
        earlier = identity_message(
            nodes.node("n1").host.membership,
            uuid=own.uuid,
            boot=own.boot,
            start=member._links._own_identity().start,
            is_member=True,
            disk=own.disk,
        )
        async with nodes.connection("n2", host="n1") as delayed:
            answer, _ = await delayed.request(HANDSHAKE, earlier)
            assert not answer.is_old_copy
            await nodes.restart("n1")
            await nodes.wait_serving()
            promised = nodes.status("n2").ballot
            promised.incarnation += 7
            with pytest.raises(ConnectionLostError):
                await delayed.request(
                    PROMISE,
                    replication_pb2.PromiseRequest(
                        ballot=promised,
                        config_digest=nodes.config.digest,
                        leader="n1",
                        replica_set_uuid=earlier.replica_set_uuid,
                    ),
                )
        assert "n1 was started again since start" in caplog.text
        assert nodes.status("n2").ballot.incarnation == promised.incarnation - 7
        # Nor may it begin again: the handshake itself is too late.
        async with nodes.connection("n2", host="n1") as late:
            answer, _ = await late.request(HANDSHAKE, earlier)
            assert answer.is_old_copy
        assert nodes.status("n1").state == "serving"


async def test_acks_of_the_ballot_before_count_for_nothing(
    tmp_path: Path, clock: MockClock
) -> None:
    """The fenced incarnation's feed answers late: the new ballot's watermark does not move."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        old = nodes.node("n1").member._leadership
        assert old is not None
        nodes.network.isolate("n2", "n1", "n3")
        nodes.network.isolate("n3", "n1", "n2")
        async with nodes.connection("n1") as connection:
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"unacked", timeout_s=1)
        end = nodes.status("n1").last_lsn
        before = nodes.status("n1").committed_lsn
        assert end > before
        old.controller.stop(FencedError("another ballot is needed"))
        for name in ("n2", "n3"):
            old.controller.feeding.peer_persisted(name, end, end)
        assert old.controller.committed_lsn == before
        assert nodes.status("n1").committed_lsn == before


def keep_database(nodes: Nodes, name: str, to: Path) -> None:
    """Only `hadron.db`, of a stopped node."""
    shutil.copyfile(nodes.data(name) / "hadron.db", to)


async def test_a_database_that_went_back_in_time_alone(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """X on n1 and n2, n3 lags. All are stopped in order, n2 gets an earlier `hadron.db` and keeps
    its `node.db`, n1 stays away: n2 and n3 must not go on without X."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n2")
        keep_database(nodes, "n2", tmp_path / "earlier.db")
        await nodes.start("n2")
        await nodes.wait_in_step()
        await nodes.crash("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.wait_in_step("n2")
        await nodes.crash()
        shutil.copyfile(tmp_path / "earlier.db", nodes.data("n2") / "hadron.db")
        (report,) = verify_paths([nodes.data("n2")]).files
        assert any("older copy" in each.text for each in report.report.problems)
        await nodes.start("n2", "n3")
        assert not is_member(nodes, "n2")
        assert "is an older copy" in nodes.status("n2").trouble
        assert "counts in no majority" in nodes.status("n2").trouble
        await nodes.start("n1")
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]
        await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))
        await nodes.wait_in_step()
        assert nodes.status("n2").trouble == ""
        # It is not taken for an older copy again.
        caplog.clear()
        await nodes.restart("n2")
        await nodes.wait_in_step()
        assert "older copy" not in caplog.text
        assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")


def marks_of(store: Store) -> list[int]:
    """Of the entries that are marked in `node.db` from now on, as they are."""
    marked: list[int] = []
    note_mark = store.identity.note_mark

    def note(mark: LogPosition) -> None:
        note_mark(mark)
        marked.append(mark.lsn)

    store.identity.note_mark = note  # type: ignore[method-assign]
    return marked


@pytest.mark.long
async def test_a_database_of_the_same_run_is_older_than_its_mark(
    tmp_path: Path, clock: MockClock
) -> None:
    """The process is killed, and what stands there then is from before a checkpoint."""
    settings = replace(testing_nodes._QUICK, checkpoint_bytes=64 << 10)
    async with running_nodes(tmp_path, 3, settings=settings) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        earlier, killed = tmp_path / "earlier", tmp_path / "killed"
        ignored = shutil.ignore_patterns("*-shm")
        shutil.copytree(nodes.data("n2"), earlier, ignore=ignored)
        store = nodes.node("n2").member._store
        before = store.identity.current.boot
        marked = marks_of(store)
        async with nodes.connection("n1") as connection:
            while not marked:
                await produce(connection, bytes(5_000))
                await trio.sleep(0.5)
        shutil.copytree(nodes.data("n2"), killed, ignore=ignored)
        await nodes.crash("n2")
        nodes.wipe("n2")
        shutil.copytree(killed, nodes.data("n2"))
        for ending in ("", "-wal"):
            shutil.copyfile(earlier / f"hadron.db{ending}", nodes.data("n2") / f"hadron.db{ending}")
        nodes.network.isolate("n2", "n1", "n3")
        await nodes.start("n2")
        assert nodes.node("n2").member._store.identity.current.boot == before + 1
        assert not is_member(nodes, "n2")
        nodes.network.heal_all()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))
        await nodes.wait_in_step()


@pytest.mark.long
async def test_a_leader_writes_down_how_far_its_log_is_committed(
    tmp_path: Path, clock: MockClock
) -> None:
    """Also while a member is away, and it trims nothing: what stands in its database is from the
    beginning of its ballot."""
    settings = replace(testing_nodes._QUICK, checkpoint_bytes=64 << 10)
    async with running_nodes(tmp_path, 3, settings=settings) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        store = nodes.node("n1").member._store
        began = store.log.head.lsn
        marked = marks_of(store)
        async with nodes.connection("n1") as connection:
            while len(marked) < 3:
                await produce(connection, bytes(5_000))
                await trio.sleep(0.5)
        assert began < marked[0] < marked[1] < marked[2] <= store.log.head.lsn


async def test_a_node_alone_refuses_an_older_database(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        await nodes.wait_serving()
        await nodes.crash()
        keep_database(nodes, "n1", tmp_path / "earlier.db")
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.crash()
        now = tmp_path / "now.db"
        keep_database(nodes, "n1", now)
        shutil.copyfile(tmp_path / "earlier.db", nodes.data("n1") / "hadron.db")
        with pytest.raises(CorruptionError, match=r"older copy.* knows of entry \d+") as caught:
            await nodes.start()
        assert "hadron recover" in caught.value.hint
        with pytest.raises(CorruptionError, match=r"may lack what it acknowledged.* older copy"):
            backup_directory(nodes.data("n1"), tmp_path / "b", SystemDisk(), SystemClock())
        # Nothing has been done to what is there: the right file is as good as before.
        shutil.copyfile(now, nodes.data("n1") / "hadron.db")
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]
        await nodes.crash()
        shutil.copyfile(tmp_path / "earlier.db", nodes.data("n1") / "hadron.db")
        recovered = recover(nodes.config, "n1", SystemDisk())
        assert not recovered.was_whole
        await nodes.start()
        await nodes.wait_serving()


async def test_a_leader_whose_disk_was_seen_elsewhere_meanwhile_gives_way_and_comes_back(
    tmp_path: Path, clock: MockClock
) -> None:
    """Somebody starts a copy of n1's disk beside it for a moment: both replicas have met a later
    start of that disk. n1 hears of it when it compares clocks with them, on links that stand."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        clone = nodes.node("n1").member._links._own_identity()
        clone.boot += 1
        clone.start = b"clone"
        for name in ("n2", "n3"):
            async with nodes.connection(name, host="n1") as connection:
                answer, _ = await connection.request(HANDSHAKE, clone)
                assert not answer.is_old_copy
        await nodes.wait_for("taught", lambda: nodes.status("n1").ballot.incarnation > 1)
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"goes on", timeout_s=60)


async def test_a_disk_that_has_forgotten_since_it_was_met_does_not_count(
    tmp_path: Path, clock: MockClock
) -> None:
    """n1 has shaken hands with n2, which hears afterwards, from n3, that its disk is an old copy.
    It is fed anew, and says so with its promise. n3 is cut off: what n2 holds is one copy too few,
    until n3 has said whom it follows."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        nodes.network.isolate("n3", "n1", "n2")
        leadership = nodes.node("n1").member._leadership
        assert leadership is not None
        quorum = leadership.controller.quorum
        feed = leadership.controller.feed_of("n2")
        await nodes.node("n2").member._forget("n3")
        await nodes.wait_for(
            "fed anew", lambda: leadership.controller.feed_of("n2") not in (None, feed)
        )
        assert not quorum.is_voter("n2")
        async with nodes.connection("n1") as connection:
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"on n1 and on a disk that has forgotten", timeout_s=5)
            nodes.network.heal_all()
            await produce(connection, b"on disks that count", timeout_s=60)
        await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))


async def test_a_member_that_was_taught_on_its_link_counts_for_the_next_ballot(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2's new disk is taught, and nobody shakes hands after that; n3 is away when n1 needs another
    ballot, for which n2 is one of two who remember."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await replace_disk(nodes, "n2")
        leader = nodes.node("n1").member
        leadership = leader._leadership
        assert leadership is not None
        quorum = leadership.controller.quorum
        await nodes.wait_for("counted", lambda: quorum.is_voter("n2"))
        await nodes.crash("n3")
        before = nodes.status("n1").ballot.incarnation
        leader._stop_leading(FencedError("another ballot is wanted"))
        await nodes.wait_for("another", lambda: nodes.status("n1").ballot.incarnation > before)
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"on n1 and n2", timeout_s=20)


@pytest.mark.parametrize(
    "part", [{"disk": b"d" * 17}, {"start": b"s" * 17}, {"node": "n" * 300}, {"node": "n 4"}]
)
async def test_a_handshake_that_is_too_large_is_refused(
    tmp_path: Path, clock: MockClock, part: dict[str, bytes | str]
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        said = stranger(nodes, "n4")
        for name, value in part.items():
            setattr(said, name, value)
        said.members.add(name=said.node, role="replica")
        await greet(nodes, said)
        assert set(nodes.node("n2").member._store.identity.peer_starts) == {"n1", "n3"}


async def test_only_so_many_strangers_are_remembered(tmp_path: Path, clock: MockClock) -> None:
    """A later configuration may have members that this one has not, and anybody may say so."""
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        for number in range(70):
            await greet(nodes, stranger(nodes, f"m{number}"))
        known = nodes.node("n2").member._store.identity.peer_starts
        assert len(known) == 64
        # Members have their place, and go on.
        await nodes.restart("n3")
        await nodes.wait_for("met again", lambda: have_met(nodes, "n2", "n3"))
        await nodes.wait_in_step()


def stranger(nodes: Nodes, name: str) -> replication_pb2.HandshakeRequest:
    """A node of a later configuration, as far as it says."""
    said = identity_message(
        nodes.node("n1").host.membership,
        uuid=nodes.node("n1").member.identity.uuid,
        boot=1,
        start=b"start",
        is_member=False,
        disk=name.encode(),
    )
    said.epoch += 1
    said.node = name
    said.members.add(name=name, role="replica")
    return said


async def greet(nodes: Nodes, said: replication_pb2.HandshakeRequest) -> None:
    async with nodes.connection("n2", host="n1") as connection:
        await connection.request(HANDSHAKE, said)
