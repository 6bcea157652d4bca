"""A majority that confirms nothing is told, with who is late; nothing else is."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.replication.quorum import Quorum
from hadron.replication.stalls import MajorityStalls


class Leading:
    """n1 of three leads; all count, and are fed."""

    def __init__(self) -> None:
        self.quorum = Quorum("n1", ("n1", "n2", "n3"), started_lsn=1)
        self.quorum.admit("n2")
        self.quorum.admit("n3")
        self.feeds: dict[str, Any] = {"n2": SimpleNamespace(), "n3": SimpleNamespace()}
        self.stalls = MajorityStalls(self.quorum, self.feeds, node="n1")
        for name in self.quorum.members:
            self.quorum.record(name, 1)
        self.stalls.look()

    async def after(self, seconds: int) -> str:
        """What is told after so many looks, a second from each to the next."""
        for _ in range(seconds):
            await trio.sleep(1)
            self.stalls.look()
        return self.stalls.trouble


async def test_who_has_not_confirmed_is_told(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    leading = Leading()
    leading.quorum.record("n1", 5)
    assert await leading.after(3) == ""
    first = (
        "entry 5 has been waiting for a majority's disks for {} s: n2 and n3 have not confirmed it"
    )
    assert await leading.after(1) == first.format(3)
    assert await leading.after(1) == first.format(4)
    del leading.feeds["n3"]
    late = "n2 has not confirmed it, n3 has no connection to this node"
    assert (
        await leading.after(1) == f"entry 5 has been waiting for a majority's disks for 5 s: {late}"
    )
    leading.quorum.record("n2", 5)
    last = f"entry 5 had to wait for a majority's disks for 5 s; meanwhile {late}"
    assert await leading.after(1) == last
    assert await leading.after(9) == last
    assert await leading.after(1) == ""
    assert caplog.messages == [first.format(3), "a majority confirms entries in time again"]


async def test_who_does_not_count_yet_is_told(autojump_clock: MockClock) -> None:
    leading = Leading()
    leading.quorum.demote("n2")
    del leading.feeds["n3"]
    leading.quorum.record("n1", 5)
    assert (await leading.after(4)).endswith(
        "n2 has to catch up before it counts, n3 has no connection to this node"
    )


async def test_entries_that_go_on_are_no_trouble(autojump_clock: MockClock) -> None:
    """Each of them is new, and waits for as long as a slow disk takes."""
    leading = Leading()
    for lsn in range(2, 40):
        leading.quorum.record("n1", lsn)
        assert await leading.after(1) == ""
        leading.quorum.record("n2", lsn - 1)


async def test_the_leader_s_own_disk_is_not_the_others_fault(autojump_clock: MockClock) -> None:
    leading = Leading()
    leading.quorum.record("n2", 5)
    leading.quorum.record("n3", 5)
    assert await leading.after(20) == ""


async def test_a_process_that_stood_still_has_not_heard_them(autojump_clock: MockClock) -> None:
    leading = Leading()
    leading.quorum.record("n1", 5)
    assert await leading.after(1) == ""
    await trio.sleep(60)
    assert await leading.after(1) == ""
    leading.quorum.record("n2", 5)
    assert await leading.after(20) == ""
