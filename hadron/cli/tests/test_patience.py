"""Whoever waits is told for what, and nobody else."""

from __future__ import annotations

import logging
import threading
import time

import click
import pytest

from hadron.cli import patience
from hadron.cli.patience import Seldom, telling
from hadron.cli.root import run


def test_a_long_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(click, "echo", lambda *_, **__: told.set())
    with telling("waiting", 0.01):
        assert told.wait(60)


def test_a_short_wait_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with telling("waiting", 60):
        pass
    with telling("waiting", 60) as hush:
        hush()
    assert capsys.readouterr().err == ""
    running = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(timer.finished.is_set() for timer in running)


def test_the_same_words_are_shown_once_a_minute() -> None:
    now_s = [0.0]
    seldom = Seldom(lambda: now_s[0])

    def shows(text: str) -> bool:
        return seldom.filter(logging.LogRecord("x", logging.WARNING, "", 0, text, None, None))

    assert [shows("a"), shows("a"), shows("b")] == [True, False, True]
    now_s[0] = 59.0
    assert not shows("a")
    now_s[0] = 60.0
    assert shows("a")


@pytest.mark.long
def test_commands_say_what_they_try(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "CONNECTING_TOLD_AFTER_S", 0.0)
    begun_s = time.monotonic()
    assert run(["status", "--server", "hadron://token@127.0.0.1:1,127.0.0.1:2"]) == 1
    assert time.monotonic() - begun_s < 9
    said = capsys.readouterr().err
    assert said.startswith("trying 127.0.0.1:1, 127.0.0.1:2 …\n")
    assert "error: no node answered at 127.0.0.1:1, 127.0.0.1:2 within 3 s" in said
