"""Values that say what they are: of which record they were made, as which record of a named task,
which number of a key. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MADE: Final = re.compile(r"of (\S+)@(\d+) by ")
_NUMBERED: Final = re.compile(r"([^|]+)\|(\d+)\|([^|:]+):")


def made_of(partition: str, offset: int) -> str:
    """How an output of a record begins."""
    return f"of {partition}@{offset} by "


def source_of(value: str) -> tuple[str, int] | None:
    """(partition, offset) of the record that an output was made of."""
    found = _MADE.match(value)
    return None if found is None else (found[1], int(found[2]))


class Numbered(NamedTuple):
    """A record of a task, or of a key: its number there, and who has sent it."""

    of: str
    number: int
    by: str

    def __str__(self) -> str:
        return f"{self.of}|{self.number}|{self.by}:"


def numbered(value: str) -> Numbered | None:
    found = _NUMBERED.match(value)
    return None if found is None else Numbered(found[1], int(found[2]), found[3])
