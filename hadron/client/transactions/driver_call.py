"""The one standing call to a driver: all transactions that a client has at one leadership.

Parts of many transactions share messages: what is said while nothing is owed an answer leaves at
once, the rest at the next turn of the loop, or as soon as the leader grants more. The driver gives
a block of numbers, in which the transactions are numbered here; so one has its name before any
answer.

Safety rule: what was said on a call is of that call only. When it ends, what was not to be
committed is rolled back by the driver; of the rest only the driver knows, and is asked (`work`).
Nothing goes on with either on the next call (PROTOCOL E).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import anyio

from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.client.transactions.contents import SHARED_BYTES, Contents, Place
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import ClosedError, HadronError, PeerError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_ITEMS
from hadron.model.transactions import BLOCK_BITS, TransactionId
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import (
    ballot_from,
    error_from_message,
    items_of,
    method,
    transactions_pb2,
    weight_of,
)

_log = logging.getLogger(__name__)

_TRANSACT: Final = method("Transact")

_Request = transactions_pb2.TransactRequest
_OPENING: Final = _Request()
OPEN: Final = _Request.OPEN
COMMIT: Final = _Request.COMMIT
ROLLBACK: Final = _Request.ROLLBACK

_MESSAGE_BYTES: Final = 1 << 20
"""Of statements and their batches in one message: the driver makes entries of about as much."""

_TOGETHER: Final = 128
"""Transactions that share a statement: while these are logged, others are made."""

_LINGER_S: Final = 0.005
"""Statements leave so long after they were made, while their program works on: as a producer's
records do."""

_WATCH_S: Final = 1.0
"""A driver that owes an answer and says nothing is asked so often whether it is there at all."""


class Spoken(Protocol):
    """A transaction, as its call sees it; the functions are called from the reading task and must
    not block."""

    number: int
    said: int
    """Statements."""

    @property
    def others(self) -> list[str]:
        """The replica sets at which it does something, without its driver's."""
        ...

    def push(self) -> bool:
        """Say what was made since the last time; False when it cannot be begun yet."""
        ...

    def committed(self, results: Sequence[transactions_pb2.ReplicaSetResults]) -> None: ...

    def committed_together(self, result: transactions_pb2.StatementResult) -> None:
        """With others, whose records the result counts, too."""
        ...

    def rolled_back(self, error: HadronError) -> None:
        """Nothing of it was done, nor will be."""
        ...

    def unsure(self, error: HadronError) -> None:
        """The driver will say no more of it."""
        ...


class _Shared:
    """Transactions that were made at the same time, and only publish to one partition: their
    records are one batch, and one statement.

    Attributes:
        first: the first one's number; those of the others follow.
        records: how many each has.
    """

    __slots__ = ("_codec", "_place", "builder", "first", "records")

    def __init__(self, place: Place, codec: str, first: int) -> None:
        self._place = place
        self._codec = codec
        self.first = first
        self.records: list[int] = []
        self.builder = BatchBuilder()

    def takes(self, place: Place, codec: str, number: int) -> bool:
        """Whether another one may be among them: the driver gives numbers of a block only."""
        return (
            place is self._place
            and codec == self._codec
            and number == self.first + len(self.records)
            and number >> BLOCK_BITS == self.first >> BLOCK_BITS
            and len(self.records) < _TOGETHER
            and self.builder.size < SHARED_BYTES
        )

    def part(self) -> tuple[transactions_pb2.TransactRequest.Part, bytes]:
        data = self.builder.build(codec=self._codec)
        statement = transactions_pb2.Statement(
            replica_set=self._place.replica_set, length=len(data), publish=self._place.publish
        )
        # One alone is a transaction like any other.
        records = self.records if len(self.records) > 1 else ()
        part = _Request.Part(
            number=self.first, statements=(statement,), end=COMMIT, records=records
        )
        return part, data


class DriverCall:
    """The call to the leader of `home` (`reconnecting_call.Owner`)."""

    def __init__(self, session: Session, home: str) -> None:
        self.home = home
        self.trouble: HadronError | None = None
        """Why there is no call; None while there is one, or the first one is being opened."""
        self._session = session
        self._call: OpenedCall | None = None
        self._ballot: Ballot | None = None
        self._next = self._end = 0
        """The numbers that are left of the block."""
        self._next_block: tuple[int, int] | None = None
        self._has_asked = False
        self._spoken: dict[int, Spoken] = {}
        self._owed: dict[int, float] = {}
        """Transactions that are to be committed, by number, and since when."""
        self._parts: deque[tuple[transactions_pb2.TransactRequest.Part, Sequence[bytes]]] = deque()
        """What is to be said, each with its bodies."""
        self._bytes = 0
        self._shared: _Shared | None = None
        """What is said last, and not a part yet."""
        self._lingering: dict[Spoken, None] = {}
        self._news: anyio.Event | None = None
        self._flush_wanted: anyio.Event | None = None
        self._linger_wanted: anyio.Event | None = None
        self._failure: HadronError | None = None
        self._standing = ReconnectingCall(session, home, _TRANSACT, self)
        self._start()
        session.background.start(self._flush_soon)
        session.background.start(self._linger)
        session.background.start(self._watch)

    def _start(self) -> None:
        self._failure = None
        self._session.background.start(self._standing.run)

    # --- what transactions say ------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a transaction may be begun now."""
        return self._next < self._end and self._call is not None

    async def ready(self) -> None:
        """Until a transaction may be begun. Raises `PeerError` when that takes longer than the
        client's `request_timeout_s`."""
        if self._failure is not None:
            self._start()
        with anyio.move_on_after(self._session.request_timeout_s):
            while not self.is_ready:
                self._check_open()
                await self._wait_news()
            return
        raise PeerError(
            f"the driver of the transaction, the leader of {self.home}, cannot be asked for "
            f"{self._session.request_timeout_s:g} s: {self.trouble or 'it does not answer'}",
            "nothing was done: do it again when it is back, or let another replica set drive: "
            "`client.transaction(driver=...)`",
        )

    def _check_open(self) -> None:
        self._session.check_open()
        if self._failure is not None:
            error = self._failure
            raise type(error)(error.message, error.hint, retryable=error.retryable)

    @property
    def has_room(self) -> bool:
        """Whether what was said so far has left."""
        return self._bytes < _MESSAGE_BYTES

    async def room(self) -> None:
        """Until more may be said; at once when the call has ended."""
        while not self.has_room and self._call is not None:
            await self._wait_news()

    def begin(self, spoken: Spoken) -> TransactionId:
        """Number a transaction; it is said of at once. Only while `is_ready`."""
        assert self._ballot is not None
        number = self._next
        self._next += 1
        if self._next == self._end and self._next_block is not None:
            self._next, self._end = self._next_block
            self._next_block = None
        self._spoken[number] = spoken
        spoken.number = number
        return TransactionId.of(self.home, self._ballot, number)

    def say(
        self,
        spoken: Spoken,
        statements: Sequence[transactions_pb2.Statement],
        bodies: Sequence[bytes],
        end: transactions_pb2.TransactRequest.End,
    ) -> None:
        """Statements of a transaction that has not ended, and what is to become of it then."""
        if end != OPEN:
            self._lingering.pop(spoken, None)
        if len(statements) > 1:
            *parts, (statements, bodies) = _cut(statements, bodies)
            for some, of_some in parts:
                self._say(spoken, some, of_some, OPEN)
        self._say(spoken, statements, bodies, end)
        if end == COMMIT:
            self._owe(spoken)
        else:
            if end == ROLLBACK:
                self._spoken.pop(spoken.number, None)
            # Its deliveries may be given back at once: the leader is to hear of this before.
            self._leave(is_urgent=end == ROLLBACK)

    def commit_lone(self, spoken: Spoken, contents: Contents) -> None:
        """Commit a transaction that has a `lone_place` and was begun just now: by itself when
        nothing is owed an answer, else in one statement with others that are committed now."""
        self._lingering.pop(spoken, None)
        place = contents.lone_place()
        assert place is not None
        shared = self._shared
        if shared is None or not shared.takes(place, contents.codec, spoken.number):
            self._close_shared()
            shared = self._shared = _Shared(place, contents.codec, spoken.number)
        self._bytes += contents.size
        shared.records.append(contents.give_lone(shared.builder))
        self._owe(spoken)

    def _close_shared(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            part, data = shared.part()
            self._parts.append((part, (data,)))

    def _owe(self, spoken: Spoken) -> None:
        """It is to be committed."""
        is_first = not self._owed
        self._owed[spoken.number] = anyio.current_time()
        self._leave(is_urgent=is_first)

    def _leave(self, *, is_urgent: bool) -> None:
        if is_urgent or self._bytes >= _MESSAGE_BYTES:
            self._flush()
        elif self._flush_wanted is not None:
            self._flush_wanted.set()
            self._flush_wanted = None

    def _say(
        self,
        spoken: Spoken,
        statements: Sequence[transactions_pb2.Statement],
        bodies: Sequence[bytes],
        end: transactions_pb2.TransactRequest.End,
    ) -> None:
        self._close_shared()
        part = _Request.Part(
            number=spoken.number, first=spoken.said, statements=statements, end=end
        )
        self._parts.append((part, bodies))
        spoken.said += len(statements)
        self._bytes += sum(map(len, bodies))

    def linger(self, spoken: Spoken) -> None:
        """It has something to say, soon."""
        self._lingering[spoken] = None
        if self._linger_wanted is not None:
            self._linger_wanted.set()
            self._linger_wanted = None

    def forget(self, spoken: Spoken) -> None:
        """Nobody waits for it any more."""
        self._lingering.pop(spoken, None)
        if self._spoken.get(spoken.number) is spoken:
            del self._spoken[spoken.number]
            self._owed.pop(spoken.number, None)

    # --- sending --------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what was said, as far as the leader allows."""
        call = self._call
        while (self._parts or self._shared) and call is not None and call.writable:
            self._close_shared()
            parts, bodies = self._portion()
            message = _Request(parts=parts)
            if self._wants_block:
                self._has_asked = message.take_block = True
            call.send(message, bodies)
        self._notify()

    def _portion(self) -> tuple[list[transactions_pb2.TransactRequest.Part], list[bytes]]:
        """As many parts as one message takes, the first in any case: a part has room in one."""
        parts: list[transactions_pb2.TransactRequest.Part] = []
        bodies: list[bytes] = []
        size = items = 0
        while self._parts:
            part, of_part = self._parts[0]
            size += part.ByteSize() + sum(map(len, of_part))
            items += items_of(part)
            if parts and (size > _MESSAGE_BYTES or items > MAX_ITEMS):
                break
            self._parts.popleft()
            parts.append(part)
            bodies += of_part
        self._bytes = sum(len(body) for _, of_part in self._parts for body in of_part)
        return parts, bodies

    @property
    def _wants_block(self) -> bool:
        is_low = self._end - self._next < 1_000 and self._next_block is None
        return is_low and not self._has_asked

    async def _flush_soon(self) -> None:
        while True:
            self._flush_wanted = event = anyio.Event()
            await event.wait()
            self._flush()

    async def _linger(self) -> None:
        while True:
            if not self._lingering:
                self._linger_wanted = event = anyio.Event()
                await event.wait()
            await anyio.sleep(_LINGER_S)
            lingering, self._lingering = self._lingering, {}
            for spoken in lingering:
                if not spoken.push():
                    self._lingering[spoken] = None
            if self._lingering and not self.is_ready:
                await self._wait_news()

    async def _watch(self) -> None:
        """A driver that is cut off owes answers, and its connection is whole."""
        while True:
            await anyio.sleep(_WATCH_S)
            if not self._owed:
                continue
            now_s = anyio.current_time()
            if now_s - next(iter(self._owed.values())) >= _WATCH_S:
                self._standing.probe()
            limit_s = self._session.request_timeout_s
            for number, since_s in list(self._owed.items()):
                if now_s - since_s < limit_s:
                    break
                spoken = self._spoken[number]
                silent = f"{self.home} did not answer for {now_s - since_s:.0f} s"
                if spoken.others:
                    # The driver answers when all have.
                    silent += f", or {', '.join(spoken.others)} did not answer it"
                error = PeerError(silent)
                self.forget(spoken)
                spoken.unsure(error)

    async def _wait_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._session.wait(self._news)

    def _notify(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    # --- the call (`reconnecting_call.Owner`) ---------------------------------------------------

    def opening(self) -> transactions_pb2.TransactRequest:
        return _OPENING

    def opened(self, call: OpenedCall) -> None:
        self._call = call
        call.on_writable = self._flush

    def received(self, message: transactions_pb2.TransactEvent, _attachment: memoryview) -> None:
        if self._call is not None:
            self._call.consumed(message.ByteSize())
        for answer in message.answers:
            kind = answer.WhichOneof("kind")
            if kind == "committed":
                self._committed(answer.committed)
            elif kind == "rolled_back":
                spoken = self._answered(answer.rolled_back.number)
                if spoken is not None:
                    spoken.rolled_back(error_from_message(answer.rolled_back.error))
            elif kind == "block":
                self._block(answer.block)
            elif kind == "commit_unknown":
                spoken = self._answered(answer.commit_unknown.number)
                if spoken is not None:
                    spoken.unsure(error_from_message(answer.commit_unknown.error))
            elif kind == "unfit":
                # Of what was rolled back meanwhile that was told before.
                spoken = self._answered(answer.unfit.number)
                if spoken is not None:
                    spoken.unsure(error_from_message(answer.unfit.error))
        if self._parts or self._shared:
            self._flush()

    def _committed(self, said: transactions_pb2.TransactEvent.Committed) -> None:
        if not said.transactions:
            spoken = self._answered(said.number)
            if spoken is not None:
                spoken.committed(said.results)
            return
        result = said.results[0].results[0]
        for number in range(said.number, said.number + said.transactions):
            spoken = self._answered(number)
            if spoken is not None:
                spoken.committed_together(result)

    def _answered(self, number: int) -> Spoken | None:
        """Whose answer came, unless nobody waits for it any more."""
        self._owed.pop(number, None)
        spoken = self._spoken.pop(number, None)
        if spoken is not None and self._lingering:
            self._lingering.pop(spoken, None)
        return spoken

    def _block(self, block: transactions_pb2.TransactEvent.Block) -> None:
        self._has_asked = False
        self._ballot = ballot_from(block.ballot)
        first, end = block.first_number, block.first_number + block.size
        if self._next < self._end:
            self._next_block = first, end
        else:
            self._next, self._end = first, end
        self.trouble = None
        self._notify()

    def lost(self, error: HadronError | None) -> None:
        self._call = None
        self._next = self._end = 0
        self._next_block = None
        self._has_asked = False
        self._parts.clear()
        self._bytes = 0
        self._shared = None
        self._lingering.clear()
        self._owed.clear()
        self.trouble = error or PeerError(f"the leader of {self.home} has ended the call")
        spoken, self._spoken = self._spoken, {}
        for each in spoken.values():
            each.unsure(self.trouble)
        self._notify()

    def failed(self, error: HadronError) -> None:
        if not isinstance(error, ClosedError):
            _log.warning("transactions cannot be driven by %s: %s", self.home, error)
        self.lost(error)
        self._failure = error
        self._notify()


def _cut(
    statements: Sequence[transactions_pb2.Statement], bodies: Sequence[bytes]
) -> list[tuple[Sequence[transactions_pb2.Statement], Sequence[bytes]]]:
    """In parts that one message has room for."""
    parts: list[tuple[Sequence[transactions_pb2.Statement], Sequence[bytes]]] = []
    start = first_body = next_body = size = items = 0
    for index, statement in enumerate(statements):
        size += statement.ByteSize() + statement.length
        items += weight_of(statement)
        # The part counts as an item itself.
        if index > start and (size > _MESSAGE_BYTES or items >= MAX_ITEMS):
            parts.append((statements[start:index], bodies[first_body:next_body]))
            start, first_body = index, next_body
            size, items = statement.ByteSize() + statement.length, weight_of(statement)
        next_body += bool(statement.length)
    parts.append((statements[start:], bodies[first_body:]))
    return parts
