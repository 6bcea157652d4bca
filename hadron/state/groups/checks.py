"""What must be true of groups' tables, whatever was logged: for those who verify a file."""

from __future__ import annotations

from typing import Any, Final

import apsw

from hadron.state import dropping
from hadron.state.groups import changes as group_changes
from hadron.state.groups.progress import GROUP, GROUP_ACK
from hadron.state.machine import Feature
from hadron.state.streams.tables import STREAM_PARTITION
from hadron.storage.database import READ_ERRORS, in_words
from hadron.storage.report import SLICE_ROWS, Report


class GroupsCheck:
    """Floors lie within their stream; ranges above them are apart from each other."""

    name = "groups"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._group = 0
        self._range: tuple[int, int] | None = None
        self._last = -2

    def step(self, db: apsw.Connection) -> bool:
        try:
            return self._floors(db) if self._range is None else self._ranges(db, self._range)
        except READ_ERRORS as error:
            self._report.add(
                f"the groups' tables cannot be read: {in_words(error)}",
                table=GROUP,
                is_unreadable=True,
            )
            return True

    def _floors(self, db: apsw.Connection) -> bool:
        rows: list[Any] = db.execute(
            f"SELECT g.group_id, g.name, g.floor, g.stream_id, p.next_offset FROM {GROUP} g"
            f" LEFT JOIN {STREAM_PARTITION} p USING (stream_id)"
            " WHERE g.group_id > ? ORDER BY g.group_id LIMIT ?",
            (self._group, SLICE_ROWS),
        ).fetchall()
        gone = dropping.ids(db)
        for group_id, name, floor, stream_id, following in rows:
            self._group = group_id
            if following is None and stream_id in gone:
                continue
            if following is None:
                self._report.add(f"group {name!r} is of no stream here, {stream_id}", table=GROUP)
            elif not 0 <= floor <= following:
                self._report.add(
                    f"group {name!r} has its floor at {floor}, the stream ends at {following}",
                    table=GROUP,
                    stream_id=stream_id,
                    offset=floor,
                )
        if len(rows) < SLICE_ROWS:
            self._range = (0, -1)
        return False

    def _ranges(self, db: apsw.Connection, after: tuple[int, int]) -> bool:
        rows: list[Any] = db.execute(
            f"SELECT a.group_id, a.first, a.last, g.floor, p.next_offset, g.stream_id"
            f" FROM {GROUP_ACK} a"
            f" LEFT JOIN {GROUP} g USING (group_id) LEFT JOIN {STREAM_PARTITION} p"
            f" USING (stream_id)"
            " WHERE (a.group_id, a.first) > (?, ?) ORDER BY 1, 2 LIMIT ?",
            (*after, SLICE_ROWS),
        ).fetchall()
        gone, garbage = dropping.ids(db), group_changes.garbage(db)
        for group_id, first, last, floor, following, stream_id in rows:
            above = self._last if self._range and self._range[0] == group_id else -2
            self._range, self._last = (group_id, first), last
            if (following is None and stream_id in gone) or group_id in garbage:
                continue
            if floor is None or following is None:
                self._report.add(
                    f"acknowledged offsets {first} to {last} are of no group, {group_id}",
                    table=GROUP_ACK,
                    offset=first,
                )
            elif not (floor < first <= last < following and first > above + 1):
                self._report.add(
                    f"group {group_id} has {first} to {last} acknowledged, its floor is {floor} "
                    f"and the stream ends at {following}",
                    table=GROUP_ACK,
                    stream_id=stream_id,
                    offset=first,
                )
        return len(rows) < SLICE_ROWS


FEATURE: Final = Feature(name="group checks", checks=(GroupsCheck,))
