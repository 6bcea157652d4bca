"""Serves what `hadron.v1.Pipelines` has of backfills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hadron.model.errors import RequestError
from hadron.pipelines.driver import PipelineDriver, Pipelines
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.pipelines.backfills import Backfill, StartBackfill
from hadron.state.pipelines.tables import BackfillStatus
from hadron.wire.calls import Call
from hadron.wire.messages import pipelines_pb2

_STATUS: Final[dict[int, str]] = {status: status.name.lower() for status in BackfillStatus}
_WANTED: Final = {name: status for status, name in _STATUS.items() if name != "done"}

_MAX_SHOWN: Final = 100
"""Backfills of a pipeline that have ended, at most."""

_LARGEST: Final = (1 << 63) - 1
"""SQLite's largest integer; the wire carries larger ones."""

_Start: TypeAlias = Call[pipelines_pb2.StartBackfillRequest, pipelines_pb2.StartBackfillResponse]
_Control: TypeAlias = Call[
    pipelines_pb2.ControlBackfillRequest, pipelines_pb2.ControlBackfillResponse
]


def _driver(
    leading: Leading,
    request: pipelines_pb2.StartBackfillRequest | pipelines_pb2.ControlBackfillRequest,
) -> PipelineDriver:
    item = leading.find(
        "Pipeline", request.namespace, request.pipeline, request.pipeline_id, request.metadata_index
    )
    return leading.part(Pipelines).driver(item.id)


def _start(
    leading: Leading,
    call: _Start,
    request: pipelines_pb2.StartBackfillRequest,
    _attachment: memoryview,
) -> None:
    async def answer() -> None:
        driver = _driver(leading, request)
        found = await driver.backfill(
            StartBackfill(
                driver.item.id,
                request.partition or leading.replica_set,
                min(request.from_offset, _LARGEST),
                min(request.to_offset, _LARGEST),
                request.per_s,
                request.again,
                request.request,
            )
        )
        call.send(
            pipelines_pb2.StartBackfillResponse(number=found.number, to_offset=found.to_offset),
            end=True,
        )

    call.spawn(answer)


def _control(
    leading: Leading,
    call: _Control,
    request: pipelines_pb2.ControlBackfillRequest,
    _attachment: memoryview,
) -> None:
    wanted = _WANTED.get(request.status)
    if wanted is None:
        raise RequestError(f"unknown status {request.status!r}", f"use one of {', '.join(_WANTED)}")

    async def answer() -> None:
        status = await _driver(leading, request).control_backfill(request.number, wanted)
        call.send(pipelines_pb2.ControlBackfillResponse(status=_STATUS[status]), end=True)

    call.spawn(answer)


def shown(filling: Sequence[Backfill]) -> list[pipelines_pb2.PipelineProgressResponse.Backfill]:
    """Of all backfills of a pipeline: those that have not ended, and the latest."""
    latest = filling[-_MAX_SHOWN:]
    older = (
        each
        for each in filling[:-_MAX_SHOWN]
        if each.status in (BackfillStatus.RUNNING, BackfillStatus.PAUSED)
    )
    return [_shown(each) for each in (*older, *latest)]


def _shown(backfill: Backfill) -> pipelines_pb2.PipelineProgressResponse.Backfill:
    return pipelines_pb2.PipelineProgressResponse.Backfill(
        number=backfill.number,
        partition=backfill.partition,
        from_offset=backfill.from_offset,
        next_offset=backfill.next_offset,
        to_offset=backfill.to_offset,
        per_s=backfill.per_s,
        again=backfill.again,
        status=_STATUS[backfill.status],
        created=backfill.created,
    )


METHODS: Final = (
    led(
        "StartBackfill",
        pipelines_pb2.StartBackfillRequest,
        pipelines_pb2.StartBackfillResponse,
        _start,
    ),
    led(
        "ControlBackfill",
        pipelines_pb2.ControlBackfillRequest,
        pipelines_pb2.ControlBackfillResponse,
        _control,
    ),
)
