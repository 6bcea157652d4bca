"""Producers that a client keeps for its own `send`: one per stream, opened with the first record.

Each `send` waits for its record, so that nothing is left to flush when the client closes.
"""

from __future__ import annotations

from typing import Any

import anyio

from hadron.client.connecting.session import Session
from hadron.client.producing.assembly import open_producer
from hadron.client.producing.producer import Producer
from hadron.client.producing.settings import ProducerSettings
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.ending import Ending
from hadron.client.terms.results import Receipt
from hadron.model.errors import NotFoundError


class StandingProducers:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog, delivery_timeout_s: float) -> None:
        self._session = session
        self._catalog = catalog
        self._settings = ProducerSettings(delivery_timeout_s=delivery_timeout_s).checked()
        self._open: dict[str, Producer] = {}
        self._opening: dict[str, anyio.Lock] = {}

    async def send(self, stream: str, value: Any, **parts: Any) -> Receipt:
        """See `Client.send`."""
        producer = await self.producer(stream)
        try:
            return await producer.send(value, **parts)
        except NotFoundError:
            # Since it was looked up the stream may have been deleted, and created again, or have
            # other partitions.
            if producer._publisher.gone is None:
                await producer._publisher.look_again()
        return await (await self.producer(stream)).send(value, **parts)

    async def producer(self, stream: str) -> Producer:
        """The one of a stream. Raises what opening one does, and `ClosedError`."""
        self._session.check_loop()
        known = self._open.get(stream)
        if known is not None and _is_usable(known):
            return known
        # Names are of whoever asks, and may be of no stream: none of them is kept.
        opening = self._opening.setdefault(stream, anyio.Lock())
        try:
            async with opening:
                self._drop_old()
                known = self._open.get(stream)
                if known is None:
                    known = await open_producer(
                        self._session, self._catalog, stream, self._settings
                    )
                    self._open[stream] = await known.__aenter__()
        finally:
            if not opening.locked():
                self._opening.pop(stream, None)
        return known

    def _drop_old(self) -> None:
        """Close those whose stream is gone, or another one by now."""
        for stream, known in list(self._open.items()):
            if not _is_usable(known):
                del self._open[stream]
                self._session.background.start(known._publisher.finish, Ending(logs=True))


def _is_usable(producer: Producer) -> bool:
    """Not where the stream is another one by now, or the client was closed."""
    return producer._publisher.gone is None and not producer._publisher.is_closed
