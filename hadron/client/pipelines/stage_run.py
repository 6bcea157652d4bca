"""Running a pipeline's stages: the call that hands ready invocations to this client."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import anyio

from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.client.terms.arguments import whole_of
from hadron.client.terms.opening import EnteredOnce
from hadron.model.errors import HadronError
from hadron.model.limits import MAX_ITEMS
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import method, pipelines_pb2

_RUN_STAGES: Final = method("RunStages")

DEFAULT_CREDIT: Final = 2
"""One micro-batch is worked on while the next one waits here."""

_MAX_CREDIT: Final = 1 << 31
"""Of what was granted and has not come."""


class ReadyStages:
    """The call to the pipeline's leader, and what it has brought (`reconnecting_call.Owner`).

    Attributes:
        calls_lost: how many there were before this one: what those have brought is others' now.
    """

    def __init__(
        self,
        session: Session,
        replica_set: str,
        opening: pipelines_pb2.RunStagesRequest,
        *,
        takes_ahead: bool,
    ) -> None:
        self._session = session
        self._opening = opening
        self._takes_ahead = takes_ahead
        self._credit = opening.credit
        self._ready: deque[tuple[pipelines_pb2.Invocations, memoryview]] = deque()
        self.calls_lost = 0
        self._call: OpenedCall | None = None
        self._failure: HadronError | None = None
        self._closed = False
        self._news: anyio.Event | None = None
        self._standing = ReconnectingCall(session, replica_set, _RUN_STAGES, self)
        self._scope: anyio.CancelScope | None = None

    def __str__(self) -> str:
        state = "closed" if self._closed else f"open, {len(self._ready)} micro-batches ready"
        return f"of {self._opening.pipeline!r}, {state}"

    @property
    def is_closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        self._scope = self._session.background.start(self._standing.run)

    def stop(self) -> None:
        self._closed = True
        if self._call is not None:
            # Who only cancels may have crashed, for all that its leader knows.
            self._call.end()
        if self._scope is not None:
            self._scope.cancel()
        self._ready.clear()
        self.wake()

    def grant(self, count: int) -> None:
        # What no message takes would be found by the next call, and end the client.
        self._credit += whole_of("count", count, 1, _MAX_CREDIT - self._credit)
        if self._call is not None:
            self._call.send(pipelines_pb2.RunStagesRequest(credit=count))

    def begin(self, invocations: pipelines_pb2.Invocations, code_version: str = "") -> None:
        """Whoever leads now does not know what came from somebody else: nothing is lost then."""
        self.begin_all([invocations.number], code_version)

    def begin_all(self, numbers: Sequence[int], code_version: str = "") -> None:
        if self._call is None:
            return
        for start in range(0, len(numbers), MAX_ITEMS):
            some = numbers[start : start + MAX_ITEMS]
            begun = pipelines_pb2.RunStagesRequest(begun=some, code_version=code_version)
            self._call.send(begun)

    async def take(self) -> pipelines_pb2.Invocations | None:
        """The next micro-batch; None once the run is over. Raises what ended it for good."""
        taken = await self.take_whole()
        return None if taken is None else taken[0]

    async def take_whole(self) -> tuple[pipelines_pb2.Invocations, memoryview] | None:
        """The same with the records that came with it."""
        while (taken := self.take_ready()) is None:
            if not await self.stir():
                return None
        return taken

    async def stir(self) -> bool:
        """Wait for anything to happen, here or to who calls `wake`. False once the run is over;
        raises what ended it for good."""
        if self._closed:
            return False
        if self._failure is not None:
            raise self._failure
        if self._news is None:
            self._news = anyio.Event()
        await self._session.wait(self._news)
        return True

    def take_ready(self) -> tuple[pipelines_pb2.Invocations, memoryview] | None:
        """One that is here already."""
        if not self._ready:
            return None
        invocations, records = self._ready.popleft()
        if self._call is not None:
            self._call.consumed(invocations.ByteSize() + len(records))
        if not self._takes_ahead:
            self.begin(invocations)
        return invocations, records

    def _cost(self, invocations: pipelines_pb2.Invocations) -> int:
        """In credit."""
        return len(invocations.invocations) if self._opening.counts_invocations else 1

    # --- reconnecting_call.Owner --------------------------------------------------------------

    def opening(self) -> pipelines_pb2.RunStagesRequest:
        message = pipelines_pb2.RunStagesRequest()
        message.CopyFrom(self._opening)
        message.credit = self._credit
        return message

    def opened(self, call: OpenedCall) -> None:
        self._call = call

    def received(self, message: pipelines_pb2.Invocations, attachment: memoryview) -> None:
        self._credit = max(0, self._credit - self._cost(message))
        self._ready.append((message, attachment))
        self.wake()

    def lost(self, error: HadronError | None) -> None:  # noqa: ARG002 - the protocol's
        # What nobody has taken yet goes to another runner, and its credit is ours again.
        self._call = None
        self.calls_lost += 1
        self._credit += sum(self._cost(each) for each, _ in self._ready)
        self._ready.clear()

    def failed(self, error: HadronError) -> None:
        self.lost(error)
        self._failure = error
        self.wake()

    def wake(self) -> None:
        """Whoever waits for something to happen looks again."""
        if self._news is not None:
            self._news.set()
            self._news = None


class StageRun(EnteredOnce):
    """Ready invocations of a pipeline. Made by `Client.run_stages`, used inside its block.

    Iterate it; call `grant` for each micro-batch that is done, so that another one comes. What it
    has given is this program's for as long as the stage's timeout says. When the connection is
    lost, it goes to another runner at once; completing an invocation that was given away, and
    ended there, is refused by its attempt number.
    """

    def __init__(self, stages: ReadyStages) -> None:
        self._stages = stages

    def __repr__(self) -> str:
        return f"<StageRun {self._stages}>"

    def __str__(self) -> str:
        return str(self._stages)

    @property
    def _calls_lost(self) -> int:
        """How many connections were lost, for who keeps what has come for long: it is others'
        then."""
        return self._stages.calls_lost

    def grant(self, count: int = 1) -> None:
        """Ask for `count` more micro-batches."""
        self._stages.grant(count)

    def begin(self, invocations: pipelines_pb2.Invocations, code_version: str = "") -> None:
        """Say that this program works on a micro-batch, or still does: its stage's timeout runs
        from here. Iterating says it by itself, unless the run `takes_ahead`. `code_version`, of
        what runs it, is for the instances' stories."""
        self._stages.begin(invocations, code_version)

    def __aiter__(self) -> StageRun:
        return self

    async def __anext__(self) -> pipelines_pb2.Invocations:
        invocations = await self._stages.take()
        if invocations is None:
            raise StopAsyncIteration
        return invocations

    async def __aenter__(self) -> StageRun:
        self._enter("run")
        self._stages.start()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._stages.stop()
