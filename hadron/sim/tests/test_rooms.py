"""Worlds of one room: nothing is wrong in them, a seed is one world, and a bug is told."""

from __future__ import annotations

import apsw
import pytest

from hadron.fakes.tables import Replicated
from hadron.sim.command.main import run_default
from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Edit
from hadron.sim.rooms import ROOMS


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ROOMS))
def test_the_same_seed_is_the_same_world_and_nothing_is_wrong(name: str) -> None:
    first, again, other = (ROOMS[name](seed) for seed in (11, 11, 12))
    assert first.complaints == other.complaints == []
    assert first.steps
    assert first.digest == again.digest != other.digest


@pytest.mark.long
def test_a_seed_plays_them_and_tells_what_they_find() -> None:
    edit = Edit(
        "state.streams.producers:note", "recent[-PRODUCER_WINDOW:]", "recent[1 - PRODUCER_WINDOW:]"
    )
    with patched(edit):
        outcome = run_default(6)
    assert any("room tables: M streams" in each for each in outcome.violations)
    assert outcome.rooms == {name: outcome.rooms[name] for name in ROOMS}


@pytest.mark.long
def test_a_replica_that_parts_from_its_leader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replicated.replica

    def parted(tables: Replicated) -> apsw.Connection:
        db = replica(tables)
        db.execute("UPDATE hadron_stream_partition SET next_offset = next_offset + 1")
        return db

    monkeypatch.setattr(Replicated, "replica", parted)
    told = {each.partition(": ")[0] for each in ROOMS["tables"](11).complaints}
    assert told == {"a replica has what its leader has"}


@pytest.mark.long
def test_what_nobody_is_given_any_more_is_told() -> None:
    settled = "        self._note_settled([(dead.first, dead.last)])\n"
    told: list[str] = []
    with patched(Edit("delivery.machine:Group.put_back", settled, "")):
        for seed in range(20):
            told += ROOMS["groups"](seed).complaints
            if told:
                break
    assert any("it does not heal" in each for each in told), told
