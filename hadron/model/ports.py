"""The ports: everything nondeterministic that a node touches comes through one of these.

The process world wires them to the real thing; the simulator wires them to seeded fakes.
Each port has one contract test that both implementations pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

FileId = tuple[int, int]
"""Device and inode."""

SqlValue = None | int | float | str | bytes | memoryview | bytearray


class Clock(Protocol):
    """Wall time for stamps, monotonic time for waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...


class Random(Protocol):
    """Random bytes for ids, and jitter for backoff."""

    def token_bytes(self, count: int) -> bytes: ...

    def uniform(self, low: float, high: float) -> float: ...


class Transport(Protocol):
    """One ordered, reliable, two-way byte stream.

    Sending is split in two so that a reply can leave from wherever the program is, without
    waking a task first: `send_some` never waits, `wait_writable` does.
    """

    @property
    def peer(self) -> str:
        """The other side's address, for messages to people."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 means the peer closed. Raises `OSError` on a broken stream."""
        ...

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send what fits now and return how many bytes that was; 0 when nothing fits."""
        ...

    async def wait_writable(self) -> None: ...

    def close(self) -> None:
        """Close at once; a waiting `receive_into` or `wait_writable` raises `OSError`."""
        ...


class Listener(Protocol):
    """Accepts transports at one address."""

    @property
    def address(self) -> str:
        """host:port as bound (with the real port when 0 was asked for)."""
        ...

    async def accept(self) -> Transport: ...

    def close(self) -> None: ...


class Network(Protocol):
    """Dials and listens; addresses are `host:port`."""

    async def dial(self, address: str) -> Transport:
        """Raises `OSError` when nobody answers."""
        ...

    async def listen(self, address: str) -> Listener:
        """Raises `OSError` when the address cannot be bound."""
        ...


class Disk(Protocol):
    """What a node's data directory is on, and whether work on it may leave the event loop."""

    @property
    def vfs(self) -> str:
        """Name of the SQLite VFS that opens the node's databases; it stays registered as long as
        the process lives. Checksums are added over it (`storage.checksums`)."""
        ...

    @property
    def has_threads(self) -> bool:
        """Whether commits may run on a thread of their own. Without threads all of it happens on
        the event loop, one piece after the other, in an order that a seed decides."""
        ...

    async def do(self, work: Callable[[], T]) -> T:
        """Do blocking work on files, on a thread if there are any. Never cancelled half way."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Room left on the file system that holds `path`. Raises `OSError`."""
        ...

    def file_id(self, path: Path) -> FileId | None:
        """What tells the file or directory that has a name from any other that gets it; None where
        nothing has it. Quick enough for the event loop. Raises `OSError` when it cannot be told."""
        ...

    def boot_id(self) -> str:
        """What the machine calls its present run: another after every start of it, so that what
        was written and not flushed before may be lost. "" when it cannot be known."""
        ...

    def write_file(self, path: Path, data: bytes) -> None:
        """Replace a small file; after a crash it has its old content or the new one, whole.

        Raises `OSError`.
        """
        ...

    # For snapshots and backups: files that are no databases while they are being moved. What SQLite
    # has written through `vfs` and synced can be read here; what was written here and synced can be
    # opened there. All of them block, belong into `do`, and raise `OSError`.

    def read_at(self, path: Path, offset: int, size: int) -> bytes:
        """`size` bytes of a file from `offset` on; fewer where it ends."""
        ...

    def write_at(self, path: Path, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` into a file, made when missing. Durable only after `sync`."""
        ...

    def sync(self, path: Path) -> None:
        """Make a file's bytes durable, or a directory's entries: what was made in it, renamed into
        it or removed from it."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory where there is none, and those above it. Durable on return."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, a symbolic link, or a directory with all that is in it. Nothing happens
        where nothing is. Not durable before `sync` of its directory: what is removed must not
        matter any more."""
        ...

    def switch(self, link: Path, target: str) -> None:
        """Make `link` a symbolic link to `target`, a path relative to the link's directory, in the
        place of whatever file or link was there. Durable on return; a crash at any moment leaves
        either what was there or the new link."""
        ...


class Rows(Protocol):
    """What a statement yields."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    def fetchone(self) -> tuple[Any, ...] | None: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Database(Protocol):
    """A SQLite connection, as `state` sees it: inside a transaction that somebody else owns."""

    @property
    def in_transaction(self) -> bool:
        """SQLite may end one by itself when the disk fails (see its `sqlite3_get_autocommit`)."""
        ...

    def execute(self, sql: str, bindings: Sequence[SqlValue] = (), /) -> Rows: ...

    def executemany(self, sql: str, bindings: Sequence[Sequence[SqlValue]], /) -> Rows: ...

    def changes(self) -> int: ...
