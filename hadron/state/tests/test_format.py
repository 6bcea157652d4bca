"""FORMAT.md promises what every command and table is: neither may be there without the other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

import hadron
from hadron.model.tables import PREFIX
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.state.streams import partitions as streams
from hadron.storage import identity, log

_PACKAGE: Final = Path(hadron.__file__).parent
_FORMAT: Final = (_PACKAGE / "storage" / "FORMAT.md").read_text()
_CREATED: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")


def _fields(cell: str) -> tuple[str, ...]:
    """The names in a command's last cell, without what it says about them."""
    while (shorter := re.sub(r"\([^()]*\)|\[[^][]*\]|;.*", "", cell)) != cell:
        cell = shorter
    return tuple(re.findall(r"\w+", cell))


def test_every_command_is_described_by_its_number_and_fields() -> None:
    described = {
        int(number): (name, _fields(cell))
        for number, name, cell in re.findall(r"^\| (\d+) \| (\w+) \| (.*) \|$", _FORMAT, re.M)
    }
    assert described == {
        each.__struct_config__.tag: (each.__name__, each.__struct_fields__)
        for each in MACHINE.commands
    }


def test_every_table_is_described() -> None:
    described = re.findall(r"^\| `(\w+)` \|", _FORMAT.split("\n## Tables\n")[1], re.M)
    assert sorted(described) == sorted(MACHINE.table_names)
    created = _CREATED.findall(log.TABLES + identity.TABLES)
    assert len(created) == 6
    for table in created:
        assert f"\n    {table}(" in _FORMAT


def test_a_users_own_tables_are_never_met() -> None:
    db = apsw.Connection("")
    tables = _CREATED.findall(log.TABLES + MACHINE.tables)
    ours = {name.removeprefix(PREFIX) for name in tables}
    for name in ours:
        db.execute(f'CREATE TABLE "{name}"(mine)')
    db.execute(log.TABLES + MACHINE.tables)
    rows: Any = db.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL")
    made = [name for (name,) in rows if name not in ours]
    assert len(made) > len(tables), "indexes, too"
    assert all(name.startswith(PREFIX) for name in made)


@pytest.mark.parametrize("what", ["TABLE IF NOT EXISTS t(i)", "INDEX IF NOT EXISTS i ON t(i)"])
def test_a_feature_whose_tables_could_is_refused(what: str) -> None:
    feature = dataclasses.replace(streams.FEATURE, tables=f"CREATE {what}")
    machine = StateMachine([feature], version=1)
    with pytest.raises(AssertionError):
        _ = machine.table_names
