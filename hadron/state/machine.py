"""The state machine that a log drives: features, their commands, and how one is applied.

A command is a struct with a number; on disk it is a MessagePack array, the number first. Fields
are only ever added at the end, with a default that means what was before; numbers are never
reused. A node that meets a number it does not know stops: it cannot hold the same tables any more.

A feature is a value: its tables, its commands with the functions that apply them, and what it does
in the entries of others. A state machine is made of features, and nothing else: `features` has the
list of those that Hadron is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import Any, ClassVar, Final, Generic, NamedTuple

import msgspec
from typing_extensions import TypeVar

from hadron.model.errors import CorruptionError, RequestError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject
from hadron.model.tables import PREFIX
from hadron.model.transactions import Lock, StatementResult
from hadron.state.slices import Dropped, Portion
from hadron.storage.report import Check, Report

_CREATED: Final = re.compile(r"CREATE (TABLE|INDEX) IF NOT EXISTS (\w+)")


class BatchShape(NamedTuple):
    """What a command says of one of the record batches that its entry's body is made of."""

    records: int
    size: int
    """Bytes."""


Result = TypeVar("Result", covariant=True, default=Any)


class Command(msgspec.Struct, Generic[Result], frozen=True, array_like=True, tag=0):
    """Base of all commands; `Result` is what its `apply` returns.

    Attributes:
        uses_reserve: it is logged also when the disk has no room for ordinary writes: it ends
            something, or makes room (PROTOCOL B7).
        is_rationed: it comes as fast as records are read, and has a bounded share of each commit.
        is_joinable: it may be one of several in an entry.
        since: the version of the rules that has brought it: every member must know that one before
            this is logged (PROTOCOL A5).
    """

    uses_reserve: ClassVar[bool] = False
    is_rationed: ClassVar[bool] = False
    is_joinable: ClassVar[bool] = False
    since: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        """Of tables that it changes, about: what running it costs."""
        return 1

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        """What the entry's body must be: these, one after the other, and nothing else."""
        return ()

    @property
    def joined(self) -> tuple[bytes, ...]:
        """Commands that it is made of, encoded."""
        return ()


class Event(msgspec.Struct, frozen=True):
    """Base of what `apply` functions say has happened: told, on a leader, once it is committed.
    (A follower looks for one of them: `SchemaChanged`, for the node's copy of the schema.)"""


DropBodies = Callable[[Database, Sequence[int]], None]
"""Told the numbers of entries whose bodies nothing names any more."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What an `apply` function may look at besides its command: all of it is in the log.

    Attributes:
        lsn: the entry's number, which names what the entry makes: it rises, and is never used
            again. A log numbers its entries; where there is none, whoever runs the commands does.
        drop_bodies: how bodies go. A log has to know of each that it was dropped.
        replica_set: "" for tables that belong to none: all that is declared is here.
        ballot: of the leader that has logged the entry.
        body: for those who hear of the events: only who runs a command for the first time has it.
        start: where the command's batches begin in the body, which is counted
            (`state.bodies`); None when the body is one batch, or none.
        body_lsn: of the earlier entry whose body that is; None: it is this entry's.
        events: what has happened, in order.
    """

    machine: StateMachine
    db: Database
    lsn: int
    now_ms: int
    drop_bodies: DropBodies
    replica_set: str = ""
    ballot: Ballot = NO_BALLOT
    body: bytes | memoryview = b""
    start: int | None = None
    body_lsn: int | None = None
    events: list[Event] = field(default_factory=list)

    def is_here(self, *replica_sets: str) -> bool:
        """Whether what is on `replica_sets` is on this one."""
        return not self.replica_set or self.replica_set in replica_sets

    @property
    def place(self) -> str:
        return f"on {self.replica_set}" if self.replica_set else "here"

    def emit(self, event: Event) -> None:
        self.events.append(event)


class NoChange(Exception):  # noqa: N818 - not an error
    """Raised by `apply` when the command was done before: nothing is logged, and the original's
    result is the answer, once the original is committed (PROTOCOL A2)."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


Apply = Callable[[Context, Any], Any]
"""Told (context, command), returns the command's result. It may raise a `RequestError` to refuse
the command (nothing is logged, what it wrote is rolled back) or `NoChange`."""

Seal = Callable[[Context, Any], Command]
"""What a leader completes a command with, from its tables as they are where it is logged; it only
reads."""

Declared = Callable[[Context, SchemaObject], None]
Deleted = Callable[[Context, int], bool]
"""Told the id of an object that is no more; whether it has left something to drop later."""

Leftovers = Callable[[Context, int, Portion], Dropped]
"""Told (context, the id of a deleted object, what may be dropped now)."""

Finished = Callable[[Context, int, str, tuple[StatementResult, ...]], None]
"""Told (context, the entry that has decided it, the participant, what its statements there came
to)."""

Trimmed = Callable[[Context, int, int], None]
"""Told (context, stream's id, its first offset now)."""


def _no_locks(_command: Any) -> tuple[Lock, ...]:
    return ()


Hold = Callable[[Context, Any, int | None], None]
"""Told (context, command, `prepared_lsn`)."""


def _holds_nothing(_context: Context, _command: Any, _prepared_lsn: int | None) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What makes a command one that may stand in a transaction (PROTOCOL E2).

    Alone, a command that was done before answers as it did then. In a transaction that is a
    refusal: its other statements would be done on the strength of what is somebody else's. What a
    statement is of can only go by a deletion between its check and its end.

    Attributes:
        check: raises a `RequestError` for whatever could refuse it, now or when it is done.
        apply: does it. After its check, and while its locks are held, it is not refused: where what
            it is of was deleted meanwhile, it does nothing and says so. It tells the others by
            events what its command's own `apply` would leave to whoever has submitted it.
        locks: what nobody else may end from its check on until it is done.
        hold: keeps true what was checked, otherwise than by such a lock, for the transaction that
            is prepared with this entry. None: it is done with this entry; only look that no other
            transaction holds it. Raises `ConflictError`.
        apply_all: does several that follow each other, to the same effect, and faster.
    """

    check: Callable[[Context, Any], None]
    apply: Callable[[Context, Any], StatementResult]
    locks: Callable[[Any], tuple[Lock, ...]] = _no_locks
    hold: Hold = _holds_nothing
    apply_all: Callable[[Context, Sequence[Any]], Sequence[StatementResult]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """How commands that wait at the same time, one behind the other, become one.

    Attributes:
        key: those with equal ones may; None: an entry of its own.
        join: the command that does what these do, whose body is theirs, in their order. Its result
            is a sequence of theirs. Where it is refused, each is tried by itself.
    """

    key: Callable[[Any], Any]
    join: Callable[[Sequence[Any]], Command]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """All that a feature is to the state machine.

    Attributes:
        tables: SQL, CREATE … IF NOT EXISTS; names begin with `model.tables.PREFIX`.
        commands: what applies each.
        statements: which commands may stand in transactions, and how.
        seals: what completes those that are submitted incomplete.
        gathers: which of them become one where several wait.
        declared: by kind of object: it was declared, or has changed.
        deleted: by kind of object: it is gone.
        leftovers: by kind of object: drop some of what a deleted one has left.
        opened: a stream has got a partition here.
        trimmed: retention has moved the beginning of a stream's partition here.
        finished: a participant of a transaction that is driven here has finished.
        checks: what a verification of the tables asks of them; each is given the report.
    """

    name: str
    tables: str = ""
    commands: Mapping[type[Command], Apply] = field(default_factory=dict)
    statements: Mapping[type[Command], Statement] = field(default_factory=dict)
    seals: Mapping[type[Command], Seal] = field(default_factory=dict)
    gathers: Mapping[type[Command], Gather] = field(default_factory=dict)
    declared: Mapping[str, Declared] = field(default_factory=dict)
    deleted: Mapping[str, Deleted] = field(default_factory=dict)
    leftovers: Mapping[str, Leftovers] = field(default_factory=dict)
    opened: Declared | None = None
    trimmed: Trimmed | None = None
    finished: Finished | None = None
    checks: tuple[Callable[[Report], Check], ...] = ()


class StateMachine:
    """Features put together.

    Args:
        version: of the rules: raised when there are new commands, or when an `apply` function does
            something else with a known one (PROTOCOL A5).
    """

    def __init__(self, features: Iterable[Feature], version: int) -> None:
        self.features = tuple(features)
        self.version = version
        self._apply: dict[type[Command], Apply] = {}
        self._statements: dict[type[Command], Statement] = {}
        self._seal: dict[type[Command], Seal] = {}
        self._gather: dict[type[Command], Gather] = {}
        for feature in self.features:
            assert self._apply.keys().isdisjoint(feature.commands), feature.name
            self._apply.update(feature.commands)
            assert self._statements.keys().isdisjoint(feature.statements), feature.name
            self._statements.update(feature.statements)
            self._seal.update(feature.seals)
            self._gather.update(feature.gathers)
        assert self._apply.keys() >= self._seal.keys() | self._statements.keys()
        self._decoder = msgspec.msgpack.Decoder[Command](reduce(or_, self._apply))

    @property
    def commands(self) -> tuple[type[Command], ...]:
        return tuple(self._apply)

    @property
    def tables(self) -> str:
        """The tables of every feature: files of nodes that run the same version are made alike."""
        return "\n".join(feature.tables for feature in self.features)

    @cached_property
    def table_names(self) -> tuple[str, ...]:
        """Every table of every feature, sorted."""
        created = _CREATED.findall(self.tables)
        assert all(name.startswith(PREFIX) for _, name in created), created
        return tuple(sorted(name for kind, name in created if kind == "TABLE"))

    def decode(self, data: bytes) -> Command:
        """Raises `CorruptionError` when the bytes are no command that this version knows."""
        try:
            command: Command = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"a command in the log cannot be understood: {error}",
                "was it written by a newer version of Hadron? start that one",
            ) from error
        return command

    def batches(self, command: Command) -> tuple[BatchShape, ...]:
        """What the body of a command's entry must be, whether it is one command or several."""
        parts = tuple(map(self.decode, command.joined))
        return tuple(shape for each in parts for shape in self.batches(each)) or command.batches

    def seal(self, context: Context, command: Command) -> Command:
        """The command as it is to be logged and applied: most are as they were submitted."""
        complete = self._seal.get(type(command))
        return command if complete is None else complete(context, command)

    def gather(self, command: Command) -> Gather | None:
        """How it becomes one with others that wait; None: it never does."""
        return self._gather.get(type(command))

    def apply(self, context: Context, command: Command) -> Any:
        """Apply an entry's command inside the caller's transaction."""
        return self._apply[type(command)](context, command)

    def apply_part(self, context: Context, command: Command) -> Any:
        """Apply one of several commands of an entry. It has a name of its own for whoever hears of
        entries and of their parts apart: the simulator's watch."""
        return self._apply[type(command)](context, command)

    def statement(self, command: Command) -> Statement:
        """How a command stands in a transaction. Raises `RequestError` when it cannot."""
        found = self._statements.get(type(command))
        if found is None:
            names = ", ".join(sorted(each.__name__ for each in self._statements))
            raise RequestError(
                f"{type(command).__name__} cannot stand in a transaction",
                f"these can: {names}; do the other by itself",
            )
        return found

    def apply_statement(self, context: Context, command: Command) -> StatementResult:
        """Do one of a transaction's statements, which was checked."""
        return self.statement(command).apply(context, command)

    def declare(self, context: Context, item: SchemaObject) -> None:
        """An object was declared, or has changed: let features do what it means to them."""
        for feature in self.features:
            if (declared := feature.declared.get(item.kind)) is not None:
                declared(context, item)

    def delete(self, context: Context, kind: str, object_id: int) -> bool:
        """An object is gone; whether it has left something to drop later."""
        found = [
            deleted(context, object_id)
            for feature in self.features
            if (deleted := feature.deleted.get(kind)) is not None
        ]
        return any(found)

    def drop_some(self, context: Context, kind: str, object_id: int, portion: Portion) -> Dropped:
        """Drop some of what a deleted object has left: one feature's after the other's."""
        rows = size = 0
        for feature in self.features:
            if (leftovers := feature.leftovers.get(kind)) is None:
                continue
            dropped = leftovers(context, object_id, Portion(portion.rows - rows, portion.until_lsn))
            rows, size = rows + dropped.rows, size + dropped.bytes
            if not dropped.is_done:
                return Dropped(rows, size)
        return Dropped(rows, size, is_done=True)

    def finish(
        self, context: Context, lsn: int, participant: str, results: tuple[StatementResult, ...]
    ) -> None:
        """A participant of what was decided by the entry `lsn` has finished."""
        for feature in self.features:
            if feature.finished is not None:
                feature.finished(context, lsn, participant, results)

    def open(self, context: Context, item: SchemaObject) -> None:
        """A stream has got a partition here."""
        for feature in self.features:
            if feature.opened is not None:
                feature.opened(context, item)

    def trim(self, context: Context, stream_id: int, first_offset: int) -> None:
        """A stream's partition begins later now."""
        for feature in self.features:
            if feature.trimmed is not None:
                feature.trimmed(context, stream_id, first_offset)


encode = msgspec.msgpack.Encoder().encode


def number_of(data: bytes) -> int:
    """Of an encoded command: what comes first in its array. -1 for what is none."""
    header = data[:1]
    # MessagePack: an array of up to 15 fields has its length in one byte, a longer one in two more.
    start = 1 if b"\x90" <= header <= b"\x9f" else 3 if header == b"\xdc" else len(data)
    number = data[start : start + 1]
    if b"" < number < b"\x80":
        return number[0]
    # A number below 128 is a byte, one that needs 8 or 16 bits stands behind one that says so.
    width = 1 if number == b"\xcc" else 2 if number == b"\xcd" else 0
    number = data[start + 1 : start + 1 + width]
    return int.from_bytes(number) if width and len(number) == width else -1
