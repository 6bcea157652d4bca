"""Members of different versions: nothing is logged that one of them does not know (PROTOCOL A5)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import OldMemberError, PeerError, VersionError
from hadron.model.ids import EMPTY_LOG
from hadron.model.schema import QueueSpec, SchemaObject
from hadron.node.tests.support import STREAM, make_stream, send
from hadron.replication import membership as membership_room
from hadron.replication import service as service_room
from hadron.replication.membership import common_apply_version, identity_message
from hadron.replication.tests.support import FIRST, UUID, follower, make_entries, membership
from hadron.state import machine
from hadron.state.leadership import LeaderStarted
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import replication_pb2

QUEUE = SchemaObject(kind="Queue", name="q", spec=QueueSpec(replica_set="local/p0"))


def answered(version: int) -> replication_pb2.HandshakeResponse:
    return replication_pb2.HandshakeResponse(
        identity=replication_pb2.HandshakeRequest(apply_version=version)
    )


def test_a_leader_follows_the_rules_that_all_members_know(monkeypatch: pytest.MonkeyPatch) -> None:
    own = membership(3)
    monkeypatch.setattr(membership_room, "APPLY_VERSION", 3)
    both = {"n2": answered(3), "n3": answered(3)}
    assert common_apply_version(own, 1, both) == 3
    assert common_apply_version(own, 1, {**both, "n3": answered(2)}) == 2
    # From before the field existed.
    assert common_apply_version(own, 1, {**both, "n3": answered(0)}) == 1
    # Away: it may be older than any that is here.
    assert common_apply_version(own, 1, {**both, "n3": None}) == 1
    assert common_apply_version(own, 2, {"n2": answered(3)}) == 2
    # What was followed once is not taken back.
    assert common_apply_version(own, 3, {**both, "n3": answered(2)}) == 3


async def test_the_first_ballot_follows_the_newest_rules_that_all_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = machine.APPLY_VERSION + 1
    monkeypatch.setattr(membership_room, "APPLY_VERSION", newest)
    monkeypatch.setattr(machine, "APPLY_VERSION", newest)
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        assert followed(nodes) == [newest] * 3


def test_a_replica_that_is_too_old_stops_and_says_what_to_install(tmp_path: Path) -> None:
    with follower(tmp_path) as replica:
        replica.promise(FIRST)
        newer = machine.APPLY_VERSION + 1
        started = LeaderStarted("n1", UUID, (("n1", "leader"),), b"d" * 16, newer)
        entries = make_entries(EMPTY_LOG, FIRST, [machine.encode(started)])
        with pytest.raises(VersionError) as caught:
            replica.append(FIRST, entries, committed=1)
        assert str(caught.value) == (
            f"from entry 1 on, the log of local/p0 follows version {newer} of its rules; this "
            f"Hadron knows them up to version {machine.APPLY_VERSION} (install the version of "
            "Hadron that n1 runs, and start this node again)"
        )


def followed(nodes: Nodes) -> list[int]:
    """The version of the rules that each node follows."""
    versions = []
    for name in nodes.names:
        with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
            versions += [row[0] for row in db.execute("SELECT apply_version FROM apply_rules")]
    return versions


def let_be_old(monkeypatch: pytest.MonkeyPatch, old: set[str]) -> None:
    """Nodes with these names say that they know the first version only."""

    def identify(member: membership_room.Membership, **known: Any) -> Any:
        message = identity_message(member, **known)
        if member.node in old:
            message.apply_version = 1
        return message

    monkeypatch.setattr(service_room, "identity_message", identify)


async def take_one_and_leave(client: Client, group: str, **options: Any) -> int:
    """Join, and leave with a record that was not acknowledged; returns which attempt it was."""
    async with client.subscribe(STREAM, group=group, start="earliest", **options) as subscription:
        async for delivery in subscription:
            await delivery.nack()
            return delivery.attempt
    raise AssertionError("nothing was delivered")


async def test_members_are_upgraded_one_by_one(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one goes on, and so does everything that it knows; what is new comes by itself once
    the last member runs the new version."""
    old = {"n3"}
    let_be_old(monkeypatch, old)
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await make_stream(nodes)
        await send(client, ["a"])
        # A group whose options an old member would not write down, and one that it knows; of that
        # one's attempts it knows nothing, and nobody is sent away for that.
        with pytest.raises(PeerError, match="CreateGroup needs version 2"):
            await take_one_and_leave(client, "ordered", order="strict")
        assert await take_one_and_leave(client, "plain") == 1
        for refused in (
            client.apply([QUEUE]), client.delete([("Stream", "default", STREAM)],
                                                 allow_destructive=True),
        ):
            with pytest.raises(OldMemberError, match="still follows version 1 of its rules"):
                await refused
        await nodes.wait_in_step()
        assert followed(nodes) == [1, 1, 1]

        await nodes.crash("n3")
        old.clear()
        await nodes.start("n3")
        await nodes.wait_for("newer rules", lambda: followed(nodes) == [2, 2, 2])
        assert (await client.apply([QUEUE])).changes[0].action == "created"
        assert await take_one_and_leave(client, "ordered", order="strict") == 1
        await client.delete([("Stream", "default", STREAM)], allow_destructive=True)
        await nodes.wait_in_step()
