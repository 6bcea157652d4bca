"""What is printed of a stream that is followed, and from where on."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import anyio

from hadron.cli.following import Request, _follow
from hadron.cli.positions import Position
from hadron.client.tests.support import both, served, until


def request(start: Position) -> Request:
    return Request(
        stream="s",
        group=None,
        start=start,
        partitions=(),
        ack="auto",
        limit=None,
        exit_at_end=False,
        form=None,
        output=None,
    )


@both
async def test_from_a_time_yet_to_come_nothing_earlier_is_printed() -> None:
    printed: list[Any] = []

    async def print_apart(records: Any) -> None:
        printed.extend(record.value for record in records)

    printer: Any = SimpleNamespace(done=False, print_apart=print_apart)
    begin = Position("time", time.time_ns() // 1_000_000 + 1_800_000)
    async with served() as (node, client), anyio.create_task_group() as tasks:
        tasks.start_soon(_follow, client, request(begin), printer)
        await until(lambda: node.fetches == 1)
        await client.send("s", "early")
        await until(lambda: node.fetches == 2)
        node.partition("s", "local/p0").ahead_ms = 3_600_000
        await client.send("s", "late")
        await until(lambda: bool(printed))
        tasks.cancel_scope.cancel()
    assert printed == ["late"]


def test_any_time_may_be_read_from() -> None:
    assert Position("time", 1_500).moment.isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert Position("time", 1 << 62).moment.year == 9999
