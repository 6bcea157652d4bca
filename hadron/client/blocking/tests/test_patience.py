"""What is opened, read or awaited outlives whoever has no more patience for it, and not its use."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any, NoReturn

import pytest
from anyio.from_thread import start_blocking_portal

import hadron
from hadron.client import SyncClient
from hadron.client.blocking.tests.support import ctrl_c_behind_the_call
from hadron.client.blocking.tests.test_life import run
from hadron.client.tests.fake_node import FakeNode, Member
from hadron.model.errors import ClosedError, NotFoundError, PeerError

_LIMIT_S = 60.0


@contextmanager
def serving(fake: FakeNode) -> Iterator[FakeNode]:
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(fake.listen()),
    ):
        yield fake


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with serving(FakeNode()) as fake:
        yield fake


@pytest.fixture
def client(node: FakeNode) -> Iterator[SyncClient]:
    with hadron.connect_sync(f"hadron://{node.address}") as opened:
        yield opened


def until(holds: Callable[[], object]) -> None:
    while not holds():
        threading.Event().wait(0.001)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"hadron://127.0.0.1:{listener.getsockname()[1]}"


class Shy(FakeNode):
    """Takes members, and does not say so."""

    asked = False

    def on_subscribe(self, *_: Any) -> None:
        self.asked = True


def test_poll_does_not_wait_longer_for_a_cluster_that_is_down(silent: str) -> None:
    client = hadron.connect_sync(silent, connect_timeout_s=0.5)
    subscription = client.subscribe("s", group="g")
    assert subscription.poll(0.01) is None
    assert subscription.poll_batch(0.01) is None
    # What was begun has gone on.
    with pytest.raises(PeerError, match="no node answered"):
        subscription.poll(_LIMIT_S)
    client.close()


def test_a_subscription_that_is_being_opened_is_polled_and_closed() -> None:
    with serving(Shy()) as fake:
        assert isinstance(fake, Shy)
        with hadron.connect_sync(f"hadron://{fake.address}", request_timeout_s=600) as client:
            subscription = client.subscribe("s", group="g")
            assert subscription.poll(0.01) is None
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(subscription.poll)
                until(lambda: fake.asked)
                subscription.close()
                with pytest.raises(ClosedError, match="the subscription is closed"):
                    waiting.result(_LIMIT_S)


def test_a_producer_is_closed_while_its_client_connects(silent: str) -> None:
    client = hadron.connect_sync(silent, connect_timeout_s=600)
    producer = client.producer("s")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.send, b"x")
        until(lambda: client._hold._begun)
        producer.close(1)
        client.close()
        with pytest.raises(ClosedError):
            waiting.result(_LIMIT_S)


def test_a_reader_goes_on_after_ctrl_c(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.producer("s").send_many([b"0", b"1"])
    reader = client.read("s")
    next_span = reader._next_span

    def interrupted() -> None:
        monkeypatch.setattr(reader, "_next_span", next_span)
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "_next_span", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(reader)
    assert next(reader).value == b"0"
    assert [each.value for each in reader] == [b"1"]


def test_ctrl_c_loses_no_records_that_are_on_their_way_to_the_thread(client: SyncClient) -> None:
    producer = client.producer("s")
    for number in range(3):
        producer.send(b"%d" % number)
    reader = client.read_batches("s")
    for _ in range(2):
        with ctrl_c_behind_the_call(reader._portal):
            next(reader)
    values = [record.value for batch in reader for record in batch.records()]
    assert values == [b"0", b"1", b"2"]
    reader = client.read_batches("s")
    with ctrl_c_behind_the_call(reader._portal):
        next(reader)
    reader.close()
    assert list(reader) == []


def test_a_subscription_is_left_within_the_patience_of_who_closes(
    client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acks have 5 s to be committed else."""
    monkeypatch.setattr(Member, "ack", lambda *_: None)
    client.send("s", b"x")
    next(client.subscribe("s", group="g")).ack()
    began_s = monotonic()
    client.close(0.1)
    assert monotonic() - began_s < 4


def test_a_receipt_that_is_known_is_had_of_what_is_closed(client: SyncClient) -> None:
    with client.producer("s") as producer:
        pending = producer.send_soon(b"x")
    assert pending.is_done
    assert pending.wait().offset == 0
    client.close()
    assert pending.wait().offset == 0


def send_for_ever(producer: hadron.SyncProducer) -> NoReturn:
    while True:
        producer.send_soon(b"x")


def test_who_sends_to_a_deleted_stream_hears_of_it(
    node: FakeNode, client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    producer = client.producer("s")
    producer.send(b"x")
    del node.objects["Stream", "s"]
    with pytest.raises(NotFoundError):
        send_for_ever(producer)
    until(lambda: "nobody has asked yet" in caplog.text)
    with pytest.raises(NotFoundError):
        producer.flush()
    with pytest.raises(NotFoundError):
        producer.close()


def test_a_producer_that_nobody_has_closes_by_itself(node: FakeNode, client: SyncClient) -> None:
    for _ in range(20):
        client.producer("s").send_soon(b"x")
    gc.collect()
    until(lambda: not client._hold._parts)
    assert len(node.values()) == 20
    portal, inner = client._hold.get()
    until(lambda: not portal.call(lambda: inner._session.on_close))


_CUT_OFF = """
import signal, threading
import hadron

client = hadron.connect_sync()
producer = client.producer("s")
producer.send(b"first")
portal, inner = client._hold.get()

async def nowhere(*_):
    raise OSError("the network is down")

def cut():
    object.__setattr__(inner._session.ports.network, "dial", nowhere)
    for link in inner._session._links.values():
        link.connection.close()

portal.call(cut)
producer.send_soon(b"1")
producer.send_soon(b"2")
"""

_INTERRUPTED_AT_ONCE = """
main = threading.main_thread().ident

def interrupt():
    while not producer._lazy.is_closed:
        threading.Event().wait(0.001)
    signal.pthread_kill(main, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
"""

_INTERRUPTED_BEFORE_IT_ENDS_ANYTHING = """
withdraw = portal.withdraw

def interrupted(making):
    portal.withdraw = withdraw
    raise KeyboardInterrupt

portal.withdraw = interrupted
"""


@pytest.mark.parametrize("how", [_INTERRUPTED_AT_ONCE, _INTERRUPTED_BEFORE_IT_ENDS_ANYTHING])
def test_ctrl_c_at_the_end_tells_what_was_not_sent(node: FakeNode, how: str) -> None:
    ended = run(node, _CUT_OFF + how)
    assert "2 records to s/local/p0" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_daemon_thread_ends_quietly_with_the_program(node: FakeNode) -> None:
    ended = run(
        node,
        """
        import threading, hadron
        client = hadron.connect_sync()
        producer = client.producer("s")
        begun = threading.Event()

        def work():
            while True:
                producer.send(b"x")
                begun.set()

        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
