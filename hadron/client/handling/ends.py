"""What became of invocations: gathered while requests are under way, and sent as one for many.

Safety rule: what is said here may be lost, or said twice. An attempt ends once, by its number; what
its leader calls stale somebody else has ended, or the same program, whose answer was lost.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio

from hadron.client.connecting.session import Session
from hadron.client.pipelines.calls import PipelineCalls
from hadron.client.terms.results import Receipt
from hadron.model.backoff import Backoff
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import (
    ConflictError,
    HadronError,
    OutcomeUnknownError,
    StaleCompletionError,
)
from hadron.model.record import NewRecord
from hadron.wire.messages import pipelines_pb2

_log: Final = logging.getLogger(__name__)

_TOLD: Final = 1_000
"""Errors of handlers that are remembered, so that they are told at length once."""

_TELL_EVERY_S: Final = 10.0
"""One kind of trouble: a leader whose disk is full refuses each of thousands of invocations, again
and again."""

_SENDERS: Final = 2
"""Of requests of one kind: one is gathered while its leader's disk has another."""

_MAX_ENDS: Final = 1_000
_MAX_BYTES: Final = 1 << 20
"""Of one request."""


class Kind(NamedTuple):
    """What may be said in one request.

    Attributes:
        output: the stream that outputs go to; "" for a stage without any.
        reason: why they failed; "" when they did not.
    """

    pipeline_id: int
    stage: str
    version: int
    output: str = ""
    partition: str = ""
    reason: str = ""
    is_final: bool = False


@dataclass(slots=True)
class End:
    """Of one invocation; `done` is set once it is known what became of it."""

    invocation: pipelines_pb2.Invocation
    took_ms: int
    record: NewRecord | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    receipt: Receipt | None = None
    error: HadronError | None = None


@dataclass(slots=True)
class _Trouble:
    """Of one kind: when it was logged last, and how often it has been there since."""

    told_s: float = -math.inf
    untold: int = 0


def may_be_repeated(error: HadronError) -> bool:
    """Whether what was said, and ended so, may be said once more: an attempt ends once."""
    return not isinstance(error, StaleCompletionError) and (
        error.retryable or isinstance(error, OutcomeUnknownError)
    )


class Ends:
    """Of a program's invocations of one pipeline."""

    def __init__(self, session: Session, calls: PipelineCalls) -> None:
        self._session = session
        self._calls = calls
        self._waiting: dict[Kind, deque[End]] = {}
        self._senders: dict[Kind, int] = {}
        self._told: set[tuple[str, str, int]] = set()
        self._troubles: dict[type[HadronError], _Trouble] = {}

    def is_news(self, error: BaseException) -> bool:
        """Whether this kind of error has not been raised at its line before: of a mistake in the
        code every invocation has the same pages to tell."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        file = "" if last is None else last.tb_frame.f_code.co_filename
        where = (type(error).__name__, file, 0 if last is None else last.tb_lineno)
        known = len(self._told)
        if known < _TOLD:
            self._told.add(where)
            return len(self._told) > known
        return where not in self._told

    @property
    def is_closed(self) -> bool:
        """Whether the client is."""
        return self._session.closed is not None

    async def insist(
        self, say: Callable[[], Awaitable[object]], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Say it until somebody hears it, or it `is_over`: that a leader is away takes no attempt
        (PIPELINES P15). Raises what `say` does where to repeat it is of no use."""
        backoff = Backoff(self._session.ports.random)
        while not is_over():
            try:
                await say()
            except HadronError as error:
                if self.is_closed or not may_be_repeated(error):
                    raise
                self._tell(error)
            else:
                return
            await anyio.sleep(backoff.next_s())

    def _tell(self, error: HadronError) -> None:
        trouble = self._troubles.setdefault(type(error), _Trouble())
        now_s = anyio.current_time()
        if now_s - trouble.told_s < _TELL_EVERY_S:
            trouble.untold += 1
            return
        more = f" (and {trouble.untold:,} times since this was last said)" if trouble.untold else ""
        _log.warning("what became of an invocation is said again soon: %s%s", error, more)
        trouble.told_s, trouble.untold = now_s, 0

    def add(self, kind: Kind, end: End) -> None:
        """Say it soon: with others that end until then. Raises `ClosedError`."""
        self._session.check_open()
        self._waiting.setdefault(kind, deque()).append(end)
        if self._senders.get(kind, 0) < _SENDERS and (
            not self._senders.get(kind) or len(self._waiting[kind]) >= _MAX_ENDS
        ):
            self._start(kind)

    async def wait(self, end: End) -> Receipt | None:
        """Where the output is. Raises why it did not end so, or `ClosedError`."""
        await self._session.wait(end.done)
        if end.error is not None:
            raise end.error
        return end.receipt

    def _start(self, kind: Kind) -> None:
        self._senders[kind] = self._senders.get(kind, 0) + 1
        self._session.background.start(self._send_all, kind)

    async def _send_all(self, kind: Kind) -> None:
        try:
            while waiting := self._waiting.get(kind):
                await self._send(kind, *_portion(waiting, self._now_ms))
        finally:
            self._senders[kind] -= 1
            if not self._senders[kind]:
                del self._senders[kind]
                if not self._waiting.get(kind):
                    self._waiting.pop(kind, None)

    async def _send(self, kind: Kind, ends: list[End], builder: BatchBuilder | None) -> None:
        if not ends:
            return
        try:
            await self._say(kind, ends, None if builder is None else builder.build())
        except ConflictError as error:
            if len(ends) == 1:
                _settle(ends, error)
                return
            # A transaction has one of them; which, it does not say.
            for each in ends:
                await self._send(kind, *_portion(deque([each]), self._now_ms))
        except HadronError as error:
            _settle(ends, error)

    @property
    def _now_ms(self) -> int:
        return self._session.ports.clock.now_ms()

    async def _say(self, kind: Kind, ends: list[End], batch: bytes | None) -> None:
        ids = [each.invocation.instance_id for each in ends]
        attempts = [each.invocation.attempt for each in ends]
        created_ms = [each.invocation.created_ms for each in ends]
        took_ms = [each.took_ms for each in ends]
        if kind.reason:
            await self._calls.fail(
                kind.pipeline_id,
                kind.stage,
                ids,
                attempts,
                created_ms,
                kind.reason,
                is_final=kind.is_final,
                took_ms=took_ms,
            )
            _settle(ends, None)
            return
        answer = await self._calls.complete(
            kind.pipeline_id,
            kind.stage,
            ids,
            attempts,
            created_ms,
            batch,
            kind.partition,
            kind.version,
            took_ms,
        )
        if answer.stale_instance_ids:
            await self._say_others(kind, ends, set(answer.stale_instance_ids))
            return
        place = kind.partition or await self._calls.home_of(kind.pipeline_id)
        for index, each in enumerate(ends):
            if kind.output:
                offset = answer.base_offset + index
                each.receipt = Receipt(kind.output, place, offset, answer.append_ms, False)
            each.done.set()

    async def _say_others(self, kind: Kind, ends: list[End], stale: set[int]) -> None:
        """Nothing was done: without those that are stale it is."""
        left: deque[End] = deque()
        for each in ends:
            instance_id = each.invocation.instance_id
            if instance_id not in stale:
                left.append(each)
                continue
            each.error = StaleCompletionError(
                f"attempt {each.invocation.attempt} of stage {kind.stage!r} of instance "
                f"{instance_id} has ended: by somebody else, or by what was said of it before",
                "go on with the next one",
            )
            each.done.set()
        while left:
            await self._send(kind, *_portion(left, self._now_ms))


def _portion(waiting: deque[End], now_ms: int) -> tuple[list[End], BatchBuilder | None]:
    """Those that are said in one request, with their outputs. What is too large is told so.

    An instance is named once. *(Its leader fails while its end waits to be said, and the next one
    gives the same attempt to the same program: named twice, both were stale, and nobody ended it.)*
    """
    ends: list[End] = []
    named: set[int] = set()
    builder: BatchBuilder | None = None
    while waiting and len(ends) < _MAX_ENDS:
        if waiting[0].invocation.instance_id in named:
            break
        record = waiting[0].record
        if record is not None:
            builder = builder or BatchBuilder()
            if ends and (builder.full or builder.size >= _MAX_BYTES):
                break
            try:
                builder.add(record, now_ms)
            except HadronError as error:
                _settle([waiting.popleft()], error)
                continue
        named.add(waiting[0].invocation.instance_id)
        ends.append(waiting.popleft())
    return ends, builder


def _settle(ends: list[End], error: HadronError | None) -> None:
    for each in ends:
        if not each.done.is_set():
            each.error = error
            each.done.set()
