"""What goes over the streams of callers and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from hadron.client.endpoints.items import Inflow, Outbox, Outflow, error_of, set_error
from hadron.model.errors import CallFailedError
from hadron.model.limits import CALL_VALUE_BYTES, CALL_WINDOW_BYTES
from hadron.wire.call_items import VALUE, Item
from hadron.wire.messages import endpoints_pb2 as pb

_LONG = "x" * 5_000_000


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no file \udcff"), "no file \\udcff"),
        (CallFailedError("half a \ud800", type="\ud800"), "half a \\ud800"),
        (CallFailedError(_LONG, _LONG, type=_LONG), "xxx"),
    ],
)
def test_whatever_a_handler_raises_can_be_said(error: Exception, told: str) -> None:
    """The call's last word is begun by then: it would be another one, and end the server."""
    item = Item()
    set_error(item, error)
    assert item.ByteSize() < 256_000
    assert error_of(item, "quote").message.startswith(told)


async def test_all_who_take_from_a_stream_wake_at_its_end() -> None:
    inflow, taken = Inflow(lambda _size: None), []

    async def take() -> None:
        while (packed := await inflow.take()) is not None:
            taken.append(packed)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            inflow.put((0, b"one"), end=False)
            await anyio.wait_all_tasks_blocked()
            inflow.put((0, b"two"), end=False)
            await anyio.wait_all_tasks_blocked()
            inflow.end()
    assert taken == [(0, b"one"), (0, b"two")]


async def test_all_who_send_on_a_stream_wake_for_room_and_at_its_end() -> None:
    outflow, size, takes = Outflow(), CALL_WINDOW_BYTES, []
    outflow.spend(size)

    async def send() -> None:
        while await outflow.wait():
            outflow.spend(size)
            takes.append(size)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            outflow.granted(size + 2 * CALL_VALUE_BYTES)
            await anyio.wait_all_tasks_blocked()
            assert len(takes) == 1
            outflow.end()
    assert len(takes) == 1


class _Call:
    """An open call, whose peer gives credit for one message at a time."""

    on_writable: Callable[[], None]

    def __init__(self) -> None:
        self.said: list[int] = []
        self.writable = False

    def send(self, message: pb.ServeRequest, _chunks: Sequence[bytes]) -> None:
        assert self.writable
        self.writable = False
        self.said += [item.number for item in message.items]

    def grant(self) -> None:
        self.writable = True
        self.on_writable()


async def test_what_there_is_no_credit_for_waits_in_order() -> None:
    outbox, call = Outbox(pb.ServeRequest), _Call()
    outbox.open(call)  # type: ignore[arg-type]

    def put(number: int) -> None:
        outbox.put(outbox.item(number, VALUE), (0, bytes(1 << 20)), end=True)
        outbox.flush()

    for number in (1, 2, 3):
        put(number)
    assert not call.said
    call.grant()
    put(4)
    assert call.said == [1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.wait_said)
        tasks.start_soon(outbox.wait_said)
        for number in (2, 3, 4):
            await anyio.wait_all_tasks_blocked()
            assert call.said[-1] == number - 1
            call.grant()
    assert call.said == [1, 2, 3, 4]


async def test_nobody_waits_until_all_is_said_on_a_stream_that_is_lost() -> None:
    outbox = Outbox(pb.ServeRequest)
    outbox.open(_Call())  # type: ignore[arg-type]
    outbox.item(1, VALUE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.wait_said)
        await anyio.wait_all_tasks_blocked()
        outbox.close()
