"""Transactions' ids, as they are written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import RequestError
from hadron.model.ids import Ballot
from hadron.model.transactions import (
    BLOCK_BITS,
    MAX_NUMBER,
    TransactionId,
    check_id,
    parse_transaction_id,
)

_NUMBERS = st.integers(1, MAX_NUMBER)


@given(st.sampled_from(("p0", "eu.west/p0")), _NUMBERS, _NUMBERS, _NUMBERS)
def test_an_id_is_read_as_it_was_written(
    replica_set: str, epoch: int, incarnation: int, number: int
) -> None:
    transaction = TransactionId(replica_set, epoch, incarnation, number)
    check_id(transaction)
    assert parse_transaction_id(str(transaction)) == transaction


def test_an_id_has_the_ballot_and_the_block_of_whom_it_is() -> None:
    transaction = TransactionId.of("eu/p0", Ballot(3, 12), (5 << BLOCK_BITS) + 7)
    assert str(transaction) == "eu/p0/3.12/5242887"
    assert (transaction.ballot, transaction.block) == (Ballot(3, 12), 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p0",
        "p0/1.2",
        "p0/12/7",
        "p0/1.2/",
        "p0/1.2/-7",
        "p0/01.2/7",
        "p0/1.2/7 ",
        "p0/0.0/0",
        "p0/0.2/7",
        "p0/1.0/7",
        "p0/1.2/0",
        "p0/1.2/\u0667",
        "/1.2/7",
        "a/b/c/1.2/7",
        f"p0/1.2/{MAX_NUMBER + 1}",
        "p0/1.2/" + "9" * 10_000,
    ],
)
def test_what_is_no_id_is_named(text: str) -> None:
    with pytest.raises(RequestError, match="is not a transaction's id") as refused:
        parse_transaction_id(text)
    assert "replica-set/epoch.incarnation/number" in refused.value.hint
    assert len(str(refused.value)) < 400


@given(st.text(max_size=40))
def test_whatever_the_text_nothing_else_is_raised(text: str) -> None:
    try:
        found = parse_transaction_id(text)
    except RequestError:
        return
    assert str(found) == text
