"""`hadron bench transactions`: what transactions cost, beside the same work without them.

The same work is measured in turn, in one run: records sent alone, and in transactions of one
replica set, of two and of four; many records at once; a stream consumed and published to another
one, with and without. All of it comes from this one process, so that many at a time are as much its
figures as the leaders'.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import anyio

from hadron.bench.patience import within
from hadron.bench.report import Part, Verdict, kept, middle, middle_ratio, number, print_found
from hadron.bench.report import ratio as times
from hadron.bench.scratch import scratch
from hadron.bench.stats import percentile
from hadron.client import Client, Producer, connect
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.local_fleet import LocalFleet

SETS: Final = ("bench/p0", "bench/p1", "bench/p2", "bench/p3")
AT_A_TIME: Final = (1, 16, 256)
STEP_RECORDS: Final = 1_000
BULK_RECORDS: Final = 1_000
BULKS_AT_A_TIME: Final = (1, 4)

MAX_TWO_SETS_MS: Final = 4.0
MIN_TWO_SETS_PER_S: Final = 1_500.0
MIN_ONE_SET_PER_S: Final = 10_000.0
MAX_TO_SEND: Final = 1.3
MAX_TO_SEND_MANY: Final = 1.15
MIN_STEP_RECORDS_PER_S: Final = 150_000.0

_SEND, _ONE, _TWO, _FOUR = "send", "one set", "two sets", "four sets"
_TWO_SENDS, _FOUR_SENDS = "two sends", "four sends"
_SENDS: Final = {_SEND: 1, _TWO_SENDS: 2, _FOUR_SENDS: 4}
_WIDTHS: Final = {_ONE: 1, _TWO: 2, _FOUR: 4, **_SENDS}
_SEND_MANY, _BULK = "send_many", "in a transaction"

_PLAIN, _STEPS = "consume, then publish", "in transactions"
_GROUPS: Final = {_PLAIN: "plain", _STEPS: "steps"}

_CONSUME_S: Final = 60.0
"""No round takes so long; a bench that does is stopped."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        nodes: of each replica set.
        seconds: of each measurement.
        records: that are consumed and published, in each round.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    seconds: float
    rounds: int
    records: int
    parts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one kind of work, so many at a time."""

    p50_ms: float
    p99_ms: float
    per_s: float


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    wanted = SETS if "sets" in plan.parts else SETS[:1]
    with scratch() as directory, kept(found):
        sets = dict.fromkeys(wanted, plan.nodes)
        with LocalFleet(directory, sets, durability=plan.durability) as fleet:
            anyio.run(_measure, fleet.url, plan, found, backend="trio")
    durability = "fsync" if plan.nodes == 1 else plan.durability
    took_s = time.monotonic() - started
    setting = {
        "durability": durability,
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "seconds": plan.seconds,
        "rounds": plan.rounds,
    }
    print_found(
        found,
        output,
        f"{len(wanted)} replica set(s) of {plan.nodes} node(s) and the client",
        setting,
        took_s,
    )
    return 0


async def _measure(url: str, plan: Plan, found: list[Part]) -> None:
    """Add to `found` what each part has come to."""
    gc.freeze()
    started = time.monotonic()
    async with connect(url) as client:
        for name, measure in PARTS.items():
            if name in plan.parts:
                print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                found += await measure(client, plan)


# --- one set, and several -------------------------------------------------------------------------


async def measure_one(client: Client, plan: Plan) -> list[Part]:
    """Transactions of one record at one replica set, beside the same record sent."""
    return [await _compare(client, plan, "one", (_SEND, _ONE))]


async def measure_sets(client: Client, plan: Plan) -> list[Part]:
    """A record at each of two and four replica sets, beside one at one, and beside as many that are
    sent at the same time, some of which may fail."""
    return [await _compare(client, plan, "sets", (_ONE, _TWO_SENDS, _TWO, _FOUR_SENDS, _FOUR))]


async def _compare(client: Client, plan: Plan, part: str, kinds: Sequence[str]) -> Part:
    value = b"x" * plan.record_bytes
    streams = [f"{part}-{index}" for index in range(max(_WIDTHS.get(kind, 1) for kind in kinds))]
    await _declare(client, dict(zip(streams, SETS, strict=False)))
    known: dict[tuple[int, str], list[Speed]] = {}
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(client.producer(each)) for each in streams]
        works = {kind: _work(client, producers, kind, streams, value) for kind in kinds}
        for work in works.values():
            # What only the first does is nobody's: connections, calls, caches.
            await _time(work, max(AT_A_TIME), plan.seconds / 4)
        for turn in range(plan.rounds):
            for count in AT_A_TIME:
                # Forth and back: what changes slowly disturbs all alike.
                for kind in kinds if turn % 2 else reversed(kinds):
                    speed = await _time(works[kind], count, plan.seconds)
                    known.setdefault((count, kind), []).append(speed)
    return _speed_part(plan, part, kinds, known)


def _work(
    client: Client, producers: Sequence[Producer], kind: str, streams: Sequence[str], value: bytes
) -> Callable[[], Awaitable[None]]:
    width = _WIDTHS[kind]

    async def send() -> None:
        await producers[0].send(value)

    async def send_all() -> None:
        async with anyio.create_task_group() as tasks:
            for producer in producers[:width]:
                tasks.start_soon(producer.send, value)

    async def transaction() -> None:
        async with client.transaction() as tx:
            for stream in streams[:width]:
                await tx.publish(stream, value)

    if kind not in _SENDS:
        return transaction
    return send if width == 1 else send_all


async def _time(work: Callable[[], Awaitable[None]], at_a_time: int, seconds: float) -> Speed:
    took: list[float] = []
    started = time.perf_counter()
    end = started + seconds

    async def repeat() -> None:
        began = time.perf_counter()
        while began < end:
            await work()
            now = time.perf_counter()
            took.append(now - began)
            began = now

    async with anyio.create_task_group() as tasks:
        for _ in range(at_a_time):
            tasks.start_soon(repeat)
    elapsed = time.perf_counter() - started
    return Speed(percentile(took, 0.5) * 1e3, percentile(took, 0.99) * 1e3, len(took) / elapsed)


def _speed_part(
    plan: Plan, name: str, kinds: Sequence[str], known: dict[tuple[int, str], list[Speed]]
) -> Part:
    base = kinds[0]
    part = Part(
        f"A record of {plan.record_bytes} B at each of so many replica sets, so many at a time",
        ("", "p50", "p99", "per second", f"p50 to {base}"),
    )
    for (count, kind), found in sorted(
        known.items(), key=lambda item: (item[0][0], kinds.index(item[0][1]))
    ):
        p50, p99 = middle(each.p50_ms for each in found), middle(each.p99_ms for each in found)
        per_s = middle(each.per_s for each in found)
        slower = middle_ratio(
            (each.p50_ms for each in found), (each.p50_ms for each in known[count, base])
        )
        prefix = f"{name}_{kind.replace(' ', '_')}_{count}"
        part.figures[f"{prefix}_p50_ms"] = p50
        part.figures[f"{prefix}_p99_ms"] = p99
        part.figures[f"{prefix}_per_s"] = per_s
        part.rows.append(
            (
                f"{kind}, {count} at a time",
                f"{number(p50)} ms",
                f"{number(p99)} ms",
                number(per_s),
                times(slower),
            )
        )
        part.verdicts += _judge(name, kind, count, p50, per_s, slower)
    return part


def _judge(
    name: str, kind: str, count: int, p50: float, per_s: float, slower: float
) -> list[Verdict]:
    if (name, kind) == ("one", _ONE):
        if count == max(AT_A_TIME):
            return [_at_least(f"one set, {count} at a time", per_s, MIN_ONE_SET_PER_S)]
        # With many at a time records that are sent share a batch, and transactions do not.
        is_judged = count == 1
        return [
            Verdict(
                f"one set, {count} at a time, p50 to a plain send",
                times(slower),
                f"≤ {times(MAX_TO_SEND)}" if is_judged else "",
                slower <= MAX_TO_SEND if is_judged else None,
            )
        ]
    if kind == _TWO and count == 1:
        return [
            Verdict(
                "two sets, one at a time, p50",
                f"{number(p50)} ms",
                f"≤ {MAX_TWO_SETS_MS:g} ms",
                p50 <= MAX_TWO_SETS_MS,
            )
        ]
    if kind == _TWO and count == max(AT_A_TIME):
        return [_at_least(f"two sets, {count} at a time", per_s, MIN_TWO_SETS_PER_S)]
    return []


def _at_least(what: str, per_s: float, least: float) -> Verdict:
    return Verdict(what, f"{number(per_s)}/s", f"≥ {number(least)}/s", per_s >= least)


# --- many records ---------------------------------------------------------------------------------


async def measure_bulk(client: Client, plan: Plan) -> list[Part]:
    """Many records at once at one replica set: in a transaction, beside `send_many`."""
    await _declare(client, {"bulk": SETS[0]})
    values = [b"x" * plan.record_bytes] * BULK_RECORDS

    async def transaction() -> None:
        async with client.transaction() as tx:
            await tx.publish_many("bulk", values)

    known: dict[tuple[int, str], list[Speed]] = {}
    async with client.producer("bulk") as producer:

        async def send_many() -> None:
            await producer.send_many(values)

        works = {_SEND_MANY: send_many, _BULK: transaction}
        for work in works.values():
            await _time(work, max(BULKS_AT_A_TIME), plan.seconds / 4)
        for turn in range(plan.rounds):
            for count in BULKS_AT_A_TIME:
                for label, work in works.items() if turn % 2 else reversed(works.items()):
                    speed = await _time(work, count, plan.seconds)
                    known.setdefault((count, label), []).append(speed)
    return [_bulk_part(plan, known)]


def _bulk_part(plan: Plan, known: dict[tuple[int, str], list[Speed]]) -> Part:
    part = Part(
        f"{BULK_RECORDS:,} records of {plan.record_bytes} B at once, so many times at a time",
        ("", "p50", "records/s", f"time to {_SEND_MANY}"),
    )
    for (count, label), found in sorted(known.items(), key=lambda each: each[0][0]):
        p50 = middle(each.p50_ms for each in found)
        per_s = middle(each.per_s for each in found) * BULK_RECORDS
        slower = middle_ratio(
            (each.per_s for each in known[count, _SEND_MANY]), (each.per_s for each in found)
        )
        prefix = f"bulk_{'plain' if label == _SEND_MANY else 'transaction'}_{count}"
        part.figures |= {f"{prefix}_p50_ms": p50, f"{prefix}_records_per_s": per_s}
        part.rows.append(
            (f"{label}, {count} at a time", f"{number(p50)} ms", number(per_s), times(slower))
        )
        if label == _BULK:
            # Several at a time share batches, and transactions do not.
            is_judged = count == 1
            part.figures[f"{prefix}_to_plain"] = slower
            part.verdicts.append(
                Verdict(
                    f"{BULK_RECORDS:,} records, {count} at a time, time to {_SEND_MANY}",
                    times(slower),
                    f"≤ {times(MAX_TO_SEND_MANY)}" if is_judged else "",
                    slower <= MAX_TO_SEND_MANY if is_judged else None,
                )
            )
    return part


# --- consume, transform, publish ------------------------------------------------------------------


async def measure_steps(client: Client, plan: Plan) -> list[Part]:
    """A stream consumed and published to another one: in transactions, and without."""
    await _declare(client, dict.fromkeys(("steps-in", "steps-out"), SETS[0]))
    await _fill(client, "steps-in", plan)
    works = {_PLAIN: _consume_and_publish, _STEPS: _consume_in_steps}
    for label, work in works.items():
        # What only the first does is nobody's.
        records = min(plan.records, 10 * STEP_RECORDS)
        with within(_CONSUME_S, f"{label}: {records:,} records"):
            await work(client, f"{_GROUPS[label]}-warm", records)
    known: dict[str, list[float]] = {label: [] for label in works}
    for turn in range(plan.rounds):
        for label, work in works.items() if turn % 2 else reversed(works.items()):
            started = time.perf_counter()
            what = f"{label}: {plan.records:,} records, {STEP_RECORDS:,} at a time,"
            with within(_CONSUME_S, what, "give it fewer --records"):
                await work(client, f"{_GROUPS[label]}-{turn}", plan.records)
            known[label].append(plan.records / (time.perf_counter() - started))
    part = Part(
        f"{plan.records:,} records of {plan.record_bytes} B consumed and published again, "
        f"{STEP_RECORDS:,} at a time",
        ("", "records/s", "to without"),
    )
    for label, found in known.items():
        part.rows.append((label, number(middle(found)), times(middle_ratio(found, known[_PLAIN]))))
    part.figures["plain_records_per_s"] = middle(known[_PLAIN])
    part.figures["steps_records_per_s"] = middle(known[_STEPS])
    part.figures["steps_to_plain"] = middle_ratio(known[_STEPS], known[_PLAIN])
    part.verdicts.append(
        _at_least(
            "consumed and published in transactions, records",
            middle(known[_STEPS]),
            MIN_STEP_RECORDS_PER_S,
        )
    )
    return [part]


async def _consume_and_publish(client: Client, group: str, records: int) -> None:
    """As programs do it that may publish twice: publish, then acknowledge."""
    left = records
    async with (
        client.subscribe(
            "steps-in", group=group, max_in_flight=4 * STEP_RECORDS, batch_size=STEP_RECORDS
        ) as subscription,
        client.producer("steps-out") as producer,
    ):
        async for batch in subscription.batches():
            await producer.send_many([record.value for record in batch.records])
            await batch.ack()
            left -= len(batch)
            if left <= 0:
                break
        await subscription.flush()


async def _consume_in_steps(client: Client, group: str, records: int) -> None:
    left = records
    async with client.subscribe(
        "steps-in", group=group, max_in_flight=4 * STEP_RECORDS
    ) as subscription:
        async for step in subscription.transactions(max_records=STEP_RECORDS):
            await step.publish_many("steps-out", [record.value for record in step.records])
            left -= len(step)
            if left <= 0:
                await step.commit()
                break


async def _fill(client: Client, stream: str, plan: Plan) -> None:
    values = [b"x" * plan.record_bytes] * STEP_RECORDS
    async with client.producer(stream) as producer:
        for sent in range(0, plan.records, STEP_RECORDS):
            await producer.send_many(values[: plan.records - sent])


async def _declare(client: Client, streams: dict[str, str]) -> None:
    await client.apply(
        [
            SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=(replica_set,)))
            for name, replica_set in streams.items()
        ]
    )


PARTS: Final[dict[str, Callable[[Client, Plan], Awaitable[list[Part]]]]] = {
    "one": measure_one,
    "sets": measure_sets,
    "bulk": measure_bulk,
    "steps": measure_steps,
}
