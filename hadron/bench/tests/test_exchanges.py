"""`hadron bench exchanges`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import exchanges
from hadron.bench.exchanges import PARTS, Plan


def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchanges, "_WARM_UP", 1)
    plan = Plan(
        nodes=1,
        record_bytes=50,
        seconds=0.2,
        rounds=1,
        subscribers=10,
        messages=10,
        idle=500,
        parts=tuple(PARTS),
    )
    assert exchanges.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in ("deliveries_per_s", "delivered_p50_us", "beside_few_us", "beside_many_us"):
        assert figures[name] > 0, name
    assert figures["missed"] == 0
    assert len([each for each in figures["verdicts"] if each["met"] is not None]) == 2
