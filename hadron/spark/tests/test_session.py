"""The Java process behind a session: apart from signals to its runner, and allowed to be gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.spark
def test_a_session_whose_java_was_killed_ends_quietly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.stdout, done.returncode) == ("AnalysisException\nended\n", 0), done.stderr
    assert '"level"' not in done.stderr, "pyspark's JSON about what it raises as well"
    assert "Traceback" not in done.stderr
