"""A local cluster of several replica sets: a directory with one configuration file for each.

Started all at once, because sets may come up in any order and find each other; or one by one.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hadron.model.errors import ConfigurationError, HadronError
from hadron.model.problems import did_you_mean, list_problems
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.supervision.cluster import START_WITHIN_S
from hadron.node.supervision.detached import (
    DEFAULT_DIRECTORY,
    FILE_NAME,
    DetachedCluster,
    Restarted,
    find_config,
)
from hadron.node.supervision.processes import POLL_S, ClusterError
from hadron.storage.generations import MANIFEST

if TYPE_CHECKING:
    from hadron.client import SyncClient

_CONFIGURATION: Final = re.compile(r"^replica_set\s*:", re.MULTILINE)
_SCHEMA: Final = re.compile(r"^kind\s*:", re.MULTILINE)
_ACQUAINTED_WITHIN_S: Final = 10.0


class Fleet:
    """Some replica sets' processes on this machine, in the order of their files' names but for the
    metadata set, which is first.

    Args:
        files: their configuration files, as `find_configs` returns them.
        only: names of the sets that are meant; all of them when empty.

    Raises `ConfigurationError` for files that do not fit together, and for unknown names.
    """

    def __init__(self, files: Sequence[Path], only: Sequence[str] = ()) -> None:
        found = [DetachedCluster(path) for path in files]
        check_together([each.config for each in found])
        found.sort(key=lambda each: each.config.name != each.config.metadata)
        names = [each.config.name for each in found]
        for name in only:
            if name not in names:
                raise ConfigurationError(
                    f"no file is about a replica set called {name!r}{did_you_mean(name, names)}",
                    f"there are {', '.join(names)}",
                )
        self.has_several = len(names) > 1
        """Whether a node's name alone does not say which one is meant."""
        self.clusters = [each for each in found if not only or each.config.name in only]

    @property
    def url(self) -> str:
        """For clients: one node of each set, all nodes when there is one set only."""
        chosen = [each.config.nodes[:1] for each in self.clusters]
        if len(chosen) == 1:
            chosen = [self.clusters[0].config.nodes]
        return "hadron://" + ",".join(node.address for nodes in chosen for node in nodes)

    def up(
        self, timeout_s: float = START_WITHIN_S, tell: Callable[[str], None] = lambda _: None
    ) -> list[tuple[DetachedCluster, list[str]]]:
        """Start what does not run, all at once, and wait until all of it serves; returns what was
        started of each set.

        Raises `ClusterError` when a node is not ready; those that were started stay.
        """
        with contextlib.ExitStack() as stack:
            begun = [stack.enter_context(each.starting()) for each in self.clusters]
            for local, missing in begun:
                for name in missing:
                    local.spawn(name)
            for each, (local, missing) in zip(self.clusters, begun, strict=True):
                try:
                    local.wait_ready(missing, timeout_s, tell)
                except ClusterError as error:
                    error.message = each.started_with(error.message)
                    raise
        return [(each, missing) for each, (_, missing) in zip(self.clusters, begun, strict=True)]

    def wait_acquainted(self, timeout_s: float = _ACQUAINTED_WITHIN_S) -> list[str]:
        """Wait until every running node knows every set of this fleet; returns what
        `wait_acquainted` returns."""
        asked = [
            (each.config.name, node.name, node.address)
            for each in self.clusters
            for node in each.nodes()
            if node.process
        ]
        return wait_acquainted(
            self.url, [each.config.name for each in self.clusters], asked, timeout_s
        )

    def restart(
        self, tell: Callable[[str], None] = lambda _: None
    ) -> Iterator[tuple[ReplicaSetConfig, Restarted]]:
        """Restart one set after the other, each as `DetachedCluster.restart` does."""
        for each in self.clusters:
            for restarted in each.restart(tell=tell):
                yield each.config, restarted

    def down(self) -> list[tuple[str, str]]:
        """Stop every process that runs; (replica set, node) of each, in the order of stopping."""
        return [
            (each.config.name, name) for each in reversed(self.clusters) for name in each.down()
        ]


def wait_acquainted(
    url: str, sets: Iterable[str], nodes: Iterable[tuple[str, str, str]], timeout_s: float
) -> list[str]:
    """Wait until each of `nodes` (replica set, name, address) knows all of `sets`.

    Returns in words which do not after `timeout_s`; nothing when all do.
    """
    import hadron

    deadline = time.monotonic() + timeout_s
    wanted = set(sets)
    strangers: list[str] = []
    with hadron.connect_sync(url) as client:
        for replica_set, node, address in nodes:
            while trouble := _unknown_to(client, address, wanted):
                if time.monotonic() > deadline:
                    strangers.append(f"{node} of {replica_set} {trouble}")
                    break
                time.sleep(POLL_S)
    return strangers


def _unknown_to(client: SyncClient, address: str, wanted: set[str]) -> str:
    try:
        known = {each.name for each in client.topology(address).replica_sets}
    except HadronError as error:
        return f"does not answer: {error.message}"
    missing = ", ".join(sorted(wanted - known))
    return f"does not know {missing}" if missing else ""


def find_configs(given: Path | None, *, create: bool = False) -> list[Path]:
    """The configuration files meant by a file, a directory, or nothing (./hadron-cluster).

    A backup's manifest is none: `ConfigurationError`. Of a directory, every `.yaml` and `.yml` file
    but schema documents. With `create`, one without any gets three nodes (see `find_config`, which
    also says what is raised).
    """
    path = given or Path(DEFAULT_DIRECTORY)
    if path.name == MANIFEST:
        raise ConfigurationError(
            f"{path} says what a backup is; it is not a replica set's configuration file",
            "the file that the nodes are started with, `hadron-cluster/cluster.yaml` for instance",
        )
    if path.is_file():
        return [path]
    if path.is_dir() and not (path / FILE_NAME).exists():
        found = sorted(
            each
            for pattern in ("*.yaml", "*.yml")
            for each in path.glob(pattern)
            if not _is_schema(each)
        )
        if found:
            return found
    return [find_config(given, create=create)]


def find_config_of(given: Path | None, replica_set: str) -> Path:
    """The one file that is meant by a file or a directory, and by a replica set's name ("" where
    there is one set only). Raises `ConfigurationError`."""
    fleet = Fleet(find_configs(given), [replica_set] if replica_set else [])
    if len(fleet.clusters) > 1:
        names = ", ".join(each.config.name for each in fleet.clusters)
        raise ConfigurationError(
            f"{given or DEFAULT_DIRECTORY} has {len(fleet.clusters)} replica sets: {names}",
            "say which one is meant with --replica-set, or name its file with --config",
        )
    return fleet.clusters[0].config_path


def _is_schema(path: Path) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        # Whoever reads it as a configuration says what is wrong.
        return False
    return _SCHEMA.search(text) is not None and _CONFIGURATION.search(text) is None


def check_together(configs: Sequence[ReplicaSetConfig]) -> None:
    """Raise `ConfigurationError` listing what keeps these sets from being one local cluster."""
    problems = [
        *_differing(configs, "cluster", [each.cluster for each in configs]),
        *_differing(configs, "metadata", [each.metadata for each in configs]),
        *_repeated((each, "replica set name", each.name) for each in configs),
        *_repeated(
            (each, f"address of {node.name},", address)
            for each in configs
            for node in each.nodes
            for address in node.addresses.values()
        ),
        *_repeated(
            (each, f"data directory of {node.name},", str(node.data))
            for each in configs
            for node in each.nodes
        ),
    ]
    if problems:
        raise ConfigurationError(
            list_problems(problems, "between these files"),
            "a directory holds one file for each replica set of one cluster; --config may also "
            "name one of the files",
        )


def _differing(configs: Sequence[ReplicaSetConfig], key: str, values: Sequence[str]) -> list[str]:
    first = configs[0]
    return [
        f"{each.path}: {key} {value!r}, expected {values[0]!r} as in {first.path}"
        for each, value in zip(configs, values, strict=True)
        if value != values[0]
    ]


def _repeated(uses: Iterable[tuple[ReplicaSetConfig, str, str]]) -> list[str]:
    """What two files use; within one file it has been checked."""
    seen: dict[str, ReplicaSetConfig] = {}
    problems = []
    for config, what, value in uses:
        other = seen.setdefault(value, config)
        if other is not config:
            problems.append(
                f"{config.path}: {what} {value} is in use already ({other.path}), expected "
                "another one"
            )
    return problems
