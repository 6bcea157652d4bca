"""Producers that a client keeps for its own `send`: one per stream, opened with the first record.

Each `send` waits for its record, so that nothing is left to flush when the client closes.
"""

from __future__ import annotations

import anyio

from hadron.client.connecting.session import Session
from hadron.client.producing.assembly import open_producer
from hadron.client.producing.producer import Producer
from hadron.client.producing.settings import ProducerSettings
from hadron.client.schema.catalog import Catalog


class StandingProducers:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog, delivery_timeout_s: float) -> None:
        self._session = session
        self._catalog = catalog
        self._settings = ProducerSettings(delivery_timeout_s=delivery_timeout_s).checked()
        self._open: dict[str, Producer] = {}
        self._opening: dict[str, anyio.Lock] = {}

    async def producer(self, stream: str) -> Producer:
        """The one of a stream. Raises what opening one does."""
        known = self._find(stream)
        if known is not None:
            return known
        async with self._opening.setdefault(stream, anyio.Lock()):
            known = self._find(stream)
            if known is None:
                known = await open_producer(self._session, self._catalog, stream, self._settings)
                self._open[stream] = await known.__aenter__()
        return known

    def _find(self, stream: str) -> Producer | None:
        """None also where the stream is another one by now, or the client was closed."""
        known = self._open.get(stream)
        if known is not None and (known._publisher.gone or known._publisher.is_closed):
            del self._open[stream]
            return None
        return known
