"""Hadron: replicated streams, consumer groups and pipelines over local SQLite logs.

`import hadron` is lazy on purpose: a Spark worker that only reads a stream must not load the
server, and a producer must not load Spark. Names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadron.client import (
        CallStream,
        Client,
        Delivery,
        IncomingCall,
        Producer,
        Receipt,
        Serving,
        StageInvocation,
        Step,
        Subscription,
        SyncClient,
        Transaction,
        TransactionOutcome,
        connect,
        connect_sync,
    )
    from hadron.client.blocking.faces.deliveries import SyncDelivery
    from hadron.client.blocking.faces.invocation import SyncStageInvocation
    from hadron.client.blocking.faces.producer import SyncProducer
    from hadron.client.blocking.faces.steps import SyncStep
    from hadron.client.blocking.faces.subscription import SyncSubscription
    from hadron.client.blocking.faces.transaction import SyncTransaction
    from hadron.model.cloudevents import CloudEvent
    from hadron.model.errors import (
        CallFailedError,
        CallUnknownError,
        ClosedError,
        CommitUnknownError,
        ConfigurationError,
        ConflictError,
        ConnectionLostError,
        CorruptionError,
        DamagedRecordError,
        DataDirectoryError,
        DeadlineExceededError,
        DiskFullError,
        FencedError,
        ForkedError,
        FrameError,
        HadronError,
        HandshakeError,
        IncompleteError,
        InvalidRecordError,
        KeyReusedError,
        LogTruncatedError,
        MetadataBehindError,
        NoServerError,
        NotFoundError,
        NotLeaderError,
        NotReadyError,
        OffsetMismatchError,
        OffsetOutOfRangeError,
        OldMemberError,
        OutcomeUnknownError,
        OverloadedError,
        PeerError,
        ProducerFencedError,
        RecordTooLargeError,
        RequestError,
        SchemaError,
        SequenceError,
        ShuttingDownError,
        StaleCompletionError,
        StorageError,
        StrangerError,
        TransactionExpiredError,
        TrimmedError,
        UnknownMethodError,
        UnreachableError,
        VersionError,
    )
    from hadron.model.record import NewRecord, Record

__version__: str
"""In `hadron.model.version`, for every room to say."""

_ERRORS = (
    "CallFailedError",
    "CallUnknownError",
    "ClosedError",
    "CommitUnknownError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionLostError",
    "CorruptionError",
    "DamagedRecordError",
    "DataDirectoryError",
    "DeadlineExceededError",
    "DiskFullError",
    "FencedError",
    "ForkedError",
    "FrameError",
    "HadronError",
    "HandshakeError",
    "IncompleteError",
    "InvalidRecordError",
    "KeyReusedError",
    "LogTruncatedError",
    "MetadataBehindError",
    "NoServerError",
    "NotFoundError",
    "NotLeaderError",
    "NotReadyError",
    "OffsetMismatchError",
    "OffsetOutOfRangeError",
    "OldMemberError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PeerError",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RequestError",
    "SchemaError",
    "SequenceError",
    "ShuttingDownError",
    "StaleCompletionError",
    "StorageError",
    "StrangerError",
    "TransactionExpiredError",
    "TrimmedError",
    "UnknownMethodError",
    "UnreachableError",
    "VersionError",
)

_HOMES = {
    "connect": "hadron.client",
    "connect_sync": "hadron.client",
    "CloudEvent": "hadron.model.cloudevents",
    "NewRecord": "hadron.model.record",
    "Record": "hadron.model.record",
    "CallStream": "hadron.client",
    "Client": "hadron.client",
    "IncomingCall": "hadron.client",
    "Serving": "hadron.client",
    "SyncClient": "hadron.client",
    "Producer": "hadron.client",
    "SyncProducer": "hadron.client.blocking.faces.producer",
    "Subscription": "hadron.client",
    "SyncSubscription": "hadron.client.blocking.faces.subscription",
    "Delivery": "hadron.client",
    "StageInvocation": "hadron.client",
    "Step": "hadron.client",
    "SyncStep": "hadron.client.blocking.faces.steps",
    "SyncStageInvocation": "hadron.client.blocking.faces.invocation",
    "SyncDelivery": "hadron.client.blocking.faces.deliveries",
    "Receipt": "hadron.client",
    "Transaction": "hadron.client",
    "TransactionOutcome": "hadron.client",
    "SyncTransaction": "hadron.client.blocking.faces.transaction",
    **dict.fromkeys(_ERRORS, "hadron.model.errors"),
}

__all__ = [
    "CallFailedError",
    "CallStream",
    "CallUnknownError",
    "Client",
    "ClosedError",
    "CloudEvent",
    "CommitUnknownError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionLostError",
    "CorruptionError",
    "DamagedRecordError",
    "DataDirectoryError",
    "DeadlineExceededError",
    "Delivery",
    "DiskFullError",
    "FencedError",
    "ForkedError",
    "FrameError",
    "HadronError",
    "HandshakeError",
    "IncomingCall",
    "IncompleteError",
    "InvalidRecordError",
    "KeyReusedError",
    "LogTruncatedError",
    "MetadataBehindError",
    "NewRecord",
    "NoServerError",
    "NotFoundError",
    "NotLeaderError",
    "NotReadyError",
    "OffsetMismatchError",
    "OffsetOutOfRangeError",
    "OldMemberError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PeerError",
    "Producer",
    "ProducerFencedError",
    "Receipt",
    "Record",
    "RecordTooLargeError",
    "RequestError",
    "SchemaError",
    "SequenceError",
    "Serving",
    "ShuttingDownError",
    "StageInvocation",
    "StaleCompletionError",
    "Step",
    "StorageError",
    "StrangerError",
    "Subscription",
    "SyncClient",
    "SyncDelivery",
    "SyncProducer",
    "SyncStageInvocation",
    "SyncStep",
    "SyncSubscription",
    "SyncTransaction",
    "Transaction",
    "TransactionExpiredError",
    "TransactionOutcome",
    "TrimmedError",
    "UnknownMethodError",
    "UnreachableError",
    "VersionError",
    "connect",
    "connect_sync",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("hadron.model.version").VERSION
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hadron' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """What there is to use; not what this module is made of."""
    return sorted([*__all__, "__version__", *(name for name in globals() if name.startswith("__"))])
