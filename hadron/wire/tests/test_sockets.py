"""What is true of TCP only; `fakes/tests/test_network_contract.py` has what networks share."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys

import anyio
import anyio.lowlevel
import pytest

from hadron.wire.sockets import (
    SocketNetwork,
    accepted_at,
    bind_address,
    most_at_door,
    most_connections,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_dial_that_nobody_answers_says_so(host: str) -> None:
    """A name may have several addresses, and the library then only says that all of them failed."""
    listener = await SocketNetwork().listen("127.0.0.1:0")
    listener.close()
    port = listener.address.rpartition(":")[2]
    with pytest.raises(ConnectionRefusedError) as caught:
        await SocketNetwork().dial(f"{host}:{port}")
    assert caught.value.strerror == "Connection refused"


@pytest.mark.skipif(sys.platform != "linux", reason="others call it otherwise")
async def test_who_vanishes_without_a_word_is_noticed_within_a_minute() -> None:
    """A quiet long poll, call or stream of lines kept its place for ever."""
    network = SocketNetwork()
    listener = await network.listen("127.0.0.1:0")
    transport = await network.dial(listener.address)
    accepted = await listener.accept()
    has = accepted._socket.getsockopt
    assert has(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle_s, every_s, times = (
        has(socket.IPPROTO_TCP, each)
        for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle_s + every_s * times <= 60
    for each in (transport, accepted, listener):
        each.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6() -> None:
    network = SocketNetwork()
    try:
        listener = await network.listen("[::1]:0")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    assert listener.address.startswith("[::1]:")
    transport = await network.dial(listener.address)
    accepted = await listener.accept()
    assert transport.peer == listener.address
    for each in (transport, accepted, listener):
        each.close()


async def test_a_burst_of_connections_leaves_turns_to_others() -> None:
    """What is accepted must be counted, served and refused meanwhile."""
    listener = await SocketNetwork().listen("127.0.0.1:0")
    host, _, port = listener.address.rpartition(":")
    burst = [socket.create_connection((host, int(port))) for _ in range(100)]
    accepted = 0
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(accepted)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        await anyio.lowlevel.checkpoint()
        while accepted < len(burst):
            transport = await listener.accept()
            accepted += 1
            transport.close()
        tasks.cancel_scope.cancel()
    listener.close()
    for each in burst:
        each.close()
    # Who comes first in a turn of the loop is chance: others may see the same number twice.
    assert len(turns) >= 5


def test_a_name_is_bound_by_its_ipv4_address() -> None:
    assert bind_address("localhost:7000") == (socket.AF_INET, ("127.0.0.1", 7000))
    assert bind_address("127.0.0.1:0") == (socket.AF_INET, ("127.0.0.1", 0))
    assert bind_address("[::1]:7000")[0] == socket.AF_INET6
    with pytest.raises(OSError, match=r"not known|resolution|No address"):
        bind_address("no-such-host.invalid:7000")


@pytest.mark.parametrize(
    ("files", "frames", "door"),
    [(1 << 16, 63_280, 1_000), (600, 172, 86), (300, 32, 16), (-1, None, 1_000)],
)
def test_all_doors_together_leave_files_to_the_node(
    monkeypatch: pytest.MonkeyPatch, files: int, frames: int | None, door: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    assert most_at_door() == door
    assert frames is None or most_connections(2) == frames
    assert most_connections(2) + 2 * door == most_connections()


def test_a_process_may_have_the_files_that_it_can_allow_itself() -> None:
    """In a process of its own, which has as few as a shell gives."""
    script = (
        "import resource\n"
        "from hadron.wire.sockets import allow_many_files, most_connections\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))\n"
        "allow_many_files()\n"
        "raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "allow_many_files()\n"
        "kept, _ = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(raised == (min(hard, 1 << 16) if hard > 0 else 1 << 16), kept, most_connections())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "300", "64"], done.stderr


def test_a_node_does_not_start_with_fewer_files_than_it_needs() -> None:
    """It would lead until somebody's connections had taken the last one."""
    script = (
        "import resource\n"
        "from hadron.wire.sockets import allow_many_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "allow_many_files()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ConfigurationError: this process may have 64 files open, and a" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells elsewhere")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_were_accepted_at_a_port_are_counted(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server((host, 0), family=family))
        except OSError:
            pytest.skip(f"there is no {host} here")
        port = listener.getsockname()[1]
        for count in range(3):
            assert accepted_at(port, 1) == count
            assert accepted_at(port, 100_000) == 0, "there are not so many files"
            stack.enter_context(socket.create_connection((host, port)))
            stack.enter_context(listener.accept()[0])
