"""What a client offers about pipelines: a part of `Client`, which would be too long with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hadron.client.pipelines.calls import PipelineCalls
from hadron.client.pipelines.stage_run import DEFAULT_CREDIT, StageRun
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.opening import Opening
from hadron.model.limits import DEFAULT_MICRO_BATCH
from hadron.wire.messages import pipelines_pb2


class PipelineMethods:
    """Its methods are those of `Client`."""

    _pipelines: PipelineCalls

    async def pipeline_progress(
        self, name: str = "", *, within_s: float | None = None, with_pace: bool = False
    ) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
        """Counts of instances and stages of one pipeline, or of all; with `with_pace` also rates,
        and how long stages take. Raises `IncompleteError` as `groups` does."""
        return await self._pipelines.progress(
            name, patience_of(within_s, "within_s"), with_pace=with_pace
        )

    async def instances(
        self, pipeline: str, *, status: str = "", after_id: int = 0, limit: int = 100
    ) -> list[pipelines_pb2.ListInstancesResponse.Instance]:
        """A pipeline's instances behind `after_id`, by id, `limit` at most; `status` is "", "live",
        "done", "failed" or "cancelled"."""
        return await self._pipelines.instances(pipeline, status, after_id, limit)

    async def retry_instances(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None = None,
        *,
        stage: str = "",
        before_ms: int = 0,
        from_start: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Let failed instances of a pipeline run again; returns how many do.

        What was done of them stays: only the stages that failed run again, with the attempts that
        they are declared to have. It may be repeated: instances that were retried already and have
        not failed again are passed over.

        Args:
            instance_ids: which ones; None is all that have failed and that the rest says. 1,000 at
                a time are one step.
            stage: only those in which this stage has failed.
            before_ms: only those made before then.
            from_start: what was done of them is done again, too: their outputs come once more.
            on_progress: called after each step with how many it were so far.

        Raises `NotFoundError` for a pipeline or an instance that does not exist, `RequestError`
        for one that has not failed; of its step nothing was done then, earlier ones stand.
        """
        return await self._pipelines.retry(
            pipeline, instance_ids, stage, before_ms, on_progress, from_start=from_start
        )

    async def cancel_instances(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None = None,
        *,
        status: str = "live",
        stage: str = "",
        before_ms: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """End instances that are live or have failed; returns how many were ended. Nothing of them
        runs any more, and what runners still make of them does not count; what is done of them
        stays. It may be repeated: those that have ended otherwise are passed over.

        Args:
            instance_ids: which ones; None is all of the pipeline that the rest says.
            status: "live" or "failed".
            stage: only those that wait for this stage to be run.
            before_ms: only those made before then.
            on_progress: called after each step of 1,000 with how many it were so far.

        Raises `NotFoundError` for a pipeline or an instance that does not exist, `ConflictError`
        when a transaction is about to end a stage of one; of its step nothing was done then.
        """
        return await self._pipelines.cancel(
            pipeline, instance_ids, status, stage, before_ms, on_progress
        )

    async def start_instances(
        self, pipeline: str, stream: str, offsets: Sequence[int], *, partition: str = ""
    ) -> list[int]:
        """Make an instance of each of these records, beside what triggers make, and beyond
        `max_parallel`; returns their ids.

        Args:
            partition: of the stream; "" is the one at the pipeline's own replica set, or, where it
                has none there, its first.

        Raises `NotFoundError` for what does not exist, `RequestError` for a record that the
        pipeline's own replica set does not keep.
        """
        return await self._pipelines.start(pipeline, stream, offsets, partition)

    async def start_backfill(
        self,
        pipeline: str,
        start: int,
        end: int,
        *,
        partition: str = "",
        per_s: int = 0,
        again: bool = False,
    ) -> int:
        """Make instances of old records of a pipeline's input: of those from offset `start` on,
        before `end`, as far as the pipeline has come by itself; returns the backfill's number. It
        goes on by itself, behind new records; `pipeline_progress` shows how far it is.

        Args:
            partition: of the input; "" is the one at the pipeline's own replica set.
            per_s: instances, at most; 0 is as many as there is room for.
            again: also of records that were looked at before; else each makes one instance.

        Raises `NotFoundError` for a partition that the pipeline does not read, `RequestError` for a
        range that it has not come to.
        """
        return await self._pipelines.backfill(pipeline, partition, start, end, per_s, again=again)

    async def control_backfill(self, pipeline: str, number: int, status: str) -> str:
        """Let a backfill be "running", "paused" or "cancelled"; returns what it is then: one that
        is done or cancelled stays so. Raises `NotFoundError` without it."""
        return await self._pipelines.control_backfill(pipeline, number, status)

    async def signal(self, pipeline: str, instance_id: int, stage: str, value: Any = None) -> bool:
        """Signal a stage of an instance that waits for it (`wait: {signal: true}`), also before its
        turn; returns whether this was the first signal, which counts. It may be repeated:
        where an answer was lost, the first one may have been this. Of an instance that has failed
        it is kept until that is retried.

        Args:
            value: what is said with it, as a producer takes it: the stage's output, where it
                declares one.

        Raises `NotFoundError` for an instance that does not exist yet, or no more, or a stage that
        does not wait; `RequestError` for one that waits for a record, whose time is over, or that
        has no output for a value.
        """
        return await self._pipelines.signal(pipeline, instance_id, stage, value)

    def run_stages(
        self,
        pipeline: str,
        *,
        engine: str = "spark",
        stages: Sequence[str] = (),
        max_batch: int = DEFAULT_MICRO_BATCH,
        credit: int = DEFAULT_CREDIT,
        takes_ahead: bool = False,
        runner: str = "",
    ) -> Opening[StageRun]:
        """Ready invocations: `async with client.run_stages(...) as run`, iterate, `run.grant()`.
        From below; `stage` is what programs are written with.

        Args:
            stages: which ones this runner can run; none means all of `engine`.
            max_batch: invocations per micro-batch, at most.
            credit: micro-batches that come before the first `grant`.
            takes_ahead: the program takes micro-batches before it works on them, and says
                `run.begin(invocations)` when it does; else each begins when it is iterated to.
            runner: what it is called in instances' stories.
        """
        return self._pipelines.run(
            pipeline, engine, stages, max_batch, credit, takes_ahead=takes_ahead, runner=runner
        )

    async def complete_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        batch: bytes | None,
        partition: str = "",
        *,
        version: int = 0,
    ) -> pipelines_pb2.CompleteStagesResponse:
        """Commit outputs and completions together, all or none.

        Args:
            attempts, created_ms: of the invocations, in the order of `instance_ids`.
            batch: one encoded record batch with one output per instance in the same order; None
                for a stage without an output.
            partition: of the outputs; "" is the pipeline's own replica set.
            version: of the invocations. It must be given where instances live that began with other
                outputs of this stage.

        Returns:
            The outputs' base offset; or `stale_instance_ids`, and then nothing was done.
        """
        return await self._pipelines.complete(
            pipeline_id, stage, instance_ids, attempts, created_ms, batch, partition, version
        )

    async def fail_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        reason: str,
    ) -> None:
        """These attempts failed; the stage's retry policy decides what follows."""
        await self._pipelines.fail(pipeline_id, stage, instance_ids, attempts, created_ms, reason)
