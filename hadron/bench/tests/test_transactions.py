"""`hadron bench transactions`, in small, against nodes of its own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hadron.bench import transactions
from hadron.bench.transactions import PARTS, Plan
from hadron.model.errors import DeadlineExceededError


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


async def test_it_is_filled_with_as_many_records_as_are_counted() -> None:
    sent: list[int] = []

    class Producer:
        async def __aenter__(self) -> Producer:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def send_many(self, values: list[bytes]) -> None:
            sent.append(len(values))

    client = SimpleNamespace(producer=lambda _: Producer())
    plan = Plan(1, 50, "os", 0.1, 1, 1_001, ("steps",))
    await transactions._fill(cast(Any, client), "steps-in", plan)
    assert sent == [1_000, 1]


async def test_a_round_that_takes_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    del autojump_clock

    async def stuck(_client: object, group: str, _records: int) -> None:
        if not group.endswith("-warm"):
            await trio.sleep_forever()

    async def nothing(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    for name in ("_declare", "_fill"):
        monkeypatch.setattr(transactions, name, nothing)
    monkeypatch.setattr(transactions, "_consume_in_steps", stuck)
    monkeypatch.setattr(transactions, "_consume_and_publish", stuck)
    plan = Plan(1, 50, "os", 0.1, 1, 1_001, ("steps",))
    with pytest.raises(DeadlineExceededError, match=r"1,001 records.* than 60 s") as raised:
        await transactions.measure_steps(cast(Any, None), plan)
    assert raised.value.hint == "give it fewer --records"
