"""What is told of a micro-batch: how much is to come behind it, where that is known."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.cli.pipelines.stream_running import _Shown
from hadron.spark.streaming import Batch, _lag


def at(**offsets: int) -> dict[str, Any]:
    return {name: {"offset": offset, "stream_id": 3} for name, offset in offsets.items()}


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([(at(p0=20, p1=7), at(p0=50, p1=7))], 30),
        ([(at(p0=50), at(p0=40))], 0),
        # A batch that a runner left behind: Spark asks for no latest offset before it.
        ([(at(p0=20), None)], None),
        ([(at(p0=20), at(p0=30)), (at(p0=20), None)], None),
        # Of other sources, which number their records otherwise.
        ([(at(p0=20), at(p0=30)), (7, None), ({"topic": {"0": 5}}, {"topic": {"0": 9}})], 10),
    ],
)
def test_what_is_to_come_is_counted_from_where_the_batch_ends(
    sources: list[tuple[Any, Any]], lag: int | None
) -> None:
    told = [{"endOffset": done, "latestOffset": there} for done, there in sources]
    assert _lag({"sources": told}) == lag


@pytest.mark.parametrize(("lag", "told"), [(1_200, "; 1,200 to come\n"), (None, " 0.50 s\n")])
def test_what_is_not_known_to_come_is_not_told(
    lag: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _Shown("p")
    shown.batch(Batch(3, 2_000, 0.5, lag))
    assert capsys.readouterr().out.endswith(told)
