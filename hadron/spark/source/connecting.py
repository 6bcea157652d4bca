"""The cluster, as a task or the driver of a query reaches it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def connect(url: str) -> AbstractContextManager[Any]:
    """A blocking client. Its module is loaded here: finding the connector must stay quick."""
    import hadron

    connection: AbstractContextManager[Any] = hadron.connect_sync(url)
    return connection
