"""Reading for `hadron sub` and `hadron read`: one task per partition, one printer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import anyio

from hadron.cli.patience import MAJORITY_TOLD_AFTER_S, connected, telling
from hadron.cli.positions import Position, check_offset, check_partitions
from hadron.cli.records import RecordPrinter
from hadron.cli.standard_streams import watch_reader
from hadron.model.errors import PeerError, RequestError
from hadron.model.schema import StreamSpec

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.client.results import PartitionOffsets
    from hadron.client.subscription import Subscription


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


async def run(url: str, request: Request) -> None:
    """Print records until the limit, the end (when asked for), or an interrupt."""
    printer = RecordPrinter(request.form, request.output, request.limit)
    async with connected(url) as client, anyio.create_task_group() as tasks:
        # On a quiet stream nothing is written that would find it out.
        tasks.start_soon(watch_reader)
        if request.group:
            await _consume(client, request, printer)
        else:
            await _follow(client, request, printer)
        tasks.cancel_scope.cancel()


async def _follow(client: Client, request: Request, printer: RecordPrinter) -> None:
    starts = await find_starts(client, request, request.start or Position("latest"))
    async with anyio.create_task_group() as tasks:

        async def read(partition: str, offset: int) -> None:
            follow = not request.exit_at_end
            async for batch in client.read_batches(
                request.stream, partition=partition, offset=offset, follow=follow
            ):
                printer.print(batch.from_offset(offset))
                if printer.done:
                    tasks.cancel_scope.cancel()
                    return

        for partition, offset in starts.items():
            tasks.start_soon(read, partition, offset)


async def find_starts(client: Client, request: Request, start: Position) -> dict[str, int]:
    """Partition → offset to start at."""
    found = await _offsets(client, request, start.at_ms)
    bounds = {partition.partition: partition for partition in found}
    starts: dict[str, int] = {}
    for name in bounds:
        first, end = bounds[name].first_offset, bounds[name].next_offset
        starts[name] = start.resolve(first, end, bounds[name].at_offset or 0)
        check_offset(f"{request.stream}/{name}", starts[name], first, end)
    return starts


async def _offsets(
    client: Client, request: Request, at_ms: int | None
) -> list[PartitionOffsets]:
    """Of the partitions that were asked for, or of all: those that were not may be away."""
    found: list[PartitionOffsets] = []
    spec = (await client.stream(request.stream)).spec
    assert isinstance(spec, StreamSpec)
    names = list(spec.partitions)
    for name in check_partitions(request.stream, request.partitions, names):
        try:
            found += await client.offsets(request.stream, partition=name, at_ms=at_ms)
        except PeerError as error:
            if len(names) > 1 and not request.partitions:
                error.hint = f"{error.hint}; --partition reads another one alone"
            raise
    return found


async def _consume(client: Client, request: Request, printer: RecordPrinter) -> None:
    assert request.group
    opening = client.subscribe(
        request.stream, group=request.group, start=await _group_start(client, request),
        partitions=list(request.partitions) or None, **request.membership,
    )
    waiting = f"waiting to join group {request.group!r}; is a majority up? see `hadron status`"
    async with AsyncExitStack() as stack:
        with telling(waiting, MAJORITY_TOLD_AFTER_S):
            subscription = await stack.enter_async_context(opening)
        if request.limit is None:
            await _print_batches(subscription, request, printer)
        else:
            await _print_deliveries(subscription, request, printer)


async def _group_start(
    client: Client, request: Request
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
        printer.print(batch.records)
        if request.ack == "auto":
            await batch.ack()


async def _print_deliveries(
    subscription: Subscription, request: Request, printer: RecordPrinter
) -> None:
    """One at a time, so that nothing past the limit is acknowledged."""
    async for delivery in subscription:
        printer.print([delivery.record])
        if request.ack == "auto":
            await delivery.ack()
        if printer.done:
            break
    if request.ack == "auto":
        await subscription.flush()
