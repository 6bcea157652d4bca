"""The door itself: proto/'s methods under their names, reflection, health, and what is bounded."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

import hadron
from hadron.doors.grpc.tests.support import (
    CALLS,
    RECORDS,
    Program,
    Said,
    Server,
    details_of,
    text,
    until,
)
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import calls_pb2
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.messages import cluster_pb2, groups_pb2, streams_pb2


def test_methods_have_the_names_of_the_contract(program: Program, cluster: LocalCluster) -> None:
    status = program.unary("/hadron.v1.Cluster/Status", cluster_pb2.StatusResponse)
    answer = status(cluster_pb2.StatusRequest(), timeout=30)
    assert answer.replica_set == cluster.config.name
    groups = program.unary("/hadron.v1.Groups/ListGroups", groups_pb2.ListGroupsResponse)
    assert groups(groups_pb2.ListGroupsRequest(namespace="default"), timeout=30) is not None


def test_credentials_that_nobody_checks_are_told_of_once(
    program: Program, cluster: LocalCluster
) -> None:
    said = "`authorization` in the metadata of a gRPC call is checked by nobody"
    status = program.unary("/hadron.v1.Cluster/Status", cluster_pb2.StatusResponse)
    log = cluster.log("n1")
    assert said not in log.read_text()
    for _ in range(3):
        status(cluster_pb2.StatusRequest(), metadata=[("authorization", "Bearer x")], timeout=30)
    assert log.read_text().count(said) == 1


def test_batches_travel_in_a_field(program: Program, cluster: LocalCluster, stream: str) -> None:
    program.publish(stream, "a", "b")
    fetch = program.unary("/hadron.v1.Streams/Fetch", streams_pb2.FetchResponse)
    where: dict[str, Any] = {
        "namespace": "default",
        "stream": stream,
        "partition": cluster.config.name,
    }
    answer = fetch(streams_pb2.FetchRequest(**where, max_bytes=1 << 20), timeout=30)
    assert sum(each.length for each in answer.batches) == len(answer.attachment) > 0
    assert sum(each.count for each in answer.batches) == 2
    # What was read is what may be published: an opaque batch.
    first = answer.attachment[: answer.batches[0].length]
    produce = program.unary("/hadron.v1.Streams/Produce", streams_pb2.ProduceResponse)
    asked = streams_pb2.ProduceRequest(**where, attachment=first)
    assert produce(asked, timeout=30).duplicate


def test_who_names_no_replica_set_is_told(program: Program) -> None:
    status = program.unary("/hadron.v1.Cluster/Status", cluster_pb2.StatusResponse)
    metadata = [("hadron-replica-set", "no such set!")]
    with pytest.raises(grpc.RpcError) as caught:
        status(cluster_pb2.StatusRequest(), timeout=30, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "path", ["/hadron.v1.Replication/Append", "/hadron.v1.Records/Steal", "/x", "/hadron.v1.A/B"]
)
def test_what_is_not_for_clients_is_unknown(program: Program, path: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        program.unary(path, pb.Value)(b"", timeout=30)
    assert_unknown(caught.value, path)
    with pytest.raises(grpc.RpcError) as caught:
        next(program.stream(path, pb.Value)(iter([b""] * 3), timeout=30))
    assert_unknown(caught.value, path)


def assert_unknown(error: Any, path: str) -> None:
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details().startswith(f"{path!r} is not served here")
    info = details_of(error)["ErrorInfo"]
    assert info.reason == "UnknownMethodError"
    assert "proto/" in info.metadata["hint"]
    assert "reflection" in info.metadata["hint"]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_of_services_and_their_files(program: Program, version: str) -> None:
    """The messages of both versions are the same but for their package."""
    info = program.stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionResponse,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="hadron.v1.Records"),
    ]
    listed, files = info(iter(asked), timeout=30)
    names = {each.name for each in listed.list_services_response.service}
    assert {"hadron.v1.Records", "hadron.v1.Streams", "grpc.health.v1.Health"} <= names
    assert "hadron.v1.Replication" not in names
    assert files.file_descriptor_response.file_descriptor_proto


def test_a_message_that_is_too_large_ends_its_call_alone(program: Program, stream: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        program.publish(stream, "x" * (25 << 20))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as caught:
        program.publish(stream, "x" * (2 << 20))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    program.publish(stream, "x")


def test_a_deadline_ends_what_waits(program: Program, cluster: LocalCluster, stream: str) -> None:
    fetch = program.unary("/hadron.v1.Streams/Fetch", streams_pb2.FetchResponse)
    asked = streams_pb2.FetchRequest(
        namespace="default",
        stream=stream,
        partition=cluster.config.name,
        max_bytes=1,
        max_wait_ms=60_000,
    )
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        fetch(asked, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 30


def members(program: Program, stream: str) -> int:
    describe = program.unary("/hadron.v1.Groups/DescribeGroup", groups_pb2.DescribeGroupResponse)
    asked = groups_pb2.DescribeGroupRequest(
        namespace="default", stream=stream, group="g", partition="local/p0"
    )
    return len(describe(asked, timeout=30).members)


def test_who_cancels_leaves_its_group(program: Program, stream: str) -> None:
    said = Said()
    said.say(pb.ConsumeRequest(open=pb.ConsumeRequest.Open(stream=stream, group="g")))
    events = program.stream(RECORDS + "Subscribe", pb.ConsumeEvent)(iter(said), timeout=60)
    next(events)
    assert members(program, stream) == 1
    events.cancel()
    said.end()
    until(lambda: members(program, stream) == 0)


def test_a_slow_reader_is_waited_for_and_is_in_nobodys_way(program: Program, stream: str) -> None:
    block = "x" * (900 << 10)
    for number in range(20):
        program.publish(stream, f"{number} {block}")
    records = program.read(stream)
    first = next(records)
    with Program(program.address) as other:
        for number in range(20):
            other.publish(stream, f"more {number}")
    assert first.value.text.startswith("0 ")
    assert [each.value.text.split()[0] for each in records][:19] == [str(n) for n in range(1, 20)]


def test_two_hundred_connections_at_once(cluster: LocalCluster, stream: str) -> None:
    address = cluster.config.leader.grpc
    assert address is not None
    programs = [Program(address) for _ in range(200)]
    publish = [each.unary(RECORDS + "Publish", pb.PublishResponse) for each in programs]
    asked = pb.PublishRequest(stream=stream, records=[text("x")])
    answers = [call.future(asked, timeout=60) for call in publish]
    assert sorted(each.result().runs[0].base_offset for each in answers) == list(range(200))
    for each in programs:
        each.channel.close()


def test_a_server_at_a_node_that_stops_answers_what_it_has(tmp_path: Any) -> None:
    config = write_config(tmp_path / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    with LocalCluster(tmp_path, config=config) as cluster:
        leader = cluster.config.leader
        assert leader.grpc is not None
        declared = {"kind": "Endpoint", "name": "e", "replica_set": cluster.config.name}
        with hadron.connect_sync(f"hadron://{leader.address}") as client:
            client.apply(json.dumps(declared))
        with Program(leader.grpc) as program:
            server = Server(program, "e")
            call = program.unary(CALLS + "Call", calls_pb2.SingleCallResponse)
            asked = calls_pb2.SingleCallRequest(endpoint="e", value=pb.Value(text="x"))
            under_way = call.future(asked, timeout=60)
            assert server.next("call").id == 1
            watch = program.channel.unary_stream(
                "/hadron.v1.Schema/WatchSchema", None, lambda data: data
            )(b"")
            next(watch)
            stopping = threading.Thread(target=cluster.stop, args=("n1",))
            stopping.start()
            with pytest.raises(grpc.RpcError):
                list(watch)
            server.answer(1, "in peace")
            assert under_way.result().value.text == "in peace"
            with pytest.raises(grpc.RpcError) as caught:
                next(server.events)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "the node is stopping" in caught.value.details()
            server.leave()
            stopping.join(30)
            assert not stopping.is_alive()


def test_a_node_that_stops_tells_its_streams(tmp_path: Any) -> None:
    config = write_config(tmp_path / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    with LocalCluster(tmp_path, config=config) as cluster:
        assert cluster.config.leader.grpc is not None
        with Program(cluster.config.leader.grpc) as program:
            watch = program.channel.unary_stream(
                "/hadron.v1.Schema/WatchSchema", None, lambda data: data
            )(b"")
            next(watch)
            ended: list[Any] = []

            def wait() -> None:
                try:
                    list(watch)
                except grpc.RpcError as error:
                    ended.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            began = time.monotonic()
            cluster.stop("n1")
            assert time.monotonic() - began < 10
            thread.join(30)
            assert ended[0].code() is grpc.StatusCode.UNAVAILABLE
            assert "the node is stopping" in ended[0].details()
