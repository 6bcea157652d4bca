"""A local replica set that outlives the command that starts it: `hadron cluster up` and `down`.

What runs is remembered in a state file beside the data: per node the pid and when it started, so
that `down` never signals a process that merely got the same pid. One command at a time holds
the file's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from hadron.model.errors import ConfigurationError
from hadron.node.config import load_config
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.supervision.cluster import (
    START_WITHIN_S,
    STOP_WITHIN_S,
    LocalCluster,
    check_ports,
    write_config,
)
from hadron.node.supervision.processes import ClusterError, ProcessIdentity
from hadron.node.supervision.reasons import LOST_DISKS
from hadron.node.supervision.running import RunningNode, ask_running, check_fits
from hadron.wire.sockets import split_address

FILE_NAME: Final = "cluster.yaml"
DEFAULT_DIRECTORY: Final = "hadron-cluster"
_PORTS: Final = (7000, 7001, 7002)
_HTTP_PORTS: Final = (7200, 7201, 7202)
"""From the default one on, so that commands find the cluster without being told where it is."""

_STARTED_WITH: Final = "(started with "


@dataclass(frozen=True, slots=True)
class DetachedNode:
    """A node of a detached cluster; `process` is None when it does not run.

    `role` and `address` are the file's, which it may not have been started with; "" for a node that
    was started from here and runs, but that the file does not have any more.
    """

    name: str
    role: str
    address: str
    process: ProcessIdentity | None


@dataclass(frozen=True, slots=True)
class Restarted:
    """A node that was restarted, and how long it took from its stop until it was ready; of one that
    did not run, from its start, which is before all others'."""

    name: str
    role: str
    was_away: bool
    seconds: float


class _Started(msgspec.Struct):
    """The state file; `config` is for people who read it."""

    nodes: dict[str, ProcessIdentity]
    config: str = ""


def _left_running(names: Sequence[str]) -> str:
    run, them = ("runs", "it") if len(names) == 1 else ("run", "them")
    return (
        f"{', '.join(names)} still {run}: `hadron status` shows what is waited for, `hadron "
        f"cluster down` stops {them}"
    )


def find_config(given: Path | None, *, create: bool = False) -> Path:
    """The configuration file meant by a file, a directory, or nothing (./hadron-cluster).

    With `create`, a directory without one gets three nodes on 127.0.0.1:7000 to 7002, with HTTP on
    7200 to 7202, unless these ports are in use (`ClusterError`). Raises `ConfigurationError` when
    there is no file.
    """
    path = given or Path(DEFAULT_DIRECTORY)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigurationError(
                f"there is no file {path}",
                "give a directory to get a new one there"
                if create
                else "name the file that the nodes are started with, or its directory",
            )
        return path
    found = path / FILE_NAME
    if not found.exists():
        if not create:
            where = path if path.is_absolute() else f"./{path}"
            raise ConfigurationError(
                f"there is no cluster in {where}",
                "`hadron cluster up` makes one; --config names another directory or file",
            )
        check_ports(
            (f"n{n}", f"127.0.0.1:{port}")
            for ports in (_PORTS, _HTTP_PORTS)
            for n, port in enumerate(ports, start=1)
        )
        # Each has these ports: programs of another one are to know that it is not theirs.
        name = f"local-{secrets.token_hex(3)}"
        write_config(found.absolute(), len(_PORTS), "fsync", _PORTS, _HTTP_PORTS, cluster=name)
    return found


def _listening(cluster: LocalCluster, names: Iterable[str]) -> list[tuple[str, str]]:
    """Every (node, address) of nodes that are to be started."""
    return [(name, address) for name in names for address in cluster.config.node(name).listening]


def was_started_here(config: ReplicaSetConfig) -> bool:
    """Whether `hadron cluster` has started the nodes whose data this is, with whatever file."""
    return any(config.nodes[0].data.parent.glob("*.processes.lock"))


class DetachedCluster:
    """One configuration file's processes.

    Args:
        config: the file, as `find_config` returns it.
    """

    def __init__(self, config: Path) -> None:
        self.config_path = config.absolute()
        self.config: ReplicaSetConfig = load_config(self.config_path, os.environ)
        data = self.config.nodes[0].data.parent
        self.state_path = data / f"{self.config_path.stem}.processes.json"

    def nodes(self) -> list[DetachedNode]:
        """Every node of the configuration, and whether it runs; then others that still run."""
        alive = self._alive()
        return [
            DetachedNode(node.name, node.role, node.address, alive.get(node.name))
            for node in self.config.nodes
        ] + [
            DetachedNode(name, "", "", process)
            for name, process in alive.items()
            if name not in self.config.members
        ]

    def ask(self) -> dict[str, RunningNode]:
        """What the nodes say of themselves that run; those that do not answer are left out."""
        addresses = {node.name: node.address for node in self.config.nodes}
        return ask_running(addresses, self._alive())

    def _alive(self) -> dict[str, ProcessIdentity]:
        return {name: process for name, process in self._read().items() if process.alive}

    def all_running(self) -> list[str]:
        """Names of all nodes that were started from here and run, in the configuration or not."""
        return list(self._alive())

    def up(
        self, timeout_s: float = START_WITHIN_S, tell: Callable[[str], None] = lambda _: None
    ) -> list[str]:
        """Start what does not run, wait until all serve, and return the names that were started.

        Args:
            tell: told what a node waits for, as soon as it has for a second.

        Raises `ConfigurationError` before anything is started when the file does not fit what the
        others run with, and `ClusterError` when a node is not ready; those that were started stay.
        """
        with self.starting() as (cluster, missing):
            for name in missing:
                cluster.spawn(name)
            cluster.wait_ready(missing, timeout_s, tell)
        return missing

    @contextlib.contextmanager
    def starting(self) -> Iterator[tuple[LocalCluster, list[str]]]:
        """For the length of the block nobody else starts or stops these nodes; what it has started
        stays, whatever happens in it.

        Gives a cluster to start with, and the names of the nodes that do not run. Raises
        `ConfigurationError` when the file does not fit what the others run with, and `ClusterError`
        when ports are in use.
        """
        with self._locked():
            running = self._alive()
            missing = [name for name in self.config.members if name not in running]
            cluster = LocalCluster(
                self.state_path.parent, config=self.config_path, die_with_parent=False
            )
            if missing:
                check_fits(self.config, self.ask())
            check_ports(_listening(cluster, missing))
            with self._kept(cluster, running):
                yield cluster, missing

    def started_with(self, message: str) -> str:
        """The message about nodes of this set, with the file that they have."""
        return f"{message} {_STARTED_WITH}{self.config_path})"

    @contextlib.contextmanager
    def _kept(self, cluster: LocalCluster, known: Mapping[str, ProcessIdentity]) -> Iterator[None]:
        """Whatever happens in the block, nodes that run then stay, and are remembered."""
        try:
            yield
        except ClusterError as error:
            names = [name for name in cluster.names if cluster.running(name) or name in known]
            lost = LOST_DISKS if error.lacks_majority else ""
            left = _left_running(names) if names else ""
            if _STARTED_WITH not in error.message:
                # All sets of a fleet are in such a block; it has named the file of the right one.
                error.message = self.started_with(error.message)
            error.hint = "\n".join(filter(None, [error.hint, left, lost]))
            raise
        finally:
            running = {
                name: cluster.identity(name) for name in cluster.names if cluster.running(name)
            }
            self._write({**known, **running})
            cluster.disown()

    def restart(
        self, timeout_s: float = START_WITHIN_S, tell: Callable[[str], None] = lambda _: None
    ) -> Iterator[Restarted]:
        """Restart all nodes with the file as it is now, the leader first, then one after the other;
        start what does not run, and at last stop what the file does not have any more.

        Each is given out when it is ready: a leader serves, a replica follows.

        Args:
            tell: told what a node waits for, as soon as it has for a second.

        Raises `ConfigurationError` before anything is stopped when the file does not fit what the
        nodes run with, and `ClusterError` when one is not ready; those that were started stay.
        """
        with self._locked():
            known = self._alive()
            said = self.ask()
            check_fits(self.config, said)
            self._check_moves(said)
            cluster = LocalCluster(
                self.state_path.parent, config=self.config_path, die_with_parent=False
            )
            leader = self.config.leader.name
            away = [name for name in cluster.names if name not in known]
            spawned_s = time.monotonic()
            check_ports(_listening(cluster, away))
            with self._kept(cluster, known):
                for name in away:
                    cluster.spawn(name)
                others = (name for name in cluster.names if name != leader)
                for name in (leader, *others):
                    begun_s = spawned_s if name in away else time.monotonic()
                    if name not in away:
                        self._stop_and_spawn(cluster, name, known)
                    cluster.wait_ready([name], timeout_s, tell)
                    role = self.config.node(name).role
                    yield Restarted(name, role, name in away, time.monotonic() - begun_s)
            for name in [name for name in known if name not in self.config.members]:
                known.pop(name).stop(STOP_WITHIN_S)
            self._write(self._read_of(self.config.members))

    def _check_moves(self, said: Mapping[str, RunningNode]) -> None:
        """A node's new port must be free while the node still has its old one."""
        for name, node in said.items():
            if name not in self.config.members:
                continue
            old = next(each.address for each in node.file.nodes if each.name == name)
            new = self.config.node(name)
            # What it listens on itself is not told; with the same port it is in its own way only.
            if split_address(old)[1] != split_address(new.listens_on)[1]:
                check_ports([(name, new.listens_on)])

    @staticmethod
    def _stop_and_spawn(
        cluster: LocalCluster, name: str, known: dict[str, ProcessIdentity]
    ) -> None:
        known.pop(name).stop(STOP_WITHIN_S)
        check_ports(_listening(cluster, [name]))
        cluster.spawn(name)

    def _read_of(self, names: Collection[str]) -> dict[str, ProcessIdentity]:
        return {name: each for name, each in self._read().items() if name in names}

    def remember(self, cluster: LocalCluster) -> None:
        """Let `down` know what runs of a cluster that somebody else still owns."""
        with self._locked():
            self._write(
                {name: cluster.identity(name) for name in cluster.names if cluster.running(name)}
            )

    def adopt(self, cluster: LocalCluster) -> None:
        """Take over the processes of a cluster that was started with `die_with_parent=False`."""
        with self._locked():
            self._write({name: cluster.identity(name) for name in cluster.names})
            cluster.disown()

    def down(self, timeout_s: float = STOP_WITHIN_S) -> list[str]:
        """Stop every process that runs and return their nodes' names."""
        if not self.state_path.parent.exists():
            return []
        with self._locked():
            stopped = []
            # All that were started from here, also what the file does not have any more.
            for name, process in reversed(self._read().items()):
                if process.alive:
                    process.stop(timeout_s)
                    stopped.append(name)
            self.state_path.unlink(missing_ok=True)
        return stopped

    def _read(self) -> dict[str, ProcessIdentity]:
        try:
            return msgspec.json.decode(self.state_path.read_bytes(), type=_Started).nodes
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.state_path} is malformed: {error}",
                "stop the nodes by hand (their logs name their pids), then delete it",
            ) from error

    def _write(self, processes: dict[str, ProcessIdentity]) -> None:
        started = msgspec.json.encode(_Started(processes, str(self.config_path)))
        draft = self.state_path.with_suffix(".new")
        draft.write_bytes(msgspec.json.format(started) + b"\n")
        draft.replace(self.state_path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        with self.state_path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"another command is starting or stopping {self.config_path}",
                    "wait for it to end",
                ) from error
            yield


class RememberedCluster(LocalCluster):
    """Of a starter who is going to leave it up: `hadron cluster down` knows each node from its
    start on, so that nobody has to look for them when the starter is killed before that.

    Args:
        directory: as `LocalCluster` takes it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, die_with_parent=False)

    def spawn(self, name: str) -> None:
        """Start one node without waiting for it."""
        super().spawn(name)
        DetachedCluster(self.config_path).remember(self)
