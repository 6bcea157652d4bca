"""The blocking face of `hadron.client.handling.invocation`, made of it by `make faces`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hadron.client.blocking.handling import StageInvocationBase
from hadron.client.terms.results import Receipt
from hadron.model.record import Headers


class SyncStageInvocation(StageInvocationBase):
    """An instance's turn at a stage, given to this program, by any thread: end it with `complete`
    or `fail`.

    In a block, `with invocation:`, what is raised fails the attempt: the traceback goes to
    the log, one line of it to the instance, and the program goes on behind the block. Where the
    block's end is reached, and the stage declares no output, it is completed. That an output is
    given of such a stage is a mistake in the program, which it is told, and fails nothing.
    """

    def complete(
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
        `SyncProducer.send`. Returns where the output is, once both are committed together.

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
            HadronError: as `SyncProducer.send` raises it. It may be repeated.
        """
        return self._call(
            lambda stageinvocation: stageinvocation.complete(
                value,
                key=key,
                type=type,
                timestamp_ms=timestamp_ms,
                headers=headers,
                id=id,
                partition=partition,
                timestamp=timestamp,
            )
        )

    def fail(self, error: BaseException | str, *, retryable: bool = True) -> None:
        """The attempt has failed, with `error` as the reason; the stage's retry policy decides what
        follows. With `retryable=False` nothing does: the instance is given up.

        Raises `StaleCompletionError` as `complete` does.
        """
        self._call(lambda stageinvocation: stageinvocation.fail(error, retryable=retryable))
