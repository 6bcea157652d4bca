"""The member that stops reading really does: its process stands still, its connection is full."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest

from hadron.bench import deliveries
from hadron.bench.frozen import frozen_member
from hadron.bench.workloads import declare
from hadron.client import Client, connect
from hadron.model.errors import HadronError
from hadron.node.supervision.cluster import LocalCluster

_RECORDS, _SIZE = 100_000, 400
"""More than a connection's window and the kernel's buffers hold."""


def _own_members() -> list[psutil.Process]:
    # Other tests' children may have ended, with nobody having asked for their status yet.
    return [
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE and "hadron.bench.frozen" in each.cmdline()
    ]


async def _is_blocked(client: Client) -> bool:
    (found,) = await client.describe_group("fan", "g")
    return bool(found.members) and found.members[0].is_blocked


async def _check(url: str) -> None:
    async with connect(url) as client:
        await declare(client, "fan")
        await deliveries.fill(client, "fan", _RECORDS, _SIZE, 60)
        async with frozen_member(url, "fan", "g"):
            (process,) = _own_members()
            assert process.status() == psutil.STATUS_STOPPED
            with anyio.fail_after(30):
                while not await _is_blocked(client):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        assert not _own_members()
        with pytest.raises(HadronError, match="did not join group 'g'"):
            async with frozen_member(url, "no-such-stream", "g"):
                raise AssertionError("it joined")


@pytest.mark.long
def test_a_frozen_member_stands_still_until_the_block_ends(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        anyio.run(partial(_check, cluster.url), backend="trio")
