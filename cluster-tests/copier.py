"""A streaming query that copies a stream to another: `python copier.py URL CHECKPOINT ROWS`.

It takes so many rows at a time and goes on until somebody kills it; without a number it takes all
that is there, and ends.
"""

from __future__ import annotations

import sys
from typing import Final

from hadron.spark.session import session

IN, OUT, SINK = "in", "out", "copies"

_CONFIG: Final = {"spark.sql.shuffle.partitions": "2"}


def main() -> None:
    """Until all is copied, or the process is killed."""
    url, checkpoint, rows = sys.argv[1:]
    spark = session("local[2]", "copier", _CONFIG)
    reader = spark.readStream.format("hadron").option("server", url).option("stream", IN)
    if rows:
        reader = reader.option("maxOffsetsPerTrigger", rows)
    copies = reader.options(includeHeaders="true", startingOffsets="earliest").load()
    writer = (
        copies.select("key", "value", "type", "headers", "timestamp")
        .writeStream.format("hadron")
        .option("server", url)
        .option("stream", OUT)
        .option("txnId", SINK)
        .option("checkpointLocation", checkpoint)
    )
    query = (writer if rows else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
