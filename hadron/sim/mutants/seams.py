"""Patching named seams of the product from outside: one function, one constant at a time.

The product has no switches for its bugs. A seam is named by module and qualified name, and an edit
by the exact text that it replaces in that function; when the product has moved on, so that the
name or the text is gone, `SeamError` says so: a mutant that patches nothing proves nothing.

The function object stays, only its code is exchanged: whoever imported or registered it runs the
edited one. In front of every edited statement stands a mark, so that a bug that nobody finds can be
told from one that nobody ran into.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final


class SeamError(Exception):
    """What was to be patched is not there any more."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which stands exactly `times` times in the function's source, by `new`.

    `where` is "module:Class.function", the module below `hadron`.
    """

    where: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Constant:
    """Give a module's constant another value."""

    where: str
    value: Any


Patch = Edit | Constant

_reached: Final[set[int]] = set()
"""Indices of the patches, of those in force, whose statements have run."""


def _find(where: str) -> tuple[Any, str, Any]:
    """(owner, name, value) of what `where` names."""
    module, _, path = where.partition(":")
    try:
        owner: Any = importlib.import_module(f"hadron.{module}")
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name, inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        raise SeamError(f"the seam {where} has vanished: {error}") from None


def find_function(where: str) -> FunctionType:
    """The plain function that `where` names, below its decorators. Raises `SeamError`."""
    found = _find(where)[2]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise SeamError(f"the seam {where} is no function")
    return found


@contextlib.contextmanager
def patched(*patches: Patch) -> Iterator[Collection[int]]:
    """Apply patches for the length of the block; gives the indices of those edits whose statements
    have run in it so far. Raises `SeamError` before anything is patched."""
    edits: dict[str, list[tuple[int, Edit]]] = {}
    constants: list[tuple[Any, str, Any, Any]] = []
    for index, patch in enumerate(patches):
        if isinstance(patch, Edit):
            edits.setdefault(patch.where, []).append((index, patch))
        else:
            owner, name, value = _find(patch.where)
            constants.append((owner, name, value, patch.value))
    changed = [
        (function, function.__code__, _edited(function, where, several))
        for where, several in edits.items()
        for function in (find_function(where),)
    ]
    _reached.clear()
    try:
        for function, _, code in changed:
            function.__code__ = code
        for owner, name, _, value in constants:
            setattr(owner, name, value)
        yield _reached
    finally:
        for function, before, _ in changed:
            function.__code__ = before
        for owner, name, before, _ in constants:
            setattr(owner, name, before)


def _edited(function: FunctionType, where: str, edits: Sequence[tuple[int, Edit]]) -> CodeType:
    source, marks = _replaced(inspect.getsource(function), where, edits)
    tree = ast.parse(textwrap.dedent(source))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    # Decorators have been at work already, and some register what they decorate.
    definition.decorator_list = []
    for index, offset in marks:
        _mark(definition, source.count("\n", 0, offset) + 1, index)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    compiled = compile(
        tree,
        function.__code__.co_filename,
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    code = next(
        constant
        for constant in compiled.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    )
    if code.co_freevars != function.__code__.co_freevars:
        raise SeamError(f"{where} cannot be edited: it is a closure")
    return code.replace(co_qualname=function.__code__.co_qualname)


def _replaced(
    source: str, where: str, edits: Sequence[tuple[int, Edit]]
) -> tuple[str, list[tuple[int, int]]]:
    """The edited source, and (the edit's index, offset) of everything that is new in it."""
    marks: list[tuple[int, int]] = []
    for index, edit in edits:
        if source.count(edit.old) != edit.times:
            raise SeamError(
                f"{where} has {edit.old!r} {source.count(edit.old)} times, not {edit.times}"
            )
        pairs = zip(edit.old, edit.new, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        longer = len(edit.new) - len(edit.old)
        at = source.find(edit.old)
        while at >= 0:
            source = source[:at] + edit.new + source[at + len(edit.old) :]
            marks = [(of, offset + longer if offset > at else offset) for of, offset in marks]
            marks.append((index, at + same))
            at = source.find(edit.old, at + len(edit.new))
    return source, marks


def _mark(definition: ast.FunctionDef | ast.AsyncFunctionDef, line: int, index: int) -> None:
    """Put a note that it ran in front of the innermost statement that stands on a line."""
    block, place = definition.body, 0
    for node in ast.walk(definition):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if not isinstance(statements, list):
                continue
            for position, statement in enumerate(statements):
                # Blocks are walked from the outside in.
                if statement.lineno <= line <= statement.end_lineno:
                    block, place = statements, position
    note = ast.parse(f"__import__('sys').modules[{__name__!r}]._reached.add({index})").body[0]
    for node in ast.walk(note):
        ast.copy_location(node, block[place])
    block.insert(place, note)
