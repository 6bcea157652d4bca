"""Nodes whose clocks differ (PROTOCOL B8)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.model.errors import PeerError
from hadron.node.tests.support import make_stream, produce
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.system import SystemClock


class WrongClock(SystemClock):
    """This machine's clock, set wrong by `off_ms`."""

    off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms


def set_wrong(nodes: Nodes, name: str) -> WrongClock:
    clock = nodes.clocks[name] = WrongClock()
    return clock


def stamps(nodes: Nodes, name: str) -> list[int]:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        return [row[0] for row in database.execute("SELECT now_ms FROM hadron_log ORDER BY lsn")]


@pytest.mark.parametrize(("off_ms", "said"), [(60_000, "ahead of"), (-60_000, "behind")])
async def test_a_leader_with_a_wrong_clock_does_not_lead_until_it_is_set(
    tmp_path: Path, clock: MockClock, off_ms: int, said: str
) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        wrong = set_wrong(nodes, "n1")
        wrong.off_ms = off_ms
        await nodes.start()
        await nodes.wait_for(
            "refusing", lambda: "this node's clock is" in nodes.status("n1").trouble
        )
        assert f"60.0 s {said} its peers'" in nodes.status("n1").trouble
        assert nodes.status("n1").last_lsn == 0
        wrong.off_ms = 0
        await nodes.wait_serving()


async def test_one_replica_with_a_wrong_clock_is_outvoted(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        set_wrong(nodes, "n3").off_ms = 3_600_000
        await nodes.start()
        await nodes.wait_serving()
        await nodes.wait_in_step()


async def test_a_clock_that_jumps_while_it_leads(tmp_path: Path, clock: MockClock) -> None:
    """The leader stops, and until it has noticed its stamps stay within the limit."""
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        wrong = set_wrong(nodes, "n1")
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        logged = False
        while not logged:
            wrong.off_ms = 0
            await nodes.wait_serving()
            before = stamps(nodes, "n1")[-1]
            async with nodes.connection("n1") as connection:
                wrong.off_ms = 3_600_000
                # On a busy machine it may be noticed before anything was stamped.
                with suppress(PeerError):
                    await produce(connection, b"stamped after the jump")
                    logged = True
        after = stamps(nodes, "n1")[-1]
        assert before <= after < before + 600_000
        await nodes.wait_for("deposed", lambda: nodes.status("n1").state == "fenced")
        assert "3600.0 s ahead of its peers'" in nodes.status("n1").trouble
        wrong.off_ms = -4_000
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"stamped by a clock that is behind")
        found = stamps(nodes, "n1")
        assert found == sorted(found)
