"""The code keeps its own rules (CONTRIBUTING.md, "How the code is written") as far as a program
can tell: sizes, what pure modules import, names that say nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import hadron

ROOT: Final = Path(hadron.__file__).parent

MODULE_LINES: Final = 600
TEST_MODULE_LINES: Final = 900
FUNCTION_LINES: Final = 70

LONG_MODULES: Final[dict[str, int]] = {}
LONG_FUNCTIONS: Final = {
    "client/client.py:Client.subscribe": 74,
    "client/tests/test_face.py:test_wrong_arguments_are_named": 81,
    "node/leadership.py:Leadership.__init__": 73,
    "node/member.py:Member.assemble": 76,
}
"""Over the limits today: numbers may only fall, and what has come below goes from the list."""

IMPURE: Final = (
    *("anyio", "apsw", "asyncio", "grpc", "random", "secrets", "socket", "sqlite3"),
    *("threading", "time", "trio"),
)
"""Drivers' affairs."""

PURE_BY_NAME: Final = frozenset(("machine", "effects", "assignments", "quorum", "lines", "waiters"))

SAYS_NOTHING: Final = re.compile(r"(?i)^_?(utils?|helpers?|common|misc|stuff|tools)$|managers?$")


def modules() -> list[Path]:
    """All that somebody has written: not what is generated."""
    return sorted(path for path in ROOT.rglob("*.py") if not {"_pb", "faces"} & {*path.parts})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every class and function inside, by its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from named(child, f"{prefix}{child.name}.")
        else:
            yield from named(child, prefix)


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, wherever that stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def is_pure(path: Path) -> bool:
    """Looked at by every process of tests when it collects: it parses only what may say so."""
    if "tests" in path.parts:
        return False
    if path.stem in PURE_BY_NAME:
        return True
    says = re.compile(r"(?:^|\s)Pure[.;,:]")
    return says.search(path.read_text()) is not None and (
        says.search(ast.get_docstring(tree_of(path)) or "") is not None
    )


def check_sizes(found: dict[str, int], over: dict[str, int], what: str) -> None:
    grown = {name: lines for name, lines in found.items() if lines > over.get(name, 0)}
    assert not grown, f"{what} that have grown over the limit: split them"
    settled = over.keys() - found.keys()
    assert not settled, f"{what} that are within the limit by now: take them from the list"
    fallen = {name: lines for name, lines in found.items() if lines < over[name]}
    assert not fallen, f"{what} that have become shorter: lower their numbers"


def test_modules_are_short() -> None:
    found = {}
    for path in modules():
        lines = len(path.read_text().splitlines())
        is_test = "tests" in path.parts
        if lines > (TEST_MODULE_LINES if is_test else MODULE_LINES):
            found[name_of(path)] = lines
    check_sizes(found, LONG_MODULES, "modules")


@pytest.mark.long
def test_functions_are_short() -> None:
    found = {}
    for path in modules():
        for name, node in named(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{name_of(path)}:{name}"] = lines
    check_sizes(found, LONG_FUNCTIONS, "functions")


@pytest.mark.parametrize("path", [path for path in modules() if is_pure(path)], ids=name_of)
def test_what_is_pure_does_nothing(path: Path) -> None:
    """It decides, and a driver does what it says."""
    # The simulator's randomness is a seed's.
    alien = [each for each in IMPURE if (each, path.parent.name) != ("random", "sim")]
    assert not [each for each in imports(tree_of(path)) if each.split(".")[0] in alien]


@pytest.mark.long
def test_names_say_something() -> None:
    names = [(name_of(path), path.stem) for path in modules()]
    for path in modules():
        names += [(name_of(path), name.split(".")[-1]) for name, _ in named(tree_of(path))]
    assert not [each for each in names if SAYS_NOTHING.search(each[1])]


def test_every_module_says_what_it_owns() -> None:
    product = [path for path in modules() if "tests" not in path.parts]
    assert not [name_of(path) for path in product if not ast.get_docstring(tree_of(path))]


_TABLE_NAME: Final = re.compile(r'\bPREFIX \+ ("\w+")|\{PREFIX\}(\w+)')


def test_a_tables_name_is_said_once() -> None:
    """Whoever needs one of another module imports it; where that is a circle, the names are in a
    module of their own (`state.pipelines.tables`)."""
    found = dict[str, list[str]]()
    for path in modules():
        if "tests" not in path.parts:
            for name in _TABLE_NAME.findall(path.read_text()):
                found.setdefault("".join(name).strip('"'), []).append(name_of(path))
    assert len(found) > 60
    assert not {name: where for name, where in found.items() if len(where) > 1}


OWN: Final = {
    "groups": r"(cli\.commands\.(group|sub)|cli\.following|client\.blocking\.(deliveries|intake)"
    r"|client\.consuming|delivery|doors\.http\.(consumers|groups)|server\.groups|state\.groups|wire\._pb\.groups_pb2"
    r"|wire\.messages\.groups_pb2)",
    "pipelines": r"(cli\.commands\.(backfill|demo|instances|pipeline)|cli\.pipelines"
    r"|client\.blocking\.(handling|invocations|workers)|client\.(handling|pipelines)|metadata\.pipeline"
    r"|model\.(documents\.)?(pipelines|stages)|node\.pipelines|pipelines|server\.pipelines|spark"
    r"|state\.pipelines|wire\._pb\.pipelines_pb2|wire\.messages\.pipelines_pb2)",
}
"""Modules that are a feature's own, within `hadron`."""

IN_TRANSACTIONS: Final = frozenset(
    (
        *("client.blocking.transacting", "client.transactions.calls"),
        *("client.transactions.stages", "client.transactions.transaction"),
        *("client.transactions.work", "serving.lock_table"),
    )
)
"""Where what features have is put together into transactions."""

LISTS: Final = frozenset(
    ("cli.telling", "client.client", "node.parts", "server.led", "state.features", "wire.messages")
)
"""Where a feature has a line (CONTRIBUTING.md, "Adding a feature")."""

ELSEWHERE: Final = {
    "groups": {
        *("cli.commands.describe", "cli.commands.read", "client", "client.blocking.generate"),
        *("doors.grpc.consuming", "doors.http.door", "doors.http.table"),
    },
    "pipelines": {
        *("cli.commands.get", "client", "client.blocking.generate", "metadata.validation"),
        *("doors.grpc.working", "model.kinds"),
    },
}
"""Who else names a feature's modules. Fewer is better: whoever widens a feature meets them."""


def named_modules(tree: ast.Module) -> Iterator[str]:
    """All that are imported, and all that are named for a later import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("feature", OWN)
def test_features_are_named_in_few_places(feature: str) -> None:
    """Beside their own modules, the rooms that only look (sim, testing, bench, demo) and tests."""
    own = re.compile(rf"hadron\.{OWN[feature]}")
    found = set[str]()
    for path in modules():
        if {"tests", "sim", "testing", "fakes", "bench", "demo"}.isdisjoint(path.parts):
            name = name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if not own.match(f"hadron.{name}"):
                found |= {name for named in named_modules(tree_of(path)) if own.match(named)}
    found -= IN_TRANSACTIONS
    assert found >= LISTS
    assert found - LISTS == ELSEWHERE[feature]
