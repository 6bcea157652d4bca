"""Statements about replica sets as messages, and what a peer may say in one, and of a partition."""

from __future__ import annotations

from collections.abc import Iterable

from hadron.model.errors import FrameError, RequestError
from hadron.model.limits import MAX_MEMBERS
from hadron.model.problems import shorten
from hadron.model.replica_sets import KnownNode, KnownSet
from hadron.node.replica_set import parse_address, parse_name, parse_set_name
from hadron.wire.messages import check_epoch, check_number, cluster_pb2

_UUID_BYTES = 16


def statement_to(known: KnownSet) -> cluster_pb2.ReplicaSet:
    return cluster_pb2.ReplicaSet(
        name=known.name,
        epoch=known.epoch,
        uuid=known.uuid,
        agreed=known.agreed,
        registered=known.registered,
        nodes=[
            cluster_pb2.Node(
                name=node.name, role=node.role, address=node.address, stated_ms=node.stated_ms
            )
            for node in known.nodes
        ],
    )


def statement_from(message: cluster_pb2.ReplicaSet) -> KnownSet:
    """Raises `FrameError` for what no configuration file can hold."""
    try:
        parse_set_name(message.name)
        nodes = tuple(_node(each) for each in message.nodes)
    except RequestError as error:
        raise FrameError(f"replica set {shorten(message.name)}: {error.message}") from error
    if len(message.uuid) not in (0, _UUID_BYTES):
        raise FrameError(f"replica set {message.name}: a uuid of {len(message.uuid)} bytes")
    if not check_epoch(message.epoch):
        raise FrameError(f"replica set {message.name}: epoch 0")
    leaders = sum(node.role == "leader" for node in nodes)
    if leaders != 1:
        raise FrameError(f"replica set {message.name}: {leaders} leaders")
    names = len({node.name for node in nodes})
    if names != len(nodes) or names > MAX_MEMBERS:
        raise FrameError(f"replica set {message.name}: {len(nodes)} nodes with {names} names")
    return KnownSet(
        name=message.name,
        epoch=message.epoch,
        uuid=message.uuid,
        nodes=nodes,
        agreed=message.agreed,
        registered=check_epoch(message.registered),
    )


def statements_from(
    messages: Iterable[cluster_pb2.ReplicaSet],
) -> tuple[list[KnownSet], dict[str, FrameError]]:
    """Those that can be taken in, and why the others cannot, by what they call their set, in short:
    one bad statement, or one of a newer version, must not keep the good ones away."""
    good: list[KnownSet] = []
    bad: dict[str, FrameError] = {}
    for message in messages:
        try:
            good.append(statement_from(message))
        except FrameError as error:
            bad.setdefault(shorten(message.name), error)
    return good, bad


def _node(message: cluster_pb2.Node) -> KnownNode:
    if message.role not in ("leader", "replica"):
        raise RequestError(f"{shorten(message.role)} is not a role")
    return KnownNode(
        parse_name(message.name),
        message.role,
        parse_address(message.address),
        check_number("stated_ms", message.stated_ms),
    )
