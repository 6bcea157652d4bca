"""`hadron bench pipelines`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import pipelines
from hadron.bench.pipelines import PARTS, Plan


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipelines, "_WARM_UP", 1)
    monkeypatch.setattr(pipelines, "_SHORT_MS", 50)
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        rounds=1,
        instances=500,
        triggers=5,
        waiting=1_000,
        parts=tuple(PARTS),
    )
    assert pipelines.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in ("without_per_s", "with_per_s", "p50_ms", "created_per_s", "late_max_ms"):
        assert figures[name] > 0, name
    assert [each["met"] in (True, False) for each in figures["verdicts"]] == [True] * 4
