"""`hadron bench http`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import http
from hadron.bench.http import PARTS, Plan


def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "AT_ONCE", (1, 4))
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        seconds=0.2,
        rounds=1,
        records=4_000,
        parts=tuple(PARTS),
    )
    assert http.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "http_publish_1_p50_ms",
        "http_publish_4_per_s",
        "http_publish_4_leader_us",
        "http_lines_per_s",
    ):
        assert figures[name] > 0, name
    assert [each["met"] in (True, False) for each in figures["verdicts"]] == [True] * 3
