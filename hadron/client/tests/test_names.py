"""What `import hadron` offers: every error that a user can meet, and the types for annotations."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hadron
from hadron import client
from hadron.model.errors import HadronError

_ROOT = Path(hadron.__file__).parent

_USERS = ("client", "model", "wire")
"""The rooms that a program with a client is in: what others define ends commands, or stays between
nodes, and reaches a client as the class that it derives from."""


def error_classes() -> dict[str, str]:
    """Every subclass of `HadronError` in the sources, by name, with its room: found by reading
    them, because modules that nobody imports are not among `__subclasses__`."""
    classes: dict[str, tuple[list[str], str]] = {}
    for path in _ROOT.rglob("*.py"):
        room = path.relative_to(_ROOT).parts[0]
        if "tests" in path.parts or room == "_pb":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                classes[node.name] = bases, room
    known = {"HadronError"}
    while True:
        more = {name for name, (bases, _) in classes.items() if known.intersection(bases)} - known
        if not more:
            return {name: classes[name][1] for name in known}
        known |= more


@pytest.mark.long
def test_every_error_that_users_can_meet_is_in_hadron() -> None:
    found = error_classes()
    assert len(found) > 25
    offered = {name for name in hadron.__all__ if name.endswith("Error")}
    assert offered == {name for name, room in found.items() if room in _USERS}
    for name in offered:
        assert issubclass(getattr(hadron, name), HadronError)
        # What the wire calls it is raised as the class that users catch.
        assert HadronError.by_code[name] is getattr(hadron, name)


def test_every_name_can_be_imported_and_completed() -> None:
    assert hadron.__all__ == sorted(hadron.__all__)
    for name in hadron.__all__:
        assert getattr(hadron, name).__name__ == name
        assert name in dir(hadron)
        if name.endswith("Error"):
            # A traceback names what users can catch.
            assert getattr(hadron, name).__module__ == "hadron"
    assert set(hadron._HOMES) == set(hadron.__all__)
    tree = ast.parse((_ROOT / "__init__.py").read_text())
    for_types = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hadron")
        for alias in node.names
    }
    assert for_types == hadron._HOMES
    for home in set(hadron._HOMES.values()):
        importlib.import_module(home)


def test_the_names_of_the_client_s_package_are_where_it_says() -> None:
    assert client.__all__ == sorted(client.__all__) == sorted(client._HOMES)
    for name, home in client._HOMES.items():
        assert getattr(client, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = client.Klient


def test_a_node_loads_no_client() -> None:
    """3 MB of each node's memory are those modules, and asyncio."""
    program = (
        "import hadron.node.main, sys\n"
        "print(*(name for name in sys.modules if name == 'asyncio' or name in\n"
        "  ('hadron.client.client', 'hadron.client.producing.producer',\n"
        "  'hadron.client.blocking.portal')))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    program = (
        "import hadron, sys\n"
        "assert not [name for name in sys.modules if name.startswith('hadron.')]\n"
        "hadron.FencedError, hadron.connect_sync, hadron.Delivery\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('hadron.')}\n"
        "print(*sorted(rooms))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["client", "model", "wire"]
