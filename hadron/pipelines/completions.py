"""What runners hand in, checked against what their stages are declared to be: the commands that
are logged of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from hadron.model.batch import judge_batch
from hadron.model.errors import NotFoundError, NotReadyError, RequestError
from hadron.model.pipelines import Output, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.pipelines.runners import Ended
from hadron.serving.catalog import Catalog
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages

_REASON_CHARACTERS: Final = 2_000
"""Kept of why attempts failed: it stands in the log, and in a row of each instance."""

Definitions = Mapping[int, tuple[StageSpec, ...]]
"""By version, the stages of what instances live with."""


class Elsewhere(NamedTuple):
    """Outputs go to another set's partition.

    Attributes:
        command: what is decided then.
        metadata_index: what that set must know of the schema.
    """

    command: PublishStages
    metadata_index: int


class Completions:
    """Of one pipeline. `definitions` gives those that are known of. Nothing else that a leader
    remembers is added here: the same words become the same bytes at any time (PROTOCOL E7). Who ran
    a stage, and how long, `PipelineDriver` adds to what a plain call says, before it comes here; to
    a transaction's statement nobody does."""

    def __init__(
        self, item: SchemaObject, catalog: Catalog, definitions: Callable[[], Definitions]
    ) -> None:
        self._item = item
        self._catalog = catalog
        self._definitions = definitions

    def completion(
        self, ended: Ended, outputs: memoryview, own: str, partition: str = ""
    ) -> CompleteStages:
        """What is logged of it, when the outputs go to the pipeline's `own` partition. Raises as
        `ending` does, `RequestError` when they are to go to another one."""
        found = self.ending(ended, outputs, own, partition)
        if isinstance(found, CompleteStages):
            return found
        raise RequestError(
            f"the output of stage {ended.stage!r} goes to partition {found.command.partition!r}, "
            f"this pipeline lives on {own!r}",
            "complete the stage by itself, or publish there with the transaction",
        )

    def ending(
        self, ended: Ended, outputs: memoryview, own: str, partition: str
    ) -> CompleteStages | Elsewhere:
        """What is logged of it, or decided where the outputs go to another set's partition than
        `own`: to `partition`, or else ("") to the stage's, or else to the own one. Raises
        `RequestError` when their batch does not fit the stage's declaration."""
        output, out_stream_id = self._output(ended, outputs), 0
        if output is not None:
            wanted = partition or output.partition or own
            item = self._stream(output, wanted)
            out_stream_id = item.id
            if wanted != own:
                command = PublishStages(
                    self._item.id,
                    ended.stage,
                    ended.instance_ids,
                    ended.attempts,
                    ended.created_ms,
                    ended.version,
                    item.id,
                    wanted,
                    ended.runner,
                    ended.code_version,
                    ended.took_ms,
                )
                return Elsewhere(command, item.metadata_index)
        return CompleteStages(
            self._item.id,
            ended.stage,
            ended.instance_ids,
            ended.attempts,
            out_stream_id,
            len(outputs),
            ended.created_ms,
            ended.version,
            ended.runner,
            ended.code_version,
            ended.took_ms,
        )

    def failure(self, ended: Ended, reason: str) -> FailStages:
        """What is logged of it. Raises `RequestError`."""
        self._check_runs(ended.stage)
        ended.check()
        return FailStages(
            self._item.id,
            ended.stage,
            ended.instance_ids,
            ended.attempts,
            reason[:_REASON_CHARACTERS],
            ended.created_ms,
            ended.is_final,
            ended.runner,
            ended.code_version,
            ended.took_ms,
        )

    def _output(self, ended: Ended, outputs: memoryview) -> Output | None:
        """Where they go. Raises `RequestError` when they are not what the stage declares."""
        ended.check()
        output = self._declared(ended.stage, ended.version)
        self._check_runs(ended.stage)
        if output is None:
            if len(outputs):
                raise RequestError(
                    f"stage {ended.stage!r} declares no output, but outputs were sent"
                )
            return None
        head = judge_batch(outputs)
        if head.n != len(ended.instance_ids):
            raise RequestError(
                f"{len(ended.instance_ids)} instances are completed with {head.n} outputs"
            )
        return output

    def _stream(self, output: Output, partition: str) -> SchemaObject:
        item, spec = self._catalog.stream(self._item.namespace, output.stream)
        assert isinstance(spec, StreamSpec)
        if partition not in spec.partitions:
            raise NotFoundError(
                f"{item.label} has no partition {partition!r}",
                f"it has: {', '.join(spec.partitions)}",
            )
        return item

    def _declared(self, name: str, version: int) -> Output | None:
        """Where a stage's outputs go."""
        known = self._stages(name)
        if version:
            if version not in known:
                # Whatever it was of has ended: of those that live, none goes by it.
                return next(iter(known.values())).output
            return known[version].output
        outputs = {stage.output for stage in known.values()}
        if len(outputs) > 1:
            raise RequestError(
                f"stage {name!r} has several outputs, as instances live with definitions "
                f"{', '.join(map(str, known))}",
                "send the `version` of the invocations",
            )
        return outputs.pop()

    def _check_runs(self, name: str) -> None:
        """Raises `RequestError` for a stage that waits."""
        if all(stage.wait is not None for stage in self._stages(name).values()):
            raise RequestError(
                f"stage {name!r} waits for a record or a signal: nobody runs it",
                "`hadron pipeline signal` ends one that waits for a signal",
            )

    def _stages(self, name: str) -> dict[int, StageSpec]:
        """By version. Raises `NotFoundError`."""
        definitions = self._definitions()
        if not definitions:
            raise NotReadyError(
                f"the stages of {self._item.label} are not known here yet", "ask again"
            )
        found = {
            version: stage
            for version, stages in definitions.items()
            for stage in stages
            if stage.name == name
        }
        if not found:
            names = sorted({stage.name for stages in definitions.values() for stage in stages})
            raise NotFoundError(
                f"pipeline {self._item.name!r} has no stage {name!r}", f"it has: {', '.join(names)}"
            )
        return found
