"""`hadron bench`, in small, against a node of its own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from hadron.bench import main, workloads
from hadron.bench.workloads import Measured
from hadron.client import connect
from hadron.node.supervision.cluster import LocalCluster

_SECONDS = 30.0
"""What the workload may take; what there is to consume takes a fraction of it."""

_RECORDS = 5_000


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_IDLE_S", 0.1)
    monkeypatch.setattr(workloads, "_WARM_UP", 5)


@pytest.mark.parametrize("name", ["consume_batch", "consume_single"])
def test_the_clock_stops_with_the_last_record(name: str, tmp_path: Path) -> None:
    async def measure(url: str) -> Measured:
        async with connect(url) as client:
            await workloads.declare(client, "s")
            async with client.producer("s") as producer:
                await producer.send_many([b"x" * 100] * _RECORDS)
            found: Measured = await getattr(workloads, name)(client, "s", _SECONDS)
            return found

    with LocalCluster(tmp_path, nodes=1, durability="os") as cluster:
        measured = anyio.run(partial(measure, cluster.url), backend="trio")
    assert measured.records == _RECORDS
    # The whole time would be 30 s and more.
    assert measured.seconds < _SECONDS
    assert measured.figures == {f"{name}_records_per_s": _RECORDS / measured.seconds}


def test_a_percentile_is_the_median_of_the_rounds() -> None:
    rounds = iter([[1.0] * 10, [9.0] * 10, [2.0] * 10])

    async def one_round() -> list[float]:
        return next(rounds)

    measured = anyio.run(workloads._in_rounds, "x", one_round, backend="trio")
    assert measured.figures == {"x_p50_ms": 2e3, "x_p99_ms": 2e3, "x_p999_ms": 2e3}
    assert measured.records == 30


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_each_figure_says_what_it_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(1, 100, "os", "json", 0.2) == 0
    found = json.loads(capsys.readouterr().out)
    for name in (
        "publish_one",
        "publish_many",
        "publish_send",
        "read",
        "consume_batch",
        "consume_single",
        "deliver",
    ):
        assert found[f"{name}_records"] > 0, name
        assert found[f"{name}_s"] > 0, name
        if f"{name}_records_per_s" in found:
            expected = found[f"{name}_records"] / found[f"{name}_s"]
            assert found[f"{name}_records_per_s"] == pytest.approx(expected, rel=0.02), name
    for name in ("publish_one", "publish_many_batch", "deliver"):
        assert 0 < found[f"{name}_p50_ms"] <= found[f"{name}_p99_ms"] <= found[f"{name}_p999_ms"]


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_the_table_shows_them_beside_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(1, 100, "os", "table", 0.1) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "consume + ack, batches" in line]
    *_, records, took, _ = [cell.strip() for cell in line.split("│")]
    assert int(records.replace(",", "")) > 0
    assert took.endswith(" s")
    (line,) = [line for line in lines if "publish → delivered" in line]
    assert "p50 / p99 / p99.9" in line
