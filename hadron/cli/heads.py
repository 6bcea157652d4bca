"""Whether an input begins with what was published under its name.

All that is kept of a name is the last sequence that each partition has logged under it (PROTOCOL
D6). So a sequence here says two things: where its record stands in the input, and a hash of
everything up to there. It still rises from record to record, and whoever publishes the input again
sees whether it is the same one.

Safety rule: nothing goes out that is wrong. What some partition might log is held back until the
last of the known sequences has been met.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final
from zlib import crc32

import msgspec

from hadron.model.errors import RequestError
from hadron.model.problems import shorten
from hadron.model.record import NewRecord
from hadron.model.words import counted

_HASHED: Final = 1 << 62
"""In each sequence with a hash: above all that are plain numbers, which versions before gave."""

_HASH_BITS: Final = 24
"""What is left of the 63 is enough for 2³⁸ records."""

_HASH: Final = (1 << _HASH_BITS) - 1


def numbered(
    chunks: Iterable[list[NewRecord]], lasts: Collection[int], name: str
) -> Iterator[list[NewRecord]]:
    """The records with their sequences. Raises `RequestError` when they are not those that were
    published under the name, or fewer.

    Args:
        lasts: of each partition, the last sequence under the name; -1 for none.
    """
    known = {last for last in lasts if last >= 0}
    is_plain = any(last < _HASHED for last in known)
    places = {_place(last) for last in known}
    lowest, highest = min(map(_place, lasts)), max(map(_place, lasts))
    held: list[list[NewRecord]] = []
    count = digest = 0
    for chunk in chunks:
        found: list[NewRecord] = []
        for at, record in enumerate(chunk, count):
            digest = _digest(record, digest)
            sequence = at if is_plain else _HASHED | at << _HASH_BITS | digest & _HASH
            if at in places and sequence not in known:
                raise _other(name, at + 1)
            found.append(msgspec.structs.replace(record, sequence=sequence))
        held.append(found)
        count += len(found)
        # Up to the lowest no partition logs any, whatever they are.
        if count <= lowest + 1 or count > highest:
            yield from held
            held.clear()
    if count <= highest:
        raise _shorter(name, count, highest + 1)


def _place(sequence: int) -> int:
    """Where in the input its record stands; -1 of none."""
    return sequence if sequence < _HASHED else (sequence ^ _HASHED) >> _HASH_BITS


def _digest(record: NewRecord, digest: int) -> int:
    value = record.value
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, bytes | msgspec.Raw):
        data = bytes(value)
    else:
        data = msgspec.json.encode(value)
    # With its length: where records begin counts as well.
    return crc32(b"%d %s" % (len(data), record.id.encode()), crc32(data, digest))


def _other(name: str, count: int) -> RequestError:
    were = "the first record is not the one that was"
    if count > 1:
        were = f"the first {count:,} records are not those that were"
    return RequestError(
        f"{were} published under the name {shorten(name)}: it is another input, or has changed",
        "publish it under another --name; nothing of it was published now",
    )


def _shorter(name: str, count: int, before: int) -> RequestError:
    return RequestError(
        f"the input has {counted(count, 'record')}, and {before:,} had been published under the "
        f"name {shorten(name)}: it is another input, or was cut",
        "publish it under another --name; nothing of it was published now",
    )
