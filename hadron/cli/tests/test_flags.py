"""An error names what each door's user has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import hadron
from hadron.cli.commands import delete
from hadron.cli.flags import flags_of, in_flags
from hadron.cli.tests.support import run_text
from hadron.node.supervision.cluster import free_ports

_ROOMS: Final = (
    *("model", "state", "serving", "partition", "delivery", "exchanges", "endpoints"),
    *("pipelines", "transactions", "metadata", "server", "wire", "doors", "client"),
)
"""Whose errors reach who asks over HTTP, gRPC or the client."""

_FLAG: Final = re.compile(r"(?<![-\w])--[a-z]")
_COMMAND: Final = re.compile(r"`[^`]*`")


def test_parameters_are_options_of_the_command_that_has_them() -> None:
    flags = flags_of(delete.command)
    assert in_flags("or `allow_destructive`", flags) == "or --allow-destructive"
    assert in_flags("`nonsense`, `allow_destructive: true`", flags) == (
        "`nonsense`, `allow_destructive: true`"
    )


@pytest.mark.usefixtures("environment")
def test_what_a_node_says_is_told_in_options() -> None:
    text = "kind: Stream\nname: lost\npartitions: [local/p0]\n"
    assert run_text("apply", "-f", "-", stdin=text).returncode == 0
    refused = run_text("delete", "stream", "lost")
    assert "expected --allow-destructive if it is meant" in refused.stderr
    assert run_text("delete", "stream", "lost", "--allow-destructive").returncode == 0


def _sayings(path: Path) -> Iterator[tuple[int, str]]:
    """All texts of a module that are no docstring; whatever is put into them is an x."""
    tree = ast.parse(path.read_text())
    parts = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            texts = (each.value if isinstance(each, ast.Constant) else "x" for each in node.values)
            yield node.lineno, "".join(map(str, texts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _names_an_option(text: str) -> bool:
    """But within a whole command, as a piece of one, or where it says that commands have it."""
    return bool(
        _FLAG.search(_COMMAND.sub("", text))
        and not text.startswith(" ")
        and not re.search(r"(of|for) commands", text)
    )


@pytest.mark.long
def test_no_error_of_what_all_doors_share_names_an_option() -> None:
    root = Path(hadron.__file__).parent
    found = [
        f"{path.relative_to(root)}:{line}: {text}"
        for room in _ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if "tests" not in path.parts and path.name != "generate.py"
        for line, text in _sayings(path)
        if _names_an_option(text)
    ]
    assert found == []


def test_two_doors_of_a_node_have_two_ports(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    data = ("--data", str(tmp_path / "d"))
    for options in (("--port", port, "--http-port", port), ("--port", port, "--grpc-port", port)):
        refused = run_text("dev", *data, *options)
        assert refused.returncode == 1
        assert refused.stderr == (
            f"error: --port and {options[2]} are one port: {port}\n"
            f"hint: choose another one with {options[2]}\n"
        )
    assert not (tmp_path / "d").exists()
