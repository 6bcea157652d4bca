"""Offset arithmetic of the connector: positions to offsets, offsets to ranges, ranges to tasks.

Pure apart from asking a client for a stream's bounds, and for the ballots that make an offset a
cursor (`cursors`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hadron.model.errors import OffsetOutOfRangeError, RequestError
from hadron.model.ids import Ballot
from hadron.spark.source.cursors import Cursor, truncated
from hadron.spark.source.options import Position, SourceOptions

Offsets = dict[str, int]


class Bounds(Protocol):
    """What the client says about one partition (`hadron.client`'s `PartitionOffsets`)."""

    @property
    def partition(self) -> str: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def at_offset(self) -> int: ...

    @property
    def stream_id(self) -> int: ...

    @property
    def ballot(self) -> Ballot | None: ...


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `start` (inclusive) to `stop` (exclusive) of one partition.

    Attributes:
        stream_id: of the stream; 0 for whichever has the name.
        after: the ballot of the batch with the record before `start`; None when it is not known.
        last: the same of the last record.
    """

    partition: str
    start: int
    stop: int
    stream_id: int = 0
    after: Ballot | None = None
    last: Ballot | None = None

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


def bounds(client: Any, options: SourceOptions, at_ms: int = 0) -> dict[str, Bounds]:
    """The bounds of every partition to be read, by name.

    Raises `RequestError` when the options name a partition that the stream does not have.
    """
    found = {each.partition: each for each in client.offsets(options.stream, at_ms=at_ms or None)}
    _refuse_strangers(options.partitions, found, options.stream)
    if not options.partitions:
        return dict(sorted(found.items()))
    return {name: found[name] for name in sorted(options.partitions)}


def _refuse_strangers(names: Iterable[str], known: Iterable[str], stream: str) -> None:
    strangers = sorted(set(names) - set(known))
    if strangers:
        raise RequestError(
            f"stream {stream!r} has no partition {', '.join(map(repr, strangers))}",
            f"it has {', '.join(sorted(known)) or 'none'}",
        )


def locate(position: Position, known: Mapping[str, Bounds], options: SourceOptions) -> Offsets:
    """Turn a position into one offset for each partition in `known`.

    Raises `RequestError` when an offsets object leaves a partition out or names another, or an
    offset is beyond the end, unless data loss may be skipped.
    """
    if position.kind == "earliest":
        return {name: each.first_offset for name, each in known.items()}
    if position.kind == "latest":
        return {name: each.next_offset for name, each in known.items()}
    if position.kind == "timestamp":
        return {name: each.at_offset for name, each in known.items()}
    _refuse_strangers(position.offsets, known, options.stream)
    missing = sorted(set(known) - set(position.offsets))
    if missing:
        raise RequestError(
            f"the offsets leave out {', '.join(map(repr, missing))} of stream {options.stream!r}",
            "name every partition, or choose some with the option 'partitions'",
        )
    stand_ins = {
        name: {-2: each.first_offset, -1: each.next_offset} for name, each in known.items()
    }
    offsets = {
        name: stand_ins[name].get(offset, offset) for name, offset in position.offsets.items()
    }
    for name, offset in offsets.items():
        end = known[name].next_offset
        if offset > end and options.fail_on_data_loss:
            raise RequestError(
                f"offset {offset} is beyond the end of {options.stream}/{name}, which is {end}",
                "-1 stands for the end; set failOnDataLoss to false to read what there is",
            )
    return offsets


def check_order(start: Offsets, end: Offsets, options: SourceOptions) -> None:
    """Raises `RequestError` when what the options say runs backwards, unless data loss may be
    skipped: then the read is empty."""
    for name, offset in start.items():
        if offset > end[name] and options.fail_on_data_loss:
            raise RequestError(
                f"the read of {options.stream}/{name} would start at offset {offset} and end "
                f"before {end[name]}",
                "let it start before it ends; earliest is the first record that is kept",
            )


def cursors_at(
    client: Any,
    options: SourceOptions,
    offsets: Mapping[str, int],
    known: Mapping[str, Bounds],
    before: Mapping[str, Cursor],
) -> dict[str, Cursor]:
    """Make cursors of offsets: of what was just asked (`known`), of what the query has had
    (`before`), or by asking for the ballot."""
    made = {}
    for name, offset in offsets.items():
        had, bounds_now = before.get(name), known[name]
        if had is not None and had.offset == offset and had.stream_id:
            made[name] = had
            continue
        ballot = bounds_now.ballot
        if offset <= bounds_now.first_offset:
            ballot = None
        elif offset != bounds_now.next_offset:
            (asked,) = client.offsets(options.stream, partition=name, before=offset)
            ballot = asked.ballot
        made[name] = Cursor(offset, ballot, bounds_now.stream_id)
    return made


def check_ends(
    cursors: Mapping[str, Cursor], known: Mapping[str, Bounds], options: SourceOptions
) -> None:
    """Raises `LogTruncatedError` when a cursor is behind a record that the log has lost, as far as
    its end tells, unless data loss may be skipped. What lies before the end is compared when it is
    read."""
    for name, cursor in cursors.items():
        if name not in known or not options.fail_on_data_loss:
            continue
        end = known[name]
        if cursor.offset > end.next_offset:
            raise truncated(
                options.stream,
                name,
                f"it ends at offset {end.next_offset}, before offset {cursor.offset}",
            )
        if cursor.offset == end.next_offset and None not in (cursor.ballot, end.ballot):
            compare(options, name, cursor.offset, cursor.ballot, end.ballot)


def compare(
    options: SourceOptions, name: str, offset: int, had: Ballot | None, has: Ballot | None
) -> None:
    """Raises `LogTruncatedError` when the record before `offset` came under another ballot."""
    if had != has and options.fail_on_data_loss:
        raise truncated(
            options.stream,
            name,
            f"the record before offset {offset} is of ballot {has}, it was of {had}",
        )


def between(
    start: Mapping[str, Cursor], end: Mapping[str, Cursor], options: SourceOptions
) -> list[OffsetRange]:
    """The non-empty ranges from `start` to `end`.

    A partition that `start` does not know was added to the stream later: it begins at 0.
    Raises `OffsetOutOfRangeError` when a partition has gone, and `LogTruncatedError` when a range
    runs backwards, unless data loss may be skipped.
    """
    gone = sorted(set(start) - set(end))
    if gone and options.fail_on_data_loss:
        raise _data_loss(f"stream {options.stream!r} has lost {', '.join(map(repr, gone))}")
    ranges = []
    for name, stop in sorted(end.items()):
        begin = start.get(name, Cursor(0))
        if begin.offset > stop.offset and options.fail_on_data_loss:
            raise truncated(
                options.stream,
                name,
                f"it ends at offset {stop.offset}, before offset {begin.offset} to start from",
            )
        ranges.append(
            OffsetRange(
                name,
                begin.offset,
                stop.offset,
                stop.stream_id or begin.stream_id,
                begin.ballot,
                stop.ballot,
            )
        )
    return [each for each in ranges if len(each)]


def kept(
    ranges: Sequence[OffsetRange], known: Mapping[str, Bounds], options: SourceOptions
) -> list[OffsetRange]:
    """The ranges without what retention has deleted. Raises as `between` does."""
    left = []
    for each in ranges:
        first = known[each.partition].first_offset if each.partition in known else 0
        if each.start < first:
            each = past_loss(each, first, options)
        if len(each):
            left.append(each)
    return left


def past_loss(wanted: OffsetRange, first_kept: int, options: SourceOptions) -> OffsetRange:
    """`wanted` from the first kept record on, or `OffsetOutOfRangeError` when that is refused."""
    if options.fail_on_data_loss:
        raise _data_loss(
            f"{options.stream}/{wanted.partition} keeps nothing before offset {first_kept}; "
            f"offset {wanted.start} was asked for"
        )
    return replace(wanted, start=min(first_kept, wanted.stop), after=None)


def past_end(wanted: OffsetRange, end: int, options: SourceOptions) -> OffsetRange:
    """Nothing of `wanted`, whose log ends before it; or `OffsetOutOfRangeError`."""
    if options.fail_on_data_loss:
        raise _data_loss(
            f"{options.stream}/{wanted.partition} has lost records, by a recovery or a restored "
            f"backup: it ends at offset {end}, and offset {wanted.start} was asked for"
        )
    return replace(wanted, start=wanted.stop, after=None)


def _data_loss(message: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        message, "set failOnDataLoss to false to go on with the records that are left"
    )


def split(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """Cut ranges so that at least `min_partitions` tasks share the records evenly, or as many as
    there are records."""
    total = sum(map(len, ranges))
    if not min_partitions or min_partitions <= len(ranges) or not total:
        return list(ranges)
    pieces = []
    for each in ranges:
        # Rounded up, so that together they are enough.
        count = min(len(each), -(-len(each) * min_partitions // total))
        edges = [each.start + len(each) * i // count for i in range(count + 1)]
        pieces += [
            replace(
                each,
                start=a,
                stop=b,
                after=each.after if a == each.start else None,
                last=each.last if b == each.stop else None,
            )
            for a, b in itertools.pairwise(edges)
        ]
    return pieces


def spread(start: Mapping[str, int], end: Mapping[str, int], max_rows: int) -> Offsets:
    """Cut `end` so that no more than `max_rows` records lie between, shared by what is waiting.

    Always moves when something waits: what rounding leaves over goes to the longest queues.
    """
    waiting = {name: max(0, stop - start.get(name, 0)) for name, stop in end.items()}
    total = sum(waiting.values())
    if total <= max_rows:
        return {name: max(stop, start.get(name, 0)) for name, stop in end.items()}
    shares = {name: max_rows * size // total for name, size in waiting.items()}
    left = max_rows - sum(shares.values())
    for name in sorted(waiting, key=lambda name: (-waiting[name], name))[:left]:
        shares[name] += 1
    return {name: start.get(name, 0) + share for name, share in shares.items()}
