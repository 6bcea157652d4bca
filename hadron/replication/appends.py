"""A leader's appends that wait for this node's disk, to be written in one commit.

While a commit is under way on a slow disk, hundreds of appends come. One flush for each would keep
a replica behind for minutes whose disk could take all of them at once: whoever then loses another
member waits so long for its next acknowledgement. So what continues what waits joins it, up to the
size of a leader's own commits.

Joined is only what one leader sends on one connection under one ballot, each append from where the
one before has ended: they are verified, written and applied as one (`follower.prepare_append`), or
refused as one. Each call gets its own answer, which ends where its entries do.
*(A disk takes 30 ms to flush, the leader's and the other replica's take 0.3: eight seconds of small
records were 2,600 flushes, or a minute and a half, and nothing was acknowledged in it once the
other replica was gone.)*
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import apsw

from hadron.model.errors import HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.model.limits import GROUP_COMMIT_BYTES, GROUP_COMMIT_COMMANDS
from hadron.replication.follower import AppendOutcome, FollowerLog
from hadron.storage.log import Entry
from hadron.storage.writer import Prepared
from hadron.wire.calls import Call
from hadron.wire.messages import replication_pb2

AppendCall: TypeAlias = Call[replication_pb2.AppendRequest, replication_pb2.AppendResponse]


@dataclass(frozen=True, slots=True)
class Append:
    """One that has come.

    Attributes:
        grants: this disk counts in majorities from now on.
    """

    call: AppendCall
    ballot: Ballot
    previous: LogPosition
    entries: list[Entry]
    committed_lsn: int
    trim_lsn: int
    grants: bool

    @property
    def end(self) -> LogPosition:
        return self.entries[-1].position if self.entries else self.previous


class JoinedAppends:
    """Appends that are one for the disk, in the order in which they came."""

    def __init__(self, follower: FollowerLog, first: Append) -> None:
        self._follower = follower
        self._appends = [first]
        self._entries = list(first.entries)
        self._bytes = sum(entry.size for entry in first.entries)
        self.ballot = first.ballot
        self.origin = first.call.origin

    @property
    def trim_lsn(self) -> int:
        """What the last of them says: a leader lets go of more and more."""
        return self._appends[-1].trim_lsn

    @property
    def grants(self) -> bool:
        """Whether one of them does."""
        return any(each.grants for each in self._appends)

    def takes(self, new: Append) -> bool:
        """Whether `new` continues these, and there is room for it; it has joined them then."""
        size = sum(entry.size for entry in new.entries)
        if not (
            new.call.origin is self.origin
            and new.ballot == self.ballot
            and new.previous == self._appends[-1].end
            and self._bytes + size <= GROUP_COMMIT_BYTES
            and len(self._entries) + len(new.entries) <= GROUP_COMMIT_COMMANDS
        ):
            return False
        self._appends.append(new)
        self._entries += new.entries
        self._bytes += size
        return True

    def prepare(self, connection: apsw.Connection) -> Prepared:
        """For the writer; the result is an `AppendOutcome` for all of them."""
        return self._follower.prepare_append(
            connection,
            self.ballot,
            self._appends[0].previous,
            self._entries,
            max(each.committed_lsn for each in self._appends),
        )

    def fail(self, error: HadronError) -> None:
        """Answer every call with `error`."""
        for each in self._appends:
            each.call.fail(error)

    def outcomes(self, outcome: AppendOutcome) -> Iterator[tuple[AppendCall, AppendOutcome]]:
        """What to answer to each: what was verified equal is told up to where it was shown."""
        for each in self._appends:
            if outcome.reason:
                yield each.call, outcome
            else:
                yield each.call, AppendOutcome(each.end.lsn, outcome.applied_lsn, outcome.promised)
