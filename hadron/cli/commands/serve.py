"""`hadron serve`: serve an endpoint by a program."""

from __future__ import annotations

import click

from hadron.cli.completing import names_of
from hadron.cli.endpoints.values import format_option
from hadron.cli.session import connects, session_of


@click.command("serve", short_help="Serve an endpoint by a program.")
@click.argument("endpoint", shell_complete=names_of("Endpoint"))
@click.option(
    "--exec",
    "program",
    required=True,
    metavar="CMD",
    help="Run for each call: the value is its stdin, its stdout the answer; a status other than 0 "
    "fails the call with its last line on stderr.",
)
@click.option(
    "--worker",
    is_flag=True,
    help="Run CMD once: it gets a line of JSON for each call, and answers with a line of JSON; "
    "nothing else may be on its stdout.",
)
@click.option(
    "--envelope",
    is_flag=True,
    help='With --worker: each line is {"value": …, "headers": {…}, "caller": …, "attempt": …, '
    '"left_s": …}, the call with what is known of it. The answer is what it is without.',
)
@format_option
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    metavar="N",
    help="Calls at a time, each with a process; a worker has one.",
)
@click.option("--region", default="", help="Where this is, for callers that prefer a region.")
@click.option("--name", default="", help="What it is called; host and process when left out.")
@connects
@click.pass_context
def command(
    ctx: click.Context,
    endpoint: str,
    program: str,
    worker: bool,
    envelope: bool,
    form: str,
    max_in_flight: int,
    region: str,
    name: str,
) -> None:
    """Serve ENDPOINT by a program, until Ctrl-C; then what has begun is ended.

    CMD has HADRON_ENDPOINT, HADRON_CALLER, HADRON_ATTEMPT, HADRON_TIME_LEFT (seconds),
    HADRON_HEADERS (those of the call, a JSON object of texts), and of these TRACEPARENT and
    TRACESTATE where the caller has sent them. (A worker is given none of it, but with --envelope in
    each line.) It is killed, with what it has started, when nobody waits for its answer any more,
    or when this command is. Where the input or the answer is a stream, it reads and writes lines of
    JSON. It is run without a shell: for a pipe, write --exec "sh -c 'one | two'".

    \b
    Examples:
      hadron serve quote --exec 'jq -c "{price: (.amount * 3)}"'
      hadron serve quote --exec 'python -u quotes.py' --worker --envelope
      hadron serve shout --exec 'tr a-z A-Z' --format text
    """
    import trio

    from hadron.cli.endpoints.serving import Asked, run

    if envelope and not worker:
        raise click.UsageError(
            "--envelope is for --worker: a program for each call has all that in its environment"
        )
    asked = Asked(endpoint, program, worker, envelope, form, max_in_flight, region, name)
    trio.run(run, session_of(ctx).url, asked)
