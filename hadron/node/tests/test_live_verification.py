"""Running nodes verify themselves, and what they say is compared."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.node.live_verification import verify_live
from hadron.node.tests.test_repair import DAMAGES, VALUES, damage_live, loaded, problems
from hadron.partition import digests
from hadron.server import integrity
from hadron.state import rows
from hadron.storage import generations


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
        assert agreement.lsn >= 22 + len(rows.table_names())
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
        await nodes.wait_for("repaired", lambda: nodes.node(name)._repairer.trouble == "")
        assert problems(nodes, name) == []
        assert (await verify_live(client)).ok


async def test_tables_that_differ_are_named_and_replaced(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        damage_live(nodes, "n3", "UPDATE stream_batch SET append_ms = append_ms + 1")
        verified = await verify_live(client)
        (tables,) = verified.tables
        assert tables.members == ["n2"]
        assert tables.problems == [
            "n3's tables differ from the leader's; a snapshot replaces them"
        ]
        await nodes.wait_for(
            "replaced", lambda: generations.current_number(nodes.data("n3")) == 1
        )
        await nodes.wait_in_step()
        assert (await verify_live(client)).ok


async def test_a_node_that_is_away_is_a_problem(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        await nodes.crash("n3")
        verified = await verify_live(client)
        away = verified.files[2]
        assert away.name == "n3"
        assert "n3 does not answer" in away.report.problems[0].text
        assert verified.tables[0].problems == ["n3 is away"]
        assert "n3 cannot be compared" in verified.agreements[0].problem
        assert verified.problem_count == 3


async def test_large_tables_are_compared_in_parts(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "_MAX_DIGESTS", 3)
    monkeypatch.setattr(digests, "_TOLD_EVERY", 1)
    async with loaded(tmp_path) as nodes, nodes.client() as client:
        said: list[tuple[str, str]] = []
        verified = await verify_live(client, lambda name, text: said.append((name, text)))
        assert verified.ok
        assert not verified.tables[0].is_complete
        assert sum("rows compared" in text for _, text in said) == 4
