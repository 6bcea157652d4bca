"""Keys of triggers that are read again: of records that lie apart, or are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadron.model.batch import key_hash
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import PeerError
from hadron.model.record import NewRecord
from hadron.pipelines import keys as module
from hadron.pipelines.keys import TriggerKeys
from hadron.serving.tests.stack import SET, leading
from hadron.state.pipelines.views import OutputRef
from hadron.state.streams.retention import TrimStream

IN = 1


def batch(*keys: str | None) -> bytes:
    builder = BatchBuilder()
    for key in keys:
        builder.add(NewRecord(value=b"x", key=key), 1)
    return builder.build()


async def test_each_batch_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 1)
    async with leading(tmp_path) as stack:
        assert await stack.stream("in") == IN
        for each in (("gone",), ("a", None, "b"), (None, None), *[("c", "d")] * 20):
            await stack.append(IN, data=batch(*each))
        await stack.controller.execute(TrimStream(IN, 1))
        reads: list[int] = []
        read = stack.visible.read

        async def counted(stream_id: int, offset: int, max_bytes: int) -> Any:
            reads.append(offset)
            return await read(stream_id, offset, max_bytes)

        monkeypatch.setattr(stack.visible, "read", counted)
        keys = TriggerKeys(SET, stack.catalog, stack.visible, None)
        wanted = [OutputRef(IN, SET, at) for at in (99, 27, 26, 4, 3, 2, 1, 0)]
        found = await keys.of([*wanted, OutputRef(77, SET, 0)])
        assert {each.offset: of for each, of in found.items()} == {
            1: key_hash(b"a"),
            2: 0,
            3: key_hash(b"b"),
            4: 0,
            26: key_hash(b"c"),
            27: key_hash(b"d"),
        }
        assert reads == [0, 1, 4, 26, 99]
        with pytest.raises(PeerError, match="nobody here knows who leads other/p1"):
            await keys.of([OutputRef(IN, "other/p1", 0)])
