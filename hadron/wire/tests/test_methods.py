"""The table of methods: what `proto/` says of each, and what is refused when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from hadron.wire._pb import options_pb2
from hadron.wire.calls import AnyCall
from hadron.wire.messages import (
    METHODS,
    Audience,
    Method,
    Scope,
    cluster_pb2,
    groups_pb2,
    read_method,
)
from hadron.wire.services import served


@pytest.mark.parametrize("each", METHODS.values(), ids=str)
def test_every_method_says_what_it_needs(each: Method) -> None:
    """One scope, and one that goes with who may call: what only nodes say to each other is granted
    to nobody else, and nothing of it passes through another node."""
    assert isinstance(each.scope, Scope)
    if each.audience is Audience.MEMBERS:
        assert each.scope is Scope.MEMBER
    if each.scope is Scope.MEMBER:
        assert each.audience is not Audience.CLIENTS


def test_what_changes_something_is_no_reading() -> None:
    reading = {each.name for each in METHODS.values() if each.scope is Scope.READ}
    assert reading == {
        *("Fetch", "Latest", "Offsets", "ListGroups", "DescribeGroup"),
        *("ListInstances", "PipelineProgress", "PipelineStart", "GetObjects", "WatchSchema"),
        *("Topology", "Status", "ListTransactions", "ListSinks", "ListStaged"),
        *("Attend", "DescribeExchange", "DescribeEndpoints"),
        "Forward",  # the leader asks for what the call in it needs
    }


OPTIONS = {"method_number": 999, "audience": options_pb2.CLIENTS, "scope": options_pb2.READ}


@pytest.mark.parametrize("missing", OPTIONS)
def test_a_method_without_an_option_is_refused_by_name(missing: str) -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/without_{missing}.proto",
        package="tests",
        syntax="proto3",
        dependency=["hadron/v1/options.proto"],
    )
    file.message_type.add(name=f"Nothing{missing}")
    service = file.service.add(name=f"Service{missing}")
    method = service.method.add(
        name="Ask", input_type=f"tests.Nothing{missing}", output_type=f"tests.Nothing{missing}"
    )
    for option, value in OPTIONS.items():
        if option != missing:
            extension: Any = getattr(options_pb2, option)
            method.options.Extensions[extension] = value
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    [descriptor] = pool.FindServiceByName(f"tests.Service{missing}").methods
    with pytest.raises(ValueError, match=rf"tests\.\S+\.Ask has no option \({missing}\): say it"):
        read_method(descriptor)


def test_a_handler_is_registered_with_the_methods_own_messages() -> None:
    def handle(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        pass

    with pytest.raises(AssertionError, match=r"Cluster\.Status hears StatusRequest"):
        served("Status", groups_pb2.SubscribeRequest, cluster_pb2.StatusResponse, handle)
