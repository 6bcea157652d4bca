"""PROTOCOL B6: what is in a copy, wherever one is made, and in whatever takes a database's place.

A copy ends at its position: the tables stand there, and neither an entry nor a body is above it. A
body that is left above would meet the next entry of that number, another leader's. Whatever is
installed may go on beyond its copy by what the disk held, but only with bodies of its own entries.
A backup has what its node knew to be committed when the backup was begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from hadron.fakes.volume import volume_of
from hadron.model.ids import NO_BALLOT, Ballot, LogPosition
from hadron.node.places import look
from hadron.sim.watch.branches import Branches
from hadron.sim.watch.entries import tables_lsn
from hadron.sim.watch.views import Complaints, NodeView
from hadron.storage.generations import MANIFEST, OUTGOING, current_database
from hadron.storage.identity import NODE_DATABASE
from hadron.storage.log import NO_BODY, hash_body
from hadron.storage.snapshot import decode_manifest

_ANCHOR = "coalesce((SELECT lsn FROM hadron_anchor), 0)"
"""Where the log begins: all of it may have been trimmed."""

_ENDS = (
    f"SELECT coalesce((SELECT max(lsn) FROM hadron_log), {_ANCHOR}),"
    " ifnull((SELECT max(lsn) FROM hadron_body), 0)"
)

_HEAD = (
    "SELECT lsn, chain FROM (SELECT lsn, chain FROM hadron_log UNION ALL"
    " SELECT lsn, chain FROM hadron_anchor) ORDER BY lsn DESC LIMIT 1"
)

_LEFT = (
    "SELECT max(lsn) FROM hadron_log WHERE lsn > ?1 AND EXISTS (SELECT * FROM"
    " (SELECT lsn, chain FROM hadron_log UNION ALL SELECT lsn, chain FROM hadron_anchor)"
    " WHERE lsn = ?1 AND chain = ?2)"
)
"""Of a log that has the entry which another one ends with: where it ends, when that is beyond."""

_SCHEMA = "SELECT metadata_index FROM hadron_schema_index"

_BEYOND = (
    "SELECT b.lsn, b.bytes, l.body_hash FROM hadron_body b LEFT JOIN hadron_log l USING (lsn)"
    f" WHERE b.lsn > {_ANCHOR}"
)

_WITHOUT = (
    "SELECT l.lsn FROM hadron_log l LEFT JOIN hadron_body b USING (lsn)"
    " WHERE b.lsn IS NULL AND body_hash <> ?"
)


class Copies:
    """Every copy that is made, and every file that takes another one's place."""

    def __init__(
        self, complaints: Complaints, views: Mapping[str, NodeView], branches: Branches
    ) -> None:
        self._complaints = complaints
        self._views = views
        self._branches = branches

    def known(self) -> dict[NodeView, int]:
        """Up to where each node's tables hold what it knows to be committed, for whoever reads its
        file: what an open transaction has applied is not there yet."""
        found = {}
        for view in self._views.values():
            if view.is_alive and view.follower is not None:
                connection = view.store.writer.connection
                try:
                    is_open = connection.in_transaction
                except apsw.ConnectionClosedError:
                    # It is being stopped, and promises nothing to who asks now.
                    continue
                lsn = view.follower.stored_applied_lsn if is_open else tables_lsn(connection)
                found[view] = min(view.committed_lsn, lsn)
        return found

    def taken(self, path: Path, known: Mapping[NodeView, int]) -> None:
        """A backup of a running node is whole; `known` is as it was when somebody asked for it."""
        manifest = decode_manifest((path / MANIFEST).read_bytes(), path)
        lsn = known.get(self._views[manifest.node], 0)
        if manifest.lsn < lsn:
            self._complaints.add(
                "B6 a backup has what was there when it began",
                f"the backup of {manifest.node} is as of entry {manifest.lsn}, and {lsn} was "
                "committed when somebody asked for it",
            )

    def made(self, path: Path, end: LogPosition) -> None:
        """A copy is whole, and is to be given out, or installed."""
        with _reading(path) as copy:
            if copy is None:
                return
            ends: Any = copy.execute(_ENDS).fetchone()
            tables, (log, body) = tables_lsn(copy), ends
            if not tables == log == end.lsn >= body:
                self._complaints.add(
                    "B6 a copy ends at its position",
                    f"{path.parent.name}/{path.name} is as of entry {end.lsn}: its tables stand at "
                    f"{tables}, its log ends at {log}, and its last body is of {body}",
                )

    def given_out(self, view: NodeView) -> None:
        """A member is told that a copy is there: it need not ask anybody else, so all that was
        committed is in it as it was, those bodies too whose hash went with their log rows."""
        _, path = max(
            ((int(each.stem), each) for each in (view.store.directory / OUTGOING).glob("*.db")),
            default=(0, None),
        )
        if path is None:
            return
        with _reading(path) as copy:
            rows: Any = copy.execute("SELECT lsn, bytes FROM hadron_body") if copy else ()
            for lsn, body in rows:
                # Retention leaves a body empty.
                if body and self._branches.is_another_body(view.replica_set, lsn, body):
                    self._complaints.add(
                        "B6 a copy has the bodies that were committed",
                        f"{view.name} gives out {path.name}, in which the body of entry {lsn} is "
                        "another one",
                    )

    def of_cluster(self, path: Path, metadata: str) -> None:
        """A cluster's backup is whole: restored together, its sets fit each other."""
        indexes: dict[str, int] = {}
        for part in look(path).inside:
            with _reading(part.database) as copy:
                row: Any = copy and copy.execute(_SCHEMA).fetchone()
            indexes[part.replica_set] = row[0] if row else 0
        ahead = {name: at for name, at in indexes.items() if at > indexes.get(metadata, 0)}
        if ahead:
            self._complaints.add(
                "B6 a cluster's copies fit each other",
                f"the copy of {metadata} has the schema at index {indexes.get(metadata)}, and "
                f"others are ahead of it: {ahead}",
            )

    def replaces(self, directory: Path, new: Path) -> None:
        """A peer's copy takes the place of this node's own file: whatever that log holds beyond the
        copy, its disk may have acknowledged (PROTOCOL C)."""
        old = current_database(directory)
        self._check_committed(directory, old, new)
        with _reading(old) as before, _reading(new) as database:
            if before is None or database is None:
                return
            end: Any = database.execute(_HEAD).fetchone()
            left: Any = end and before.execute(_LEFT, end).fetchone()
        if left and left[0]:
            self._complaints.add(
                "B6 what is installed has all that the disk had",
                f"{new.parent.name}/{new.name} ends at entry {end[0]}, and the log whose place it "
                f"takes goes on from there up to {left[0]}",
            )

    def _check_committed(self, directory: Path, old: Path, new: Path) -> None:
        """What both logs have is the same where a majority counts on it, and what one of them lacks
        is below where it begins, or not committed."""
        view = next((one for one in self._views.values() if one.store.directory == directory), None)
        with _reading(old) as before, _reading(new) as database:
            if view is None or before is None or database is None:
                return
            begins = database.execute(f"SELECT {_ANCHOR}").get
            rows: Any = database.execute("SELECT lsn, chain FROM hadron_log")
            there = dict(rows)
            rows = before.execute("SELECT lsn, chain FROM hadron_log WHERE lsn > ?", (begins,))
            for lsn, chain in rows:
                is_committed = self._branches.committed.get((view.replica_set, lsn)) == chain
                if is_committed and there.get(lsn) != chain:
                    self._complaints.add(
                        "B6 what is installed has what was committed",
                        f"{new.parent.name}/{new.name} of {view.name} has "
                        f"{'another' if lsn in there else 'no'} entry {lsn}; the log whose place "
                        "it takes has the one that was committed",
                    )
                    return

    def installed(self, path: Path) -> None:
        """A database takes another one's place."""
        with _reading(path) as database:
            if database is None:
                return
            rows: Any = database.execute(_BEYOND)
            for lsn, body, body_hash in rows:
                if body and (body_hash is None or hash_body(body) != body_hash):
                    self._complaints.add(
                        "B6 what is installed has bodies of its own entries",
                        f"{path.parent.name}/{path.name} has a body at {lsn}, which is "
                        f"{'no entry of its log' if body_hash is None else 'of another entry'}",
                    )
            for (lsn,) in database.execute(_WITHOUT, (NO_BODY,)):
                self._complaints.add(
                    "B6 what is installed has bodies of its own entries",
                    f"{path.parent.name}/{path.name} has no body of its entry {lsn}",
                )


def promised_on(directory: Path) -> Ballot:
    """What a stopped node's disk says that it has promised; `NO_BALLOT` where it says nothing."""
    row: Any = None
    with suppress(apsw.SQLError), _reading(directory / NODE_DATABASE) as database:
        # One that has just been made may have no tables yet.
        if database is not None:
            row = database.execute("SELECT epoch, incarnation FROM identity").fetchone()
    return Ballot(*row) if row else NO_BALLOT


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection | None]:
    """The file as a person would open it, beside the simulated disk; None where there is no asking:
    its node has crashed, or its disk is damaged."""
    volume = volume_of(str(path))
    if not path.is_file() or (volume is not None and volume.is_dead):
        yield None
        return
    flags = apsw.SQLITE_OPEN_READONLY
    with closing(apsw.Connection(str(path), flags=flags, vfs="unix")) as database:
        try:
            yield database
        except apsw.SQLError:
            raise
        except apsw.Error:
            return
