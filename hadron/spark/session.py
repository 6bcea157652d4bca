"""Spark sessions that are ready for Hadron: quiet, local by default, bound to loopback.

Apart from `java` because a session needs pyspark and finding a Java does not.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hadron.model.errors import ConfigurationError
from hadron.spark import daemon
from hadron.spark.extra import check_extra
from hadron.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_HERE: Final = Path(__file__).resolve().parent

_STDERR: Final = 2
_STRAY_WARNING: Final = b"WARNING: Using incubator modules"
"""Printed by Java itself because Spark asks for its vector module."""

_SCRATCH: Final = "hadron-spark-"

_END_S: Final = 10.0
"""How long Java may take to end before it is killed."""


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
    master: str = "local[*]", app_name: str = "hadron", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session on `master`; an active one of this process is returned as it is.

    Args:
        master: `local[*]`, or the URL of a Spark cluster.
        app_name: shown by Spark's own tools.
        config: Spark settings that win over Hadron's.

    Raises `ConfigurationError` when pyspark or Java is missing or Spark does not start.
    """
    check_extra()
    check_master(master)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    silence_pyspark()
    _prepare_environment(is_local(master))
    settings = {**_settings(master), **(config or {})}
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        _launch_java({"spark.master": master, "spark.app.name": app_name, **settings})
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            f"Spark does not start on {master!r}: {error}",
            f"see what Java says above; it is {os.environ['JAVA_HOME']}",
        ) from error


def warm_up(spark: SparkSession) -> None:
    """Have what a first job waits for: Java's classes, and a Python worker for each core. A stage's
    timeout is for its function, and that takes seconds. Blocks meanwhile."""
    # Whatever is wrong, the first stage that runs says so.
    with contextlib.suppress(Exception):
        cores = spark.sparkContext.defaultParallelism
        spark.range(0, cores, 1, cores).mapInArrow(_as_given, "id LONG").toArrow()


def _as_given(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def activate(spark: SparkSession) -> None:
    """Make it the active session of the calling thread, as it is of the one that has started it:
    of a streaming query's sink Spark looks for the name in that one."""
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def silence_pyspark() -> None:
    """Without pyspark's own pages of JSON about an exception that it raises as well, py4j's
    tracebacks about Java that is gone, which it raises as well, and pyspark's warning about every
    UDF with plain type hints, which mean no pandas to it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "Cannot infer the eval type from type hints", UserWarning)
    # py4j logs it as the root logger itself; a filter that is there already is not added again.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not (record.module == "java_gateway" and record.exc_info)


def is_local(master: str) -> bool:
    """Whether Spark's tasks run inside the driver, on this machine."""
    return master == "local" or master.startswith("local[")


def check_master(master: str) -> None:
    """Raises `ConfigurationError` for what no Spark takes as a master: Java would need tens of
    seconds and a page to say so."""
    if not (
        is_local(master)
        or master == "yarn"
        or "://" in master
        or master.startswith("local-cluster[")
    ):
        raise ConfigurationError(
            f"{master!r} is no Spark master",
            "use local[*], local[4], spark://HOST:7077, k8s://https://HOST:PORT or yarn",
        )


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
            # Java ends a thread that finds no memory and goes on without it: whoever waits for what
            # that would have sent, waits for ever.
            " -XX:+ExitOnOutOfMemoryError"
        ),
    }
    if is_local(master):
        scratch = scratch_directory()
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
            "spark.local.dir": str(scratch),
            "spark.python.daemon.module": daemon.NAME,
        }
    elif os.environ.get("PYTHONPATH"):
        # A local master's workers inherit it. Elsewhere it helps where file systems are shared.
        settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    return settings


def see_current_directory() -> None:
    """Let modules in the current directory be imported, as `python -m` does, by Spark's Python
    workers too. To be called before Spark starts."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    given = os.environ.get("PYTHONPATH")
    if here not in (given or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *([given] if given else [])])


# --- the Java process ---------------------------------------------------------------------------


def _launch_java(settings: Mapping[str, str]) -> None:
    """Start the Java process that sessions of this process share, unless there is one.

    Its standard error passes through this process, which leaves out a warning that says nothing.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
    try:
        launch: Any = java_gateway.launch_gateway
        # In a session of its own: a signal to this process's group asks this process to finish
        # what is under way, for which it needs Java.
        gateway = launch(conf, {"stderr": writing, "start_new_session": True})
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(_STRAY_WARNING):
                with contextlib.suppress(OSError, ValueError):
                    os.write(_STDERR, line)


def end(spark: SparkSession) -> None:
    """Stop a session and the Java process behind it, and wait until that is gone."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    # Java may be gone already; then there is nothing to say to it.
    with _gone_is_fine():
        spark.stop()
    if process is None:
        return
    with _gone_is_fine():
        gateway.shutdown()
    # What the next session would use must not be the one that ends here.
    SparkContext._gateway = SparkContext._jvm = None
    # Spark's Java ends when its standard input does.
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        _log.debug("Java was gone before it was stopped: %s", error)


@functools.cache
def scratch_directory() -> Path:
    """Spark's temporary files, away from the user's working directory; gone at exit. Those of a
    process that was killed go with the next one that starts."""
    root = Path(tempfile.gettempdir())
    for each in root.glob(f"{_SCRATCH}*"):
        if (left := _lock(each)) is not None:
            shutil.rmtree(each, ignore_errors=True)
            os.close(left)
    made = Path(tempfile.mkdtemp(prefix=f"new-{_SCRATCH}", dir=root))
    # Locked for as long as this process lives, and before it has the name that others look for.
    locked = _lock(made)
    assert locked is not None, made
    directory = made.rename(made.with_name(made.name.removeprefix("new-")))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _lock(directory: Path) -> int | None:
    """Lock it, for this process; None where another one has it, or it is not ours."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
