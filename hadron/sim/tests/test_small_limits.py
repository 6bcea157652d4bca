"""Small limits reach whoever has the constant, and are gone after the block."""

from __future__ import annotations

import ast
import importlib
import operator
from pathlib import Path
from typing import Any

import pytest

import hadron
from hadron.sim.runs.small_limits import LIMITS, ROOM_LIMITS, drawn, limited

_ROOT = Path(hadron.__file__).parent
_ALL = {**LIMITS, **ROOM_LIMITS}


def _value(holder: str) -> Any:
    module_name, name = holder.split(":")
    module = importlib.import_module(f"hadron.{module_name}")
    if name.endswith("()"):
        return getattr(module, name.removesuffix("()")).__defaults__[-1]
    return operator.attrgetter(name)(module)


def test_they_are_smaller_and_gone_after_the_block() -> None:
    holders = {holder: name for name, limit in _ALL.items() for holder in limit.holders}
    assert len(holders) == sum(len(limit.holders) for limit in _ALL.values())
    before = {holder: _value(holder) for holder in holders}
    small = {name: limit.values[-1] for name, limit in _ALL.items()}
    with limited(small):
        for holder, name in holders.items():
            assert _value(holder) == small[name] < before[holder], holder
    assert {holder: _value(holder) for holder in holders} == before


@pytest.mark.long
def test_whoever_imports_a_constant_by_its_name_is_among_its_holders() -> None:
    """It would keep what the product has; but for the bench, which no world has."""
    named = {holder for limit in _ALL.values() for holder in limit.holders}
    missing = []
    for path in _ROOT.rglob("*.py"):
        if {"tests", "bench"} & set(path.parts):
            continue
        here = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hadron."):
                home = (node.module or "").removeprefix("hadron.")
                missing += [
                    f"{here}:{each.name}"
                    for each in node.names
                    if f"{home}:{each.name}" in named and f"{here}:{each.name}" not in named
                ]
    assert missing == []


def test_a_seed_has_its_own() -> None:
    worlds = [drawn(seed) for seed in range(200)]
    assert worlds == [drawn(seed) for seed in range(200)]
    assert {name for world in worlds for name in world} == set(LIMITS)
    assert sum(not world for world in worlds) > 40
