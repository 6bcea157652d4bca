"""A member of a group that makes one record of each: `python stepper.py URL ORDER`.

Its outputs go over all replica sets, by a key of their own: most of its transactions are of
several. It goes on until somebody kills it.
"""

from __future__ import annotations

import sys
from typing import Final, Literal, cast

import trio

import hadron
from hadron.model.record import NewRecord, Record

IN, OUT, GROUP = "in", "out", "steps"
MAX_RECORDS: Final = 1_000


async def main() -> None:
    """Until the process is killed."""
    url, order = sys.argv[1:]
    async with (
        hadron.connect(url) as client,
        client.subscribe(
            IN,
            group=GROUP,
            order=cast(Literal["none", "key"], order),
            max_in_flight=4 * MAX_RECORDS,
        ) as subscription,
    ):
        async for step in subscription.transactions(max_records=MAX_RECORDS, max_wait_s=0.01):
            await step.publish_many(OUT, map(transformed, step.records))


def transformed(record: Record) -> NewRecord:
    assert isinstance(record.key, str)
    assert isinstance(record.value, bytes)
    return NewRecord(b"<%s>" % record.value, key=f"of-{record.key}")


if __name__ == "__main__":
    trio.run(main)
