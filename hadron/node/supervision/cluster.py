"""A replica set of real processes on this machine, owned by the process that starts it.

    with LocalCluster(directory) as cluster:
        with hadron.connect_sync(cluster.url) as client: ...
        cluster.kill("n3"); cluster.start("n3")

For tests, the demo and the bench. A cluster that outlives its starter is `detached`'s.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from hadron.model.errors import HadronError
from hadron.node.config import load_config, render
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.settings import Settings
from hadron.node.supervision.processes import (
    NODE_PROGRAM,
    ClusterError,
    ProcessIdentity,
    last_words,
    log_tail,
    spawn_node,
    wait_until,
)
from hadron.node.supervision.reasons import NO_ANSWER, Reasons, reason_of
from hadron.node.world import SystemDisk
from hadron.replication.life import Life, at_work
from hadron.wire.sockets import bind_address, split_address

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.wire.messages import cluster_pb2

_PORTS: Final = range(20_000, 32_000)
"""Below Linux's ephemeral range, so that no outgoing connection takes a port between the moment
it was found free and the moment its node listens."""

_MAX_CLAIMS: Final = 400
"""Ports that a process keeps for itself: each takes a file descriptor."""

START_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 15.0
_ANSWER_WITHIN_S: Final = 2.0
"""Short, so that whoever polls notices soon when a process ends."""


class LocalCluster:
    """Node processes of one replica set, by name.

    Args:
        directory: where configuration, data and logs go; made when missing.
        nodes: how many; the first leads.
        durability: "fsync" or "os".
        config: a configuration file to use instead of a generated one.
        die_with_parent: whether nodes end with this process even when it is killed (Linux).

    `own_configs` holds the files of nodes that do not use the common one, `program` is what runs as
    a node (see `spawn_node`).
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        durability: str = "fsync",
        config: Path | None = None,
        die_with_parent: bool = True,
    ) -> None:
        self.directory = directory.absolute()
        if config is None:
            config = write_config(self.directory / "cluster.yaml", nodes, durability)
        self.config_path = config.absolute()
        self.config: ReplicaSetConfig = load_config(self.config_path, os.environ)
        self.own_configs: dict[str, Path] = {}
        self.program: tuple[str, ...] = NODE_PROGRAM
        self._die_with_parent = die_with_parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client: SyncClient | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_all()

    @property
    def names(self) -> list[str]:
        """All nodes, in the order of the configuration."""
        return list(self.config.members)

    @property
    def leader(self) -> str:
        """The leader's name."""
        return self.config.leader.name

    @property
    def url(self) -> str:
        """For `hadron.connect`: every node's address."""
        return cluster_url(self.config)

    def address(self, name: str) -> str:
        """`host:port` of a node."""
        return self.config.node(name).address

    def listens_on(self, name: str) -> str:
        """`host:port` that a node binds."""
        return self.config.node(name).listens_on

    def database(self, name: str) -> Path:
        """The node's own file, for `mode=ro` readers."""
        return self.config.node(name).data / "hadron.db"

    def log(self, name: str) -> Path:
        """Where the node's output goes."""
        return log_path(self.config, name)

    # --- processes ------------------------------------------------------------------------------

    def start_all(self, timeout_s: float = START_WITHIN_S) -> None:
        """Start every node that does not run and wait until all serve or follow.

        Raises `ClusterError` with the last lines of the log of the node that failed.
        """
        for name in self.names:
            if not self.running(name):
                self.spawn(name)
        self.wait_ready(self.names, timeout_s)

    def start(self, name: str, timeout_s: float = START_WITHIN_S) -> None:
        """Start one node and wait until it serves or follows."""
        self.spawn(name)
        self.wait_ready([name], timeout_s)

    def spawn(self, name: str) -> None:
        """Start one node without waiting for it."""
        if self.running(name):
            raise ClusterError(f"node {name} is running already")
        config = self.own_configs.get(name, self.config_path)
        self._processes[name] = spawn_node(
            config,
            self.config.node(name).name,
            self.log(name),
            die_with_parent=self._die_with_parent,
            program=self.program,
        )

    def running(self, name: str) -> bool:
        """Whether the node's process exists; a paused one does."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        """Raises `ClusterError` when the node does not run."""
        if not self.running(name):
            raise ClusterError(f"node {name} is not running", f"its log ends:\n{self._tail(name)}")
        return self._processes[name].pid

    def identity(self, name: str) -> ProcessIdentity:
        """The node's process, for somebody who outlives this object."""
        return ProcessIdentity.of(self.pid(name))

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until the process is gone."""
        os.kill(self.pid(name), signal.SIGKILL)
        self._processes[name].wait()

    def pause(self, name: str) -> None:
        """SIGSTOP: the node keeps its connections and answers nothing."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        os.kill(self.pid(name), signal.SIGCONT)

    def stop(self, name: str, timeout_s: float = STOP_WITHIN_S) -> None:
        """SIGTERM and wait; SIGKILL when it does not end in time."""
        self._stop([name], timeout_s)

    def stop_all(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Stop every node, all at once; those that are in the configuration no more, too."""
        self.release()
        self._stop(list(self._processes), timeout_s)

    def _stop(self, names: Sequence[str], timeout_s: float) -> None:
        running = [self._processes[name] for name in names if self.running(name)]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def disown(self) -> None:
        """Forget the processes without stopping them: somebody else has their identities."""
        self.release()
        for process in self._processes.values():
            # Popen would warn about a child that nobody waited for; nobody is going to.
            process.returncode = 0
        self._processes.clear()

    def release(self) -> None:
        """Close this object's own connection, so that nothing of it is felt by the nodes."""
        self._stack.close()
        self._client = None

    # --- waiting --------------------------------------------------------------------------------

    def status(self, name: str) -> cluster_pb2.StatusResponse:
        """What the node says of itself. Raises `PeerError` when it does not answer."""
        _knock(self.address(name))
        if self._client is None:
            import hadron

            client = hadron.connect_sync(self.url, connect_timeout_s=_ANSWER_WITHIN_S)
            self._client = self._stack.enter_context(client)
        return self._client.status(self.address(name))

    def wait_ready(
        self,
        names: Sequence[str],
        timeout_s: float = START_WITHIN_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Wait until the leader among `names` serves and the replicas follow.

        Args:
            tell: told what a node waits for, as soon as it has for a second.

        Raises `ClusterError` as soon as the process of any of them ends or no waiting can help,
        and when `timeout_s` passes: with what each of them waits for.
        """
        reasons = Reasons(tell)
        try:
            self._wait_ready(names, timeout_s, reasons)
        except ClusterError as error:
            error.lacks_majority = bool(reasons.without_majority)
            raise

    def _wait_ready(self, names: Sequence[str], timeout_s: float, reasons: Reasons) -> None:
        waiting = list(names)

        def all_ready() -> bool:
            for name in names:
                self._check_alive(name)
            waiting[:] = [name for name in waiting if not self._is_ready(name, reasons)]
            return not waiting

        if not wait_until(all_ready, timeout_s):
            # The others wait for the leader, which says what it waits for itself.
            first, *others = sorted(waiting, key=lambda name: name != self.leader)
            seen = {name: reasons.last.get(name, NO_ANSWER) for name in waiting}
            raise ClusterError(
                f"node {first} is not {self._wanted(first)} after {timeout_s:g} s: {seen[first]}",
                "\n".join(
                    [f"{name} is not {self._wanted(name)}: {seen[name]}" for name in others]
                    + [
                        f"the log of {name} ends:\n{self._tail(name)}"
                        for name in waiting
                        if not reasons.has_answered(name)
                    ]
                ),
            )

    def _check_alive(self, name: str) -> None:
        """Raise `ClusterError` with the node's own words when its process has ended."""
        try:
            self.pid(name)
        except ClusterError as ended:
            error, hint = last_words(self.log(name))
            if not error:
                raise
            raise ClusterError(f"{ended.message}: {error}", hint) from None

    def _wanted(self, name: str) -> Life:
        return at_work(leads=name == self.leader)

    def _is_ready(self, name: str, reasons: Reasons) -> bool:
        status = self._ask(name, reasons)
        if status is None:
            return False
        if status.state == self._wanted(name):
            return True
        reasons.note(name, status)
        return False

    def _ask(self, name: str, reasons: Reasons) -> cluster_pb2.StatusResponse | None:
        """None when the node does not answer: the reason is noted."""
        try:
            status = self.status(name)
        except (HadronError, OSError) as error:
            reasons.note_silence(name, str(error) or NO_ANSWER)
            return None
        self._check_own(name, status)
        return status

    def wait_for(
        self,
        name: str,
        what: str,
        condition: Callable[[cluster_pb2.StatusResponse], bool],
        timeout_s: float = START_WITHIN_S,
        *,
        with_nodes: Sequence[str] = (),
    ) -> cluster_pb2.StatusResponse:
        """Poll a node's status until `condition` holds, and return it.

        Args:
            what: what is waited for, for the message.
            with_nodes: others that must stay alive meanwhile.

        Raises `ClusterError` when a process ends, when another one answers at the node's address,
        or when `timeout_s` passes.
        """
        reasons = Reasons(lambda _: None)
        found: list[cluster_pb2.StatusResponse] = []

        def holds() -> bool:
            for needed in (name, *with_nodes):
                self.pid(needed)
            status = self._ask(name, reasons)
            if status is not None and condition(status):
                found.append(status)
            elif status is not None:
                reasons.last[name] = reason_of(status)
            return bool(found)

        if wait_until(holds, timeout_s):
            return found[0]
        seen = reasons.last.get(name, NO_ANSWER)
        raise ClusterError(
            f"node {name} is not {what} after {timeout_s:g} s: {seen}",
            f"its log ends:\n{self._tail(name)}",
        )

    def _check_own(self, name: str, status: cluster_pb2.StatusResponse) -> None:
        """Another cluster on the same ports must not be taken for this one."""
        if status.pid != self.pid(name):
            other = f"process {status.pid} (its node {status.node})"
            raise _in_use(name, self.address(name), other)

    def _tail(self, name: str) -> str:
        return log_tail(self.log(name))


def _knock(address: str) -> None:
    """Raise `OSError` unless somebody listens: a client would wait for it longer than we want."""
    socket.create_connection(split_address(address), _ANSWER_WITHIN_S).close()


def check_ports(addresses: Iterable[tuple[str, str]]) -> None:
    """Raise `ClusterError` when something listens already at one of (node, `host:port`).

    Whether an address can be used at all is left to the node to find out.
    """
    for name, address in addresses:
        try:
            family, where = bind_address(address)
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(name, address, "another process") from error


def _in_use(name: str, address: str, who: str) -> ClusterError:
    return ClusterError(
        f"node {name} cannot listen on port {address.rpartition(':')[2]}: "
        f"{who} answers at {address} already",
        "stop it (Ctrl-C for a `hadron dev`, `hadron cluster down` where another cluster was "
        "started), or change the addresses in this cluster's configuration file",
    )


def cluster_url(config: ReplicaSetConfig) -> str:
    """The URL that names every node of a replica set."""
    return "hadron://" + ",".join(node.address for node in config.nodes)


def log_path(config: ReplicaSetConfig, name: str) -> Path:
    """A local node's log, beside its data directory."""
    data = config.node(name).data
    return data.with_name(f"{data.name}.log")


def write_config(
    path: Path,
    nodes: int,
    durability: str,
    ports: Sequence[int] | None = None,
    http_ports: Sequence[int] = (),
    grpc_ports: Sequence[int] = (),
    cluster: str = "local",
) -> Path:
    """Write a replica set of `nodes` on loopback, with data beside the file; n1 leads.

    Args:
        ports: one for each node; free ones are found when left out.
        http_ports, grpc_ports: where they serve HTTP and gRPC, if they do.
    """
    addresses = [f"127.0.0.1:{port}" for port in ports or free_ports(nodes)]
    config = ReplicaSetConfig(
        cluster=cluster,
        name="local/p0",
        epoch=1,
        metadata="local/p0",
        nodes=tuple(
            NodeConfig(
                name=f"n{number}",
                role="leader" if number == 1 else "replica",
                address=address,
                data=path.parent / f"n{number}",
                http=f"127.0.0.1:{http_port}" if http_port else None,
                grpc=f"127.0.0.1:{grpc_port}" if grpc_port else None,
            )
            for number, (address, http_port, grpc_port) in enumerate(
                zip_longest(addresses, http_ports, grpc_ports), start=1
            )
        ),
        discovery=(addresses[0],),
        settings=Settings(durability=durability),
        path=path,
    )
    disk = SystemDisk()
    disk.make_directory(path.parent)
    disk.write_file(path, render(config).encode())
    return path


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on, all different.

    On Linux they are also promised to nobody else who asks this function, in any process, for as
    long as this one lives: a node that is down for a moment has its port when it comes back.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(_PORTS, len(_PORTS)):
            candidate = held.enter_context(socket.socket())
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
                _claim(port)
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise ClusterError(f"there are no {count} free ports on 127.0.0.1")


_claims: deque[socket.socket] = deque()


def _claim(port: int) -> None:
    """Raises `OSError` when another process, or this one, has claimed it."""
    if sys.platform != "linux":
        return
    # A name in the kernel's own space of socket names: it goes with the process.
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0hadron-port-{port}")
    except OSError:
        claim.close()
        raise
    _claims.append(claim)
    if len(_claims) > _MAX_CLAIMS:
        _claims.popleft().close()


@atexit.register
def _release() -> None:
    for claim in _claims:
        claim.close()
