"""Identities: ballots, log positions, and the rules for names."""

from __future__ import annotations

import re
from typing import NamedTuple

from hadron.model.errors import RequestError
from hadron.model.limits import MAX_NAME_LENGTH

DEFAULT_NAMESPACE = "default"

_NAME = re.compile(r"[-_a-zA-Z0-9]+(?:\.[-_a-zA-Z0-9]+)*")


class Ballot(NamedTuple):
    """Who may lead: compared as (epoch, incarnation), higher wins (PROTOCOL B1)."""

    epoch: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.incarnation}"


NO_BALLOT = Ballot(0, 0)


class LogPosition(NamedTuple):
    """A point in a log and the hash of everything up to it.

    Two logs that agree on the hash at an lsn agree on every entry up to it (PROTOCOL A6).
    """

    lsn: int
    ballot: Ballot
    chain: bytes


EMPTY_LOG = LogPosition(0, NO_BALLOT, bytes(16))


def is_valid_name(name: str) -> bool:
    """`[-_.a-zA-Z0-9]{1,100}` with no empty dot segment."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_valid_replica_set_name(name: str) -> bool:
    """A name, or two names joined by one slash: `aws.us-east-1/p0`."""
    parts = name.split("/")
    return len(name) <= MAX_NAME_LENGTH and len(parts) <= 2 and all(map(is_valid_name, parts))


def check_name(what: str, name: str) -> str:
    """Return `name`, or raise `RequestError` naming it and the rule."""
    if not is_valid_name(name):
        raise RequestError(
            f"{what} {name!r} is not a valid name",
            f"use 1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 - _ and dots between non-empty segments",
        )
    return name
