"""A feature brings what verifies it: no list elsewhere can forget one."""

from __future__ import annotations

import apsw
import pytest

from hadron.model.batch_building import BatchBuilder
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.model.transactions import TransactionId
from hadron.replication.verification import Verification
from hadron.state.features import FEATURES
from hadron.state.machine import Command, Feature, StateMachine, encode
from hadron.state.streams.partitions import AppendBatch
from hadron.state.together import DoTogether
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import WriteIntents
from hadron.storage.bodies import BODY
from hadron.storage.log import LOG, TABLES, Log
from hadron.storage.report import SLICE_ROWS, Report


class Forgetful(Command, frozen=True, array_like=True, tag=120):
    """Comes with a body, and does not say so."""


class NeverRight:
    name = "never right"

    def __init__(self, report: Report) -> None:
        self._report = report

    def step(self, db: apsw.Connection) -> bool:  # noqa: ARG002 - the protocol's
        self._report.add("as ever")
        return True


TX = TransactionId("eu/p0", 1, 1, 7)
APPEND = encode(AppendBatch(1, 1, 7, b"", 0, -1))

FEATURE = Feature(
    name="mine", commands={Forgetful: lambda _context, _command: None}, checks=(NeverRight,)
)
MACHINE = StateMachine((*FEATURES, FEATURE), version=1)


def verified(command: Command, body: bytes) -> Report:
    db = apsw.Connection("")
    db.execute(TABLES + MACHINE.tables)
    Log(db).append(Ballot(1, 1), 5, encode(command), body)
    check = Verification(MACHINE, replay=False)
    while not check.step(db):
        pass
    return check.report


def a_batch() -> bytes:
    builder = BatchBuilder()
    builder.add(NewRecord(value="v"), 0)
    return builder.build()


def test_each_features_own_checks_are_made() -> None:
    report = verified(Forgetful(), b"")
    assert [each.text for each in report.problems] == ["as ever"]
    assert report.checked[-5:] == [
        "streams",
        "counted bodies",
        "groups",
        "transactions",
        "never right",
    ]


@pytest.mark.parametrize(
    ("command", "has_body", "what"),
    [
        (Forgetful(), True, "entry 1: its command has no batch, it has {} bytes"),
        (AppendBatch(1, 1, 7, b"", 0, -1), True, "entry 1: its command says 7 bytes"),
        (AppendBatch(1, 1, 7, b"", 0, -1), False, "entry 1: its command says 7 bytes"),
        (WriteIntents(TX, 0, (APPEND,)), True, "entry 1: its command says 7 bytes"),
        (Decide(TX, (), (APPEND,)), True, "entry 1: its command says 7 bytes"),
    ],
)
def test_a_command_and_its_body_are_compared(command: Command, has_body: bool, what: str) -> None:
    body = a_batch() if has_body else b""
    found = [each.text for each in verified(command, body).problems]
    assert found[-1] == "as ever"
    assert len(found) == 2
    assert found[0].startswith(what.format(len(body)))


def several(*sizes: int) -> DoTogether:
    return DoTogether.of(*[AppendBatch(1, 1, size, b"", 0, -1) for size in sizes])


@pytest.mark.parametrize(
    ("sizes", "batches", "what"),
    [
        ((1, 1), 2, ""),
        ((1, 1), 1, "its command has 2 batches, its body 1"),
        ((1,), 2, "its command has 1 batches, its body 2"),
        ((1, 2), 2, "its command says {more} bytes, the batch has {size}"),
        ((), 1, "its command has no batch, it has {size} bytes"),
    ],
)
def test_each_batch_of_a_body_is_compared_with_its_command(
    sizes: tuple[int, ...], batches: int, what: str
) -> None:
    size = len(a_batch())
    found = [
        each.text
        for each in verified(several(*(n * size for n in sizes)), a_batch() * batches).problems
        if each.text != "as ever"
    ]
    assert found == ([f"entry 1: {what.format(size=size, more=2 * size)}"] if what else [])


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_damage_in_any_batch_of_a_body_is_found(is_trimmed: bool) -> None:
    body = bytearray(a_batch() * 3)
    db = apsw.Connection("")
    db.execute(TABLES + MACHINE.tables)
    log = Log(db)
    for place in (30, len(body) // 2, len(body) - 1):
        damaged = bytearray(body)
        damaged[place] ^= 1
        log.append(Ballot(1, 1), 5, encode(several(*[len(a_batch())] * 3)), bytes(damaged))
    if is_trimmed:
        log.trim(3, max_rows=9)
    check = Verification(MACHINE, replay=False)
    while not check.step(db):
        pass
    assert {each.lsn for each in check.report.problems} - {0} == {1, 2, 3}


@pytest.mark.parametrize("live", [True, False])
def test_sqlites_own_check_of_a_live_file_leaves_out_the_large_tables(live: bool) -> None:
    """Their contents have hashes of their own, and each call looks through a whole table in one
    read transaction."""
    db = apsw.Connection("")
    db.execute(TABLES + MACHINE.tables)
    asked: list[str] = []

    def note(_cursor: apsw.Cursor, sql: str, _bindings: apsw.Bindings | None) -> bool:
        asked.append(sql)
        return True

    db.exec_trace = note
    check = Verification(MACHINE, replay=False, live=live)
    while not check.step(db):
        pass
    checked = {sql for sql in asked if sql.startswith("PRAGMA integrity_check")}
    names = {name for [name] in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert checked == (
        {f"PRAGMA integrity_check('{name}')" for name in names - {LOG, BODY}}
        if live
        else {"PRAGMA integrity_check(100)"}
    )
    assert {LOG, BODY} < names


def test_every_kept_body_is_looked_at_however_small_they_are() -> None:
    """A slice ends with so many rows, or so many bytes: neither is the end of them."""
    count, body = 2 * SLICE_ROWS + 1, a_batch()
    db = apsw.Connection("")
    db.execute(TABLES + MACHINE.tables)
    log = Log(db)
    for _ in range(count):
        log.append(Ballot(1, 1), 5, encode(AppendBatch(1, 1, len(body), b"", 0, -1)), body)
    while log.anchor.lsn < count:
        log.trim(count, max_rows=count)
    db.execute(f"UPDATE {BODY} SET bytes = x'00' WHERE lsn = ?", (count,))
    check = Verification(MACHINE, replay=False)
    while not check.step(db):
        pass
    assert check.report.bodies == count
    assert count in {each.lsn for each in check.report.problems}
