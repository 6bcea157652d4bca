"""The client: producers, readers, group members, schema and pipeline calls.

Async on anyio, so it works under trio and asyncio; `connect_sync` gives the same names, blocking.
From below, a lower one never imports a higher one:

* `terms`: what every call has in common: arguments, what is opened, results.
* `connecting`: the ways to leaders.
* `schema`: what is declared, looked up and changed.
* `producing`, `reading`, `pipelines`, `endpoints`: what they say.
* `handling`: the stages of a pipeline that the program runs itself.
* `transactions`: several of these, all or nothing.
* `exchanges`: publish/subscribe.
* `consuming`: what groups are given, also in steps that are transactions.
* `sinks`: what many tasks stage, and one transaction publishes.
* `client`: the class that offers all of it.
* `blocking`: the same from plain threads, its classes made of the async ones (`make faces`).

Names below are imported when they are first used: a node has a few of the modules here for its own
calls, and no producer, reader or blocking client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadron.client.blocking.faces.client import SyncClient, connect_sync
    from hadron.client.client import Client, connect
    from hadron.client.connecting.url import Endpoint, parse_url
    from hadron.client.consuming.deliveries import Delivery, DeliveryBatch
    from hadron.client.consuming.steps import Step
    from hadron.client.consuming.subscription import Subscription
    from hadron.client.endpoints.incoming import IncomingCall
    from hadron.client.endpoints.serving import Serving
    from hadron.client.endpoints.stream import CallStream
    from hadron.client.exchanges.exchange import Exchange
    from hadron.client.exchanges.message import Message
    from hadron.client.exchanges.messages import Messages
    from hadron.client.handling.invocation import StageInvocation
    from hadron.client.producing.producer import Producer
    from hadron.client.producing.publisher import Pending
    from hadron.client.reading.reader import BatchReader, RecordReader
    from hadron.client.terms.results import (
        Applied,
        BatchReceipt,
        Change,
        Dispatched,
        EndpointLife,
        EndpointServer,
        Fetched,
        OpenTransaction,
        PartitionOffsets,
        Receipt,
        TransactionOutcome,
    )
    from hadron.client.transactions.contents import Published, PublishedMany
    from hadron.client.transactions.transaction import Transaction

_HOMES = {
    "Applied": "hadron.client.terms.results",
    "BatchReader": "hadron.client.reading.reader",
    "BatchReceipt": "hadron.client.terms.results",
    "CallStream": "hadron.client.endpoints.stream",
    "Change": "hadron.client.terms.results",
    "Client": "hadron.client.client",
    "Delivery": "hadron.client.consuming.deliveries",
    "DeliveryBatch": "hadron.client.consuming.deliveries",
    "Dispatched": "hadron.client.terms.results",
    "Endpoint": "hadron.client.connecting.url",
    "EndpointLife": "hadron.client.terms.results",
    "EndpointServer": "hadron.client.terms.results",
    "Exchange": "hadron.client.exchanges.exchange",
    "Fetched": "hadron.client.terms.results",
    "IncomingCall": "hadron.client.endpoints.incoming",
    "Message": "hadron.client.exchanges.message",
    "Messages": "hadron.client.exchanges.messages",
    "OpenTransaction": "hadron.client.terms.results",
    "PartitionOffsets": "hadron.client.terms.results",
    "Pending": "hadron.client.producing.publisher",
    "Producer": "hadron.client.producing.producer",
    "Published": "hadron.client.transactions.contents",
    "PublishedMany": "hadron.client.transactions.contents",
    "Receipt": "hadron.client.terms.results",
    "RecordReader": "hadron.client.reading.reader",
    "Serving": "hadron.client.endpoints.serving",
    "StageInvocation": "hadron.client.handling.invocation",
    "Step": "hadron.client.consuming.steps",
    "Subscription": "hadron.client.consuming.subscription",
    "SyncClient": "hadron.client.blocking.faces.client",
    "Transaction": "hadron.client.transactions.transaction",
    "TransactionOutcome": "hadron.client.terms.results",
    "connect": "hadron.client.client",
    "connect_sync": "hadron.client.blocking.faces.client",
    "parse_url": "hadron.client.connecting.url",
}

__all__ = [
    "Applied",
    "BatchReader",
    "BatchReceipt",
    "CallStream",
    "Change",
    "Client",
    "Delivery",
    "DeliveryBatch",
    "Dispatched",
    "Endpoint",
    "EndpointLife",
    "EndpointServer",
    "Exchange",
    "Fetched",
    "IncomingCall",
    "Message",
    "Messages",
    "OpenTransaction",
    "PartitionOffsets",
    "Pending",
    "Producer",
    "Published",
    "PublishedMany",
    "Receipt",
    "RecordReader",
    "Serving",
    "StageInvocation",
    "Step",
    "Subscription",
    "SyncClient",
    "Transaction",
    "TransactionOutcome",
    "connect",
    "connect_sync",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hadron.client' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
