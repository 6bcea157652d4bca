"""Every operation of the door, in one table: the routes and the OpenAPI document are made of it."""

from __future__ import annotations

from typing import Final

from hadron.doors.http import publishing, reading, status
from hadron.doors.http.call import JSON, NDJSON, NoQuery
from hadron.doors.http.operations import Operation

_ANY: Final = {"type": "string", "format": "binary"}

OPERATIONS: Final = (
    Operation(
        name="publish",
        method="POST",
        path="/v1/streams/{stream}",
        summary="Publish records: a value, NDJSON of any length, or CloudEvents.",
        handle=publishing.publish,
        query=publishing.PublishQuery,
        body={
            JSON: {},
            NDJSON: {"type": "string"},
            publishing.CE_JSON: {"type": "object"},
            publishing.CE_BATCH: {"type": "array", "items": {"type": "object"}},
            "text/plain": {"type": "string"},
            "application/octet-stream": _ANY,
        },
        answer={JSON: publishing.Published | publishing.PublishedMany},
        headers={
            "Idempotency-Key": "The same key within a day is logged once, through whatever node."
        },
        errors=(404, 409, 412, 413, 415, 422, 504, 507),
    ),
    Operation(
        name="read",
        method="GET",
        path="/v1/streams/{stream}/records",
        summary="Read records, from some place to the end as of now.",
        handle=reading.read,
        query=reading.ReadQuery,
        answer={
            JSON: reading.RecordsAnswer,
            NDJSON: {"type": "string"},
            publishing.CE_BATCH: {"type": "array", "items": {"type": "object"}},
        },
        errors=(404, 406, 416),
    ),
    Operation(
        name="readOne",
        method="GET",
        path="/v1/streams/{stream}/records/{offset:int}",
        summary="One record: its value, and the rest as headers of a CloudEvent.",
        handle=reading.read_one,
        query=reading.RecordQuery,
        answer={"*/*": _ANY},
        errors=(404, 406, 416),
    ),
    Operation(
        name="status",
        method="GET",
        path="/v1/status",
        summary="How this node is.",
        handle=status.status,
        query=NoQuery,
        answer={JSON: {"type": "object"}},
    ),
    Operation(
        name="topology",
        method="GET",
        path="/v1/topology",
        summary="Replica sets, their nodes and who leads, as this node knows them.",
        handle=status.topology,
        query=NoQuery,
        answer={JSON: status.TopologyAnswer},
    ),
    Operation(
        name="health",
        method="GET",
        path="/healthz",
        summary="Whether the process answers.",
        handle=status.health,
        query=NoQuery,
        answer={JSON: status.Health},
    ),
    Operation(
        name="ready",
        method="GET",
        path="/readyz",
        summary="Whether the node is at work and its leader answers.",
        handle=status.ready,
        query=NoQuery,
        answer={JSON: status.Health},
        errors=(503,),
    ),
)
