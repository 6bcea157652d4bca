"""Work: a program runs a stage of a pipeline for as long as its call is open."""

from __future__ import annotations

from typing import Any, Final

import trio

from hadron.client.handling.invocation import StageInvocation
from hadron.client.handling.stage import DEFAULT_INVOCATIONS, StageInvocations
from hadron.doors.clients import Clients
from hadron.doors.grpc.messages import fields_of, new_record, run_of, stored_record
from hadron.doors.grpc.requests import parse, receive_opening, senseless
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import ConnectionLostError, HadronError, RequestError, StaleCompletionError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.wire._pb import stages_pb2 as pb

_MAX_IN_FLIGHT: Final = 1_000
"""Of one call: each of them has the records that it is about."""

_MAX_LATE: Final = 10_000
"""Numbers of invocations of one call that are known to have taken too long: what is said of others
of them is taken for a mistake."""

_UNCONDITIONED: Final = ("expect_offset", "expect_key_offset")


class _Runner:
    """One call, and the invocations that it has handed out and that have not ended: at most
    `most`, but for those that took too long."""

    def __init__(self, talk: Talk, most: int) -> None:
        self._talk = talk
        self._most = most
        self._open: dict[int, StageInvocation] = {}
        self._late: dict[int, None] = {}
        self._last = 0

    async def hand_out(self, invocations: StageInvocations) -> None:
        async for invocation in invocations:
            self._last += 1
            self._open[self._last] = invocation
            if len(self._open) > self._most:
                self._drop_late()
            event = pb.WorkEvent(work=work_of(self._last, invocation))
            await self._talk.send(event.SerializeToString())
        raise ConnectionLostError(
            "this node's way to the pipeline's leader has ended", "work on, at any node"
        )

    def _drop_late(self) -> None:
        """A program that never says anything of them again is not to have their records here."""
        for number in [number for number, each in self._open.items() if each.is_late]:
            del self._open[number]
            self._late[number] = None
        while len(self._late) > _MAX_LATE:
            del self._late[next(iter(self._late))]

    async def listen(self, nursery: trio.Nursery) -> None:
        """What the program says, up to its end; `nursery` does it. It counts as held until then."""
        while (data := await self._talk.take()) is not None:
            request = parse(pb.WorkRequest, data)
            kind = request.WhichOneof("said")
            if kind not in ("complete", "fail"):
                raise senseless(self._talk, kind, "after `open` say complete or fail")
            said = getattr(request, kind)
            invocation = self._open.pop(said.id, None)
            if said.id in self._late:
                del self._late[said.id]
                late = StaleCompletionError(f"invocation {said.id} took longer than its timeout")
                self._talk.rpc.consumed(len(data))
                await self._talk.send(_refusal(said.id, late).SerializeToString())
                continue
            if invocation is None:
                known = "is ended already" if 0 < said.id <= self._last else "was never handed out"
                raise RequestError(f"invocation {said.id} {known} in this call", "end it once")
            nursery.start_soon(self._end, invocation, said, len(data))

    async def _end(self, invocation: StageInvocation, said: Any, size: int) -> None:
        event = pb.WorkEvent(ended=pb.WorkEvent.Ended(id=said.id))
        try:
            if isinstance(said, pb.WorkRequest.Fail):
                await invocation.fail(said.reason, retryable=not said.final)
            elif (receipt := await _complete(invocation, said)) is not None:
                event.ended.output.CopyFrom(run_of(receipt))
        except HadronError as error:
            event = _refusal(said.id, error)
            if not event.refused.is_over:
                self._open[said.id] = invocation
        self._talk.rpc.consumed(size)
        await self._talk.send(event.SerializeToString())


class Working:
    """At one door."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def work(self, talk: Talk) -> None:
        asked = await receive_opening(talk, pb.WorkRequest)
        if asked.max_in_flight > _MAX_IN_FLIGHT:
            raise RequestError(
                f"max_in_flight is {asked.max_in_flight}",
                f"at most {_MAX_IN_FLIGHT}; call Work several times for more",
            )
        client = await self._clients.of(asked.namespace or DEFAULT_NAMESPACE)
        most = asked.max_in_flight or DEFAULT_INVOCATIONS
        async with client.stage(
            asked.pipeline,
            asked.stage,
            max_in_flight=most,
            runner=asked.runner or f"gRPC {talk.rpc.peer}",
            code_version=asked.code_version,
        ) as invocations:
            runner = _Runner(talk, most)
            opened = pb.WorkEvent(opened=pb.WorkEvent.Opened())
            await talk.send(opened.SerializeToString())
            async with trio.open_nursery() as handing:
                handing.start_soon(runner.hand_out, invocations)
                async with trio.open_nursery() as ending:
                    await runner.listen(ending)
                handing.cancel_scope.cancel()


def _refusal(number: int, error: HadronError) -> pb.WorkEvent:
    refused = pb.WorkEvent.Refused(
        id=number,
        reason=error.code,
        message=error.message,
        hint=error.hint,
        is_over=isinstance(error, StaleCompletionError),
    )
    return pb.WorkEvent(refused=refused)


async def _complete(invocation: StageInvocation, said: pb.WorkRequest.Complete) -> Any:
    if not said.HasField("output"):
        return await invocation.complete()
    record = new_record(said.output)
    fields = fields_of(record)
    for name in _UNCONDITIONED:
        if fields.pop(name) is not None:
            raise RequestError(f"an output has `{name}`", "leave it out: a stage runs once")
    return await invocation.complete(record.value, **fields)


def work_of(number: int, invocation: StageInvocation) -> pb.WorkEvent.Work:
    work = pb.WorkEvent.Work(
        id=number,
        instance_id=invocation.instance_id,
        attempt=invocation.attempt,
        root=stored_record(invocation.root),
        failed_stage=invocation.failed_stage,
        failure=invocation.failure,
    )
    for name, record in invocation.outputs.items():
        work.outputs[name].CopyFrom(stored_record(record))
    return work
