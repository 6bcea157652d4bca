"""What is said of a pipeline with `mode: stream`, and of how its query goes on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hadron.cli.pipelines.stream_running import _Shown
from hadron.cli.pipelines.streaming import sentence

FAILED = """Terminated with exception: Job aborted due to stage failure: Task 0 in stage 0.0 failed
1 times: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
ValueError: no k3 here
"""


@pytest.mark.parametrize(
    ("doing", "told"),
    [
        ("Initializing sources", "Initializing sources"),
        (FAILED, "Terminated with exception: Job aborted due to stage failure: Task 0 in stage"),
        ("Failed: Traceback (most recent call last):\n  File", "Failed"),
        ("x" * 2_000, "x" * 199 + "…"),
    ],
)
def test_what_spark_does_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, doing: str, told: str
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    shown = _Shown("delays")
    now_s[0] = 60.0
    shown.wait(doing)
    err = capsys.readouterr().err
    assert err.startswith(f"delays: no batch has ended yet; Spark: {told}")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_where_it_can_be_seen_how_much_is_to_come() -> None:
    row: dict[str, Any] = {
        "name": "delays",
        "input": "flights",
        "output": "delays",
        "batch": 3,
        "published_ms": 1_000,
        "input_lag": None,
    }
    assert "HADRON_CHECKPOINTS=DIR" in sentence(row)
    assert sentence({**row, "input_lag": 5}).endswith(", 5 records of the input to come")
