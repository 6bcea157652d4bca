"""Spark sessions that are ready for Hadron: quiet, local by default, bound to loopback.

Apart from `java` because a session needs pyspark and finding a Java does not.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hadron.model.errors import ConfigurationError
from hadron.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE: Final = Path(__file__).resolve().parent


def spark_environment() -> dict[str, str]:
    """Environment variables under which Spark starts on this machine and finds the connector.

    Raises `ConfigurationError` when there is no Java.
    """
    environment = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    own_spark = _own_spark()
    if own_spark:
        environment["SPARK_HOME"] = own_spark
    missing = _missing_paths()
    if missing:
        given = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*missing, *([given] if given else [])])
    return environment


def _own_spark() -> str:
    """The Spark that this interpreter's pyspark brings; another one may be named by `SPARK_HOME`,
    of a version that does not fit. "" when pyspark comes without its Java part."""
    found = importlib.util.find_spec("pyspark")
    for location in (found.submodule_search_locations or ()) if found else ():
        if os.path.isdir(os.path.join(location, "jars")):
            return location
    return ""


def _missing_paths() -> list[str]:
    """Directories that Spark's workers need on their path and would not have by themselves.

    An installed Hadron needs none. A source tree needs its root and the connector's directory.
    """
    paths = []
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    root = str(_HERE.parents[1])
    if "site-packages" not in root and root not in given:
        paths.append(root)
    if importlib.util.find_spec("pyspark_hadron") is None:
        paths.append(str(_HERE / "plugin"))
    return paths


def session(
    master: str = "local[*]",
    app_name: str = "hadron",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session on `master`; an active one of this process is returned as it is.

    Args:
        master: `local[*]`, or the URL of a Spark cluster.
        app_name: shown by Spark's own tools.
        config: Spark settings that win over Hadron's.

    Raises `ConfigurationError` when pyspark or Java is missing or Spark does not start.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"Spark is not installed: {error}", "install the extra: pip install 'hadron[spark]'"
        ) from error
    _prepare_environment(is_local(master))
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**_settings(master), **(config or {})}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            f"Spark does not start on {master!r}: {error}",
            f"see what Java says above; it is {os.environ['JAVA_HOME']}",
        ) from error


def is_local(master: str) -> bool:
    """Whether Spark's tasks run inside the driver, on this machine."""
    return master == "local" or master.startswith("local[")


def _prepare_environment(local: bool) -> None:
    """On a cluster the interpreter and address are the operator's choice, where made."""
    for name, value in spark_environment().items():
        if local or name in ("JAVA_HOME", "PYTHONPATH", "SPARK_HOME"):
            os.environ[name] = value
        elif name != "SPARK_LOCAL_IP":
            os.environ.setdefault(name, value)


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # What a stage computes must not depend on where its runner stands.
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}"
        ),
    }
    if is_local(master):
        scratch = _scratch_directory()
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
            "spark.local.dir": str(scratch),
        }
    return settings


@functools.cache
def _scratch_directory() -> Path:
    """Spark's temporary files, away from the user's working directory; gone at exit."""
    directory = tempfile.mkdtemp(prefix="hadron-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
