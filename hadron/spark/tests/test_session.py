"""The Java process behind a session: apart from signals to its runner, and allowed to be gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hadron.model.errors import ConfigurationError
from hadron.spark.session import check_master

_PROBE = """
import os, signal
from pyspark import SparkContext
from hadron.spark.session import end, session
spark = session("local[1]", "probe")
java = SparkContext._gateway.proc
assert os.getpgid(java.pid) != os.getpgrp(), "a signal to our group would end it"
try:
    spark.range(1).select("typo")
except Exception as error:
    print(type(error).__name__)
java.kill()
java.wait()
end(spark)
print("ended")
"""

_FULL = """
import logging
from pyspark import SparkContext
from hadron.spark.session import end, session
logging.disable()
spark = session("local[1]", "probe")
gateway = SparkContext._gateway
try:
    gateway.new_array(gateway.jvm.byte, 2_000_000_000)
except Exception as error:
    print(type(error).__name__)
gateway.proc.wait()
end(spark)
print("ended")
"""


@pytest.mark.spark
def test_a_session_whose_java_was_killed_ends_quietly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.stdout, done.returncode) == ("AnalysisException\nended\n", 0), done.stderr
    assert '"level"' not in done.stderr, "pyspark's JSON about what it raises as well"
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_java_that_finds_no_memory_ends() -> None:
    """It would end the thread that wanted some, and let those who wait for that wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "OutOfMemoryError" in done.stdout
    assert done.stdout.endswith("ended\n")


def test_what_is_no_master_is_told_before_java_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"'localhost:7077' is no Spark master .*spark://"):
        check_master("localhost:7077")
    for master in ("local", "local[*]", "local-cluster[2,1,1024]", "spark://h:7077", "yarn",
                   "k8s://https://h:443"):
        check_master(master)
