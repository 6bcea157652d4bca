"""The threads of a blocking stage, with invocations that nobody has sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hadron.client.blocking.workers import Workers
from hadron.model.errors import ConfigurationError


class _Invocation:
    def __init__(self) -> None:
        self._given = SimpleNamespace(
            stage=SimpleNamespace(name="s", timeout_ms=60_000),
            is_late=False,
            is_closed=False,
            on_late=None,
        )
        self.is_ended = True

    def __enter__(self) -> _Invocation:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_too_many_calls_that_hang_end_it() -> None:
    closed, end = threading.Event(), threading.Event()
    calls = 0

    def invocations() -> Iterator[Any]:
        while not closed.is_set():
            yield _Invocation()

    def handle(invocation: Any) -> None:
        nonlocal calls
        calls += 1
        threading.Thread(target=invocation._given.on_late).start()
        end.wait(60)

    workers = Workers(handle, invocations, closed.set, closed.is_set, most_left=3)
    with pytest.raises(ConfigurationError, match="3 calls of the handler of stage 's' did not"):
        workers.run(1)
    assert calls == 3, "the first one, and one in the place of each other"
    end.set()


def test_after_its_end_nobody_waits_for_what_is_over() -> None:
    closed, end = threading.Event(), threading.Event()

    def invocations() -> Iterator[Any]:
        while not closed.is_set():
            invocation = _Invocation()
            invocation._given.stage.timeout_ms = 100
            yield invocation

    def handle(_: Any) -> None:
        closed.set()
        end.wait(60)

    Workers(handle, invocations, closed.set, closed.is_set).run(2)
    end.set()


def test_where_the_system_gives_no_thread_nobody_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed, end, start, begun = threading.Event(), threading.Event(), threading.Thread.start, 0

    def start_some(thread: threading.Thread) -> None:
        nonlocal begun
        if thread.name == "hadron-stage":
            begun += 1
            if begun > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    def invocations() -> Iterator[Any]:
        end.wait(60)
        yield from ()

    monkeypatch.setattr(threading.Thread, "start", start_some)
    workers = Workers(lambda _: None, invocations, end.set, closed.is_set)
    with pytest.raises(RuntimeError, match="can't start"):
        workers.run(3)
    assert begun == 2
