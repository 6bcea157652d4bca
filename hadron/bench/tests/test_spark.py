"""`hadron bench spark`, in small, against a node of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hadron.bench import spark
from hadron.bench.spark import PARTS, Plan
from hadron.model.errors import PeerError

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """As it was before Spark has changed it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark, "_WARM_UP", 1)
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        rounds=1,
        rows=2_000,
        instances=1_000,
        handled=500,
        bad=100,
        triggers=2,
        parts=tuple(PARTS),
    )
    assert spark.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "sink_rows_per_s",
        "read_rows_per_s",
        "parquet_rows_per_s",
        "read_to_parquet",
        "completions_per_s",
        "spark_p50_ms",
        "raising_sql_1_s",
        "raising_python_10_s",
        "raising_pandas_10_s",
        "without_per_s",
        "p50_ms",
    ):
        assert figures[name] > 0, name
    assert len(figures["verdicts"]) == 8
    assert all(each["met"] in (True, False) for each in figures["verdicts"])


@pytest.mark.long
def test_one_part_is_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        rounds=1,
        rows=1_000,
        instances=1_000,
        handled=500,
        bad=100,
        triggers=2,
        parts=("sink",),
    )
    assert spark.run(plan, "table") == 0
    shown = capsys.readouterr().out
    assert "1,000 rows of 50 B written to a stream" in shown
    assert "trigger" not in shown


def test_the_command_knows_every_part() -> None:
    from hadron.cli.commands import bench

    assert tuple(PARTS) == bench._SPARK_PARTS


async def test_rows_that_are_not_there_have_no_rate() -> None:
    class Client:
        async def offsets(self, _stream: str) -> tuple[Any, ...]:
            return (SimpleNamespace(next_offset=999),)

    await spark._check_count(cast(Any, Client()), "sunk", 999)
    with pytest.raises(PeerError, match="sunk has 999 records, and not 1,000"):
        await spark._check_count(cast(Any, Client()), "sunk", 1_000)
