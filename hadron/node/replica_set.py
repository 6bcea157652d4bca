"""A replica set as its configuration file declares it: members, roles, addresses, the digest.

What members must agree on (PROTOCOL B1) is the digest: cluster, replica set name, epoch, node
names and roles, nothing else. A changed port, path or setting needs no new epoch.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import msgspec
import xxhash

from hadron.model.errors import ConfigurationError, RequestError
from hadron.model.ids import NAME_FORM, is_valid_name, is_valid_replica_set_name
from hadron.model.problems import Problems, did_you_mean, shorten
from hadron.node.settings import Settings
from hadron.wire.sockets import split_address

Role = Literal["leader", "replica"]

SET_NAME_FORM: Final = f"{NAME_FORM}, with at most one slash"
ADDRESS_FORM: Final = "an address such as 127.0.0.1:7001"

CANNOT_GO_ON: Final = "the node cannot go on"
"""How the last words in a node's log begin, where it was not told to stop."""

NO_SECURITY: Final = "there is no authentication and no TLS yet"
LISTEN_HINT: Final = "to listen on all, give the node `listen: 0.0.0.0:PORT` beside it"

_DIGEST_VERSION: Final = 1
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.%a-z]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One member. Addresses are `host:port`; None where the node does not listen.

    Others dial `address`; the node itself listens on `listen`, by default the same.
    """

    name: str
    role: Role
    address: str
    data: Path
    """Directory of the node's files, absolute."""
    grpc: str | None = None
    http: str | None = None
    listen: str | None = None

    @property
    def listens_on(self) -> str:
        """Where the node listens for clients and for other nodes."""
        return self.listen or self.address

    @property
    def listening(self) -> list[str]:
        """Every address that it listens on."""
        doors = (self.grpc, self.http)
        return [self.listens_on, *(each for each in doors if each is not None)]

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses that belong to this node alone, by their key in the file."""
        given = {"address": self.address, "grpc": self.grpc, "http": self.http}
        return {key: address for key, address in given.items() if address is not None}


@dataclass(frozen=True, kw_only=True)
class ReplicaSetConfig:
    """A whole configuration file, checked: exactly one leader, all names and addresses unique."""

    cluster: str
    name: str
    """The replica set's name."""
    epoch: int
    nodes: tuple[NodeConfig, ...]
    metadata: str
    """The replica set that owns the schema."""
    discovery: tuple[str, ...]
    """Addresses of any nodes of the cluster."""
    settings: Settings = field(default_factory=Settings)
    insecure: bool = False
    """Whether doors without a lock may be reached from other machines."""
    path: Path | None = field(default=None, compare=False)
    """The file it came from; None when it was made in memory."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What the file says and this version does nothing with, in words."""

    @property
    def leader(self) -> NodeConfig:
        """The one node whose role is leader. Raises `ConfigurationError` when there is none: files
        are refused for that, but a configuration may have been made in memory."""
        for node in self.nodes:
            if node.role == "leader":
                return node
        names = ", ".join(node.name for node in self.nodes) or "no nodes"
        raise ConfigurationError(
            f"replica set {self.name} has no leader among its members ({names})",
            "give one of them `role: leader`",
        )

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes' names, in the file's order."""
        return tuple(node.name for node in self.nodes)

    def node(self, name: str) -> NodeConfig:
        """The node called `name`. Raises `ConfigurationError` naming those that exist."""
        for node in self.nodes:
            if node.name == name:
                return node
        where = f"in {self.path}" if self.path else f"in replica set {self.name}"
        raise ConfigurationError(
            f"there is no node {name!r} {where}{did_you_mean(name, self.members)}",
            f"it has {', '.join(self.members)}",
        )

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that members compare: xxh3-128, big-endian, over the compact JSON
        `[1, cluster, replica set, epoch, [[node name, role] …]]` with the nodes sorted by name.
        """
        nodes = sorted((node.name, node.role) for node in self.nodes)
        agreed = (_DIGEST_VERSION, self.cluster, self.name, self.epoch, nodes)
        return xxhash.xxh3_128_digest(msgspec.json.encode(agreed))


def single_node_config(
    data: Path,
    address: str,
    cluster: str = "dev",
    name: str = "local/p0",
    node: str = "n1",
    settings: Settings | None = None,
    epoch: int = 1,
    http: str | None = None,
    grpc: str | None = None,
) -> ReplicaSetConfig:
    """A replica set of one, for `hadron dev` and tests; port 0 takes any free one.

    Raises `ConfigurationError` for a bad name or address.
    """
    problems = Problems("this node")
    for what, value, parse, form in (
        ("cluster", cluster, parse_name, NAME_FORM),
        ("replica set", name, parse_set_name, SET_NAME_FORM),
        ("node", node, parse_name, NAME_FORM),
        ("address", address, parse_dialled, ADDRESS_FORM),
    ):
        try:
            parse(value)
        except RequestError as error:
            problems.add(0, f"{what} {error.message}", form)
    problems.raise_as(ConfigurationError)
    leader = NodeConfig(
        name=node, role="leader", address=address, data=absolute(data), http=http, grpc=grpc
    )
    return ReplicaSetConfig(
        cluster=cluster,
        name=name,
        epoch=epoch,
        nodes=(leader,),
        metadata=name,
        discovery=(address,),
        settings=settings or Settings(),
    )


def parse_name(text: str) -> str:
    """A cluster's or node's name as it is. Raises `RequestError`."""
    if not is_valid_name(text):
        raise RequestError(f"{shorten(text)} is not a valid name", f"expected {NAME_FORM}")
    return text


def parse_set_name(text: str) -> str:
    """A replica set's name as it is. Raises `RequestError`."""
    if not is_valid_replica_set_name(text):
        raise RequestError(f"{shorten(text)} is not a valid name", f"expected {SET_NAME_FORM}")
    return text


def parse_address(text: str) -> str:
    """`host:port` as it is. Raises `RequestError`."""
    host = text.rpartition(":")[0]
    if text.isascii() and _HOST.fullmatch(host):
        with suppress(RequestError):
            split_address(text)
            return text
    raise RequestError(f"{shorten(text)} is not an address", f"expected {ADDRESS_FORM}")


def is_wildcard(address: str) -> bool:
    """Whether it means every address of a machine, which nobody can dial."""
    try:
        return ipaddress.ip_address(split_address(address)[0]).is_unspecified
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it, as far as its host says."""
    host = split_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_dialled(text: str) -> str:
    """An address that others dial, as it is. Raises `RequestError`."""
    if is_wildcard(parse_address(text)):
        raise RequestError(
            f"{text!r} is every address of this machine, which others cannot dial",
            f"expected the address that others reach; {LISTEN_HINT}",
        )
    return text


def absolute(path: Path) -> Path:
    """`path` made absolute and without `..`; symbolic links are kept, they may be moved."""
    return Path(os.path.abspath(path))
