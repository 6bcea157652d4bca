"""`hadron bench exchanges`, in small, against a node of its own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from hadron.bench import exchanges
from hadron.bench.exchanges import PARTS, Plan
from hadron.bench.report import Part, kept
from hadron.model.errors import HadronError


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


class Dropping:
    """A client with one subscription, which misses every fourth message."""

    def __init__(self, interruptions: int = 0) -> None:
        self.missed = 0
        self.interruptions = interruptions
        self._send, self._receive = trio.open_memory_channel[int](1 << 30)

    async def __aenter__(self) -> Dropping:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def exchange(self, _name: str) -> Dropping:
        return self

    subscribe = exchange

    async def publish_many(self, chunk: list[Any]) -> None:
        await trio.lowlevel.checkpoint()
        for at in range(len(chunk)):
            if at % 4:
                self._send.send_nowait(at)
        self.missed += len(chunk) // 4

    def __aiter__(self) -> Dropping:
        return self

    async def __anext__(self) -> int:
        return await self._receive.receive()


async def _fan_out(monkeypatch: pytest.MonkeyPatch, client: Dropping) -> exchanges.FanOut:
    monkeypatch.setattr(exchanges, "connect", lambda _url: client)
    plan = Plan(1, 50, 0.5, 1, 1, 10, 500, ("fan-out",))
    leader = SimpleNamespace(cpu_s=lambda: 0.0)
    with trio.fail_after(60):
        return await exchanges._fan_out("", cast(Any, client), plan, cast(Any, leader))


async def test_what_is_missed_is_neither_waited_for_nor_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await _fan_out(monkeypatch, Dropping())
    assert found.missed > exchanges._AHEAD * exchanges._CHUNK
    assert found.deliveries_per_s == pytest.approx(found.messages_per_s * 3 / 4)


async def test_nobody_waits_for_what_was_lost_while_the_leader_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        await _fan_out(monkeypatch, Dropping(interruptions=1))
    assert isinstance(raised.value.exceptions[0], HadronError)


def test_what_an_error_has_ended_is_not_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*arguments: Any) -> None:
        arguments[-1].append(Part("Fan-out", ("", "per second"), [("measured", "3")]))
        # As all that a task group's tasks raise.
        raise ExceptionGroup("tasks", [HadronError("the leader is gone")])

    monkeypatch.setattr(exchanges, "_measure", fail)
    with pytest.raises(ExceptionGroup):
        exchanges.run(Plan(1, 50, 0.2, 1, 1, 10, 500, ("fan-out",)), "json")
    found = capsys.readouterr()
    assert found.out == ""
    assert "not all was measured" in found.err
    assert "Fan-out" in found.err
    assert "Verdicts" not in found.err


def test_nothing_is_shown_of_what_found_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HadronError), kept([]):
        raise HadronError("the leader is gone")
    assert capsys.readouterr() == ("", "")
