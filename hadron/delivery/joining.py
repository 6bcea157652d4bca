"""What a member asks for when it joins, and whether it fits the group. Pure.

A group's options are fixed by whoever creates it. Safety rule: nobody joins a group that delivers
otherwise than the member was told: what it names must be what the group has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hadron.model.errors import RequestError
from hadron.model.limits import (
    MAX_ACK_DEADLINE_MS,
    MAX_BATCH_WAIT_MS,
    MAX_DELIVERY_ATTEMPTS,
    MAX_HEARTBEAT_MISSES,
    MAX_HEARTBEAT_MS,
    MAX_IN_FLIGHT,
)
from hadron.model.problems import setting
from hadron.state.groups.progress import ORDER_KEY, ORDER_NONE, ORDER_STRICT, GroupOptions

_MAX_NAME: Final = 200

_MAX_OFFSET_DIGITS: Final = 18
"""More do not fit into a table's integer."""

ORDERS: Final = {"none": ORDER_NONE, "strict": ORDER_STRICT, "key": ORDER_KEY}


@dataclass(frozen=True, slots=True)
class WantedOptions:
    """Options that a member names; None for those that it leaves to the group."""

    order: int | None = None
    ack_deadline_ms: int | None = None
    max_attempts: int | None = None
    dead_letter_stream: str | None = None
    ephemeral: bool | None = None

    def resolve(self, stream_id_of: Callable[[str], int]) -> GroupOptions:
        """For a new group. Raises `RequestError` naming what does not make sense."""
        options = GroupOptions(
            self.order or ORDER_NONE,
            self.ack_deadline_ms or 0,
            self.max_attempts or 0,
            stream_id_of(self.dead_letter_stream) if self.dead_letter_stream else 0,
        )
        if bool(options.max_attempts) != bool(options.dead_letter_stream_id):
            raise RequestError(
                f"the group would have max_attempts {options.max_attempts} and "
                + (
                    f"the dead letter stream {self.dead_letter_stream!r}"
                    if self.dead_letter_stream
                    else "no dead letter stream"
                ),
                "give both or neither: a record whose attempts are used up needs a place",
            )
        return options

    def check(
        self, group: str, has: GroupOptions, *, ephemeral: bool, dead_letter_stream: str
    ) -> None:
        """Raises `RequestError` when the group has other options; both values are named."""
        if self.dead_letter_stream and has.dead_letter_stream_id and not dead_letter_stream:
            raise RequestError(
                f"the dead letter stream of group {group!r} was deleted, this member asks for "
                f"{self.dead_letter_stream!r}",
                "its dead letters are delivered again; delete the group to name another stream",
            )
        names = {number: name for name, number in ORDERS.items()}
        pairs = (
            ("order", names.get(self.order) if self.order is not None else None, names[has.order]),
            ("ack_deadline_s", _seconds(self.ack_deadline_ms), _seconds(has.ack_deadline_ms)),
            ("max_attempts", self.max_attempts, has.max_attempts),
            ("dead_letter", self.dead_letter_stream, dead_letter_stream),
            ("ephemeral", self.ephemeral, ephemeral),
        )
        for what, wanted, known in pairs:
            if wanted is not None and wanted != known:
                raise RequestError(
                    f"group {group!r} has {what} {setting(known)}, this member asks for "
                    f"{setting(wanted)}",
                    "a group keeps the options that it was created with: leave them out, or use "
                    "another group, or delete this one first",
                )


def _seconds(ms: int | None) -> float | None:
    """As people give it; 30 and not 30.0."""
    if ms is None:
        return None
    return ms / 1_000 if ms % 1_000 else ms // 1_000


@dataclass(frozen=True, slots=True)
class Joining:
    """A member that wants to join.

    Attributes:
        start: where a new group starts: "", "earliest", "latest", an offset, or "@" and
            milliseconds since the Unix epoch.
        heartbeat_interval_ms: how often it says something at least; 0 for no promise.
        heartbeat_threshold: intervals of silence after which it counts as gone.
        batch_size: 0 for no batches.
        resume_offset: where an ephemeral group starts that is not known here any more.
    """

    group: str
    start: str = ""
    max_in_flight: int = 1_000
    options: WantedOptions = WantedOptions()
    member: str = ""
    heartbeat_interval_ms: int = 0
    heartbeat_threshold: int = 3
    batch_size: int = 0
    batch_wait_ms: int = 0
    resume_offset: int | None = None

    def check(self) -> None:
        """Raises `RequestError` naming the first number that is out of range."""
        options = self.options
        limits = (
            ("max_in_flight", self.max_in_flight, 1, MAX_IN_FLIGHT),
            ("heartbeat_interval_ms", self.heartbeat_interval_ms, 0, MAX_HEARTBEAT_MS),
            ("heartbeat_threshold", self.heartbeat_threshold, 1, MAX_HEARTBEAT_MISSES),
            ("batch_size", self.batch_size, 0, MAX_IN_FLIGHT),
            ("batch_wait_ms", self.batch_wait_ms, 0, MAX_BATCH_WAIT_MS),
            ("order", options.order or 0, ORDER_NONE, ORDER_KEY),
            ("ack_deadline_ms", options.ack_deadline_ms or 0, 0, MAX_ACK_DEADLINE_MS),
            ("max_attempts", options.max_attempts or 0, 0, MAX_DELIVERY_ATTEMPTS),
        )
        for what, value, least, most in limits:
            if not least <= value <= most:
                raise RequestError(f"{what} is {value}, it may be {least} to {most}")
        if len(self.member) > _MAX_NAME:
            raise RequestError(
                f"a member's name of {len(self.member)} characters is over the limit of {_MAX_NAME}"
            )
        parse_start(self.start)


def parse_start(start: str) -> tuple[str, int]:
    """("earliest", 0), ("latest", 0), ("offset", n) or ("time", milliseconds since the epoch)."""
    if start in ("", "earliest"):
        return "earliest", 0
    if start == "latest":
        return "latest", 0
    digits = start.removeprefix("@")
    if digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_OFFSET_DIGITS:
        return ("time" if start.startswith("@") else "offset"), int(digits)
    raise RequestError(
        f"a group cannot start at {start!r}",
        'use earliest, latest, an offset, or "@" and milliseconds since 1970',
    )
