"""grpc.health.v1 says what `/readyz` says: of a replica, whose leader dies, comes back, and which
is stopped in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb

from hadron.doors.grpc.tests.support import Program, until
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config

Status = pb.HealthCheckResponse


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    config = write_config(tmp_path / "cluster.yaml", 2, "os", grpc_ports=free_ports(2))
    with LocalCluster(tmp_path, config=config) as cluster:
        yield cluster


def check(program: Program, service: str = "") -> int:
    call = program.unary("/grpc.health.v1.Health/Check", Status)
    status: int = call(pb.HealthCheckRequest(service=service), timeout=30).status
    return status


def watch(program: Program, service: str = "") -> Any:
    call = program.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=pb.HealthCheckRequest.SerializeToString,
        response_deserializer=Status.FromString,
    )
    return call(pb.HealthCheckRequest(service=service), timeout=90)


@pytest.mark.long
def test_health_is_what_readiness_is(cluster: LocalCluster) -> None:
    replica = cluster.config.node("n2").grpc
    assert replica is not None
    with Program(replica) as program:
        events = watch(program)
        while next(events).status != Status.SERVING:
            pass
        for service in ("", "hadron.v1.Records", "grpc.health.v1.Health"):
            assert check(program, service) == Status.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(program, "hadron.v1.Recrods")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "'hadron.v1.Recrods'" in caught.value.details()
        unknown = watch(program, "hadron.v1.Recrods")
        assert next(unknown).status == Status.SERVICE_UNKNOWN
        unknown.cancel()

        cluster.kill("n1")
        assert next(events).status == Status.NOT_SERVING
        assert check(program) == Status.NOT_SERVING
        cluster.spawn("n1")
        assert next(events).status == Status.SERVING
        until(lambda: check(program, "hadron.v1.Records") == Status.SERVING)

        cluster.stop("n2")
        assert next(events).status == Status.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(events)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the node is stopping" in caught.value.details()
