"""What a set's leader lets itself be told by whoever says that it is the metadata set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.metadata.adopter import Allegiance, SchemaAdopter
from hadron.metadata.messages import changes_from, changes_to
from hadron.model.errors import FrameError, HandshakeError, SchemaError
from hadron.model.schema import LostRange, RegisteredSet, Tombstone
from hadron.serving.tests.stack import SET, UUID, Stack, leading
from hadron.state.adoption import Changes, StoredObject
from hadron.wire.messages import schema_pb2

META = b"m" * 16
STREAM = StoredObject(1, "Stream", "default", "s", f'{{"partitions":["{SET}"]}}', 1)


def adopter(stack: Stack, metadata: str = "meta") -> SchemaAdopter:
    return SchemaAdopter(
        Allegiance("test", SET, UUID, 1, metadata), stack.controller, stack.catalog
    )


def request(changes: Changes | None = None, **fields: Any) -> schema_pb2.AdoptSchemaRequest:
    given = {"cluster": "test", "metadata": "meta", "uuid": META, "epoch": 1, "is_last": True}
    return schema_pb2.AdoptSchemaRequest(
        changes=None if changes is None else changes_to(changes), **{**given, **fields}
    )


async def test_it_says_where_it_stands_and_takes_what_follows(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        answer = await adopter(stack).adopt(request())
        assert (answer.replica_set, answer.uuid, answer.metadata_index) == (SET, UUID, 0)
        assert answer.source == b""
        answer = await adopter(stack).adopt(request(Changes(0, 1, objects=(STREAM,))))
        assert (answer.metadata_index, answer.source) == (1, META)
        # Usable at once.
        assert (await stack.append(1, b"v")).base_offset == 0
        with pytest.raises(SchemaError, match="stands at index 1, what was pushed follows 0"):
            await adopter(stack).adopt(request(Changes(0, 2, objects=(STREAM,))))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cluster": "other"}, "pushed by 'meta' of cluster 'other'"),
        ({"metadata": "elsewhere"}, "pushed by 'elsewhere' of cluster 'test'"),
    ],
)
async def test_a_stranger_is_refused_and_that_is_said(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    async with leading(tmp_path) as stack:
        own = adopter(stack)
        with pytest.raises(HandshakeError, match=says):
            await own.adopt(request(**fields))
        assert says in own.trouble
        await own.adopt(request())
        assert own.trouble == ""


async def test_a_refusal_of_the_metadata_set_is_shown_here(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        own = adopter(stack)
        await own.adopt(request(refusal="the name is taken"))
        assert own.trouble == "the name is taken"


async def test_it_says_what_it_has_of_what_the_metadata_set_has_lost(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        own = adopter(stack)
        answer = await own.adopt(request(Changes(0, 1, objects=(STREAM,))))
        assert list(answer.has_lost) == []
        for end, above, told in ((0, 1, ["Stream default/s"]), (1, 5, [])):
            lost = schema_pb2.LostRange(end_index=end, above_index=above)
            assert list((await own.adopt(request(lost=[lost]))).has_lost) == told
        with pytest.raises(FrameError, match="is out of range"):
            await own.adopt(request(lost=[schema_pb2.LostRange(end_index=1, above_index=1 << 63)]))


@pytest.mark.parametrize("metadata", ["meta", SET])
async def test_who_has_pushed_once_is_not_told_of_for_ever(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, metadata: str
) -> None:
    """Anybody may; and a metadata set never gets a good push, which would end it."""
    async with leading(tmp_path) as stack:
        own = adopter(stack, metadata)
        for _ in range(4):
            with pytest.raises(HandshakeError, match=r"pushed by 'm+\.\.\.'") as refused:
                await own.adopt(request(cluster="other", metadata="m" * 300_000))
            assert len(str(refused.value)) < 1_000
            clock.jump(40)
            assert len(own.troubles) == 1, "repeated in time"
        clock.jump(21)
        assert own.troubles == []
        assert caplog.text.count("a schema was pushed by") == 1


async def test_the_metadata_set_adopts_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        with pytest.raises(HandshakeError, match="is the metadata set itself"):
            await adopter(stack, SET).adopt(request(metadata=SET))


async def test_numbers_that_no_node_makes_are_refused(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        for bad in (
            request(Changes(0, 1, objects=(STREAM,)), uuid=b"short"),
            request(Changes(0, 1, objects=(STREAM,)), epoch=1 << 63),
        ):
            with pytest.raises(FrameError):
                await adopter(stack).adopt(bad)
        with pytest.raises(FrameError, match="epoch 2147483648 is out of range"):
            await adopter(stack).adopt(request(Changes(0, 1, objects=(STREAM,)), epoch=1 << 31))
        for index in (1 << 63, (1 << 63) - 2, 2 << 32):
            huge = request(Changes(0, 1))
            huge.changes.objects.add(id=index)
            for bad in (huge, request(Changes(0, index))):
                with pytest.raises(FrameError, match=f"metadata index {index} is out of range"):
                    await adopter(stack).adopt(bad)
        malformed = StoredObject(1, "Stream", "default", "s", "{", 1)
        with pytest.raises(SchemaError, match="malformed"):
            await adopter(stack).adopt(request(Changes(0, 1, objects=(malformed,))))
        assert await stack.rows("SELECT * FROM hadron_schema_object") == []


def test_changes_travel_without_loss() -> None:
    changes = Changes(
        3,
        9,
        True,
        (STREAM,),
        (Tombstone(8, 2, "Stream", "default", "g"),),
        (RegisteredSet("p", UUID, 4, 9),),
        (LostRange(2, 4),),
    )
    assert changes_from(changes_to(changes), 1) == changes
