"""A node hears that its disk is an old copy while it is counted already: in its own ballot, or in
another one's (PROTOCOL B3). Each test holds open a moment that is else as long as a copy takes."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import DeadlineExceededError
from hadron.node.tests.support import fetch, is_member, make_stream, produce
from hadron.node.tests.test_old_copies import have_met, keep_copy, put_back
from hadron.node.tests.test_resync import promoted
from hadron.replication import feed, reaching
from hadron.replication.ballot import Candidate, run_on_writer
from hadron.testing.nodes import running_nodes


class Held:
    """Somebody waits at a place until told to go on."""

    def __init__(self) -> None:
        self.is_armed = False
        self.reached, self.go_on = trio.Event(), trio.Event()

    async def here(self) -> None:
        if self.is_armed:
            self.is_armed = False
            self.reached.set()
            await self.go_on.wait()


def held_in_its_ballot(monkeypatch: pytest.MonkeyPatch) -> Held:
    """A candidate waits once it has made its log equal to the most advanced one."""
    held, reconcile = Held(), Candidate._reconcile

    async def slow(self: Candidate, *args: Any, **others: Any) -> None:
        await reconcile(self, *args, **others)
        await held.here()

    monkeypatch.setattr(Candidate, "_reconcile", slow)
    return held


async def test_a_candidate_that_is_told_in_its_ballot_leads_with_what_others_remember(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X is on n1 and n3; n1's disk goes back to before its start, n2 never knew X. n3 comes while
    n1 has n2's promise already: its ballot would be the one under which X was acknowledged."""
    held = held_in_its_ballot(monkeypatch)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n2")
        await keep_copy(nodes, "n1", tmp_path / "image")
        await nodes.wait_serving()
        await nodes.wait_in_step("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.crash()
        put_back(nodes, "n1", tmp_path / "image")
        held.is_armed = True
        await nodes.start("n1", "n2")
        await held.reached.wait()
        assert is_member(nodes, "n1")
        await nodes.start("n3")
        await nodes.wait_for("told", lambda: not is_member(nodes, "n1"))
        held.go_on.set()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"Y", timeout_s=20)
            assert await fetch(connection) == [b"X", b"Y"]
        assert not nodes.failures


async def test_a_ballot_ends_in_which_one_that_has_promised_is_told(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X is on n1 and n3; n1's disk goes back to before X, n2 never knew it and is promoted. n3
    comes while n2 has n1's promise already: n2 would lead without X, and teach n1 so."""
    held = held_in_its_ballot(monkeypatch)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n2")
        await keep_copy(nodes, "n1", tmp_path / "image")
        await nodes.wait_serving()
        await nodes.wait_in_step("n3")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        await nodes.crash()
        put_back(nodes, "n1", tmp_path / "image")
        promoted(nodes, "n2")
        held.is_armed = True
        await nodes.start("n1", "n2")
        await held.reached.wait()
        assert is_member(nodes, "n1")
        link = nodes.node("n2").member._links.links["n1"]
        promised_on = link.connection
        await nodes.start("n3")
        await nodes.wait_for("told", lambda: not is_member(nodes, "n1"))
        await nodes.wait_for("heard of", lambda: link.connection is not promised_on)
        held.go_on.set()
        await nodes.wait_serving()
        async with nodes.connection("n2") as connection:
            await produce(connection, b"Y", timeout_s=20)
            assert await fetch(connection) == [b"X", b"Y"]
        assert not nodes.failures


async def test_who_promises_a_higher_ballot_while_it_looks_at_logs_does_not_lead_with_its_own(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk counts for that ballot's leader from then on (PROTOCOL B1)."""
    held = held_in_its_ballot(monkeypatch)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash()
        held.is_armed = True
        await nodes.start("n1", "n2", "n3")
        await held.reached.wait()
        member = nodes.node("n1").member
        own = member._store.identity.current
        higher = own.promised._replace(incarnation=own.promised.incarnation + 5)
        await run_on_writer(
            member._store,
            lambda _: member._follower.promise(higher, own.config_digest, own.uuid, found=False),
        )
        held.go_on.set()
        await nodes.wait_serving()
        assert member._leadership is not None
        assert member._leadership.controller.ballot > higher


@pytest.mark.long
async def test_who_has_forgotten_since_its_promise_is_not_counted(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader looks for what they have in common, nothing was appended yet: it has to ask the
    disk again, or it counts it for as long as the ballot is."""
    held, find_common = Held(), feed.find_common

    async def slow(*args: Any, **others: Any) -> Any:
        found = await find_common(*args, **others)
        await held.here()
        return found

    monkeypatch.setattr(reaching, "find_common", slow)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        nodes.network.isolate("n1", "n2")
        await keep_copy(nodes, "n2", tmp_path / "image")
        await nodes.wait_for("seen", lambda: have_met(nodes, "n3", "n2"))
        await nodes.crash("n2")
        put_back(nodes, "n2", tmp_path / "image")
        nodes.network.heal_all()
        nodes.network.isolate("n2", "n3")
        held.is_armed = True
        await nodes.start("n2")
        await held.reached.wait()
        assert is_member(nodes, "n2")
        nodes.network.heal_all()
        await nodes.wait_for("told", lambda: not is_member(nodes, "n2"))
        await nodes.crash("n3")
        held.go_on.set()
        async with nodes.connection("n1") as connection:
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"Y", timeout_s=5)
        assert not is_member(nodes, "n2")
        await nodes.start("n3")
        await nodes.wait_for("taught", lambda: is_member(nodes, "n2"))
