"""Serves what `hadron.v1.Pipelines` has of signals."""

from __future__ import annotations

from typing import Final, TypeAlias

from hadron.pipelines.driver import Pipelines
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.wire.calls import Call
from hadron.wire.messages import pipelines_pb2

_LARGEST: Final = (1 << 63) - 1
"""SQLite's largest integer; the wire carries larger ones."""

_Signal: TypeAlias = Call[pipelines_pb2.SignalInstanceRequest, pipelines_pb2.SignalInstanceResponse]


def _signal(
    leading: Leading,
    call: _Signal,
    request: pipelines_pb2.SignalInstanceRequest,
    attachment: memoryview,
) -> None:
    async def answer() -> None:
        item = leading.find(
            "Pipeline",
            request.namespace,
            request.pipeline,
            request.pipeline_id,
            request.metadata_index,
        )
        driver = leading.part(Pipelines).driver(item.id)
        number = min(request.instance_id, _LARGEST)
        done = await driver.signal(number, request.stage, attachment)
        call.send(pipelines_pb2.SignalInstanceResponse(again=done.again), end=True)

    call.spawn(answer)


METHODS: Final = (
    led(
        "SignalInstance",
        pipelines_pb2.SignalInstanceRequest,
        pipelines_pb2.SignalInstanceResponse,
        _signal,
    ),
)
