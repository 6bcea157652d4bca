"""Identities: ballots, log positions, and the rules for names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from hadron.model.errors import RequestError
from hadron.model.limits import MAX_NAME_LENGTH

DEFAULT_NAMESPACE = "default"

MAX_EPOCH: Final = (1 << 31) - 1
"""So that what an epoch's first index is (`Ballot.first_index`) is a number of 63 bits."""

MAX_RECOVERIES: Final = 1_023
"""Of a replica set, by the incarnation; `restore` begins anew with 0."""

_RECOVERY: Final = 1_000_000
"""Incarnations between two recoveries: more starts than a set makes, and easily read."""

_CHANGES_BITS: Final = 22
"""4 million changes of the schema between two recoveries, before indexes could meet."""

EVENT_TYPE_FORM: Final = (
    "write dot segments such as order.placed, without blanks; * and > are for patterns of types"
)

_NAME = re.compile(r"[-_a-zA-Z0-9]+(?:\.[-_a-zA-Z0-9]+)*")


class Ballot(NamedTuple):
    """Who may lead: compared as (epoch, incarnation), higher wins (PROTOCOL B1)."""

    epoch: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.incarnation}"

    @property
    def recoveries(self) -> int:
        """How often an operator went on with a log that may have lost its end (PROTOCOL B3)."""
        return min(self.incarnation // _RECOVERY, MAX_RECOVERIES)

    def recovered(self) -> Ballot:
        """What a disk has promised that went on so after this ballot: all ballots from here on are
        above, and say it."""
        return Ballot(self.epoch, (self.incarnation // _RECOVERY + 1) * _RECOVERY)

    @property
    def first_index(self) -> int:
        """Above every index of the schema that was given, in whatever history, before this epoch or
        before the latest recovery (CLUSTER R7)."""
        return (self.epoch << 32) + (self.recoveries << _CHANGES_BITS)


def last_index(epoch: int) -> int:
    """No index of the schema that was given in this epoch, or before it, is higher."""
    return ((epoch + 1) << 32) - 1


def last_index_beside(own_index: int, epoch: int) -> int:
    """The highest index that others can have seen, told by a schema that stands at `own_index` in
    this epoch: they are ahead by what it has lost (CLUSTER R7), which is less than there may be
    between two recoveries. Indexes go on above theirs, and what is far ahead would use all up."""
    return max(own_index, epoch << 32) + (1 << _CHANGES_BITS)


NO_BALLOT = Ballot(0, 0)


class LogPosition(NamedTuple):
    """A point in a log and the hash of everything up to it.

    Two logs that agree on the hash at an lsn agree on every entry up to it (PROTOCOL A6).
    """

    lsn: int
    ballot: Ballot
    chain: bytes


EMPTY_LOG = LogPosition(0, NO_BALLOT, bytes(16))


NAME_FORM: Final = f"1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 - _ and dots between non-empty segments"
"""How people are told."""


def is_valid_name(name: str) -> bool:
    """`[-_.a-zA-Z0-9]{1,100}` with no empty dot segment."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_valid_replica_set_name(name: str) -> bool:
    """A name, or two names joined by one slash: `aws.us-east-1/p0`."""
    return len(name) <= MAX_NAME_LENGTH and _is_one_or_two(name)


@lru_cache(maxsize=4_096)
def _is_one_or_two(name: str) -> bool:
    """Of few names that are there, and are asked for with each message of a transaction."""
    parts = name.split("/")
    return len(parts) <= 2 and all(map(is_valid_name, parts))


def check_name(what: str, name: str) -> str:
    """Return `name`, or raise `RequestError` naming it and the rule."""
    if not is_valid_name(name):
        raise RequestError(f"{what} {name!r} is not a valid name", f"use {NAME_FORM}")
    return name


@lru_cache(maxsize=4_096)
def is_event_type(text: str) -> bool:
    """Whether patterns can speak of such a type (`hadron.model.pipelines.matches_type`)."""
    return text.isprintable() and all(
        segment and not any(each in segment for each in "*> ") for segment in text.split(".")
    )
