"""`hadron node`: one node of a replica set, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hadron.cli.printing import output_option, print_rows

_COLUMNS = {"name": "SETTING", "default": "DEFAULT", "allowed": "ALLOWED", "variable": "VARIABLE",
            "help": "~MEANING"}


@click.command("node", short_help="Run one node of a replica set.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
              help="The replica set's configuration file.")
@click.option("--name", metavar="NODE", help="Which of its nodes this is.")
@click.option("--settings", "list_settings", is_flag=True, help="Print every setting and end.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@output_option
@click.pass_context
def command(
    ctx: click.Context, config: Path | None, name: str | None, list_settings: bool, debug: bool,
    output: str,
) -> int:
    """Run node NODE of the replica set that FILE describes, until SIGTERM or Ctrl-C.

    \b
    Examples:
      hadron node --config config/three-nodes.yaml --name n1
      hadron node --settings
    """
    from hadron.cli.session import session_of

    session_of(ctx).debug |= debug
    if list_settings:
        _print_settings(output)
        return 0
    if config is None or name is None:
        raise click.UsageError("--config and --name are needed", ctx)
    from hadron.node.config import load_config
    from hadron.node.main import run

    return run(load_config(config, os.environ), name)


def _print_settings(output: str) -> None:
    import dataclasses

    from hadron.node.settings import describe_settings

    print_rows(_COLUMNS, [dataclasses.asdict(each) for each in describe_settings()], output)
