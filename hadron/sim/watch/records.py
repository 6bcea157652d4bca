"""PROTOCOL D4, D5: what a leader says of records is what its log has.

Readers compare values. What stands beside them (a batch's time and ballot, where a time begins,
which record is a key's latest) they have to believe, and somebody goes by it later: a cursor that
names another ballot is refused, or let in, where it must not be; who begins at a time that was
found too late never hears of what came before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, LogTruncatedError, OffsetOutOfRangeError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.serving.visible import VisibleStreams
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.views import Complaints, NodeView, Question
from hadron.state.streams.keys import signed
from hadron.wire.messages import ballot_from

_BATCH: Final = (
    "SELECT count, append_ms, epoch, incarnation FROM hadron_stream_batch"
    " WHERE stream_id = ? AND base_offset = ?"
)
_BALLOT: Final = (
    "SELECT epoch, incarnation FROM hadron_stream_batch WHERE stream_id = ?1 AND base_offset <= ?2"
    " AND base_offset + count > ?2 ORDER BY base_offset DESC LIMIT 1"
)
_LOGGED: Final = (
    "SELECT lsn FROM hadron_stream_batch WHERE stream_id = ?1 AND base_offset <= ?2"
    " AND base_offset + count > ?2 ORDER BY base_offset DESC LIMIT 1"
)
_FIRST: Final = "SELECT first_offset FROM hadron_stream_partition WHERE stream_id = ?"
_SINCE: Final = (
    "SELECT base_offset FROM hadron_stream_batch WHERE stream_id = ? AND append_ms >= ?"
    " ORDER BY base_offset LIMIT 1"
)
_LATEST: Final = (
    "SELECT k.offset, b.lsn FROM hadron_stream_key k JOIN hadron_stream_partition p USING"
    " (stream_id) JOIN hadron_stream_batch b ON b.stream_id = k.stream_id AND b.base_offset ="
    " (SELECT max(base_offset) FROM hadron_stream_batch WHERE stream_id = k.stream_id"
    " AND base_offset <= k.offset)"
    " WHERE k.stream_id = ? AND k.key_hash = ? AND k.offset >= p.first_offset"
)

_Given = tuple[int, int, int, int]
"""Of a batch: how many records, when, and under which ballot."""


class Records:
    """What every leader says of them."""

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._shown: dict[Any, VisibleStreams] = {}
        """What each leadership shows."""
        self._known: WeakKeyDictionary[VisibleStreams, dict[tuple[int, int], _Given]] = (
            WeakKeyDictionary()
        )
        """Batches that were found to be as they are given: within a leadership they stay so."""
        self._asked: dict[int, int] = {}
        """By a question's order: what was committed when it came."""

    def makes_visible(self, visible: VisibleStreams) -> None:
        """A leadership begins to show streams."""
        self._shown[visible._replica_set, visible._ballot] = visible

    def given(
        self, visible: VisibleStreams, stream_id: int, batches: Iterable[StampedBatch]
    ) -> None:
        """A leader has these for whoever reads there."""
        mark = self._ballots.marks.get((visible._replica_set, visible._ballot))
        if mark is None or not mark.controller.leads or not mark.view.is_alive:
            return
        known = self._known.setdefault(visible, {})
        for batch in batches:
            key = stream_id, batch.base_offset
            given = batch.count, batch.append_ms, batch.epoch, batch.incarnation
            if known.get(key) == given:
                continue
            row = mark.view.select(_BATCH, *key)
            if row is None or tuple(row) == given:
                # Retention may have come by.
                known[key] = given
                continue
            self._complaints.add(
                "D4 a batch is given as it was logged",
                f"{mark.view.name} gives the batch at offset {batch.base_offset} of stream "
                f"{stream_id} as (records, ms, epoch, incarnation) {given}, it is {tuple(row)}",
            )

    def asked(self, question: Question) -> None:
        """A question has come."""
        if question.method in ("Fetch", "Latest"):
            self._asked[question.order] = question.view.committed_lsn

    def answers(self, question: Question, answer: Any) -> None:
        """An answer leaves."""
        committed_lsn = self._asked.pop(question.order, 0)
        if question.method not in ("Offsets", "Latest"):
            return
        stream_id = self._stream_of(question)
        if not stream_id:
            return
        if question.method == "Latest":
            self._check_latest(question.view, question.message, answer, stream_id, committed_lsn)
            return
        for partition in answer.partitions:
            self._check_ballot(question, partition, stream_id)
            if question.message.at_ms > 0:
                self._check_time(question, partition, stream_id)

    def refuses(self, question: Question, error: HadronError) -> None:
        """A refusal leaves. Who is sent away from a record that is there has to begin elsewhere."""
        committed_lsn = self._asked.pop(question.order, 0)
        if question.method != "Fetch" or not (stream_id := self._stream_of(question)):
            return
        request, view = question.message, question.view
        if isinstance(error, LogTruncatedError):
            row = view.select(_BALLOT, stream_id, request.offset - 1)
            if row is not None and tuple(row) == ballot_from(request.after):
                self._complaints.add(
                    "D4 a cursor of this history is let in",
                    f"{view.name} says that its log has another record before offset "
                    f"{request.offset} of stream {stream_id} than the one of {row[0]}.{row[1]}, "
                    "which it has",
                )
        elif isinstance(error, OffsetOutOfRangeError):
            first = _number(view, _FIRST, stream_id)
            row = view.select(_LOGGED, stream_id, request.offset)
            is_kept = first is not None and request.offset >= first
            if is_kept and row is not None and row[0] <= committed_lsn:
                self._complaints.add(
                    "D4 what is kept is not refused",
                    f"{view.name} refuses offset {request.offset} of stream {stream_id}, which "
                    f"entry {row[0]} has brought; {committed_lsn} was committed when it was asked",
                )

    def _stream_of(self, question: Question) -> int:
        """The stream that is asked about, of a leader that leads still; 0 where nobody knows."""
        request, controller = question.message, question.controller
        if controller is None or not controller.leads or not question.view.is_alive:
            return 0
        mark = self._ballots.mark_of(controller)
        visible = self._shown.get(mark.key) if mark is not None else None
        if request.stream_id or visible is None:
            return int(request.stream_id)
        namespace = request.namespace or DEFAULT_NAMESPACE
        item = visible._catalog.find("Stream", namespace, request.stream)
        return item.id if item is not None else 0

    def _check_ballot(self, question: Question, said: Any, stream_id: int) -> None:
        """Of the record before where somebody means to go on."""
        request, view = question.message, question.view
        before = request.before if request.HasField("before") else said.next_offset
        row = view.select(_BALLOT, stream_id, before - 1)
        if row is None or not said.first_offset < before <= said.next_offset:
            return
        told = ballot_from(said.ballot) if said.HasField("ballot") else None
        if told != tuple(row):
            self._complaints.add(
                "D4 offsets are said as the log has them",
                f"{view.name} says that offset {before - 1} of stream {stream_id} is of {told}, it "
                f"is of {row[0]}.{row[1]}",
            )

    def _check_time(self, question: Question, said: Any, stream_id: int) -> None:
        """Where a time begins. What comes after the question may be from before that time, too."""
        view, told = question.view, said.at_offset
        since = view.select(_SINCE, stream_id, question.message.at_ms)
        first = _number(view, _FIRST, stream_id)
        if first is None or told < first:
            # It was dropped meanwhile.
            return
        is_late = since is not None and told > since[0] >= said.first_offset
        is_early = told < said.next_offset and told > first and (since is None or told < since[0])
        if is_late or is_early:
            self._complaints.add(
                "D4 offsets are said as the log has them",
                f"{view.name} says that {question.message.at_ms} begins at offset {told} of stream "
                f"{stream_id}, it does at {'the end' if since is None else since[0]}",
            )

    def _check_latest(
        self, view: NodeView, request: Any, answer: Any, stream_id: int, committed_lsn: int
    ) -> None:
        """D5: what was there when it was asked for is told, or what has come since."""
        row = view.select(_LATEST, stream_id, signed(request.key_hash))
        told = answer.offset if answer.HasField("batch") else None
        if row is not None and told != row[0] and row[1] <= committed_lsn:
            self._complaints.add(
                "D5 the latest record of a key is told",
                f"{view.name} says that the latest record of a key of stream {stream_id} is at "
                f"{told}, it is at {row[0]}, by entry {row[1]}; {committed_lsn} was committed when "
                "it was asked",
            )


def _number(view: NodeView, query: str, *values: Any) -> int | None:
    row = view.select(query, *values)
    return None if row is None else row[0]
