"""Calls that are opened again: what is said of it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.model.errors import PeerError
from hadron.wire.messages import method
from hadron.wire.system import SystemRandom


async def test_what_ends_every_try_is_told_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    caplog.set_level(logging.INFO, "hadron.client.connecting.reconnecting_call")
    tries = 0

    async def connect(_: str) -> Any:
        nonlocal tries
        tries += 1
        # As a dial that nobody answers takes.
        await trio.sleep(2)
        raise PeerError("nobody answers" if tries <= 5 else "refused")

    session = SimpleNamespace(
        connect=connect,
        closed=None,
        suspect=lambda _: None,
        ports=SimpleNamespace(random=SystemRandom()),
    )
    owner: Any = SimpleNamespace(lost=lambda _: None)
    call = ReconnectingCall(cast(Session, session), "local/p0", method("Subscribe"), owner)
    with trio.move_on_after(60):
        await call.run()
    assert tries > 10
    told = [record.getMessage().partition(" ended: ")[2] for record in caplog.records]
    assert told == ["nobody answers", "refused"]
