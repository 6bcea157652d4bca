"""A transaction: what users call. What becomes of it is in `work`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hadron.client.handling.invocation import AnyInvocation
from hadron.client.terms.opening import EnteredOnce
from hadron.client.terms.results import Receipt
from hadron.client.transactions.contents import Claimable, Published, PublishedMany
from hadron.client.transactions.work import Work
from hadron.model.record import Headers
from hadron.wire.messages import pipelines_pb2


class Transaction(EnteredOnce):
    """Records, acknowledgements and stages' ends that are done all together, or not at all. Made by
    `Client.transaction`, used inside its block.

    Leaving the block commits, by an exception it rolls back, and then nothing of it was done. What
    it does is sent while the program works; nobody reads any of it before the commit. A call fails
    as soon as the driver has rolled it back, and the error says why, and whether to do it again
    helps: `ConflictError` names another transaction that holds a delivery. Records for one
    partition are in the order of one task's calls, one behind the other; over several partitions
    they show up at slightly different moments.

    Calls may come from several tasks, in any order, until one of them ends it. A record without a
    key goes to a partition at the driver's replica set, or at another one that the transaction is
    at already, where its stream has one: a transaction of one replica set costs little more than
    its records do.
    """

    def __init__(self, work: Work) -> None:
        self._work = work

    def __repr__(self) -> str:
        return f"<Transaction {self._work}>"

    @property
    def id(self) -> str | None:
        """For `Client.outcome`; None before anything was sent."""
        return None if self._work.id is None else str(self._work.id)

    @property
    def state(self) -> str:
        """ "open", "committing", "committed", "rolled back" ("aborted", as outcomes have it), or
        that it is not known."""
        return self._work.state.value

    @property
    def receipts(self) -> list[Receipt]:
        """Where its records are, once it is committed: batch by batch, those of a partition in
        order. Those of a replica set that is away just then come with `Client.outcome`."""
        return self._work.contents.receipts()

    async def publish(
        self,
        stream: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
    ) -> Published:
        """Add a record, with the arguments of `Producer.send`; what is returned has its `receipt`
        after the commit. Returns at once, unless much is waiting to be sent.

        `expect_key_offset` is asked of what others have logged, when this is sent and again at the
        commit; where they are another replica set's, nobody else logs a record of that key in
        between. The error (`OffsetMismatchError`; `ConflictError` while another transaction has the
        key) ends the transaction, and is raised by a later call, at the latest the commit.

        Raises:
            InvalidRecordError, RecordTooLargeError, NotFoundError: it is not in the transaction,
                which may go on; `expect_offset` is always refused so: a stream's end cannot be held
                for one writer.
            RequestError: over a limit of a transaction, 64 MiB for one; it is rolled back. CLIENTS
                K12 has all of them.
        """
        return await self._work.publish(
            stream,
            value,
            key,
            type,
            timestamp_ms,
            headers,
            id,
            partition,
            timestamp,
            expect_offset,
            expect_key_offset,
        )

    async def publish_many(
        self, stream: str, values: Iterable[Any], *, partition: str | None = None
    ) -> PublishedMany:
        """Add many records, as `Producer.send_many` takes them: the fast way for bulk. What is
        returned has their `receipts` after the commit.

        Raises what `publish` raises; the transaction is rolled back then, as some were in it.
        """
        return await self._work.publish_many(stream, values, partition)

    async def ack(self, delivery: Claimable) -> None:
        """Acknowledge a delivery, or a batch of them, of a subscription of the same client. After a
        rollback it is as if this had not been said: it may be acknowledged, or given back.

        Raises `RequestError` for one that was acknowledged before. That it belongs to another
        member by now, or that another transaction holds it (`ConflictError`), ends the transaction.
        """
        self._work.ack(delivery)

    async def complete(
        self,
        invocations: pipelines_pb2.Invocations | AnyInvocation,
        outputs: Any = None,
        *,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None = None,
    ) -> PublishedMany:
        """Complete an invocation of `Client.stage`, or a micro-batch of `Client.run_stages`, with
        what the stage declares as its output; what is returned has the outputs' `receipts` after
        the commit. After a rollback they wait for their stage's timeout, and are given out again.

        Args:
            outputs: a value, as `publish` takes it; of a micro-batch a list of values, one for each
                invocation, in their order.
            only: some of the micro-batch's invocations; None is all.

        Raises `RequestError` for outputs that do not fit, `InvalidRecordError` and
        `RecordTooLargeError`: then it is not in the transaction, which may go on. That somebody
        else has ended one of them by now (`StaleCompletionError`), or that another transaction
        holds it (`ConflictError`), ends the transaction.
        """
        return await self._work.complete(invocations, outputs, only)

    async def fail(
        self,
        invocations: pipelines_pb2.Invocations | AnyInvocation,
        error: BaseException | str,
        *,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None = None,
    ) -> None:
        """These attempts of a stage have failed, with `error` as the reason; the stage's retry
        policy decides what follows. Arguments and errors are those of `complete`."""
        await self._work.fail(invocations, error, only)

    async def begin(self) -> str | None:
        """Its id, which it gets otherwise when its first statements are sent, or at the commit;
        None while there is nothing in it. Who writes it down can ask for the outcome after a crash
        of its own. Raises what `publish` raises."""
        await self._work.begin()
        return self.id

    async def commit(self) -> None:
        """Commit before the end of the block; nothing can be added then.

        Raises:
            CommitUnknownError: the driver did not say in time what became of it; `Client.outcome`
                asks it again.
            HadronError: nothing of it was done, nor will be.
        """
        await self._work.commit()

    async def rollback(self) -> None:
        """Do nothing of it; the block may go on with something else. A second time does nothing.

        Raises:
            ClosedError: it is committed, or being committed.
            CommitUnknownError: it may be committed, which nobody knows.
        """
        self._work.give_up()

    # --- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction:
        self._enter("transaction")
        return self

    async def __aexit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        await self._work.leave(error)
