"""`hadron call`: call an endpoint, and print the answer."""

from __future__ import annotations

import click

from hadron.cli.completing import names_of
from hadron.cli.endpoints.values import format_option
from hadron.cli.quantities import Duration, header_option
from hadron.cli.session import connects, session_of


@click.command("call", short_help="Call an endpoint, and print the answer.")
@click.argument("endpoint", shell_complete=names_of("Endpoint"))
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@format_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(is_above_zero=True),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Give up after so long in all, reaching a node included; the server is told.",
)
@click.option("--region", default="", help="Servers whose region begins so come first.")
@header_option("A header, such as traceparent=…; repeatable.")
@connects
@click.pass_context
def command(
    ctx: click.Context,
    endpoint: str,
    values: tuple[str, ...],
    form: str,
    timeout_s: float,
    region: str,
    headers: dict[str, str],
) -> None:
    """Call ENDPOINT with VALUE, and print the answer.

    VALUE is null when it is left out, and stdin when it is -. An endpoint with a streamed input
    takes several, or a line of stdin each; a streamed answer is a line of JSON for each value.

    \b
    Examples:
      hadron call quote '{"amount": 3}'
      hadron call resize - --format raw < large.png > small.png
      seq 1000 | hadron call sum
    """
    import trio

    from hadron.cli.endpoints.calling import Asked, run

    asked = Asked(endpoint, values, form, timeout_s, region, headers)
    trio.run(run, session_of(ctx).url, asked)
