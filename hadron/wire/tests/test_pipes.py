"""A connection in memory: what `ports.Transport` promises, as far as a node's doors rely on it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hadron.wire.pipes import PipeTransport, pipe


async def receive(end: PipeTransport, count: int) -> bytes:
    received = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    while len(received) < count and (size := await end.receive_into(buffer)):
        received += buffer[:size]
    return bytes(received)


async def test_bytes_come_in_order_and_are_copies() -> None:
    one, other = pipe("one", "other")
    assert (one.peer, other.peer) == ("other", "one")
    mine = bytearray(b"abc")
    assert one.send_some([mine, memoryview(b"def")]) == 6
    mine[:] = b"xyz"
    assert await receive(other, 6) == b"abcdef"


async def test_what_waits_is_bounded() -> None:
    one, other = pipe("one", "other")
    sent = 0
    while size := one.send_some([b"x" * 100_000]):
        sent += size
    assert sent == 1 << 20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        assert len(await receive(other, sent)) == sent
    assert one.send_some([b"more"]) == 4


async def test_the_end_comes_behind_what_was_sent() -> None:
    one, other = pipe("one", "other")
    one.send_some([b"last words"])
    one.close()
    assert await receive(other, 100) == b"last words"
    assert await other.receive_into(memoryview(bytearray(1))) == 0
    with pytest.raises(OSError, match="Broken pipe"):
        other.send_some([b"x"])
    for call in (one.wait_writable, lambda: one.receive_into(memoryview(bytearray(1)))):
        with pytest.raises(OSError, match="Bad file descriptor"):
            await call()


async def test_closing_wakes_who_waits() -> None:
    one, other = pipe("one", "other")
    while one.send_some([b"x" * 100_000]):
        pass
    failed = []

    async def wait(reads: bool) -> None:
        try:
            await (receive(one, 1) if reads else one.wait_writable())
        except OSError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, True)
        nursery.start_soon(wait, False)
        await trio.testing.wait_all_tasks_blocked()
        one.close()
    assert len(failed) == 2
    other.close()
