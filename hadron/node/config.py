"""The configuration file of a replica set, shared by its nodes.

Who the members are and who leads comes from this file alone, so a node must never start on a
misread one: the whole file is checked before anything else happens, and everything wrong with it
is told at once, each as `file:line: what was found, what was expected`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from hadron.model.errors import ConfigurationError, RequestError
from hadron.model.ids import MAX_EPOCH, NAME_FORM
from hadron.model.limits import MAX_MEMBERS
from hadron.model.marked_fields import Fields, parse_whole
from hadron.model.marked_yaml import parse_yaml, read_text
from hadron.model.problems import Problems, did_you_mean, one_of, shorten
from hadron.node.replica_set import (
    ADDRESS_FORM,
    LISTEN_HINT,
    NO_SECURITY,
    SET_NAME_FORM,
    NodeConfig,
    ReplicaSetConfig,
    Role,
    absolute,
    is_loopback,
    parse_address,
    parse_dialled,
    parse_name,
    parse_set_name,
    single_node_config,
)
from hadron.node.settings import read_settings, settings_to_file
from hadron.wire.sockets import split_address

__all__ = [
    "NodeConfig",
    "ReplicaSetConfig",
    "load_config",
    "parse_config",
    "render",
    "single_node_config",
]

_DIALLED_FORM: Final = f"{ADDRESS_FORM}, which others reach; {LISTEN_HINT}"

_DOORS: Final = ("grpc", "http")
"""Where whoever reaches them may do everything, and more programs than Hadron's know how."""

_FLAG_FORM: Final = "true or false"
_ROLES: Final = ("leader", "replica")
_EPOCH_FORM: Final = f"a whole number from 1 to {MAX_EPOCH}"


def load_config(path: Path | str, environ: Mapping[str, str]) -> ReplicaSetConfig:
    """Read a configuration file, settings overridden by `HADRON_…` variables of `environ`.

    Raises `ConfigurationError` listing every problem.
    """
    path = Path(path)
    problems = Problems(str(path))
    text = read_text(path, problems)
    problems.raise_as(ConfigurationError)
    return parse_config(text, path, environ)


def parse_config(text: str, path: Path, environ: Mapping[str, str]) -> ReplicaSetConfig:
    """`load_config` for text at hand; `path` is named in problems, and `data:` is relative to
    its directory."""
    problems = Problems(str(path))
    documents = parse_yaml(text, problems)
    if not documents and not problems:
        problems.add(0, "the file is empty", "a configuration with cluster and replica_set")
    if not documents:
        problems.raise_as(ConfigurationError)
    if len(documents) > 1:
        problems.add(documents[1].line, "a second document", "one replica set per file")
    config = _read(Fields(documents[0], problems), path, environ, problems)
    problems.raise_as(ConfigurationError)
    return config


def render(config: ReplicaSetConfig) -> str:
    """The configuration as a file's text; `parse_config` with the same path gives it back.

    Data directories below the file's own are written relative to it; settings that have their
    default are left out.
    """
    document: dict[str, Any] = {
        "cluster": config.cluster,
        "metadata": config.metadata,
        "discovery": list(config.discovery),
        **({"insecure": True} if config.insecure else {}),
        "replica_set": {
            "name": config.name,
            "epoch": config.epoch,
            "nodes": [_node_to_file(node, config.path) for node in config.nodes],
        },
        **settings_to_file(config.settings),
    }
    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100_000
    )
    return text


def _node_to_file(node: NodeConfig, path: Path | None) -> dict[str, str]:
    data = node.data
    if path is not None and data.is_relative_to(absolute(path).parent):
        data = data.relative_to(absolute(path).parent)
    # A leading ~ would be read as a home directory.
    text = f"./{data}" if str(data).startswith("~") else str(data)
    listen = {} if node.listen is None else {"listen": node.listen}
    return {"name": node.name, "role": node.role, **node.addresses, **listen, "data": text}


@dataclass(frozen=True, slots=True)
class _Member:
    """A node as read, with its place in the file; what could not be read is empty."""

    fields: Fields
    node: NodeConfig
    has_role: bool


def _read(
    document: Fields, path: Path, environ: Mapping[str, str], problems: Problems
) -> ReplicaSetConfig:
    cluster = document.required("cluster", parse_name, "", NAME_FORM)
    metadata = document.parsed("metadata", parse_set_name, "", SET_NAME_FORM)
    discovery = document.list_of("discovery", _parse_known, ADDRESS_FORM)
    name, epoch, nodes = "", 1, tuple[NodeConfig, ...]()
    document.require("replica_set", "its name, epoch and nodes")
    replica_set = document.table("replica_set")
    if replica_set is not None:
        name = replica_set.required("name", parse_set_name, "", SET_NAME_FORM)
        epoch = replica_set.parsed("epoch", _parse_epoch, 1, _EPOCH_FORM)
        nodes = _read_nodes(replica_set, path)
        replica_set.finish()
    insecure = document.parsed("insecure", _parse_flag, False, _FLAG_FORM)
    settings = read_settings(document, environ, problems)
    document.finish()
    if replica_set is not None and not insecure:
        _check_doors(replica_set, nodes)
    if metadata and name and metadata != name and nodes and not problems:
        _check_way_to(metadata, document, name, discovery, nodes)
    return ReplicaSetConfig(
        cluster=cluster,
        name=name,
        epoch=epoch,
        nodes=nodes,
        metadata=metadata or name,
        discovery=discovery or tuple(node.address for node in nodes),
        settings=settings,
        insecure=insecure,
        path=path,
    )


def _check_way_to(
    metadata: str,
    document: Fields,
    name: str,
    discovery: tuple[str, ...],
    nodes: tuple[NodeConfig, ...],
) -> None:
    """Who would be told by nobody where the schema's owner is could be given no stream, ever."""
    own = {node.address.lower() for node in nodes}
    if not all(address.lower() in own for address in discovery):
        return
    given = (
        "`discovery:` has this set's own nodes only" if discovery else "there is no `discovery:`"
    )
    document.note(
        "metadata",
        f"metadata: '{metadata}' is another replica set than this one, {name}, and {given}: "
        "nothing leads to it, and no stream could be created",
        f"`metadata: {name}`, or in `discovery:` an address of a node that knows {metadata}",
    )


def _check_doors(replica_set: Fields, nodes: tuple[NodeConfig, ...]) -> None:
    for node in nodes:
        for key in _DOORS:
            address = node.addresses.get(key)
            if address and not is_loopback(address):
                replica_set.note(
                    "nodes",
                    f"{node.name} has `{key}: {address}`, which others than this machine reach: "
                    f"{NO_SECURITY}",
                    "an address of this machine alone, such as 127.0.0.1:7200; or `insecure: true` "
                    "at the top of the file, inside a network that you trust",
                )


def _read_nodes(replica_set: Fields, path: Path) -> tuple[NodeConfig, ...]:
    if not replica_set.require("nodes", "a list with one leader and any number of replicas"):
        return ()
    tables = replica_set.tables("nodes")
    if tables is None:
        return ()
    members = [_read_node(table, path) for table in tables]
    if len(members) > MAX_MEMBERS:
        replica_set.note("nodes", f"{len(members)} nodes", f"at most {MAX_MEMBERS}")
    _check_leaders(replica_set, members)
    _check_unique(members)
    return tuple(member.node for member in members)


def _read_node(fields: Fields, path: Path) -> _Member:
    role = fields.required("role", _parse_role, None, one_of(_ROLES))
    node = NodeConfig(
        name=fields.required("name", parse_name, "", NAME_FORM),
        role=role or "replica",
        address=fields.required("address", parse_dialled, "", _DIALLED_FORM),
        listen=fields.parsed("listen", parse_address, None, ADDRESS_FORM),
        grpc=fields.parsed("grpc", parse_address, None, ADDRESS_FORM),
        http=fields.parsed("http", parse_address, None, ADDRESS_FORM),
        data=fields.required("data", lambda text: _parse_data(text, path), Path(), "a directory"),
    )
    fields.finish()
    return _Member(fields, node, role is not None)


def _check_leaders(replica_set: Fields, members: list[_Member]) -> None:
    leaders = [member for member in members if member.node.role == "leader"]
    if not leaders and all(member.has_role for member in members):
        replica_set.note("nodes", "no node has role leader", "exactly one leader")
    for other in leaders[1:]:
        first = leaders[0]
        found = (
            f"{other.node.name or 'this node'} is a second leader "
            f"({first.node.name or 'the first'} is one in line {first.fields.line_of('role')})"
        )
        other.fields.note("role", found, "exactly one leader")


def _check_unique(members: list[_Member]) -> None:
    """Names, addresses, and data directories on one host; port 0 is for a node on its own."""
    names, addresses, directories = (dict[object, int]() for _ in range(3))
    for member in members:
        fields, node = member.fields, member.node
        if node.name:
            _note_repeated(names, node.name, fields, "name", node.name, "unique names")
        for key, address in node.addresses.items():
            if not address:
                continue
            host, port = split_address(address)
            if port == 0 and key == "address" and len(members) > 1:
                found = f"{fields.name_of(key)}: {address!r} has port 0"
                fields.note(key, found, "a port from 1 to 65535, which the other nodes can dial")
            elif port:
                where = (host.lower(), port)
                _note_repeated(addresses, where, fields, key, address, "unique addresses")
        if node.listen and split_address(node.listen)[1] == 0:
            found = f"{fields.name_of('listen')}: {node.listen!r} has port 0"
            fields.note("listen", found, "a port from 1 to 65535")
        if node.address and node.data != Path():
            place = (split_address(node.address)[0].lower(), node.data)
            expected = "a directory of its own for each node of a host"
            _note_repeated(directories, place, fields, "data", str(node.data), expected)


def _note_repeated(
    seen: dict[object, int], value: object, fields: Fields, key: str, shown: str, expected: str
) -> None:
    if value in seen:
        found = f"{fields.name_of(key)}: {shorten(shown)} is in use already (line {seen[value]})"
        fields.note(key, found, expected)
    else:
        seen[value] = fields.line_of(key)


def _parse_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise RequestError(f"{shorten(text)} is neither", f"expected {_FLAG_FORM}")
    return text == "true"


def _parse_role(text: str) -> Role:
    if text not in _ROLES:
        found = f"{shorten(text)} is not a role{did_you_mean(text, _ROLES)}"
        raise RequestError(found, f"expected {one_of(_ROLES)}")
    return cast(Role, text)


def _parse_epoch(text: str) -> int:
    epoch = parse_whole(text)
    if not 1 <= epoch <= MAX_EPOCH:
        raise RequestError(f"{text!r} is not an epoch", f"expected {_EPOCH_FORM}")
    return epoch


def _parse_known(text: str) -> str:
    if split_address(parse_dialled(text))[1] == 0:
        raise RequestError(f"{text!r} has port 0", "expected a port from 1 to 65535")
    return text


def _parse_data(text: str, path: Path) -> Path:
    try:
        data = Path(text).expanduser() if text.startswith("~") else Path(text)
        return absolute(absolute(path).parent / data)
    except (RuntimeError, ValueError) as error:
        found = f"{shorten(text)} cannot be a directory: {error}"
        raise RequestError(found, "expected a directory") from error
