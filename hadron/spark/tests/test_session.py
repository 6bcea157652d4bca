"""The Java process behind a session: apart from signals to its runner, and allowed to be gone."""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hadron.model.errors import ConfigurationError
from hadron.node.supervision.processes import environment
from hadron.spark.session import check_master, silence_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.mark.long
@pytest.mark.spark
def test_a_session_whose_java_was_killed_ends_quietly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.stdout, done.returncode) == ("AnalysisException\nended\n", 0), done.stderr
    assert '"level"' not in done.stderr, "pyspark's JSON about what it raises as well"
    assert "Traceback" not in done.stderr


def test_java_that_resets_a_connection_is_an_error_but_no_page_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a process that is killed does with what it was sent and has not read."""
    py4j = pytest.importorskip("py4j.java_gateway")
    with socket.create_server(("127.0.0.1", 0)) as java:
        threading.Thread(target=_reset_all, args=(java,), daemon=True).start()
        parameters = py4j.GatewayParameters(port=java.getsockname()[1])
        gateway = py4j.JavaGateway(gateway_parameters=parameters)
        silence_pyspark()
        silence_pyspark()
        with pytest.raises(Exception, match="An error occurred while calling"):
            gateway.entry_point.anything()
        java.close()
    logging.getLogger().error("of somebody else")
    assert [record.getMessage() for record in caplog.records] == ["of somebody else"]


def _reset_all(java: socket.socket) -> None:
    while True:
        try:
            connection, _ = java.accept()
        except OSError:
            return
        with connection:
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.spark
def test_java_is_told_to_end_when_it_finds_no_memory(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert "-XX:+ExitOnOutOfMemoryError" in list(arguments)


@pytest.mark.long
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
    for master in (
        "local",
        "local[*]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "yarn",
        "k8s://https://h:443",
    ):
        check_master(master)


_SCRATCH = """
import time
from hadron.spark.session import scratch_directory
print(scratch_directory(), flush=True)
time.sleep({seconds})
"""


def _scratch(directory: Path, seconds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRATCH.format(seconds=seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "TMPDIR": str(directory)},
    )


def test_what_a_killed_process_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    with _scratch(tmp_path, 600) as lives, _scratch(tmp_path, 600) as killed:
        assert lives.stdout is not None
        assert killed.stdout is not None
        kept, left = lives.stdout.readline().strip(), killed.stdout.readline().strip()
        assert {str(each) for each in tmp_path.iterdir()} == {kept, left}
        killed.kill()
        killed.wait()
        with _scratch(tmp_path, 0) as following:
            made, _ = following.communicate(timeout=60)
        assert made.startswith(str(tmp_path / "hadron-spark-"))
        assert [str(each) for each in tmp_path.iterdir()] == [kept]
        lives.kill()
