"""Bounds of what strangers can make large or slow at the door. Each says where it comes from."""

from __future__ import annotations

from typing import Final

import msgspec

from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.wire.sockets import DOOR_CONNECTIONS

MAX_RECEIVED_BYTES: Final = MAX_MESSAGE_BYTES + MAX_ATTACHMENT_BYTES
"""Of one message from a program: as large as a frame may be, with its attachment."""

WINDOW_BYTES: Final = 1 << 20
"""Of one call, either way, between the two event loops; one message at least."""

WINDOW_MESSAGES: Final = 1_000
"""The same in messages: each takes some 200 bytes beside its own, and an empty one has none."""

SMALL_BYTES: Final = 64 << 10
"""Of one call, either way: they have room whatever others hold, as small answers have over HTTP.
All calls of a door together have 500 MiB of them."""

MAX_PUBLISHED: Final = 10_000
"""Records in one request."""

MAX_PIPELINED: Final = 256
"""Requests of one PublishStream that are under way."""

READ_RECORDS: Final = 256
READ_BYTES: Final = 256 << 10
"""Of records in one answer of Read; one record at least."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What tests make small."""

    connections: int = DOOR_CONNECTIONS
    """Open at once, or as many as `wire.sockets` leaves to a door; more are closed."""

    count_s: float = 5.0
    """How often connections are counted, to tell of so many: gRPC closes one without a word."""

    handshake_s: float = 10.0
    """From a connection to the end of its first words: who says nothing is cut off."""

    message_s: float = 120.0
    """For the message of a call that is one message and one answer, as HTTP has it for a body."""

    calls: int = 4_000
    """Open at once, idle subscriptions too; the next ones are refused as RESOURCE_EXHAUSTED."""

    streams: int = 1_100
    """The same, of one connection; the next ones wait. A thousand subscriptions of one program fit,
    and each may hold the most of a message that has not come to its end."""

    held_bytes: int = 128 << 20
    """Of requests and answers on their way through the door, those of slow readers too."""

    buffer_bytes: int = 256 << 20
    """Of messages of exchanges that wait for subscribers: the sum of what each may hold."""

    drain_s: float = 5.0
    """For calls that are under way when the node stops; streams are told at once."""

    keepalive_s: float = 30.0
    """Without a sign of life from a connection that has calls: it is asked for one, and is closed
    when none comes for as long."""
