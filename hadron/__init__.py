"""Hadron: replicated streams, consumer groups and pipelines over local SQLite logs.

`import hadron` is lazy on purpose: a Spark worker that only reads a stream must not load the
server, and a producer must not load Spark. Names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadron.client import connect, connect_sync
    from hadron.model.cloudevents import CloudEvent
    from hadron.model.errors import (
        FencedError,
        HadronError,
        NotLeaderError,
        OutcomeUnknownError,
        PeerError,
        RequestError,
        StorageError,
    )
    from hadron.model.record import NewRecord, Record

__version__ = "0.1.0"

_HOMES = {
    "connect": "hadron.client",
    "connect_sync": "hadron.client",
    "CloudEvent": "hadron.model.cloudevents",
    "NewRecord": "hadron.model.record",
    "Record": "hadron.model.record",
    "HadronError": "hadron.model.errors",
    "RequestError": "hadron.model.errors",
    "PeerError": "hadron.model.errors",
    "StorageError": "hadron.model.errors",
    "NotLeaderError": "hadron.model.errors",
    "FencedError": "hadron.model.errors",
    "OutcomeUnknownError": "hadron.model.errors",
}

__all__ = [
    "CloudEvent",
    "FencedError",
    "HadronError",
    "NewRecord",
    "NotLeaderError",
    "OutcomeUnknownError",
    "PeerError",
    "Record",
    "RequestError",
    "StorageError",
    "connect",
    "connect_sync",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hadron' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
