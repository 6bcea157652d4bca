"""`hadron node` and `hadron dev`: one node as a process."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import time
from collections.abc import Callable

import trio

from hadron.model.errors import HadronError
from hadron.model.ports import Network
from hadron.node.replica_set import NO_SECURITY, ReplicaSetConfig, is_loopback
from hadron.node.runtime import Node
from hadron.node.world import SystemDisk
from hadron.wire.sockets import SocketNetwork, allow_many_files
from hadron.wire.system import SystemClock, SystemRandom

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while another waits. Python's 5 ms would be added to
every commit under load: the writer comes back from its fsync and wants to report."""

_ENDED = 1
"""The exit status of a node that could not go on."""

_COLLECT_AFTER = 20_000
"""Allocations before a collection. Hardly anything here is cyclic, and Python's 700 would look for
it several times per group of commands."""


def run(
    config: ReplicaSetConfig,
    node_name: str,
    *,
    on_listening: Callable[[Node], None] | None = None,
    network: Network | None = None,
) -> int:
    """Run a node until SIGINT or SIGTERM; returns the process's exit status.

    Args:
        network: instead of this machine's sockets.

    Raises `HadronError` when the node cannot start, or stops for what its log does not say.
    """
    _configure_logging(config.settings.log_level, config.settings.log_format, node_name)
    for warning in (*config.warnings, *open_to_others(config, node_name)):
        _log.warning("%s", warning)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    allow_many_files()
    node = Node(
        config,
        node_name,
        clock=SystemClock(),
        random=SystemRandom(),
        network=network or SocketNetwork(),
        disk=SystemDisk(),
    )
    try:
        trio.run(_main, node, on_listening, strict_exception_groups=True)
    except HadronError as error:
        if error is not node.ended_by:
            raise
        # Its log says why, and what to do.
        return _ENDED
    return 0


def open_to_others(config: ReplicaSetConfig, node_name: str) -> list[str]:
    """That whoever reaches the node may do everything, where others than this machine reach it."""
    listens_on = config.node(node_name).listens_on
    if is_loopback(listens_on):
        return []
    return [
        f"{node_name} listens on {listens_on}: {NO_SECURITY}, and whoever reaches it can read, "
        "write and delete everything; keep it inside a network that you trust"
    ]


async def _main(node: Node, on_listening: Callable[[Node], None] | None) -> None:
    try:
        async with trio.open_nursery() as around:
            async with trio.open_nursery() as nursery:
                around.start_soon(_stop_on_signal, nursery.cancel_scope, lambda: node.waits_for)
                await nursery.start(node.run)
                # What was imported and set up stays for good: collections need not look at it.
                gc.collect()
                gc.freeze()
                gc.set_threshold(_COLLECT_AFTER)
                if on_listening is not None:
                    on_listening(node)
            around.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _cause(group) from None


async def _stop_on_signal(scope: trio.CancelScope, waits_for: Callable[[], str]) -> None:
    """Until cancelled: as long as there is something to close, a further signal must not do what it
    does where nobody handles it. Who sends SIGTERM is a program that is told to try again; a second
    Ctrl-C is a person's who wants no more of it, and a node that is killed loses nothing."""
    received: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            if len(received) == 1:
                _log.info("stopping: %s", signal.Signals(number).name)
                scope.cancel()
            elif received.count(signal.SIGINT) > 1:
                _log.warning("ended at once, by a second SIGINT")
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            elif len(received) == 2:
                waiting = waits_for()
                _log.info(
                    "%s: it is stopping already%s",
                    signal.Signals(number).name,
                    f", and waits for {waiting}" if waiting else "",
                )


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that a person should read: the first of ours, else whatever came first."""
    leaves: list[BaseException] = []

    def collect(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                collect(inner)
        else:
            leaves.append(error)

    collect(group)
    return next((leaf for leaf in leaves if isinstance(leaf, HadronError)), leaves[0])


class _JsonFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _configure_logging(level: str, form: str, node: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonFormatter(node))
    else:
        text = logging.Formatter(
            f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {node} %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )
        text.converter = time.gmtime
        handler.setFormatter(text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
