"""FORMAT.md promises what every command and table is: neither may be there without the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import hadron
from hadron.state.features import MACHINE

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
    for module in ("log.py", "identity.py"):
        for table in _CREATED.findall((_PACKAGE / "storage" / module).read_text()):
            assert f"\n    {table}(" in _FORMAT
