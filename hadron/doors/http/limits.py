"""Bounds of what strangers can make large or slow at the door. Each says where it comes from."""

from __future__ import annotations

from typing import Final

import msgspec

from hadron.model.limits import MAX_BATCH_RECORDS
from hadron.wire.sockets import DOOR_CONNECTIONS

MAX_TARGET_BYTES: Final = 8 << 10
"""Of a request's path and query. nginx's and Apache's default."""

MAX_HEADER_BYTES: Final = 32 << 10
"""Of all headers of a request. Proxies add some kilobytes of cookies and traces."""

MAX_HEADERS: Final = 100

MAX_BODY_BYTES: Final = 4 << 20
"""Of a body that is taken as a whole: a batch of events, a call's value. Twice the records that one
batch may have, which are shorter there than as JSON. To decode it takes 0.1 s, in which nobody else
has a turn. NDJSON is taken as it comes, and has no such limit."""

MAX_WHOLE_RECORDS: Final = MAX_BATCH_RECORDS
"""In such a body."""

RECORDS_AT_ONCE: Final = 32
"""Are made of it, some 10 µs each, before others have a turn (BOUNDS W1)."""

MAX_LINE_BYTES: Final = 2 << 20
"""Of NDJSON: a largest record, with its key and headers in JSON."""

MAX_RECORDS: Final = 10_000
"""In one answer that is no stream."""

MAX_ANSWER_BYTES: Final = 16 << 20
"""The same, in bytes of values; one record at least."""

SMALL_BYTES: Final = 64 << 10
"""Bodies and answers that have room of their own, as much again: who sends or asks for much is in
the way of nobody who does for little. All connections of HTTP/1.1 together have 64 MB of each."""

READING_BYTES: Final = 4 << 20
"""What a read of a partition is counted as whose answer goes on: a fetch is in hand, two wait, and
one is on its way."""


RESETS: Final = 200
RESETS_PER_S: Final = 20
"""Requests that are taken back on one connection of HTTP/2, at once and in the long run. A page
that is left takes back some dozens."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What tests make small."""

    connections: int = DOOR_CONNECTIONS
    """Open at once, or as many as `wire.sockets` leaves to a door."""

    idle_s: float = 75.0
    """Between requests of a connection; nginx's default."""

    head_s: float = 10.0
    """From a request's first byte to the end of its headers: who drips them is cut off."""

    stall_s: float = 30.0
    """Without a byte of a body that is under way, in either direction. Who writes NDJSON as things
    happen sends an empty line meanwhile."""

    body_s: float = 120.0
    """For all of a body that is taken as a whole, and of an answer that is given so."""

    held_bytes: int = 256 << 20
    """Of all bodies that are taken as a whole, at a time."""

    answer_bytes: int = 256 << 20
    """Of all answers that are not written yet, at a time: sixteen of the largest."""

    streams: int = 200
    """Events and messages that are followed, and calls with streams, at once."""

    consumers: int = 200
    """Members of groups that poll here."""

    h2_streams: int = 64
    """Requests at once on a connection of HTTP/2."""

    drain_s: float = 3.0
    """For requests that are under way when the node stops; who follows or polls is let go at
    once."""

    heartbeat_s: float = 15.0
    """Between comments on a quiet stream of events: proxies cut what is silent for a minute."""
