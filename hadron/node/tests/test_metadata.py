"""The schema in a cluster: pushed to every replica set, known at every node, acted on at once."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from hadron.metadata.adopter import SchemaAdopter
from hadron.model.batch_building import encode_values
from hadron.model.errors import (
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    SchemaError,
)
from hadron.model.ids import MAX_EPOCH
from hadron.model.principals import NodeName, Principal
from hadron.model.schema import Retention, SchemaObject, Spec, StreamSpec, spec_to_json
from hadron.node.discovery import Discovery
from hadron.node.set_messages import statement_to, statements_from
from hadron.serving.entrance import Entrance, Led
from hadron.serving.leading import Leading
from hadron.storage.database import open_reader
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.calling import MessageStream
from hadron.wire.calls import AnyCall
from hadron.wire.connection import Connection
from hadron.wire.messages import Method, cluster_pb2, groups_pb2, method, schema_pb2, streams_pb2
from hadron.wire.services import Served

META, EU, US = "meta", "eu/p0", "us/p0"
ON_EU = StreamSpec(partitions=(EU,))
APPLY, DELETE, GET = method("ApplySchema"), method("DeleteObjects"), method("GetObjects")
WATCH, PRODUCE, SUBSCRIBE = method("WatchSchema"), method("Produce"), method("Subscribe")
TOPOLOGY, OFFSETS = method("Topology"), method("Offsets")


async def apply(cluster: Cluster, *objects: tuple[str, str, Spec], at: str = META) -> Any:
    """Declare (kind, name, spec); returns the answer."""
    request = schema_pb2.ApplySchemaRequest(
        objects=[
            schema_pb2.SchemaObject(kind=kind, name=name, spec_json=spec_to_json(spec).decode())
            for kind, name, spec in objects
        ],
        allow_destructive=True,
    )
    async with cluster[at].connection("n1") as connection:
        answer, _ = await connection.request(APPLY, request)
    return answer


async def stream(cluster: Cluster, name: str, *partitions: str) -> int:
    answer = await apply(cluster, ("Stream", name, StreamSpec(partitions=partitions)))
    return int(answer.changes[0].after.id)


async def delete(cluster: Cluster, name: str) -> int:
    request = schema_pb2.DeleteObjectsRequest(
        names=[schema_pb2.DeleteObjectsRequest.Name(kind="Stream", name=name)],
        allow_destructive=True,
    )
    async with cluster[META].connection("n1") as connection:
        answer, _ = await connection.request(DELETE, request)
    return int(answer.metadata_index)


async def objects(
    cluster: Cluster, replica_set: str, node: str, *, min_index: int = 0, max_wait_ms: int = 0
) -> tuple[int, list[str]]:
    """(index, names of streams) as one node has them."""
    request = schema_pb2.GetObjectsRequest(
        kind="Stream", min_index=min_index, max_wait_ms=max_wait_ms
    )
    async with cluster[replica_set].connection(node) as connection:
        answer, _ = await connection.request(GET, request)
    return answer.metadata_index, sorted(item.name for item in answer.objects)


async def produce(
    connection: Connection, stream_id: int, metadata_index: int = 0
) -> streams_pb2.ProduceResponse:
    request = streams_pb2.ProduceRequest(stream_id=stream_id, metadata_index=metadata_index)
    answer, _ = await connection.request(PRODUCE, request, [encode_values([b"v"], 1)])
    assert isinstance(answer, streams_pb2.ProduceResponse)
    return answer


async def receive(stream: MessageStream) -> Any:
    received = await stream.receive()
    assert received is not None, "the call ended"
    return received[0]


def indexes(cluster: Cluster) -> dict[str, int]:
    """Where the schema stands at each running node."""
    return {
        f"{name}/{node}": cluster[name].status(node).metadata_index
        for name in cluster
        for node in cluster[name].running
    }


async def in_step(cluster: Cluster, sets: int = 2) -> int:
    """Wait until every node has the same schema, with `sets` registered; returns its index."""
    await cluster.wait_for(
        "every node in step",
        lambda: len(set(indexes(cluster).values())) == 1 and min(indexes(cluster).values()) >= sets,
    )
    return next(iter(indexes(cluster).values()))


async def test_every_node_of_every_set_has_the_schema(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, {META: 3, EU: 3, US: 1}) as cluster:
        await in_step(cluster)
        stream_id = await stream(cluster, "s", EU, US)
        for name in cluster:
            for node in cluster[name].names:
                assert await objects(
                    cluster, name, node, min_index=stream_id, max_wait_ms=20_000
                ) == (stream_id, ["s"])
        for name in (EU, US):
            async with cluster[name].connection("n1") as connection:
                assert (await produce(connection, stream_id)).base_offset == 0
        # Added to a stream, a partition is usable at once as well.
        index = (
            await apply(cluster, ("Stream", "s", StreamSpec(partitions=(EU, US, META))))
        ).metadata_index
        async with cluster[META].connection("n1") as connection:
            assert (await produce(connection, stream_id, index)).base_offset == 0


async def test_a_set_that_is_not_founded_yet_can_have_streams(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 2}, start=False) as cluster:
        await cluster.start(META)
        await cluster[EU].start("n1")
        directory = cluster[META].node("n1").discovery.directory
        await cluster.wait_for("heard of", lambda: directory.find(EU) is not None)
        known = directory.find(EU)
        assert known is not None
        assert not known.uuid
        await cluster.wait_serving(META)
        index = (await apply(cluster, ("Stream", "early", ON_EU))).metadata_index
        await cluster[EU].start("n2")
        await cluster.wait_serving(EU)
        _, names = await objects(cluster, EU, "n1", min_index=index, max_wait_ms=20_000)
        assert names == ["early"]


async def test_a_set_that_was_away_goes_on_where_it_stands(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 1, US: 1}) as cluster:
        await in_step(cluster)
        first = await stream(cluster, "first", EU, US)
        await in_step(cluster)
        cluster.isolate(US)
        second = await stream(cluster, "second", EU, US)
        await delete(cluster, "first")
        again = await stream(cluster, "first", EU, US)
        assert (await objects(cluster, EU, "n1", min_index=again, max_wait_ms=20_000))[0] == again
        # It serves what it knows.
        assert await objects(cluster, US, "n1") == (first, ["first"])
        async with cluster[US].connection("n1") as connection:
            assert (await produce(connection, first)).base_offset == 0
            with pytest.raises(MetadataBehindError, match=f"at index {first}, not yet at {second}"):
                await produce(connection, second, second)
            with pytest.raises(NotFoundError):
                await produce(connection, second)
        with pytest.raises(MetadataBehindError):
            await objects(cluster, US, "n1", min_index=again, max_wait_ms=10)
        cluster.network.heal_all()
        assert (await objects(cluster, US, "n1", min_index=again, max_wait_ms=60_000)) == (
            again,
            ["first", "second"],
        )
        async with cluster[US].connection("n1") as connection:
            with pytest.raises(NotFoundError, match="Stream default/first was deleted"):
                await produce(connection, first, again)
            assert (await produce(connection, again, again)).base_offset == 0


async def test_a_set_that_goes_away_is_told_of_before_the_schema_changes_again(
    tmp_path: Path, clock: MockClock
) -> None:
    """Nothing is to be sent then, so no call meets the end of the connection."""
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster:
        # A set that has not elected anybody yet is a trouble too, of the moment.
        await cluster.wait_for(
            "in step",
            lambda: (
                min(indexes(cluster).values()) >= 1
                and not cluster[META].status("n1").cluster_trouble
            ),
        )
        await cluster[EU].crash("n1")
        await cluster.wait_for(
            "told of",
            lambda: (
                list(cluster[META].status("n1").cluster_trouble)
                == ["the schema cannot be pushed to eu/p0: Connection refused"]
            ),
        )
        await cluster[EU].start("n1")
        await cluster.wait_for(
            "in step again", lambda: not cluster[META].status("n1").cluster_trouble
        )


async def test_pushes_go_on_through_restarts_on_both_sides(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 3, EU: 3}) as cluster:
        for number in range(6):
            await stream(cluster, f"s{number}", META)
            if number % 2:
                await cluster[EU].restart("n1")
            else:
                await cluster[META].restart("n1")
                await cluster[META].wait_serving()
        await cluster.wait_serving()
        index = await in_step(cluster, 7)
        expected = [f"s{number}" for number in range(6)]
        for name in cluster:
            for node in cluster[name].names:
                assert await objects(cluster, name, node) == (index, expected)


async def test_deleting_a_stream_ends_what_is_served_from_it_and_drops_its_data(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 3}) as cluster, cluster.client() as client:
        await in_step(cluster, 1)
        stream_id = await stream(cluster, "s", EU)
        await in_step(cluster, 2)
        async with client.producer("s") as producer:
            await producer.send("v")
        async with cluster[EU].connection("n1") as connection:
            opening = groups_pb2.SubscribeRequest.Open(
                stream="s", group="g", start="earliest", max_in_flight=10
            )
            async with connection.open_stream(
                SUBSCRIBE, groups_pb2.SubscribeRequest(open=opening)
            ) as events:
                kinds = [(await receive(events)).WhichOneof("kind") for _ in range(2)]
                assert kinds == ["opened", "delivery"]
                index = await delete(cluster, "s")
                with pytest.raises(NotFoundError, match="was deleted"):
                    await receive(events)
        await cluster.wait_for(
            "deleted everywhere", lambda: set(indexes(cluster).values()) == {index}
        )
        async with cluster[EU].connection("n1") as connection:
            with pytest.raises(NotFoundError):
                await produce(connection, stream_id, index)

        def rows() -> list[int]:
            return [count_batches(cluster, node) for node in cluster[EU].names]

        await cluster.wait_for("dropped everywhere", lambda: rows() == [0, 0, 0])


def count_batches(cluster: Cluster, node: str) -> int:
    with closing(open_reader(cluster[EU].data(node) / "hadron.db")) as db:
        found: Any = db.execute("SELECT count(*) FROM hadron_stream_batch").fetchone()
    return int(found[0])


async def test_the_schema_is_changed_at_the_metadata_set_only(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster:
        await in_step(cluster, 1)
        with pytest.raises(NotLeaderError, match="ask the leader of meta"):
            await apply(cluster, ("Stream", "s", StreamSpec(partitions=(EU,))), at=EU)
        with pytest.raises(SchemaError, match="there is no replica set 'us/p0'"):
            await stream(cluster, "s", US)
        with pytest.raises(SchemaError, match="it does not exist"):
            await delete(cluster, "s")
        request = schema_pb2.DeleteObjectsRequest(
            names=[schema_pb2.DeleteObjectsRequest.Name(kind="Namespace", name="default")]
        )
        async with cluster[META].connection("n1") as connection:
            with pytest.raises(SchemaError, match="the default namespace cannot be deleted"):
                await connection.request(DELETE, request)


async def test_a_set_that_only_another_node_has_heard_of_can_be_named(
    tmp_path: Path, clock: MockClock
) -> None:
    """A new set speaks with one node of the metadata set; its user comes with the next breath."""
    async with running_cluster(tmp_path, {META: 3}) as cluster:
        await in_step(cluster, 0)
        told = cluster[META].node("n2").discovery
        young = statement_to(told.directory.own)
        young.name, young.uuid = EU, b""
        statements, _ = statements_from([young])
        told.directory.merge(statements, 0.0)
        assert EU not in [each.name for each in cluster[META].node("n1").discovery.sets()]
        await stream(cluster, "s", EU)


@pytest.mark.long
async def test_a_leader_that_has_just_started_waits_for_sets_that_find_it_later(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 1}, start=False) as cluster:
        await cluster.start(EU)
        # Nobody is there: it tries again more and more rarely.
        await trio.sleep(30.0)
        await cluster.start(META)
        await cluster.wait_serving(META)
        await stream(cluster, "s", EU)
        began_s = trio.current_time()
        with pytest.raises(SchemaError, match="there is no replica set 'us/p0'"):
            await stream(cluster, "t", US)
        assert trio.current_time() - began_s < 2.5
        await in_step(cluster, 1)


async def test_a_watcher_is_told_what_changes_wherever_it_watches(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 2}) as cluster:
        for name, node in ((META, "n1"), (EU, "n1"), (EU, "n2")):
            index = await in_step(cluster, 1)
            async with (
                cluster[name].connection(node) as connection,
                connection.open_stream(
                    WATCH, schema_pb2.WatchSchemaRequest(from_index=index)
                ) as changes,
            ):
                first = await receive(changes)
                assert (first.to_index, len(first.objects)) == (index, 0)
                stream_id = await stream(cluster, "s", EU)
                told = await receive(changes)
                assert [item.id for item in told.objects] == [stream_id]
                index = await delete(cluster, "s")
                told = await receive(changes)
                assert [gone.id for gone in told.deleted] == [stream_id]
                assert told.to_index == index


async def test_a_set_with_a_name_that_is_taken_is_refused_and_both_sides_say_so(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    note = SchemaAdopter._note

    def counted(adopter: SchemaAdopter, trouble: str) -> None:
        said.append(trouble)
        note(adopter, trouble)

    monkeypatch.setattr(SchemaAdopter, "_note", counted)
    monkeypatch.setattr("hadron.metadata.pusher._REFUSED_EVERY_S", 0.2)
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster:
        await in_step(cluster, 1)
        await cluster[EU].crash()
        cluster[EU].wipe("n1")
        # The disk of the only member is lost, and somebody starts it anew: another set, one name.
        await cluster[EU].start()
        await cluster.wait_for(
            "refused",
            lambda: any(
                "registered with identity" in text
                for text in cluster[META].status("n1").cluster_trouble
            ),
        )
        await cluster.wait_for(
            "told",
            lambda: any(
                "registered with identity" in text
                for text in cluster[EU].status("n1").cluster_trouble
            ),
        )
        assert cluster[EU].status("n1").metadata_index == 0
        # It would forget what nobody repeats.
        await cluster.wait_for("told again", lambda: len(list(filter(None, said))) > 3)
        with trio.fail_after(60):
            assert await objects(cluster, META, "n1") == (1, [])


async def test_who_says_to_know_more_than_there_can_be_ends_no_changes(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 1, US: 1}) as cluster:
        await in_step(cluster, 2)
        index = cluster[EU].status("n1").metadata_index
        forged = schema_pb2.AdoptSchemaRequest(
            cluster="test", metadata=META, epoch=MAX_EPOCH, is_last=True
        )
        forged.changes.from_index, forged.changes.to_index = index, (1 << 63) - 2
        async with cluster[EU].connection("n1") as connection:
            known, _ = await connection.request(TOPOLOGY, cluster_pb2.TopologyRequest())
            (forged.uuid,) = (each.uuid for each in known.replica_sets if each.name == META)
            await connection.request(method("AdoptSchema"), forged)
        for number, name in enumerate(("before", "behind"), 1):
            told = await apply(cluster, ("Stream", name, StreamSpec(partitions=(US,))))
            assert told.metadata_index == index + number
            await cluster.wait_for(
                "said",
                lambda: any(
                    "knows the schema at index 9223372036854775806" in text
                    for text in cluster[META].status("n1").cluster_trouble
                ),
            )
        await objects(cluster, US, "n1", min_index=told.metadata_index, max_wait_ms=60_000)


async def test_a_push_that_is_refused_is_not_logged_again_and_again(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its parts but the last, each second: whoever was away could not follow any more."""
    monkeypatch.setattr("hadron.metadata.pusher._REFUSED_EVERY_S", 5.0)
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster:
        told = await apply(cluster, ("Stream", "s", ON_EU))
        gone = told.changes[0].after
        index = await in_step(cluster)
        # As a metadata set that deleted it, and has lost that.
        lost = schema_pb2.AdoptSchemaRequest(cluster="test", metadata=META, epoch=1, is_last=True)
        lost.changes.from_index, lost.changes.to_index = index, index + 1
        lost.changes.deleted.add(
            id=gone.id,
            kind=gone.kind,
            namespace=gone.namespace,
            name=gone.name,
            metadata_index=index + 1,
        )
        async with cluster[EU].connection("n1") as connection:
            known, _ = await connection.request(TOPOLOGY, cluster_pb2.TopologyRequest())
            (lost.uuid,) = (each.uuid for each in known.replica_sets if each.name == META)
            await connection.request(method("AdoptSchema"), lost)
        wide = [
            ("Stream", f"wide{number}", msgspec.structs.replace(ON_EU, description="x" * 4_900))
            for number in range(70)
        ]
        aged = msgspec.structs.replace(ON_EU, retention=Retention(max_age_ms=3_600_000))
        await apply(cluster, *wide, ("Stream", "s", aged))

        def told_at(name: str) -> bool:
            return any("was deleted here" in x for x in cluster[name].status("n1").cluster_trouble)

        await cluster.wait_for("refused", lambda: told_at(META) and told_at(EU))
        logged = cluster[EU].status("n1").last_lsn
        await trio.sleep(6.0)
        assert told_at(META)
        assert told_at(EU)
        assert cluster[EU].status("n1").last_lsn - logged < 3
        # The operator does what he is told.
        await delete(cluster, "s")
        await cluster.wait_for("mended", lambda: not told_at(META) and not told_at(EU))
        await in_step(cluster)


@pytest.mark.long
async def test_clients_go_on_while_the_metadata_set_is_away(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 3}) as cluster, cluster.client() as old:
        await in_step(cluster, 1)
        await stream(cluster, "s", EU)
        await in_step(cluster, 2)
        async with old.producer("s") as producer:
            await producer.send("before")
            await cluster[META].crash()
            await producer.send("after")
        async with cluster.client(through=[EU]) as new:
            assert [item.name for item in await new.objects("Stream")] == ["s"]
            assert [record.value async for record in new.read("s")] == ["before", "after"]
            with pytest.raises(HadronError):
                await new.apply([SchemaObject(kind="Stream", name="t", spec=ON_EU)])


async def test_a_client_hears_of_partitions_and_of_the_end_of_its_streams(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, {META: 1, EU: 1, US: 1}) as cluster:
        await in_step(cluster)
        first = await stream(cluster, "s", EU)
        async with cluster.client(through=[EU]) as client:
            catalog = client._catalog
            told, listen = trio.open_memory_channel[None](math.inf)
            catalog.listen(lambda: told.send_nowait(None))
            assert (await catalog.stream("s")).id == first
            await stream(cluster, "s", EU, US)
            await listen.receive()
            assert await catalog.partitions("s") == [EU, US]
            await client.delete([("Stream", "default", "s")], allow_destructive=True)
            again = await stream(cluster, "s", US)
            assert (await catalog.stream("s")).id == again
            await delete(cluster, "s")
            # It hears of the second beginning as well, after it has asked for that.
            while "s" in catalog._streams:
                await listen.receive()
            with pytest.raises(NotFoundError):
                await catalog.stream("s")


@pytest.mark.long
async def test_a_shorter_retention_is_refused_where_it_drops_something(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second is 200 ms here, the other sets are dialed first, and a majority of theirs is asked.
    monkeypatch.setattr("hadron.metadata.losses._ANSWER_WITHIN_S", 200.0)

    def kept(retention: Retention) -> list[SchemaObject]:
        spec = StreamSpec(partitions=(META, EU, US), retention=retention)
        return [SchemaObject(kind="Stream", name="all", spec=spec)]

    async with (
        running_cluster(tmp_path, {META: 1, EU: 3, US: 1}) as cluster,
        cluster.client() as client,
    ):
        # Nobody has a record yet, so nothing is lost.
        await client.apply(kept(Retention()))
        await in_step(cluster, 3)
        await client.apply(kept(Retention(max_age_ms=86_400_000)))
        async with client.producer("all") as producer:
            for partition in (META, EU, US):
                await producer.send(b"x" * 2_000, partition=partition)
        await trio.sleep(5)
        await client.apply(kept(Retention(max_age_ms=3_600_000, max_bytes=10_000)))
        with pytest.raises(SchemaError) as refused:
            await client.apply(kept(Retention(max_age_ms=1, max_bytes=1_000)))
        assert "what is older than 1ms at once: about 3 of 3 records, expected 1h" in str(
            refused.value
        )
        assert "beyond the newest 1kB of a partition at once: about 3300 of 6300 bytes" in str(
            refused.value
        )
        await cluster.crash(US)
        monkeypatch.setattr("hadron.metadata.losses._ANSWER_WITHIN_S", 20.0)
        with pytest.raises(SchemaError) as refused:
            await client.apply(kept(Retention(max_age_ms=60_000, max_bytes=10_000)), dry_run=True)
        assert f"unknown at {US}, which did not tell, expected 1h" in str(refused.value)
        await client.apply(kept(Retention(max_age_ms=60_000)), allow_destructive=True)


async def test_a_partition_that_comes_back_loses_nothing_that_nobody_has_counted(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadron.metadata.losses._ANSWER_WITHIN_S", 20.0)

    def kept(max_bytes: int, *partitions: str) -> list[SchemaObject]:
        spec = StreamSpec(partitions=partitions, retention=Retention(max_bytes=max_bytes))
        return [SchemaObject(kind="Stream", name="s", spec=spec)]

    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster, cluster.client() as client:
        await client.apply(kept(1 << 20, META, EU))
        async with client.producer("s") as producer:
            for _ in range(3):
                await producer.send(b"x" * 2_000, partition=EU)
        await client.apply(kept(1 << 20, META), allow_destructive=True)
        with pytest.raises(SchemaError) as refused:
            await client.apply(kept(2_000, META, EU))
        assert "2kB instead of 1MiB" in str(refused.value)
        assert "about 4300 of 6300 bytes" in str(refused.value)
        # Nothing is dropped where nobody is asked.
        await client.apply(kept(1_000, META))
        with pytest.raises(SchemaError) as refused:
            await client.apply(kept(2_000, META, EU))
        assert "'eu/p0' added" in str(refused.value)
        assert "about 4300 of 6300 bytes" in str(refused.value)
        await client.apply(kept(1 << 20, META, EU))
        assert [len(each.value) async for each in client.read("s")] == [2_000] * 3


@pytest.mark.parametrize("answer", ["older", "lost", "behind", "none", "two", "less than nothing"])
async def test_a_shorter_retention_is_refused_where_a_leader_cannot_tell(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    asked = Discovery.ask_leader

    async def ask(self: Discovery, replica_set: str, called: Method, request: Any) -> Any:
        if answer == "lost":
            raise NotFoundError("no object has the id 1")
        if answer == "behind":
            raise MetadataBehindError("this node knows the schema at index 0, not yet at 1")
        told = await asked(self, replica_set, called, request)
        (there,) = told.partitions
        if answer == "older":
            there.ClearField("bytes")
        elif answer == "less than nothing":
            there.first_offset = there.next_offset = 9
        else:
            copies = {"none": 0, "two": 2}[answer]
            told = streams_pb2.OffsetsResponse(partitions=[there] * copies)
        return told

    monkeypatch.setattr(Discovery, "ask_leader", ask)
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster, cluster.client() as client:
        await stream(cluster, "s", EU)
        await in_step(cluster)
        shorter = StreamSpec(partitions=(EU,), retention=Retention(max_bytes=1_000))
        with pytest.raises(SchemaError) as refused:
            await client.apply([SchemaObject(kind="Stream", name="s", spec=shorter)])
        assert f"unknown at {EU}, which did not tell" in str(refused.value)


async def test_a_shorter_retention_is_refused_where_a_deposed_leader_tells_of_nothing(
    tmp_path: Path, clock: MockClock
) -> None:
    """Another one leads, beyond a cut, and has records that nobody has counted."""
    async with running_cluster(tmp_path, {META: 1, EU: 3}) as cluster:
        meta, eu = cluster[META], cluster[EU]
        stream_id = await stream(cluster, "s", EU)
        await in_step(cluster)
        cluster.cut([meta.host("n1"), eu.host("n1")], [eu.host("n2"), eu.host("n3")])
        nodes = tuple(
            replace(each, role="leader" if each.name == "n2" else "replica")
            for each in eu.config.nodes
        )
        eu.configs = dict.fromkeys(("n2", "n3"), replace(eu.config, epoch=2, nodes=nodes))
        await eu.crash("n2", "n3")
        await eu.start("n2", "n3")
        await eu.wait_for("serving", lambda: eu.status("n2").state == "serving")
        async with eu.connection("n2") as connection:
            request = streams_pb2.ProduceRequest(stream_id=stream_id)
            await connection.request(PRODUCE, request, [encode_values([b"x" * 2_000] * 5, 1)])
        shorter = schema_pb2.ApplySchemaRequest(
            objects=[
                schema_pb2.SchemaObject(
                    kind="Stream",
                    name="s",
                    spec_json=spec_to_json(
                        StreamSpec(partitions=(EU,), retention=Retention(max_bytes=3_000))
                    ).decode(),
                )
            ]
        )
        async with meta.connection("n1") as connection:
            with pytest.raises(SchemaError, match="did not tell"):
                await connection.request(APPLY, shorter)


@pytest.mark.parametrize("partition", [EU, META])
async def test_that_nothing_is_kept_is_said_by_who_is_followed(
    tmp_path: Path, clock: MockClock, partition: str
) -> None:
    """Also where the stream has no partition, as far as this leader knows."""
    async with running_cluster(tmp_path, {META: 1, EU: 3}) as cluster:
        stream_id, eu = await stream(cluster, "s", partition), cluster[EU]
        await in_step(cluster)
        kept = streams_pb2.OffsetsRequest(stream_id=stream_id, with_bytes=True, confirmed=True)
        async with eu.connection("n1") as connection:
            answer, _ = await connection.request(OFFSETS, kept)
            assert [each.bytes for each in answer.partitions] == [0]
            cluster.cut([eu.host("n1")], map(eu.host, ("n2", "n3")))
            with pytest.raises(NotReadyError, match="1 of 3 members answered"):
                await connection.request(OFFSETS, kept)


async def test_what_a_leader_asks_of_other_sets_says_who_asks(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push, and the question what a shorter retention would drop."""
    entered: dict[str, set[Principal]] = {}
    enter = Entrance.enter

    def note(entrance: Entrance, each: Served | Led, call: AnyCall) -> Leading | None:
        entered.setdefault(each.method.name, set()).add(call.principal)
        return enter(entrance, each, call)

    monkeypatch.setattr(Entrance, "enter", note)
    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster, cluster.client() as client:
        await stream(cluster, "s", EU)
        await in_step(cluster)
        shorter = StreamSpec(partitions=(EU,), retention=Retention(max_bytes=1_000))
        await client.apply([SchemaObject(kind="Stream", name="s", spec=shorter)])
    by_meta = {Principal(NodeName(META, "n1"))}
    assert entered["AdoptSchema"] == by_meta
    assert entered["Offsets"] == by_meta
