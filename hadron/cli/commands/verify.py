"""`hadron verify`: is what the disks hold what was written, and do the nodes hold the same?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.root import FAILED
from hadron.cli.session import connects, session_of
from hadron.model.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hadron.node.verified import TableComparison, Verified, VerifiedFile
    from hadron.storage.report import Problem, Report

_COLUMNS: Final = {
    "replica_set": "REPLICA SET",
    "node": "NODE",
    "path": "FILE",
    "last_lsn": ">LAST ENTRY",
    "committed_lsn": ">COMMITTED",
    "applied_lsn": ">APPLIED",
    "entries": ">ENTRIES",
    "batches": ">BATCHES",
    "rows": ">ROWS",
    "problem_count": ">PROBLEMS",
}


@click.command("verify", short_help="Check what nodes have on disk, and compare them.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR|FILE]…")
@output_option
@connects
@click.pass_context
def command(ctx: click.Context, paths: tuple[Path, ...], output: str) -> int:
    """Check what nodes have on disk: of the running cluster, or the files of stopped nodes.

    The hash chain is computed again over every entry, bodies and batches are compared with their
    checksums, and offsets must follow each other. Nodes of one replica set are compared with each
    other. Ends with status 0 when everything that was looked at is right. What was not done is told
    as well (`skipped` in JSON): SQLite's check of a large table while the node runs, applying a log
    again whose beginning is not kept.

    Without arguments every node of the running cluster looks through its own disk, up to the entry
    that all have committed when it begins (CHECKED TO), repairs what it can from the others, and
    compares its tables with its leader's. With data directories, backups, directories that have
    several of them, or hadron.db files, those are read and nothing is written; where a log is whole
    its commands are applied again and every table is compared, row by row. It is told which files
    agree with which, and why one was not compared; members' files of two histories, as when one was
    left out of a restore, are a problem.

    \b
    LAST ENTRY  the number of the last entry in the log, CHECKED TO of a running node
    COMMITTED   the last entry that it knows to be on a majority of the disks
    APPLIED     the last entry whose command its tables have
    ENTRIES     how many entries were checked: of a log whose beginning is not kept, fewer
    BATCHES     how many batches of records were checked
    ROWS        how many rows of tables were compared with what the log makes of them
    PROBLEMS    what is wrong, told below the table

    \b
    Examples:
      hadron verify
      hadron verify --server hadron://10.0.0.5
      hadron verify hadron-cluster/n1 hadron-cluster/n2 hadron-cluster/n3
      hadron verify backups/monday --output json
    """
    if paths:
        from hadron.node.verification import verify_paths

        verified = verify_paths(paths)
    else:
        verified = _verify_live(session_of(ctx).url)
    if output == "json":
        print_json(as_json(verified))
    else:
        _print(verified)
    return 0 if verified.ok else FAILED


def _verify_live(url: str) -> Verified:
    import anyio

    async def run() -> Verified:
        from hadron.cli.patience import connected
        from hadron.node.live_verification import verify_live

        async with connected(url) as client:
            return await verify_live(client, _show_progress)

    return anyio.run(run, backend="trio")


def _show_progress(node: str, text: str) -> None:
    """One line that is written over, for people who wait."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{node}: {text}\r")
        sys.stderr.flush()


def as_json(verified: Verified) -> dict[str, Any]:
    """The whole result for programs."""
    return {
        "ok": verified.ok,
        "files": [_file_row(file) for file in verified.files],
        "agreements": [
            {
                "replica_set": each.replica_set,
                "nodes": each.names,
                "lsn": each.lsn,
                "chain": each.chain,
                "problem": each.problem,
            }
            for each in verified.agreements
        ],
        "not_compared": [
            {
                "replica_set": each.replica_set,
                "nodes": each.names,
                "why": each.why,
                "is_problem": each.is_problem,
            }
            for each in verified.apart
        ],
        "tables": [
            {
                "replica_set": each.replica_set,
                "leader": each.leader,
                "rows": each.rows,
                "is_complete": each.is_complete,
                "nodes": each.members,
                "problems": each.problems,
            }
            for each in verified.tables
        ],
    }


def _file_row(file: VerifiedFile) -> dict[str, Any]:
    owner = file.owner
    return {
        "node": owner.node if owner else "",
        "path": str(file.path),
        "running": file.live,
        "backup": file.is_backup,
        "remedy": file.remedy,
        "replica_set": owner.replica_set if owner else "",
        **report_row(file.report),
    }


def report_row(report: Report) -> dict[str, Any]:
    """A report's fields, as rows and JSON have them."""
    return {
        "first_lsn": report.first_lsn,
        "last_lsn": report.last_lsn,
        "chain": report.chain,
        "committed_lsn": report.committed_lsn,
        "applied_lsn": report.applied_lsn,
        "entries": report.entries,
        "bodies": report.bodies,
        "batches": report.batches,
        "bytes": report.bytes,
        "dropped_bodies": report.dropped_bodies,
        "rows": sum(report.tables.values()),
        "tables": dict(report.tables),
        "checked": list(report.checked),
        "skipped": list(report.skipped),
        "problem_count": report.problem_count,
        "problems": [
            {
                "text": each.text,
                "table": each.table,
                "lsn": each.lsn,
                "stream_id": each.stream_id,
                "offset": each.offset,
            }
            for each in report.problems
        ],
    }


def _print(verified: Verified) -> None:
    columns = dict(_COLUMNS)
    if not any(file.report.tables for file in verified.files):
        # Of running nodes' tables, digests tell.
        del columns["rows"]
    if any(file.live for file in verified.files):
        # Up to what all of them had committed when it began; they go on meanwhile.
        columns["last_lsn"] = ">CHECKED TO"
    print_rows(columns, [_file_row(file) for file in verified.files], "table")
    several = len({file.owner.replica_set for file in verified.files if file.owner}) > 1
    for file in verified.files:
        name = f"{file.owner.replica_set} {file.name}" if several and file.owner else file.name
        for skipped in file.report.skipped:
            click.echo(f"{name}: not done: {skipped}")
        print_problems(name, file.report)
        if file.remedy:
            click.echo(f"{name} {file.remedy}; run `hadron verify` again")
    for each in verified.agreements:
        names = (f"{each.replica_set}: " if several else "") + ", ".join(each.names)
        if each.problem:
            click.echo(f"problem: {names}: {each.problem}")
        elif each.lsn:
            click.echo(f"{names} agree up to entry {each.lsn} (chain {each.chain[:8]}…)")
        else:
            click.echo(f"{names} have no entry in common")
    for apart in verified.apart:
        of = f"{apart.replica_set}: " if several and apart.replica_set else ""
        were = "was" if len(apart.names) == 1 else "were"
        click.echo(
            f"{'problem: ' if apart.is_problem else ''}{of}{', '.join(apart.names)} {were} not "
            f"compared: {apart.why}"
        )
    for comparison in verified.tables:
        _print_tables(comparison, f"{comparison.replica_set}: " if several else "")
    count = verified.problem_count
    found = f"{counted(count, 'problem')} found"
    undone = any(file.report.skipped for file in verified.files)
    right = "everything that was looked at is right" if undone else "everything is right"
    click.echo(right if verified.ok else found)
    if any(file.report.skipped for file in verified.files if file.live):
        click.echo("what was not done: stop a node, and run `hadron verify` with its directory")


def _print_tables(comparison: TableComparison, of: str) -> None:
    what = "" if comparison.is_complete else " of more"
    if comparison.members:
        click.echo(
            f"{of}{', '.join((comparison.leader, *comparison.members))} have the same "
            f"{comparison.rows}{what} rows in their tables"
        )
    for problem in comparison.problems:
        click.echo(f"problem: tables of {comparison.replica_set}: {problem}")


def _in_ranges(problems: Sequence[Problem]) -> Iterator[str]:
    """The texts, where a page that cannot be read has made one for each entry on it."""
    first = last = 0
    said = ""
    for problem in problems:
        lsn = problem.lsn or 0
        entry = f"entry {lsn}"
        of_entry = lsn > 0 and problem.text.startswith(entry)
        what = problem.text.removeprefix(entry) if of_entry else problem.text
        if of_entry and first and lsn == last + 1 and what == said:
            last = lsn
            continue
        if said:
            yield _of_range(first, last, said)
        first, last, said = (lsn, lsn, what) if of_entry else (0, 0, what)
    if said:
        yield _of_range(first, last, said)


def _of_range(first: int, last: int, what: str) -> str:
    if not first:
        return what
    return f"entry {first}{what}" if first == last else f"entries {first}\N{EN DASH}{last}{what}"


def print_problems(name: str, report: Report) -> None:
    """Each problem on a line of its own; entries that follow each other, and have the same, on
    one."""
    for text in _in_ranges(report.problems):
        click.echo(f"problem at {name}: {text}")
    if report.problem_count > len(report.problems):
        click.echo(f"problem at {name}: and {report.problem_count - len(report.problems)} more")
