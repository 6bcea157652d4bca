"""The process that Spark's Python workers of a local session are forked from.

Spark ends a worker whose function has raised, and forks another one. One that has to import pandas
and Arrow first costs half a second of processor time, which is paid for every record that fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from typing import Any, Final

NAME: Final = "hadron.spark.daemon"

_MODULES: Final = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.conversion",
)


def main() -> None:
    """Serve until Spark ends."""
    # No thread may be lost by a fork: Arrow's own provides for that, these would not be there.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _MODULES:
        # Whoever needs it is told that it is missing.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A worker collects garbage after every task: not among what all have from here.
    gc.collect()
    gc.freeze()
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.manager()


if __name__ == "__main__":
    main()
