"""Commands that print for somebody who reads late, or not at all."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import hadron
from hadron.cli.standard_streams import Stdout
from hadron.cli.tests.support import run_text
from hadron.cli.tests.test_live import program
from hadron.client import SyncClient
from hadron.node.supervision.processes import wait_until

RECORDS = 300
"""Of 900 bytes each: more than a pipe holds."""


@contextmanager
def _piped() -> Iterator[int]:
    """stdout is a pipe of which nobody reads more than the test does: the other end's number."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out, os.fdopen(reading, "rb"), redirect_stdout(out):
        yield reading


def _read(number: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += os.read(number, count - len(data))
    return data


async def test_only_who_prints_waits_for_a_reader() -> None:
    parts = (b"a", b"b" * 1_000_000, b"c")

    async def print_all() -> None:
        out = Stdout()
        for part in parts:
            await out.write_apart(part)

    with _piped() as pipe:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(print_all)
            # That this goes on is what is tested.
            await wait_all_tasks_blocked()
            found = await trio.to_thread.run_sync(_read, pipe, sum(map(len, parts)))
    assert found == b"".join(parts)


@pytest.mark.parametrize("count", [1, 1_000_000])
async def test_what_nobody_reads_is_left_alone(count: int) -> None:
    """Whoever gives up is not held up by it, nor is the flush at the command's end."""
    with _piped():
        number = sys.stdout.fileno()
        os.set_blocking(number, False)
        with suppress(BlockingIOError):
            while True:
                os.write(number, b"x" * 4_096)
        os.set_blocking(number, True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Stdout().write_apart, b"y" * count)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        sys.stdout.flush()


@pytest.fixture
def client(request: pytest.FixtureRequest, environment: None) -> Iterator[SyncClient]:  # noqa: ARG001
    """With a stream `s` that has the records, and one for the dead letters."""
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        for name in ("s", "letters"):
            client.create_stream(name)
        with client.producer("s") as producer:
            producer.send_many([f"{number:0900}" for number in range(RECORDS)])
        yield client
    for name in ("s", "letters"):
        assert run_text("delete", "stream", name, "--allow-destructive").returncode == 0


def _has_the_rest(client: SyncClient) -> bool:
    """Whether the member has all of which it has not printed what the pipe has room for."""
    found = client.groups("s")
    return bool(found) and found[0].floor + found[0].in_flight == RECORDS


@pytest.mark.long
def test_a_member_that_waits_for_its_reader_is_heard_of(client: SyncClient) -> None:
    options = ("--heartbeat", "200ms", "--heartbeat-misses", "15", "--max-in-flight", "1000")
    with program("sub", "s", "-G", "g", *options) as process:
        assert wait_until(lambda: _has_the_rest(client), 30)
        with client.subscribe("s", group="g") as other:
            assert other.poll(6.0) is None, "after twice its patience"
        # What was printed before nobody read on is what a pipe holds.
        assert process.stdout is not None
        for number in range(RECORDS):
            assert process.stdout.readline() == f"{number:0900}\n"
        assert wait_until(lambda: client.groups("s")[0].floor == RECORDS, 30)


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("-c", "1000")])
def test_what_waits_for_a_reader_makes_no_dead_letters(
    client: SyncClient, more: tuple[str, ...]
) -> None:
    options = ("--ack-deadline", "1s", "--max-attempts", "2", "--dead-letter", "letters")
    with program("sub", "s", "-G", "g", *options, *more) as process:
        assert wait_until(lambda: any(each.in_flight for each in client.groups("s")), 30)
        assert not wait_until(lambda: client.groups("s")[0].dead_lettered > 0, 5)
        assert process.stdout is not None
        seen = {process.stdout.readline() for _ in range(RECORDS)}
        while len(seen) < RECORDS:
            seen.add(process.stdout.readline())
        assert wait_until(lambda: client.groups("s")[0].floor == RECORDS, 30)
        assert client.groups("s")[0].dead_lettered == 0


@pytest.mark.long
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("group", [(), ("-G", "g")])
def test_who_gives_up_waits_for_no_reader(group: tuple[str, ...]) -> None:
    with program("sub", "s", "--from", "earliest", *group) as process:
        assert process.stdout is not None
        # Then it is at the next ones, for which there is no room.
        assert process.stdout.readline() == f"{0:0900}\n"
        process.send_signal(signal.SIGINT)
        # By an abort of the interpreter, in which a thread is still writing, it would be another.
        assert process.wait(timeout=60) == 130
