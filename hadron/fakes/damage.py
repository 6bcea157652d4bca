"""Damage that no page's checksum tells of: a bit flipped in memory, before its page was written.

The hash chain of the log, and the checksum that every batch carries, must find it.
"""

from __future__ import annotations

import contextlib
import random
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from hadron.storage.checksums import with_checksums

_COLUMNS: Final = (
    ("hadron_body", "bytes"),
    ("hadron_body", "bytes"),
    ("hadron_body", "bytes"),
    ("hadron_log", "command"),
    ("hadron_log", "body_hash"),
    ("hadron_log", "chain"),
)


def change_rows(
    path: Path, count: int, rng: random.Random, *, trimmed_only: bool = False
) -> list[str]:
    """Flip a bit in each of `count` entries of a closed `hadron.db`; returns which ones: only of
    those whose log rows are trimmed, for `trimmed_only`.

    Bodies are favoured, as they are most of a file. The last entry is left alone: what it was
    cannot be told from the chain, just as damage at a log's end looks torn (PROTOCOL B4).
    """
    changed: list[str] = []
    with (
        # Pages that were damaged before cannot be read: they stay as they are.
        contextlib.suppress(apsw.IOError, apsw.CorruptError),
        closing(apsw.Connection(str(path), vfs=with_checksums("unix"))) as db,
    ):
        for _ in range(count):
            table, column = _COLUMNS[0] if trimmed_only else rng.choice(_COLUMNS)
            lsns: list[Any] = db.execute(
                f"SELECT lsn FROM {table} WHERE length({column}) > 0"
                " AND lsn < (SELECT max(lsn) FROM hadron_log) ORDER BY lsn"
            ).fetchall()
            first: Any = db.execute("SELECT min(lsn) FROM hadron_log").get
            trimmed = [row for row in lsns if row[0] < first]
            if trimmed_only or (trimmed and rng.random() < 0.5):
                # Bodies whose hash went with their rows.
                lsns = trimmed
            if not lsns:
                continue
            (lsn,) = rng.choice(lsns)
            content = bytearray(
                db.execute(f"SELECT {column} FROM {table} WHERE lsn = ?", (lsn,)).get
            )
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            db.execute(f"UPDATE {table} SET {column} = ? WHERE lsn = ?", (bytes(content), lsn))
            changed.append(f"{table}.{column} of entry {lsn}")
    return changed
