"""`hadron bench groups`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import groups


def test_every_figure_is_measured_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(groups, "GROUPS", (1, 2))
    monkeypatch.setattr(groups, "MEMBERS", (1, 3))
    monkeypatch.setattr(groups, "SHORT_LOG", 500)
    monkeypatch.setattr(groups, "_ROUNDS", 1)
    plan = groups.Plan(
        nodes=1, record_bytes=100, durability="fsync", seconds=0.2, log_records=2_000,
        fill_s=30.0, idle_members=3, holes=100,
    )
    assert groups.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["short_log_records"] == 500
    assert (figures["long_log_records"], figures["acknowledged_ranges"]) == (2_000, 100)
    for name in (
        "groups_1_records_per_s", "groups_2_records_per_s", "members_3_records_per_s",
        "alone_records_per_s", "beside_stopped_records_per_s", "short_log_p50_us",
        "long_log_p50_us", "holes_p50_us", "holes_p99_us",
    ):
        assert figures[name] > 0, name
    rows = groups._rows({name: value for name, value in figures.items()
                         if isinstance(value, int | float)})
    assert (rows[3][0], rows[4][0]) == ("3 members", "an idle member")
