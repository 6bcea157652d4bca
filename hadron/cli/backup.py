"""`hadron backup`: one node's state in a directory, verified."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.model.errors import PeerError
    from hadron.storage.snapshot import Manifest


@click.command("backup", short_help="Make a consistent backup of a node.")
@click.argument("destination", type=click.Path(path_type=Path), metavar="DEST")
@click.option("--node", metavar="NAME",
              help="Of which node, as NODE or REPLICA-SET/NODE; its leader when not given.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR",
              help="Of a stopped node's data directory instead.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context, destination: Path, node: str | None, data: Path | None, output: str
) -> None:
    """Write a backup into the new directory DEST: hadron.db and manifest.json.

    A running node goes on working. The backup holds everything that was acknowledged when it
    began, and nothing that is not committed. It is verified before it gets its name: its hash,
    SQLite's own check, and the hash chain over its log. When it is interrupted, the same command
    goes on where it stopped.

    \b
    Examples:
      hadron backup backups/monday
      hadron backup backups/monday --node n2
      hadron backup backups/n3 --data hadron-cluster/n3
    """
    if data is not None and node is not None:
        raise click.UsageError("--node and --data exclude each other", ctx)
    if data is not None:
        from hadron.node.backup import backup_directory
        from hadron.node.world import SystemClock, SystemDisk

        manifest = backup_directory(data, destination, SystemDisk(), SystemClock())
    else:
        manifest = _fetch(session_of(ctx).url, node, destination)
    if output == "json":
        print_json(as_json(destination, manifest))
    else:
        click.echo(describe(manifest))
        click.echo(f"verified and complete in {destination}")


def _fetch(url: str, node: str | None, destination: Path) -> Manifest:
    import anyio

    async def run() -> Manifest:
        from hadron.cli.patience import MAJORITY_TOLD_AFTER_S, connected, telling
        from hadron.node.backup import backup_live, find_node
        from hadron.node.world import SystemDisk

        async with connected(url) as client:
            source = await find_node(client, node)
            waiting = (
                f"waiting for {source.name}'s copy; a large one takes a while, and a majority must "
                "be up: see `hadron status`"
            )
            with telling(waiting, MAJORITY_TOLD_AFTER_S) as hush:

                def on_progress(have: int, size: int) -> None:
                    hush()
                    _show_progress(have, size)

                return await backup_live(
                    client, source.address, destination, SystemDisk(), on_progress, _show_trouble
                )

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
