"""What members have dealt with, on its way into the log: bounded while no majority is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hadron.delivery import ledger as module
from hadron.delivery import machine
from hadron.delivery.ledger import Confirmation, LoggedLedger
from hadron.delivery.telling import held_back
from hadron.delivery.tests.support import Consumer
from hadron.serving.tests.stack import Stack, leading
from hadron.state.groups.endings import EndDeliveries


class NoMajority:
    """A controller of which nothing is committed until it is told."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self._done: list[Callable[[Any, Any], None]] = []
        self.is_patient = False
        """Whether nobody waits for the latest."""

    def submit(self, command: Any, *, done: Callable[[Any, Any], None], is_patient: bool) -> None:
        self.commands.append(command)
        self._done.append(done)
        self.is_patient = is_patient

    def hurry(self) -> None:
        self.is_patient = False

    def commit(self) -> None:
        while self._done:
            self.commit_one()

    def commit_one(self) -> None:
        """What is logged upon that waits."""
        self._done.pop(0)(0, None)


class Confirmed:
    """A member's call: what it was told of its acknowledgements."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def confirm(self, number: int, *_: Any) -> None:
        self.confirmed.append(number)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        yield stack


def ledger_of(controller: Any) -> LoggedLedger:
    return LoggedLedger(controller, 1, 0, lambda *_: None, lambda _: None)


def test_what_waits_for_the_log_is_kept_as_ranges() -> None:
    controller = NoMajority()
    ledger = ledger_of(controller)
    for offset in range(20_000):
        ledger.acknowledge([(offset, offset)])
        ledger.flush()
    assert ledger.unlogged == 1
    controller.commit()
    assert [command.ranges for command in controller.commands] == [((0, 0),), ((1, 19_999),)]
    assert (ledger.unlogged, ledger.is_idle) == (0, True)


def test_a_confirmation_does_not_wait_for_what_is_said_after_it() -> None:
    """Members deal with one record in two, as fast as entries take them."""
    controller, sink = NoMajority(), Confirmed()
    ledger = ledger_of(controller)
    for number in range(5):
        for offset in range(2_000 * number, 2_000 * (number + 1), 2):
            ledger.acknowledge([(offset, offset)])
        ledger.confirm(Confirmation(sink, number, []))  # type: ignore[arg-type]
    said, heard = 10_000, []
    ledger.flush()
    for _ in range(14):
        controller.commit_one()
        heard.append(len(sink.confirmed))
        # An entry ends 500 of them, and as many come meanwhile.
        for _ in range(500):
            ledger.acknowledge([(said, said)])
            said += 2
    assert heard == [0, *[1] * 8, *[5] * 5], "of 1,000 after two entries, of 4,000 after eight more"
    ended = [offset for command in controller.commands for offset, _ in command.ranges]
    assert len(ended) == len(set(ended))


def test_what_is_said_behind_a_question_goes_with_it_where_there_is_room() -> None:
    controller, sink = NoMajority(), Confirmed()
    ledger = ledger_of(controller)
    ledger.acknowledge([(10, 19)])
    ledger.confirm(Confirmation(sink, 1, []))  # type: ignore[arg-type]
    ledger.acknowledge([(20, 29), (0, 0)])
    ledger.confirm(Confirmation(sink, 2, []))  # type: ignore[arg-type]
    ledger.flush()
    assert [command.ranges for command in controller.commands] == [((0, 0), (10, 29))]
    assert not sink.confirmed
    controller.commit()
    assert (sink.confirmed, ledger.is_idle) == ([1, 2], True)
    ledger.confirm(Confirmation(sink, 3, []))  # type: ignore[arg-type]
    ledger.flush()
    assert sink.confirmed == [1, 2, 3]


def test_who_asks_for_a_confirmation_hurries_what_is_on_its_way() -> None:
    controller, sink = NoMajority(), Confirmed()
    ledger = ledger_of(controller)
    ledger.acknowledge([(0, 9)])
    ledger.flush()
    assert controller.is_patient
    ledger.acknowledge([(10, 19)])
    ledger.flush()
    assert controller.is_patient, "nobody waits for these either"
    ledger.confirm(Confirmation(sink, 1, []))  # type: ignore[arg-type]
    ledger.flush()
    assert not controller.is_patient
    controller.commit_one()
    assert not controller.is_patient, "what was asked for comes with the next"
    controller.commit_one()
    assert sink.confirmed == [1]


def test_what_follows_in_an_order_waits_for_nobody() -> None:
    controller = NoMajority()
    ledger = LoggedLedger(
        controller,  # type: ignore[arg-type]
        1,
        0,
        lambda *_: None,
        lambda _: None,
        is_awaited=True,
    )
    ledger.acknowledge([(0, 9)])
    ledger.flush()
    assert not controller.is_patient


def test_attempts_that_later_ones_replace_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records are given back over and over while nothing can be logged."""
    monkeypatch.setattr(module, "_TIDY_BEYOND", 50)
    controller = NoMajority()
    ledger = ledger_of(controller)
    ledger.record_attempts([(0, 99, 1)])
    for number in range(2, 1_000):
        for offset in range(0, 100, 10):
            ledger.record_attempts([(offset, offset, number)])
        assert ledger.unlogged <= 2 * 20 + 50 + 1
    controller.commit()
    logged: dict[int, int] = {}
    for command in controller.commands:
        assert isinstance(command, EndDeliveries)
        for first, last, number in command.attempts:
            logged.update(dict.fromkeys(range(first, last + 1), number))
    assert logged == {offset: 1 if offset % 10 else 999 for offset in range(100)}


async def test_what_waits_for_the_log_holds_back_what_is_new(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A majority is away; a member deals with every other record, which leaves 25 pieces with it
    and 24 behind the one on its way. It would be given more for each quarter of its window."""
    monkeypatch.setattr(machine, "MAX_UNSETTLED", 45)
    await stack.append(1, *[b"x"] * 1_000)
    member = await Consumer(stack).join(100)
    assert len(member.offsets) == 100
    submit, waiting = stack.controller.submit, list[Callable[[], None]]()
    monkeypatch.setattr(
        stack.controller,
        "submit",
        lambda *what, **how: waiting.append(partial(submit, *what, **how)),
    )
    for number in range(0, 50, 2):
        member.acknowledge(number, number)
    group = member.driver.machine
    assert (member.driver.ledger.unlogged, group.unsettled) == (24, 49)
    assert "of which wait for a majority" in held_back(group, 1_000)
    assert len(member.offsets) == 100
    monkeypatch.setattr(stack.controller, "submit", submit)
    for each in waiting:
        each()
    await member.call.until(lambda: len(member.offsets) > 100)
    assert member.driver.ledger.unlogged == 0
    assert held_back(group, 1_000) == ""
