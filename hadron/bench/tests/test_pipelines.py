"""`hadron bench pipelines`, in small, against a node of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from hadron.bench import pipelines
from hadron.bench.pipelines import PARTS, Plan, Speed


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


_PLAN = Plan(1, 50, "os", 1, 100, 5, 1_000, tuple(PARTS))


class Scene:
    """A client, a leader and a producer, which say what was done, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        for name in ("_declare_streams", "_declare_pipeline"):
            monkeypatch.setattr(pipelines, name, partial(self._do, name))

    async def _do(self, what: str, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(what)

    async def __aenter__(self) -> Scene:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def send_many(self, _values: object) -> None:
        await self._do("send_many")

    async def restart(self, _client: object) -> None:
        await self._do("restart")

    async def pipeline_progress(self, _name: str) -> Sequence[Any]:
        await self._do("progress")
        return (SimpleNamespace(done=100, instances=1_000),)

    def producer(self, _stream: str) -> Scene:
        return self

    def stage(self, *_: object, **_options: object) -> Any:
        return SimpleNamespace(run=partial(self._do, "run"))

    def cpu_s(self) -> float:
        return float(self.done.count("_declare_pipeline"))

    def rss_bytes(self) -> int:
        self.done.append("rss_bytes")
        return 0


async def test_the_clock_begins_with_the_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = cast(Any, Scene(monkeypatch))
    speed = await pipelines._run_all(scene, _PLAN, scene, "p", "without output")
    # The second that the leader took for the declaration, over 100 instances.
    assert speed.leader_us == 1e6 / 100


async def test_the_first_round_of_each_kind_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = cast(Any, Scene(monkeypatch))
    rates = iter([1.0, 20.0, 3.0, 40.0])

    async def run_all(*_: object) -> Speed:
        await trio.lowlevel.checkpoint()
        return Speed(next(rates), 0.0, 0.0)

    monkeypatch.setattr(pipelines, "_run_all", run_all)
    part = await pipelines.measure_instances(scene, _PLAN, scene)
    assert (part.figures["without_per_s"], part.figures["with_per_s"]) == (20.0, 40.0)


async def test_memory_is_taken_of_a_leader_that_was_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)

    async def lateness(*_: object) -> list[float]:
        await trio.lowlevel.checkpoint()
        return [1.0]

    monkeypatch.setattr(pipelines, "_lateness", lateness)
    await pipelines.measure_waiting(cast(Any, scene), _PLAN, cast(Any, scene))
    first = scene.done.index("rss_bytes")
    assert scene.done[first - 1] == "restart"
    assert "send_many" in scene.done[:first]
