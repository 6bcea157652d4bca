"""Those who run stages, as a leader speaks with them: how they are told, and what they say.

What carries it is not known here: whoever has a runner's call (`server.pipelines.runners`) is its
sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hadron.model.errors import HadronError, RequestError
from hadron.model.limits import MAX_BATCH_RECORDS
from hadron.model.pipelines import StageSpec
from hadron.pipelines.assignments import Runner
from hadron.state.pipelines.views import ReadyStage

NAME_CHARACTERS: Final = 80
CODE_CHARACTERS: Final = 40
"""Of what runners say of themselves: it stands in a row of each attempt."""


class Draft(Protocol):
    """A micro-batch as the message that tells of it.

    Attributes:
        size: bytes.
    """

    size: int

    def send(self, number: int) -> None:
        """`number`: of the micro-batch, by which the runner says that it has begun."""
        ...


class RunnerSink(Protocol):
    """Where a runner is told.

    Attributes:
        on_writable: called when it may be told more again.
    """

    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool:
        """Whether the way there allows another message."""
        ...

    def draft(
        self, runner: Runner, stage: StageSpec, version: int, ready: Sequence[ReadyStage]
    ) -> Draft:
        """The message that these are to be run, not sent yet: it may be too large. The stage is as
        instances have it whose definition is this `version`."""
        ...

    def fail(self, error: HadronError) -> None:
        """It is told nothing more, for this reason."""
        ...


@dataclass(slots=True)
class RunnerSession:
    runner: Runner
    sink: RunnerSink


@dataclass(frozen=True, slots=True)
class Ended:
    """Attempts of one stage that have ended, well or not, as a runner says.

    Attributes:
        attempts: their numbers, one for each instance.
        created_ms: when each instance was made; empty where that is not to be compared.
        version: of the instances' definition; 0 where the stage has the same output in all.
        took_ms: of each, or of all; empty where the runner does not say.
        is_final: no other attempt is to follow these, which failed.
        runner, code_version: who ran them, and with what code; "" where nobody says.
    """

    stage: str
    instance_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    created_ms: tuple[int, ...] = ()
    version: int = 0
    took_ms: tuple[int, ...] = ()
    is_final: bool = False
    runner: str = ""
    code_version: str = ""

    def check(self) -> None:
        """Raises `RequestError` for what no runner says."""
        count = len(self.instance_ids)
        if not count or count != len(self.attempts):
            raise RequestError(
                f"{count} instances come with {len(self.attempts)} attempts",
                "send one attempt number for each instance",
            )
        if len(self.created_ms) not in (0, count):
            raise RequestError(
                f"{count} instances come with {len(self.created_ms)} times of creation",
                "send the `created_ms` of each invocation",
            )
        if len(self.took_ms) not in (0, 1, count):
            raise RequestError(
                f"{count} instances come with {len(self.took_ms)} durations",
                "send one for each, or one for all",
            )
        if count > MAX_BATCH_RECORDS:
            raise RequestError(f"{count} instances are more than {MAX_BATCH_RECORDS} at a time")
