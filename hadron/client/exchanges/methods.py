"""What a client offers of exchanges: part of it, and a module of its own."""

from __future__ import annotations

from functools import cached_property

from hadron.client.connecting.session import Session
from hadron.client.exchanges.calls import ExchangeCalls
from hadron.client.exchanges.exchange import Exchange
from hadron.client.schema.catalog import Catalog


class ExchangeMethods:
    """Its methods are those of `Client`."""

    _session: Session
    _catalog: Catalog

    @cached_property
    def _exchanges(self) -> ExchangeCalls:
        return ExchangeCalls(self._session, self._catalog)

    def exchange(self, name: str) -> Exchange:
        """The exchange called `name`, in the client's namespace, to publish on and to subscribe to.
        Nothing is asked of the cluster yet."""
        return Exchange(self._exchanges, name)
