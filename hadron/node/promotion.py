"""`hadron promote`: the next configuration of a replica set, in which another node leads.

The file is people's: only the epoch and two roles are exchanged in it, everything else, comments
too, stays as it is. Writing it changes nothing yet; nodes read it when they start (PROTOCOL B1).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from hadron.model.errors import ConfigurationError, DataDirectoryError
from hadron.node.config import load_config, parse_config
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig, Role


@dataclass(frozen=True, slots=True)
class Promotion:
    """A configuration file and the one that is to take its place."""

    path: Path
    old: ReplicaSetConfig
    new: ReplicaSetConfig
    text: str
    """Of the new file."""


def plan(path: Path, name: str, environ: Mapping[str, str]) -> Promotion:
    """What the file has to say for `name` to lead. Writes nothing.

    Raises `ConfigurationError` for a file that is not valid, a node that it does not have, or one
    that leads already.
    """
    old = load_config(path, environ)
    if old.node(name) == old.leader:
        raise ConfigurationError(
            f"{name} leads {old.name} already, with epoch {old.epoch} of {path}",
            "if another node leads, this one was not started with this file: restart it",
        )
    new = replace(
        old,
        epoch=old.epoch + 1,
        nodes=tuple(replace(node, role=_role(node, name)) for node in old.nodes),
    )
    return _planned(
        path,
        old,
        new,
        environ,
        f"set `epoch: {new.epoch}`, `role: leader` for {name} and `role: replica` for "
        f"{old.leader.name} by hand",
    )


def plan_epoch(path: Path, epoch: int, environ: Mapping[str, str]) -> Promotion:
    """What the file has to say for its replica set to have another epoch, and else to be as it is.
    Writes nothing; raises `ConfigurationError` for a file that is not valid."""
    old = load_config(path, environ)
    return _planned(path, old, replace(old, epoch=epoch), environ, f"set `epoch: {epoch}` by hand")


def _planned(
    path: Path,
    old: ReplicaSetConfig,
    new: ReplicaSetConfig,
    environ: Mapping[str, str],
    by_hand: str,
) -> Promotion:
    text = _edited(path.read_text(encoding="utf-8"), new)
    try:
        understood = parse_config(text, path, environ)
    except ConfigurationError:
        understood = old
    if understood != new:
        raise ConfigurationError(
            f"{path} is written in a way that cannot be edited: anchors, or keys that are merged",
            by_hand,
        )
    return Promotion(path, old, new, text)


def write(promotion: Promotion) -> None:
    """Put the new file in the place of the old one, at once and durably.

    Raises `DataDirectoryError` when the directory cannot be written, or the new file cannot be
    given to the old one's owner and group.
    """
    target = promotion.path.resolve()
    draft = target.with_name(f".{target.name}.epoch-{promotion.new.epoch}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(promotion.text)
            file.flush()
            os.fsync(file.fileno())
        old = target.stat()
        _give_to_owner_of(old, draft)
        # After its owner: a change of that takes bits of the mode away.
        draft.chmod(old.st_mode & 0o7777)
        draft.replace(target)
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise DataDirectoryError(
            f"{promotion.path} cannot be written: {error.strerror or error}",
            "the file is as it was; do this as root, or as its owner; or check the mode of its "
            "directory, and the disk",
        ) from error


def _give_to_owner_of(old: os.stat_result, draft: Path) -> None:
    """A node may be allowed to read its file by the owner or the group alone: it would not start
    with one that root has written. Raises `PermissionError`."""
    new = draft.stat()
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return
    try:
        os.chown(draft, old.st_uid, old.st_gid)
    except PermissionError as error:
        raise PermissionError(
            error.errno,
            f"it belongs to {old.st_uid}:{old.st_gid}, to whom a new one cannot be given",
        ) from error


def _role(node: NodeConfig, leader: str) -> Role:
    return "leader" if node.name == leader else "replica"


def _edited(text: str, new: ReplicaSetConfig) -> str:
    """`text` with the epoch and roles of `new`; checked by whoever asked."""
    changes = sorted(_changes(yaml.compose(text, Loader=yaml.SafeLoader), new), reverse=True)
    for start, end, value in changes:
        text = text[:start] + value + text[end:]
    return text


def _changes(document: yaml.Node | None, new: ReplicaSetConfig) -> Iterator[tuple[int, int, str]]:
    """(from, to, what comes there) for every place, as indices into the text."""
    replica_set = _values(document).get("replica_set")
    found = _values(replica_set)
    if "epoch" in found:
        yield _place(found["epoch"], str(new.epoch))
    elif isinstance(replica_set, yaml.MappingNode):
        first = replica_set.value[0][0].start_mark
        after = ", " if replica_set.flow_style else "\n" + " " * first.column
        yield first.index, first.index, f"epoch: {new.epoch}{after}"
    roles = {node.name: node.role for node in new.nodes}
    members = found.get("nodes")
    for member in members.value if isinstance(members, yaml.SequenceNode) else ():
        values = _values(member)
        name, role = values.get("name"), values.get("role")
        if name is not None and role is not None and role.value != roles.get(name.value):
            yield _place(role, roles[name.value])


def _values(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _place(node: yaml.Node, value: str) -> tuple[int, int, str]:
    return node.start_mark.index, node.end_mark.index, value
