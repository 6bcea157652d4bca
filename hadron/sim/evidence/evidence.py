"""What the checks look at: the history, the nodes' files, and what had been promised (PROTOCOL C).

Pure. The reference is the file that knows the highest watermark; everything up to that watermark is
what the replica set says happened, and the checks hold it against the other files and the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from hadron.delivery import letters
from hadron.model.errors import CorruptionError
from hadron.model.record import Record
from hadron.model.record_batch import decode_batch
from hadron.pipelines.letters import LETTER_TYPE
from hadron.sim.evidence.group_replay import Replay
from hadron.sim.evidence.history import Event, History, Publish, Serve
from hadron.sim.evidence.node_files import BatchRow, NodeFile
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.storage.log import hash_body

SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which one, and how."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


_LEADS_ELSEWHERE: Final = frozenset({"promote", "reconfigure"})


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be expected.

    Attributes:
        members: how many nodes the configuration has; a majority of them must hold what is acked.
        leader: who leads in the first configuration.
        leaders: everybody who ever led; only they apply what is not committed. Empty: not known.
        durability: of every node, as configured.
        progress_s: how long after the last "heal" a publish may take to succeed; None when nothing
            is to be expected.
        retention: whether records may be dropped by age or size.
        wall_start_ms: what a right clock showed at the history's time 0; None: not known.
        stops: why nodes stopped by themselves, by name, where that was not provoked.
        owed: what nodes at rest had still to do, by name.
        machine: what understands the logs' commands.
    """

    members: int
    leader: str = "n1"
    leaders: frozenset[str] = frozenset()
    durability: Literal["fsync", "os"] = "fsync"
    progress_s: float | None = None
    retention: bool = False
    wall_start_ms: int | None = None
    stops: Mapping[str, str] = field(default_factory=dict)
    owed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    machine: StateMachine = MACHINE

    @property
    def majority(self) -> int:
        return self.members // 2 + 1

    def must_survive(self, publish: Publish, events: list[Event]) -> bool:
        """Whether an acknowledged publish has to be in the final log (PROTOCOL C).

        `events` are those of disks and roles since the publish began. The workload loses no
        majority of disks, so only the weaker settings have a way out.
        """
        if any(event.kind == "reconfigure" and event.detail == "loss" for event in events):
            return False
        lost = {"wipe", "damage", "restore"}
        if self.durability == "os" and self.members > 1:
            without_power = {event.subject for event in events if event.kind == "power"}
            if len(without_power) >= self.majority:
                return False
            lost.add("power")
        if publish.acks == "leader":
            return not any(
                event.kind in _LEADS_ELSEWHERE
                or (event.kind in lost and event.subject in self.leaders | {self.leader})
                for event in events
            )
        return True


@dataclass(slots=True)
class Contents:
    """A stream's partition as the reference has it."""

    stream_id: int
    first_offset: int = 0
    next_offset: int = 0
    values: dict[int, str] = field(default_factory=dict)
    lsns: dict[int, int] = field(default_factory=dict)
    """Of the entries that have appended them, or, once those are trimmed, that have their bytes."""


class Evidence:
    """Everything that the checks share, worked out once.

    Args:
        files: of all nodes that are part of the final configuration.
    """

    def __init__(self, history: History, files: list[NodeFile], rules: Rules) -> None:
        self.history = history
        self.files = files
        self.rules = rules
        self.committed = max((node.committed_lsn for node in files), default=0)
        if rules.members == 1:
            # A leader does not write its watermark down; alone, it commits what it has written.
            self.committed = max((node.applied_lsn for node in files), default=0)
        self.judged: Counter[str] = Counter()
        """By check: how often it held something against something else. One that never did has
        shown nothing, whatever it says."""
        self._values: dict[tuple[bytes, int | None], list[str]] = {}
        self._records: dict[str, dict[int, Record]] = {}

    @cached_property
    def reference(self) -> NodeFile:
        """The undamaged file that knows most; one whose tables reach the watermark."""
        empty = NodeFile("nobody")
        return max(
            self.files,
            key=lambda node: (
                0 not in node.damage,
                min(node.applied_lsn, self.committed),
                not node.damage,
                node.committed_lsn,
            ),
            default=empty,
        )

    @cached_property
    def holders(self) -> dict[int, list[str]]:
        """Who holds each committed entry, undamaged, as the reference has it."""
        known = self.reference
        lsns = sorted(known.bodies.keys() | known.log.keys() | known.damage.keys() - {0})
        return {
            lsn: [node.name for node in self.files if self._holds(node, lsn)]
            for lsn in lsns
            if lsn <= self.committed
        }

    def _holds(self, node: NodeFile, lsn: int) -> bool:
        if lsn in node.damage or 0 in node.damage:
            return False
        expected, found = self.reference.log.get(lsn), node.log.get(lsn)
        if expected is not None and found is not None:
            return found.chain == expected.chain
        if found is None and lsn >= node.first_lsn:
            return False
        # Trimmed on one of the two: what a record needs is its body.
        return _body_of(node, lsn) == self._body(lsn)

    def _body(self, lsn: int) -> bytes | None:
        """As the reference has it; from another file where its disk was damaged."""
        sound = (node for node in (self.reference, *self.files) if lsn not in node.damage)
        return next((body for node in sound if (body := _body_of(node, lsn)) is not None), None)

    @cached_property
    def streams(self) -> dict[str, Contents]:
        """The partition here of every stream, by the stream's name."""
        found: dict[str, Contents] = {}
        reference = self.reference
        names = {
            object_id: name
            for object_id, (kind, _, name) in reference.objects.items()
            if kind == "Stream"
        }
        by_id: dict[int, Contents] = {}
        for stream_id, name in names.items():
            first = reference.bounds.get(stream_id, (0, 0))[0]
            found[name] = by_id[stream_id] = Contents(stream_id, first, first)
        for batch in reference.batches:
            contents = by_id.get(batch.stream_id)
            if contents is not None and batch.lsn <= self.committed:
                contents.next_offset = max(contents.next_offset, batch.base_offset + batch.count)
                for index, value in enumerate(self.values_of(reference, batch)):
                    contents.values[batch.base_offset + index] = value
                    is_trimmed = batch.lsn < reference.first_lsn
                    lsn = batch.bytes_of if is_trimmed else batch.lsn
                    contents.lsns[batch.base_offset + index] = lsn
        return found

    def contents(self, stream: str) -> Contents:
        """Empty when the stream does not exist."""
        return self.streams.get(stream, Contents(0))

    def values_of(self, node: NodeFile, batch: BatchRow) -> list[str]:
        """A batch's values as text; from another file where a disk was damaged; [] where no file
        has its bytes."""
        row = node.log.get(batch.bytes_of)
        if row is None:
            body = self._body(batch.bytes_of)
            return [] if body is None else _values_in(batch.bytes_in(body))
        key = row.body_hash, batch.start
        known = self._values.get(key)
        if known is None:
            known = self._values[key] = self._decode(row.body_hash, batch)
        return known

    def _decode(self, body_hash: bytes, batch: BatchRow) -> list[str]:
        for node in self.files:
            row = node.log.get(batch.bytes_of)
            if row is None or row.body is None or hash_body(row.body) != body_hash:
                continue
            return _values_in(batch.bytes_in(row.body))
        return []

    def records(self, stream: str) -> dict[int, Record]:
        """A stream's records by offset, with their keys and headers, where some file has them."""
        known = self._records.get(stream)
        if known is None:
            known = self._records[stream] = {}
            stream_id = self.contents(stream).stream_id
            for batch in self.reference.batches:
                if batch.stream_id == stream_id and batch.lsn <= self.committed:
                    body = self._body(batch.bytes_of)
                    found = _records_in(batch.bytes_in(body)) if body else []
                    for index, record in enumerate(found):
                        known[batch.base_offset + index] = record
        return known

    def tells_of_instance(self, stream: str, offset: int) -> bool:
        """Whether a record is the dead letter of a pipeline's instance."""
        record = self.records(stream).get(offset)
        return record is not None and record.type == LETTER_TYPE

    @cached_property
    def letter_streams(self) -> frozenset[str]:
        """Streams that dead letters go to: what is in them is somewhere else, too."""
        return frozenset(
            entry.dead_letter
            for entry in self.history.entries
            if isinstance(entry, Serve) and entry.dead_letter
        )

    @cached_property
    def dead_letters(self) -> dict[tuple[str, str], list[int]]:
        """Of each group, as (stream, group): the offsets of which there are dead letters."""
        found: dict[tuple[str, str], list[int]] = {}
        for stream in sorted(self.letter_streams):
            for record in self.records(stream).values():
                headers = record.headers
                if letters.ORIGIN_OFFSET in headers:
                    key = headers[letters.ORIGIN_STREAM], headers[letters.GROUP]
                    found.setdefault(key, []).append(int(headers[letters.ORIGIN_OFFSET]))
        return found

    @cached_property
    def replay(self) -> Replay:
        """Of what leaders gave to members."""
        return Replay(self)

    @cached_property
    def disk_events(self) -> list[Event]:
        return self.history.events("power", "wipe", "damage", "restore", "promote", "reconfigure")

    def must_survive(self, publish: Publish) -> bool:
        """Whether an acknowledged publish has to be in the final log."""
        # The leader before goes on, alone, until it has heard of its successor.
        earlier = _LEADS_ELSEWHERE if publish.acks == "leader" else frozenset()
        since = [
            event for event in self.disk_events if event.at > publish.began or event.kind in earlier
        ]
        return self.rules.must_survive(publish, since)

    def wall_ms(self, time: int) -> int | None:
        """What a right clock showed at a moment of the history; None when that is not known."""
        start_ms = self.rules.wall_start_ms
        return None if start_ms is None else start_ms + time // 1_000_000

    def damaged_since(self, time: int) -> set[str]:
        """Nodes whose disks were damaged on purpose, and may have parts that are."""
        return {
            event.subject
            for event in self.disk_events
            if event.kind == "damage" and event.at > time
        }

    @cached_property
    def publishes(self) -> list[Publish]:
        return self.history.of(Publish)

    @cached_property
    def may_be_twice(self) -> set[str]:
        """Values of producers that rather publish twice than not know."""
        return {
            value
            for publish in self.publishes
            if publish.failover == "duplicate"
            for value in publish.values
        }

    @cached_property
    def acknowledged(self) -> list[Publish]:
        return [publish for publish in self.publishes if publish.outcome == "ok"]


def _body_of(node: NodeFile, lsn: int) -> bytes | None:
    row = node.log.get(lsn)
    return row.body if row is not None else node.bodies.get(lsn)


def _values_in(body: bytes) -> list[str]:
    return [text_of(record.value) for record in _records_in(body)]


def _records_in(body: bytes) -> list[Record]:
    try:
        return decode_batch(body).records()
    except CorruptionError:
        return []


def text_of(value: object) -> str:
    """A record's value as the history has it."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="replace")
    return str(value)
