"""A member of a group that acknowledges nothing: `python holder.py URL STREAM GROUP HEARTBEAT_S
MISSES`.

Writes a line for each batch that it is given: partition, first offset, count. Before the first one
it writes an empty line, once it is a member everywhere.
"""

from __future__ import annotations

import sys

import trio

import hadron


async def main() -> None:
    """Until somebody ends the process."""
    url, stream, group, heartbeat_s, misses = sys.argv[1:]
    async with (
        hadron.connect(url) as client,
        client.subscribe(
            stream,
            group=group,
            member="holder",
            heartbeat_s=float(heartbeat_s),
            heartbeat_misses=int(misses),
        ) as subscription,
    ):
        print(flush=True)
        async for batch in subscription.batches():
            print(batch.partition, batch.first_offset, len(batch), flush=True)


if __name__ == "__main__":
    trio.run(main)
