"""One instance's turn at a stage that the program runs itself.

What such an invocation is stands here for the blocking client too.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Self

import anyio

from hadron.client.handling.ends import End, Ends, Kind, may_be_repeated
from hadron.client.producing.new_records import Serializer, new_record, serialized_whole
from hadron.client.terms.cancelling import is_stray
from hadron.client.terms.results import Receipt
from hadron.model.errors import (
    ClosedError,
    HadronError,
    RequestError,
    StaleCompletionError,
    UndeclaredOutputError,
)
from hadron.model.pipelines import StageSpec
from hadron.model.problems import shorten
from hadron.model.record import Headers, Record
from hadron.model.words import said_by
from hadron.wire.messages import pipelines_pb2, text_to

_log: Final = logging.getLogger(__name__)

_MAX_REASON: Final = 500
"""Characters of what a handler raised: one line, kept with the instance."""

_MAX_TOOK_MS: Final = (1 << 32) - 1


class Given:
    """An invocation as it came, and how its end is said.

    Attributes:
        micro_batch, invocation: as they were sent.
        stage: as it is declared for this instance.
        began_s: when it was handed to the program.
        call: which call it came with, as `ReadyStages.calls_lost` was.
        is_late: its time was over before the program has ended it.
        on_end: called once it is over, however.
        on_late: called when its time is over: nothing that the program makes of it counts.
        on_return: called when it is the program's again: the transaction that was to end it is
            rolled back.
    """

    __slots__ = (
        "_ends",
        "_is_over",
        "_serializer",
        "_unheard",
        "began_s",
        "call",
        "invocation",
        "is_ended",
        "is_late",
        "micro_batch",
        "on_end",
        "on_late",
        "on_return",
        "outputs",
        "root",
        "stage",
    )

    def __init__(
        self,
        micro_batch: pipelines_pb2.Invocations,
        invocation: pipelines_pb2.Invocation,
        stage: StageSpec,
        root: Record,
        outputs: dict[str, Record],
        ends: Ends,
        serializer: Serializer | None,
        on_end: Callable[[Given], None],
        call: int = 0,
    ) -> None:
        self.micro_batch = micro_batch
        self.invocation = invocation
        self.stage = stage
        self.root = root
        self.outputs = outputs
        self.on_end = on_end
        self.on_late: Callable[[], object] = lambda: None
        self.on_return: Callable[[], object] = lambda: None
        self.call = call
        self.began_s = anyio.current_time()
        self.is_ended = False
        self.is_late = False
        self._is_over = False
        self._unheard: tuple[HadronError, Kind, Any] | None = None
        self._ends = ends
        self._serializer = serializer

    @property
    def is_closed(self) -> bool:
        """Whether its client is."""
        return self._ends.is_closed

    def is_news(self, error: BaseException) -> bool:
        """Whether the program has not raised it before, at the same line."""
        return self._ends.is_news(error)

    async def complete(self, value: Any, *given: Any) -> Receipt | None:
        """`given`: as `new_record` takes it, up to the timestamp."""
        self.check_open()
        output = self.stage.output
        record = None
        if output is not None:
            if self._serializer is not None:
                value = serialized_whole(self._serializer, value)
            record = new_record(value, *given)
        elif value is not None or any(given):
            raise UndeclaredOutputError(
                f"stage {self.stage.name!r} declares no output, and for instance "
                f"{self.invocation.instance_id} there is one, {shorten(value)}",
                "return nothing, or complete it without; or declare `output: {stream: NAME}`, for "
                "instances to come",
            )
        partition = ""
        if record is not None and output is not None:
            partition = record.partition or output.partition
        kind = self._kind()._replace(
            output=output.stream if output is not None else "", partition=partition
        )
        return await self._end(kind, record)

    async def fail(self, error: object, *, retryable: bool) -> None:
        self.check_open()
        await self._end(self._kind()._replace(reason=reason_of(error), is_final=not retryable))

    async def insist(self, error: BaseException | None) -> bool:
        """Where `error` is of what was said of it and nobody heard: say that until it is heard, or
        its time is over. Returns whether it was so. Raises `StaleCompletionError`."""
        if self._unheard is None or self._unheard[0] is not error:
            return False
        _, kind, record = self._unheard
        if not may_be_repeated(self._unheard[0]):
            return False
        await self._ends.insist(lambda: self._end(kind, record), lambda: self.is_ended)
        return True

    async def fail_surely(self, error: object) -> None:
        """`fail`, until it is heard, or its time is over."""
        kind = self._kind()._replace(reason=reason_of(error))
        await self._ends.insist(lambda: self._end(kind), lambda: self.is_ended)

    def claim(self) -> None:
        """A transaction ends it, once that is committed."""
        self._over()

    def _unclaim(self) -> None:
        """That was rolled back: what the program makes of it counts."""
        if not self.is_late:
            self.is_ended = self._is_over = False
            self.on_return()

    async def expire(self, is_ours: bool) -> None:
        """Its time is over, and the program has not ended it: that its attempt has failed is said
        where nobody else has it yet."""
        if self.is_ended:
            return
        self.is_ended = self.is_late = True
        self.on_late()
        _log.error(
            "%s for instance %d, attempt %d",
            self._lateness,
            self.invocation.instance_id,
            self.invocation.attempt,
        )
        end = End(self.invocation, self.took_ms)
        try:
            if is_ours:
                self._ends.add(self._kind()._replace(reason=self._lateness), end)
                await self._ends.wait(end)
        except HadronError as error:
            # Its leader gives it to somebody when its own time for it is over.
            _log.info("%s", error)
        finally:
            self._over()

    @property
    def _lateness(self) -> str:
        limit_s = self.stage.timeout_ms / 1_000
        return f"stage {self.stage.name!r} took longer than its timeout of {limit_s:g} s"

    @property
    def took_ms(self) -> int:
        return min(int((anyio.current_time() - self.began_s) * 1_000), _MAX_TOOK_MS)

    async def _end(self, kind: Kind, record: Any = None) -> Receipt | None:
        end = End(self.invocation, self.took_ms, record)
        self._ends.add(kind, end)
        self.is_ended = True
        try:
            receipt = await self._ends.wait(end)
        except StaleCompletionError:
            self._over()
            raise
        except BaseException as error:
            # It may be said once more: it counts once.
            self.is_ended = False
            if isinstance(error, HadronError):
                self._unheard = error, kind, record
            raise
        self._over()
        return receipt

    def _over(self) -> None:
        self.is_ended = True
        if not self._is_over:
            self._is_over = True
            self.on_end(self)

    def _kind(self) -> Kind:
        sent = self.micro_batch
        return Kind(sent.pipeline_id, sent.stage, sent.version)

    def check_open(self) -> None:
        """Raises `RequestError` when it has ended, `StaleCompletionError` when its time is over."""
        if self.is_late:
            raise StaleCompletionError(
                f"{self._lateness} for instance {self.invocation.instance_id}: attempt "
                f"{self.invocation.attempt} has failed",
                "raise the stage's timeout, if it needs longer",
            )
        if self.is_ended:
            raise RequestError(
                f"stage {self.stage.name!r} of instance {self.invocation.instance_id} was ended "
                "before",
                "complete or fail an invocation once",
            )


class AnyInvocation:
    """An instance's turn at a stage; async or blocking."""

    __slots__ = ("_given",)

    def __init__(self, given: Given) -> None:
        self._given = given

    @property
    def root(self) -> Record:
        """The record that has triggered the instance."""
        return self._given.root

    @property
    def outputs(self) -> Mapping[str, Record]:
        """Of the stages that this one depends on, by their names."""
        return self._given.outputs

    @property
    def instance_id(self) -> int:
        return self._given.invocation.instance_id

    @property
    def stage(self) -> str:
        return self._given.stage.name

    @property
    def attempt(self) -> int:
        """1 for the first one, also after the instance was retried."""
        return self._given.invocation.attempt - self._given.invocation.attempts_before

    @property
    def failed_stage(self) -> str:
        """Where this is the pipeline's `on_failure` stage: which stage was given up."""
        return self._given.invocation.failed_stage

    @property
    def failure(self) -> str:
        """Why it was."""
        return self._given.invocation.failure

    @property
    def is_ended(self) -> bool:
        """Whether the program has completed or failed it, or its stage's timeout is over."""
        return self._given.is_ended

    @property
    def is_late(self) -> bool:
        """Whether its stage's timeout was over before it was ended: its attempt has failed, and a
        handler that sees this need not go on."""
        return self._given.is_late

    def __repr__(self) -> str:
        state = "ended" if self.is_ended else "open"
        return (
            f"<{type(self).__name__} of stage {self.stage!r}, instance {self.instance_id}, "
            f"attempt {self.attempt}, {state}>"
        )


class StageInvocation(AnyInvocation):
    """An instance's turn at a stage, given to this program: end it with `complete` or `fail`.

    In a block, `async with invocation:`, what is raised fails the attempt: the traceback goes to
    the log, one line of it to the instance, and the program goes on behind the block. Where the
    block's end is reached, and the stage declares no output, it is completed. That an output is
    given of such a stage is a mistake in the program, which it is told, and fails nothing.
    """

    __slots__ = ()

    async def complete(
        self,
        value: Any = None,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
    ) -> Receipt | None:
        """The stage is done, with this output, where it declares one: with the arguments of
        `Producer.send`. Returns where the output is, once both are committed together.

        Those that end while others are on their way to the disk go there together: run many at a
        time.

        Args:
            partition: of the output's stream; None is the stage's own choice.

        Raises:
            InvalidRecordError, RecordTooLargeError, RequestError: it was not completed, and may
                still be.
            StaleCompletionError: the attempt has ended otherwise: it took longer than the stage's
                timeout, it went to another runner after a lost connection, or the instance was
                cancelled.
            HadronError: as `Producer.send` raises it. It may be repeated.
        """
        return await self._given.complete(
            value, key, type, timestamp_ms, headers, id, partition, timestamp
        )

    async def fail(self, error: BaseException | str, *, retryable: bool = True) -> None:
        """The attempt has failed, with `error` as the reason; the stage's retry policy decides what
        follows. With `retryable=False` nothing does: the instance is given up.

        Raises `StaleCompletionError` as `complete` does."""
        await self._given.fail(error, retryable=retryable)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is not None and not isinstance(error, Exception) and not is_stray(error):
            return False
        return await settle(self._given, error)


async def settle(given: Given, error: BaseException | None) -> bool:
    """A block has ended, by an error or without: end its invocation. Returns whether the program
    goes on."""
    if isinstance(error, UndeclaredOutputError):
        return False
    if isinstance(error, ClosedError) and given.is_closed:
        return False
    if isinstance(error, StaleCompletionError):
        _log.info("%s", error)
        return True
    try:
        if await given.insist(error):
            return True
        if error is not None:
            told = f" {reason_of(error)} (its traceback stands above)"
            if given.is_news(error):
                told = "\n" + "".join(traceback.format_exception(error)).rstrip()
            stage, invocation = given.stage.name, given.invocation
            _log.error(
                "stage %r of instance %d, attempt %d:%s",
                stage,
                invocation.instance_id,
                invocation.attempt,
                told,
            )
            await given.fail_surely(error)
        elif given.stage.output is not None:
            await given.fail_surely("its handler came to an end without an output")
        elif not given.is_ended:
            try:
                await given.complete(None)
            except HadronError as unheard:
                if not await given.insist(unheard):
                    raise
    except StaleCompletionError as stale:
        _log.info("%s", stale)
    return True


def reason_of(error: object) -> str:
    """One line for the instance. Raises `RequestError` when it says nothing."""
    if isinstance(error, BaseException):
        name, words = type(error).__name__, said_by(error)
        return text_to(" ".join(f"{name}: {words}".split() if words else [name])[:_MAX_REASON])
    if not isinstance(error, str) or not error.strip():
        raise RequestError(
            f"{shorten(error)} does not say why a stage has failed", "give an exception, or a text"
        )
    return text_to(error)
