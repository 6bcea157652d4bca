"""The port of clients: how an exchange's leader tells them. What carries it is not known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hadron.exchanges.parcels import Gaps, Parcel
from hadron.model.errors import HadronError


class ClientSink(Protocol):
    """One client's call.

    Attributes:
        on_writable: called once it may be sent something again.
    """

    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool: ...

    @property
    def peer(self) -> str:
        """Who is at the other end, in words."""
        ...

    def deliver(self, parcel: Parcel) -> None: ...

    def tell_missed(self, gaps: Gaps) -> None: ...

    def confirm(self, ids: Sequence[int]) -> None:
        """What is published from here on reaches these subscriptions."""
        ...

    def refuse(self, id: int, error: HadronError) -> None: ...

    def fail(self, error: HadronError) -> None:
        """End the call."""
        ...
