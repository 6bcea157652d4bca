"""The process that Spark's Python workers of a local session are forked from.

Spark ends a worker whose function has raised, and forks another one. One that has to import pandas
and Arrow first costs half a second of processor time, which is paid for every record that fails.

For every task a worker forgets what it knows of the places that modules come from. Of an archive it
reads the whole list again, once for each package in it: 0.13 s of processor time for the copy of
pyspark, and the jar, that Spark puts before the installed one. So these are left out here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
from typing import Any, Final

NAME: Final = "hadron.spark.daemon"

_MODULES: Final = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.pandas_compat",
    "concurrent.futures.thread",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.conversion",
)


def main() -> None:
    """Serve until Spark ends."""
    # No thread may be lost by a fork: Arrow's own provides for that, these would not be there.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _leave_out_archives()
    for name in _MODULES:
        # Whoever needs it is told that it is missing.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Rows that a function raises for are found without it, too. It is imported now, because `copy`,
    # which it uses, asks for a package named `org`, and the jar has one.
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("hadron.spark.suspects").install()
    # A worker collects garbage after every task: not among what all have from here.
    gc.collect()
    gc.freeze()
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.manager()


def _leave_out_archives() -> None:
    """Those that pyspark brings with itself, of itself and of py4j: both are installed. And a jar
    of Java classes, which is an archive, too."""
    given = list(sys.path)
    archives = [path for path in given if path.endswith((".zip", ".jar"))]
    sys.path[:] = [path for path in given if path not in archives]
    found = importlib.util.find_spec("pyspark")
    package = os.path.dirname(found.origin) if found is not None and found.origin else ""
    installed = package and importlib.util.find_spec("py4j") is not None
    own = [path for path in archives if installed and _is_inside(path, package)]
    sys.path[:] = [path for path in given if path not in own]
    for path in list(sys.path_importer_cache):
        if path in own or any(_is_inside(path, archive) for archive in own):
            del sys.path_importer_cache[path]


def _is_inside(path: str, directory: str) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(directory), ""))


if __name__ == "__main__":
    main()
