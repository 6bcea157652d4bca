"""`hadron bench grpc`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import grpc
from hadron.bench.grpc import PARTS, Plan


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpc, "_WARM", 1)
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        seconds=0.2,
        rounds=1,
        subscriptions=20,
        parts=tuple(PARTS),
    )
    assert grpc.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "grpc_publish_1_p50_ms",
        "grpc_publish_64_per_s",
        "grpc_call_64_per_s",
        "grpc_bare_64_leader_us",
        "framed_beside_idle_to_alone",
    ):
        assert figures[name] > 0, name
    assert all(each["met"] in (True, False) for each in figures["verdicts"])
    assert len(figures["verdicts"]) >= 4
