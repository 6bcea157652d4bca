"""Several replica sets of real processes, owned by the process that starts them.

    with LocalFleet(directory, {"meta": 1, "eu/p0": 3, "us/p0": 3}) as fleet:
        with hadron.connect_sync(fleet.url) as client: ...
        fleet.kill("eu/p0"); fleet["eu/p0"].start_all()

For tests and measurements of regions that go away; `fleet` has what outlives its starter.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hadron.node.config import render
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.settings import Settings
from hadron.node.supervision.cluster import START_WITHIN_S, LocalCluster, free_ports
from hadron.node.supervision.fleet import wait_acquainted
from hadron.node.supervision.processes import ClusterError
from hadron.node.world import SystemDisk


def write_configs(
    directory: Path, sets: Mapping[str, int], durability: str = "fsync"
) -> dict[str, Path]:
    """Write a file for each replica set into `directory`, on free ports of loopback; returns them
    by the sets' names.

    Args:
        sets: name → how many nodes, whose n1 leads. The first owns the schema, and is what all
            others have in `discovery:`.
    """
    SystemDisk().make_directory(directory)
    ports = iter(free_ports(sum(sets.values())))
    metadata = next(iter(sets))
    paths: dict[str, Path] = {}
    discovery: tuple[str, ...] = ()
    for name, count in sets.items():
        stem = name.replace("/", "-")
        nodes = tuple(
            NodeConfig(
                name=f"n{number}",
                role="leader" if number == 1 else "replica",
                address=f"127.0.0.1:{next(ports)}",
                data=directory / "var" / f"{stem}-n{number}",
            )
            for number in range(1, count + 1)
        )
        discovery = discovery or tuple(node.address for node in nodes)
        paths[name] = path = directory / f"{stem}.yaml"
        config = ReplicaSetConfig(
            cluster="local",
            name=name,
            epoch=1,
            nodes=nodes,
            metadata=metadata,
            discovery=discovery,
            settings=Settings(durability=durability),
            path=path,
        )
        path.write_text(render(config))
    return paths


class LocalFleet(Mapping[str, LocalCluster]):
    """One `LocalCluster` for each replica set, by its name.

    Args:
        directory: where configuration, data and logs go.
        sets: as `write_configs` takes them.
        durability: "fsync" or "os".
    """

    def __init__(
        self, directory: Path, sets: Mapping[str, int], *, durability: str = "fsync"
    ) -> None:
        self.directory = directory.absolute()
        self._clusters = {
            name: LocalCluster(self.directory, config=path)
            for name, path in write_configs(self.directory, sets, durability).items()
        }

    def __getitem__(self, name: str) -> LocalCluster:
        return self._clusters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clusters)

    def __len__(self) -> int:
        return len(self._clusters)

    @property
    def url(self) -> str:
        """For `hadron.connect`: every node of every set."""
        return "hadron://" + ",".join(
            node.address for each in self.values() for node in each.config.nodes
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, timeout_s: float = START_WITHIN_S) -> None:
        """Start what does not run, all at once, and wait until it serves and all nodes know all
        sets. Raises `ClusterError`."""
        for each in self.values():
            for name in each.names:
                if not each.running(name):
                    each.spawn(name)
        for each in self.values():
            each.wait_ready(each.names, timeout_s)
        strangers = wait_acquainted(
            self.url,
            self._clusters,
            [
                (name, node.name, node.address)
                for name, each in self.items()
                for node in each.config.nodes
            ],
            timeout_s,
        )
        if strangers:
            raise ClusterError("; ".join(strangers))

    def kill(self, *sets: str) -> None:
        """SIGKILL every running node of these sets (of all, when none is named) at once."""
        victims = [
            (self[name], node)
            for name in sets or tuple(self)
            for node in self[name].names
            if self[name].running(node)
        ]
        for each, node in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid(node), signal.SIGKILL)
        for each, node in victims:
            each.stop(node)

    def stop(self) -> None:
        """Stop every node."""
        for each in self.values():
            each.stop_all()
