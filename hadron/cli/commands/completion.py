"""`hadron completion`: shell completion code, from click's own generator."""

from __future__ import annotations

import click


@click.command("completion", short_help="Print shell completion code.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print code that completes hadron's commands and options in SHELL.

    \b
    Examples:
      eval "$(hadron completion bash)"           in ~/.bashrc
      eval "$(hadron completion zsh)"            in ~/.zshrc
      hadron completion fish | source            in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    generator = get_completion_class(shell)
    assert generator is not None
    root = ctx.find_root().command
    click.echo(generator(root, {}, "hadron", "_HADRON_COMPLETE").source())
