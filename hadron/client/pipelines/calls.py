"""The pipeline calls of a client; each goes to the leader of the pipeline's replica set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from hadron.client.connecting.leaders import LOOK_HINT, ask_each, check_complete
from hadron.client.connecting.session import Session
from hadron.client.pipelines.homes import Homes
from hadron.client.pipelines.stage_run import ReadyStages, StageRun
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import check_called, text_of, text_or_none_of, whole_of
from hadron.client.terms.opening import Opening
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import RequestError
from hadron.model.record import NewRecord
from hadron.wire.messages import Method, method, pipelines_pb2

_BACKFILL: Final = method("StartBackfill")
_CONTROL: Final = method("ControlBackfill")
_CANCEL: Final = method("CancelInstances")
_COMPLETE: Final = method("CompleteStages")
_FAIL: Final = method("FailStages")
_INSTANCES: Final = method("ListInstances")
_PAGE_INSTANCES: Final = 1_000
_PROGRESS: Final = method("PipelineProgress")
_RETRY: Final = method("RetryInstances")
_SIGNAL: Final = method("SignalInstance")
_START: Final = method("StartInstances")
_SLICE: Final = 1_000
"""Instances that one call names: one entry of the log."""

_STATUSES: Final = ("", "live", "done", "failed", "cancelled")


class PipelineCalls:
    """What `Client` says and asks about pipelines. Every call may be repeated safely: the
    attempt numbers make a completion or failure count once."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog
        self._homes = Homes(catalog)
        self._namespace = session.endpoint.namespace

    async def progress(
        self, name: str, within_s: float | None = None, *, with_pace: bool = False
    ) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
        name = text_or_none_of("pipeline", name)
        homes = self._session.topology.names()
        request = pipelines_pb2.PipelineProgressRequest(
            namespace=self._namespace, pipeline=name, with_pace=with_pace
        )
        if name:
            homes = [await self._find(name, request)]

        async def ask(home: str) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
            answer, _ = await self._session.request(home, _PROGRESS, request, timeout_s=within_s)
            return list(answer.pipelines)

        answers, failed = await ask_each(self._session, homes, ask)
        found = [pipeline for home in homes for pipeline in answers.get(home, ())]
        check_complete(found, failed, len(homes), "could not be asked", LOOK_HINT)
        return found if name else await self._catalog.listed(found)

    async def instances(
        self, pipeline: str, status: str, after_id: int, limit: int
    ) -> list[pipelines_pb2.ListInstancesResponse.Instance]:
        pipeline = text_of("pipeline", pipeline)
        if status not in _STATUSES:
            raise RequestError(f"status {status!r} is unknown", f"use one of {_STATUSES}")
        if limit < 1 or after_id < 0:
            raise RequestError(
                f"limit {limit} or after_id {after_id} is out of bounds",
                "ask for 1 instance or more, ids start at 1",
            )
        request = pipelines_pb2.ListInstancesRequest(
            namespace=self._namespace, pipeline=pipeline, status=status, after_id=after_id
        )
        home = await self._find(pipeline, request)
        found: list[pipelines_pb2.ListInstancesResponse.Instance] = []
        more = True
        while more and len(found) < limit:
            # The answer to one question is bounded.
            request.limit = min(limit - len(found), _PAGE_INSTANCES)
            request.after_id = found[-1].id if found else after_id
            answer, _ = await self._session.request(home, _INSTANCES, request)
            found += answer.instances
            more = answer.more
        return found

    async def retry(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None,
        stage: str,
        before_ms: int,
        on_progress: Callable[[int], None] | None,
        *,
        from_start: bool,
    ) -> int:
        pipeline = text_of("pipeline", pipeline)
        request = pipelines_pb2.RetryInstancesRequest(
            namespace=self._namespace,
            pipeline=pipeline,
            from_start=from_start,
            stage=text_or_none_of("stage", stage),
            before_ms=whole_of("before_ms", before_ms, 0),
        )
        return await self._in_slices(_RETRY, request, instance_ids, on_progress)

    async def cancel(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None,
        status: str,
        stage: str,
        before_ms: int,
        on_progress: Callable[[int], None] | None,
    ) -> int:
        pipeline = text_of("pipeline", pipeline)
        if status not in ("live", "failed"):
            raise RequestError(f"status {status!r} cannot be cancelled", "use live or failed")
        request = pipelines_pb2.CancelInstancesRequest(
            namespace=self._namespace,
            pipeline=pipeline,
            status=status,
            stage=text_or_none_of("stage", stage),
            before_ms=before_ms,
        )
        return await self._in_slices(_CANCEL, request, instance_ids, on_progress)

    async def start(
        self, pipeline: str, stream: str, offsets: Sequence[int], partition: str
    ) -> list[int]:
        """Slice by slice: each is asked for under a number of its own, and done once."""
        request = pipelines_pb2.StartInstancesRequest(
            namespace=self._namespace,
            pipeline=text_of("pipeline", pipeline),
            stream=text_of("stream", stream),
            partition=text_or_none_of("partition", partition),
        )
        wanted = [whole_of("offset", each, 0) for each in offsets]
        home = await self._find(request.pipeline, request)
        made: list[int] = []
        for at in range(0, len(wanted), _SLICE):
            request.ClearField("offsets")
            request.offsets.extend(wanted[at : at + _SLICE])
            request.request = self._session.ports.random.token_bytes(16)
            answer, _ = await self._session.request(home, _START, request)
            made += range(answer.first_id, answer.first_id + len(request.offsets))
        return made

    async def backfill(
        self, pipeline: str, partition: str, start: int, end: int, per_s: int, *, again: bool
    ) -> int:
        request = pipelines_pb2.StartBackfillRequest(
            namespace=self._namespace,
            pipeline=text_of("pipeline", pipeline),
            partition=text_or_none_of("partition", partition),
            from_offset=whole_of("start", start, 0),
            to_offset=whole_of("end", end, 0),
            per_s=whole_of("per_s", per_s, 0),
            again=again,
            request=self._session.ports.random.token_bytes(16),
        )
        home = await self._find(request.pipeline, request)
        answer, _ = await self._session.request(home, _BACKFILL, request)
        return int(answer.number)

    async def control_backfill(self, pipeline: str, number: int, status: str) -> str:
        request = pipelines_pb2.ControlBackfillRequest(
            namespace=self._namespace,
            pipeline=text_of("pipeline", pipeline),
            number=whole_of("number", number, 1),
            status=text_of("status", status),
        )
        home = await self._find(request.pipeline, request)
        answer, _ = await self._session.request(home, _CONTROL, request)
        return str(answer.status)

    async def signal(self, pipeline: str, instance_id: int, stage: str, value: Any) -> bool:
        """A value is sent as a producer would send it."""
        request = pipelines_pb2.SignalInstanceRequest(
            namespace=self._namespace,
            pipeline=text_of("pipeline", pipeline),
            instance_id=_instance_id(instance_id),
            stage=text_of("stage", stage),
        )
        home = await self._find(request.pipeline, request)
        said = []
        if value is not None:
            builder = BatchBuilder()
            builder.add(NewRecord(value=value), self._session.ports.clock.now_ms())
            said = [builder.build()]
        answer, _ = await self._session.request(home, _SIGNAL, request, said)
        return not answer.again

    async def _in_slices(
        self,
        wanted: Method,
        request: pipelines_pb2.RetryInstancesRequest | pipelines_pb2.CancelInstancesRequest,
        instance_ids: Sequence[int] | None,
        on_progress: Callable[[int], None] | None,
    ) -> int:
        """Each is an entry of the log, and all of them may be repeated."""
        if on_progress is not None:
            check_called("on_progress", on_progress, "a function of how many it were so far")
        ids = None if instance_ids is None else sorted({_instance_id(n) for n in instance_ids})
        home = await self._find(request.pipeline, request)
        count = 0
        while ids is None or ids:
            if ids is not None:
                request.ClearField("instance_ids")
                request.instance_ids.extend(ids[:_SLICE])
                ids = ids[_SLICE:]
            answer, _ = await self._session.request(home, wanted, request)
            count += answer.retried if wanted is _RETRY else answer.cancelled
            if on_progress is not None:
                on_progress(count)
            if ids is None:
                if not answer.more:
                    break
                request.after_id = answer.after_id
        return count

    def run(
        self,
        pipeline: str,
        engine: str,
        stages: Sequence[str],
        max_batch: int,
        credit: int,
        *,
        takes_ahead: bool = False,
        runner: str = "",
    ) -> Opening[StageRun]:
        pipeline = text_of("pipeline", pipeline)
        runner = text_or_none_of("runner", runner)
        if engine not in ("spark", "handler"):
            raise RequestError(f"engine {engine!r} is unknown", "use spark or handler")
        if max_batch < 1 or credit < 1:
            raise RequestError(
                f"max_batch {max_batch} or credit {credit} is out of bounds", "use 1 or more"
            )

        async def make() -> StageRun:
            opening = pipelines_pb2.RunStagesRequest(
                pipeline=pipeline,
                stages=stages,
                engine=engine,
                max_batch=max_batch,
                credit=credit,
                runner=runner,
            )
            return StageRun(await self.ready(opening, takes_ahead=takes_ahead))

        return Opening(make, "run", "run_stages", f"of {pipeline!r}")

    async def ready(
        self, opening: pipelines_pb2.RunStagesRequest, *, takes_ahead: bool
    ) -> ReadyStages:
        """What the pipeline that is named there has for such a runner. Raises `NotFoundError`."""
        opening.namespace = self._namespace
        # Whenever the call is opened again: the program was cut off, and is there (PIPELINES P18).
        opening.run_id = self._session.ports.random.token_bytes(16)
        home = await self._find(opening.pipeline, opening)
        return ReadyStages(self._session, home, opening, takes_ahead=takes_ahead)

    async def home_of(self, pipeline_id: int) -> str:
        """The replica set of a pipeline. Raises `NotFoundError`."""
        return await self._homes.of_id(pipeline_id)

    async def _find(
        self,
        name: str,
        request: pipelines_pb2.PipelineProgressRequest
        | pipelines_pb2.ListInstancesRequest
        | pipelines_pb2.RunStagesRequest
        | pipelines_pb2.RetryInstancesRequest
        | pipelines_pb2.StartInstancesRequest
        | pipelines_pb2.CancelInstancesRequest
        | pipelines_pb2.StartBackfillRequest
        | pipelines_pb2.ControlBackfillRequest
        | pipelines_pb2.SignalInstanceRequest,
    ) -> str:
        """Say in a request which pipeline is meant, by its id (PROTOCOL D3); returns its replica
        set. Raises `NotFoundError`."""
        item, home = await self._homes.find(name)
        request.pipeline_id, request.metadata_index = item.id, item.metadata_index
        return home

    async def complete(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        batch: bytes | None,
        partition: str,
        version: int,
        took_ms: Sequence[int] = (),
    ) -> pipelines_pb2.CompleteStagesResponse:
        _check_pairs(instance_ids, attempts, created_ms)
        request = pipelines_pb2.CompleteStagesRequest(
            pipeline_id=pipeline_id,
            stage=stage,
            instance_ids=instance_ids,
            attempts=attempts,
            created_ms=created_ms,
            partition=partition,
            version=version,
            took_ms=took_ms,
        )
        home = await self._homes.of_id(pipeline_id)
        answer, _ = await self._session.request(
            home, _COMPLETE, request, [] if batch is None else [batch]
        )
        return answer  # type: ignore[no-any-return]

    async def fail(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        reason: str,
        *,
        is_final: bool = False,
        took_ms: Sequence[int] = (),
    ) -> None:
        _check_pairs(instance_ids, attempts, created_ms)
        request = pipelines_pb2.FailStagesRequest(
            pipeline_id=pipeline_id,
            stage=stage,
            instance_ids=instance_ids,
            attempts=attempts,
            created_ms=created_ms,
            reason=reason,
            is_final=is_final,
            took_ms=took_ms,
        )
        home = await self._homes.of_id(pipeline_id)
        await self._session.request(home, _FAIL, request)


def _instance_id(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given < 1 << 63:
        raise RequestError(f"{given!r} is no instance's id", "ids are whole numbers from 1 on")
    return given


def _check_pairs(
    instance_ids: Sequence[int], attempts: Sequence[int], created_ms: Sequence[int]
) -> None:
    if not len(instance_ids) == len(attempts) == len(created_ms):
        raise RequestError(
            f"{len(instance_ids)} instance ids were given with {len(attempts)} attempts and "
            f"{len(created_ms)} times of creation",
            "give the attempt and the `created_ms` of each invocation, in the same order",
        )
