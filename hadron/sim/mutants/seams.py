"""Patching named seams of the product from outside: one function, one constant at a time.

The product has no switches for its bugs. A seam is named by module and qualified name, and an edit
by the exact text that it replaces in that function; when the product has moved on, so that the
name or the text is gone, `SeamError` says so: a mutant that patches nothing proves nothing.

The function object stays, only its code is exchanged: whoever imported or registered it runs the
edited one.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


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
def patched(*patches: Patch) -> Iterator[None]:
    """Apply patches for the length of the block. Raises `SeamError` before anything is patched."""
    edits: dict[str, list[Edit]] = {}
    constants: list[tuple[Any, str, Any, Any]] = []
    for patch in patches:
        if isinstance(patch, Edit):
            edits.setdefault(patch.where, []).append(patch)
        else:
            owner, name, value = _find(patch.where)
            constants.append((owner, name, value, patch.value))
    changed = [
        (function, function.__code__, _edited(function, where, several))
        for where, several in edits.items()
        for function in (find_function(where),)
    ]
    try:
        for function, _, code in changed:
            function.__code__ = code
        for owner, name, _, value in constants:
            setattr(owner, name, value)
        yield
    finally:
        for function, before, _ in changed:
            function.__code__ = before
        for owner, name, before, _ in constants:
            setattr(owner, name, before)


def _edited(function: FunctionType, where: str, edits: list[Edit]) -> CodeType:
    source = inspect.getsource(function)
    for edit in edits:
        if source.count(edit.old) != edit.times:
            raise SeamError(
                f"{where} has {edit.old!r} {source.count(edit.old)} times, not {edit.times}"
            )
        source = source.replace(edit.old, edit.new)
    tree = ast.parse(textwrap.dedent(source))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    # Decorators have been at work already, and some register what they decorate.
    definition.decorator_list = []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    compiled = compile(
        tree, function.__code__.co_filename, "exec",
        flags=__future__.annotations.compiler_flag, dont_inherit=True,
    )
    code = next(
        constant for constant in compiled.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    )
    if code.co_freevars != function.__code__.co_freevars:
        raise SeamError(f"{where} cannot be edited: it is a closure")
    return code.replace(co_qualname=function.__code__.co_qualname)
