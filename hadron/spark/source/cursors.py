"""Cursors of a streaming query, as they stand in its checkpoint (PROTOCOL D4).

An offset alone does not tell which record it is behind: a stream can be deleted and created again
under its name, and a log can lose records by a recovery or a restored backup and grow past the
offset anew. So each partition's entry is an object that people can read,

    {"offset": 1200, "epoch": 1, "incarnation": 3, "stream_id": 17}

with the ballot of the batch that has the record before the offset (left out where no such record
was kept). Checkpoints from before that have plain offsets; they are read, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hadron.model.errors import LogTruncatedError, RequestError
from hadron.model.ids import Ballot

NEW_CHECKPOINT: Final = (
    "the checkpoint is of records that are gone: start the query with a new checkpointLocation, "
    "and with startingOffsets where it is to begin"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything of a partition before `offset` has been read.

    Attributes:
        ballot: of the batch with the record before `offset`; None when it is not known.
        stream_id: 0 when it is not known.
    """

    offset: int
    ballot: Ballot | None = None
    stream_id: int = 0


Checkpoint = dict[str, Any]
"""A cursor by partition, as JSON."""


def to_json(cursors: Mapping[str, Cursor]) -> Checkpoint:
    """Equal cursors give equal text: Spark takes other text for new records."""
    found: Checkpoint = {}
    for name, cursor in sorted(cursors.items()):
        found[name] = {"offset": cursor.offset}
        if cursor.ballot is not None:
            epoch, incarnation = cursor.ballot
            found[name] |= {"epoch": epoch, "incarnation": incarnation}
        found[name]["stream_id"] = cursor.stream_id
    return found


def from_json(checkpoint: Checkpoint) -> dict[str, Cursor]:
    """Raises `RequestError` for what no version of this connector writes."""
    return {name: _cursor(name, entry) for name, entry in checkpoint.items()}


def _cursor(name: str, entry: Any) -> Cursor:
    if type(entry) is int and entry >= 0:
        return Cursor(entry)
    fields = entry if isinstance(entry, dict) else {}
    known = ("offset", "epoch", "incarnation", "stream_id")
    numbers = [fields.get(field, 0) for field in known]
    if "offset" not in fields or set(fields) - set(known) or not _are_numbers(numbers):
        raise RequestError(
            f"the checkpoint has {entry!r} for partition {name!r}",
            "it needs at least an offset; was it written by a newer version, or by hand?",
        )
    offset, epoch, incarnation, stream_id = numbers
    return Cursor(offset, Ballot(epoch, incarnation) if epoch else None, stream_id)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def check_stream(cursors: Mapping[str, Cursor], stream: str, stream_id: int) -> None:
    """Raises `LogTruncatedError` when a cursor is of another stream that had the name before; no
    option makes that right: its offsets mean nothing here (PROTOCOL D3)."""
    for name, cursor in cursors.items():
        if cursor.stream_id not in (0, stream_id):
            raise LogTruncatedError(
                f"stream {stream!r} was deleted and created again: offset {cursor.offset} of "
                f"{name} is of the stream with id {cursor.stream_id}, this one has id {stream_id}",
                NEW_CHECKPOINT,
            )


def truncated(stream: str, partition: str, message: str) -> LogTruncatedError:
    """The log has lost what a cursor is behind."""
    return LogTruncatedError(
        f"{stream}/{partition} has lost records by a recovery or a restored backup: {message}",
        f"{NEW_CHECKPOINT}; or set failOnDataLoss to false to go on at the same offsets",
    )
