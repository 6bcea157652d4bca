"""Records that their producers have damaged, as programs in other languages get them."""

from __future__ import annotations

import pytest

from hadron.client.exchanges.message import Message
from hadron.doors.grpc.exchanging import arrived
from hadron.doors.grpc.messages import stored_record
from hadron.model.errors import DamagedRecordError
from hadron.model.record_batch import decode_batch
from hadron.model.tests import poison

WHOLE = poison.INSIDE["headers out of order"]
SINGLE = poison.SINGLE["text that is none"]


def test_they_have_their_bytes() -> None:
    first, second, _ = map(stored_record, decode_batch(WHOLE).records())
    assert first.damage
    assert second.damage
    # A body that all of them share is told once.
    assert (first.raw, second.raw) == (decode_batch(WHOLE).raw, b"")
    before, damaged, _ = map(stored_record, decode_batch(SINGLE).records())
    assert (damaged.raw, bool(damaged.damage)) == (b"\xff\xfe", True)
    assert (before.raw, before.damage) == (b"", "")


def test_messages_have_them_too() -> None:
    before, message, _ = map(Message, decode_batch(SINGLE).records())
    assert (before.damage, before.raw, message.raw) == ("", b"aa", b"\xff\xfe")
    with pytest.raises(DamagedRecordError):
        _ = message.value
    assert message.damage in repr(message)
    told = arrived(message)
    assert (told.damage, told.raw) == (message.damage, b"\xff\xfe")
    assert not arrived(before).raw
