"""Bugs that nobody thought of: small edits of the product's code, drawn by number.

Those that are planted by hand say what the checks are made to see. These say what else they see: a
comparison that is off by one or the other way round, a condition that is dropped or negated, a call
that is left out, a limit that is the other bound. Some change nothing that anybody could notice;
whoever reads what was not caught has to tell them apart.
"""

from __future__ import annotations

import ast
import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hadron
from hadron.sim.mutants.mutant import Mutant
from hadron.sim.mutants.seams import Edit, SeamError, patched

PREFIX: Final = "chance/"
"""Of their names: a number follows."""

ROOMS: Final = (
    "client/consuming",
    "client/producing",
    "delivery",
    "partition",
    "pipelines",
    "replication",
    "serving",
    "state",
    "storage",
    "transactions",
)
"""What keeps data: which the simulator is to judge."""

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}

_OTHER_BOUND: Final = {"min": "max", "max": "min"}

_PASSED_OVER: Final = (ast.Assert, ast.Raise, ast.JoinedStr, ast.FunctionDef, ast.AsyncFunctionDef)
"""What says why something failed; and functions within, which are no seams."""


@dataclass(frozen=True)
class _Change:
    """A piece of a function's source, from one place to another, and what stands there instead."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def drawn(number: int) -> Mutant:
    """Bug `number`: the same one for as long as the product's code is the same."""
    chance = random.Random(f"chance/{number}")
    while True:
        where, definition, lines = chance.choice(_functions())
        changes = list(_changes(definition, lines))
        if not changes:
            continue
        edit = _edit(where, definition, lines, chance.choice(changes))
        if edit is not None and _can_be_planted(edit):
            bug = f"{where}: {_short(edit.old)}  →  {_short(edit.new)}"
            return Mutant(f"{PREFIX}{number}", bug, (edit,))


def number_of(name: str) -> int | None:
    """Of a bug that chance has drawn; None for another name."""
    number = name.removeprefix(PREFIX)
    return int(number) if number != name and number.isdecimal() else None


def _can_be_planted(edit: Edit) -> bool:
    """Not in a closure, say, or where parentheses stood around what was cut."""
    try:
        with patched(edit):
            return True
    except (SeamError, SyntaxError):
        return False


@functools.cache
def _functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, list[str]]]:
    """(where, definition, its file's lines) of all functions and methods of `ROOMS`, in order."""
    root = Path(hadron.__file__).parent
    found = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            if "tests" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for name, definition in _defined(ast.parse(text)):
                if not definition.name.startswith("__") or definition.name == "__init__":
                    found.append((f"{module}:{name}", definition, text.splitlines(keepends=True)))
    return found


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{each.name}", each


def _changes(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> Iterator[_Change]:
    waiting: list[ast.AST] = list(definition.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _PASSED_OVER):
            continue
        yield from _changes_of(node, lines)
        waiting += ast.iter_child_nodes(node)


def _changes_of(node: ast.AST, lines: list[str]) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        before, after = _COMPARISONS[type(node.ops[0])]
        yield from _replaced(_end(node.left), _start(node.comparators[0]), before, after, lines)
    elif isinstance(node, ast.BoolOp):
        yield _Change(_end(node.values[-2]), _end(node.values[-1]), "")
        yield _Change(_start(node.values[0]), _start(node.values[1]), "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _Change(_start(node), _start(node.operand), "")
    elif isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Name | ast.Attribute):
        yield _Change(_start(node.test), _start(node.test), "not ")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield _Change(_end(node.left), _end(node.right), "")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in _OTHER_BOUND:
            yield _Change(_start(node.func), _end(node.func), _OTHER_BOUND[node.func.id])
    elif isinstance(node, ast.Expr) and _is_act(node.value):
        yield _Change(_start(node), _end(node), "pass")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Change(_start(node), _end(node), str(not node.value))


def _is_act(value: ast.expr) -> bool:
    """A call whose result nobody takes, but for what is only told."""
    if isinstance(value, ast.Await):
        value = value.value
    if not isinstance(value, ast.Call):
        return False
    return not ast.unparse(value.func).startswith(("_log.", "super()"))


def _replaced(
    start: tuple[int, int], end: tuple[int, int], before: str, after: str, lines: list[str]
) -> Iterator[_Change]:
    """An operator that stands alone between two places of a line."""
    if start[0] == end[0]:
        between = lines[start[0] - 1].encode()[start[1] : end[1]].decode()
        if between.strip() == before:
            yield _Change(start, end, between.replace(before, after))


def _edit(
    where: str,
    definition: ast.FunctionDef | ast.AsyncFunctionDef,
    lines: list[str],
    change: _Change,
) -> Edit | None:
    """By the lines that are changed; None where these stand in the function more than once."""
    (first, start), (last, end) = change.start, change.end
    old = "".join(lines[first - 1 : last])
    head = lines[first - 1].encode()[:start].decode()
    tail = lines[last - 1].encode()[end:].decode()
    assert definition.end_lineno is not None
    source = "".join(lines[definition.lineno - 1 : definition.end_lineno])
    if source.count(old) != 1:
        return None
    return Edit(where, old, head + change.text + tail)


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _short(text: str) -> str:
    return " ".join(text.split())
