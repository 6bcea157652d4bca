"""Which rare paths of the product a run has reached, seen from outside.

A test that never gets somewhere says nothing about what happens there. Every path here is a named
function of the product that is called, returns or raises something in particular; it is wrapped
for the length of a run and counted. The product knows nothing of it. A path that no seed reaches is
told in the summary; one whose function has vanished is never reached, and `vanished` names it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

Arguments = tuple[Any, ...]
"""Of the call, `self` first."""

_Seen = Callable[[Any, BaseException | None, Arguments], bool]
_Before = Callable[[Arguments], bool]


@dataclass(frozen=True)
class RarePath:
    """Counted when `before` holds at a call of `where`, or `after` of what came of it."""

    name: str
    where: str
    before: _Before | None = None
    after: _Seen | None = None


def _called(name: str, where: str, when: _Before = lambda _: True) -> RarePath:
    return RarePath(name, where, before=when)


def _returned(name: str, where: str, when: Callable[[Any, Arguments], bool]) -> RarePath:
    return RarePath(
        name, where, after=lambda result, error, given: error is None and when(result, given)
    )


def _raised(name: str, where: str, *errors: str) -> RarePath:
    """`errors` are names of exceptions."""
    return RarePath(
        name,
        where,
        after=lambda _result, error, _given: error is not None and type(error).__name__ in errors,
    )


def _appended(reason: str) -> Callable[[Any, Arguments], bool]:
    return lambda prepared, _given: prepared.result.reason == reason


def _judged_early(refused: bool) -> Callable[[Arguments], bool]:
    """Whether a group has answers that were derived from what is not committed yet."""

    def check(given: Arguments) -> bool:
        controller, group = given
        return any(
            not each.logged
            and (each.error is not None) == refused
            and each.lsn > controller.committed_lsn
            for each in group.judged
        )

    return check


PATHS: Final = (
    # starting to lead
    _raised("ballot outbid", "replication.ballot:Candidate._try", "OutbidError"),
    _raised("ballot not won", "replication.ballot:Candidate._try", "PeerError"),
    _called("leader copies what it lacks", "replication.ballot:Candidate._copy"),
    _returned(
        "waits for who remembers",
        "replication.ballot:stand",
        lambda standing, _: "remember" in standing.missing,
    ),
    _called("leader fenced by a replica", "replication.feeding:Feeding.peer_fenced"),
    # members without memory
    _called("member without memory is taught", "replication.learners:Learners.teach"),
    _called(
        "member counts again",
        "replication.feeding:Feeding.peer_granted",
        lambda given: given[1] in given[0]._learners,
    ),
    # a replica's log
    _called(
        "divergent tail dropped",
        "storage.log:Log.drop_after",
        lambda given: bool(given[0].head.lsn > given[1]),
    ),
    _called("tables diverged", "replication.follower:FollowerLog._mark_diverged"),
    _returned(
        "append of a lower ballot refused",
        "replication.follower:FollowerLog.prepare_append",
        _appended("fenced"),
    ),
    _returned(
        "append that does not continue",
        "replication.follower:FollowerLog.prepare_append",
        _appended("mismatch"),
    ),
    _returned(
        "append joins one that waits",
        "replication.appends:JoinedAppends.takes",
        lambda joined, _: bool(joined),
    ),
    _returned(
        "entries sent twice",
        "replication.follower:FollowerLog._unknown",
        lambda unknown, given: len(unknown) < len(given[1]),
    ),
    _called("peer fed from the log", "replication.feeding:Feeding.read_log"),
    # snapshots and trimming
    _returned("resync by snapshot", "replication.resync:Installation.finish", lambda *_: True),
    _returned("snapshot keeps a tail", "replication.resync:copy_tail", lambda kept, _: kept > 0),
    _returned(
        "retention drops records",
        "state.streams.retention:_slice",
        lambda found, _: bool(found.lsns),
    ),
    _called("log trimmed", "storage.log:Log.trim"),
    _called("trimmed while lagging", "replication.reaching:Reaching._send_to_snapshot"),
    # what is told, and when
    _raised("dedupe hit from the table", "state.streams.producers:check", "NoChange"),
    _raised("sequence refused", "state.streams.producers:check", "SequenceError"),
    _called(
        "retry answered after its original's commit",
        "partition.controller:Controller._on_prepared",
        _judged_early(False),
    ),
    _called(
        "refusal answered after a commit",
        "partition.controller:Controller._on_prepared",
        _judged_early(True),
    ),
    _called(
        "many commands in one commit",
        "partition.controller:Controller._on_prepared",
        lambda given: len(given[1].entries) > 1,
    ),
    # groups
    _called(
        "group rebalanced after a leave",
        "delivery.machine:Group.leave",
        lambda given: bool(given[1] in given[0].members and given[0].members[given[1]].deliveries),
    ),
    _called("redelivery", "delivery.waiting:Waiting.pop"),
    _called("nack", "delivery.machine:Group.refuse"),
    _returned(
        "late ack counted",
        "delivery.machine:Group.acknowledge_late",
        lambda counted, _: bool(counted),
    ),
    _called("late ack refused", "delivery.sessions:MemberSession.note_refused"),
    _returned("ack deadline passed", "delivery.machine:Group.expire", lambda ended, _: bool(ended)),
    _returned("ack deadline put off", "delivery.machine:Group.extend", lambda held, _: bool(held)),
    _returned(
        "silent member sent away",
        "delivery.sessions:Silence.broken",
        lambda silent, _: bool(silent),
    ),
    _called("key held by another record", "delivery.keys:KeyLines.park"),
    _returned(
        "batch waits for more",
        "delivery.members:Takers._batch_is_ready",
        lambda ready, _: not ready,
    ),
    _called(
        "dead letter written",
        "delivery.driver:GroupDriver._dead_letters_written",
        lambda given: bool(given[1]),
    ),
    _called("dead letter not written", "delivery.driver:GroupDriver._dead_letters_refused"),
    _returned(
        "floor absorbs a range",
        "state.groups.progress:_absorb",
        lambda floor, given: floor > given[2],
    ),
    _called(
        "group begins with gaps", "delivery.machine:Group.__init__", lambda given: bool(given[2])
    ),
    _called(
        "attempts outlive their leader",
        "delivery.machine:Group.__init__",
        lambda given: bool(given[3]),
    ),
    _returned("group reset", "delivery.groups:Groups.reset", lambda *_: True),
    _returned("group deleted", "delivery.groups:Groups.delete", lambda *_: True),
    _called(
        "ephemeral group goes on elsewhere",
        "delivery.groups:Groups._begin_ephemeral",
        lambda given: given[2].resume_offset is not None,
    ),
    _called(
        "group served whose stream is deleted",
        "delivery.groups:Groups._end_streams",
        lambda given: any(key[0] in given[1] for key in given[0]._drivers),
    ),
    _called("group served anew", "delivery.driver:GroupDriver._give_up"),
    # pipelines
    _called(
        "retried instances caught up with a change",
        "state.pipelines.stage_runs:catch_up",
        lambda given: given[2] > 1,
    ),
    _returned(
        "instances of several definitions",
        "state.pipelines.definitions:by_version",
        lambda found, _: len(found) > 1,
    ),
    _returned("failed instances retried", "state.pipelines.retries:_failed_of", lambda *_: True),
    _called(
        "pipeline deleted under its runners",
        "pipelines.dispatcher:Dispatcher.stop",
        lambda given: bool(type(given[1]).__name__ == "NotFoundError"),
    ),
    # transactions
    _called(
        "transactions share a batch",
        "transactions.machine:Machine._decide",
        lambda given: bool(given[1].records),
    ),
    _called(
        "transactions that share a batch refused",
        "transactions.machine:Machine._roll_back",
        lambda given: bool(given[1].records),
    ),
    _called(
        "commits at the same time lose their answer",
        "client.transactions.driver_call:DriverCall.lost",
        lambda given: len(given[0]._owed) > 1,
    ),
    # disks
    _called("checkpoint under load", "storage.checkpoint:Checkpointer._checkpoint"),
    _called(
        "readers held for a checkpoint", "storage.checkpoint:Checkpointer._restart_without_readers"
    ),
    _called(
        "commit on the writer's thread",
        "storage.writer:Writer._hand_over",
        lambda given: given[0].connection.in_transaction,
    ),
    _called("node ends itself", "node.member:Member.fail"),
    _returned(
        "torn WAL tail dropped",
        "storage.aftermath:scan_wal",
        lambda scan, _: scan.verdict.name == "TORN_TAIL",
    ),
    _returned(
        "damaged WAL found",
        "storage.aftermath:scan_wal",
        lambda scan, _: scan.verdict.name == "DAMAGED",
    ),
    _called("refused before the disk is full", "partition.room:Room.refusal"),
    _called("damaged entry put back", "storage.repair:_write"),
    _called("damaged page put together", "storage.pages:Mending._write"),
    _called("damaged body put back", "replication.repair:put_back_body"),
    _raised("clock too far off to lead", "replication.skew:check", "FencedError"),
    # several replica sets
    _called(
        "schema pushed after a gap",
        "metadata.push:Push.has_read",
        lambda given: given[1].to_index - given[1].from_index > 1,
    ),
    _called(
        "schema pushed in several parts",
        "state.adoption:_check_part",
        lambda given: given[1].part > 0,
    ),
    _raised("push refused that does not follow", "state.adoption:check_follows", "SchemaError"),
    _raised("node behind the schema", "serving.catalog:Catalog.check_index", "MetadataBehindError"),
    _raised("stream asked for that is gone", "serving.catalog:Catalog.by_id", "NotFoundError"),
    _returned("deleted stream dropped", "serving.dropping:DropDriver._drop", lambda *_: True),
    _called("call forwarded to a leader", "server.forwarding:_Relay.open"),
    # clients
    _called(
        "batch goes to another partition", "client.producing.accumulator:PartitionAccumulator.adopt"
    ),
    _returned(
        "batch in doubt stays", "client.producing.failover:may_move", lambda moves, _: not moves
    ),
    _called(
        "member gets a new partition",
        "client.consuming.consumer:Consumer._join_added",
        lambda given: any(name not in given[0]._memberships for name in given[1].spec.partitions),
    ),
    _called("producer gets a new partition", "client.producing.publisher:Publisher.grown"),
    _called(
        "producer told of a duplicate",
        "client.producing.accumulator:PartitionAccumulator.acked",
        lambda given: bool(given[-1]),
    ),
    _called(
        "producer told to wait or try again",
        "client.producing.accumulator:PartitionAccumulator.refused",
    ),
    _called("client looks for the leader", "client.connecting.session:Session.suspect"),
)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count every path for the length of the block; those never reached have 0."""
    reached = Counter({path.name: 0 for path in PATHS})
    with ExitStack() as undo:
        for path in PATHS:
            found = _find(path.where)
            if found is not None:
                undo.enter_context(_watched(*found, path, reached))
        yield reached


def vanished() -> list[str]:
    """Paths whose function is not where it was."""
    return [path.name for path in PATHS if _find(path.where) is None]


def _find(where: str) -> tuple[Any, str] | None:
    module, _, names = where.partition(":")
    try:
        owner: Any = importlib.import_module(f"hadron.{module}")
        *parents, name = names.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        inspect.getattr_static(owner, name)
    except (ImportError, AttributeError):
        return None
    return owner, name


@contextmanager
def _watched(owner: Any, name: str, path: RarePath, reached: Counter[str]) -> Iterator[None]:
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _wrapped(original, path, reached))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _wrapped(
    function: Callable[..., Any], path: RarePath, reached: Counter[str]
) -> Callable[..., Any]:
    """The function, told of; of its arguments only the positional ones are looked at."""
    before, after = path.before, path.after

    def enter(given: Arguments) -> None:
        if before is not None and before(given):
            reached[path.name] += 1

    def leave(result: Any, error: BaseException | None, given: Arguments) -> None:
        if after is not None and after(result, error, given):
            reached[path.name] += 1

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*given: Any, **named: Any) -> Any:
            enter(given)
            try:
                result = await function(*given, **named)
            except BaseException as error:
                leave(None, error, given)
                raise
            leave(result, None, given)
            return result

        return awaited

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        enter(given)
        try:
            result = function(*given, **named)
        except BaseException as error:
            leave(None, error, given)
            raise
        leave(result, None, given)
        return result

    return called
