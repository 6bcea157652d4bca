"""The blocking face of `hadron.client.transactions.transaction`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hadron.client.blocking.transacting import TransactionBase
from hadron.client.handling.invocation import AnyInvocation
from hadron.client.transactions.contents import Claimable, Published, PublishedMany
from hadron.model.record import Headers
from hadron.wire.messages import pipelines_pb2


class SyncTransaction(TransactionBase):
    """Records, acknowledgements and stages' ends that are done all together, or not at all. Made
    by `SyncClient.transaction`, used inside its `with` block; what is open when its client is
    closed, or the program ends, is rolled back.

    Leaving the block commits, by an exception it rolls back, and then nothing of it was done. What
    it does is sent while the program works; nobody reads any of it before the commit. A call fails
    as soon as the driver has rolled it back, and the error says why, and whether to do it again
    helps: `ConflictError` names another transaction that holds a delivery. Records for one
    partition are in the order of one thread's calls, one behind the other; over several partitions
    they show up at slightly different moments.

    Calls may come from several threads, in any order, until one of them ends it. A record without a
    key goes to a partition at the driver's replica set, or at another one that the transaction is
    at already, where its stream has one: a transaction of one replica set costs little more than
    its records do.
    """

    def publish(
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
        """Add a record, with the arguments of `SyncProducer.send`; what is returned has its
        `receipt` after the commit. Returns at once, unless much is waiting to be sent.

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
        return self._call(
            lambda transaction: transaction.publish(
                stream,
                value,
                key=key,
                type=type,
                timestamp_ms=timestamp_ms,
                headers=headers,
                id=id,
                partition=partition,
                timestamp=timestamp,
                expect_offset=expect_offset,
                expect_key_offset=expect_key_offset,
            )
        )

    def publish_many(
        self, stream: str, values: Iterable[Any], *, partition: str | None = None
    ) -> PublishedMany:
        """Add many records, as `SyncProducer.send_many` takes them: the fast way for bulk. What is
        returned has their `receipts` after the commit.

        Raises what `publish` raises; the transaction is rolled back then, as some were in it.
        """
        return self._call(
            lambda transaction: transaction.publish_many(stream, values, partition=partition)
        )

    def ack(self, delivery: Claimable) -> None:
        """Acknowledge a delivery, or a batch of them, of a subscription of the same client. After a
        rollback it is as if this had not been said: it may be acknowledged, or given back.

        Raises `RequestError` for one that was acknowledged before. That it belongs to another
        member by now, or that another transaction holds it (`ConflictError`), ends the transaction.
        """
        self._call(lambda transaction: transaction.ack(delivery))

    def complete(
        self,
        invocations: pipelines_pb2.Invocations | AnyInvocation,
        outputs: Any = None,
        *,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None = None,
    ) -> PublishedMany:
        """Complete an invocation of `SyncClient.stage`, or a micro-batch of
        `SyncClient.run_stages`, with what the stage declares as its output; what is returned has
        the outputs' `receipts` after the commit. After a rollback they wait for their stage's
        timeout, and are given out again.

        Args:
            outputs: a value, as `publish` takes it; of a micro-batch a list of values, one for each
                invocation, in their order.
            only: some of the micro-batch's invocations; None is all.

        Raises `RequestError` for outputs that do not fit, `InvalidRecordError` and
        `RecordTooLargeError`: then it is not in the transaction, which may go on. That somebody
        else has ended one of them by now (`StaleCompletionError`), or that another transaction
        holds it (`ConflictError`), ends the transaction.
        """
        return self._call(lambda transaction: transaction.complete(invocations, outputs, only=only))

    def fail(
        self,
        invocations: pipelines_pb2.Invocations | AnyInvocation,
        error: BaseException | str,
        *,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None = None,
    ) -> None:
        """These attempts of a stage have failed, with `error` as the reason; the stage's retry
        policy decides what follows. Arguments and errors are those of `complete`.
        """
        self._call(lambda transaction: transaction.fail(invocations, error, only=only))

    def begin(self) -> str | None:
        """Its id, which it gets otherwise when its first statements are sent, or at the commit;
        None while there is nothing in it. Who writes it down can ask for the outcome after a crash
        of its own. Raises what `publish` raises.
        """
        return self._call(lambda transaction: transaction.begin())

    def commit(self) -> None:
        """Commit before the end of the block; nothing can be added then.

        Raises:
            CommitUnknownError: the driver did not say in time what became of it;
                `SyncClient.outcome` asks it again.
            HadronError: nothing of it was done, nor will be.
        """
        self._call(lambda transaction: transaction.commit())

    def rollback(self) -> None:
        """Do nothing of it; the block may go on with something else. A second time does nothing.

        Raises:
            ClosedError: it is committed, or being committed.
            CommitUnknownError: it may be committed, which nobody knows.
        """
        self._call(lambda transaction: transaction.rollback())
