"""`hadron node`: one node of a replica set, in the foreground."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.root import USAGE, report

_COLUMNS = {
    "name": "SETTING",
    "default": "DEFAULT",
    "allowed": "ALLOWED",
    "variable": "VARIABLE",
    "help": "~MEANING",
}


@click.command("node", short_help="Run one node of a replica set.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The replica set's configuration file.",
)
@click.option("--name", metavar="NODE", help="Which of its nodes this is.")
@click.option(
    "--check",
    is_flag=True,
    help="Say whether FILE can be started with, of NODE or of all its nodes, and end. "
    "A directory's files are checked together.",
)
@click.option("--settings", "list_settings", is_flag=True, help="Print every setting and end.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    config: Path | None,
    name: str | None,
    check: bool,
    list_settings: bool,
    debug: bool,
    output: str,
) -> int:
    """Run node NODE of the replica set that FILE describes, until SIGTERM or Ctrl-C.

    There is no authentication and no TLS yet: whoever reaches the node's address can read, write
    and delete everything. Others dial its `address:`; where the node itself has another one, such
    as 0.0.0.0 in a container, `listen:` says so.

    \b
    Examples:
      hadron node --config config/three-nodes.yaml --name n1
      hadron node --config config/three-nodes.yaml --check
      hadron node --settings
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    if list_settings:
        _print_settings(output)
        return 0
    if config is None or (name is None and not check):
        lacking = [
            option for option, given in (("--config", config), ("--name", name)) if given is None
        ]
        raise click.UsageError(
            f"{' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} needed", ctx
        )
    from hadron.model.errors import ConfigurationError
    from hadron.node.config import load_config
    from hadron.node.main import run

    try:
        if check:
            with _told(output):
                _check(config, name, output)
            return 0
        assert name is not None
        loaded = load_config(config, os.environ)
        loaded.node(name)
    except ConfigurationError as error:
        if session_of(ctx).debug:
            raise
        report(error)
        # As a wrong command line: whoever starts nodes again need not try.
        return USAGE
    return run(loaded, name)


@contextlib.contextmanager
def _told(output: str) -> Iterator[None]:
    """Whoever reads JSON of a check reads it of one that fails, too."""
    from hadron.model.errors import HadronError

    try:
        yield
    except HadronError as error:
        if output == "json":
            print_json({"valid": False, "error": error.message, "hint": error.hint})
        raise


def _check(given: Path, name: str | None, output: str) -> None:
    """Raise what a start would end with, as far as files and disk tell; nothing is written."""
    import dataclasses

    from hadron.model.errors import FencedError
    from hadron.node.main import open_to_others
    from hadron.node.supervision.fleet import Fleet, find_configs
    from hadron.storage.identity import check_owner, read_owner, read_promise

    checked: list[dict[str, Any]] = []
    # Of a file that is not there a start says what there is to say.
    paths = find_configs(given) if given.exists() else [given]
    for config in (each.config for each in Fleet(paths).clusters):
        nodes = config.nodes if name is None else (config.node(name),)
        for node in nodes:
            if (owner := read_owner(node.data)) is not None:
                found = owner.cluster, owner.replica_set, owner.node
                check_owner(node.data, found, (config.cluster, config.name, node.name))
                try:
                    read_promise(node.data).check_epoch(config.epoch, config.digest)
                except FencedError as error:
                    # Of several nodes, which one.
                    raise FencedError(f"{node.name}: {error.message}", error.hint) from error
        open_ones = [each for node in nodes for each in open_to_others(config, node.name)]
        warnings = [*config.warnings, *open_ones]
        if output == "json":
            checked.append(
                {
                    "file": config.path,
                    "cluster": config.cluster,
                    "replica_set": config.name,
                    "epoch": config.epoch,
                    "nodes": [dataclasses.asdict(node) for node in nodes],
                    "warnings": warnings,
                }
            )
            continue
        click.echo(
            f"{config.path}: {config.name} of cluster {config.cluster}, epoch {config.epoch}, "
            f"{config.leader.name} leads"
        )
        for node in nodes:
            listens = "" if node.listen is None else f", listens on {node.listen}"
            told = f"{node.name} ({node.role}) at {node.address}{listens}, data in {node.data}"
            click.echo(f"  {told}")
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
    if output == "json":
        print_json({"valid": True, "files": checked})
    else:
        click.echo("valid")


def _print_settings(output: str) -> None:
    import dataclasses

    from hadron.node.settings import describe_settings

    print_rows(_COLUMNS, [dataclasses.asdict(each) for each in describe_settings()], output)
