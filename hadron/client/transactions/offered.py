"""What `Client` offers of transactions: a module of its own because that one is long."""

from __future__ import annotations

from typing import Literal

from hadron.client.producing.new_records import Serializer
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.opening import Opening
from hadron.client.terms.results import OpenTransaction, TransactionOutcome
from hadron.client.transactions.calls import TransactionCalls
from hadron.client.transactions.settings import TransactionSettings
from hadron.client.transactions.transaction import Transaction
from hadron.model.transactions import TransactionId


class TransactionMethods:
    """These calls of a client; its blocking face has them as well."""

    _transactions: TransactionCalls

    _make_transactions = TransactionCalls

    def transaction(
        self,
        *,
        driver: str | None = None,
        partitioner: Literal["key", "round_robin"] = "key",
        region: str | None = None,
        codec: Literal["none", "zstd"] = "none",
        value_serializer: Serializer | None = None,
    ) -> Opening[Transaction]:
        """Records and acknowledgements at any partitions, all done or none, for use as
        `async with client.transaction() as tx`.

        Args:
            driver: the replica set whose leader decides, and knows the outcome; None is that of the
                first statement.
            partitioner, region, codec, value_serializer: as `producer` has them. Records stay
                where they belong: while a partition is away the transaction fails.
        """
        return self._transactions.open(
            TransactionSettings(
                driver=driver,
                partitioner=partitioner,
                region=region,
                codec=codec,
                value_serializer=value_serializer,
            ).checked()
        )

    async def outcome(self, transaction: str | TransactionId) -> TransactionOutcome:
        """What became of a transaction, as its driver's replica set knows for 24 hours: after a
        `CommitUnknownError`, by its `.transaction`. One of this client's that is not decided by
        then never is. Raises `PeerError` while that replica set does not answer."""
        return await self._transactions.outcome(transaction)

    async def transactions(
        self, replica_set: str | None = None, *, within_s: float | None = None
    ) -> list[OpenTransaction]:
        """Transactions that are not over, as the leader of a replica set has them, or all leaders
        do: those that it drives, then those that others drive there. Raises `IncompleteError` as
        `groups` does."""
        return await self._transactions.listing(replica_set, patience_of(within_s, "within_s"))

    async def resolve_transaction(
        self,
        transaction: str | TransactionId,
        act: Literal["roll_back", "give_up", "force_commit", "force_abort"] = "roll_back",
        *,
        participant: str | None = None,
    ) -> None:
        """An operator's act, for when a replica set is lost for good.

        "roll_back" ends one that is not decided, and is safe. The others may tear a transaction
        (PROTOCOL E4): "give_up" has its driver wait no more for `participant`, "force_commit" and
        "force_abort" end at `participant` what a lost driver has left there. Raises `RequestError`
        where there is nothing to resolve, and where a driver that is to be lost answers.
        """
        await self._transactions.resolve(transaction, act, participant)
