"""What users meet of the client: what they may give, and what mistakes say."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections import namedtuple
from collections.abc import Callable, Coroutine
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import anyio.to_thread
import pytest

import hadron
from hadron.client.terms.arguments import objects_of
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served
from hadron.model.batch_building import encode_values
from hadron.model.documents.reading import declared
from hadron.model.errors import (
    ClosedError,
    InvalidRecordError,
    NotReadyError,
    RequestError,
    SchemaError,
)
from hadron.model.record import NewRecord, encode_value
from hadron.model.record_batch import decode_batch
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.model.services import EndpointSpec, ExchangeSpec

# --- what is forgotten --------------------------------------------------------------------------


@both
async def test_forgetting_to_enter_says_so() -> None:
    async with served() as (node, client):
        producer: Any = client.producer("s")
        with pytest.raises(AttributeError, match=r"write `async with client.producer\(...\) as pr"):
            await producer.send(b"x")
        assert not hasattr(producer, "send")
        with pytest.raises(ClosedError, match="the producer is not open"):
            await producer
        with pytest.raises(RequestError, match="`with` does not open"), producer:
            pass
        subscription: Any = client.subscribe("s", group="g")
        with pytest.raises(ClosedError, match=r"async with client.subscribe\(...\) as subscripti"):
            async for _ in subscription:
                pass
        with pytest.raises(ClosedError, match=r"async with client.subscribe\(...\) as subscripti"):
            list(subscription)
        transaction: Any = client.transaction()
        with pytest.raises(ClosedError, match=r"the transaction is not open; .*\) as tx:"):
            await transaction
        messages: Any = client.exchange("e").subscribe("a")
        with pytest.raises(ClosedError, match=r"the subscription is not open; .*\) as messages:"):
            await messages
        unopened = hadron.connect(f"hadron://{node.address}")
        for call in (unopened.objects(), unopened.topology(), unopened.offsets("s")):
            with pytest.raises(ClosedError, match="not open yet") as caught:
                await call
            assert "async with hadron.connect" in caught.value.hint
        with pytest.raises(RequestError, match="`with` does not open"), unopened:
            pass
        never: Any = unopened
        with pytest.raises(RequestError, match="`await` does not open") as caught_too:
            await never
        assert "async with" in caught_too.value.hint
        blocking = hadron.connect_sync(f"hadron://{node.address}")
        with pytest.raises(RequestError, match="`async with` does not open"):
            async with blocking:
                pass


@both
async def test_forgetting_async_before_for_says_so() -> None:
    async with served() as (_, client):
        await client.create_stream("s")
        async with client.subscribe("s", group="g") as subscription:
            loops: list[Any] = [subscription, subscription.batches()]
            loops += [client.read("s"), client.read_batches("s")]
            for each in loops:
                with pytest.raises(RequestError, match="`for` does not wait") as caught:
                    list(each)
                assert "write `async for`" in caught.value.hint
                with pytest.raises(RequestError, match="`await` waits for one result") as caught:
                    await each
                assert "write `async for ... in`" in caught.value.hint


@both
async def test_only_true_and_false_are_answers() -> None:
    """Python takes "no" for true."""
    no: Any = "no"
    async with served() as (_, client):
        await client.create_stream("s")
        with pytest.raises(RequestError, match="follow 'no' is no answer"):
            client.read("s", follow=no)
        with pytest.raises(RequestError, match="ephemeral 'no' is no answer"):
            client.subscribe("s", group="g", ephemeral=no)
        for flag in ("dry_run", "allow_destructive"):
            with pytest.raises(RequestError, match=f"{flag} 'no' is no answer"):
                await client.delete(("Stream", "default", "s"), **{flag: no})
            with pytest.raises(RequestError, match=f"{flag} 'no' is no answer"):
                await client.apply({"kind": "Stream", "name": "t"}, **{flag: no})
        assert len(await client.objects("Stream")) == 1


@both
async def test_an_async_client_is_closed_under_those_who_wait() -> None:
    async with served() as (node, client):
        await client.create_stream("s")
        async with client.producer("s") as producer, client.subscribe("s", group="g") as members:
            assert await members.poll(0) is None
            assert await members.poll_batch(0) is None
            await producer.send(b"x")
            delivery = await members.poll(5)
            assert delivery is not None
            await delivery.ack()
            follower = client.read("s", follow=True)
            assert (await anext(follower)).value == b"x"
            await client.close()
            # Loops end.
            assert [each async for each in members] == []
            assert [each async for each in members.batches()] == []
            assert [each async for each in follower] == []
            with pytest.raises(ClosedError):
                await members.poll(0)
            with pytest.raises(ClosedError):
                await producer.send(b"x")
            with pytest.raises(ClosedError, match="the client is closed"):
                await anext(client.read("s"))
            await producer.close()
            await members.close()
        assert node.values() == [b"x"]


@both
async def test_what_is_sent_to_a_closed_client_is_refused_whatever_it_has_sent_before() -> None:
    async with served() as (node, client):
        await client.create_stream("s")
        await client.send("s", b"x")
        await client.close()
        for stream in ("s", "another"):
            with pytest.raises(ClosedError, match="the client is closed"):
                await client.send(stream, b"y")
        assert node.values() == [b"x"]


@both
async def test_a_client_is_of_one_event_loop() -> None:
    async with served() as (node, client):
        await client.create_stream("s")
        await client.send("s", b"x")
        ways: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: client.send("s", b"y"),
            client.objects,
            lambda: client.offsets("s"),
            lambda: client.call("e", 1),
        ]
        for way in ways:
            with pytest.raises(RequestError, match="the event loop of another thread") as caught:
                await anyio.to_thread.run_sync(asyncio.run, way())
            assert "hadron.connect_sync()" in caught.value.hint
        assert node.values() == [b"x"]


@both
async def test_a_schema_whose_owner_is_not_heard_of_is_read_where_it_is_known() -> None:
    """Its nodes are down, and those that answer were started since."""
    async with served() as (node, client):
        await client.create_stream("s")
        node.owner = "away/p0"
        async with hadron.connect(f"hadron://{node.address}", request_timeout_s=1.0) as another:
            assert (await another.send("s", b"x")).offset == 0
            with pytest.raises(NotReadyError, match="belongs to replica set 'away/p0'") as caught:
                await another.create_stream("t")
            assert caught.value.retryable


# --- what is given ------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Flight:
    number: int
    when: datetime


class Model:
    """As pydantic's: known by its method."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self.fields


class Scalar:
    """As numpy's: known by its methods."""

    shape = ()

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Array:
    def tolist(self) -> list[int]:
        return [1]


class Celsius(float):
    pass


Pair = namedtuple("Pair", "a b")
NOON = datetime(2013, 1, 1, 12, 0)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (NOON, b'"2013-01-01T12:00:00"'),
        (NOON.replace(tzinfo=UTC), b'"2013-01-01T12:00:00Z"'),
        (date(2013, 1, 1), b'"2013-01-01"'),
        (timedelta(seconds=3), b'"PT3S"'),
        (Decimal("1.10"), b'"1.10"'),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, b'"red"'),
        ({1}, b"[1]"),
        (Pair(1, 2), b"[1,2]"),
        (Flight(1, NOON), b'{"number":1,"when":"2013-01-01T12:00:00"}'),
        (Model(a=1), b'{"a":1}'),
        ([Model(a=[None])], b'[{"a":[null]}]'),
        ({"a": Scalar(1.5)}, b'{"a":1.5}'),
        (Celsius(1.5), b"1.5"),
    ],
)
def test_values_that_are_sent(value: Any, stored: bytes) -> None:
    assert encode_value(value)[1] == stored


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "NaN"),
        ({"a": [None, float("inf")]}, "infinity"),
        (Model(a=float("nan")), "NaN"),
        ([Scalar(float("nan"))], "NaN"),
        (Flight(1, Celsius("nan")), "NaN"),  # type: ignore[arg-type]
        (Array(), r"send its \.tolist\(\)"),
        (Scalar(Scalar(1)), "no JSON value"),
        (object(), "object is no JSON value"),
        ({(1, 2): 3}, "tuple"),
        (1j, "complex is no JSON value"),
    ],
)
def test_values_that_are_refused_with_a_way_out(value: Any, why: str) -> None:
    with pytest.raises(InvalidRecordError, match=why) as caught:
        encode_value(value)
    assert "value_serializer" in caught.value.hint


def test_a_record_that_was_read_is_sent_by_its_parts() -> None:
    (record,) = decode_batch(encode_values([b"x"], 1)).records()
    for value in (record, [record]):
        with pytest.raises(InvalidRecordError, match=r"was read is no value|no JSON value"):
            encode_value(value)
    with pytest.raises(InvalidRecordError) as caught:
        encode_value(record)
    assert "hadron.NewRecord(value=record.value" in caught.value.hint


def test_numbers_and_frames_of_numpy_and_pandas() -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    row = {"a": numpy.int64(1), "b": numpy.float32(1.5), "c": numpy.bool_(True)}
    assert encode_value(row)[1] == b'{"a":1,"b":1.5,"c":true}'
    assert encode_value(pandas.Timestamp(NOON))[1] == b'"2013-01-01T12:00:00"'
    for value, why in (
        (numpy.float64("nan"), "NaN"),
        (numpy.array([1, 2]), "tolist"),
        (pandas.DataFrame({"a": [1]}), "to_dict"),
        (pandas.NaT, "no JSON value"),
    ):
        with pytest.raises(InvalidRecordError, match=why):
            encode_value(value)


@both
async def test_serializers() -> None:
    async with served() as (_, client):

        def refuse(value: Any) -> bytes:
            return bytes([value])

        async with client.producer("s", value_serializer=refuse) as producer:
            await producer.send(1, key="k")
            await producer.send(NewRecord(2, type="t"))
            await producer.send_soon(3)
            with pytest.raises(InvalidRecordError, match="failed on a value of type int: ValueErr"):
                await producer.send(256)
            assert sum(each.count for each in await producer.send_many([4, 5])) == 2
            with pytest.raises(InvalidRecordError, match="record 2 of send_many: the value_seria"):
                await producer.send_many([6, 256, 7])
        records = [each async for each in client.read("s", value_deserializer=list)]
        assert [each.value for each in records] == [[n] for n in range(1, 7)]
        assert [each.type for each in records][:2] == ["", "t"]

        def choosy(value: bytes) -> int:
            return {b"\1": 1}[value]

        async with client.subscribe("s", group="g", value_deserializer=choosy) as subscription:
            first, second = await anext(subscription), await anext(subscription)
            assert first.value == 1
            with pytest.raises(InvalidRecordError, match="s/local/p0/1: KeyError"):
                _ = second.value
            assert second.record.value_bytes == b"\2"
            # What a program says of it while it handles that very error.
            assert (second.damage, "s/local/p0/1" in repr(second)) == ("", True)
            await second.nack(reason="unreadable")
        batches = [each async for each in client.read_batches("s", start=1, value_deserializer=len)]
        assert [each.value for batch in batches for each in batch.records()] == [1] * 5
        for wrong in (
            lambda: client.producer("s", value_serializer="json"),  # type: ignore[arg-type]
            lambda: client.read("s", value_deserializer="json"),  # type: ignore[arg-type]
        ):
            with pytest.raises(RequestError, match="cannot be called"):
                wrong()


@both
async def test_a_forgotten_return_of_what_makes_a_handler_is_told_at_once() -> None:
    forgotten: Any = None
    async with served() as (_, client):
        with pytest.raises(RequestError, match="handler None cannot be called") as caught:
            await client.stage("pipe", "a").run(forgotten)
        assert "where another one makes it, with its `return`" in caught.value.hint
        with pytest.raises(RequestError, match="handler None cannot be called"):
            client.serve("quote", forgotten)


@both
async def test_headers_are_a_mapping_or_pairs() -> None:
    async with served() as (_, client):
        async with client.producer("s") as producer:
            await producer.send(b"x", headers={"a": "1"}, timestamp_ms=1_000)
            await producer.send(b"x", headers=[("a", "1"), ("b", "2")], id="mine")
            for wrong in ([("a", "1"), ("a", "2")], [("a",)], "ab", [("a", b"1")], {"a": 1}):
                with pytest.raises(InvalidRecordError, match="header"):
                    await producer.send(b"x", headers=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRecordError, match="timestamp") as caught:
                await producer.send(b"x", timestamp_ms=NOON)  # type: ignore[arg-type]
            assert "datetime.now(UTC)" in caught.value.hint
        async with client.subscribe("s", group="g") as subscription:
            first, second = await anext(subscription), await anext(subscription)
            assert (first.headers, second.headers) == ({"a": "1"}, {"a": "1", "b": "2"})
            assert (first.id, second.id, first.stream) == ("s/local/p0/0", "mine", "s")
            assert first.timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
            assert first.timestamp_ms == 1_000


@both
async def test_reading_from_a_time() -> None:
    async with served() as (node, client):
        async with client.producer("s") as producer:
            receipts = [await producer.send(n) for n in range(3)]
        stamps = [each.append_ms for each in receipts]

        async def values(**options: Any) -> list[Any]:
            return [each.value async for each in client.read("s", **options)]

        assert await values() == await values(start="earliest") == [0, 1, 2]
        assert await values(start=1) == await values(offset=1) == [1, 2]
        assert await values(start=datetime(1969, 1, 1, tzinfo=UTC)) == [0, 1, 2]
        assert await values(start=datetime(2999, 1, 1, tzinfo=UTC)) == []
        since = datetime.fromtimestamp(stamps[1] / 1_000, UTC)
        assert await values(start=since) == [n for n in range(3) if stamps[n] >= stamps[1]]
        assert node.values()
        with pytest.raises(RequestError, match="time zone"):
            await values(start=NOON)
        with pytest.raises(RequestError, match="both start"):
            await values(start=1, offset=2)


# --- what is declared ---------------------------------------------------------------------------


def stream(name: str, *partitions: str, **options: Any) -> SchemaObject:
    return SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=partitions, **options))


def test_what_may_be_declared(tmp_path: Path) -> None:
    one = stream("a", "local/p0", retention=Retention(max_age_ms=604_800_000))
    text = "kind: Stream\nname: a\npartitions: [local/p0]\nretention: {max_age: 7d}\n"
    file = tmp_path / "schema.yaml"
    file.write_text(text)
    mapping = {
        "kind": "Stream",
        "name": "a",
        "partitions": ("local/p0",),
        "retention": {"max_age": "7d"},
    }
    for given in (one, text, file, mapping):
        assert declared(given) == [one]
    assert declared([one, text, mapping]) == [one] * 3
    assert declared(text + "---\n" + text.replace("a\n", "b\n")) == [
        one,
        stream("b", "local/p0", retention=Retention(max_age_ms=604_800_000)),
    ]


def test_what_may_be_named() -> None:
    name, other = ("Stream", "default", "a"), stream("b", "local/p0")
    for given in (name, [name], ("streams", "default", "a"), stream("a", "local/p0")):
        assert objects_of(given) == [(*name, 0)]
    assert objects_of([other, name]) == [("Stream", "default", "b", 0), (*name, 0)]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["x"], "'x'"),
        ("x", "'x'"),
        (5, "5"),
        (("Stream", "default", 5), "'Stream'"),
        ([("Stream", "x")], r"\('Stream', 'x'\)"),
    ],
)
def test_what_names_nothing(names: Any, what: str) -> None:
    with pytest.raises(RequestError, match=f"{what} does not name an object"):
        objects_of(names)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("kind: Stream\nname: a\npartition: [x/p0]\n", "the text:3: unknown key 'partition'"),
        ({"kind": "Stream", "name": "a", "partition": ["x"]}, "Stream a: unknown key 'partition'"),
        ({"kind": "Strem", "name": "a"}, "did you mean 'Stream'"),
        ({"name": "a"}, "kind"),
        ([{"kind": "Stream", "name": "a", "partitions": "x/p0"}], "partitions"),
        ({"kind": "Stream", "name": "a", "partitions": ["x"], "retention": {"max_age": 7}}, "age"),
        ("schema.yaml", "is a file's name"),
        (Path("/nowhere/schema.yaml"), "no such file"),
        (b"kind: Stream", "type bytes declares nothing"),
        (7, "type int declares nothing"),
        ([7], "type int declares nothing"),
        ("", "no documents"),
    ],
)
def test_what_may_not_be_declared(given: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        declared(given)


@both
async def test_what_a_stream_keeps_is_given_whole_or_in_parts() -> None:
    async with served() as (_, client):
        whole = await client.create_stream("a", retention={"max_age": "1h"})
        assert await client.create_stream("a", max_age="1h") == whole
        for name, size in (("b", "10GiB"), ("c", 10 << 30)):
            made = await client.create_stream(name, max_age="7d", max_bytes=size)
            assert isinstance(made.spec, StreamSpec)
            assert made.spec.retention == Retention(max_age_ms=7 * 86_400_000, max_bytes=10 << 30)
        with pytest.raises(RequestError, match="retention and max_bytes are given"):
            await client.create_stream("d", retention={"max_age": "1h"}, max_bytes=1_000)


@both
async def test_endpoints_and_exchanges_are_created() -> None:
    async with served() as (_, client):
        endpoint = await client.create_endpoint("quote", idempotent=True, hedge_after="200ms")
        wanted = EndpointSpec(replica_set="local/p0", idempotent=True, hedge_after_ms=200)
        assert endpoint.spec == wanted
        again = await client.create_endpoint("quote", idempotent=True, hedge_after="0.2s")
        assert again == endpoint
        with pytest.raises(SchemaError, match=r"exists with other settings: idempotent is true"):
            await client.create_endpoint("quote")
        exchange = await client.create_exchange("prices", from_stream="s", topic="a.{type}")
        assert exchange.spec == ExchangeSpec(
            replica_set="local/p0", from_stream="s", topic="a.{type}"
        )
        with pytest.raises(SchemaError, match="input"):
            await client.create_endpoint("e", input="many")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"^replica_set 5 "):
            await client.create_endpoint("e", replica_set=5)  # type: ignore[arg-type]
    async with served(FakeNode(partitions=("a/p0", "b/p0"))) as (_, client):
        with pytest.raises(RequestError, match="has 2 replica sets: a/p0, b/p0") as caught:
            await client.create_exchange("prices")
        assert "replica_set=" in caught.value.hint
        made = await client.create_exchange("prices", replica_set="b/p0")
        # Where it is need not be said again.
        assert await client.create_exchange("prices") == made


@both
async def test_streams_are_created() -> None:
    async with served() as (_, client):
        made = await client.create_stream("orders", retention={"max_age": "1h"})
        assert isinstance(made.spec, StreamSpec)
        assert (made.spec.partitions, made.spec.retention.max_age_ms) == (("local/p0",), 3_600_000)
        again = await client.create_stream("orders", retention={"max_age": "1h"})
        assert again.spec == made.spec
        with pytest.raises(SchemaError, match=r"retention is .*1h.*, here it is .*2h"):
            await client.create_stream("orders", retention={"max_age": "2h"})
        with pytest.raises(SchemaError, match="max_age"):
            await client.create_stream("other", retention={"max_age": "long"})
        with pytest.raises(SchemaError, match="name"):
            await client.create_stream("no name")
        for name in ("", None):
            with pytest.raises(RequestError, match=r"^name "):
                await client.create_stream(name)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="partitions 3 is of type int"):
            await client.create_stream("r1", partitions=3)  # type: ignore[arg-type]
        applied = await client.apply("kind: Stream\nname: t\npartitions: [local/p0]\n")
        assert [each.action for each in applied.changes] == ["created"]
        applied = await client.apply(
            [{"kind": "Stream", "name": "t", "partitions": ["local/p0"]}], dry_run=True
        )
        assert [each.action for each in applied.changes] == ["unchanged"]


@both
async def test_wrong_arguments_are_named() -> None:
    async with served() as (_, served_client):
        # Users are not held to the annotations.
        client: Any = served_client
        connect: Any = hadron.connect
        noon = NOON.replace(tzinfo=UTC)

        def member(**settings: Any) -> Any:
            return client.subscribe("s", group="g", **settings)

        for wrong, named in (
            (lambda: member(ack_deadline_s="30"), "ack_deadline_s '30' is of type str"),
            (lambda: member(heartbeat_s="1"), "heartbeat_s '1' is of type str"),
            (lambda: member(max_in_flight=1.5), "max_in_flight 1.5 is of type float"),
            (lambda: member(max_attempts=True), "max_attempts True is of type bool"),
            (lambda: member(order="keys"), "'keys' is not an order"),
            (lambda: member(start=NOON), "start .* time zone"),
            (lambda: member(partitions=3), "partitions 3 is of type int"),
            (lambda: client.subscribe(["a"], group="g"), "stream .'a'. is of type list"),
            (lambda: client.producer(["a"]), "stream .'a'. is of type list"),
            (lambda: client.producer("s", linger_ms="3"), "linger_ms '3' is of type str"),
            (lambda: client.producer("s", batch_bytes="3"), "batch_bytes '3' is of type str"),
            (lambda: client.read("s", limit="3"), "limit '3' is of type str"),
            (lambda: client.read(["s"]), "stream .'s'. is of type list"),
            (lambda: client.read("s", start=NOON), "start .* time zone"),
            (lambda: client.read_batches("s", start=NOON), "start .* time zone"),
            (lambda: connect(["h:1"]), "is not a Hadron URL"),
        ):
            with pytest.raises(RequestError, match=named):
                wrong()  # type: ignore[no-untyped-call]
        for call, named in (
            (client.stream(5), "stream 5 is of type int"),
            (client.stream(["s"]), "stream .'s'. is of type list"),
            (client.offsets(5), "stream 5 is of type int"),
            (client.fetch("s", 5, 0), "partition 5 is of type int"),
            (client.objects(5), "kind 5 is of type int"),
            (client.objects("Stream", name=5), "name 5 is of type int"),
            (client.objects("streem"), "'streem' is no kind .did you mean 'stream'"),
            (client.delete([("streem", "default", "s")]), "'streem' is no kind"),
            (client.reset_group("s", "g", "-2"), "'-2' is not where a group can go on"),
            (client.reset_group("s", "g", 1.5), "1.5 is not where a group can go on"),
            (client.groups(5), "stream 5 is of type int"),
            (client.describe_group("s", 5), "group 5 is of type int"),
            (client.reset_group("s", "g", NOON), "to .* time zone"),
            (client.instances(5), "pipeline 5 is of type int"),
        ):
            with pytest.raises(RequestError, match=named):
                await call
        assert await client.objects("streams") == await client.objects("Stream") != []
        with pytest.raises(RequestError, match=r"at_ms 1\.5 is of type float"):
            await client.offsets("s", at_ms=1.5)
        assert await client.offsets("s", at_ms=noon) == await client.offsets(
            "s", at_ms=round(noon.timestamp() * 1000)
        )
        async with client.producer("s", linger_ms=timedelta(milliseconds=3)) as producer:
            for many in ("abc", b"abc", {"a": 1}, 5):
                with pytest.raises(InvalidRecordError, match=r"^send_many of one ") as caught:
                    await producer.send_many(many)
                assert "before it" not in caught.value.hint
            with pytest.raises(InvalidRecordError, match="record 1 of send_many") as caught:
                await producer.send_many([Array])
            assert "before it" not in caught.value.hint
            await producer.send(b"x", timestamp=noon)
            with pytest.raises(InvalidRecordError, match="both timestamp and timestamp_ms"):
                await producer.send(b"x", timestamp=noon, timestamp_ms=1)
            with pytest.raises(InvalidRecordError, match="timestamp 5 is of type int"):
                await producer.send(b"x", timestamp=5)
            with pytest.raises(InvalidRecordError, match=r"timestamp .* time zone"):
                await producer.send(b"x", timestamp=NOON)
            assert repr(producer) == ("<Producer of 's' at local/p0, open, 0 batches on their way>")
        assert repr(client).endswith("/default, open>")
        async with member(
            ack_deadline_s=timedelta(minutes=1), partitions="local/p0"
        ) as subscription:
            assert repr(subscription) == "<Subscription to 's', group 'g', joined at local/p0>"
            delivery = await anext(subscription)
            assert delivery.timestamp == noon
            for given in ({"delay_s": "x"}, {"reason": 5}, {"delay_s": -1}):
                with pytest.raises(RequestError, match=next(iter(given))):
                    await delivery.nack(**given)
            await delivery.nack(timedelta(seconds=0))


@both
async def test_records_go_to_other_processes() -> None:
    async with served() as (_, client):
        async with client.producer("s") as producer:
            await producer.send(b"other")
            await producer.send({"a": 1}, key="k", type="t", headers={"h": "1"}, timestamp_ms=7)
        records = [record async for record in client.read("s")]
        for record in records:
            copy = pickle.loads(pickle.dumps(record))
            for name in (
                "value",
                "key",
                "type",
                "id",
                "headers",
                "timestamp_ms",
                "offset",
                "partition",
                "stream",
                "content_type",
            ):
                assert getattr(copy, name) == getattr(record, name), name


def test_the_package_shows_what_there_is_to_use() -> None:
    shown = {name for name in dir(hadron) if not name.startswith("__")}
    assert shown == {name for name in hadron.__all__ if not name.startswith("__")}


async def test_kinds_that_nothing_serves_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, client):
        await client.apply({"kind": "Queue", "name": "q", "replica_set": "local/p0"})
    assert "kind Queue is only stored by this version of Hadron" in caplog.text


@both
async def test_what_is_printed_says_what_it_is_and_whether_it_is_open() -> None:
    async with served() as (node, client):
        unopened = hadron.connect(f"hadron://{node.address}/here")
        assert repr(unopened) == f"<Client of hadron://{node.address}/here, not open yet>"
        async with hadron.connect(f"hadron://{node.address}") as another:
            pass
        assert repr(another) == f"<Client of hadron://{node.address}/default, closed>"
        opening = client.producer("s")
        assert repr(opening) == "<Producer of 's', not open yet>"
        async with opening as producer:
            assert repr(opening) == "<Producer of 's', opened by its block>"
            pending = await producer.send_soon(b"x")
            assert repr(pending) == "<Pending of s/local/p0, on its way>"
            await pending.wait()
            assert repr(pending) == "<Pending of s/local/p0, acknowledged>"
            await producer.send_many([b"y", b"z"])
        assert repr(client.read("s")) == "<RecordReader of 's' from earliest>"
        assert repr(client.read_batches("s", offset=1)) == "<BatchReader of 's' from 1>"
        members = client.subscribe("s", group="g", batch_size=2)
        assert repr(members) == "<Subscription to 's', group 'g', not open yet>"
        assert repr(client.run_stages("p")) == "<Run of 'p', not open yet>"
        async with members as subscription:
            batches = subscription.batches()
            assert repr(batches) == "<DeliveryBatches to 's', group 'g', joined at local/p0>"
            batch = await anext(batches)
            assert repr(batch) == "DeliveryBatch(2 records, s/local/p0/0 to 1, attempt=1)"
            assert repr(await anext(batches)) == "DeliveryBatch(s/local/p0/2, attempt=1)"


@both
async def test_a_reader_may_stand_in_a_block() -> None:
    async with served() as (_, client):
        async with client.producer("s") as producer:
            await producer.send_many([b"0", b"1"])
        async with client.read("s", follow=True) as records:
            assert (await anext(records)).value == b"0"
        assert [each async for each in records] == []
        async with client.read_batches("s", follow=True) as batches:
            assert (await anext(batches)).count == 2
        assert [each async for each in batches] == []
