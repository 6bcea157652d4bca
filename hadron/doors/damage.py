"""What doors tell of records that their producers have damaged."""

from __future__ import annotations

from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record import Record


def told_raw(record: Record, *, alone: bool = False) -> bytes:
    """The stored bytes of a damaged record, as far as they are told: the first `MAX_RECORD_BYTES`,
    which receivers of records have room for.

    Of a batch that cannot be taken apart all of it is with its first record only, or it would be
    told as often as it has records.

    Args:
        alone: no other record is told beside it.
    """
    if record._batch.damage and record._index and not alone:
        return b""
    return record.raw[:MAX_RECORD_BYTES]
