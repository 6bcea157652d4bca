"""Values that say what they are: of which record they were made, as which record of a named task,
which number of a key, in which batch of a bulk writer. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MADE: Final = re.compile(r"of (\S+)@(\d+) by ")
_OUTPUT: Final = re.compile(r"output of (\d+) (\S+) (\d+) (\d+) (\d+) by ")
_WRITTEN: Final = re.compile(r"batch (\S+) (\d+) by (\S+):")
_KEYED: Final = re.compile(r"(\S+) (\S+) by ")
_NUMBERED: Final = re.compile(r"([^|]+)\|(\d+)\|([^|:]+):")


def made_of(partition: str, offset: int) -> str:
    """How an output of a record begins."""
    return f"of {partition}@{offset} by "


def source_of(value: str) -> tuple[str, int] | None:
    """(partition, offset) of the record that an output was made of."""
    found = _MADE.match(value)
    return None if found is None else (found[1], int(found[2]))


class Made(NamedTuple):
    """What an output of a pipeline's stage was made for."""

    pipeline_id: int
    stage: str
    instance_id: int
    created_ms: int
    attempt: int

    def __str__(self) -> str:
        """How it begins."""
        return (
            f"output of {self.pipeline_id} {self.stage} {self.instance_id} {self.created_ms}"
            f" {self.attempt} by "
        )


def output_of(value: str) -> Made | None:
    """What an output was made for; None for other records."""
    found = _OUTPUT.match(value)
    if found is None:
        return None
    pipeline_id, stage, *numbers = found.groups()
    return Made(int(pipeline_id), stage, *map(int, numbers))


class Keyed(NamedTuple):
    """What somebody with a key does: a record that another one with that key may wait for."""

    key: str
    does: str

    def __str__(self) -> str:
        """How it begins."""
        return f"{self.key} {self.does} by "


def keyed(value: str) -> Keyed | None:
    """Who does what; None of other records."""
    found = _KEYED.match(value)
    return None if found is None else Keyed(found[1], found[2])


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


class Written(NamedTuple):
    """A record that was written in bulk: of which query's batch, and by which attempt."""

    query: str
    batch: int
    attempt: str

    def __str__(self) -> str:
        """How it begins."""
        return f"batch {self.query} {self.batch} by {self.attempt}:"


def written(value: str) -> Written | None:
    found = _WRITTEN.match(value)
    return None if found is None else Written(found[1], int(found[2]), found[3])
