"""`hadron tx`: transactions that are not over, what became of one, and ending one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click

from hadron.cli.answers import ANSWER_WITHIN_S, heard
from hadron.cli.completing import ask_names
from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.quantities import Checked, duration
from hadron.cli.session import connects, session_of
from hadron.model.units import format_time

if TYPE_CHECKING:
    from hadron.client.terms.results import OpenTransaction, TransactionOutcome

_Act: TypeAlias = Literal["roll_back", "give_up", "force_commit", "force_abort"]

_COLUMNS: Final = {
    "transaction": "TRANSACTION",
    "replica_set": "AT",
    "role": "ROLE",
    "phase": "PHASE",
    "age": ">AGE",
    "statements": ">STATEMENTS",
    "bytes": ">BYTES",
    "waits": "~WAITS FOR",
}
_RECEIPT_COLUMNS: Final = {
    "partition": "PARTITION",
    "base_offset": ">FIRST OFFSET",
    "count": ">RECORDS",
}


def complete_sets(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Replica sets of the cluster."""
    return ask_names(
        ctx, incomplete, lambda client: (each.name for each in client.topology().replica_sets)
    )


def _check_id(text: str) -> None:
    from hadron.model.transactions import parse_transaction_id

    parse_transaction_id(text)


_TRANSACTION: Final = click.argument("transaction", type=Checked("transaction", _check_id))


@click.group("tx", short_help="Look at transactions, and end by hand what a lost set left.")
def command() -> None:
    """Transactions: statements at several replica sets, all of which are done or none.

    A transaction is driven by one replica set, whose name its id begins with. The others that it
    has statements at are its participants.

    \b
    Examples:
      hadron tx list
      hadron tx show eu/p0/1.4/1048576
    """


@command.command("list")
@click.option(
    "--replica-set", metavar="NAME", shell_complete=complete_sets, help="Only as this one has them."
)
@output_option
@connects
@click.pass_context
def list_(ctx: click.Context, replica_set: str | None, output: str) -> None:
    """List transactions that are not over: at who drives them, and at who takes part.

    \b
    PHASE      at its driver open, preparing, deciding or decided; at a participant prepared, or
               finished, until its driver has noted that
    AGE        since it is known there
    WAITS FOR  replica sets that have not done what they are to do, and why

    \b
    Examples:
      hadron tx list
      hadron tx list --replica-set eu/p0 -o json
    """
    with session_of(ctx).connect() as client:
        found, trouble = heard(lambda: client.transactions(replica_set, within_s=ANSWER_WITHIN_S))
    rows = [_row(each) for each in found]
    if output == "json":
        failed = trouble.failed if trouble is not None else {}
        away = [{"replica_set": name, "error": str(error)} for name, error in failed.items()]
        print_json([*rows, *away])
    elif rows or trouble is None:
        print_rows(_COLUMNS, rows, output)
    if trouble is not None:
        raise trouble


_SINK_COLUMNS: Final = {
    "name": "SINK",
    "query": "QUERY",
    "batch": ">BATCH",
    "published": "PUBLISHED",
}
_STAGED_COLUMNS: Final = {
    "replica_set": "AT",
    "write": "WRITE",
    "records": ">RECORDS",
    "bytes": ">BYTES",
    "age": ">AGE",
    "left": ">EXPIRES IN",
    "label": "~OF",
}


@command.command("sinks")
@output_option
@connects
@click.pass_context
def sinks(ctx: click.Context, output: str) -> None:
    """List sinks: which query writes to each, and how far it is.

    A sink is what bulk writers, such as Spark's, name with txnId. Where 10,000 are known, one to
    which nothing was published for 30 days makes room for a new one.

    \b
    Example:
      hadron tx sinks
    """
    with session_of(ctx).connect() as client:
        found = client.sinks()
    rows = [
        {
            "name": each.name,
            "query": each.query,
            "batch": each.batch,
            "published_ms": each.published_ms,
            "published": format_time(each.published_ms),
        }
        for each in found
    ]
    print_rows(_SINK_COLUMNS, rows, output)


@command.command("staged")
@output_option
@connects
@click.pass_context
def staged(ctx: click.Context, output: str) -> None:
    """List what tasks have staged, and nobody has published (yet).

    \b
    WRITE       what is published together: a batch of a query, or a batch write
    EXPIRES IN  unless it is published, or more is staged of it; 0: it is given up

    \b
    Example:
      hadron tx staged
    """
    with session_of(ctx).connect() as client:
        found, trouble = heard(lambda: client.staged(within_s=ANSWER_WITHIN_S))
    rows = [
        {
            "replica_set": each.replica_set,
            "write": each.write,
            "attempt": each.attempt,
            "records": each.records,
            "bytes": each.bytes,
            "age_s": each.age_s,
            "age": duration(round(each.age_s * 1_000)),
            "left_s": each.left_s,
            "left": duration(round(each.left_s * 1_000)),
            "label": each.label,
        }
        for each in found
    ]
    print_rows(_STAGED_COLUMNS, rows, output)
    if trouble is not None:
        raise trouble


def _row(each: OpenTransaction) -> dict[str, Any]:
    return {
        "transaction": each.transaction,
        "replica_set": each.replica_set,
        "role": "driver" if each.is_driver else "participant",
        "phase": each.phase,
        "age_s": each.age_s,
        "age": duration(round(each.age_s * 1_000)),
        "statements": each.statements,
        "bytes": each.bytes,
        "waits_for": each.waits_for,
        "waits": "; ".join(f"{name}: {reason}" for name, reason in each.waits_for.items()),
    }


@command.command("show")
@_TRANSACTION
@output_option
@connects
@click.pass_context
def show(ctx: click.Context, transaction: str, output: str) -> None:
    """Show what became of TRANSACTION, as its driver's replica set knows for 24 hours.

    Looking at it changes nothing: an open one stays open.

    \b
    Example:
      hadron tx show eu/p0/1.4/1048576
    """
    with session_of(ctx).connect() as client:
        outcome = client.outcome(transaction)
    receipts = [
        {"partition": each.partition, "base_offset": each.base_offset, "count": each.count}
        for each in outcome.receipts
    ]
    if output == "json":
        print_json(
            {
                "transaction": outcome.transaction,
                "state": outcome.state,
                "receipts": receipts,
                "unfinished": outcome.unfinished,
            }
        )
        return
    click.echo(f"{outcome.transaction}: {_in_words(outcome)}")
    if receipts:
        click.echo()
        print_rows(_RECEIPT_COLUMNS, receipts, output)


def _in_words(outcome: TransactionOutcome) -> str:
    if outcome.state == "forgotten":
        return "over for more than a day; whether it was committed is not known any more"
    if outcome.unfinished:
        return f"{outcome.state}; not done yet at {', '.join(outcome.unfinished)}"
    return outcome.state


@command.command("resolve")
@_TRANSACTION
@click.option(
    "--give-up",
    metavar="NAME",
    shell_complete=complete_sets,
    help="At its driver: wait no more for this participant.",
)
@click.option(
    "--force-commit",
    metavar="NAME",
    shell_complete=complete_sets,
    help="At this participant: do what is prepared.",
)
@click.option(
    "--force-abort",
    metavar="NAME",
    shell_complete=complete_sets,
    help="At this participant: drop what is prepared.",
)
@click.option(
    "--accept-torn",
    is_flag=True,
    help="A part of the transaction may be done, and another one not.",
)
@connects
@click.pass_context
def resolve(
    ctx: click.Context,
    transaction: str,
    give_up: str | None,
    force_commit: str | None,
    force_abort: str | None,
    accept_torn: bool,
) -> None:
    """End TRANSACTION by hand.

    Without an option its driver rolls it back if it is not decided, which is safe.

    The options are UNSAFE, and for replica sets that are lost for good: transactions end by
    themselves when a set comes back. --give-up lets the driver of what is decided wait no more for
    a participant: what it was to do there counts as deleted, and is done nevertheless if it comes
    back within a day. After a restore of either it is for what the participant does not know: that
    may have been done there, or be lost, so look first. --force-commit and --force-abort end at a
    participant what a lost driver has left there: nobody knows what that had decided, so one part
    may be done and another one not. Where the driver answers they are refused: it has the last
    word. Each needs --accept-torn. What was committed by force is listed as finished until its
    driver comes back. Of what was aborted by force that may say that it is committed: then it waits
    for the participant, until that is given up.

    \b
    Examples:
      hadron tx resolve eu/p0/1.4/1048576
      hadron tx resolve eu/p0/1.4/1048576 --force-abort us/p0 --accept-torn
    """
    acts: dict[_Act, str | None] = {
        "give_up": give_up,
        "force_commit": force_commit,
        "force_abort": force_abort,
    }
    named = [(act, name) for act, name in acts.items() if name is not None]
    if len(named) > 1:
        raise click.UsageError("give one of --give-up, --force-commit and --force-abort")
    act: _Act = named[0][0] if named else "roll_back"
    participant = named[0][1] if named else None
    if participant is not None and not accept_torn:
        option = act.replace("_", "-")
        raise click.UsageError(
            f"--{option} may tear the transaction: a part of it is done, another one is not.\n"
            f"When {participant if act == 'give_up' else 'its driver'} comes back it ends by "
            "itself. If that is lost for good, or a restore has parted the two, say --accept-torn."
        )
    with session_of(ctx).connect() as client:
        client.resolve_transaction(transaction, act, participant=participant)
    if participant is None:
        click.echo(f"{transaction} is rolled back")
    elif act == "give_up":
        click.echo(f"{transaction} does not wait for {participant} any more")
    else:
        done = "done" if act == "force_commit" else "dropped"
        click.echo(f"what {transaction} had prepared at {participant} is {done}")
