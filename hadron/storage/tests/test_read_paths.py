"""Every statement that takes record bytes or commands off the disk is known, and is one that checks
them: a new one has to be added here, by somebody who has thought of its checksum."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hadron.storage import log

_ROOT = Path(log.__file__).parents[1]
_READS = re.compile(
    r"\bSELECT\b.*\b(?:FROM|JOIN) (?:\{(?:BODY|LOG)\}|hadron_(?:body|log)\b)", re.DOTALL
)
_MAY_READ = re.compile(r"SELECT.*(?:\{(?:BODY|LOG)\}|hadron_(?:body|log)\b)", re.DOTALL)
"""Modules without both have no such statement: few are parsed."""
_TAKES_BYTES = re.compile(r"\bbytes\b|\bcommand\b|\*|\{_ROW\}")
_NUMBERS_ONLY = re.compile(r"(?:sum|length|count|max|min)\((?:\w\.)?(?:bytes|command|lsn|\*)\)")

CHECKED = {
    # Rows against the chain, bodies against their hash.
    "storage/log.py": {"position_at", "read_commands", "read_entries"},
    # The batch's own checksum.
    "state/streams/partitions.py": {"_rows", "part"},
    "node/record_table.py": {"_bytes"},
    # Chain and hashes, by both of its callers.
    "storage/snapshot.py": {"_rows_after"},
    # Verification itself; the numbers of batches.
    "storage/verify.py": {"_slice"},
    "replication/verification.py": {"step"},
    "state/streams/checks.py": {"_slice", "step"},
    "state/streams/keys.py": {"_slice"},
    # The size of a body.
    "state/transactions/checks.py": {"__init__"},
    # Handed to whoever checks a batch without a log row.
    "storage/repair.py": {"read_body", "wrong_with"},
    "demo/node_file.py": {"chains", "batches"},
}


def _statements(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, text) of every string in a module, f-strings with names in braces; a constant's
    is every function's that names it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant | ast.JoinedStr):
                    yield node.name, ast.unparse(inner)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            for user in _naming(tree, node.target.id) or [node.target.id]:
                yield user, ast.unparse(node)


def _naming(tree: ast.Module, constant: str) -> list[str]:
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(isinstance(inner, ast.Name) and inner.id == constant for inner in ast.walk(node))
    ]


def test_every_way_off_the_disk_is_checked() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(_ROOT.rglob("*.py")):
        name = path.relative_to(_ROOT).as_posix()
        if "/tests/" in name or name.startswith(("testing/", "sim/")):
            continue
        source = path.read_text()
        if not _MAY_READ.search(source):
            continue
        for where, text in _statements(ast.parse(source)):
            taken = _NUMBERS_ONLY.sub("", text.partition("FROM")[0])
            if _READS.search(text) and _TAKES_BYTES.search(taken):
                found.setdefault(name, set()).add(where)
    assert found == CHECKED
