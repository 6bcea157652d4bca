"""What retention drops is held against the limits that whoever asked for it could know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from hadron.model.schema import Retention, StreamSpec, spec_to_json
from hadron.sim.watch.awaited import Awaited
from hadron.sim.watch.cursors import Cursors
from hadron.sim.watch.entries import Acknowledged, Ends, Entries
from hadron.sim.watch.flows import Flows
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.features import MACHINE
from hadron.state.machine import Command
from hadron.state.schema import ApplySchema
from hadron.state.streams.retention import TrimStream

MUCH = Retention(max_bytes=1_000_000)
LITTLE = Retention(max_bytes=1_000)
SHORT = Retention(max_age_ms=11_000)


class Leader:
    """n2, with a stream of three batches of 1,000 bytes, and who watches it."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._complaints = Complaints()
        meanings: Any = SimpleNamespace(applied=lambda *_: None)
        self._entries = Entries(
            self._complaints,
            Ends(),
            Acknowledged(),
            meanings,
            Flows(self._complaints, {}),
            Cursors(self._complaints, Awaited(self._complaints)),
        )
        quorum = SimpleNamespace(committed=0)
        self.clock_ms = 10_000
        self._controller = SimpleNamespace(
            leads=True, committed_lsn=0, quorum=quorum, log_now_ms=lambda: self.clock_ms
        )
        store: Any = SimpleNamespace(writer=SimpleNamespace(connection=db))
        volume: Any = SimpleNamespace(is_dead=False)
        self._view = NodeView("n2", store, volume)
        db.execute("CREATE TABLE hadron_meta(key, value)")
        db.execute(MACHINE.tables)
        for offset in range(3):
            db.execute(
                "INSERT INTO hadron_stream_batch"
                "(stream_id, base_offset, count, lsn, append_ms, bytes, epoch, incarnation)"
                " VALUES(1, ?1, 1, ?1 + 1, 0, 1000, 1, 1)",
                (offset,),
            )

    def open(self, limits: Retention) -> None:
        """On tables that have these limits: its own, or a copy of another's."""
        self._declare(limits)
        self._view.controller = None
        self._entries.opened(self._view)
        self._view.controller = cast(Any, self._controller)

    def declares(self, lsn: int, limits: Retention) -> None:
        self._apply(lsn, ApplySchema(0, ()), lambda: self._declare(limits))

    def asks(self, committed_lsn: int) -> TrimStream:
        """For the oldest batch to be dropped, when so much is committed."""
        self._controller.committed_lsn = committed_lsn
        command = TrimStream(1, 1)
        self._entries.submitted(cast(Any, self._controller), command)
        return command

    def trims(self, lsn: int, command: TrimStream) -> list[str]:
        """What there is to complain of."""

        def drop() -> None:
            self._db.execute("DELETE FROM hadron_stream_batch WHERE base_offset < 1")

        self._apply(lsn, command, drop)
        return [each.partition(":")[0] for each in self._complaints.found]

    def _declare(self, limits: Retention) -> None:
        spec = spec_to_json(StreamSpec(partitions=("local/p0",), retention=limits)).decode()
        self._db.execute(
            "REPLACE INTO hadron_schema_object VALUES(1, 'Stream', 'default', 's', ?, 1)", (spec,)
        )

    def _apply(self, lsn: int, command: Command, change: Callable[[], None]) -> None:
        context: Any = SimpleNamespace(db=self._db, lsn=lsn, now_ms=10_000)
        self._entries.applied(lambda _context, _command: change(), context, command)


@pytest.fixture
def leader() -> Iterator[Leader]:
    with closing(apsw.Connection(":memory:")) as db:
        yield Leader(db)


def test_limits_of_before_count_until_the_new_ones_are_committed(leader: Leader) -> None:
    leader.open(LITTLE)
    leader.declares(10, MUCH)
    assert leader.trims(11, leader.asks(9)) == []


def test_limits_that_are_committed_are_known(leader: Leader) -> None:
    leader.open(LITTLE)
    leader.declares(10, MUCH)
    assert leader.trims(11, leader.asks(10)) == ["D2 retention drops what is due"]


def test_limits_may_have_been_changed_more_than_once_meanwhile(leader: Leader) -> None:
    leader.open(LITTLE)
    command = leader.asks(9)
    leader.declares(10, MUCH)
    leader.declares(11, Retention())
    assert leader.trims(12, command) == []


def test_limits_that_came_with_a_copy_are_those_of_before(leader: Leader) -> None:
    leader.open(MUCH)
    leader.open(LITTLE)
    command = leader.asks(9)
    leader.declares(10, MUCH)
    assert leader.trims(11, command) == []


def test_limits_that_a_copy_has_replaced_are_known_no_more(leader: Leader) -> None:
    leader.open(LITTLE)
    leader.open(MUCH)
    command = leader.asks(9)
    leader.declares(10, Retention())
    assert leader.trims(11, command) == ["D2 retention drops what is due"]


def test_limits_that_were_rolled_back_were_never_there(leader: Leader) -> None:
    leader.open(MUCH)
    leader.declares(10, LITTLE)
    leader.declares(10, MUCH)
    assert leader.trims(11, leader.asks(9)) == ["D2 retention drops what is due"]


@pytest.mark.parametrize(
    ("asked_ms", "told"), [(11_000, ["D2 retention drops what is due"]), (11_001, [])]
)
def test_what_was_due_when_it_was_asked_for_may_go(
    leader: Leader, asked_ms: int, told: list[str]
) -> None:
    """Its leader's clock has jumped back since, and the entry's stamp is of before."""
    leader.open(SHORT)
    leader.clock_ms = asked_ms
    assert leader.trims(11, leader.asks(9)) == told
