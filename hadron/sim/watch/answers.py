"""PROTOCOL A2: nothing derived from an entry leaves before it is committed in this ballot.

What a task has read of a node's tables goes with it: the lsn that they stood at, until somebody
has waited for that. Whoever answers with more is heard where the answer leaves. What was logged,
refused or known already is judged where its submitter is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import apsw
import trio

from hadron.delivery.driver import GroupDriver
from hadron.delivery.ledger import Confirmation, LoggedLedger
from hadron.model.errors import (
    HadronError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
    SchemaError,
)
from hadron.model.ids import NO_BALLOT
from hadron.model.ranges import Range
from hadron.partition.controller import Controller
from hadron.partition.submission import Done
from hadron.partition.waiters import ALL, LEADER
from hadron.server.led import LED
from hadron.serving.visible import VisibleStreams
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.entries import SCHEMA, Acknowledged, Ends, tables_lsn
from hadron.sim.watch.marks import Key, Mark
from hadron.sim.watch.views import Complaints, NodeView, Question
from hadron.state.streams.partitions import all_bounds
from hadron.storage.snapshot import decode_manifest
from hadron.wire.messages import METHODS, ballot_from

_UNWAITED: ContextVar[int] = ContextVar("unwaited", default=0)
"""Where the tables stood that this task has read, while nobody has waited for that; 0: nothing."""

_HAS_READ: ContextVar[bool] = ContextVar("has_read", default=False)

_BESIDE_TABLES: Final = frozenset(
    {"Replication", "Snapshots", "Cluster", "Forwarding", "Integrity"}
)
"""Services whose answers are about logs, copies and files; `Ballots` and `copy_opened` judge them.
"""

_BY_THE_WATERMARK: Final = frozenset({"Fetch", "Offsets", "AdoptSchema"})
"""Answers that say what is visible, or how far a schema was pushed, which stays true."""

_QUESTIONS: Final = (
    frozenset(method.name for method in METHODS.values() if not method.server_streams)
    - _BY_THE_WATERMARK
)
"""What a deposed leader must not answer from a stale table: every call with one answer, but these.
Of a stream of answers each says what happens."""

_LED: Final = frozenset(each.method.name for each in LED)
"""What only a leader serves."""

_REFUSALS: Final = (RequestError, NotFoundError, SchemaError)
"""Answers that say something about the tables; all others are about the node."""


@contextmanager
def for_others() -> Iterator[None]:
    """What is told in the block is nothing that this task has read: commits are done, and answered,
    by whoever comes by."""
    kept, has_read = _UNWAITED.set(0), _HAS_READ.set(False)
    try:
        yield
    finally:
        _UNWAITED.reset(kept)
        _HAS_READ.reset(has_read)


class Answers:
    """What every node tells, and to whom."""

    def __init__(
        self, complaints: Complaints, ballots: Ballots, ends: Ends, acknowledged: Acknowledged
    ) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._ends = ends
        self._acknowledged = acknowledged
        self._said: dict[LoggedLedger, list[Range]] = {}
        """What members have acknowledged since one asked for a confirmation."""
        self._asked: dict[int, tuple[Confirmation, LoggedLedger, list[Range]]] = {}
        self._visible: dict[Key, VisibleStreams] = {}
        """What each leadership shows."""
        self._told_at: dict[Controller, float] = {}
        """When each has told somebody of a command for the last time."""

    # --- reading --------------------------------------------------------------------------------

    def read(self, lsn: int) -> None:
        """This task has read tables that stood at `lsn`."""
        _HAS_READ.set(True)
        _UNWAITED.set(max(lsn, _UNWAITED.get()))

    def _check_has_led_on(self, question: Question) -> None:
        controller = question.controller
        if question.method not in _LED or controller is None or controller.leads:
            return
        # Who was told of a commit before leading ended, in the same moment, may pass that on.
        if self._told_at.get(controller) != trio.current_time():
            self._complaints.add(
                "A2 nothing is answered when leading has ended",
                f"{question.view.name} answers {question.method}, which came under ballot "
                f"{controller.ballot}",
            )

    def _check_leads(self, question: Question) -> None:
        view = question.view
        controller = view.controller
        if controller is not None and not self._ballots.has_followers(controller, question.order):
            self._complaints.add(
                "A2 a deposed leader does not answer",
                f"{view.name} answers {question.method}, and no majority has answered it since it "
                "was asked",
            )

    def waited(self, controller: Controller) -> None:
        """This task has waited for the watermark."""
        if _UNWAITED.get() <= controller.quorum.committed:
            _UNWAITED.set(0)

    def begin_bounded(self) -> int:
        """What is read until `end_bounded` is bounded by what is visible, and leaves by that."""
        return _UNWAITED.get()

    def end_bounded(self, before: int) -> None:
        _UNWAITED.set(before)

    def schema_read(self, view: NodeView, before: int) -> None:
        """A node has read its schema, to answer from it until it reads it again."""
        lsn = _UNWAITED.get()
        if view.is_alive and lsn > view.committed_lsn:
            self._complaints.add(
                "A2 the schema is read at the watermark",
                f"{view.name} answers from its schema as of entry {lsn}, and knows "
                f"{view.committed_lsn} to be committed",
            )
        _UNWAITED.set(before)

    # --- telling --------------------------------------------------------------------------------

    def answers(self, question: Question, answer: Any) -> None:
        """An answer, or a push, leaves."""
        view = question.view
        if question.service in _BESIDE_TABLES or not view.is_alive:
            return
        self._check_waited(question)
        self._check_has_led_on(question)
        if question.method in _QUESTIONS and _HAS_READ.get():
            self._check_leads(question)
        if question.method == "Fetch" and question.message.HasField("after"):
            self._check_cursor(question)
        if question.method == "Fetch" and question.message.exists and not answer.batches:
            self._complaints.add(
                "D4 what exists is not answered with nothing",
                f"{view.name} has nothing at offset {question.message.offset}, and does not say "
                "that it is lost",
            )
        if question.service == "Schema":
            index = getattr(answer, "to_index", 0) or getattr(answer, "metadata_index", 0)
            self._check_shown(question, SCHEMA, index, "the schema")
        elif question.method in ("ListGroups", "DescribeGroup"):
            groups = answer.groups if question.method == "ListGroups" else [answer.group]
            for group in groups:
                key = "group", group.stream, group.group
                self._check_shown(question, key, group.floor, f"group {group.group}")

    def refuses(self, question: Question, error: HadronError) -> None:
        """A refusal leaves, which may say something about the tables."""
        is_about_tables = isinstance(error, _REFUSALS)
        if is_about_tables and question.service not in _BESIDE_TABLES and question.view.is_alive:
            self._check_waited(question)
            if question.method == "Fetch" and self._says_end(question, error):
                self._check_leads(question)

    @staticmethod
    def _says_end(question: Question, error: HadronError) -> bool:
        """Whether it is refused because the log has not come so far, or has another record there;
        that retention has dropped it stays true, whoever says so."""
        if not isinstance(error, OffsetOutOfRangeError):
            return isinstance(error, LogTruncatedError)
        row = question.view.select(
            "SELECT first_offset FROM hadron_stream_partition WHERE stream_id = ?",
            question.message.stream_id,
        )
        return row is None or question.message.offset >= row[0]

    def _check_waited(self, question: Question) -> None:
        view, lsn = question.view, _UNWAITED.get()
        if lsn:
            self._complaints.add(
                "A2 answers wait for what they were read from",
                f"{view.name} answers {question.method} from tables at entry {lsn}, for which "
                f"nobody waited; {view.committed_lsn} is committed",
            )

    def _check_cursor(self, question: Question) -> None:
        """D4: who has read a record of another history is refused."""
        request = question.message
        row = question.view.select(
            "SELECT epoch, incarnation, base_offset + count FROM hadron_stream_batch"
            " WHERE stream_id = ?"
            " AND base_offset < ? ORDER BY base_offset DESC LIMIT 1",
            request.stream_id,
            request.offset,
        )
        if row is not None and row[2] >= request.offset and row[:2] != ballot_from(request.after):
            self._complaints.add(
                "D4 a cursor of another history is refused",
                f"{question.view.name} goes on from offset {request.offset} after a record of "
                f"{ballot_from(request.after)}, its own is of {row[0]}.{row[1]}",
            )

    def _check_shown(self, question: Question, key: Any, end: int, what: str) -> None:
        view = question.view
        lsn = self._ends.lsn_of(view.name, key, end) if end else 0
        if lsn > view.committed_lsn:
            self._complaints.add(
                "A2 what is shown is committed",
                f"{view.name} answers {question.method} with {what} at {end}, which entry {lsn} "
                f"made; {view.committed_lsn} is committed",
            )

    def asks(self, view: NodeView, service: str, method: str) -> None:
        """A node asks, or pushes to, another one."""
        lsn = _UNWAITED.get()
        if lsn and service not in _BESIDE_TABLES and view.is_alive:
            self._complaints.add(
                "A2 pushes wait for what they were read from",
                f"{view.name} sends {method} from tables at entry {lsn}, for which nobody waited",
            )

    def delivered(self, driver: GroupDriver, first: int, last: int, attempt: int) -> None:
        """Records were given to a member."""
        controller = driver._ground.controller
        mark = self._ballots.mark_of(controller)
        if mark is None or not mark.view.is_alive:
            return
        row = mark.view.select(
            "SELECT attempts FROM hadron_group_attempt WHERE group_id = ? AND first <= ?"
            " AND last >= ?",
            driver.progress.group_id,
            first,
            first,
        )
        if row is not None and attempt <= row[0]:
            self._complaints.add(
                "D2 attempts are counted",
                f"{mark.view.name} delivers offset {first} of group {driver.progress.name} for "
                f"the {attempt}. time; {row[0]} attempts have ended",
            )
        lsn = self._ends.lsn_of(mark.view.name, driver.progress.stream_id, last + 1)
        if lsn > mark.true_lsn:
            self._complaints.add(
                "A2 what is delivered is committed",
                f"{mark.view.name} delivers offset {last} of entry {lsn}, a majority has "
                f"{mark.true_lsn}",
            )

    def acknowledged(self, ledger: LoggedLedger, ranges: Sequence[Range]) -> None:
        """Members have acknowledged records."""
        self._said.setdefault(ledger, []).extend(ranges)

    def asked_to_confirm(self, ledger: LoggedLedger, confirmation: Confirmation) -> None:
        """A member wants to hear that all it has said counts."""
        self._asked[id(confirmation)] = confirmation, ledger, self._said.pop(ledger, [])

    def confirms(self, confirmation: Confirmation) -> None:
        """A member is told that all it has said counts."""
        _, ledger, ranges = self._asked.pop(id(confirmation), (None, None, []))
        mark = self._ballots.mark_of(ledger._controller) if ledger is not None else None
        if ledger is None or mark is None or not mark.view.is_alive:
            return
        for first, last in ranges:
            for offset in range(max(first, ledger.floor), last + 1):
                lsn = self._acknowledged.lsn_of(mark.view.name, ledger._group_id, offset)
                if lsn is None or lsn > mark.true_lsn:
                    self._complaints.add(
                        "A2 an acknowledgement counts once it is committed",
                        f"{mark.view.name} confirms the acknowledgement of offset {offset}, which "
                        f"entry {lsn} made; a majority has {mark.true_lsn}",
                    )
                    return

    def shows(self, controller: Controller, lsn: int) -> None:
        """Observers are told of events up to those of entry `lsn`, to show what they have done."""
        mark = self._ballots.mark_of(controller)
        if mark is not None and mark.view.is_alive and lsn > mark.true_lsn:
            self._complaints.add(
                "A2 what is shown is committed",
                f"{mark.view.name} shows entry {lsn}; a majority has {mark.true_lsn}",
            )

    def moves(self, mark: Mark, stream_id: int, end: int) -> None:
        """The visible end of a stream moves."""
        lsn = self._ends.lsn_of(mark.view.name, stream_id, end)
        if lsn > mark.true_lsn and mark.view.is_alive:
            self._complaints.add(
                "A2 what is shown is committed",
                f"{mark.view.name} shows offsets below {end} of stream {stream_id}, which entry "
                f"{lsn} made; a majority has {mark.true_lsn}",
            )

    def makes_visible(self, visible: VisibleStreams) -> None:
        """A leadership begins to show streams."""
        self._visible[visible._replica_set, visible._ballot] = visible

    def released(self, controller: Controller) -> None:
        """Everybody was told of what is committed: where that is all there is, every stream begins
        and ends for its readers where it does in the tables."""
        mark = self._ballots.mark_of(controller)
        visible = self._visible.get(mark.key) if mark is not None else None
        if mark is None or visible is None or not mark.view.is_alive or not controller.leads:
            return
        connection = mark.view.store.writer.connection
        try:
            if tables_lsn(connection) != controller.quorum.committed:
                return
            bounds = all_bounds(connection)
        except apsw.IOError:
            # The disk fails, and it was not the node that looked: there is nothing to compare.
            return
        shown = {stream_id: visible.bounds(stream_id) for stream_id in visible._next}
        if shown != bounds:
            self._complaints.add(
                "A2 what is committed is shown",
                f"{mark.view.name} shows {shown} of its streams at entry "
                f"{controller.quorum.committed}, which is committed; they have {bounds}",
            )

    def copy_opened(self, question: Question, answer: Any) -> None:
        """B6: a copy is given out once its last entry is committed, or in one ballot, and says
        so; a backup holds what was there when it was asked for."""
        view, request = question.view, question.message
        if not view.is_alive:
            return
        try:
            manifest = decode_manifest(answer.manifest, view.store.path)
        except HadronError as error:
            self._complaints.add("B6 a copy says what it is", f"{view.name}: {error.message}")
            return
        is_member = ballot_from(request.promised) != NO_BALLOT
        known = max(view.committed_lsn, self._ballots.reached(view.replica_set))
        if manifest.committed_lsn > known or (manifest.lsn > known and not is_member):
            self._complaints.add(
                "B6 a copy is committed",
                f"{view.name} gives out a copy as of {manifest.lsn}, committed "
                f"{manifest.committed_lsn}; {known} is",
            )
        needed = request.min_lsn
        if not request.hash and not request.min_lsn:
            needed = question.applied_lsn
            if view.controller is not None and view.controller.leads:
                # By its own lights; a replica gives what it has.
                self._check_leads(question)
        if manifest.lsn < needed and manifest.hash != request.hash:
            self._complaints.add(
                "B6 a backup is as of now",
                f"{view.name} gives out a copy as of {manifest.lsn}, asked for one of {needed}",
            )

    def told(self, told: Told, error: HadronError | None) -> None:
        """A2, C: a submitter is told what became of its command."""
        self._told_at[told.controller] = trio.current_time()
        mark = self._ballots.mark_of(told.controller)
        if mark is None or not mark.view.is_alive or not told.lsn:
            return
        reached, needed = mark.true_lsn, "a majority"
        if told.is_logged and error is None and told.acks == LEADER:
            reached, needed = mark.written_lsn, "its own disk"
        elif told.is_logged and told.acks == ALL:
            reached, needed = mark.on_all(), "not every member, only up to"
        if told.lsn > reached:
            what = "refuses" if error is not None else "has logged" if told.is_logged else "knows"
            self._complaints.add(
                "A2 told once it is committed",
                f"{mark.view.name} {what} {told.what} at entry {told.lsn}, and says so; {needed} "
                f"has {reached}",
            )


class Told:
    """Stands for whoever submitted a command, and hears what becomes of it.

    Attributes:
        lsn: where the log ended when the command had been judged; 0 before.
    """

    __slots__ = ("_answers", "_done", "acks", "controller", "is_logged", "lsn", "what")

    def __init__(
        self, answers: Answers, controller: Controller, what: str, acks: int, done: Done
    ) -> None:
        self._answers = answers
        self._done = done
        self.controller = controller
        self.what = what
        self.acks = acks
        self.lsn = 0
        self.is_logged = False

    def __call__(self, result: Any, error: HadronError | None) -> None:
        if error is None or error is not self.controller._stopped:
            self._answers.told(self, error)
        with for_others():
            self._done(result, error)
