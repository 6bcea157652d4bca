"""The client: producers, readers, group members, schema and pipeline calls.

Async on anyio, so it works under trio and asyncio; `connect_sync` gives the same names, blocking.
"""

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
