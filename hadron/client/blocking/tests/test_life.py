"""The life of a blocking client: closed from any thread, left open at exit, taken along by fork.

Programs of their own where a process has to end by itself; what hangs there fails after 60 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from anyio.from_thread import start_blocking_portal

import hadron
from hadron.client import SyncClient
from hadron.client.tests.fake_node import FakeNode
from hadron.model.errors import (
    ClosedError,
    HadronError,
    InvalidRecordError,
    NotFoundError,
    PeerError,
    RequestError,
)

_LIMIT_S = 60.0


@pytest.fixture
def node() -> Iterator[FakeNode]:
    fake = FakeNode()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(fake.listen()),
    ):
        yield fake


def connected(node: FakeNode) -> SyncClient:
    return hadron.connect_sync(f"hadron://{node.address}")


# --- closing while other threads are at work ----------------------------------------------------

Work = Callable[[SyncClient, Callable[[], object]], None]
"""Calls its second argument again and again while it is at it."""


def iterate(client: SyncClient, at_it: Callable[[], object]) -> None:
    with client.subscribe("s", group="g") as subscription:
        for delivery in subscription:
            at_it()
            delivery.ack()


def iterate_without_a_block(client: SyncClient, at_it: Callable[[], object]) -> None:
    for delivery in client.subscribe("s", group="g"):
        at_it()
        delivery.ack()


def iterate_batches(client: SyncClient, at_it: Callable[[], object]) -> None:
    with client.subscribe("s", group="g", batch_size=10) as subscription:
        for batch in subscription.batches():
            at_it()
            batch.ack()


def poll(client: SyncClient, at_it: Callable[[], object]) -> None:
    subscription = client.subscribe("s", group="g")
    while True:
        delivery = subscription.poll(0.01)
        at_it()
        if delivery is not None:
            delivery.ack()


def send(client: SyncClient, at_it: Callable[[], object]) -> None:
    with client.producer("s") as producer:
        while True:
            producer.send(b"x")
            at_it()


def send_soon(client: SyncClient, at_it: Callable[[], object]) -> None:
    producer = client.producer("s")
    while True:
        producer.send_soon(b"x")
        at_it()


def flush(client: SyncClient, at_it: Callable[[], object]) -> None:
    with client.producer("s") as producer:
        while True:
            producer.send_soon(b"x")
            producer.flush()
            at_it()


def follow(client: SyncClient, at_it: Callable[[], object]) -> None:
    for _ in client.read("s", follow=True):
        at_it()


def ask(client: SyncClient, at_it: Callable[[], object]) -> None:
    while True:
        client.objects()
        at_it()


def open_and_close(client: SyncClient, at_it: Callable[[], object]) -> None:
    while True:
        with client.producer("s") as producer, client.subscribe("s", group="g"):
            producer.send_soon(b"x")
        at_it()


ENDLESS = [iterate, iterate_without_a_block, iterate_batches, follow]
"""What ends by itself when the client is closed."""


@pytest.mark.long
@pytest.mark.parametrize("how", ["leaving the block", "close"])
@pytest.mark.parametrize(
    "work",
    [*ENDLESS, poll, send, send_soon, flush, ask, open_and_close],
    ids=lambda work: work.__name__,
)
def test_closing_returns_whatever_other_threads_do(node: FakeNode, work: Work, how: str) -> None:
    for _ in range(8):
        client = connected(node)
        with client, client.producer("s") as producer:
            producer.send_many([b"x"] * 500)
        client.open()
        begun = [threading.Event() for _ in range(2)]
        with ThreadPoolExecutor(2) as threads:
            working = [threads.submit(work, client, each.set) for each in begun]
            # One of two members may get nothing.
            while not any(each.is_set() for each in begun):
                threading.Event().wait(0.001)
            if how == "close":
                client.close()
            else:
                with client:
                    pass
            for each, at_it in zip(working, begun, strict=True):
                error = each.exception(_LIMIT_S)
                # Once, in words of the client's own; not even that from a loop that had begun.
                if not (error is None and work in ENDLESS):
                    assert isinstance(error, ClosedError), error
                    assert work not in ENDLESS or not at_it.is_set()


def test_two_threads_close_at_once(node: FakeNode) -> None:
    for _ in range(20):
        client = connected(node)
        client.producer("s").send_soon(b"x")
        subscription = client.subscribe("s", group="g")
        subscription.poll(0)
        with ThreadPoolExecutor(4) as threads:
            closing = [
                threads.submit(each)
                for each in (client.close, subscription.close, client.close, subscription.close)
            ]
            for each in closing:
                each.result(_LIMIT_S)
        with pytest.raises(ClosedError, match="the client is closed"):
            client.objects()
    assert len(node.values()) == 20


def test_records_that_were_taken_are_published_and_the_others_are_told(node: FakeNode) -> None:
    """Threads send while another one closes: what `send_soon` has returned is in the log."""
    for _ in range(10):
        before = len(node.values())
        client = connected(node)
        producer = client.producer("s")
        begun = threading.Event()

        def flood(producer: hadron.SyncProducer = producer, begun: threading.Event = begun) -> int:
            taken = 0
            try:
                while True:
                    producer.send_soon(b"x")
                    taken += 1
                    begun.set()
            except ClosedError:
                return taken

        with ThreadPoolExecutor(3) as threads:
            floods = [threads.submit(flood) for _ in range(3)]
            assert begun.wait(_LIMIT_S)
            producer.close()
            taken = sum(each.result(_LIMIT_S) for each in floods)
        client.close()
        assert len(node.values()) - before == taken


def test_a_subscription_closed_by_another_thread_ends_its_loop(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(node) as client:
        client.producer("s").send_many([b"%d" % n for n in range(10)])
        subscription = client.subscribe("s", group="g")
        with ThreadPoolExecutor(1) as threads:
            threads.submit(next, subscription).result(_LIMIT_S).ack()
            # It has all there is and waits for more.
            rest = threads.submit(lambda: [each.value for each in subscription])
            while node.groups["s", "local/p0", "g"].floor < 1:
                threading.Event().wait(0.001)
            subscription.close()
            assert rest.result(_LIMIT_S) in ([b"%d" % n for n in range(1, k)] for k in range(1, 11))
        assert list(subscription) == []
        assert list(subscription.batches()) == []
        with pytest.raises(ClosedError, match="the subscription is closed"):
            subscription.poll(0)
        with client.subscribe("s", group="g") as another:
            delivery = another.poll(_LIMIT_S)
            assert delivery is not None
            assert delivery.offset >= 1
        delivery.ack()
    assert "acknowledged after the subscription had been closed" in caplog.text


def test_what_was_acknowledged_is_neither_late_nor_given_back(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(node) as client:
        client.producer("s").send_many([b"0", b"1"])
        with client.subscribe("s", group="g", batch_size=1) as subscription:
            delivery, batch = subscription.poll(), subscription.poll_batch()
            assert delivery is not None
            assert batch is not None
            for given in (delivery, batch):
                given.ack()
            subscription.flush()
            for given in (delivery, batch):
                given.nack()
            told = "records of s were given back after they had been acknowledged: they are not "
            assert caplog.messages == [told + "delivered again"]
            assert node.nacks == []
            caplog.clear()
        for given in (delivery, batch):
            given.ack()
        assert caplog.messages == []


def test_poll(node: FakeNode) -> None:
    client = connected(node)
    producer = client.producer("s")
    subscription = client.subscribe("s", group="g")
    assert subscription.poll(0) is None
    assert subscription.poll(0.01) is None
    assert subscription.poll_batch(0.01) is None
    producer.send_many([b"0", b"1", b"2", b"3", b"4", b"5"])
    first = subscription.poll()
    assert first is not None
    assert (first.value, first.attempt) == (b"0", 1)
    second = next(subscription)
    assert second.value == b"1"
    first.ack()
    second.ack()
    subscription.flush()
    assert node.groups["s", "local/p0", "g"].floor == 2
    with ThreadPoolExecutor(1) as threads:
        client.close()
        with pytest.raises(ClosedError, match="the subscription is closed"):
            threads.submit(subscription.poll, 5).result(_LIMIT_S)


def test_a_batch_is_polled(node: FakeNode) -> None:
    with connected(node) as client, client.subscribe("s", group="g", batch_size=3) as subscription:
        assert subscription.poll_batch(0) is None
        client.producer("s").send_many([b"0", b"1", b"2"])
        batch = subscription.poll_batch(_LIMIT_S)
        assert batch is not None
        assert [record.value for record in batch] == [b"0", b"1", b"2"]
        batch.ack()
        subscription.flush()
        assert node.groups["s", "local/p0", "g"].floor == 3


# --- without a block ----------------------------------------------------------------------------


def test_a_client_connects_at_its_first_use(node: FakeNode) -> None:
    client = connected(node)
    producer = client.producer("s")
    threads = threading.active_count()
    with pytest.raises(RequestError, match="batch_bytes"):
        client.producer("s", batch_bytes=0)
    with pytest.raises(RequestError, match="max_in_flight"):
        client.subscribe("s", group="g", max_in_flight=0)
    assert threading.active_count() == threads
    with ThreadPoolExecutor(4) as pool:
        # One connects, and all get what it has opened.
        offsets = list(pool.map(lambda n: producer.send(n).offset, range(20)))
        assert sorted(offsets) == list(range(20))
        assert len([each for each in threading.enumerate() if each.name == "hadron-client"]) == 1
    assert producer.send(20).offset == 20
    client.close()
    client.close()
    with pytest.raises(ClosedError, match="the producer is closed"):
        producer.send(b"x")
    with pytest.raises(ClosedError, match="the client is closed") as caught:
        client.objects()
    assert "open()" in caught.value.hint
    assert client.open().producer("s").send(b"x").offset == 21
    client.close()
    assert threading.active_count() <= threads


def test_a_cluster_that_is_not_there_yet_is_tried_again(node: FakeNode) -> None:
    client = hadron.connect_sync("hadron://127.0.0.1:1", connect_timeout_s=0.05)
    producer = client.producer("s")
    for _ in range(2):
        with pytest.raises(PeerError, match="no node answered"):
            producer.send(b"x")
        with pytest.raises(PeerError, match="no node answered"):
            client.open()
    client.close()
    with connected(node) as other:
        with pytest.raises(NotFoundError):
            other.producer("nope").send(b"x")
        with pytest.raises(NotFoundError), other.subscribe("nope", group="g"):
            pass


def test_failures_come_when_the_client_is_closed(node: FakeNode) -> None:
    client = connected(node)
    client.producer("s").send(b"x")
    node.refusals.append(RequestError("late"))
    client.producer("s").send_soon(b"x")
    with pytest.raises(RequestError, match="late"):
        client.close()
    with pytest.raises(InvalidRecordError):
        client.open().producer("s").send(object())
    client.close()


def test_closing_does_not_wait_for_a_node_that_is_looked_for() -> None:
    client = hadron.connect_sync("hadron://127.0.0.1:1", connect_timeout_s=_LIMIT_S)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(client.objects)
        while client._hold._begun is None:
            threading.Event().wait(0.001)
        client.close()
        with pytest.raises(ClosedError):
            opening.result(_LIMIT_S / 2)


# --- a program's end ----------------------------------------------------------------------------


def run(node: FakeNode, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "HADRON_URL": f"hadron://{node.address}", **variables},
    )


MODULE = """
import os, signal, sys, threading, time
import hadron

client = hadron.connect_sync()
producer = client.producer("s")
producer.send(b"first")
subscription = client.subscribe("s", group="g")

def work():
    for delivery in subscription:
        delivery.ack()

threading.Thread(target=work, daemon=True).start()
follower = iter(client.read("s", follow=True))
next(follower)
for _ in range(100):
    producer.send_soon(b"x")
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('mine')", 1),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
        ("threading.Thread(target=time.sleep, args=(0.1,)).start()", 0),
        ("del client, producer, subscription, follower", 0),
        ("client.close()", 0),
    ],
)
def test_a_program_ends_by_itself_and_publishes_first(
    node: FakeNode, ending: str, status: int
) -> None:
    ended = run(node, MODULE + ending)
    assert ended.returncode == status, ended.stderr
    assert len(node.values()) == 101
    if status in (0, 3):
        # The other thread may be at a record.
        late = [line for line in ended.stderr.splitlines() if "acknowledged after" not in line]
        assert late == []


THREAD_GOES_ON = """
import threading
import hadron

client = hadron.connect_sync()
subscription = client.subscribe("s", group="g")
producer = client.producer("s")
producer.send(b"first")
at_work = threading.Event()

def work():
    for delivery in subscription:
        delivery.ack()
        at_work.set()
    {then}

threading.Thread(target=work).start()
at_work.wait()
"""


def test_a_thread_that_python_waits_for_goes_on_with_the_client(node: FakeNode) -> None:
    """Many programs end their main thread when the others are at work: what these do counts."""
    ended = run(
        node,
        """
        import threading
        import hadron

        producer = hadron.connect_sync().producer("s")

        def work():
            threading.main_thread().join()
            producer.send(b"from the thread")
            producer.send_soon(b"and after")

        threading.Thread(target=work).start()
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert node.values() == [b"from the thread", b"and after"]


def test_closing_ends_the_loop_of_a_thread_that_python_waits_for(node: FakeNode) -> None:
    ended = run(node, THREAD_GOES_ON.format(then="print('over')") + "client.close()")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n", "")


@pytest.mark.long
def test_a_program_that_is_terminated_is_gone(node: FakeNode) -> None:
    ended = run(node, MODULE + "signal.raise_signal(signal.SIGTERM)\ntime.sleep(60)")
    assert ended.returncode == -signal.SIGTERM
    handled = run(
        node,
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        + MODULE
        + "before = signal.raise_signal(signal.SIGTERM)",
    )
    assert handled.returncode == 5
    assert node.values().count(b"first") == 2


def test_a_record_of_the_last_moment_goes_out_over_a_new_connection(node: FakeNode) -> None:
    ended = run(
        node,
        """
        import atexit
        import hadron
        from hadron.wire.sockets import SocketNetwork

        client = hadron.connect_sync()
        producer = client.producer("s")
        producer.send(b"first")

        def late():
            portal, inner = client._hold.get()
            def cut():
                for link in inner._session._links.values():
                    link.connection.close()
            portal.call(cut)
            producer.send_soon(b"late")
            try:
                portal.call(SocketNetwork().dial, "localhost:1")
            except OSError as error:
                # No thread is begun any more in which asyncio could look it up.
                assert "not looked up any more" in str(error), error

        atexit.register(late)
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert node.values() == [b"first", b"late"]


class Deaf(FakeNode):
    """Takes records, and never answers."""

    def on_produce(self, call: object, request: object, data: memoryview) -> None:
        pass


def test_what_was_not_published_is_told_at_the_end() -> None:
    deaf = Deaf()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(deaf.listen()),
    ):
        program = """
            import hadron
            from hadron.client.blocking import life
            life.EXIT_FLUSH_S = 0.2
            client = hadron.connect_sync()
            producer = client.producer("s", max_buffer_bytes=3_000)
            for n in range(7):
                producer.send_soon(b"x" * 1_000)
        """
        ended = run(deaf, program)
        assert ended.returncode == 0
        told = ended.stderr.splitlines()
        assert any("to s/local/p0 may or may not be in the log" in line for line in told), told
        assert any("records were not sent: the producer is closed" in line for line in told), told
        assert "Traceback" not in ended.stderr


def test_all_that_is_open_has_the_patience_of_the_end_together() -> None:
    deaf = Deaf()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(deaf.listen()),
    ):
        program = """
            import atexit, time
            import hadron
            from hadron.client.blocking import life
            life.EXIT_FLUSH_S = 0.5
            # Called after the client's, as what was registered first is called last.
            atexit.unregister(life._close_all)
            atexit.register(lambda: print(time.monotonic() - began_s))
            atexit.register(life._close_all)
            producers = [hadron.connect_sync().producer("s") for _ in range(5)]
            client = hadron.connect_sync()
            producers += [client.producer("s") for _ in range(5)]
            for each in producers:
                each.send_soon(b"x")
            began_s = time.monotonic()
        """
        ended = run(deaf, program)
    assert (ended.returncode, ended.stderr.count("may or may not be in the log")) == (0, 10)
    # One after the other, with a patience each, takes 5 s.
    assert 0.5 <= float(ended.stdout) < 3


# --- fork ---------------------------------------------------------------------------------------

PARENT = """
import multiprocessing, os, sys
import hadron

client = hadron.connect_sync()
producer = client.producer("s")
producer.send(b"parent")
subscription = client.subscribe("s", group="g")
first = next(subscription)
reader = iter(client.read("s", follow=True))
next(reader)
pending = producer.send_soon(b"parent")


def refused(function, *args):
    try:
        function(*args)
    except hadron.ForkedError as error:
        assert f"process {parent}" in str(error) and f"{os.getpid()}, was forked" in str(error)
        return True
    return False


def child():
    assert client.offsets("s")[0].next_offset >= 1
    assert producer.send(b"child").offset >= 1
    assert refused(next, subscription) and refused(subscription.poll, 0), "subscription"
    assert refused(first.ack), "ack"
    assert refused(next, reader), "reader"
    assert pending.is_done or refused(pending.wait), "pending"
    with client.subscribe("s", group="h") as mine:
        next(mine).ack()
    producer.send_soon(b"child")


parent = os.getpid()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "forking",
    [
        # As gunicorn and Celery do it: the workers run on, and end as programs do.
        """
for _ in range(3):
    if os.fork() == 0:
        child()
        sys.exit(0)
status = [os.wait()[1] for _ in range(3)]
        """,
        """
context = multiprocessing.get_context("fork")
workers = [context.Process(target=child) for _ in range(3)]
for each in workers:
    each.start()
for each in workers:
    each.join()
status = [each.exitcode for each in workers]
        """,
    ],
    ids=["fork", "multiprocessing"],
)
def test_a_child_connects_anew_and_leaves_its_parent_alone(node: FakeNode, forking: str) -> None:
    ended = run(
        node,
        PARENT
        + forking
        + """
assert status == [0, 0, 0], status
assert pending.wait().offset >= 1
first.ack()
subscription.flush()
assert producer.send(b"parent").offset >= 2
assert {next(subscription).value, next(subscription).value} <= {b"parent", b"child"}
next(reader)
client.close()
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    values = node.values()
    assert values.count(b"parent") == 3
    assert values.count(b"child") == 6


@pytest.mark.long
def test_a_child_may_be_the_first_to_connect(node: FakeNode) -> None:
    ended = run(
        node,
        """
        import os, sys
        import hadron
        client = hadron.connect_sync()
        producer = client.producer("s")
        if os.fork() == 0:
            producer.send(b"child")
            if os.fork() == 0:
                producer.send(b"grandchild")
                sys.exit(0)
            sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        status = os.waitstatus_to_exitcode(os.wait()[1])
        producer.send(b"parent")
        sys.exit(status)
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert node.values() == [b"child", b"grandchild", b"parent"]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_async_client_says_that_it_is_the_parents(node: FakeNode, backend: str) -> None:
    ended = run(
        node,
        """
        import os, sys
        import anyio
        import hadron

        async def refused(call):
            try:
                await call
            except hadron.ForkedError:
                return
            except Exception as error:
                print(call, repr(error), file=sys.stderr)
            os._exit(1)

        async def main():
            async with (
                hadron.connect() as client, client.producer("s") as producer,
                client.subscribe("s", group="g") as subscription,
            ):
                await producer.send(b"parent")
                delivery = await anext(subscription)
                if os.fork() == 0:
                    try:
                        await refused(client.objects())
                        await refused(producer.send(b"child"))
                        await refused(producer.send_many([b"child"]))
                        await refused(producer.flush())
                        await refused(subscription.poll(0))
                        await refused(anext(subscription))
                        await refused(delivery.ack())
                        os._exit(0)
                    finally:
                        os._exit(1)
                assert os.wait()[1] == 0
                await delivery.ack()
                await subscription.flush()
                await producer.send(b"parent")
                assert (await anext(subscription)).offset == 1

        anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else os.environ["BACKEND"])
        """,
        BACKEND=backend,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert node.values() == [b"parent", b"parent"]


def test_errors_of_closing_are_the_clients_own() -> None:
    assert issubclass(ClosedError, RequestError)
    assert issubclass(hadron.ForkedError, ClosedError)
    assert not HadronError.by_code["ClosedError"].default_retryable
