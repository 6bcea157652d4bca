"""What a client keeps of the schema, when answers and what it watches overtake each other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from hadron.client.connecting.session import Session
from hadron.client.schema.catalog import Catalog, _from_message
from hadron.client.tests.support import served
from hadron.model.backoff import Backoff
from hadron.model.errors import NotFoundError, UnknownMethodError
from hadron.model.schema import SchemaObject, StreamSpec, spec_to_json
from hadron.testing.nodes import SeededRandom
from hadron.wire.calling import Caller
from hadron.wire.messages import schema_pb2


def stream_at(index: int, *partitions: str) -> schema_pb2.SchemaObject:
    """Stream `s`, created at index 3, as of a later change."""
    return schema_pb2.SchemaObject(
        kind="Stream",
        namespace="default",
        name="s",
        id=3,
        metadata_index=index,
        spec_json=spec_to_json(StreamSpec(partitions=partitions)).decode(),
    )


class SlowAnswers:
    """A session that gives prepared answers, each after something else has happened."""

    def __init__(self) -> None:
        self.endpoint = SimpleNamespace(namespace="default")
        self.topology = SimpleNamespace(metadata="meta")
        self.background = SimpleNamespace(start=lambda _run: None)
        self.request_timeout_s = 30.0
        self.answers: list[tuple[Callable[[], object], schema_pb2.GetObjectsResponse]] = []
        self.asked: list[int] = []
        """The lowest index that each request could use."""

    async def request(
        self, _replica_set: str, _method: object, request: Any, **_options: object
    ) -> tuple[schema_pb2.GetObjectsResponse, memoryview]:
        self.asked.append(request.min_index)
        happens, answer = self.answers.pop(0)
        happens()
        return answer, memoryview(b"")


async def test_the_schema_is_followed_also_past_a_node_that_does_not_know_the_call() -> None:
    asked: list[str] = []
    running: list[Callable[[], Awaitable[None]]] = []
    over = anyio.CancelScope()

    def connected(where: str) -> None:
        asked.append(where)
        if len(asked) == 3:
            over.cancel()
        raise UnknownMethodError("method Schema.WatchSchema is not served here")

    async def connect_any(*, turn: int) -> None:
        connected(f"any {turn}")

    async def connect(replica_set: str) -> None:
        connected(replica_set)

    session = SimpleNamespace(
        endpoint=SimpleNamespace(namespace="default"),
        topology=SimpleNamespace(metadata="meta"),
        background=SimpleNamespace(start=running.append),
        ports=SimpleNamespace(random=random.Random(1)),
        connect=connect,
        connect_any=connect_any,
    )
    catalog = Catalog(cast(Session, session))
    with over:
        await catalog._follow()
    assert asked == ["any 0", "meta", "any 1"]


async def test_a_change_that_overtakes_the_answer_is_not_missed() -> None:
    """The watch tells each change once: an older answer must not be kept after it."""
    session = SlowAnswers()
    catalog = Catalog(cast(Session, session))
    change = schema_pb2.SchemaChanges(
        from_index=3, to_index=4, objects=[stream_at(4, "eu/p0", "us/p0")]
    )
    session.answers = [
        (
            lambda: catalog._take(change),
            schema_pb2.GetObjectsResponse(objects=[stream_at(3, "eu/p0")], metadata_index=3),
        ),
        (
            lambda: None,
            schema_pb2.GetObjectsResponse(
                objects=[stream_at(4, "eu/p0", "us/p0")], metadata_index=4
            ),
        ),
    ]
    assert await catalog.partitions("s") == ["eu/p0", "us/p0"]
    assert session.asked == [0, 4]
    # Nobody is asked again.
    assert (await catalog.stream("s")).metadata_index == 4


async def test_the_end_of_a_stream_is_told_also_to_who_has_ended_it_himself() -> None:
    """What was known of it was forgotten then: its producers hear of it by this alone."""
    catalog = Catalog(cast(Session, SlowAnswers()))
    gone = schema_pb2.DeletedObject(id=3, kind="Stream", namespace="default", name="s")
    assert catalog._take(schema_pb2.SchemaChanges(from_index=3, to_index=4, deleted=[gone]))
    other = schema_pb2.DeletedObject(id=4, kind="Stream", namespace="other", name="s")
    assert not catalog._take(schema_pb2.SchemaChanges(from_index=4, to_index=5, deleted=[other]))


async def test_who_follows_a_stream_is_told_by_whatever_answer_says_so_first() -> None:
    session = SlowAnswers()
    catalog = Catalog(cast(Session, session))

    def answered(*objects: schema_pb2.SchemaObject) -> None:
        answer = schema_pb2.GetObjectsResponse(objects=objects, metadata_index=9)
        session.answers.append((lambda: None, answer))

    answered(stream_at(3, "eu/p0"))
    first = await catalog.stream("s")
    told: list[SchemaObject | None] = []
    stop = catalog.follow(first, told.append)
    answered(stream_at(4, "eu/p0", "us/p0"))
    await catalog.objects("Stream", "", "")
    assert [each and each.metadata_index for each in told] == [4]
    assert await catalog.stream("s") == told[-1]
    # What is older, or of another namespace, is no news.
    stray = stream_at(9)
    stray.namespace = "other"
    answered(stream_at(3, "eu/p0"), stray)
    await catalog.objects("Stream", "", "")
    assert len(told) == 1
    again = stream_at(7)
    again.id = 7
    answered(again)
    await catalog.objects("Stream", "", "")
    assert told[1:] == [None]
    assert (await catalog.stream("s")).id == 7
    stop()


class Told:
    """A connection on which a watch is told these messages, and then ends."""

    peer = "n1"

    def __init__(self, *messages: schema_pb2.SchemaChanges) -> None:
        self._messages = messages

    @asynccontextmanager
    async def open_stream(self, *_: object) -> AsyncIterator[AsyncIterator[tuple[Any, bytes]]]:
        async def each() -> AsyncIterator[tuple[Any, bytes]]:
            for message in self._messages:
                yield message, b""

        yield each()


class Following:
    """Knows stream `s` by one answer, with who follows it, and is told more by watches."""

    def __init__(self, known: schema_pb2.SchemaObject) -> None:
        self.catalog = Catalog(cast(Session, SlowAnswers()))
        first = self.catalog._streams["s"] = _from_message(known)
        self.told: list[SchemaObject | None] = []
        self.catalog.follow(first, self.told.append)

    async def hear(self, *messages: schema_pb2.SchemaChanges) -> None:
        await self.catalog._hear(cast(Caller, Told(*messages)), Backoff(SeededRandom("told")))

    def partitions(self) -> tuple[str, ...] | None:
        """As the stream is known, which is as who follows it was told; None for none."""
        known = self.catalog.known("s")
        assert not self.told or self.told[-1] == known
        return None if known is None else cast(StreamSpec, known.spec).partitions


def whole(
    index: int, *objects: schema_pb2.SchemaObject, more: bool = False, lost: tuple[int, ...] = ()
) -> schema_pb2.SchemaChanges:
    """The whole schema at an index, whose owner has lost what came after one up to another one."""
    ranges = [schema_pb2.LostRange(end_index=lost[0], above_index=lost[1])] if lost else []
    return schema_pb2.SchemaChanges(
        to_index=index, is_whole=True, objects=objects, more_follows=more, lost=ranges
    )


async def test_a_whole_schema_tells_of_the_end_of_what_it_does_not_have() -> None:
    following = Following(stream_at(3))
    # A look-up was quicker than this watch.
    await following.hear(whole(2))
    assert following.told == []
    other = stream_at(4)
    other.id, other.name = 4, "other"
    await following.hear(whole(5, stream_at(3)), whole(5, other, more=True), whole(6, stream_at(3)))
    assert following.told == []
    await following.hear(whole(7, other))
    assert following.told == [None]
    assert following.partitions() is None


async def test_an_older_state_that_came_back_with_a_backup_is_told() -> None:
    """A partition was removed after the backup was made from which the metadata set is restored.
    That goes on above what others have seen, and tells all that it has."""
    following = Following(stream_at(9, "eu/p0"))
    # What an answer is late with comes before the change, of the same history.
    await following.hear(whole(8, stream_at(3, "eu/p0", "us/p0")))
    assert following.partitions() == ("eu/p0",)
    await following.hear(whole(1 << 33, stream_at(3, "eu/p0", "us/p0")))
    assert following.partitions() == ("eu/p0", "us/p0")
    assert len(following.told) == 1


async def test_what_the_metadata_set_has_lost_stays_as_it_is() -> None:
    """After a `recover` it does not know what others have: a stream, or the last change of one."""
    following = Following(stream_at(9, "eu/p0", "us/p0"))
    await following.hear(whole(2000, stream_at(3, "eu/p0"), lost=(8, 1000)))
    assert following.partitions() == ("eu/p0", "us/p0")
    following = Following(stream_at(3, "eu/p0"))
    await following.hear(whole(2001, lost=(2, 1000)))
    assert following.partitions() == ("eu/p0",)
    assert following.told == []
    # What it changes anew counts.
    await following.hear(whole(2002, stream_at(2002, "us/p0"), lost=(2, 1000)))
    assert following.partitions() == ("us/p0",)


async def test_who_calls_what_is_of_another_kind_is_told_of_which() -> None:
    async with served() as (_, client):
        with pytest.raises(NotFoundError) as raised:
            await client.call("s", 1)
        assert raised.value.message == (
            "no endpoint is called 's' in namespace 'default', but a stream is"
        )
        assert raised.value.hint.startswith("`hadron pub` and `hadron sub`, client.send and client")
        with pytest.raises(NotFoundError, match=r"in namespace 'default' \(create it"):
            await client.call("nothing", 1)


async def test_what_its_leader_does_not_know_is_no_other_thing_of_its_name() -> None:
    """It is asked for by its kind first, and then what else has its name: by then it was made, or
    a replica that is behind answers, which has not deleted it and may not for long."""
    session = SlowAnswers()
    catalog = Catalog(cast(Session, session))
    nothing = schema_pb2.GetObjectsResponse(metadata_index=3)
    made = schema_pb2.GetObjectsResponse(objects=[stream_at(4, "eu/p0")], metadata_index=4)
    # Whoever answers, the leader, all of the kind; all of the name.
    session.answers = [(lambda: None, each) for each in (nothing, nothing, nothing, made)]
    with pytest.raises(NotFoundError, match=r"^no stream is called 's' in namespace 'default' \("):
        await catalog.stream("s")
    assert not session.answers
