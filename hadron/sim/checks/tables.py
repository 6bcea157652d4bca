"""Checks of the tables: equal logs make equal tables, and those that the commands mean."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from hadron.model.batch import producer_id_of, read_head, split_batches
from hadron.model.errors import CorruptionError
from hadron.model.limits import PRODUCER_IDLE_MS
from hadron.sim.checks.done import Doings, has_own_batches
from hadron.sim.evidence.evidence import Evidence, Violation
from hadron.sim.evidence.history import Apply
from hadron.sim.evidence.labels import plain
from hadron.sim.evidence.node_files import NodeFile
from hadron.sim.model.machine import batch_of
from hadron.state import leadership
from hadron.state.adoption import AdoptObjects
from hadron.state.groups.changes import DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import Command, StateMachine
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import ClaimProducer
from hadron.state.streams.retention import TrimStream

_ALSO_IN_LOGS: Final = (leadership,)
"""Imported for the commands that they register: every entry of a log is decoded here."""


def tables_agree(evidence: Evidence) -> Iterator[Violation]:
    """Nodes that have applied the same entries hold the same rows."""
    for first, second in _same_height(evidence.files):
        evidence.judged["tables_agree"] += 1
        different = sorted(
            table
            for table in first.digests.keys() | second.digests.keys()
            if first.digests.get(table) != second.digests.get(table)
        )
        if different:
            yield Violation(
                "tables_agree",
                f"{first.name} and {second.name} have both applied {first.applied_lsn}, but differ "
                f"in {', '.join(different)}",
            )


def _same_height(files: list[NodeFile]) -> Iterator[tuple[NodeFile, NodeFile]]:
    by_height: dict[int, NodeFile] = {}
    for node in files:
        if 0 in node.damage:
            continue
        first = by_height.setdefault(node.applied_lsn, node)
        if first is not node:
            yield first, node


def tables_follow_the_log(evidence: Evidence) -> Iterator[Violation]:
    """Offsets, producers' sequences and groups' progress are what the log's commands make of them,
    computed here again without `apply`."""
    judged: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
    for node in evidence.files:
        fingerprint = node.applied_lsn, tuple(sorted(node.digests.items()))
        if 0 in node.damage or node.first_lsn != 1 or fingerprint in judged:
            continue
        judged.add(fingerprint)
        evidence.judged["tables_follow_the_log"] += 1
        yield from _check_tables(node, evidence.rules.machine)


def _check_tables(node: NodeFile, machine: StateMachine) -> Iterator[Violation]:
    model = _Model()
    for lsn in range(1, node.applied_lsn + 1):
        row = node.log.get(lsn)
        if lsn in node.damage:
            return  # `files_are_whole` tells; nothing follows from such a log
        if row is None:
            yield Violation(
                "tables_follow_the_log", f"{node.name} has applied {lsn}, which is not in its log"
            )
            return
        try:
            model.apply(lsn, row.now_ms, machine.decode(row.command), row.body)
        except CorruptionError as error:
            yield Violation("tables_follow_the_log", f"{node.name} at {lsn}: {error}")
            return
    for batch in node.batches:
        found = batch.stream_id, batch.base_offset, batch.count
        given = model.batches.get(batch.lsn, [])
        if found not in given:
            yield Violation(
                "tables_follow_the_log",
                f"{node.name} has (stream, offset, count) {found} for entry {batch.lsn}, the log "
                f"gives {given}",
            )
    for key, (following, last_ms) in model.producers.items():
        recent = last_ms > model.now_ms - PRODUCER_IDLE_MS
        if recent and node.producers.get(key) != following:
            yield Violation(
                "tables_follow_the_log",
                f"{node.name} expects sequence {node.producers.get(key)} of producer "
                f"{key[1].hex()}, the log gives {following}",
            )
    for group in node.groups:
        claimed = {offset for first, last in group.ranges for offset in range(first, last + 1)}
        claimed.update(range(group.floor))
        if claimed != model.groups.get(group.group_id):
            known = model.groups.get(group.group_id, set())
            yield Violation(
                "tables_follow_the_log",
                f"{node.name} counts {sorted(claimed - known)[:10]} of group {group.name} as "
                f"acknowledged, and not {sorted(known - claimed)[:10]}; the log says otherwise",
            )


class _Model:
    """What the log's commands mean, in as few words as possible."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.batches: dict[int, list[tuple[int, int, int]]] = {}
        self.producers: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.groups: dict[int, set[int]] = {}
        self._groups_of: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        self._parts: list[AdoptObjects] = []
        self._doings = Doings()

    def apply(self, lsn: int, now_ms: int, command: Command, body: bytes | None) -> None:
        self.now_ms = now_ms
        done = self._doings.of(command) or []
        for stream_id, count, _ in appended(done, body if has_own_batches(command) else None):
            base = self._next.get(stream_id, 0)
            self._next[stream_id] = base + count
            self.batches.setdefault(lsn, []).append((stream_id, base, count))
        for each in done:
            self._apply(lsn, now_ms, each)

    def _apply(self, lsn: int, now_ms: int, command: Command) -> None:
        if isinstance(command, AppendBatch):
            if command.producer_id and command.sequence >= 0:
                self.producers[command.stream_id, command.producer_id] = (
                    command.sequence + command.count,
                    now_ms,
                )
        elif isinstance(command, ClaimProducer):
            self.producers[command.stream_id, producer_id_of(command.name)] = 0, now_ms
        elif isinstance(command, CreateGroup):
            self.groups[lsn] = set(range(command.floor))
            self._groups_of.setdefault(command.stream_id, []).append(lsn)
        elif isinstance(command, AckRecords):
            self._acknowledge(command.group_id, command.ranges)
        elif isinstance(command, EndDeliveries):
            self._acknowledge(command.group_id, command.acknowledged)
        elif isinstance(command, TrimStream):
            # What retention drops, nobody is to acknowledge any more (PROTOCOL D2).
            for group_id in self._groups_of.get(command.stream_id, []):
                if group_id in self.groups:
                    self.groups[group_id].update(range(command.first_offset))
        elif isinstance(command, DeadLetterRecords) and command.group_id:
            self._acknowledge(command.group_id, command.ranges)
        elif isinstance(command, ResetGroup):
            del self.groups[command.group_id]
            self.groups[lsn] = set(range(command.floor))
            for of_stream in self._groups_of.values():
                if command.group_id in of_stream:
                    of_stream.append(lsn)
        elif isinstance(command, DeleteGroup):
            del self.groups[command.group_id]
        elif isinstance(command, DeleteObjects):
            self._forget(command.ids)
        elif isinstance(command, AdoptObjects):
            self._adopt(command)

    def _adopt(self, command: AdoptObjects) -> None:
        """What is pushed takes effect with its last part; a whole schema has no other objects."""
        self._parts = [*self._parts, command] if command.part else [command]
        if not command.is_last:
            return
        gone = {each.id for part in self._parts for each in part.deleted}
        if command.is_whole:
            kept = {item.id for part in self._parts for item in part.objects}
            gone |= {
                stream_id
                for stream_id, _ in self.producers
                if stream_id not in kept and not any(stream_id in each for each in command.lost)
            }
        self._forget(gone)

    def _forget(self, ids: Collection[int]) -> None:
        """A deleted stream's rows go a slice at a time: its producers need not be there."""
        self.producers = {key: known for key, known in self.producers.items() if key[0] not in ids}

    def _acknowledge(self, group_id: int, ranges: tuple[tuple[int, int], ...]) -> None:
        for first, last in ranges:
            self.groups[group_id].update(range(first, last + 1))


def appended(done: Sequence[Command], body: bytes | None) -> list[tuple[int, int, int]]:
    """(stream id, records, bytes) of each batch that an entry appends, which does these; `body` is
    of its own batches."""
    said = [batch for each in done if (batch := batch_of(each)) is not None]
    if body is None or not said:
        return said
    # As many records as the bytes have, whatever the command says.
    counts = [read_head(part).n for part in split_batches(body)]
    return [
        (stream_id, count, size) for (stream_id, _, size), count in zip(said, counts, strict=True)
    ]


def schema_is_durable(evidence: Evidence) -> Iterator[Violation]:
    """Objects whose declaration was acknowledged exist, unless somebody may have deleted them
    after that; what was deleted is gone for ever; and what was refused is not there, if nobody else
    declared it."""
    reference = evidence.reference
    known = {(kind, plain(name)) for kind, _, name in reference.objects.values()}
    deletions = [each for each in evidence.history.of(Apply) if each.deletes]
    declared = {
        tuple(item)
        for each in evidence.history.of(Apply)
        if each.outcome != "refused" and not each.deletes
        for item in each.objects
    }
    for operation in evidence.history.of(Apply):
        # Other refusals may be of a later try.
        if operation.outcome == "refused" and operation.error.startswith("SchemaError"):
            evidence.judged["schema_is_durable"] += 1
            for item in map(tuple, operation.objects):
                if item in known and item not in declared:
                    yield Violation("schema_is_durable", f"{item} was refused, and is there")
        if operation.outcome != "ok":
            continue
        evidence.judged["schema_is_durable"] += 1
        if operation.deletes:
            if kept := sorted(reference.objects.keys() & set(operation.ids)):
                yield Violation(
                    "schema_is_durable",
                    f"{operation.objects} were deleted, and {kept} are still there",
                )
            continue
        for item in operation.objects:
            may_be_gone = any(
                each.outcome != "refused"
                and tuple(item) in map(tuple, each.objects)
                and (each.outcome == "unknown" or each.ended > operation.began)
                for each in deletions
            )
            if tuple(item) not in known and not may_be_gone:
                yield Violation("schema_is_durable", f"{item} was declared and does not exist")


CHECKS: Final = (tables_agree, tables_follow_the_log, schema_is_durable)
