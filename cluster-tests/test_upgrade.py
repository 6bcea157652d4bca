"""A rolling upgrade to a version that has one more command, and one that went too fast."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from load import under_load
from report import Row

from hadron.node.supervision.processes import NODE_PROGRAM, last_words
from hadron.node.tests.toy import make_next_version, next_machine
from hadron.testing.cluster import FaultyCluster

_PATIENCE_S = 30.0


class _Upgrade:
    """Nodes of two versions under one load, and the command that only the next one has."""

    def __init__(self, cluster: FaultyCluster, tree: Path) -> None:
        self._cluster = cluster
        self._hadron = (sys.executable, str(make_next_version(tree)))
        self.machine = next_machine(tree)

    def use(self, *, newer: bool) -> None:
        """Which version nodes are, from their next start on."""
        self._cluster.program = (*self._hadron, "node") if newer else NODE_PROGRAM

    async def count(self, add: int) -> str:
        """What `hadron counter hits --add N` of the next version says: its value, or an error."""
        given = ("--server", self._cluster.url, "counter", "hits", "--add", str(add))
        return await trio.to_thread.run_sync(_said, (*self._hadron, *given))

    async def wait_count(self, add: int) -> str:
        """The same, once the rules are those of the next version."""
        said = ""
        with trio.move_on_after(_PATIENCE_S):
            while not (said := await self.count(add)).isdigit():  # noqa: ASYNC110 - processes
                await trio.sleep(0.1)
        assert said.isdigit(), said
        return said


def _said(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout if done.returncode == 0 else done.stderr).strip()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_one_node_after_the_other_becomes_a_newer_version(
    cluster: FaultyCluster, row: Row, tmp_path: Path
) -> None:
    upgrade = _Upgrade(cluster, tmp_path / "next")
    async with under_load(cluster, row, machine=upgrade.machine) as load:
        upgrade.use(newer=True)
        await load.stop("n3")
        await load.start("n3")
        await load.progress()
        assert "is not served here" in await upgrade.count(3), "n1 leads, of the version before"
        await load.stop("n1")
        await load.start("n1")
        await load.progress()
        # The leader knows the command, n2 would not: nothing that it cannot apply gets to it.
        assert "still follows version 1 of its rules" in await upgrade.count(3)
        # In between it may be killed and go on with either version.
        load.kill("n3")
        upgrade.use(newer=False)
        await load.start("n3")
        await load.progress()
        upgrade.use(newer=True)
        await load.stop("n3")
        await load.start("n3")
        await load.stop("n2")
        await load.start("n2")
        await load.progress()
        assert await upgrade.wait_count(3) == "3"
        # Nobody goes back: the log has what the version before does not know.
        await load.stop("n2")
        upgrade.use(newer=False)
        cluster.spawn("n2")
        await _wait_ended(cluster, "n2")
        error, hint = last_words(cluster.log("n2"))
        assert "follows version 2 of its rules; this Hadron knows them up to version 1" in error
        assert "a newer version of Hadron has run here: install that one again" in hint
        upgrade.use(newer=True)
        await load.start("n2")
        load.kill_all()
        await load.start(*cluster.names)
        await load.progress()
        assert await upgrade.wait_count(5) == "8"


async def _wait_ended(cluster: FaultyCluster, name: str) -> None:
    with trio.fail_after(_PATIENCE_S):
        while cluster.running(name):  # noqa: ASYNC110 - a process
            await trio.sleep(0.05)
