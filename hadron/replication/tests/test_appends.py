"""Appends that wait for a replica's disk: which of them are written together, and what each is
answered."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
import trio

from hadron.fakes.network import SimNetwork
from hadron.model.errors import HadronError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.model.ports import Transport
from hadron.replication import appends
from hadron.replication.entries import pack
from hadron.replication.follower import AppendOutcome, FollowerLog
from hadron.replication.membership import identity_message
from hadron.replication.service import ReplicationService
from hadron.replication.starts import PeerStarts
from hadron.replication.tests.support import (
    DIGEST,
    FIRST,
    UUID,
    make_entries,
    membership,
    namespace_command,
    open_store,
)
from hadron.replication.watermark import Watermark
from hadron.state.features import MACHINE
from hadron.storage.database import open_reader
from hadron.storage.identity import NODE_DATABASE
from hadron.storage.log import Entry
from hadron.storage.store import Store
from hadron.storage.writer import Prepared
from hadron.wire.connection import Connection
from hadron.wire.messages import ballot_to, method, position_to, replication_pb2
from hadron.wire.system import SystemClock

_APPEND: Final = method("Append")
_Outcome: Final = replication_pb2.AppendResponse.Outcome
_PATIENCE_S: Final = 30.0
"""For an answer that would otherwise be waited for for ever."""

ENTRIES: Final = make_entries(EMPTY_LOG, FIRST, [namespace_command(index) for index in range(12)])


def after(lsn: int) -> LogPosition:
    return ENTRIES[lsn - 1].position if lsn else EMPTY_LOG


class Replica:
    """n2, whose disk can be held; n1 has dialed it twice, and shaken hands."""

    def __init__(self, store: Store, connections: Sequence[Connection]) -> None:
        self.store = store
        self.follower = FollowerLog(
            store.writer.connection,
            store.log,
            store.identity,
            MACHINE,
            "local/p0",
            Watermark.noted_in(store.writer.connection),
        )
        self.follower.promise(FIRST, DIGEST, UUID, found=False)
        self.connections = connections
        self.written: list[list[int]] = []
        """The lsns of each commit's entries, in order."""
        self.seen: list[AppendOutcome] = []
        self.trimmed: list[int] = []
        self.ended: list[str] = []
        """Whatever was answered, in order."""
        self._let_go = threading.Event()
        self._arrived = trio.Event()
        original = self.follower.prepare_append

        def prepare_append(
            connection: apsw.Connection,
            ballot: Ballot,
            previous: LogPosition,
            entries: list[Entry],
            *others: Any,
        ) -> Prepared:
            self.written.append([entry.lsn for entry in entries])
            return original(connection, ballot, previous, entries, *others)

        self.follower.prepare_append = prepare_append  # type: ignore[method-assign, assignment]

    def service(self) -> ReplicationService:
        return ReplicationService(
            membership(3, "n2"),
            self.store,
            self.follower,
            SystemClock(),
            PeerStarts(self.store, b"start", ()),
            on_promise=lambda *_: None,
            on_append=lambda _, outcome, __: self.seen.append(outcome),
            on_trim=self.trimmed.append,
            on_resync=_never,
            on_damage=_never,
            on_fatal=_never,
        )

    def hold(self) -> None:
        """The disk is busy until `release`."""
        self._let_go = threading.Event()
        held = self._let_go
        self.store.writer.submit(lambda _: held.wait(), lambda *_: None)

    def release(self) -> None:
        self._let_go.set()

    def append(
        self,
        first: int,
        last: int,
        *,
        committed: int = 0,
        on: int = 0,
        ballot: Ballot = FIRST,
        entries: Sequence[Entry] = (),
        grant: bool = False,
        trim: int = 0,
    ) -> None:
        """Send the entries `first` to `last` (the watermark alone where there are none)."""
        headers, bodies = pack(entries or ENTRIES[first - 1 : last])
        request = replication_pb2.AppendRequest(
            ballot=ballot_to(ballot),
            previous=position_to(after(first - 1)),
            entries=headers,
            committed_lsn=committed,
            trim_lsn=trim,
            grant_membership=grant,
            replica_set_uuid=UUID if grant else b"",
        )

        def answered(answer: Any, _attachment: memoryview) -> None:
            outcome = _Outcome.Name(answer.outcome)
            self.ended.append(f"{outcome} {answer.match_lsn} applied {answer.applied_lsn}")
            self._arrived.set()

        def ended(error: HadronError | None) -> None:
            if error is not None:
                self.ended.append(type(error).__name__)
                self._arrived.set()

        self.connections[on].call(_APPEND, request, bodies, on_message=answered, on_end=ended)

    async def came(self) -> None:
        """Everything that was sent has come: a question that needs no disk is answered."""
        for connection in self.connections:
            await _shake_hands(connection)

    async def wait_answered(self, count: int) -> list[str]:
        with trio.fail_after(_PATIENCE_S):
            while len(self.ended) < count:
                self._arrived = trio.Event()
                await self._arrived.wait()
        return self.ended


def _never(*given: Any) -> None:
    raise AssertionError(f"told {given}")


async def _shake_hands(connection: Connection) -> None:
    message = identity_message(
        membership(3, "n1"), uuid=UUID, boot=1, start=b"n1's", is_member=True, disk=b"disk"
    )
    await connection.request(method("Handshake"), message)


@asynccontextmanager
async def replica(directory: Path) -> AsyncIterator[Replica]:
    token = trio.lowlevel.current_trio_token()
    store = open_store(directory, "n2", lambda report: token.run_sync_soon(report, idempotent=True))
    network = SimNetwork()
    listener = await network.host("n2").listen("n2:0")
    dialed, accepted = [], []
    for _ in range(2):
        transport: Transport = await network.host("n1").dial(listener.address)
        dialed.append(Connection(transport, dialed=True))
        accepted.append(await listener.accept())
    one = Replica(store, dialed)
    handlers = {each.method.number: each.handle for each in one.service().methods()}
    store.writer.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.writer.run)
            for end in dialed:
                nursery.start_soon(end.run)
            for taken in accepted:
                nursery.start_soon(Connection(taken, dialed=False, handlers=handlers).run)
            await one.came()
            yield one
            nursery.cancel_scope.cancel()
    finally:
        one.release()
        listener.close()
        store.close()


async def test_what_waits_for_the_disk_is_one_commit(tmp_path: Path) -> None:
    """A disk that takes long for a flush takes as long for all that came meanwhile."""
    async with replica(tmp_path) as one:
        one.hold()
        for lsn in range(1, 11):
            one.append(lsn, lsn, committed=lsn - 1, trim=lsn // 2)
            one.append(lsn + 1, lsn, committed=lsn, trim=lsn // 2)
        await one.came()
        assert one.written == []
        one.release()
        answers = await one.wait_answered(20)
        assert one.written == [list(range(1, 11))]
        # Everybody is told how far it was shown, no further, in the order in which they asked.
        assert answers == [f"PERSISTED {lsn} applied 10" for lsn in range(1, 11) for _ in range(2)]
        assert [outcome.match_lsn for outcome in one.seen] == [10]
        assert one.follower.committed_lsn == one.follower.stored_applied_lsn == 10
        assert one.trimmed == [5]


async def test_a_grant_is_recorded_before_it_is_answered(tmp_path: Path) -> None:
    """On the writer's thread, whose turn it is between what came before and after."""
    async with replica(tmp_path) as one:
        one.hold()
        one.append(1, 1)
        one.append(2, 2, grant=True)
        one.append(3, 3)
        await one.came()
        one.release()
        await one.wait_answered(3)
        assert one.written == [[1], [2, 3]]
        assert one.store.identity.current.is_member


async def test_a_grant_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    """Somebody reads `node.db`; what was sent with the grant is kept."""
    async with replica(tmp_path) as one:
        with closing(open_reader(tmp_path / NODE_DATABASE)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM identity").fetchall()
            one.append(1, 1, grant=True)
            assert await one.wait_answered(1) == ["NotReadyError"]
            assert not one.store.identity.current.is_member
            one.append(2, 2)
            assert (await one.wait_answered(2))[1] == "PERSISTED 2 applied 0"
        one.append(3, 2, grant=True)
        assert (await one.wait_answered(3))[2] == "PERSISTED 2 applied 0"
        assert one.store.identity.current.is_member


async def test_what_does_not_continue_does_not_join(tmp_path: Path) -> None:
    """Another connection, another ballot, a gap: each is judged by itself."""
    async with replica(tmp_path) as one:
        one.hold()
        one.append(1, 2)
        one.append(3, 3, ballot=Ballot(1, 2))
        one.append(3, 4)
        await one.came()
        one.append(5, 5, on=1)
        await one.came()
        one.append(7, 8)
        one.append(10, 11)
        await one.came()
        one.release()
        answers = await one.wait_answered(6)
        assert one.written == [[1, 2], [3], [3, 4], [5], [7, 8], [10, 11]]
        assert sorted(answers) == [
            "FENCED 0 applied 0",
            # Behind a gap: nobody's disk is damaged by that.
            "MISMATCH 0 applied 0",
            "MISMATCH 0 applied 0",
            "PERSISTED 2 applied 0",
            "PERSISTED 4 applied 0",
            "PERSISTED 5 applied 0",
        ]


async def test_a_job_keeps_its_place_between_appends(tmp_path: Path) -> None:
    """A promise that came first is made first: what comes after it is under a ballot that is
    over."""
    async with replica(tmp_path) as one:
        one.hold()
        one.append(1, 1)
        await one.came()
        one.store.writer.submit(
            lambda _: one.follower.promise(Ballot(1, 2), DIGEST, UUID, found=False), lambda *_: None
        )
        one.append(2, 2)
        await one.came()
        one.release()
        assert await one.wait_answered(2) == ["PERSISTED 1 applied 0", "FENCED 0 applied 0"]
        assert one.written == [[1], [2]]


@pytest.mark.parametrize("limit", ["GROUP_COMMIT_COMMANDS", "GROUP_COMMIT_BYTES"])
async def test_a_commit_is_no_larger_than_a_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    each = 1 if limit == "GROUP_COMMIT_COMMANDS" else ENTRIES[0].size
    monkeypatch.setattr(appends, limit, 4 * each)
    async with replica(tmp_path) as one:
        one.hold()
        for lsn in range(1, 11):
            one.append(lsn, lsn)
        await one.came()
        one.release()
        await one.wait_answered(10)
        assert one.written == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


async def test_one_that_is_damaged_refuses_what_it_came_with_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async with replica(tmp_path) as one:
        one.hold()
        one.append(1, 1)
        one.append(2, 2, entries=[ENTRIES[1]._replace(command=b"damaged")])
        await one.came()
        one.release()
        assert await one.wait_answered(2) == ["BadEntriesError"] * 2
        assert one.follower.head == EMPTY_LOG
        # The leader begins again where both logs are the same.
        one.append(1, 3)
        assert (await one.wait_answered(3))[2:] == ["PERSISTED 3 applied 0"]
