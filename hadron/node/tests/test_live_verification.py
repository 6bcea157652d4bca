"""Running nodes verify themselves, and what they say is compared."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import CorruptionError
from hadron.node.live_verification import verify_live
from hadron.node.tests.test_repair import DAMAGES, VALUES, damage_live, loaded, problems
from hadron.node.verified import Verified
from hadron.server import integrity
from hadron.state.features import MACHINE
from hadron.storage import generations
from hadron.storage.report import Report
from hadron.wire.messages import integrity_pb2, method


async def verify_while_it_stalls(client: Client) -> Verified:
    """Again while the tests' clock, which jumps, gives up on disks that a busy machine is slow
    with."""
    while True:
        verified = await verify_live(client)
        problems = [each for tables in verified.tables for each in tables.problems]
        if not any(each.startswith("not compared: no majority took") for each in problems):
            return verified


async def test_a_sound_replica_set(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        said: list[tuple[str, str]] = []
        verified = await verify_live(client, lambda name, text: said.append((name, text)))
        assert verified.ok, verified
        assert [file.name for file in verified.files] == list(nodes.names)
        (tables,) = verified.tables
        assert tables.members == ["n2", "n3"]
        assert tables.is_complete
        assert tables.rows > len(VALUES)
        (agreement,) = verified.agreements
        # The digests of the comparison are entries as well.
        assert agreement.lsn >= 22 + len(MACHINE.table_names)
        for file in verified.files:
            assert (file.report.first_lsn, file.report.last_lsn) == (1, agreement.lsn)
            assert file.report.chain == agreement.chain
            assert file.report.batches == len(VALUES)
        assert {name for name, _ in said} == set(nodes.names)


@pytest.mark.parametrize("kind", ["a body", "a command", "a lost entry"])
@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_damage_is_told_once_and_repaired(
    tmp_path: Path, clock: MockClock, name: str, kind: str
) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        damage_live(nodes, name, DAMAGES[kind])
        verified = await verify_live(client)
        assert not verified.ok
        wrong = [file for file in verified.files if not file.report.ok]
        assert [file.name for file in wrong] == [name]
        assert any(each.lsn == 9 for each in wrong[0].report.problems)
        assert re.fullmatch(
            r"(is being repaired|has mended its file in \d+ \w+) from another member",
            wrong[0].remedy,
        )
        await nodes.wait_for("repaired", lambda: nodes.node(name).member._repairer.trouble == "")
        assert problems(nodes, name) == []
        assert (await verify_while_it_stalls(client)).ok


async def test_tables_that_differ_are_named_and_replaced(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        damage_live(nodes, "n3", "UPDATE hadron_stream_batch SET append_ms = append_ms + 1")
        verified = await verify_live(client)
        (tables,) = verified.tables
        assert tables.members == ["n2"]
        assert tables.problems == ["n3's tables differ from the leader's; a snapshot replaces them"]
        await nodes.wait_for("replaced", lambda: generations.current_number(nodes.data("n3")) == 1)
        await nodes.wait_in_step()
        assert (await verify_live(client)).ok


async def test_what_was_found_beside_a_damaged_entry_is_in_status_until_it_is_mended(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path, scrub_interval_s=3600.0) as nodes, nodes.client() as client:
        damage_live(nodes, "n2", DAMAGES["a body"])
        damage_live(nodes, "n2", "DELETE FROM hadron_stream_batch WHERE base_offset = 15")
        async with nodes.connection("n2"):
            report = await nodes.node("n2").member._scrubber.check(bytes_per_s=1 << 30)
        assert [each.table for each in report.problems if not each.lsn]
        # The entry is repaired; nobody has doubted the tables yet, and that is no secret.
        while nodes.node("n2").member._repairer.trouble:
            assert nodes.status("n2").trouble
            await trio.sleep(0.01)
        assert nodes.status("n2").trouble.startswith(
            "found beside damaged entries, and looked at again after them: "
        )
        await nodes.wait_for("replaced", lambda: generations.current_number(nodes.data("n2")) == 1)
        await nodes.wait_for("no trouble", lambda: nodes.status("n2").trouble == "")
        await nodes.wait_in_step()
        assert (await verify_live(client)).ok


async def test_tables_are_judged_once_what_was_found_beside_them_later_is_mended_too(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another entry is damaged as the pass begins that was to judge them."""
    async with loaded(tmp_path, scrub_interval_s=3600.0) as nodes:
        scrubber = nodes.node("n2").member._scrubber
        check = scrubber.check

        async def spoiled(**given: Any) -> Report:
            if scrubber.passes == 1:
                damage_live(nodes, "n2", DAMAGES["a command"])
            return await check(**given)

        monkeypatch.setattr(scrubber, "check", spoiled)
        damage_live(nodes, "n2", DAMAGES["a body"])
        damage_live(nodes, "n2", "DELETE FROM hadron_stream_batch WHERE base_offset = 15")
        scrubber.hurry(CorruptionError("a page does not match its checksum"))
        await nodes.wait_for("replaced", lambda: generations.current_number(nodes.data("n2")) == 1)
        assert scrubber.passes == 3


async def test_a_suspicion_is_in_status_while_it_is_looked_into(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path, scrub_interval_s=3600.0) as nodes:
        scrubber = nodes.node("n2").member._scrubber
        damage_live(nodes, "n2", DAMAGES["a body"])
        scrubber.hurry(CorruptionError("a page does not match its checksum"))
        assert nodes.status("n2").trouble == (
            "looking for what is damaged: a page does not match its checksum"
        )
        await nodes.wait_for("found", lambda: scrubber.passes == 1)
        await nodes.wait_for("mended", lambda: nodes.status("n2").trouble == "")


async def test_a_node_that_is_away_is_a_problem(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        await nodes.crash("n3")
        verified = await verify_live(client)
        away = verified.files[2]
        assert away.name == "n3"
        assert "n3 does not answer" in away.report.problems[0].text
        assert verified.tables[0].problems == ["n3 is away"]
        assert verified.problem_count == 2
        # Those who answer are compared all the same.
        (agreement,) = verified.agreements
        assert (agreement.names, agreement.problem) == (["n1", "n2"], "")
        assert agreement.lsn >= 22


@pytest.mark.long
async def test_without_a_majority_nothing_is_logged_and_that_is_told(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path, 4) as nodes, nodes.client() as client:
        await nodes.crash("n3", "n4")
        missing = "no majority: 2 of 4 members answer"
        await nodes.wait_for(
            "told", lambda: nodes.status("n1").trouble == f"{missing}, writes wait"
        )
        assert nodes.status("n1").state == "serving"
        last = nodes.status("n1").last_lsn
        for _ in range(2):
            with trio.fail_after(20):
                verified = await verify_live(client)
            assert not verified.ok
            assert verified.tables[0].problems == [f"not compared: {missing}"]
            reports = {file.name: file.report for file in verified.files}
            assert reports["n1"].entries == reports["n2"].entries == last
            assert verified.agreements[0].names == ["n1", "n2"]
        assert nodes.status("n1").last_lsn == last
        await nodes.start("n3", "n4")
        # A majority is well without the last one of them.
        await nodes.wait_for(
            "all are back",
            lambda: all(peer.state == "in sync" for peer in nodes.status("n1").peers),
        )
        verified = await verify_while_it_stalls(client)
        assert verified.ok, verified


@pytest.mark.long
async def test_a_majority_that_is_lost_meanwhile_ends_the_comparison(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        last = nodes.status("n1").last_lsn

        async def confirmed_just_before() -> None:
            nodes.network.isolate("n1", "n2", "n3")

        leadership = nodes.node("n1").member._leadership
        assert leadership is not None
        monkeypatch.setattr(leadership.controller, "confirm_leadership", confirmed_just_before)
        with trio.fail_after(60):
            verified = await verify_live(client)
        (problem,) = verified.tables[0].problems
        assert problem.startswith("not compared: no majority")
        # The one that nobody has taken is followed by no other.
        assert nodes.status("n1").last_lsn == last + 1


async def test_a_node_that_is_rebuilt_says_so(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        damage_live(nodes, "n2", "UPDATE hadron_stream_partition SET bytes = bytes + 1")
        # Alone: digests would have its tables replaced before it looks.
        async with (
            nodes.connection("n2") as connection,
            connection.open_stream(method("Verify"), integrity_pb2.VerifyRequest()) as answers,
        ):
            reports = [answer.report async for answer, _ in answers if answer.HasField("report")]
        assert "it says" in reports[0].problems[0].text
        assert reports[0].remedy == "is being rebuilt from another member"
        await nodes.wait_for("replaced", lambda: generations.current_number(nodes.data("n2")) == 1)
        await nodes.wait_in_step()
        assert (await verify_live(client)).ok


async def test_large_tables_are_compared_in_parts(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "_MAX_DIGESTS", 3)
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        said: list[tuple[str, str]] = []
        verified = await verify_live(client, lambda name, text: said.append((name, text)))
        assert verified.ok
        assert not verified.tables[0].is_complete
        assert sum("rows compared" in text for _, text in said) == 4
