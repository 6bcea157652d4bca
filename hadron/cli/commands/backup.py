"""`hadron backup`: one node's state in a directory, or each replica set's, verified."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of
from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.model.errors import PeerError
    from hadron.storage.snapshot import Manifest
    from hadron.wire.messages import cluster_pb2

_T = TypeVar("_T")


@click.command("backup", short_help="Make a consistent backup of a node, or of all sets.")
@click.argument("destination", type=click.Path(path_type=Path), metavar="DEST")
@click.option(
    "--node",
    metavar="NAME",
    help="Of which node, as NODE or REPLICA-SET/NODE; its leader when not given.",
)
@click.option(
    "--replica-set", metavar="NAME", help="Of which replica set, where there are several."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Of the whole cluster: every replica set, each in a directory of DEST.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Of a stopped node's data directory instead.",
)
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    destination: Path,
    node: str | None,
    replica_set: str | None,
    everything: bool,
    data: Path | None,
    output: str,
) -> None:
    """Write a backup into the new directory DEST: hadron.db and manifest.json.

    A running node goes on working. The backup holds everything that was acknowledged when it
    began, and nothing that is not committed. It is verified before it gets its name: its hash,
    SQLite's own check, and the hash chain over its log. When it is interrupted, the same command
    goes on where it stopped.

    With --all every replica set is copied, one after the other, each as of its own moment: there is
    no one moment of the whole cluster. The metadata set is the last. What an interrupted attempt
    has copied is kept, and its age said.

    \b
    Examples:
      hadron backup backups/monday
      hadron backup backups/monday --all
      hadron backup backups/monday --replica-set gcp.us-east4/p0 --node n2
      hadron backup backups/n3 --data hadron-cluster/n3
    """
    if data is not None and (node is not None or replica_set is not None or everything):
        raise click.UsageError("--data and --node, --replica-set or --all exclude each other", ctx)
    if everything and (node is not None or replica_set is not None):
        raise click.UsageError("--all and --node or --replica-set exclude each other", ctx)
    if everything:
        _print_all(destination, _fetch_all(session_of(ctx).url, destination), output)
        return
    if data is not None:
        from hadron.node.backup import backup_directory
        from hadron.node.world import SystemDisk
        from hadron.wire.system import SystemClock

        manifest = backup_directory(data, destination, SystemDisk(), SystemClock())
    else:
        manifest = _fetch(session_of(ctx).url, node, replica_set or "", destination)
    if output == "json":
        print_json(as_json(destination, manifest))
    else:
        click.echo(describe(manifest))
        click.echo(f"verified and complete in {destination}")


def _print_all(destination: Path, manifests: dict[str, Manifest], output: str) -> None:
    from hadron.node.places import directory_name

    parts = {name: destination / directory_name(name) for name in manifests}
    if output == "json":
        print_json([as_json(parts[name], each) for name, each in manifests.items()])
        return
    for name, manifest in manifests.items():
        click.echo(f"{parts[name]}: {describe(manifest)}")
    sets = counted(len(manifests), "replica set")
    click.echo(f"{sets}, verified and complete in {destination}")


def _fetch(url: str, node: str | None, replica_set: str, destination: Path) -> Manifest:
    async def fetch(client: Client) -> Manifest:
        from hadron.node.backup import backup_live, find_node
        from hadron.node.world import SystemDisk

        source = await find_node(client, node, replica_set)
        with _watching(source.name) as on_progress:
            return await backup_live(
                client, source.address, destination, SystemDisk(), on_progress, _show_trouble
            )

    return _connected(url, fetch)


def _fetch_all(url: str, destination: Path) -> dict[str, Manifest]:
    async def fetch(client: Client) -> dict[str, Manifest]:
        from hadron.node.cluster_backup import backup_cluster
        from hadron.node.world import SystemDisk

        with contextlib.ExitStack() as stack:

            def on_begin(replica_set: cluster_pb2.ReplicaSet) -> Callable[[int, int], None]:
                stack.close()
                return stack.enter_context(_watching(replica_set.name))

            return await backup_cluster(
                client, destination, SystemDisk(), on_begin, _show_trouble, _show_kept
            )

    return _connected(url, fetch)


@contextlib.contextmanager
def _watching(source: str) -> Iterator[Callable[[int, int], None]]:
    """Something to tell how far a copy is; says what is waited for when nothing comes."""
    from hadron.cli.patience import MAJORITY_TOLD_AFTER_S, telling

    waiting = (
        f"waiting for the copy of {source}; a large one takes a while, and a majority must be up: "
        "see `hadron status`"
    )
    with telling(waiting, MAJORITY_TOLD_AFTER_S) as hush:

        def on_progress(have: int, size: int) -> None:
            hush()
            _show_progress(have, size)

        yield on_progress


def _connected(url: str, fetch: Callable[[Client], Awaitable[_T]]) -> _T:
    import anyio

    async def run() -> _T:
        from hadron.cli.patience import connected

        async with connected(url) as client:
            return await fetch(client)

    try:
        return anyio.run(run, backend="trio")
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)


def _show_progress(have: int, size: int) -> None:
    """For people who watch; a node that makes a copy of 1 GB needs some seconds before the first
    of it comes."""
    if sys.stderr.isatty():
        click.echo(f"\r{have >> 20} of {size >> 20} MiB", nl=False, err=True)


def _show_trouble(error: PeerError) -> None:
    click.echo(f"{error.message}; trying again", err=True)


def _show_kept(manifest: Manifest) -> None:
    """Its records are as old as it is, whenever the whole gets its name."""
    from hadron.model.units import format_duration

    age_ms = max(0, int(time.time() * 1_000) - manifest.created_ms)
    exact_to_ms = 60_000 if age_ms >= 120_000 else 1_000
    age = format_duration(age_ms // exact_to_ms * exact_to_ms)
    click.echo(f"{manifest.replica_set}: kept from an earlier attempt, {age} old", err=True)


def describe(manifest: Manifest) -> str:
    """What a backup is, in a few lines."""
    made = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    lines = [
        f"node {manifest.node} of {manifest.replica_set} in cluster {manifest.cluster}, "
        f"{made:%Y-%m-%d %H:%M:%S} UTC",
        f"{manifest.size} bytes as of entry {manifest.lsn} of ballot "
        f"{manifest.epoch}.{manifest.incarnation}, chain {manifest.chain}",
    ]
    if manifest.committed_lsn < manifest.lsn:
        lines.append(
            f"entries above {manifest.committed_lsn} are not known to be committed: the node may "
            "have been ahead of the others"
        )
    return "\n".join(lines)


def as_json(path: Path, manifest: Manifest) -> dict[str, Any]:
    """The manifest's values, but for its check, and where the backup is."""
    import msgspec

    told = msgspec.structs.asdict(manifest)
    del told["check"]
    return {"path": str(path), **told}
