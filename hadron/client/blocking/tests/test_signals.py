"""A signal's handler closes the client, as services do at SIGTERM, whatever it interrupts.

Real signals, in programs of their own: what hangs there fails after 60 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from hadron.client.blocking.tests.test_life import run
from hadron.client.tests.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    fake = FakeNode()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(fake.listen()),
    ):
        yield fake


HANDLED = """
import signal, sys, threading
import hadron
from hadron.client.blocking import life, portal

def close(*_):
    try:
        client.close(0.2)
    except hadron.OutcomeUnknownError:
        pass
    sys.exit(5)

signal.signal(signal.SIGTERM, close)
"""

EACH_LINE = """
def interrupt(moment, at):
    code = moment.__code__

    def trace(frame, event, _):
        if frame.f_code is not code:
            return None
        def traced(frame, event, _):
            if frame.f_lineno == at and event == "line":
                sys.settrace(None)
                frame.f_trace = None
                signal.raise_signal(signal.SIGTERM)
            return traced
        return traced

    sys.settrace(trace)

handled = 0
for moment in moments:
    for line in sorted({line for *_, line in moment.__code__.co_lines() if line}):
        client = hadron.connect_sync()
        producer = client.producer("s")
        interrupt(moment, line)
        try:
            producer.send_soon(b"0")
            producer.send(b"1")
            producer.close()
            client.close()
        except SystemExit:
            handled += 1
        finally:
            sys.settrace(None)
        client.close()
        assert "hadron-client" not in [each.name for each in threading.enumerate()], line
assert handled > len(moments), handled
"""


@pytest.mark.parametrize(
    "moments",
    [
        "portal.Portal._hand_over, portal.Portal.submit, portal.Portal.call, portal.Answer.wait",
        "life.Hold._begin, life.Hold.get_within, life.Hold.keep",
        "life.Lazy._begin, life.Lazy._open",
        "life.Lazy._abandon, life.Hold.close, portal.Portal.stop",
    ],
)
def test_a_handler_closes_at_whatever_line_it_interrupts(node: FakeNode, moments: str) -> None:
    ended = run(node, f"{HANDLED}moments = [{moments}]\n{EACH_LINE}")
    assert (ended.returncode, ended.stderr) == (0, "")


class Deaf(FakeNode):
    """Takes records, and never answers."""

    def on_produce(self, call: object, request: object, data: memoryview) -> None:
        pass


ONCE = """
main = threading.main_thread().ident

def terminate(when):
    def wait():
        while not when():
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGTERM)
    threading.Thread(target=wait, daemon=True).start()

client = hadron.connect_sync(URL, connect_timeout_s=600)
producer = client.producer("s")
"""


@pytest.mark.parametrize(
    ("url", "program"),
    [
        (
            "None",
            "terminate(lambda: producer._lazy.core and producer._lazy.core._inbox)\n"
            "while True: producer.send_soon(b'x')",
        ),
        (
            "None",
            "producer.send_soon(b'x')\nterminate(lambda: producer._lazy.is_closed)\n"
            "producer.close()",
        ),
        ("'hadron://127.0.0.1:1'", "terminate(lambda: client._hold._begun)\nclient.objects()"),
    ],
    ids=["sending", "closing", "connecting"],
)
def test_a_handler_closes_while_its_thread_waits(url: str, program: str) -> None:
    deaf = Deaf()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(deaf.listen()),
    ):
        ended = run(deaf, f"{HANDLED}{ONCE.replace('URL', url)}{program}")
    assert ended.returncode == 5, ended.stderr
    assert "Traceback" not in ended.stderr
