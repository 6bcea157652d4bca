"""What a participant does of what it is told, without a log behind it."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.model.errors import (
    CorruptionError,
    HadronError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from hadron.model.transactions import TransactionId
from hadron.state.transactions.intents import FinishTransaction, ForgetTransactions
from hadron.transactions.messages import Fate, Told
from hadron.transactions.participant import Participant


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (None, True),
        (NotFoundError("nothing is known of it"), True),
        (RequestError("copies that came late"), True),
        (CorruptionError("an intent is damaged"), False),
        (OverloadedError("there is no room"), False),
    ],
)
def test_what_is_over_is_forgotten_once_it_is_done(
    error: HadronError | None, goes_on: bool
) -> None:
    """An operator may have given it up: what cannot be done just now must not be dropped."""
    submitted: list[Any] = []

    class Log:
        def submit(self, command: Any, *, done: Any) -> None:
            submitted.append(command)
            if isinstance(command, FinishTransaction):
                done((), error)

    log: Any = Log()
    leaders: Any = None
    one = TransactionId("p0", 1, 1, 7)
    Participant(log, "p1", leaders).receive("p0", Told(one, Fate.OVER, 40, 3))
    assert submitted[0] == FinishTransaction(one, 40, 3)
    assert submitted[1:] == ([ForgetTransactions((one,))] if goes_on else [])
