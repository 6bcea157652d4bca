"""Which code a stage's function is: a hash of its file, and of those of the user's own behind it.

They are found by what they import, and not by what is loaded: that depends on which other stages a
runner has, and in which order it came by them, and runners with the same files are to say the same.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DIGITS: Final = 12

_MOST_FILES: Final = 1_000
"""That are looked at."""

_INSTALLED: Final = ("site-packages", "dist-packages")


@functools.cache
def version_of(module_name: str) -> str:
    """The beginning of a SHA-256 of the file of a loaded module, and of what it imports from the
    directory in which its package lies, or, where that is installed, from its package; "" where
    there is no such file. A module is loaded once."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if not file:
        return ""
    files = _Files(module_name, Path(file))
    own = files.found.pop(module_name, None)
    if own is None:
        return ""
    digest = hashlib.sha256(own)
    for name, data in sorted(files.found.items()):
        digest.update(b"\0%d %s %d\0" % (len(name), name.encode(), len(data)) + data)
    return digest.hexdigest()[:_DIGITS]


class _Files:
    """What a module is made of.

    Attributes:
        found: contents of files, by their modules' names.
    """

    def __init__(self, module_name: str, file: Path) -> None:
        self.found: dict[str, bytes] = {}
        first, *_ = module_name.split(".")
        is_package = file.name == "__init__.py"
        above = file.absolute().parents
        self._root = above[min(module_name.count(".") + is_package, len(above) - 1)]
        self._only = first if self._root.name in _INSTALLED else ""
        self._add(module_name, file)
        left = [module_name]
        while left and len(self.found) < _MOST_FILES:
            names = self._imported_by(left.pop())
            left.extend(name for name in names if name not in self.found and self._find(name))

    def _find(self, name: str) -> bool:
        """Whether there is a file of the user's own with this module."""
        if self._only not in ("", name.partition(".")[0]):
            return False
        path = self._root.joinpath(*name.split("."))
        return self._add(name, path / "__init__.py") or self._add(name, path.with_suffix(".py"))

    def _add(self, name: str, file: Path) -> bool:
        try:
            self.found[name] = file.read_bytes()
        except OSError:
            return False
        return True

    def _imported_by(self, module_name: str) -> Iterator[str]:
        """Names of what may be modules: `from a import b` may mean module `a.b`."""
        try:
            tree = ast.parse(self.found[module_name])
        except (SyntaxError, ValueError):
            return
        package = module_name
        if not self._root.joinpath(*module_name.split("."), "__init__.py").is_file():
            package = module_name.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _with_parents(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = package.split(".")[: package.count(".") + 2 - node.level]
                    base = ".".join([*above, base] if base else above)
                yield from _with_parents(base)
                for alias in node.names:
                    yield f"{base}.{alias.name}"


def _with_parents(name: str) -> Iterator[str]:
    """Importing a module runs the packages that it is in."""
    parts = name.split(".") if name else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
