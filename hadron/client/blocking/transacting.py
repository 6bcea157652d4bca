"""What is behind a blocking transaction, and a step of a subscription: the async one, in the loop.

Each call is one there. Any thread may make it, until one has ended the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeVar

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.portal import Portal
from hadron.client.consuming.steps import Step
from hadron.client.terms.ending import Ending
from hadron.client.terms.results import Receipt
from hadron.client.transactions.transaction import Transaction
from hadron.model.errors import ClosedError, ForkedError
from hadron.model.record import Record

T = TypeVar("T")


class Transacting:
    """What is open of a blocking transaction."""

    def __init__(self, portal: Portal, transaction: Transaction) -> None:
        self.transaction = transaction
        self._portal = portal

    def __str__(self) -> str:
        return str(self.transaction._work)

    def call(self, function: Callable[[Transaction], Awaitable[T]]) -> T:
        return self._portal.call(function, self.transaction)  # type: ignore[no-any-return]

    def leave(self, error: BaseException | None) -> None:
        """Its block has ended."""
        self._portal.call(self.transaction._work.leave, error)

    def finish(self, _ending: Ending) -> None:
        """It is closed with its client: what was not committed is not wanted."""
        with suppress(ClosedError):
            self._portal.call(self.transaction._work.rollback)

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class TransactionBase(OpenedBase[Transacting]):
    """Records, acknowledgements and stages' ends that are done all together, or not at all. Made
    by `SyncClient.transaction`, used inside its `with` block; what is open when its client is
    closed, or the program ends, is rolled back.
    """

    _core = Transacting
    _left: Transacting | None = None
    """Once its block has ended: what it has done may be looked at then."""
    _last: Transacting | None = None
    """What was opened: how far it came may be looked at once it is closed with its client."""

    def __repr__(self) -> str:
        # After its block, too: how it ended is what people want to see.
        return f"<{type(self).__name__} {self._left or self._lazy}>"

    def __enter__(self) -> Self:
        self._core_now  # noqa: B018 - opens it
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        core = self._lazy.core
        self._left = core or self._last
        try:
            if core is not None:
                core.leave(error)
        finally:
            self._lazy.leave(error)

    @property
    def id(self) -> str | None:
        """For `SyncClient.outcome`; None before anything was sent."""
        return self._core_seen.transaction.id

    @property
    def state(self) -> str:
        """ "open", "committing", "committed", "rolled back" ("aborted", as outcomes have it), or
        that it is not known."""
        return self._core_seen.transaction.state

    @property
    def receipts(self) -> list[Receipt]:
        """Where its records are, once it is committed: batch by batch, those of a partition in
        order. Those of a replica set that is away just then come with `SyncClient.outcome`."""
        return self._core_seen.transaction.receipts

    def _call(self, function: Callable[[Transaction], Awaitable[T]]) -> T:
        return self._core_now.call(function)

    @property
    def _core_now(self) -> Transacting:
        if self._left is None:
            self._last = self._lazy.get()
            return self._last
        return self._left

    @property
    def _core_seen(self) -> Transacting:
        """To look at only: closed with its client, too."""
        try:
            return self._core_now
        except ForkedError:
            raise
        except ClosedError:
            if self._last is None:
                raise
            return self._last


class StepBase:
    """Some records of one partition, and what is done with them: a transaction."""

    def __init__(self, portal: Portal, step: Step) -> None:
        self._portal = portal
        self._step = step
        self.records: list[Record] = step.records
        self.attempt: int = step.attempt

    def __len__(self) -> int:
        return len(self._step)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._step)[1:]}"

    @property
    def partition(self) -> str:
        return self._step.partition

    @property
    def receipts(self) -> list[Receipt]:
        """Of what it has published, once it is committed; as `SyncTransaction.receipts`."""
        return self._step.receipts

    def _call(self, function: Callable[[Step], Awaitable[T]]) -> T:
        return self._portal.call(function, self._step)  # type: ignore[no-any-return]
