"""The client: producers, readers, group members, schema and pipeline calls.

Async on anyio, so it works under trio and asyncio; `connect_sync` gives the same names, blocking.
Names below are imported when they are first used: a node has a few of the modules here for its own
calls, and no producer, reader or blocking client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadron.client.client import Client, connect
    from hadron.client.deliveries import Delivery, DeliveryBatch
    from hadron.client.producer import Producer
    from hadron.client.publishing import Pending
    from hadron.client.reader import BatchReader, RecordReader
    from hadron.client.results import (
        Applied,
        BatchReceipt,
        Change,
        Fetched,
        PartitionOffsets,
        Receipt,
    )
    from hadron.client.stages import StageRun
    from hadron.client.subscription import Subscription
    from hadron.client.sync import SyncClient, connect_sync
    from hadron.client.url import Endpoint, parse_url

_HOMES = {
    "Applied": "hadron.client.results",
    "BatchReader": "hadron.client.reader",
    "BatchReceipt": "hadron.client.results",
    "Change": "hadron.client.results",
    "Client": "hadron.client.client",
    "Delivery": "hadron.client.deliveries",
    "DeliveryBatch": "hadron.client.deliveries",
    "Endpoint": "hadron.client.url",
    "Fetched": "hadron.client.results",
    "PartitionOffsets": "hadron.client.results",
    "Pending": "hadron.client.publishing",
    "Producer": "hadron.client.producer",
    "Receipt": "hadron.client.results",
    "RecordReader": "hadron.client.reader",
    "StageRun": "hadron.client.stages",
    "Subscription": "hadron.client.subscription",
    "SyncClient": "hadron.client.sync",
    "connect": "hadron.client.client",
    "connect_sync": "hadron.client.sync",
    "parse_url": "hadron.client.url",
}

__all__ = [
    "Applied",
    "BatchReader",
    "BatchReceipt",
    "Change",
    "Client",
    "Delivery",
    "DeliveryBatch",
    "Endpoint",
    "Fetched",
    "PartitionOffsets",
    "Pending",
    "Producer",
    "Receipt",
    "RecordReader",
    "StageRun",
    "Subscription",
    "SyncClient",
    "connect",
    "connect_sync",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hadron.client' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
