"""What a client offers to programs that run stages: a part of `Client`."""

from __future__ import annotations

from hadron.client.connecting.session import Session
from hadron.client.handling.stage import (
    DEFAULT_INVOCATIONS,
    StageInvocations,
    StageOpening,
    StageSettings,
)
from hadron.client.pipelines.calls import PipelineCalls
from hadron.client.producing.new_records import Serializer
from hadron.client.reading.calls import ReadCalls
from hadron.model.record import Deserializer


class HandlingMethods:
    """Its methods are those of `Client`."""

    _session: Session
    _pipelines: PipelineCalls
    _reading: ReadCalls

    def stage(
        self,
        pipeline: str,
        stage: str,
        *,
        max_in_flight: int = DEFAULT_INVOCATIONS,
        value_serializer: Serializer | None = None,
        value_deserializer: Deserializer | None = None,
        runner: str = "",
        code_version: str = "",
    ) -> StageOpening:
        """Invocations of a stage with `engine: handler`, which this program runs:
        `async for invocation in client.stage("departures", "verdict")`, with
        `invocation.root` and `invocation.outputs`, to be ended by `await invocation.complete(...)`
        or `fail`; or `await client.stage(...).run(handler)`, many at a time.

        Args:
            max_in_flight: invocations that were handed out and have not ended, at most.
            value_serializer: from what `complete` is given to bytes, str or anything JSON.
            value_deserializer: called with a record's value when it is touched: `.value` is what it
                gives.
            runner: what this program is called in instances' stories; "" is host and process.
            code_version: of the program, for the same place: a release, or a commit.
        """
        settings = StageSettings(
            pipeline=pipeline,
            stage=stage,
            max_in_flight=max_in_flight,
            value_serializer=value_serializer,
            value_deserializer=value_deserializer,
            runner=runner,
            code_version=code_version,
        ).checked()

        async def make() -> StageInvocations:
            return StageInvocations(self._session, self._pipelines, self._reading, settings)

        return StageOpening(make, "stage", "stage", f"{stage!r} of {pipeline!r}")
