"""Whose disk a leader counts remembered when it promised the ballot, or was granted that since."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hadron.model.ids import Ballot
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.views import Complaints, Question
from hadron.wire.messages import ballot_to, replication_pb2

BALLOT = Ballot(1, 10)
COUNTED = "B3 who counts remembers"


@dataclass
class Disk:
    """A node's, as far as it matters to a ballot."""

    name: str
    identity: Any = field(
        default_factory=lambda: SimpleNamespace(is_member=True, disk=b"disk", promised=BALLOT)
    )
    replica_set: str = "local/p0"
    is_alive: bool = True
    is_ahead: bool = True
    wrote: bool = False
    follower: Any = None
    told_lsn: int = 0

    def unsynced(self, *_names: str) -> list[str]:
        return []

    def select(self, *_given: Any) -> None:
        return None


@dataclass(eq=False)
class Leadership:
    ballot: Ballot
    quorum: Any
    feeding: Any
    head: Any


class Three:
    """n1 leads, n3 has lost its memory."""

    def __init__(self) -> None:
        self._disks = {name: Disk(name) for name in ("n1", "n2", "n3")}
        self._complaints = Complaints()
        self._ballots = Ballots(self._complaints, cast(Any, self._disks))
        self._controller = Leadership(
            ballot=BALLOT,
            quorum=SimpleNamespace(members=tuple(self._disks), committed=0),
            feeding=SimpleNamespace(started_lsn=5),
            head=SimpleNamespace(lsn=4),
        )
        self.lose("n3")
        self.promise("n1")
        self.promise("n2")
        self._ballots.leads(cast(Any, self._disks["n1"]), cast(Any, self._controller))
        self.promise("n3")

    def lose(self, name: str) -> None:
        self._disks[name].identity.is_member = False

    def promise(self, name: str) -> None:
        self._ballots.promised(cast(Any, self._disks[name]), BALLOT)

    def answer(self, name: str, *, granted: bool) -> None:
        """It has stored what it was sent; with a grant, it has written that down before."""
        disk = self._disks[name]
        disk.identity.is_member |= granted
        request = replication_pb2.AppendRequest(ballot=ballot_to(BALLOT), grant_membership=granted)
        answer = replication_pb2.AppendResponse(
            outcome=replication_pb2.AppendResponse.Outcome.PERSISTED
        )
        question = Question(cast(Any, disk), "Replication", "Append", request, 1, 0, BALLOT, None)
        self._ballots.append_answered(question, answer)

    def count(self, name: str) -> set[str]:
        """What there is to complain of, once the leader counts it."""
        self._ballots.admits(cast(Any, self._controller), name)
        return {each.partition(":")[0] for each in self._complaints.found}


def test_who_remembers_is_counted() -> None:
    assert Three().count("n2") == set()


def test_who_has_no_memory_is_not() -> None:
    three = Three()
    three.answer("n3", granted=False)
    assert three.count("n3") == {COUNTED}


def test_who_loses_its_memory_while_it_says_that_it_was_granted_one_is_counted() -> None:
    """Its leader cannot know yet, and what it has acknowledged was on its disk."""
    three = Three()
    three.answer("n3", granted=True)
    three.lose("n3")
    assert three.count("n3") == set()


def test_a_grant_ends_with_the_next_promise() -> None:
    three = Three()
    three.answer("n3", granted=True)
    three.lose("n3")
    three.promise("n3")
    assert three.count("n3") == {COUNTED}
