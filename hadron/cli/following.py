"""Reading for `hadron sub` and `hadron read`: one task per partition, one printer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import click
import msgspec

from hadron.cli.patience import MAJORITY_TOLD_AFTER_S, connected, telling
from hadron.cli.positions import Position, check_offset, check_partitions, clock_ms
from hadron.cli.records import RecordPrinter
from hadron.cli.standard_streams import watch_reader
from hadron.model.errors import IncompleteError, NotFoundError, PeerError, RequestError
from hadron.model.schema import SchemaObject, StreamSpec

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from hadron.client import Client
    from hadron.client.consuming.subscription import Subscription
    from hadron.client.terms.results import PartitionOffsets


_LOOK_S: Final = 1.0
"""How often it is looked whether partitions were added: the client is told, so nobody is asked."""

_LATE_S: Final = 1.0
"""An answer that takes longer tells of a later end than the one that was meant. A leader that is
there takes milliseconds, and its clock need not agree with this machine's."""

_TOGETHER_WITHIN_S: Final = 2.0
"""For the positions of all partitions, before those that are known are printed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for; see the options of `hadron sub`."""

    stream: str
    group: str | None
    start: Position | None
    partitions: tuple[str, ...]
    ack: str
    limit: int | None
    exit_at_end: bool
    form: str | None
    output: str | None
    membership: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Client.subscribe` that were given."""
    timeout_s: float | None = None
    """Without an answer; the client's own patience when None."""


async def run(url: str, request: Request) -> None:
    """Print records until the limit, the end (when asked for), or an interrupt."""
    printer = RecordPrinter(request.form, request.output, request.limit)
    limit_s = request.timeout_s
    async with connected(url, limit_s, limit_s) as client, anyio.create_task_group() as tasks:
        # On a quiet stream nothing is written that would find it out.
        tasks.start_soon(watch_reader)
        if request.group:
            await _consume(client, request, printer)
        else:
            await _follow(client, request, printer)
        tasks.cancel_scope.cancel()


class _Partitions:
    """Reads partitions side by side: one that is away keeps no other from being printed."""

    def __init__(
        self,
        client: Client,
        request: Request,
        printer: RecordPrinter,
        stream: SchemaObject,
        names: Sequence[str],
    ) -> None:
        self._client = client
        self._stream = stream
        self._request = request
        self._printer = printer
        self._names = list(names)
        self._reading = 0
        self._added: set[str] = set()
        self._starts: dict[str, int] = {}
        self._away: dict[str, PeerError] = {}
        self._known = {name: anyio.Event() for name in names}
        self._began_s, self._began_ms = anyio.current_time(), clock_ms()
        self._turn = anyio.Lock()
        """To print. Who has reached the limit ends the others: none of them is at it then."""

    async def run(self) -> None:
        """Until the end, or the limit. Raises `PeerError` naming the partitions of which not all
        could be read, once the others have been."""
        async with anyio.create_task_group() as tasks:
            for name in self._names:
                self._start(name, tasks)
            if not self._request.exit_at_end and not self._request.partitions:
                tasks.start_soon(self._read_added, tasks)
        if self._away and not self._printer.done:
            raise self._failure()

    def _start(self, name: str, tasks: TaskGroup) -> None:
        self._reading += 1
        tasks.start_soon(self._read_to_end, name, tasks.cancel_scope)

    async def _read_to_end(self, name: str, reading: anyio.CancelScope) -> None:
        await self._read(name, reading)
        self._reading -= 1
        if not self._reading:
            # So that nobody looks for more.
            reading.cancel()

    async def _read_added(self, tasks: TaskGroup) -> None:
        """Read partitions that are added to the stream, each from its first record on."""
        while True:
            try:
                found = await self._client.stream(self._request.stream)
            except PeerError:
                found = self._stream
            except NotFoundError:
                # Deleted: who reads it is told.
                return
            if found.id != self._stream.id:
                return
            assert isinstance(found.spec, StreamSpec)
            for name in found.spec.partitions:
                if name not in self._names:
                    self._names.append(name)
                    self._added.add(name)
                    self._known[name] = anyio.Event()
                    self._start(name, tasks)
            await anyio.sleep(_LOOK_S)

    async def _read(self, name: str, reading: anyio.CancelScope) -> None:
        follow = not self._request.exit_at_end
        while True:
            try:
                if name not in self._starts:
                    await self._find_start(name)
                async for batch in self._client.read_batches(
                    self._request.stream,
                    partition=name,
                    start=self._where(name),
                    follow=follow,
                    stream_id=self._stream.id,
                ):
                    async with self._turn:
                        await self._printer.print_apart(batch.from_offset(self._starts[name]))
                    if self._printer.done:
                        reading.cancel()
                        return
            except PeerError as error:
                if follow and (name in self._starts or not error.retryable):
                    raise
                self._away[name] = error
                self._known[name].set()
                if not follow:
                    return
                if len(self._away) == len(self._names):
                    # Nothing to follow: whoever asked is told.
                    reading.cancel()
            else:
                return

    def _where(self, name: str) -> int | datetime:
        """A time as it is: where that is yet to come, what comes before is not printed."""
        start = self._request.start
        if start is not None and start.kind == "time":
            return start.moment
        return self._starts[name]

    async def _find_start(self, name: str) -> None:
        start = self._request.start or Position("latest")
        if name in self._added:
            start = Position("earliest")
        found = await self._offsets(name, start.at_ms)
        is_late = anyio.current_time() - self._began_s > _LATE_S
        if start.is_from_end and is_late and not self._request.exit_at_end:
            # It was away. Its end is where it was when this began, as the clocks have it: who
            # follows waits for what was logged since.
            found = await self._offsets(name, self._began_ms)
            found = msgspec.structs.replace(found, next_offset=found.at_offset)
        self._starts[name] = resolve_start(self._request.stream, found, start)
        self._away.pop(name, None)
        self._known[name].set()
        # A position that one of them does not have is refused before anything is printed.
        with anyio.move_on_after(_TOGETHER_WITHIN_S):
            for known in list(self._known.values()):
                await known.wait()

    async def _offsets(self, name: str, at_ms: int | None) -> PartitionOffsets:
        stream = self._request.stream
        (found,) = await self._client.offsets(stream, partition=name, at_ms=at_ms)
        return found

    def _failure(self) -> PeerError:
        away = list(self._away)
        error = self._away[away[0]]
        if len(self._names) == 1:
            return error
        others = [name for name in self._names if name not in self._away]
        told = f"; {', '.join(others)}: everything is printed" if others else ""
        hint = "" if self._request.partitions else "; --partition reads others alone"
        return type(error)(
            f"{self._request.stream} was not read to its end from {', '.join(away)}: "
            f"{error.message}{told}",
            f"{error.hint}{hint}".removeprefix("; "),
            retryable=error.retryable,
        )


async def _follow(client: Client, request: Request, printer: RecordPrinter) -> None:
    stream = await client.stream(request.stream)
    await _Partitions(client, request, printer, stream, _partitions(stream, request)).run()


def _partitions(stream: SchemaObject, request: Request) -> Sequence[str]:
    assert isinstance(stream.spec, StreamSpec)
    return check_partitions(request.stream, request.partitions, list(stream.spec.partitions))


def resolve_start(stream: str, found: PartitionOffsets, start: Position) -> int:
    """The offset that `start` means in a partition. Raises what `check_offset` raises."""
    offset = start.resolve(found.first_offset, found.next_offset, found.at_offset or 0)
    check_offset(f"{stream}/{found.partition}", offset, found.first_offset, found.next_offset)
    return offset


async def find_starts(client: Client, request: Request, start: Position) -> dict[str, int]:
    """Partition → offset to start at; of those that were asked for, or of all."""
    starts: dict[str, int] = {}
    for name in _partitions(await client.stream(request.stream), request):
        try:
            (found,) = await client.offsets(request.stream, partition=name, at_ms=start.at_ms)
        except PeerError as error:
            if not request.partitions:
                error.hint = f"{error.hint}; --partition reads another one alone"
            raise
        starts[name] = resolve_start(request.stream, found, start)
    return starts


async def _consume(client: Client, request: Request, printer: RecordPrinter) -> None:
    assert request.group
    goes_on = request.start is not None and await _goes_on(client, request)
    opening = client.subscribe(
        request.stream,
        group=request.group,
        start=await _group_start(client, request, goes_on),
        partitions=list(request.partitions) or None,
        **request.membership,
    )
    waiting = f"waiting to join group {request.group!r}; `hadron status` says for what"
    async with AsyncExitStack() as stack:
        with telling(waiting, MAJORITY_TOLD_AFTER_S):
            subscription = await stack.enter_async_context(opening)
        if request.limit is None:
            await _print_batches(subscription, request, printer)
        else:
            await _print_deliveries(subscription, request, printer)


async def _goes_on(client: Client, request: Request) -> bool:
    """Whether the group exists at one of the partitions; says so to who has named a place."""
    assert request.group
    try:
        await client.describe_group(request.stream, request.group, partitions=request.partitions)
    except (NotFoundError, PeerError) as error:
        # What is away is told of by who joins.
        if not (isinstance(error, IncompleteError) and error.found):
            return False
    click.echo(
        f"group {request.group!r} goes on where it was: --from is where a new one begins; "
        f"`hadron group reset {request.group} --stream {request.stream} --to POSITION` moves it",
        err=True,
    )
    return True


async def _group_start(
    client: Client, request: Request, goes_on: bool
) -> Literal["earliest", "latest"] | int | datetime:
    """Where a new group starts, as the client wants it."""
    start = request.start or Position("earliest")
    if start.kind == "earliest" or start.kind == "latest":
        return start.kind
    if start.kind == "time":
        try:
            return datetime.fromtimestamp(start.number / 1_000, UTC)
        except (OverflowError, ValueError, OSError):
            raise RequestError(
                f"@{start.number} is no time that a calendar has", "it counts milliseconds"
            ) from None
    if goes_on:
        # Where it was, whatever this says: the offset may be gone by now, or its partition away.
        # At a partition that it has not met it begins as at one that is added.
        return "earliest"
    starts = await find_starts(client, request, start)
    if start.kind != "offset" and len(starts) > 1:
        raise RequestError(
            f"a group over {len(starts)} partitions cannot start at a different offset in each",
            f"give one --partition of {', '.join(starts)}, or start at earliest or latest",
        )
    return next(iter(starts.values()))


async def _print_batches(
    subscription: Subscription, request: Request, printer: RecordPrinter
) -> None:
    async for batch in subscription.batches():
        await printer.print_apart(batch.records)
        if request.ack == "auto":
            await batch.ack()


async def _print_deliveries(
    subscription: Subscription, request: Request, printer: RecordPrinter
) -> None:
    """One at a time, so that nothing past the limit is acknowledged."""
    async for delivery in subscription:
        await printer.print_apart([delivery.record])
        if request.ack == "auto":
            await delivery.ack()
        if printer.done:
            break
    if request.ack == "auto":
        await subscription.flush()
