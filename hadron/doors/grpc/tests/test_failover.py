"""Programs that speak gRPC to a replica go on when the leader dies and comes back."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

import hadron
from hadron.doors.grpc.tests.support import CALLS, MESSAGES, RECORDS, Program, Said, Server, until
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import calls_pb2, messages_pb2
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.messages import cluster_pb2

COUNT = 300


@pytest.mark.long
def test_the_leader_dies_under_a_publisher_and_a_subscriber(tmp_path: Path) -> None:
    config = write_config(tmp_path / "cluster.yaml", 3, "os", grpc_ports=free_ports(3))
    with LocalCluster(tmp_path, config=config) as cluster:
        leader = cluster.config.leader
        with hadron.connect_sync(f"hadron://{leader.address}") as client:
            client.create_stream("s")
        replica = next(each for each in cluster.config.nodes if each.name != leader.name)
        assert replica.grpc is not None
        with Program(replica.grpc) as publisher, Program(replica.grpc) as subscriber:
            said, seen = Said(), set[str]()
            said.say(pb.ConsumeRequest(open=pb.ConsumeRequest.Open(stream="s", group="g")))
            events = subscriber.stream(RECORDS + "Subscribe", pb.ConsumeEvent)(iter(said))
            failures: list[Any] = []

            def consume() -> None:
                try:
                    for event in events:
                        if event.HasField("delivery"):
                            seen.add(event.delivery.record.value.text)
                            ids = [event.delivery.id]
                            said.say(pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(ids=ids)))
                        if len(seen) == COUNT:
                            return
                except grpc.RpcError as error:
                    failures.append(error)

            thread = threading.Thread(target=consume)
            thread.start()
            for number in range(COUNT):
                if number == COUNT // 3:
                    cluster.kill(leader.name)
                    threading.Timer(1.0, cluster.spawn, [leader.name]).start()
                publisher.publish("s", str(number), timeout=60)
            thread.join(60)
            assert not failures
            assert seen == {str(number) for number in range(COUNT)}
            assert publisher.texts("s", timeout=60) == [str(number) for number in range(COUNT)]
            events.cancel()
            said.end()


@pytest.mark.long
def test_a_server_and_a_subscriber_go_on_with_the_leader_s_return(tmp_path: Path) -> None:
    config = write_config(tmp_path / "cluster.yaml", 3, "os", grpc_ports=free_ports(3))
    with LocalCluster(tmp_path, config=config) as cluster:
        leader = cluster.config.leader
        where = {"name": "e", "replica_set": cluster.config.name}
        with hadron.connect_sync(f"hadron://{leader.address}") as client:
            client.apply(json.dumps({"kind": "Endpoint"} | where))
            client.apply(json.dumps({"kind": "Exchange"} | where))
        first, second = (each for each in cluster.config.nodes if each.name != leader.name)
        assert first.grpc is not None
        assert second.grpc is not None
        with Program(first.grpc) as one, Program(second.grpc) as other:
            server = Server(one, "e")
            subscribe = one.stream(MESSAGES + "Subscribe", messages_pb2.SubscriptionEvent)
            events = subscribe(iter([messages_pb2.SubscriptionRequest(exchange="e")]), timeout=90)
            next(events)
            call = other.unary(CALLS + "Call", calls_pb2.SingleCallResponse)
            asked = calls_pb2.SingleCallRequest(endpoint="e", value=pb.Value(text="x"))
            under_way = call.future(asked, timeout=60)
            assert server.next("call").id == 1
            cluster.kill(leader.name)
            with pytest.raises(grpc.RpcError) as caught:
                under_way.result()
            assert caught.value.code() is grpc.StatusCode.UNKNOWN
            assert server.next("cancelled").id == 1
            server.end(1)
            cluster.spawn(leader.name)
            again = call.future(asked, timeout=60)
            given = server.next("call")
            server.answer(given.id, "y")
            assert again.result().value.text == "y"
            publish = other.unary(MESSAGES + "Publish", messages_pb2.MessagesResponse)
            message = messages_pb2.NewMessage(topic="t", value=pb.Value(text="z"))
            request = messages_pb2.MessagesRequest(exchange="e", messages=[message])
            until(lambda: publish(request, timeout=60).deliveries == 1)
            (found,) = next(events).arrived.messages
            assert (found.value.text, found.interrupted) == ("z", True)
            server.vanish()
            events.cancel()


@pytest.mark.long
def test_a_replica_hands_a_call_on_to_the_leader_that_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path / "cluster.yaml", 3, "os", grpc_ports=free_ports(3))
    with LocalCluster(tmp_path, config=config) as cluster:
        leader = cluster.config.leader
        replica = next(each for each in cluster.config.nodes if each.name != leader.name)
        assert replica.grpc is not None
        with Program(replica.grpc) as program:
            status = program.unary("/hadron.v1.Cluster/Status", cluster_pb2.StatusResponse)
            asked = cluster_pb2.StatusRequest()
            assert status(asked, timeout=30).node == replica.name
            metadata = [("hadron-replica-set", cluster.config.name)]
            assert status(asked, timeout=30, metadata=metadata).node == leader.name
