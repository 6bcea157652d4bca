"""Stages that end in a transaction, from what a program gives to what is said of them. Pure.

What a stage's run has handed out is a micro-batch: invocations of one stage, with their attempts.
Safety rule: who completes names the attempt and when the instance was made, as they came, so that
what somebody else has ended since is refused (PROTOCOL E3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hadron.client.handling.invocation import AnyInvocation
from hadron.client.producing.new_records import Serializer, serialized_whole, whole_record
from hadron.model.errors import InvalidRecordError, RequestError, UndeclaredOutputError
from hadron.model.limits import MAX_BATCH_RECORDS
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.model.words import with_article
from hadron.wire.messages import pipelines_pb2, transactions_pb2

_FORM = "give an invocation of `client.stage`, or a micro-batch of `client.run_stages`"

Ended = pipelines_pb2.Invocations | AnyInvocation
"""What a transaction ends: a micro-batch, or one invocation."""


def whole(
    given: Ended, only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None
) -> tuple[pipelines_pb2.Invocations, list[pipelines_pb2.Invocation]]:
    """The micro-batch that is meant, and which of its invocations are. Raises `RequestError` for
    what no run gives."""
    if isinstance(given, AnyInvocation):
        if only is not None:
            raise RequestError("`only` is given with one invocation", "it is of micro-batches")
        return given._given.micro_batch, [given._given.invocation]
    return given, chosen(given, only)


def chosen(
    invocations: pipelines_pb2.Invocations,
    only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None,
) -> list[pipelines_pb2.Invocation]:
    """Which invocations are meant. Raises `RequestError` for what a run does not give."""
    # Users are not held to the annotations.
    given: Any = invocations
    if not isinstance(given, pipelines_pb2.Invocations):
        raise RequestError(f"{with_article(type(given).__name__)} is no stage's invocations", _FORM)
    known = {each.instance_id: each for each in invocations.invocations}
    if only is None:
        found = list(invocations.invocations)
    else:
        if isinstance(only, pipelines_pb2.Invocation):
            only = [only]
        found = list(only)
        for each in found:
            is_one: Any = isinstance(each, pipelines_pb2.Invocation)
            if not is_one or known.get(each.instance_id) != each:
                text = f"{each}".replace("\n", " ").strip()
                raise RequestError(
                    f"{text[:200]!r} is no invocation of stage {invocations.stage!r} in this "
                    "micro-batch",
                    _FORM,
                )
    if not 0 < len(found) <= MAX_BATCH_RECORDS:
        raise RequestError(
            f"{len(found)} invocations of stage {invocations.stage!r} cannot be ended",
            f"1 to {MAX_BATCH_RECORDS} at a time",
        )
    if len({each.instance_id for each in found}) < len(found):
        raise RequestError(
            f"an invocation of stage {invocations.stage!r} is named twice", "end each once"
        )
    return found


def outputs_of(
    stage: StageSpec,
    count: int,
    values: Sequence[Any] | None,
    serializer: Serializer | None,
    replica_set: str,
) -> list[NewRecord]:
    """One for each invocation, where the stage has outputs. Raises `RequestError` when they do not
    fit, `InvalidRecordError` for a value that cannot be sent."""
    given: Any = values
    if stage.output is None:
        if given is not None and len(given):
            raise UndeclaredOutputError(
                f"stage {stage.name!r} declares no output, and {len(given)} are given",
                "publish them: `tx.publish`",
            )
        return []
    if given is None or isinstance(given, (str, bytes, dict)) or not hasattr(given, "__len__"):
        shown = "no outputs are" if given is None else f"{with_article(type(given).__name__)} is"
        raise RequestError(
            f"{shown} given of stage {stage.name!r}, whose outputs go to {stage.output.stream!r}",
            "give a list: one value for each invocation, in their order",
        )
    if len(given) != count:
        raise RequestError(
            f"{len(given)} outputs are given of {count} invocations of stage {stage.name!r}",
            "give one for each, in their order",
        )
    if serializer is not None:
        given = [serialized_whole(serializer, each) for each in given]
    records = [whole_record(each) for each in given]
    for record in records:
        if record.partition not in (None, replica_set):
            raise InvalidRecordError(
                f"an output of stage {stage.name!r} is for partition {record.partition!r}",
                f"its pipeline lives on {replica_set!r}, and so do its outputs",
            )
    return records


def took_ms(given: Ended) -> Sequence[int]:
    """How long it took, where that is known here: what a statement says it says itself, and no
    leader adds to it (PROTOCOL E7)."""
    return (given._given.took_ms,) if isinstance(given, AnyInvocation) else ()


def completion(
    replica_set: str,
    invocations: pipelines_pb2.Invocations,
    ended: Sequence[pipelines_pb2.Invocation],
    took_ms: Sequence[int],
) -> transactions_pb2.Statement:
    complete = pipelines_pb2.CompleteStagesRequest(
        pipeline_id=invocations.pipeline_id,
        stage=invocations.stage,
        instance_ids=[each.instance_id for each in ended],
        attempts=[each.attempt for each in ended],
        created_ms=[each.created_ms for each in ended],
        version=invocations.version,
        took_ms=took_ms,
        runner=invocations.runner,
        code_version=invocations.code_version,
    )
    return transactions_pb2.Statement(replica_set=replica_set, complete=complete)


def stage_of(invocations: pipelines_pb2.Invocations) -> StageSpec | None:
    """The stage as these invocations have it, whose instances may have begun with another
    declaration than the present one; None where they do not say."""
    if not invocations.spec:
        return None
    return msgspec.json.decode(invocations.spec, type=StageSpec)


def failure(
    replica_set: str,
    invocations: pipelines_pb2.Invocations,
    ended: Sequence[pipelines_pb2.Invocation],
    reason: str,
    took_ms: Sequence[int],
) -> transactions_pb2.Statement:
    fail = pipelines_pb2.FailStagesRequest(
        pipeline_id=invocations.pipeline_id,
        stage=invocations.stage,
        instance_ids=[each.instance_id for each in ended],
        attempts=[each.attempt for each in ended],
        created_ms=[each.created_ms for each in ended],
        reason=reason,
        took_ms=took_ms,
        runner=invocations.runner,
        code_version=invocations.code_version,
    )
    return transactions_pb2.Statement(replica_set=replica_set, fail=fail)
