"""The feature that CONTRIBUTING.md shows, added to a copy of this tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

import hadron
from hadron.state.features import FEATURES
from hadron.state.machine import StateMachine

ROOT: Final = Path(hadron.__file__).parent.parent
_PAGE: Final = ROOT / "CONTRIBUTING.md"
_FILE: Final = re.compile(r"\*\*([\w/]+\.\w+)\*\*\n\n```\w+\n(.*?)```", re.DOTALL)
_LINE: Final = re.compile(r"^\| `(\S+)` \| `(.+)` \| `(.+)` \|$", re.MULTILINE)


def parts() -> tuple[Mapping[str, str], list[tuple[str, str, str]]]:
    """Files by name, and (file, the line behind which a line goes, that line)."""
    page = _PAGE.read_text()
    return dict(_FILE.findall(page)), _LINE.findall(page)


def copy_with_counters(tree: Path) -> None:
    """A copy of the product that has the feature, in `tree`."""
    files, lines = parts()
    for room in ("hadron", "proto"):
        shutil.copytree(
            ROOT / room, tree / room, ignore=shutil.ignore_patterns("tests", "__pycache__")
        )
    for name, text in files.items():
        (tree / name).write_text(text)
    for name, before, line in lines:
        put(tree / name, f"\n{before}\n", f"\n{before}\n{line}\n")
    _generate(tree)


def make_next_version(tree: Path) -> Path:
    """A copy of the product as the next version of it, which has one more command, in `tree`; the
    program that is `hadron` there."""
    copy_with_counters(tree)
    put(tree / "hadron/state/features.py", "version=1)", "version=2)")
    put(tree / "hadron/state/counters.py", "    name: str\n", "    since = 2\n    name: str\n")
    program = tree / "next_hadron.py"
    program.write_text("import sys\n\nfrom hadron.cli import main\n\nsys.exit(main())\n")
    return program


def next_machine(tree: Path) -> StateMachine:
    """The rules of the version in `tree`, for whoever reads what it has logged."""
    found = spec_from_file_location("next_counters", tree / "hadron/state/counters.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return StateMachine((*FEATURES, module.FEATURE), version=2)


def put(path: Path, old: str, new: str) -> None:
    """Replace a text that stands there once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new))


def _generate(tree: Path) -> None:
    """As `make proto faces` does."""
    made = tree.parent / "made"
    made.mkdir()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{tree / 'proto'}",
            f"--python_out={made}",
            tree / "proto/hadron/v1/counters.proto",
        ],
        check=True,
    )
    text = (made / "hadron/v1/counters_pb2.py").read_text()
    text = re.sub(r"^from hadron\.v1 import", "from hadron.wire._pb import", text, flags=re.M)
    (tree / "hadron/wire/_pb/counters_pb2.py").write_text(text)
    subprocess.run(
        [sys.executable, "-m", "hadron.client.blocking.generate"],
        check=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
    )
