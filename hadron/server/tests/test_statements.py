"""Statements as the wire has them: what is none, whatever it is of."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.model.errors import RequestError
from hadron.model.transactions import TransactionId
from hadron.server import streams
from hadron.server.led import STATEMENTS
from hadron.server.statements import Statements
from hadron.transactions.claims import HOME
from hadron.wire.messages import transactions_pb2

WHOSE = TransactionId("local/p0", 1, 1, 7), HOME


def read(statement: transactions_pb2.Statement, batch: bytes) -> None:
    nobody: Any = None
    STATEMENTS.read(nobody, WHOSE, statement, memoryview(batch))


@pytest.mark.parametrize("kind", ["", "acknowledge", "fail", "publish_staged", "advance_sink"])
def test_a_batch_comes_with_what_has_one(kind: str) -> None:
    """Before anything of the statement is looked at."""
    statement = transactions_pb2.Statement()
    if kind:
        getattr(statement, kind).SetInParent()
    with pytest.raises(RequestError, match="a batch of 3 bytes comes with a statement that has no"):
        read(statement, b"abc")


def test_a_statement_says_something() -> None:
    with pytest.raises(RequestError, match="says nothing that this version of Hadron knows"):
        read(transactions_pb2.Statement(), b"")


def test_each_kind_is_read_by_somebody_and_by_one() -> None:
    with pytest.raises(AssertionError, match="publish"):
        Statements(streams.STATEMENTS)
    with pytest.raises(AssertionError, match="publish"):
        Statements(*[STATEMENTS._readers] * 2)
