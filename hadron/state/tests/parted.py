"""Made-up commands that keep bodies, append parts of them, and give them up, as transactions do;
and a file that runs them, with bodies and without a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import apsw

from hadron.model.batch_building import BatchBuilder
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.state import bodies as state_bodies
from hadron.state.bodies import Place
from hadron.state.execute import Outcome, execute
from hadron.state.features import FEATURES
from hadron.state.machine import BatchShape, Command, Context, Event, Feature, StateMachine
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import Appended
from hadron.state.together import DoTogether
from hadron.state.transactions import checks as transaction_checks
from hadron.storage import bodies

BALLOT: Final = Ballot(3, 2)
SET: Final = "some/where"


class KeepBody(Command, frozen=True, array_like=True, tag=121):
    """Keep the entry's body, which is one batch or several."""

    shapes: tuple[BatchShape, ...]

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return self.shapes


class AppendKept(Command, frozen=True, array_like=True, tag=122):
    """Append so many bytes of a kept body to a stream; `is_last`: it is not kept any more."""

    is_joinable = True

    stream_id: int
    count: int
    size: int
    lsn: int
    start: int
    is_last: bool


class GiveUp(Command, frozen=True, array_like=True, tag=123):
    lsn: int


class AppendAgain(Command, frozen=True, array_like=True, tag=124):
    """Append the batch that holds an offset of one stream to another."""

    from_stream: int
    offset: int
    stream_id: int


def _append_kept(context: Context, command: AppendKept) -> Appended:
    place = Place(command.lsn, command.start)
    done = streams.append(context, command.stream_id, command.count, command.size, place=place)
    if command.is_last:
        state_bodies.release(context, command.lsn)
    return done


def _append_again(context: Context, command: AppendAgain) -> Appended:
    place, batch = streams.share(context, command.from_stream, command.offset)
    return streams.append(context, command.stream_id, batch.count, batch.size, place=place)


FEATURE: Final = Feature(
    name="parted",
    commands={
        KeepBody: lambda context, command: state_bodies.hold(
            context, sum(shape.size for shape in command.shapes)
        ),
        AppendKept: _append_kept,
        GiveUp: lambda context, command: state_bodies.release(context, command.lsn),
        AppendAgain: _append_again,
    },
)
MACHINE: Final = StateMachine(
    # What holds bodies here is no intent, which is all that the check of transactions knows.
    (*(each for each in FEATURES if each is not transaction_checks.FEATURE), FEATURE),
    version=1,
)


class Parted:
    """A file with streams, whose entry 1 has declared them."""

    drop_bodies = staticmethod(bodies.delete)

    def __init__(self, streams_there: int) -> None:
        self.db = apsw.Connection("")
        self.make_tables()
        self.number = 0
        self.log: list[tuple[int, Command, bytes]] = []
        self.events: list[Event] = []
        spec = spec_to_json(StreamSpec(partitions=(SET,))).decode()
        changes = tuple(
            ObjectChange("Stream", "default", f"s{each}", spec) for each in range(streams_there)
        )
        self.streams = [item.id for item in self.result(ApplySchema(0, changes))]

    def make_tables(self) -> None:
        self.db.execute(bodies.TABLES + MACHINE.tables)

    def run(self, command: Command, body: bytes = b"") -> Outcome:
        context = Context(
            machine=MACHINE,
            db=self.db,
            lsn=self.number + 1,
            now_ms=1_000 + self.number,
            drop_bodies=self.drop_bodies,
            replica_set=SET,
            ballot=BALLOT,
            body=body,
        )
        self.db.execute("BEGIN")
        outcome = execute(context, command)
        if outcome.command is not None:
            self.number = context.lsn
            self.log.append((context.lsn, command, body))
            self.events = list(outcome.events)
            self.store(context, command, body)
        self.db.execute("COMMIT")
        return outcome

    def store(self, context: Context, _command: Command, body: bytes) -> None:
        if body:
            bodies.insert(self.db, context.lsn, body)

    def result(self, command: Command, body: bytes = b"") -> Any:
        """Raises a refusal."""
        outcome = self.run(command, body)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def append(self, stream: int, *parts: bytes) -> int:
        """Append each part to the stream of the number that follows; returns the entry's lsn."""
        commands = [
            AppendBatch(self.streams[stream + at], 1, len(part), b"", 0, -1)
            for at, part in enumerate(parts)
        ]
        self.result(DoTogether.of(*commands), b"".join(parts))
        return self.number

    def read(self, stream: int) -> list[bytes]:
        """All of a stream's batches."""
        limits = streams.bounds(self.db, self.streams[stream])
        found = streams.read_batches(
            self.db,
            self.streams[stream],
            limits.first_offset,
            below=limits.next_offset,
            max_bytes=1 << 30,
        )
        return [bytes(each.data) for each in found]

    def bodies(self) -> list[int]:
        rows: Any = self.db.execute(f"SELECT lsn FROM {bodies.BODY} ORDER BY lsn")
        return [lsn for (lsn,) in rows]


def a_batch(text: str, records: int = 1) -> bytes:
    builder = BatchBuilder()
    for number in range(records):
        builder.add(NewRecord(value=f"{text}{number or ''}"), 0)
    return builder.build()


@contextmanager
def parted(streams_there: int = 3) -> Iterator[Parted]:
    file = Parted(streams_there)
    with closing(file.db):
        yield file
