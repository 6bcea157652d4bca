"""The module that Spark discovers: found by its name, without loading server or client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SPARK = Path(__file__).resolve().parents[1]
ROOT = SPARK.parents[1]

_PROBE = """
import sys
from pkgutil import iter_modules
assert "pyspark_hadron" in {info.name for info in iter_modules()}
from pyspark.sql.datasource import DataSource
import pyspark_hadron
assert issubclass(pyspark_hadron.DefaultSource, DataSource)
assert pyspark_hadron.DefaultSource.name() == "hadron"
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("hadron.")}
assert rooms == {"spark", "model"}, rooms
assert not {"apsw", "grpc", "trio", "google.protobuf", "anyio"} & set(sys.modules)
"""


def test_discovery_loads_neither_server_nor_client() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SPARK / "plugin")])}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
