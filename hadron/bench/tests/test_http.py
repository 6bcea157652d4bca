"""`hadron bench http`, in small, against a node of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import http
from hadron.bench.http import AT_ONCE, MIN_PER_S, PARTS, Plan


@pytest.mark.long
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


def test_the_verdict_is_of_the_load_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = dict.fromkeys(AT_ONCE, MIN_PER_S * 2) | {max(AT_ONCE): MIN_PER_S / 2}
    monkeypatch.setattr(http, "_load", lambda _address, _asked, count, _s: ([0.1], rates[count]))
    plan = Plan(1, 50, "os", 0.2, 1, 4_000, tuple(PARTS))
    [part] = http.measure_publish(".", plan, lambda: 0.0)
    verdict = part.verdicts[-1]
    assert (verdict.what, verdict.is_met) == (f"{max(AT_ONCE)} at a time", False)
