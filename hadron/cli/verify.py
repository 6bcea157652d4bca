"""`hadron verify`: is what the disks hold what was written, and do the nodes hold the same?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.root import FAILED

if TYPE_CHECKING:
    from hadron.node.verification import Verified, VerifiedFile
    from hadron.storage.verify import Report

_COLUMNS: Final = {
    "node": "NODE", "path": "FILE", "last_lsn": ">LAST", "committed_lsn": ">COMMITTED",
    "applied_lsn": ">APPLIED", "entries": ">ENTRIES", "batches": ">BATCHES", "rows": ">ROWS",
    "problem_count": ">PROBLEMS",
}


@click.command("verify", short_help="Check nodes' files from their own content, and compare them.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR|FILE]…")
@output_option
@click.pass_context
def command(ctx: click.Context, paths: tuple[Path, ...], output: str) -> int:
    """Check the files of nodes: data directories, or hadron.db files, of stopped or running nodes,
    and backups.

    The hash chain is computed again over every entry, bodies and batches are compared with their
    checksums, offsets must follow each other, and where the log is whole its commands are applied
    again and every table is compared, row by row. Directories of one replica set are compared with
    each other. Nothing is written. Ends with status 0 only when everything is right.

    \b
    Examples:
      hadron verify hadron-data
      hadron verify hadron-cluster/n1 hadron-cluster/n2 hadron-cluster/n3
      hadron verify backups/monday --output json
    """
    if not paths:
        raise click.UsageError("name at least one data directory or hadron.db", ctx)
    from hadron.node.verification import verify_paths

    verified = verify_paths(paths)
    if output == "json":
        print_json(as_json(verified))
    else:
        _print(verified)
    return 0 if verified.ok else FAILED


def as_json(verified: Verified) -> dict[str, Any]:
    """The whole result for programs."""
    return {
        "ok": verified.ok,
        "files": [_file_row(file) for file in verified.files],
        "agreements": [
            {"replica_set": each.replica_set, "nodes": each.names, "lsn": each.lsn,
             "chain": each.chain, "problem": each.problem}
            for each in verified.agreements
        ],
    }


def _file_row(file: VerifiedFile) -> dict[str, Any]:
    owner = file.owner
    return {
        "node": owner.node if owner else "", "path": str(file.path), "running": file.live,
        "backup": file.is_backup,
        "replica_set": owner.replica_set if owner else "", **report_row(file.report),
    }


def report_row(report: Report) -> dict[str, Any]:
    """A report's fields, as rows and JSON have them."""
    return {
        "first_lsn": report.first_lsn, "last_lsn": report.last_lsn, "chain": report.chain,
        "committed_lsn": report.committed_lsn, "applied_lsn": report.applied_lsn,
        "entries": report.entries, "bodies": report.bodies, "batches": report.batches,
        "bytes": report.bytes, "dropped_bodies": report.dropped_bodies,
        "rows": sum(report.tables.values()), "tables": dict(report.tables),
        "checked": list(report.checked), "skipped": list(report.skipped),
        "problem_count": report.problem_count,
        "problems": [
            {"text": each.text, "table": each.table, "lsn": each.lsn,
             "stream_id": each.stream_id, "offset": each.offset}
            for each in report.problems
        ],
    }


def _print(verified: Verified) -> None:
    print_rows(_COLUMNS, [_file_row(file) for file in verified.files], "table")
    for file in verified.files:
        for skipped in file.report.skipped:
            click.echo(f"{file.name}: not done: {skipped}")
        print_problems(file.name, file.report)
    for each in verified.agreements:
        names = ", ".join(each.names)
        if each.problem:
            click.echo(f"problem: {names}: {each.problem}")
        else:
            click.echo(f"{names} agree up to entry {each.lsn} (chain {each.chain[:8]}…)")
    count = sum(file.report.problem_count for file in verified.files)
    count += sum(bool(each.problem) for each in verified.agreements)
    found = f"{count} {'problem' if count == 1 else 'problems'} found"
    click.echo("everything is right" if verified.ok else found)


def print_problems(name: str, report: Report) -> None:
    """Each problem on a line of its own."""
    for problem in report.problems:
        click.echo(f"problem at {name}: {problem.text}")
    if report.problem_count > len(report.problems):
        click.echo(f"problem at {name}: and {report.problem_count - len(report.problems)} more")
