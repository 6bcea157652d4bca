"""The feature that CONTRIBUTING.md shows is added to a copy of the tree, and works there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import hadron

_ROOT = Path(hadron.__file__).parent.parent
_PAGE = _ROOT / "CONTRIBUTING.md"
_FILE = re.compile(r"\*\*([\w/]+\.\w+)\*\*\n\n```\w+\n(.*?)```", re.DOTALL)
_LINE = re.compile(r"^\| `(\S+)` \| `(.+)` \| `(.+)` \|$", re.MULTILINE)

_STORY = """
import subprocess, sys
from pathlib import Path
from hadron.node.supervision.cluster import LocalCluster

def hadron(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "hadron", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()

def count(*arguments):
    return hadron("--server", cluster.url, "counter", "hits", *arguments)

with LocalCluster(Path(sys.argv[1]), durability="os") as cluster:
    assert count("--add", "3") == "3"
    assert count("--add", "5") == "8"
    cluster.kill("n1"), cluster.kill("n2")
    cluster.start_all()
    assert count() == "8"
    said = hadron("--server", cluster.url, "verify")
    assert "n1, n2, n3 have the same" in said and said.endswith("everything is right"), said
    cluster.stop_all()
    assert "everything is right" in hadron("verify", str(cluster.database("n3")))
    import apsw
    for name in cluster.names:
        rows = apsw.Connection(str(cluster.database(name))).execute(
            "SELECT name, total FROM hadron_counter ORDER BY total"
        ).fetchall()
        assert rows == [("hits", 0), ("hits", 3), ("hits", 5)], (name, rows)
"""


def _parts() -> tuple[Mapping[str, str], list[tuple[str, str, str]]]:
    """Files by name, and (file, the line behind which a line goes, that line)."""
    page = _PAGE.read_text()
    return dict(_FILE.findall(page)), _LINE.findall(page)


def test_the_feature_is_small() -> None:
    files, lines = _parts()
    assert len(files) == 5
    assert sum(text.count("\n") for text in files.values()) <= 150
    assert len(lines) <= 10


@pytest.mark.timeout(300)
def test_the_feature_works(tmp_path: Path) -> None:
    files, lines = _parts()
    tree = tmp_path / "tree"
    for room in ("hadron", "proto"):
        shutil.copytree(
            _ROOT / room, tree / room, ignore=shutil.ignore_patterns("tests", "__pycache__")
        )
    for name, text in files.items():
        (tree / name).write_text(text)
    for name, before, line in lines:
        text = (tree / name).read_text()
        assert text.count(f"{before}\n") == 1, f"{name}: {before}"
        (tree / name).write_text(text.replace(f"{before}\n", f"{before}\n{line}\n"))
    _generate(tree)
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", _ROOT / "pyproject.toml",
         *(tree / name for name in files if name.endswith(".py"))],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", _STORY, tmp_path / "cluster"], cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _generate(tree: Path) -> None:
    """As `make proto` does."""
    made = tree.parent / "made"
    made.mkdir()
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{tree / 'proto'}", f"--python_out={made}",
         tree / "proto/hadron/v1/counters.proto"], check=True,
    )
    text = (made / "hadron/v1/counters_pb2.py").read_text()
    text = re.sub(r"^from hadron\.v1 import", "from hadron.wire._pb import", text, flags=re.M)
    (tree / "hadron/wire/_pb/counters_pb2.py").write_text(text)
