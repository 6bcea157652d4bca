"""Handlers that await what somebody else has cancelled."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import anyio
import pytest

from hadron.client.connecting.background import Background
from hadron.client.endpoints.handlers import Handler
from hadron.client.endpoints.incoming import IncomingCall
from hadron.client.endpoints.items import Outbox
from hadron.client.endpoints.runs import Run, Runs
from hadron.client.terms.cancelling import is_stray
from hadron.model.services import EndpointSpec
from hadron.wire.messages import endpoints_pb2


async def _stray() -> None:
    """As of a library's own time limit, or a pool that was closed."""
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _awaits(_value: Any) -> None:
    await _stray()


async def _exits(_value: Any) -> None:
    sys.exit(3)


def _exits_in_a_thread(_value: Any) -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("handler", "told"),
    [(_awaits, "CancelledError"), (_exits, "SystemExit"), (_exits_in_a_thread, "SystemExit")],
)
def test_what_is_no_exception_is_a_handlers_failure(
    handler: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[Any]:
        said: list[Any] = []
        outbox = Outbox(endpoints_pb2.ServeRequest)
        outbox.open(_Call(said))  # type: ignore[arg-type]
        spec = EndpointSpec(replica_set="local/p0")
        runs = Runs("e", Handler(handler, spec), Background(), outbox, 1, lambda: 0.0)
        call = IncomingCall("e", {}, "a test", 1, 60.0, lambda: 0.0)
        run = runs._open[1] = Run(1, call, (0, b"1"), None)
        await runs.handle(run)
        return said

    with caplog.at_level(logging.ERROR):
        (message,) = anyio.run(main, backend="asyncio")
    assert message.items[0].error_type == told
    assert "a call of endpoint 'e' by a test failed" in caplog.text


class _Call:
    writable = True

    def __init__(self, said: list[Any]) -> None:
        self.send = lambda message, _chunks: said.append(message)


def test_who_is_cancelled_knows_it() -> None:
    found: list[bool] = []

    async def note() -> None:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            found.append(is_stray(error))
            raise

    async def main() -> None:
        with anyio.move_on_after(0.01):
            await note()
        task = asyncio.create_task(note())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    anyio.run(main, backend="asyncio")
    assert found == [False, False]
