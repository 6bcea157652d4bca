"""`hadron sql`: SQL over the records in a node's files, for people and for other tools."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.printing import on_one_line, output_option, print_rows
from hadron.cli.records import shown_as_json
from hadron.cli.root import FAILED
from hadron.cli.session import connects, session_of
from hadron.client.connecting.contexts import LOCAL_CLUSTER

if TYPE_CHECKING:
    import apsw

    from hadron.cli.session import Session
    from hadron.node.sql import Records
    from hadron.storage.identity import Owner

_DEFAULT_DATA: Final = Path("hadron-data")
"""Where `hadron dev` keeps its files."""
_ROWS_AT_ONCE: Final = 1_000
"""Rows of a table are aligned with each other, so many at a time."""
_ASK_WITHIN_S: Final = 1.0


@click.command("sql", short_help="Query the records in a node's files with SQL.")
@click.argument("query")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A node's data directory, a backup, or a hadron.db. Default: ./hadron-data, "
    "else the leader's in ./hadron-cluster.",
)
@output_option
@connects
@click.pass_context
def command(ctx: click.Context, query: str, data: Path | None, output: str) -> int:
    """Run QUERY, or what stdin has when it is -, over the records in a node's files.

    Values stand in the files as batches, which other SQLite tools show as blobs. Here they are the
    table `record`; the file is opened read-only and never locked for long, so that its node may
    run. JSON values are text: use ->> and SQLite's json functions. Statements end with a semicolon.

    \b
    Columns of record:
      namespace, stream, partition, offset    where it is
      id, type, key                           as they were sent
      timestamp_ms, append_ms                 its own time, and when it was logged
      headers                                 a JSON object, or NULL
      content_type, value                     text, or a blob where bytes were sent

    stream and offset spare reading: name them in WHERE where you can. To have records in a file
    that any SQLite tool reads, copy them into one, as below.

    Only what is known to be committed is shown. A leader's file does not say so while others
    follow it: then its node is asked, when it runs, and else what is left out is told. Damaged
    batches are named, left out, and make the status 1; count(*) alone looks into none.

    \b
    Examples:
      hadron sql 'SELECT stream, count(*) FROM record GROUP BY stream'
      hadron sql "SELECT value ->> '$.carrier' AS carrier, count(*) FROM record
                  WHERE stream = 'flights' AND offset >= 1000 GROUP BY 1" -o json
      hadron sql --data hadron-cluster/n2 "SELECT * FROM record WHERE key = 'UA' LIMIT 5"
      hadron sql "ATTACH 'flights.db' AS copy; CREATE TABLE copy.flights AS
                  SELECT * FROM record WHERE stream = 'flights'"
    """
    from hadron.cli.standard_streams import read_stdin
    from hadron.node.sql import open_records

    text = read_stdin() if query == "-" else query
    damaged: list[str] = []

    def on_damage(what: str, error: BaseException) -> None:
        if what not in damaged:
            damaged.append(what)
            click.echo(f"damaged: {what}: {error}; left out", err=True)

    session = session_of(ctx)
    with open_records(
        data or _default_data(),
        on_damage=on_damage,
        ask_node=lambda owner, pid: _ask(session, owner, pid),
    ) as records:
        _tell_hidden(records)
        _run(records.db, text, output)
    return FAILED if damaged else 0


def _default_data() -> Path:
    """What `hadron dev` or `hadron cluster up` has made here."""
    local = Path(LOCAL_CLUSTER)
    if _DEFAULT_DATA.exists() or not local.is_file():
        return _DEFAULT_DATA
    from hadron.node.config import load_config

    return load_config(local, os.environ).leader.data


def _tell_hidden(records: Records) -> None:
    hidden = records.last_lsn - records.committed_lsn
    if hidden > 0:
        click.echo(
            f"note: {hidden} of {records.last_lsn} entries are left out: {records.path} does not "
            "say whether they are committed. Its node does, when it runs and --server leads to it; "
            "so do a replica's files, and a backup",
            err=True,
        )


def _ask(session: Session, owner: Owner, pid: int) -> int:
    """What the node that has these files open says is committed; 0 when it does not answer at
    once, or another one does."""
    from hadron.model.errors import HadronError

    try:
        with session.connect(timeout_s=_ASK_WITHIN_S) as client:
            addresses = [
                node.address
                for each in client.topology().replica_sets
                for node in each.nodes
                if (each.name, node.name) == (owner.replica_set, owner.node)
            ]
            for address in addresses:
                said = client.status(address)
                if said.pid == pid:
                    return int(said.committed_lsn)
    except (HadronError, OSError):
        pass
    return 0


def _run(db: apsw.Connection, text: str, output: str) -> None:
    """Run statements, and print the rows of those that have any."""
    from hadron.model.errors import RequestError
    from hadron.storage.database import READ_ERRORS

    # So that Ctrl-C is heard while SQLite works.
    db.set_progress_handler(lambda: False, 20_000)
    printer = _Printer(output)

    def begin(cursor: apsw.Cursor, _statement: str, _bindings: Any) -> bool:
        printer.begin([column for column, *_ in cursor.get_description()])
        return True

    cursor = db.cursor()
    cursor.exec_trace = begin
    try:
        for row in cursor.execute(text):
            printer.add(row)
    except READ_ERRORS as error:
        hint = "see `hadron sql --help`"
        if "no such table" in f"{error}":
            hint = "records are in the table record: " + hint
        raise RequestError(f"SQL: {error}", hint) from error
    printer.end()


class _Printer:
    """Rows of one statement after the other."""

    def __init__(self, output: str) -> None:
        self._at_once = 1 if output == "json" else _ROWS_AT_ONCE
        self._output = output
        self._names: list[str] = []
        self._rows: list[tuple[Any, ...]] = []
        self._has_heading = False

    def begin(self, names: list[str]) -> None:
        """Rows with these columns come; none for a statement that has no rows."""
        self.end()
        self._names = names
        self._has_heading = False

    def add(self, row: tuple[Any, ...]) -> None:
        """Print, a few rows at a time."""
        self._rows.append(row)
        if len(self._rows) >= self._at_once:
            self._print()

    def end(self) -> None:
        """Print what is left; a table without rows has a heading."""
        if self._names and (self._rows or not self._has_heading):
            self._print()

    def _print(self) -> None:
        rows, self._rows = self._rows, []
        if self._output == "json":
            for row in rows:
                shown: dict[str, Any] = {}
                for name, value in zip(self._names, row, strict=True):
                    shown |= shown_as_json(_unlike(name, shown), _json_value(value))
                click.echo(json.dumps(shown, ensure_ascii=False, allow_nan=False))
            return
        columns = {str(number): name for number, name in enumerate(self._names)}
        cells = [{str(number): _cell(value) for number, value in enumerate(row)} for row in rows]
        print_rows(columns, cells, "table", heading=not self._has_heading)
        self._has_heading = True


def _unlike(name: str, others: Container[str]) -> str:
    """Columns of one name keep apart: `n`, `n_2`, …"""
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return name if name not in others else next(each for each in numbered if each not in others)


def _json_value(value: Any) -> Any:
    """JSON has no infinities, which SQLite makes of 9e999."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return on_one_line(value) if isinstance(value, str) else value
