"""The parts of `hadron bench groups`: each measures one thing and says what it has found.

What is compared is measured in turn, several times, in one run; the median counts. So neither a
busy machine nor what only the first measurement does is taken for a difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import anyio

from hadron.bench import deliveries
from hadron.bench.deliveries import Cost, Throughput
from hadron.bench.frozen import WINDOW as FROZEN_WINDOW
from hadron.bench.frozen import frozen_member
from hadron.bench.ground import Ground, Plan
from hadron.bench.noisy import measure_noisy
from hadron.bench.report import Part, Verdict, middle, middle_ratio, number, ratio
from hadron.bench.workloads import declare
from hadron.client import Client, connect
from hadron.delivery.machine import MAX_UNSETTLED
from hadron.model.errors import ConfigurationError

GROUPS: Final = (1, 10, 100)
MEMBERS: Final = (1, 10, 50, 200)
SHORT_LOG: Final = 10_000

MAX_IDLE_KB: Final = 100.0
MIN_BESIDE_STOPPED: Final = 0.9
MAX_GROWTH: Final = 1.15
"""Of what must not grow at all: medians of the same thing differ so much from run to run."""

_READERS: Final = 3
_STOPPED_ROUNDS: Final = 3
"""For each of the plan's, and half as long: what is looked for is small."""

_ALONE, _SILENT, _FROZEN = "alone", "silent", "frozen"

_COST_RECORDS: Final = 1_000
"""Deliveries one at a time in a round."""

_COST_ROUNDS: Final = 5
"""For each of the plan's: they take a third of a second."""

_FIRST_MEMBERS: Final = 10
_SETTLE_S: Final = 6.0
"""Until every idle member has been heard of again: heartbeats come every 5 s."""

_KEEPERS_WINDOW: Final = 100_000


# --- groups and members -------------------------------------------------------------------------


async def measure_groups(ground: Ground) -> list[Part]:
    """1, 10 and 100 groups on one stream, each of one member: all of them get every record."""

    async def members(count: int, name: str) -> list[tuple[Client, str]]:
        clients = await ground.clients(count)
        return [(client, f"{name}-{number}") for number, client in enumerate(clients)]

    return await _measure_numbers(ground, "groups", GROUPS, members)


async def measure_members(ground: Ground) -> list[Part]:
    """1 to 200 members of one group: each record goes to one of them."""

    async def members(count: int, name: str) -> list[tuple[Client, str]]:
        return [(client, name) for client in await ground.clients(count)]

    return await _measure_numbers(ground, "members", MEMBERS, members)


async def _measure_numbers(
    ground: Ground,
    what: str,
    counts: Sequence[int],
    members: Callable[[int, str], Awaitable[list[tuple[Client, str]]]],
) -> list[Part]:
    stream, plan = await ground.fan(), ground.plan
    known: dict[tuple[int, int], list[Throughput]] = {}
    windows = deliveries.WINDOW, 1
    # What only the first of all does is nobody's.
    await deliveries.consume(
        stream, await members(counts[-1], f"warm-{what}"), plan.seconds / 4, ground.leader
    )
    for turn in range(plan.rounds):
        for window in windows:
            for count in counts:
                work = await members(count, f"{what}-{count}-{window}-{turn}")
                found = await deliveries.consume(
                    stream, work, plan.seconds, ground.leader, window=window
                )
                known.setdefault((window, count), []).append(found)
    return [
        _numbers_part(plan, what, window, {count: known[window, count] for count in counts})
        for window in windows
    ]


def _numbers_part(plan: Plan, what: str, window: int, known: dict[int, list[Throughput]]) -> Part:
    many = window > 1
    how = f"up to {window:,} in flight each" if many else "one in flight each"
    part = Part(
        f"{what.capitalize()} on one stream of {plan.record_bytes} B records, {how}",
        (what, "records/s of all", "to 1", "leader's CPU per record", "to 1"),
    )
    (first, bases), *_ = known.items()
    prefix = what if many else f"{what}_single"
    for count, found in known.items():
        speed, cost = _speeds(found), _costs(found)
        faster = middle_ratio(speed, _speeds(bases))
        dearer = middle_ratio(cost, _costs(bases))
        part.figures[f"{prefix}_{count}_records_per_s"] = middle(speed)
        part.figures[f"{prefix}_{count}_leader_us_per_record"] = middle(cost)
        part.rows.append(
            (
                f"{count}",
                number(middle(speed)),
                ratio(faster),
                f"{number(middle(cost))} µs",
                ratio(dearer),
            )
        )
        if count == max(known):
            part.verdicts.append(
                Verdict(
                    f"{count} {what} to {first}, {how}",
                    f"{ratio(faster)} records/s, {ratio(dearer)} leader's CPU",
                )
            )
    return part


# --- idle members -------------------------------------------------------------------------------


async def measure_idle(ground: Ground) -> list[Part]:
    """Memory that the leader takes for members that wait, each a client of its own."""
    plan, kilobytes = ground.plan, list[float]()
    await declare(ground.client, "idle")
    async with AsyncExitStack() as stack:

        async def join(count: int) -> int:
            for _ in range(count):
                client = await stack.enter_async_context(connect(ground.url))
                await stack.enter_async_context(client.subscribe("idle", group="idle"))
            await anyio.sleep(_SETTLE_S)
            return ground.leader.rss_bytes()

        # What the first few bring with them (the group, modules, buffers) is not theirs.
        before = await join(_FIRST_MEMBERS)
        for _ in range(plan.rounds):
            after = await join(plan.idle_members)
            kilobytes.append((after - before) / plan.idle_members / 1e3)
            before = after
    found = middle(kilobytes)
    part = Part(
        "An idle member of a group, on a connection of its own: the leader's resident memory",
        ("members that joined", "kB each"),
        [
            (
                f"{_FIRST_MEMBERS + turn * plan.idle_members} to "
                f"{_FIRST_MEMBERS + (turn + 1) * plan.idle_members}",
                number(each),
            )
            for turn, each in enumerate(kilobytes)
        ],
        {"idle_members": float(plan.idle_members), "idle_member_kb": found},
    )
    part.verdicts.append(
        Verdict(
            "an idle member",
            f"{number(found)} kB on the leader",
            f"≤ {MAX_IDLE_KB:g} kB",
            found <= MAX_IDLE_KB,
        )
    )
    return [part]


# --- a member that stops reading ----------------------------------------------------------------


async def measure_stopped(ground: Ground) -> list[Part]:
    """Throughput of members of a group alone, and beside one that has stopped: because its program
    does not take what has arrived, or because its process is frozen."""
    stream, plan = await ground.fan(), ground.plan
    *readers, silent = await ground.clients(_READERS + 1)
    known: dict[str, list[Throughput]] = {_ALONE: [], _SILENT: [], _FROZEN: []}

    async def measure(group: str, aside: int = 0) -> Throughput:
        work = [(client, group) for client in readers]
        return await deliveries.consume(stream, work, plan.seconds / 2, ground.leader, aside=aside)

    async def measure_case(case: str, group: str) -> Throughput:
        if case == _SILENT:
            async with silent.subscribe(stream, group=group, max_in_flight=deliveries.WINDOW):
                return await measure(group, deliveries.WINDOW)
        if case == _FROZEN:
            async with frozen_member(ground.url, stream, group):
                return await measure(group, FROZEN_WINDOW)
        return await measure(group)

    await measure("warm")
    for turn in range(_STOPPED_ROUNDS * plan.rounds):
        # Forth and back: what changes slowly disturbs all alike.
        for case in known if turn % 2 else reversed(known):
            known[case].append(await measure_case(case, f"{case}-{turn}"))
    part = Part(
        f"{_READERS} members of a group that read, {plan.record_bytes} B records",
        ("beside them", "records/s", "to alone", "leader's CPU per record", "to alone"),
    )
    labels = {
        _ALONE: "nobody",
        _SILENT: "one that takes nothing of what it gets",
        _FROZEN: "one whose process is stopped (SIGSTOP)",
    }
    for case, found in known.items():
        speed, cost = _speeds(found), _costs(found)
        left = middle_ratio(speed, _speeds(known[_ALONE]))
        part.figures[f"{case}_records_per_s"] = middle(speed)
        part.figures[f"{case}_to_alone"] = left
        part.rows.append(
            (
                labels[case],
                number(middle(speed)),
                ratio(left),
                f"{number(middle(cost))} µs",
                ratio(middle_ratio(cost, _costs(known[_ALONE]))),
            )
        )
        if case != _ALONE:
            part.verdicts.append(
                Verdict(
                    f"beside {labels[case]}",
                    f"{ratio(left)} the records/s of those alone",
                    f"> {MIN_BESIDE_STOPPED:g} x",
                    left > MIN_BESIDE_STOPPED,
                )
            )
    return [part]


# --- what lies behind a delivery ----------------------------------------------------------------


async def measure_logs(ground: Ground) -> list[Part]:
    """Deliveries one at a time out of a short log and out of a long one."""
    short = await ground.stream("short", SHORT_LOG, deliveries.SMALL_BYTES)
    name, long = await _long_log(ground)
    cases = {
        f"{short:,} records": ("short", 0, "short_log"),
        f"{long:,} records, in the middle": (name, long // 2, "long_log_middle"),
        f"{long:,} records, at the end": (name, max(0, long - SHORT_LOG), "long_log"),
    }

    async def measure(case: str, turn: int) -> Cost:
        stream, start, prefix = cases[case]
        return await deliveries.one_by_one(
            ground.client,
            stream,
            f"{prefix}-{turn}",
            start,
            _COST_RECORDS,
            ground.plan.seconds,
            ground.leader,
        )

    part = await _compare(
        ground,
        f"A delivery, one record at a time ({deliveries.SMALL_BYTES} B values)",
        "the log",
        {label: case[2] for label, case in cases.items()},
        measure,
    )
    part.figures |= {"short_log_records": float(short), "long_log_records": float(long)}
    return [part]


async def measure_acknowledged(ground: Ground) -> list[Part]:
    """The same behind acknowledged sets of different sizes, with a floor that is held back."""
    stream, records = await _long_log(ground)
    end = records - _behind(ground.plan)
    small = min(2 * SHORT_LOG, end)
    many = end // ground.plan.holes + 1
    parts = {"nothing": (end, end, 1), "small": (end - small, end, 2), "large": (0, end, many)}
    labels: dict[str, str] = {}
    figures: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        for name, (begin, stop, step) in parts.items():
            keeper = await stack.enter_async_context(
                ground.client.subscribe(
                    stream, group=name, start=begin, max_in_flight=_KEEPERS_WINDOW
                )
            )
            if stop > begin:
                ground.tell(f"  acknowledging {stop - begin:,} records with gaps")
            acknowledged, ranges = await deliveries.keep_some(
                keeper, begin, stop, step, ground.plan.fill_s
            )
            label = f"{acknowledged:,} in {ranges:,} ranges" if ranges else "nothing"
            labels[label] = name
            figures[f"{name}_acknowledged"] = float(acknowledged)
            figures[f"{name}_ranges"] = float(ranges)

        async def measure(label: str, _turn: int) -> Cost:
            return await deliveries.one_by_one(
                ground.client,
                stream,
                labels[label],
                0,
                _COST_RECORDS,
                ground.plan.seconds,
                ground.leader,
            )

        part = await _compare(
            ground,
            "A delivery, one record at a time, while records below are held by another "
            f"member\n(a leader delivers nothing new behind {MAX_UNSETTLED:,} of them)",
            "acknowledged above the floor",
            labels,
            measure,
        )
    part.figures |= figures
    return [part]


def _behind(plan: Plan) -> int:
    """Records that are delivered one at a time to each of the groups of `measure_acknowledged`."""
    turns = _COST_ROUNDS * plan.rounds + 1
    return turns * (_COST_RECORDS + 2 * deliveries.WARM_UP)


def check(plan: Plan, held: int | None = None) -> None:
    """Raise `ConfigurationError` where the long log is too short for what is delivered out of it.

    Args:
        held: records that it has come to have; None before it is filled.
    """
    records = plan.log_records if held is None else held
    # From the middle on there is a turn; below what is behind, a record and one that is held.
    needs = {"log": 2 * (_COST_RECORDS + deliveries.WARM_UP), "acknowledged": _behind(plan) + 2}
    wanted = max((needed for part, needed in needs.items() if part in plan.parts), default=0)
    if records < wanted:
        raise ConfigurationError(
            f"the long log has only {records:,} records, {wanted:,} are delivered out of it",
            "raise --records" if held is None else "raise --fill-seconds",
        )


async def _long_log(ground: Ground) -> tuple[str, int]:
    name, records = await ground.long_log()
    check(ground.plan, records)
    return name, records


async def _compare(
    ground: Ground,
    title: str,
    differs: str,
    cases: dict[str, str],
    measure: Callable[[str, int], Awaitable[Cost]],
) -> Part:
    """Measure the cases (label → prefix of figures) in turn; the first one is what the others are
    compared with. `differs` is what is different from one to the next."""
    known: dict[str, list[Cost]] = {label: [] for label in cases}
    for turn in range(_COST_ROUNDS * ground.plan.rounds + 1):
        for label in cases if turn % 2 else reversed(cases):
            known[label].append(await measure(label, turn))
    for costs in known.values():
        # What the first of all finds (caches, checkpoints that still go on) is nobody's.
        del costs[0]
    part = Part(title, (differs, "p50", "to the first", "p99", "leader's CPU", "to the first"))
    first, bases = next(iter(known.items()))
    for label, found in known.items():
        slower = middle_ratio([each.p50_us for each in found], [each.p50_us for each in bases])
        dearer = middle_ratio(_costs(found), _costs(bases))
        cost = Cost(
            middle(each.p50_us for each in found),
            middle(each.p99_us for each in found),
            middle(each.leader_us for each in found),
        )
        prefix = cases[label]
        part.figures[f"{prefix}_p50_us"] = cost.p50_us
        part.figures[f"{prefix}_p99_us"] = cost.p99_us
        part.figures[f"{prefix}_leader_us"] = cost.leader_us
        part.rows.append(
            (
                label,
                f"{number(cost.p50_us)} µs",
                ratio(slower),
                f"{number(cost.p99_us)} µs",
                f"{number(cost.leader_us)} µs",
                ratio(dearer),
            )
        )
        if label != first:
            part.verdicts.append(
                Verdict(
                    f"a delivery, {differs}: {label}",
                    f"{ratio(slower)} p50, {ratio(dearer)} leader's CPU",
                    f"≤ {MAX_GROWTH:g} x",
                    max(slower, dearer) <= MAX_GROWTH,
                )
            )
    return part


def _speeds(found: Sequence[Throughput]) -> list[float]:
    return [each.records_per_s for each in found]


def _costs(found: Sequence[Throughput | Cost]) -> list[float]:
    """The leader's, in microseconds."""
    return [each.leader_us for each in found]


PARTS: Final[dict[str, Callable[[Ground], Awaitable[list[Part]]]]] = {
    "idle": measure_idle,
    "groups": measure_groups,
    "members": measure_members,
    "stopped": measure_stopped,
    "noisy": measure_noisy,
    "log": measure_logs,
    "acknowledged": measure_acknowledged,
}
"""By name, in their order: memory first, before anything else has made the leader's heap large."""
