"""What became of a publication, without a network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hadron.client.exchanges.calls import ExchangeCalls
from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
    ShuttingDownError,
    StrangerError,
)
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec


class Way:
    """A connection that has sent a request, and fails it."""

    def __init__(self, ending: HadronError, *, ends: bool) -> None:
        self.is_closed = False
        self.asked = 0
        self._ending = ending
        self._ends = ends

    async def request(self, *_told: Any, **_more: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        self.is_closed = self._ends
        raise self._ending


async def published(way: Way) -> HadronError:
    """What one who publishes hears."""
    item = SchemaObject(kind="Exchange", name="x", spec=ExchangeSpec(replica_set="r"))
    session: Any = SimpleNamespace(
        check_loop=lambda: None,
        check_open=lambda: None,
        suspect=lambda _home: None,
        connection_now=lambda _home: way,
        request_timeout_s=0.0,
        ports=SimpleNamespace(random=SimpleNamespace(uniform=lambda low, _high: low)),
    )
    calls = ExchangeCalls(session, SimpleNamespace())  # type: ignore[arg-type]
    calls._items["x"] = item
    with pytest.raises(HadronError) as raised:
        await calls.publish("x", [b"batch"], logged=False)
    assert way.asked == 1
    return raised.value


@pytest.mark.parametrize(
    "ending",
    [
        ConnectionLostError("it broke"),
        DeadlineExceededError("no answer"),
        FrameError("damaged bytes"),
        StrangerError("no frames"),
    ],
)
async def test_what_was_sent_may_be_published_however_the_connection_ends(
    ending: HadronError,
) -> None:
    for way in (Way(ending, ends=True), Way(ending, ends=False)):
        error = await published(way)
        assert isinstance(error, OutcomeUnknownError)
        assert ending.message in error.message
    # Whatever else it ends with: who closes it may say that nothing was done.
    for reason in (PeerError("gone"), ShuttingDownError("stops")):
        assert isinstance(await published(Way(reason, ends=True)), OutcomeUnknownError)


async def test_what_its_leader_has_refused_is_told_as_it_is() -> None:
    assert isinstance(await published(Way(OverloadedError("full"), ends=False)), OverloadedError)
