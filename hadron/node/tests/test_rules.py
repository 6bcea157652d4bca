"""Members of different versions: nothing is logged that one of them does not know (PROTOCOL A5)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from trio.testing import MockClock

from hadron.model.errors import OldMemberError, VersionError
from hadron.model.ids import EMPTY_LOG
from hadron.node.tests.support import make_stream, send
from hadron.partition.controller import Controller
from hadron.replication.membership import common_apply_version
from hadron.replication.tests.support import FIRST, UUID, follower, make_entries, membership
from hadron.state import machine
from hadron.state.features import FEATURES, MACHINE
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command, Context, Feature, StateMachine
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import replication_pb2


class Count(Command, frozen=True, array_like=True, tag=100):
    """What the next version has: a command, and a table."""

    since: ClassVar[int] = MACHINE.version + 1

    name: str
    by: int


def apply_count(context: Context, command: Count) -> int:
    row = context.db.execute(
        "INSERT INTO counter VALUES(?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
        " RETURNING value",
        (command.name, command.by),
    ).fetchone()
    assert row is not None
    return int(row[0])


COUNTERS = Feature(
    name="counters",
    commands={Count: apply_count},
    tables="CREATE TABLE IF NOT EXISTS counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
    " STRICT;",
)
NEXT = StateMachine((*FEATURES, COUNTERS), version=MACHINE.version + 1)


def answered(version: int) -> replication_pb2.HandshakeResponse:
    return replication_pb2.HandshakeResponse(
        identity=replication_pb2.HandshakeRequest(apply_version=version)
    )


def test_a_leader_follows_the_rules_that_all_members_know() -> None:
    own = dataclasses.replace(membership(3), apply_version=3)
    both = {"n2": answered(3), "n3": answered(3)}
    assert common_apply_version(own, 1, both) == 3
    assert common_apply_version(own, 1, {**both, "n3": answered(2)}) == 2
    # Away: it may be older than any that is here.
    assert common_apply_version(own, 1, {**both, "n3": None}) == 1
    assert common_apply_version(own, 2, {"n2": answered(3)}) == 2
    # What was followed once is not taken back.
    assert common_apply_version(own, 3, {**both, "n3": answered(2)}) == 3


async def test_the_first_ballot_follows_the_newest_rules_that_all_know(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        nodes.machines.update(dict.fromkeys(nodes.names, NEXT))
        await nodes.start()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert followed(nodes) == [NEXT.version] * 3


def test_a_replica_that_is_too_old_stops_and_says_what_to_install(tmp_path: Path) -> None:
    with follower(tmp_path) as replica:
        replica.promise(FIRST)
        newer = NEXT.version
        started = BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, newer)
        entries = make_entries(EMPTY_LOG, FIRST, [machine.encode(started)])
        with pytest.raises(VersionError) as caught:
            replica.append(FIRST, entries, committed=1)
        assert str(caught.value) == (
            f"from entry 1 on, the log of local/p0 follows version {newer} of its rules; this "
            f"Hadron knows them up to version {MACHINE.version} (install the version of "
            "Hadron that n1 runs, and start this node again)"
        )


def followed(nodes: Nodes) -> list[int]:
    """The version of the rules that each node follows."""
    versions = []
    for name in nodes.names:
        with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
            versions += [
                row[0] for row in db.execute("SELECT apply_version FROM hadron_apply_rules")
            ]
    return versions


def controller(nodes: Nodes) -> Controller:
    leadership = nodes.node("n1").member._leadership
    assert leadership is not None
    return leadership.controller


async def test_members_are_upgraded_one_by_one(tmp_path: Path, clock: MockClock) -> None:
    """The old one goes on, and so does everything that it knows; what is new comes by itself once
    the last member runs the new version."""
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        nodes.machines.update(n1=NEXT, n2=NEXT)
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["a"])
        with pytest.raises(
            OldMemberError, match=f"follows version {MACHINE.version} of its rules, Count needs"
        ):
            await controller(nodes).execute(Count("c", 3))
        await nodes.wait_in_step()
        assert followed(nodes) == [MACHINE.version] * 3

        await nodes.crash("n3")
        nodes.machines["n3"] = NEXT
        await nodes.start("n3")
        await nodes.wait_for("newer rules", lambda: followed(nodes) == [NEXT.version] * 3)
        assert await controller(nodes).execute(Count("c", 3)) == 3
        await nodes.wait_in_step()


async def test_an_old_member_that_comes_back_says_what_to_install(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        nodes.machines.update(dict.fromkeys(nodes.names, NEXT))
        await nodes.start()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await nodes.crash("n3")
        del nodes.machines["n3"]
        await controller(nodes).execute(Count("c", 1))
        with pytest.raises(VersionError, match="a newer version of Hadron has run here"):
            await nodes.start("n3")
