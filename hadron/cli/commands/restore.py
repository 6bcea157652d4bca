"""`hadron restore`: one node, or a whole replica set, from a backup."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hadron.node.promotion import Promotion
    from hadron.node.replica_set import ReplicaSetConfig


@click.command("restore", short_help="Restore a node, a replica set, or all, from a backup.")
@click.argument("backup", type=click.Path(path_type=Path), metavar="BACKUP")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="The replica set's configuration file, or a directory with one for each set.",
)
@click.option(
    "--replica-set",
    metavar="NAME",
    help="Only this one of several; without it the one that the backup is of.",
)
@click.option(
    "--node",
    metavar="NAME",
    help="Restore this node, NODE or REPLICA-SET/NODE; the others teach it what it lacks.",
)
@click.option(
    "--all",
    "everyone",
    is_flag=True,
    help="Restore every node: all disks are lost. Needs --accept-loss.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Restore the node of `hadron dev --data DIR`. Needs --accept-loss.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="What was acknowledged after the backup may be lost for good.",
)
@click.option(
    "--raise-epoch",
    is_flag=True,
    help="With --all: write an epoch above every known one into the files.",
)
@click.option("--overwrite", is_flag=True, help="Replace data that is there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context,
    backup: Path,
    config: Path | None,
    replica_set: str | None,
    node: str | None,
    everyone: bool,
    data: Path | None,
    accept_loss: bool,
    raise_epoch: bool,
    overwrite: bool,
    debug: bool,
) -> None:
    """Write a backup into data directories of stopped nodes. It is verified before and after.

    With --node, that node counts in no majority until the others have taught it what it lacks:
    nothing is lost. A node with an empty disk does the same by itself; a backup saves it the way
    over the network.

    With --all, a new history begins where the backup ends; the `epoch` in the file must be raised,
    by hand or with --raise-epoch. Members that were not restored are refused by the others. Move
    the directories of nodes on other machines there before they start, with the file.

    BACKUP is what `hadron backup` has made, of one replica set or (--all) of all: then every set
    is restored that DIR has a file for, or the one that --replica-set names.

    \b
    Examples:
      hadron restore backups/monday --config cluster.yaml --node n2
      hadron restore backups/monday --config cluster.yaml --all --accept-loss --raise-epoch
      hadron restore backups/monday --config config/two-regions --node gcp.us-east4/p0/n3
      hadron restore backups/monday --data hadron-data --accept-loss
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    targets = {"--node": node is not None, "--all": everyone, "--data": data is not None}
    _check_usage(ctx, backup, config, replica_set, targets, accept_loss)
    if raise_epoch and not everyone:
        raise click.UsageError("--raise-epoch goes with --all", ctx)
    if data is not None:
        _restore_single(backup, data, overwrite)
        return
    assert config is not None
    if node is None:
        chosen = _choose(backup, config, replica_set or "")
        _restore_sets(chosen, config, overwrite, raise_epoch)
        return
    name, _, node = node.rpartition("/")
    if name and replica_set not in (None, name):
        raise click.UsageError(f"{name}/{node} is not of {replica_set}", ctx)
    chosen = _choose(backup, config, replica_set or name)
    if len(chosen) > 1:
        raise click.UsageError(
            f"{backup} and {config} have several replica sets: say whose node it is with "
            "--replica-set",
            ctx,
        )
    _restore_one(*chosen[0], node, overwrite)


def _choose(backup: Path, config: Path, replica_set: str) -> list[tuple[Path, ReplicaSetConfig]]:
    """Which backup is for which replica set."""
    from hadron.node.cluster_backup import choose
    from hadron.node.supervision.fleet import Fleet, find_configs

    fleet = Fleet(find_configs(config), [replica_set] if replica_set else [])
    sets = {each.config.name: each.config for each in fleet.clusters}
    return [(path, sets[name]) for name, path in choose(backup, list(sets)).items()]


def _start(config: ReplicaSetConfig, node: str, given: Path | None = None) -> str:
    """The command that starts a node with this file, as its cluster was started before.

    Args:
        given: what was named with --config, where more than this set is meant.
    """
    from hadron.node.supervision.detached import DEFAULT_DIRECTORY, FILE_NAME, was_started_here

    assert config.path is not None
    if was_started_here(config):
        default = Path(DEFAULT_DIRECTORY) / FILE_NAME
        is_default = config.path.absolute() == default.absolute()
        return f"hadron cluster up{'' if is_default else f' --config {given or config.path}'}"
    return f"hadron node --config {config.path} --name {node}"


def _check_usage(
    ctx: click.Context,
    backup: Path,
    config: Path | None,
    replica_set: str | None,
    targets: dict[str, bool],
    accept_loss: bool,
) -> None:
    """Raises `click.UsageError` that names all that is missing, so that nobody finds it out one by
    one. `targets`: the options that say what to restore, and whether each was given."""
    chosen = [option for option, is_given in targets.items() if is_given]
    if chosen == ["--data"] and (config is not None or replica_set is not None):
        raise click.UsageError("--data and --config or --replica-set exclude each other", ctx)
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other", ctx)
    missing = []
    if not chosen:
        missing.append("what to restore: --node NAME, --all, or --data DIR")
    if config is None and chosen != ["--data"]:
        missing.append("the replica set's configuration file: --config FILE")
    if chosen != ["--node"] and not accept_loss:
        missing.append(
            "--accept-loss"
            + ("" if chosen else " with --all or --data")
            + ": a new history begins, and what was acknowledged after the backup is lost"
        )
    if missing:
        absent = [path for path in (backup, config) if path is not None and not path.exists()]
        nowhere = "".join(f"; and there is no {path}" for path in absent)
        raise click.UsageError(f"say {'; and '.join(missing)}{nowhere}", ctx)


def _restore_sets(
    chosen: list[tuple[Path, ReplicaSetConfig]], given: Path, overwrite: bool, raise_epoch: bool
) -> None:
    """All of them; nothing is written before all could begin."""
    from hadron.node.promotion import write

    raised = [_with_epoch(*each) if raise_epoch else None for each in chosen]
    chosen = [
        (path, config if new is None else new.new)
        for (path, config), new in zip(chosen, raised, strict=True)
    ]
    _check_all(chosen, overwrite)
    for new in filter(None, raised):
        write(new)
        click.echo(f"{new.path}: epoch {new.old.epoch} -> {new.new.epoch}")
    for path, config in chosen:
        _restore_all(path, config, overwrite)
    first = chosen[0][1]
    if len(chosen) == 1:
        click.echo(
            f"start every node with {first.path}, or a file with a higher epoch than its "
            f"{first.epoch}: `{_start(first, 'NODE')}`"
        )
    else:
        click.echo("start every node with its set's file:")
        for start in dict.fromkeys(_start(config, "NODE", given) for _, config in chosen):
            click.echo(f"  {start}")


def _check_all(chosen: list[tuple[Path, ReplicaSetConfig]], overwrite: bool) -> None:
    """Raise what keeps any of them from being restored, all at once."""
    from hadron.model.errors import HadronError
    from hadron.model.problems import list_problems
    from hadron.node.restore import refusals
    from hadron.node.world import SystemDisk

    refused: list[HadronError] = []
    for path, config in chosen:
        found = refusals(path, config, SystemDisk(), overwrite=overwrite)
        for error in found:
            if len(chosen) > 1:
                error.message = f"{config.name}: {error.message}"
        refused += found
    if refused:
        first = refused[0]
        first.message = list_problems([each.message for each in refused], "before it could begin")
        first.hint = "\n".join(dict.fromkeys(each.hint for each in refused if each.hint))
        raise first


def _with_epoch(backup: Path, config: ReplicaSetConfig) -> Promotion | None:
    """The file with an epoch that nobody has seen; None where it has one."""
    from hadron.node.promotion import plan_epoch
    from hadron.node.restore import known_epoch

    assert config.path is not None
    known = known_epoch(backup, config)
    return plan_epoch(config.path, known + 1, os.environ) if config.epoch <= known else None


def _restore_one(backup: Path, config: ReplicaSetConfig, node: str, overwrite: bool) -> None:
    from hadron.cli.commands.backup import describe
    from hadron.node.restore import restore_node
    from hadron.node.world import SystemDisk

    manifest = restore_node(backup, config, node, SystemDisk(), overwrite=overwrite)
    click.echo(describe(manifest))
    click.echo(f"restored and verified in {config.node(node).data}")
    click.echo(
        f"{node} counts in no majority until the others have taught it; start it with "
        f"`{_start(config, node)}`"
    )


def _restore_all(backup: Path, config: ReplicaSetConfig, overwrite: bool) -> None:
    from hadron.cli.commands.backup import describe
    from hadron.node.restore import restore_set
    from hadron.node.world import SystemDisk
    from hadron.wire.system import SystemClock, SystemRandom

    founded = restore_set(
        backup, config, SystemDisk(), SystemRandom(), SystemClock(), overwrite=overwrite
    )
    click.echo(describe(founded.manifest))
    for directory in founded.directories:
        click.echo(f"restored and verified in {directory}")
    click.echo(
        f"a new history of {config.name} begins with entry {founded.first.lsn}, ballot "
        f"{founded.first.ballot}, uuid {founded.uuid.hex()}; what was acknowledged after entry "
        f"{founded.manifest.lsn} is lost"
    )


def _restore_single(backup: Path, data: Path, overwrite: bool) -> None:
    from hadron.model.errors import ConfigurationError
    from hadron.node.backup import read_backup
    from hadron.node.cluster_backup import choose
    from hadron.node.replica_set import single_node_config
    from hadron.storage.identity import read_epoch

    config = single_node_config(data, "127.0.0.1:7000")
    backup = choose(backup, [config.name])[config.name]
    manifest = read_backup(backup)
    config = replace(config, epoch=1 + max(manifest.epoch, read_epoch(data)))
    theirs = (manifest.cluster, manifest.replica_set)
    if theirs != (config.cluster, config.name):
        raise ConfigurationError(
            f"the backup is of replica set {theirs[1]} in cluster {theirs[0]}, not of "
            "`hadron dev`'s",
            "name that replica set's configuration file with --config, and --node or --all",
        )
    _restore_all(backup, config, overwrite)
    click.echo(f"start it with `hadron dev --data {data}`")
