"""Up to where a member knows its log to be committed, from whomever it knows that."""

from __future__ import annotations

import apsw

from hadron.storage.log import get_meta


class Watermark:
    """One per opening of a data directory. Never goes back.

    A replica is told by its leader (`replication.follower`); a leader says it by what disks have
    told (`replication.feeding`), and is none before a majority has its ballot's first entry: what
    was known until then stays known.
    """

    def __init__(self, lsn: int) -> None:
        self._lsn = lsn

    @classmethod
    def noted_in(cls, connection: apsw.Connection) -> Watermark:
        """What the file says of it."""
        return cls(get_meta(connection, "committed_lsn"))

    @property
    def lsn(self) -> int:
        return self._lsn

    def rise(self, lsn: int) -> None:
        """Everything up to `lsn` is committed."""
        assert lsn >= self._lsn, (lsn, self._lsn)
        self._lsn = lsn
