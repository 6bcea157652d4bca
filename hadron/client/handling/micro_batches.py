"""What a pipeline's leader has sent: invocations of a stage, which have their turns one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from hadron.client.handling.records import SentRecords
from hadron.model.errors import HadronError
from hadron.model.pipelines import StageSpec
from hadron.model.record import Record
from hadron.wire.messages import pipelines_pb2


class MicroBatch:
    """
    Attributes:
        sent: as it came.
        stage: as it is declared for these instances.
        call: which call it came with, as `ReadyStages.calls_lost` was.
        number: from 1 on, of those that came here.
        left: whose turn has not come yet.
        said_s: when it was last said that it is worked on.
    """

    def __init__(
        self,
        sent: pipelines_pb2.Invocations,
        records: SentRecords,
        stage: StageSpec,
        call: int,
        number: int,
    ) -> None:
        self.sent = sent
        self.stage = stage
        self.call = call
        self.number = number
        self.left = deque(Turn(self, each, {}) for each in sent.invocations)
        self.said_s = float("-inf")
        self._records: SentRecords | None = records

    @property
    def is_begun(self) -> bool:
        """Whether some of it was handed to the program. What was not has no time that runs."""
        return self.said_s > float("-inf")

    def find(self, ref: pipelines_pb2.RecordRef) -> Record | None:
        """A record that came with it."""
        return None if self._records is None else self._records.find(ref)

    def let_go(self) -> None:
        """All have had their turns: of what waits for another one the rest is not kept."""
        self.sent = pipelines_pb2.Invocations(
            stage=self.sent.stage,
            pipeline_id=self.sent.pipeline_id,
            number=self.sent.number,
            version=self.sent.version,
            spec=self.sent.spec,
            runner=self.sent.runner,
            code_version=self.sent.code_version,
        )
        self._records = None


Place = tuple[int, str, int]
"""Of a record: its stream's id, partition, offset."""


def place_of(ref: pipelines_pb2.RecordRef) -> Place:
    return ref.stream_id, ref.partition, ref.offset


class Turn(NamedTuple):
    """Of one invocation.

    Attributes:
        heard: of its records, while it waited for them.
    """

    micro_batch: MicroBatch
    invocation: pipelines_pb2.Invocation
    heard: dict[Place, Record | HadronError]

    def apart(self) -> Turn:
        """A copy: a message's parts keep the whole of it."""
        copy = pipelines_pb2.Invocation()
        copy.CopyFrom(self.invocation)
        return self._replace(invocation=copy)

    def references(self) -> Iterator[pipelines_pb2.RecordRef]:
        """What it is about: its trigger, and the outputs that its stage depends on."""
        yield self.invocation.root
        yield from self.invocation.dependencies
