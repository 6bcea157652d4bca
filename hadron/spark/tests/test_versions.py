"""Which code a stage's function is."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from hadron.spark.versions import version_of

FILES = {
    "shopping/__init__.py": "",
    "shopping/price.py": "import json\nfrom . import rates\nfrom .deep.below import rule\n",
    "shopping/rates.py": "from shopping_helpers import half\n",
    "shopping/deep/__init__.py": "",
    "shopping/deep/below.py": "from ..rates import half as rule\n",
    "shopping/unused.py": "1",
    "shopping_helpers.py": "half = 2\n",
    "json.py": "not this one",
}
BEHIND = (
    "shopping/__init__.py",
    "shopping/price.py",
    "shopping/rates.py",
    "shopping/deep/__init__.py",
    "shopping/deep/below.py",
    "shopping_helpers.py",
)


def write(root: Path, **changed: str) -> None:
    for name, text in {**FILES, **changed}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def version(root: Path, monkeypatch: pytest.MonkeyPatch, module: str = "shopping.price") -> str:
    """As a process says it that has just loaded it."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(root)
        version_of.cache_clear()
        before = set(sys.modules)
        try:
            importlib.import_module(module)
            return version_of(module)
        finally:
            for name in set(sys.modules) - before:
                del sys.modules[name]
            importlib.invalidate_caches()


def test_the_version_is_of_all_files_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for number, name in enumerate(("", *BEHIND)):
        root = tmp_path / f"{number}"
        write(root, **({name: FILES[name] + "# changed\n"} if name else {}))
        found.add(version(root, monkeypatch))
        assert len(found) == number + 1, f"{name} is behind it"
    write(tmp_path / "unused", **{"shopping/unused.py": "2"})
    assert version(tmp_path / "unused", monkeypatch) in found


def test_of_what_is_installed_it_is_of_its_package_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (tmp_path / each / "site-packages" for each in "abc")
    write(first)
    write(second, **{"shopping_helpers.py": "half = 3\n"})
    write(third, **{"shopping/rates.py": "half = 3\n"})
    one, same, other = (version(root, monkeypatch) for root in (first, second, third))
    assert one == same != other


def test_of_one_file_it_is_that_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    data = FILES["shopping_helpers.py"].encode()
    found = version(tmp_path, monkeypatch, "shopping_helpers")
    assert found == hashlib.sha256(data).hexdigest()[:12]
    assert version_of("sys") == version_of("never_loaded") == ""
