"""`hadron bench endpoints`, in small, against a node of its own."""

from __future__ import annotations

import json
import shutil

import pytest

from hadron.bench import endpoints
from hadron.bench.endpoints import Plan


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert endpoints.run(Plan(nodes=1, value_bytes=50, seconds=0.2, rounds=1), "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "plain_request_p50_ms",
        "call_one_p50_ms",
        "call_one_to_plain",
        "call_64_per_s",
        "stream_values_per_s",
        "cpu_leader_us",
        "cpu_server_us",
        *(("nats_one_p50_ms", "call_64_to_nats") if shutil.which("nats-server") else ()),
    ):
        assert figures[name] > 0, name
    assert len([each for each in figures["verdicts"] if each["met"] is not None]) == 2
