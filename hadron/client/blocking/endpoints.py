"""What is behind calls with streams, and servers, of a blocking program: the async ones, in the
loop. Handlers run in threads of the loop's, `async` ones in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

import anyio

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.portal import Portal
from hadron.client.blocking.taking import Taking
from hadron.client.endpoints.serving import Serving
from hadron.client.endpoints.stream import CallStream
from hadron.client.terms.ending import Ending
from hadron.model.errors import ClosedError

_log = logging.getLogger(__name__)

_END: Final = object()


class Calling:
    """What is open of a blocking call."""

    def __init__(self, portal: Portal, call: CallStream) -> None:
        self._portal = portal
        self.call = call
        self._values = Taking(portal, lambda: anext(call, _END))

    def __str__(self) -> str:
        return str(self.call)

    def send(self, value: Any) -> None:
        self._portal.call(self.call.send, value)

    def end(self) -> None:
        self._portal.call(self.call.end)

    def result(self) -> Any:
        return self._portal.call(self.call.result)

    def next(self) -> Any:
        return self._values.take()

    def finish(self, _ending: Ending) -> None:
        with suppress(ClosedError):
            self._portal.call(self.call.close)

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class CallStreamBase(OpenedBase[Calling]):
    """A call that is under way. Made by `SyncClient.call_stream`; used in a `with` block, or
    without one and closed with `close`."""

    _core = Calling

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer, once the first of it has come."""
        return self._lazy.get().call.headers

    def close(self) -> None:
        """Give it up, if it is not over."""
        self._lazy.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        value = self._lazy.get().next()
        if value is _END:
            raise StopIteration
        return value


class Servings:
    """What is open of a blocking server."""

    def __init__(self, portal: Portal, serving: Serving) -> None:
        self._portal = portal
        self._serving = serving

    def __str__(self) -> str:
        return str(self._serving)

    def wait(self) -> None:
        self._portal.call(self._serving.wait)

    def drain(self) -> None:
        self._portal.call(self._serving.drain)

    def finish(self, ending: Ending) -> None:
        with suppress(ClosedError):
            if ending.waits and not ending.by_error:
                self._portal.call(self._drain_within, ending.timeout_s)
            self._portal.call(self._serving.close)

    async def _drain_within(self, timeout_s: float | None) -> None:
        with anyio.move_on_after(timeout_s):
            await self._serving.drain()

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class ServingBase(OpenedBase[Servings]):
    """A server that is attached. Made by `SyncClient.serve`; used in a `with` block, or without one
    from `wait` on, and closed with `close`, with its client, or when the program ends."""

    _core = Servings

    def __del__(self) -> None:
        # Not all attributes, where its arguments were refused.
        lazy = getattr(self, "_lazy", None)
        if lazy is not None and not (lazy.was_used or lazy.is_closed):
            _log.warning(
                "a server %s, is gone and has served nothing: `client.serve(...)` serves in a "
                "`with` block, or from `wait` on",
                lazy,
            )

    def close(self) -> None:
        """Take no more calls, and wait for those that are under way."""
        self._lazy.close()
