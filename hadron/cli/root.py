"""The root command: a table of lazily imported commands, and the one place that reports errors.

`hadron --help` must be fast, so the table holds each command's short help and nothing but click
is imported to print it. Everything that goes wrong, in whatever command, ends in `run`, so that
exit statuses and the form of error messages are the same everywhere.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.completing import complete_contexts

if TYPE_CHECKING:
    from hadron.model.errors import HadronError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE: Final = 141
"""128 + SIGPIPE: what `hadron read … | head` would see from any other tool."""

_LISTED: Final = 12
"""Commands that fit into an error; of more, only `--help` has all."""

COMMANDS: Final = {
    "dev": "Run one node in the foreground, with nothing to configure.",
    "node": "Run one node of a replica set.",
    "cluster": "Start, stop and show a local cluster of processes.",
    "status": "Show replica sets, roles, lag, ballots and trouble.",
    "apply": "Apply schema documents; print what changes.",
    "create": "Create a stream, an endpoint, an exchange, a namespace.",
    "get": "List schema objects of a kind.",
    "describe": "Show one schema object and how it is doing.",
    "delete": "Delete schema objects, by name or by file.",
    "pub": "Publish records from arguments, a file or stdin.",
    "sub": "Follow a stream, alone or as a member of a group.",
    "read": "Read the records that a stream has, and stop at its end.",
    "sql": "Query the records in a node's files with SQL.",
    "group": "Look at consumer groups, reset and delete them.",
    "call": "Call an endpoint, and print the answer.",
    "serve": "Serve an endpoint by a program.",
    "tx": "Look at transactions, and end by hand what a lost set left.",
    "exchange": "Publish on exchanges, and follow them.",
    "pipeline": "Run a pipeline's stages and watch its instances.",
    "verify": "Check what nodes have on disk, and compare them.",
    "promote": "Let another node lead: write the next configuration.",
    "demo": "Run a replicated pipeline on real data, and verify it.",
    "backup": "Make a consistent backup of a node, or of all sets.",
    "restore": "Restore a node, a replica set, or all, from a backup.",
    "recover": "Let a disk count again that may have lost records.",
    "bench": "Measure a cluster of its own.",
    "context": "Name the clusters that you use.",
    "completion": "Print shell completion code.",
}
"""Command → its short help; it is `command` in the module of that name."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        """As click does; see `_broken_pipes_are_ours`."""
        with _broken_pipes_are_ours():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; see `_broken_pipes_are_ours`."""
        with _broken_pipes_are_ours():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table: the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command's module, or None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hadron.cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command), cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest known one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(_no_such_command(ctx, args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextmanager
def _broken_pipes_are_ours() -> Iterator[None]:
    """click takes a broken pipe that has an errno for itself, and ends with status 1; `run` knows
    the status that shells expect."""
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from hadron import __version__

        click.echo(f"hadron {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here:  hadron dev   then, in another terminal:  hadron pub --help",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version.",
)
@click.option(
    "--server", metavar="URL", help="hadron://[token@]host1,host2[/namespace], or grpc://…"
)
@click.option(
    "--context",
    "context_name",
    metavar="NAME",
    shell_complete=complete_contexts,
    help="A named context to connect to.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def root(ctx: click.Context, server: str | None, context_name: str | None, debug: bool) -> None:
    """Replicated streams, consumer groups and pipelines, one SQLite file per node.

    The server is taken from --server, --context, HADRON_URL, HADRON_CONTEXT or the current
    context, in this order; otherwise it is the cluster in ./hadron-cluster (see `hadron cluster
    up`), if there is one, else hadron://127.0.0.1:7000.

    There is no authentication and no TLS yet: whoever reaches a node can read, write and delete
    everything, and a token in the URL is checked by nobody. Keep nodes inside a trusted network.
    """
    from hadron.cli.session import session_of

    _warn_of_variables()

    session = session_of(ctx)
    session.server, session.context, session.debug = server, context_name, debug


def _warn_of_variables() -> None:
    """Name `HADRON_…` variables that nothing reads: a mistyped HADRON_URL means another cluster."""
    if not {name for name in os.environ if name.startswith("HADRON_")} - {
        "HADRON_URL",
        "HADRON_CONTEXT",
    }:
        # Nothing that would have to be imported.
        return
    from hadron.node.settings import unknown_variables

    for warning in unknown_variables(os.environ):
        click.echo(f"warning: {warning}", err=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and turn whatever happens into an exit status."""
    from hadron.cli.session import Session
    from hadron.cli.standard_streams import let_go, open_closed

    open_closed()
    session = Session()
    try:
        result = root.main(
            None if arguments is None else list(arguments),
            prog_name="hadron",
            standalone_mode=False,
            obj=session,
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BaseException as error:
        if session.debug:
            import traceback

            traceback.print_exc()
        return report(error, session.flags)
    finally:
        let_go()


def report(error: BaseException, flags: Mapping[str, str] | None = None) -> int:
    """Print `error` for people and return the exit status that it means.

    Args:
        flags: options of the command that met it, by the names of their parameters.
    """
    error = _innermost(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if isinstance(error, click.exceptions.Abort):
        return FAILED if isinstance(error.__cause__, EOFError) else INTERRUPTED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.format_message())
        return USAGE
    if isinstance(error, click.ClickException):
        return _report_click(error)
    return _report_failure(error, flags or {})


def _innermost(error: BaseException) -> BaseException:
    """Task groups wrap what their tasks raise; people want the one thing that went wrong."""
    while isinstance(error, BaseExceptionGroup):
        interrupts = [e for e in error.exceptions if isinstance(e, KeyboardInterrupt)]
        error = interrupts[0] if interrupts else error.exceptions[0]
    return error


_NUMBERS: Final = {
    "integer range": "a whole number",
    "integer": "a whole number",
    "float range": "a number",
    "float": "a number",
}
"""What click calls the types of options, and people do not."""


def _report_click(error: click.ClickException) -> int:
    message = _without_guesses(error) or error.format_message().rstrip(".")
    for type_name, wanted in _NUMBERS.items():
        message = message.replace(f"is not a valid {type_name}", f"is not {wanted}")
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.get_usage()}\n      see `{error.ctx.command_path} --help`"
        hint = hint.removeprefix("Usage: ")
    say_error(message[:1].lower() + message[1:], hint)
    return error.exit_code


def _without_guesses(error: click.ClickException) -> str:
    """Of a name that does not exist: with the one that is meant, in the same words everywhere, in
    place of click's list of those that are alike; "" of other errors."""
    from hadron.cli.elsewhere import option_here
    from hadron.model.problems import did_you_mean

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption):
        params = ctx.command.params if ctx else []
        known = [name for each in params if isinstance(each, click.Option) for name in each.opts]
        meant = option_here(ctx.command_path, error.option_name) if ctx else ""
        meant = meant or _argument_here(params, error.option_name)
        meant = meant or did_you_mean(error.option_name, known)
        return f"no such option {error.option_name!r}{meant}"
    if isinstance(error, click.exceptions.NoSuchCommand):
        known = (
            ctx.command.list_commands(ctx) if ctx and isinstance(ctx.command, click.Group) else []
        )
        return _no_such_command(ctx, error.command_name, known)
    return ""


def _argument_here(params: Iterable[click.Parameter], option: str) -> str:
    """What is given without its name here: " (STREAM is an argument: …)", or ""."""
    for each in params:
        if isinstance(each, click.Argument) and each.name == option.lstrip("-").replace("-", "_"):
            return f" ({each.human_readable_name} is an argument: give it without {option!r})"
    return ""


def _no_such_command(ctx: click.Context | None, name: str, known: Iterable[str]) -> str:
    from hadron.cli.elsewhere import command_here
    from hadron.model.problems import did_you_mean

    names = list(known)
    meant = command_here(ctx.command_path, name) if ctx else ""
    meant = meant or did_you_mean(name, names)
    if not meant and 0 < len(names) <= _LISTED:
        meant = f" (there are {', '.join(names)})"
    return f"no such command {name!r}{meant}"


def _report_failure(error: BaseException, flags: Mapping[str, str]) -> int:
    from hadron.cli.flags import in_flags
    from hadron.model.errors import HadronError

    if isinstance(error, HadronError):
        say_error(in_flags(error.message, flags), in_flags(_way_out(error), flags))
    elif isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Bytes of the command line that are not UTF-8, as Python has them.
        text = str(error.object).encode(errors="surrogateescape").decode(errors="backslashreplace")
        say_error(f"'{text}' is not UTF-8", "names, types and headers are text")
    elif isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        say_error(f"{named}{error.strerror}", "")
    else:
        say_error(
            f"this is a defect in hadron: {type(error).__name__}: {error}",
            "run the command again with --debug and report the traceback",
        )
    return FAILED


def _way_out(error: HadronError) -> str:
    if error.hint or not error.retryable:
        return error.hint
    return "the same command may succeed when it is repeated"


def say_error(message: str, hint: str) -> None:
    """Print `error: …` and, when there is one, `hint: …` to stderr."""
    from hadron.cli.printing import on_its_lines

    # Parts of it may be somebody else's words.
    _say(on_its_lines(f"error: {message}" + (f"\nhint: {hint}" if hint else "")))


def _say(text: str) -> None:
    # Where nobody reads them, words make no difference to the exit status.
    with suppress(OSError):
        click.echo(text, err=True)
