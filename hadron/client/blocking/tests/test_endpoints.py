"""Endpoints that a blocking program calls and serves, through a real node."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep
from typing import Any

import anyio
import pytest

import hadron
from hadron.client.blocking.tests.support import ctrl_c_behind_the_call
from hadron.client.endpoints.calls import told
from hadron.model.record import JSON
from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1) as running:
        with hadron.connect_sync(running.url) as client:
            client.apply(
                "\n---\n".join(
                    f"{{kind: Endpoint, name: {name}, replica_set: local/p0{rest}}}"
                    for name, rest in (
                        ("quote", ""),
                        ("outer", ""),
                        ("squares", ", input: stream, output: stream"),
                    )
                )
            )
        yield running.url


@dataclass
class Order:
    amount: int


def test_calls_are_run_in_threads(url: str) -> None:
    both = threading.Barrier(2, timeout=10)

    def quote(order: Order) -> dict[str, int]:
        both.wait()
        return {"price": order.amount * 3}

    with hadron.connect_sync(url) as client, client.serve("quote", quote, max_in_flight=2):
        answers: list[Any] = []
        other = threading.Thread(target=lambda: answers.append(client.call("quote", {"amount": 1})))
        other.start()
        answers.append(client.call("quote", {"amount": 2}, answer_type=dict[str, int]))
        other.join(10)
        assert sorted(answer["price"] for answer in answers) == [3, 6]
        with pytest.raises(hadron.CallFailedError, match="amount") as raised:
            client.call("quote", {})
        assert raised.value.type == "ValidationError"


def test_a_server_that_nobody_has_opened_says_so(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with hadron.connect_sync(url) as client:
        client.serve("quote", str)
        gc.collect()
        (record,) = caplog.records
        assert record.getMessage().startswith("a server of 'quote', not open yet, is gone and has")
        assert "`with`" in record.getMessage()
        caplog.clear()
        # One that served, one that was closed and one that cannot be are no mistakes of that kind.
        with client.serve("quote", str):
            pass
        client.serve("quote", str).close()
        with pytest.raises(hadron.RequestError):
            client.serve("quote", str, max_in_flight=0)
        gc.collect()
        assert not caplog.records


def test_streams_go_both_ways(url: str) -> None:
    def squares(values: Iterator[int], call: hadron.IncomingCall) -> Iterator[int]:
        call.answer_headers["of"] = call.headers["of"]
        for value in values:
            yield value * value

    with hadron.connect_sync(url) as client, client.serve("squares", squares):
        with client.call_stream("squares", headers={"of": "numbers"}) as call:
            for number in (1, 2, 3):
                call.send(number)
            assert next(call) == 1
            assert call.headers == {"of": "numbers"}
            call.end()
            assert list(call) == [4, 9]
        call = client.call_stream("squares", headers={"of": "one"})
        call.send(5)
        with ctrl_c_behind_the_call(call._lazy.get()._portal):
            next(call)
        assert next(call) == 25
        call.send(6)
        assert call.result() == 36
        call.close()
        with pytest.raises(hadron.ClosedError):
            call.send(1)


def test_a_call_of_a_handler_takes_over_time_and_trace(url: str) -> None:
    with hadron.connect_sync(url) as client, hadron.connect_sync(url) as other:

        def inner(_value: Any, call: hadron.IncomingCall) -> list[Any]:
            return [dict(call.headers), call.left_s]

        def outer(_value: Any) -> Any:
            return other.call("quote")

        with client.serve("quote", inner), client.serve("outer", outer):
            headers, left_s = client.call("outer", headers={"traceparent": "00-1"}, timeout_s=3)
        assert headers == {"traceparent": "00-1"}
        assert 0 < left_s <= 3


def test_a_call_that_is_over_keeps_its_slot_until_its_thread_has_ended(url: str) -> None:
    may_end, begun = threading.Event(), []

    def slow(value: int) -> int:
        begun.append(value)
        may_end.wait(10)
        return value

    with hadron.connect_sync(url) as client, client.serve("quote", slow, max_in_flight=1):
        while not begun:
            with pytest.raises(hadron.DeadlineExceededError):
                client.call("quote", 1, timeout_s=0.1)
        with pytest.raises(hadron.DeadlineExceededError):
            client.call("quote", 2, timeout_s=0.1)
        assert begun == [1]
        may_end.set()
        assert client.call("quote", 3, timeout_s=10) == 3


def test_a_handler_in_a_thread_may_close_its_client(url: str) -> None:
    with hadron.connect_sync(url) as caller:
        client = hadron.connect_sync(url)
        is_closed = threading.Event()

        def close(_value: Any) -> None:
            client.close()
            is_closed.set()

        client.serve("quote", close, drain_s=0.1).__enter__()
        with pytest.raises(hadron.CallUnknownError):
            caller.call("quote", timeout_s=10)
        assert is_closed.wait(15)


def test_closing_does_not_wait_for_a_thread_that_hangs(url: str) -> None:
    may_end, begun = threading.Event(), threading.Event()

    def hang(_value: Any) -> None:
        begun.set()
        may_end.wait(60)

    with hadron.connect_sync(url) as caller:
        client = hadron.connect_sync(url)
        client.serve("quote", hang, drain_s=60).__enter__()
        calling = threading.Thread(
            target=pytest.raises, args=(hadron.CallUnknownError, caller.call, "quote")
        )
        calling.start()
        assert begun.wait(10)
        closing = threading.Thread(target=client.close, args=(0.1,), daemon=True)
        closing.start()
        closing.join(10)
        has_closed = not closing.is_alive()
        may_end.set()
        calling.join(10)
        assert has_closed


def test_a_server_waits_until_it_is_closed(url: str) -> None:
    with hadron.connect_sync(url) as client:
        serving = client.serve("quote", lambda value: value)
        thread = threading.Thread(target=serving.wait)
        thread.start()
        assert client.call("quote", "x", timeout_s=10) == "x"
        assert client.endpoints("quote")[0].servers[0].answered >= 1
        serving.close()
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(hadron.NoServerError):
            client.call("quote", "y")


def test_a_server_that_has_drained_waits_no_more(url: str) -> None:
    begun = threading.Event()

    def slow(value: Any) -> Any:
        begun.set()
        sleep(0.3)
        return value

    with (
        hadron.connect_sync(url) as caller,
        hadron.connect_sync(url) as client,
        client.serve("quote", slow) as serving,
    ):
        waiting = threading.Thread(target=serving.wait, daemon=True)
        waiting.start()
        answers: list[Any] = []
        calling = threading.Thread(target=lambda: answers.append(caller.call("quote", "x")))
        calling.start()
        assert begun.wait(10)
        serving.drain()
        waiting.join(10)
        assert not waiting.is_alive()
        calling.join(10)
        assert answers == ["x"]


PROGRAM = """
import signal, sys, time
import hadron

{how}def handler(_value):
    print("begun", flush=True)
    {wait}
    return "done"

client = hadron.connect_sync()
serving = client.serve("quote", handler)
signal.signal(signal.SIGTERM, lambda *_: {term})
signal.signal(signal.SIGINT, signal.default_int_handler)
# A signal while it is being opened gives that up.
serving._lazy.get()
print("serves", flush=True)
serving.wait()
print("waited", flush=True)
"""
IN_A_THREAD = ("", "time.sleep(1.0)")
IN_THE_LOOP = ("async ", "import asyncio; await asyncio.sleep(1.0)")


@pytest.mark.parametrize("how", [IN_A_THREAD, IN_THE_LOOP])
@pytest.mark.parametrize(
    ("number", "term", "last"),
    [
        (signal.SIGINT, "None", ""),
        (signal.SIGTERM, "sys.exit(0)", ""),
        (signal.SIGTERM, "serving.drain()", "waited"),
        (signal.SIGTERM, "client.close()", "waited"),
    ],
)
def test_a_program_that_ends_waits_for_its_calls(
    url: str, how: tuple[str, str], number: signal.Signals, term: str, last: str
) -> None:
    program = PROGRAM.format(how=how[0], wait=how[1], term=term)
    with (
        hadron.connect_sync(url) as caller,
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HADRON_URL": url},
        ) as running,
    ):
        answers: list[Any] = []
        calling = threading.Thread(
            target=lambda: answers.append(caller.call("quote", timeout_s=20)), daemon=True
        )
        try:
            assert running.stdout is not None
            assert next(running.stdout) == "serves\n"
            calling.start()
            assert next(running.stdout) == "begun\n"
            running.send_signal(number)
            calling.join(20)
            assert answers == ["done"]
            assert running.wait(20) in (0, 130, -number)
            assert running.stdout.read().strip() == last
        finally:
            running.kill()


def test_a_value_that_is_broken_is_its_callers_fault(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No client of ours sends such a one."""

    async def call() -> None:
        async with hadron.connect(url) as client:
            with pytest.raises(hadron.CallFailedError, match="said to be JSON") as raised:
                await client._endpoints.call(told("quote", 30.0, "", None), (JSON, b'{"a"'))
            assert raised.value.type == "ValidationError"

    with hadron.connect_sync(url) as client, client.serve("quote", lambda value: value):
        anyio.run(call)
        assert client.call("quote", 1) == 1
    assert not caplog.records
