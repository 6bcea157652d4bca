"""What the replication tests share: a membership, and a follower's log on a real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.node.world import SystemDisk
from hadron.replication.follower import AppendOutcome, FollowerLog
from hadron.replication.membership import Membership
from hadron.replication.watermark import Watermark
from hadron.state import machine
from hadron.state.features import MACHINE
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.storage.log import Entry, hash_body, next_chain
from hadron.storage.store import Store
from hadron.wire.system import SystemClock

UUID = bytes(range(16))
DIGEST = b"d" * 16
FIRST = Ballot(1, 1)


def membership(size: int, node: str = "n1", *, epoch: int = 1) -> Membership:
    """n1 … of which n1 leads, as `node` knows them."""
    names = [f"n{number}" for number in range(1, size + 1)]
    return Membership(
        cluster="test",
        replica_set="local/p0",
        epoch=epoch,
        members=tuple((name, "leader" if name == "n1" else "replica") for name in names),
        node=node,
        digest=DIGEST,
        apply_version=MACHINE.version,
        addresses={name: f"{name}:7000" for name in names},
    )


def namespace_command(index: int) -> bytes:
    """A command that any tables accept as the `index`-th of its kind, counted from 0."""
    change = ObjectChange("Namespace", "", f"space{index}", "{}")
    return machine.encode(ApplySchema(index, (change,)))


def make_entries(
    after: LogPosition, ballot: Ballot, commands: Iterable[bytes], *, body: bytes = b""
) -> list[Entry]:
    """Entries that follow `after`, with a true chain."""
    entries: list[Entry] = []
    for command in commands:
        lsn = after.lsn + 1
        chain = next_chain(after.chain, ballot, lsn, lsn, command, hash_body(body))
        entries.append(Entry(lsn, ballot, lsn, command, body, chain))
        after = entries[-1].position
    return entries


class Follower:
    """A follower's log, its writer not started: every job runs here and now."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log = FollowerLog(
            store.writer.connection,
            store.log,
            store.identity,
            MACHINE,
            "local/p0",
            Watermark.noted_in(store.writer.connection),
        )

    def promise(
        self, ballot: Ballot, *, uuid: bytes = UUID, found: bool = False, digest: bytes = DIGEST
    ) -> LogPosition:
        return self.log.promise(ballot, digest, uuid, found=found)

    def append(
        self,
        ballot: Ballot,
        entries: list[Entry],
        *,
        after: LogPosition = EMPTY_LOG,
        committed: int = 0,
        member_of: bytes = b"",
    ) -> AppendOutcome:
        connection = self.store.writer.connection
        if member_of:
            self.log.join(ballot, after, member_of)
        prepared = self.log.prepare_append(connection, ballot, after, entries, committed)
        if connection.in_transaction:
            connection.execute("COMMIT")
        outcome = prepared.result
        assert isinstance(outcome, AppendOutcome)
        return outcome

    def stored_lsns(self) -> list[int]:
        rows = self.store.writer.connection.execute("SELECT lsn FROM hadron_log ORDER BY lsn")
        return [lsn for (lsn,) in rows]


@contextmanager
def follower(directory: Path, node: str = "n2") -> Iterator[Follower]:
    """A follower on `directory`, which may hold an earlier one's files."""
    store = open_store(directory, node)
    try:
        yield Follower(store)
    finally:
        store.close()


def open_store(
    directory: Path, node: str, post: Callable[[Callable[[], None]], None] | None = None
) -> Store:
    failures: list[BaseException] = []
    return Store(
        directory,
        cluster="test",
        replica_set="local/p0",
        node=node,
        tables=MACHINE.tables,
        durability="fsync",
        checkpoint_bytes=4 << 20,
        reader_threads=1,
        disk=SystemDisk(),
        clock=SystemClock(),
        post=post or (lambda report: report()),
        on_fatal=failures.append,
    )
