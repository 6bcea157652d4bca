"""`hadron context`: names for the clusters that a person uses."""

from __future__ import annotations

import click

from hadron.cli.completing import complete_contexts
from hadron.cli.printing import output_option, print_rows


def _not_empty(_ctx: click.Context, _parameter: click.Parameter, name: str) -> str:
    if not name:
        raise click.BadParameter("a context's name cannot be empty: the one in use would be none")
    return name


@click.group("context", short_help="Name the clusters that you use.")
def command() -> None:
    """Names for clusters, so that commands need no URL.

    \b
    Example:
      hadron context set lab hadron://10.0.0.5,10.0.0.6
      hadron context use lab
      hadron status
    """


@command.command("list")
@output_option
def list_(output: str) -> None:
    """List contexts; tokens are not shown.

    \b
    Example:
      hadron context list
    """
    from hadron.client.connecting.contexts import Contexts
    from hadron.client.connecting.url import without_token

    contexts = Contexts.load()
    rows = [
        {"name": name, "server": without_token(url), "current": name == contexts.current}
        for name, url in sorted(contexts.servers.items())
    ]
    print_rows({"name": "NAME", "server": "SERVER", "current": "CURRENT"}, rows, output)


@command.command("set")
@click.argument("name", callback=_not_empty, shell_complete=complete_contexts)
@click.argument("url")
def set_(name: str, url: str) -> None:
    """Define or redefine context NAME; the first one becomes the current one.

    \b
    Example:
      hadron context set lab hadron://10.0.0.5,10.0.0.6
    """
    from hadron.client.connecting.contexts import Contexts
    from hadron.client.connecting.url import parse_url

    parse_url(url)
    contexts = Contexts.load()
    contexts.servers[name] = url
    contexts.current = contexts.current or name
    contexts.save()
    click.echo(f"context {name} set")


@command.command("use")
@click.argument("name", callback=_not_empty, shell_complete=complete_contexts)
def use(name: str) -> None:
    """Make NAME the context of commands that name no server.

    \b
    Example:
      hadron context use lab
    """
    from hadron.client.connecting.contexts import Contexts

    contexts = Contexts.load()
    contexts.url(name)
    contexts.current = name
    contexts.save()
    click.echo(f"using context {name}")


@command.command("remove")
@click.argument("name", shell_complete=complete_contexts)
def remove(name: str) -> None:
    """Forget context NAME.

    \b
    Example:
      hadron context remove lab
    """
    from hadron.client.connecting.contexts import Contexts

    contexts = Contexts.load()
    contexts.url(name)
    del contexts.servers[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    click.echo(f"context {name} removed")
