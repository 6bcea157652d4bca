"""What clients that keep a leader busy cost another one: a producer that sends one at a time.

Each noisy client is a process of its own, so what is measured is what the leader does about it; on
two cores several of them take from the producer's own processor as well.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Final

import anyio

from hadron.bench.beside import beside
from hadron.bench.deliveries import SMALL_BYTES
from hadron.bench.ground import Ground
from hadron.bench.report import Part, Verdict, middle, middle_ratio, number, ratio
from hadron.bench.stats import percentile
from hadron.bench.workloads import declare
from hadron.client import Client, Producer, connect

MIN_BESIDE_NOISE: Final = 0.8
"""Of the sends a second without noise."""

RECORDS: Final = 20_000
"""That the noisy ones are given."""

_ROUNDS: Final = 3
"""For each of the plan's: what is looked for is a difference of some per cent."""

_RUN_IN_S: Final = 0.5

_BEGUN: Final = b"begun\n"

_Tell = Callable[[], None]


async def _nack(client: Client, stream: str, group: str, tell: _Tell) -> None:
    """A member that can use nothing."""
    async with client.subscribe(stream, group=group) as subscription:
        tell()
        async for delivery in subscription:
            await delivery.nack()


async def _nack_at_once(client: Client, stream: str, group: str, tell: _Tell) -> None:
    """One that wants everything again at once."""
    async with client.subscribe(stream, group=group) as subscription:
        tell()
        async for delivery in subscription:
            await delivery.nack(delay_s=0)


async def _join(client: Client, stream: str, group: str, tell: _Tell) -> None:
    """A member that comes and goes."""
    while True:
        async with client.subscribe(stream, group=group):
            tell()


async def _create(client: Client, stream: str, group: str, tell: _Tell) -> None:
    """A new group each time, as consumers make that name theirs by a random number."""
    for number_ in count():
        async with client.subscribe(stream, group=f"{group}-{number_}", max_in_flight=1):
            tell()


async def _acknowledge(client: Client, stream: str, group: str, tell: _Tell) -> None:
    """A member that works on one record after another, and has nothing to do for any."""
    for number_ in count():
        async with client.subscribe(stream, group=f"{group}-{number_}") as subscription:
            tell()
            left = RECORDS
            async for delivery in subscription:
                await delivery.ack()
                left -= 1
                if not left:
                    break


KINDS: Final[dict[str, Callable[[Client, str, str, _Tell], Awaitable[None]]]] = {
    "nack": _nack,
    "nack_at_once": _nack_at_once,
    "join": _join,
    "create": _create,
    "acknowledge": _acknowledge,
}

CASES: Final = (
    ("nobody", "alone", "", 0),
    ("a member that gives everything back", "nack_1", "nack", 1),
    ("4 of these", "nack_4", "nack", 4),
    ("one that wants it again at once", "nack_at_once_1", "nack_at_once", 1),
    ("one that joins and leaves", "join_1", "join", 1),
    ("one that makes groups", "create_1", "create", 1),
    ("one that reads and acknowledges", "acknowledge_1", "acknowledge", 1),
)
"""What is beside the producer: label, prefix of figures, kind and number of clients."""

_JUDGED: Final = ("nack_1", "nack_4", "nack_at_once_1")
"""The others are as much at work as the producer is: they get their share."""


async def measure_noisy(ground: Ground) -> list[Part]:
    """Sends one at a time, alone and beside clients that keep the leader busy."""
    plan = ground.plan
    await ground.stream("noise", RECORDS, SMALL_BYTES)
    await declare(ground.client, "quiet")
    rates: dict[str, list[float]] = {prefix: [] for _, prefix, _, _ in CASES}
    slowest: dict[str, list[float]] = {prefix: [] for prefix in rates}
    value = b"x" * plan.record_bytes
    async with ground.client.producer("quiet") as producer:
        await _send_for(producer, value, _RUN_IN_S)
        for turn in range(_ROUNDS * plan.rounds):
            for _, prefix, kind, number_ in CASES if turn % 2 else reversed(CASES):
                async with _noise(ground.url, kind, number_, f"{prefix}-{turn}"):
                    # Until what only its beginning costs is over.
                    await _send_for(producer, value, _RUN_IN_S)
                    taken = await _send_for(producer, value, plan.seconds / 2)
                rates[prefix].append(len(taken) / sum(taken))
                slowest[prefix].append(percentile(taken, 0.99) * 1e3)
    part = Part(
        f"A producer that sends one record of {plan.record_bytes} B after the other",
        ("beside it", "sends/s", "to alone", "p99"),
    )
    for label, prefix, _, _ in CASES:
        left = middle_ratio(rates[prefix], rates["alone"])
        part.figures[f"noisy_{prefix}_sends_per_s"] = middle(rates[prefix])
        part.figures[f"noisy_{prefix}_to_alone"] = left
        part.rows.append(
            (
                label,
                number(middle(rates[prefix])),
                ratio(left),
                f"{number(middle(slowest[prefix]))} ms",
            )
        )
        if prefix in _JUDGED:
            part.verdicts.append(
                Verdict(
                    f"sends beside {label}",
                    f"{ratio(left)} those alone",
                    f"≥ {MIN_BESIDE_NOISE:g} x",
                    left >= MIN_BESIDE_NOISE,
                )
            )
    return [part]


async def _send_for(producer: Producer, value: bytes, seconds: float) -> list[float]:
    """Send one after the other; returns how many seconds each took."""
    taken: list[float] = []
    last = time.perf_counter()
    end = last + seconds
    while last < end:
        await producer.send(value)
        now = time.perf_counter()
        taken.append(now - last)
        last = now
    return taken


@asynccontextmanager
async def _noise(url: str, kind: str, clients: int, group: str) -> AsyncIterator[None]:
    """Within this block so many clients of a kind are at work, in groups of their own."""
    async with AsyncExitStack() as stack:
        for each in range(clients):
            await stack.enter_async_context(_noisy_client(url, kind, f"{group}-{each}"))
        yield


@asynccontextmanager
async def _noisy_client(url: str, kind: str, group: str) -> AsyncIterator[None]:
    async with beside(
        "hadron.bench.noisy",
        (url, kind, group),
        begun=_BEGUN,
        trouble=f"the client that is to be noisy ({kind}) did not begin, or did not stay",
    ):
        yield


async def _make_noise(url: str, kind: str, group: str) -> None:
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            os.write(sys.stdout.fileno(), _BEGUN)

    async with connect(url) as client:
        await KINDS[kind](client, "noise", group, tell)


if __name__ == "__main__":
    anyio.run(partial(_make_noise, *sys.argv[1:]), backend="trio")
