"""`hadron bench transactions`, in small, against nodes of its own."""

from __future__ import annotations

import json

import pytest

from hadron.bench import transactions
from hadron.bench.transactions import PARTS, Plan


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transactions, "AT_A_TIME", (1, 4))
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        seconds=0.1,
        rounds=1,
        records=3_000,
        parts=tuple(PARTS),
    )
    assert transactions.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "one_send_1_p50_ms",
        "one_one_set_4_per_s",
        "sets_two_sets_1_p99_ms",
        "sets_four_sets_4_p50_ms",
        "sets_two_sends_1_p50_ms",
        "bulk_plain_4_records_per_s",
        "bulk_transaction_1_to_plain",
        "plain_records_per_s",
        "steps_records_per_s",
        "steps_to_plain",
    ):
        assert figures[name] > 0, name
    judged = [each["what"] for each in figures["verdicts"]]
    assert len(judged) == 7
    assert [each["met"] for each in figures["verdicts"]].count(None) == 1, "what is shown only"
