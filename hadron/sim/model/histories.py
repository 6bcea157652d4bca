"""What nodes have applied, entry by entry, and what the model says of it.

Logs of one replica set part where a tail was dropped, so they are a tree; an entry is known by its
ballot, number and time, as no two of one ballot have a number (A3). In the run it is only written
down who applied what, with which result, and what stood in which tables. At its end the model goes
along every branch, from the beginning, and is copied where two part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import apsw
import msgspec

from hadron.model.errors import CorruptionError, HadronError, VersionError
from hadron.model.ids import Ballot
from hadron.model.tables import PREFIX
from hadron.sim.model import asked
from hadron.sim.model.asked import Answered
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.groups import Window
from hadron.sim.model.machine import AREA_OF, CHANGES_MUCH, TABLES, Model
from hadron.state import schema
from hadron.state.features import MACHINE
from hadron.state.machine import Command, Context, NoChange

LOOK_EVERY: Final = 200
"""Entries of a leader between two looks at all its tables."""

Complain = Callable[[str, str], None]
"""Told (rule, what is wrong)."""

_HEAD: Final = (
    "SELECT epoch, incarnation, now_ms, command FROM hadron_log WHERE lsn = ?1"
    " UNION ALL SELECT epoch, incarnation, now_ms, NULL FROM hadron_anchor WHERE lsn = ?1"
)


@dataclass(slots=True, eq=False)
class Applied:
    """An entry that some node has applied, after another one.

    Attributes:
        entry: None of the beginning of a log.
        results: (node, what the command returned) of those that were heard.
        judged: (node, entry, outcome) of commands that came next and were not logged.
        tables: (node, rows) as they were seen after it.
        answers: (node, what it answers) after it.
    """

    parent: Applied | None
    entry: Entry | None
    lsn: int
    children: list[Applied] = field(default_factory=list)
    results: list[tuple[str, Any]] = field(default_factory=list)
    judged: list[tuple[str, Entry, NoChange | HadronError | Exception]] = field(
        default_factory=list
    )
    tables: list[tuple[str, Rows]] = field(default_factory=list)
    answers: list[tuple[str, list[Answered]]] = field(default_factory=list)


_Key = tuple[str, int, int, int, int]


class Histories:
    """Every log of a run.

    Attributes:
        judged: entries, refusals and looks that were held against the model, by area.
        unjudged: what could not be, and how often.
    """

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self._roots: dict[str, Applied] = {}
        self._known: dict[_Key, Applied] = {}
        self._at: dict[int, tuple[str, str, Applied | None]] = {}
        self._seen: dict[str, int] = {}
        self._looked: dict[int, tuple[Applied, int]] = {}
        self.judged: Counter[str] = Counter()
        self.unjudged: Counter[str] = Counter()

    # --- in the run ------------------------------------------------------------------------------

    def opened(
        self, node: str, replica_set: str, db: apsw.Connection, *, is_sound: bool = True
    ) -> None:
        """A node has opened its file; where that is not sound, nothing is judged."""
        try:
            at = self._find(replica_set, db) if is_sound else None
        except apsw.Error:
            at = None
        self._at[id(db)] = node, replica_set, at
        self._looked.pop(id(db), None)

    def applied(
        self,
        apply: Callable[[Context, Command], Any],
        context: Context,
        command: Command,
        is_heard: Callable[[apsw.Connection], bool],
    ) -> Any:
        db: Any = context.db
        if id(db) not in self._at or not is_heard(db):
            return apply(context, command)
        try:
            result = apply(context, command)
        except (CorruptionError, VersionError, MemoryError):
            raise
        except (NoChange, HadronError, Exception) as outcome:
            is_refusal = isinstance(
                outcome, apsw.ConstraintError | apsw.MismatchError | apsw.SQLError
            )
            if is_refusal or not isinstance(outcome, apsw.Error):
                self._note(db, context, command, refusal=outcome)
            raise
        self._note(db, context, command, result=result)
        return result

    def _note(
        self,
        db: apsw.Connection,
        context: Context,
        command: Command,
        *,
        result: Any = None,
        refusal: Exception | None = None,
    ) -> None:
        """Nothing is looked at in the middle of a commit: what a disk refuses to read would roll
        it back."""
        node, replica_set, at = self._at[id(db)]
        while at is not None and at.lsn >= context.lsn:
            # It was rolled back.
            at = at.parent
        if at is None or at.lsn != context.lsn - 1:
            self.unjudged["of a log whose beginning nobody heard"] += 1
            return
        tombstones = schema.MAX_TOMBSTONES if type(command) in CHANGES_MUCH else 0
        entry = Entry(command, context.lsn, context.now_ms, context.ballot, tombstones)
        if refusal is not None:
            at.judged.append((node, entry, refusal))
            return
        applied = self._follow(replica_set, at, entry)
        applied.results.append((node, result))
        self._at[id(db)] = node, replica_set, applied

    def _follow(self, replica_set: str, at: Applied, entry: Entry) -> Applied:
        key = (replica_set, *entry.ballot, entry.lsn, entry.now_ms)
        known = self._known.get(key)
        if (
            known is None
            or known.parent is not at
            or known.entry is None
            or known.entry.command != entry.command
        ):
            known = self._known[key] = Applied(at, entry, entry.lsn)
            at.children.append(known)
        return known

    def written(self, db: apsw.Connection) -> None:
        """A leader has committed some entries."""
        node, _, at = self._at.get(id(db), ("", "", None))
        if at is None or db.in_transaction or at.lsn // LOOK_EVERY == self._seen.get(node, 0):
            return
        self._seen[node] = at.lsn // LOOK_EVERY
        try:
            self.look(db)
        except apsw.Error:
            self.unjudged["tables that could not be read"] += 1

    def look(self, db: apsw.Connection) -> None:
        """At all tables of a node; not again when nothing was written since, and taken back."""
        node, _, at = self._at[id(db)]
        if at is None:
            return
        looked = at, db.total_changes()
        if self._looked.get(id(db)) != looked:
            self._looked[id(db)] = looked
            at.tables.append((node, read(db)))

    def answers(self, db: apsw.Connection, answers: list[Answered]) -> None:
        """What the product answers from a node's tables."""
        node, _, at = self._at[id(db)]
        if at is not None:
            at.answers.append((node, answers))

    def read_file(self, node: str, replica_set: str, db: apsw.Connection) -> None:
        """A node's file is read at the end of the run."""
        at = self._find(replica_set, db)
        if at is None:
            self.unjudged["files of a log whose beginning nobody heard"] += 1
            return
        at.tables.append((node, read(db)))
        if not at.answers:
            at.answers.append((node, asked.ask(db)))

    def _find(self, replica_set: str, db: apsw.Connection) -> Applied | None:
        """Where the tables of a file stand; None when that is not known, or they are not what the
        log made of them."""
        rows: Any = db.execute("SELECT key, value FROM hadron_meta")
        meta: dict[str, Any] = dict(rows)
        lsn = meta.get("applied_lsn", 0)
        if meta.get("diverged"):
            return None
        unheard: list[Entry] = []
        while lsn:
            row: Any = db.execute(_HEAD, (lsn,)).fetchone()
            if row is None:
                return None
            epoch, incarnation, now_ms, data = row
            known = self._known.get((replica_set, epoch, incarnation, lsn, now_ms))
            if known is not None:
                break
            if data is None:
                return None
            ballot = Ballot(epoch, incarnation)
            try:
                command = MACHINE.decode(data)
            except CorruptionError:
                return None
            unheard.append(Entry(command, lsn, now_ms, ballot, schema.MAX_TOMBSTONES))
            lsn -= 1
        else:
            known = self._roots.setdefault(replica_set, Applied(None, None, 0))
        for entry in reversed(unheard):
            known = self._follow(replica_set, known, entry)
        return known

    # --- at its end ------------------------------------------------------------------------------

    def judge(self) -> None:
        """Hold everything against the model."""
        ways = [(root, Model(name)) for name, root in self._roots.items()]
        while ways:
            at, model = ways.pop()
            while self._agrees(at, model):
                if not at.children:
                    break
                ways += [(other, model.clone()) for other in at.children[1:]]
                at = at.children[0]

    def _agrees(self, at: Applied, model: Model) -> bool:
        """Whether an entry, and all that was seen after it, is as the model has it."""
        if at.entry is not None and not self._agrees_with_results(at.entry, at.results, model):
            return False
        for node, entry, outcome in at.judged:
            self._check_refusal(node, entry, outcome, model)
        agrees = True
        if at.tables:
            agrees = self._check_tables(at, model)
        for node, answers in at.answers:
            for each in answers:
                self.judged[each.area] += 1
                said = asked.expected(model, each)
                if (where := difference(each.answer, said)) is not None:
                    self._complain(
                        each.area,
                        f"{node}, whose tables are at entry {at.lsn}, answers {each.question} "
                        f"{each.given} with {each.answer}, the model {where}",
                    )
        return agrees

    def _agrees_with_results(
        self, entry: Entry, results: list[tuple[str, Any]], model: Model
    ) -> bool:
        command = entry.command
        if type(command) not in AREA_OF:
            self.unjudged[type(command).__name__] += 1
            return False
        area = AREA_OF[type(command)]
        self.judged[area] += 1
        who = results[0][0] if results else "a log"
        told = f"{who} applies entry {entry.lsn}, {_shown(command)}"
        try:
            expected = model.apply(entry)
        except Refused as refused:
            self._complain(area, f"{told}, which the model refuses with {refused}")
            return False
        except Known as known:
            self._complain(area, f"{told}, which the model knows as done: {known.result}")
            return False
        for node, result in results:
            if (where := difference(result, expected)) is not None:
                self._complain(
                    area,
                    f"{node} applies entry {entry.lsn}, {_shown(command)}, and returns "
                    f"{_shown(result)}, the model {where}",
                )
                return False
        return True

    def _check_refusal(self, node: str, entry: Entry, outcome: Exception, model: Model) -> None:
        command = entry.command
        if type(command) not in AREA_OF:
            self.unjudged[type(command).__name__] += 1
            return
        area = AREA_OF[type(command)]
        self.judged[area] += 1
        if isinstance(command, CHANGES_MUCH):
            model = model.clone()
        told = f"{node} at entry {entry.lsn} is asked for {_shown(command)}"
        try:
            # A copy is not needed where nothing changes, and where it does the run has failed.
            expected = model.apply(entry)
        except Refused as refused:
            if type(outcome) is not refused.kind:
                self._complain(area, f"{told}: {_said(outcome)}, the model {refused}")
        except Known as known:
            if not isinstance(outcome, NoChange):
                self._complain(area, f"{told}: {_said(outcome)}, the model knows it as done")
            elif (where := difference(outcome.result, known.result)) is not None:
                self._complain(area, f"{told}: {_said(outcome)}, the model {where}")
        else:
            self._complain(area, f"{told}: {_said(outcome)}, the model does it: {expected}")

    def _check_tables(self, at: Applied, model: Model) -> bool:
        expected = {table: sorted(rows, key=repr) for table, rows in model.rows().items()}
        compared: list[Rows] = []
        agrees = True
        for node, rows in at.tables:
            if any(rows == each for each in compared):
                continue
            compared.append(rows)
            for table, area in TABLES.items():
                self.judged[area] += 1
                found = rows.get(table, [])
                if found != expected[table]:
                    agrees = False
                    missing = [row for row in expected[table] if row not in found]
                    extra = [row for row in found if row not in expected[table]]
                    self._complain(
                        area,
                        f"{node} has at entry {at.lsn} in {table} {_first(extra)}, the model "
                        f"{_first(missing)}",
                    )
        return agrees


def read(db: apsw.Connection) -> Rows:
    """The tables of a file, in the model's words."""
    found: Rows = {}
    for table in TABLES:
        rows: list[Any] = db.execute(f'SELECT * FROM "{PREFIX}{table}"').fetchall()
        if table == "producer":
            rows = [(*row[:6], tuple(map(tuple, msgspec.msgpack.decode(row[6])))) for row in rows]
        elif table == "schema_staged":
            rows = [(part, MACHINE.decode(data)) for part, data in rows]
        elif table == "digest_cursor":
            # The key of the last row that was read is of what is stored.
            rows = [(only, name, lsn) for only, name, _, lsn in rows]
        found[table] = sorted(rows, key=repr)
    return found


def difference(found: Any, expected: Any) -> str | None:
    """The first one in words; None when there is none. Of a struct the fields that the model has
    are compared."""
    if isinstance(expected, Window):
        return None if expected.holds(found) else f"has {_shown(expected)}"
    if isinstance(expected, dict):
        if found is None:
            return f"has {_shown(expected)}"
        for name, value in expected.items():
            if (where := difference(getattr(found, name), value)) is not None:
                return f"{name}: {where}" if not where.startswith("has") else f"{where} of {name}"
        return None
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return f"has {_shown(expected)}"
        for ours, theirs in zip(found, expected, strict=True):
            if (where := difference(ours, theirs)) is not None:
                return where
        return None
    return None if found == expected else f"has {_shown(expected)}"


def _said(outcome: Exception) -> str:
    if isinstance(outcome, NoChange):
        return f"done before, {_shown(outcome.result)}"
    return f"{type(outcome).__name__} ({_shown(outcome)})"


def _first(rows: list[tuple[Any, ...]]) -> str:
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{_shown(rows[0])}{more}" if rows else "nothing else"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 300 else text[:297] + "…"
