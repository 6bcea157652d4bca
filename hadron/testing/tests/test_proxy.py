"""The fault proxy against plain sockets: what passes, what is held back, what breaks."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hadron.node.supervision.cluster import free_ports
from hadron.testing.proxy import CLEAR, CUT, FaultProxy, Open, ProxyError, Set, Weather, _Link

PATIENCE_S = 30.0
HELD_S = 0.2
"""How long nothing must arrive for a test to believe that it is held back."""


class Wire:
    """A link "a>b" of a proxy, and a server where it ends."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE_S)
        self.port = free_ports(1)[0]
        target = f"127.0.0.1:{self.server.getsockname()[1]}"
        proxy.open("a>b", f"127.0.0.1:{self.port}", target=target)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.server)

    def dial(self) -> socket.socket:
        dialed = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        return self._stack.enter_context(dialed)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection through the proxy: (a's, b's)."""
        a = self.dial()
        b, _ = self.server.accept()
        b.settimeout(PATIENCE_S)
        return a, self._stack.enter_context(b)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with FaultProxy(tmp_path / "proxy.log") as proxy, contextlib.closing(Wire(proxy)) as wire:
        yield wire
    assert (tmp_path / "proxy.log").read_text() == ""


def is_quiet(sock: socket.socket) -> bool:
    """Whether nothing arrives for a while: no bytes, no end, no error."""
    sock.settimeout(HELD_S)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)
    return False


def receive(sock: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (data := sock.recv(count - len(received))):
        received += data
    return received


def test_bytes_pass_both_ways_and_ends_pass_too(wire: Wire) -> None:
    a, b = wire.pair()
    a.sendall(b"question")
    assert receive(b, 8) == b"question"
    b.sendall(b"answer")
    assert receive(a, 6) == b"answer"
    a.shutdown(socket.SHUT_WR)
    assert b.recv(1) == b""
    b.sendall(b"the other way is still open")
    assert receive(a, 27) == b"the other way is still open"
    traffic = wire.proxy.traffic("a>b")
    assert (traffic.connections, traffic.there, traffic.back) == (1, 8, 33)


def test_many_bytes_pass_unchanged(wire: Wire) -> None:
    a, b = wire.pair()
    sent = bytes(range(256)) * 1_000
    a.sendall(sent)
    assert receive(b, len(sent)) == sent


def test_a_cut_holds_back_and_delivers_after_healing(wire: Wire) -> None:
    a, b = wire.pair()
    wire.proxy.set("a>b", there=CUT)
    a.sendall(b"late")
    b.sendall(b"in time")
    assert receive(a, 7) == b"in time"
    assert is_quiet(b)
    a.close()
    assert is_quiet(b), "even the end is held back"
    wire.proxy.set("a>b")
    assert receive(b, 5) == b"late"


def test_a_connection_made_during_a_cut_reaches_the_target_after_it(wire: Wire) -> None:
    wire.proxy.set("a>b", there=CUT, back=CUT)
    a = wire.dial()
    a.sendall(b"anybody there?")
    wire.server.settimeout(HELD_S)
    with pytest.raises(TimeoutError):
        wire.server.accept()
    wire.server.settimeout(PATIENCE_S)
    wire.proxy.set("a>b")
    b, _ = wire.server.accept()
    with b:
        assert receive(b, 14) == b"anybody there?"


def test_a_reset_is_an_error_on_both_sides(wire: Wire) -> None:
    a, b = wire.pair()
    wire.proxy.set("a>b", there=CUT, back=CUT)
    wire.proxy.reset("a>b")
    for end in (a, b):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_peer_that_breaks_breaks_the_other_side(wire: Wire) -> None:
    a, b = wire.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wire.proxy.set("a>b", back=CUT)
    b.close()
    assert is_quiet(a), "the news is held back as well"
    wire.proxy.set("a>b")
    with pytest.raises(ConnectionResetError):
        a.recv(1)


def test_refused_connections_and_those_after_them(wire: Wire) -> None:
    a, b = wire.pair()
    wire.proxy.set("a>b", refuse=True)
    with pytest.raises(ConnectionRefusedError):
        wire.dial()
    a.sendall(b"open ones stay")
    assert receive(b, 14) == b"open ones stay"
    wire.proxy.set("a>b")
    wire.pair()


async def test_a_port_is_open_or_closed_when_its_command_returns() -> None:
    """Also when the next one comes at once, before any other task has run."""
    port = free_ports(1)[0]
    link = _Link(Open("a>b", f"127.0.0.1:{port}", target="127.0.0.1:1"))
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        with trio.fail_after(PATIENCE_S):
            for refuse in (True, False, True, True, False, False):
                await link.set(Set("a>b", CLEAR, CLEAR, refuse))
                assert is_refused(port) == refuse
            for refuse in (True, False, True):
                await link.set(Set("a>b", CLEAR, CLEAR, refuse))
            assert is_refused(port)
        nursery.cancel_scope.cancel()


def is_refused(port: int) -> bool:
    with socket.socket() as dialing:
        return dialing.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_target_that_does_not_listen_resets(wire: Wire) -> None:
    wire.server.close()
    with pytest.raises(ConnectionResetError):
        wire.dial().recv(1)


def test_a_delay_and_a_throttle_take_their_time(wire: Wire) -> None:
    a, b = wire.pair()
    wire.proxy.set("a>b", there=Weather(delay_s=0.3))
    began = time.monotonic()
    a.sendall(b"slow")
    assert receive(b, 4) == b"slow"
    assert time.monotonic() - began >= 0.3
    wire.proxy.set("a>b", there=Weather(bytes_per_s=1_000_000))
    began = time.monotonic()
    a.sendall(bytes(300_000))
    assert len(receive(b, 300_000)) == 300_000
    # The last chunk, 64 kB at most, is waited for after it has been delivered.
    assert time.monotonic() - began >= 0.2


def test_wrong_commands_are_told(wire: Wire) -> None:
    with pytest.raises(ProxyError, match="there is no link 'b>a'"):
        wire.proxy.reset("b>a")
    with pytest.raises(ProxyError, match=errno.errorcode[errno.EADDRINUSE]):
        wire.proxy.open("again", f"127.0.0.1:{wire.port}", target="127.0.0.1:1")
    wire.pair()


def test_the_proxy_ends_with_its_block(tmp_path: Path) -> None:
    with FaultProxy(tmp_path / "proxy.log") as proxy:
        wire = Wire(proxy)
        a, _ = wire.pair()
    with contextlib.closing(wire):
        assert a.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            wire.dial()
    with pytest.raises(ProxyError):
        proxy.reset("a>b")
