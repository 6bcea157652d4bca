"""Entries on the wire: a round trip, and every way in which lengths can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import FrameError
from hadron.model.ids import Ballot
from hadron.replication.entries import pack, unpack
from hadron.storage.log import Entry
from hadron.wire.messages import replication_pb2

_number = st.integers(0, (1 << 63) - 1)
_entries = st.lists(
    st.builds(
        Entry,
        lsn=_number,
        ballot=st.builds(Ballot, _number, _number),
        now_ms=_number,
        command=st.binary(max_size=40),
        body=st.binary(max_size=40),
        chain=st.binary(min_size=16, max_size=16),
    ),
    max_size=6,
)


@given(_entries)
def test_what_is_packed_comes_out_again(entries: list[Entry]) -> None:
    headers, bodies = pack(entries)
    wire = [replication_pb2.Entry.FromString(header.SerializeToString()) for header in headers]
    assert unpack(wire, memoryview(b"".join(bytes(body) for body in bodies))) == entries


@given(_entries, st.data())
def test_lengths_that_do_not_add_up_are_refused(entries: list[Entry], data: Any) -> None:
    headers, bodies = pack(entries)
    attachment = b"".join(bytes(body) for body in bodies)
    if headers and data.draw(st.booleans()):
        header = data.draw(st.sampled_from(headers))
        length = data.draw(st.integers(0, (1 << 32) - 1).filter(lambda n: n != header.body_length))
        header.body_length = length
    else:
        cut = data.draw(st.integers(0, len(attachment)))
        attachment = attachment[:cut] if cut < len(attachment) else attachment + b"x"
    with pytest.raises(FrameError, match=r"body of|left over"):
        unpack(headers, memoryview(attachment))


@pytest.mark.parametrize("field", ["lsn", "epoch", "incarnation"])
def test_numbers_that_no_table_holds_are_refused(field: str) -> None:
    header = replication_pb2.Entry(lsn=1)
    target = header if field == "lsn" else header.ballot
    setattr(target, field, 1 << 63)
    with pytest.raises(FrameError, match=f"{field} {1 << 63} is out of range"):
        unpack([header], memoryview(b""))
