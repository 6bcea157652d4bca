"""A sink: tasks stage batches anywhere, one call publishes them, and it knows how far that is.

Safety rule: whether a batch is published is asked of the sink, and nobody else: before it is
published, and whenever the answer to that was lost (PROTOCOL E11).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import msgspec

from hadron.client.connecting.session import Session
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import text_of, whole_of
from hadron.client.transactions.calls import TransactionCalls
from hadron.client.transactions.settings import TransactionSettings
from hadron.model.backoff import Backoff
from hadron.model.errors import CommitUnknownError, HadronError, RequestError
from hadron.model.limits import TOKEN_BYTES
from hadron.model.sinks import SinkProgress, check_advance, is_published
from hadron.wire.messages import method, sinks_pb2, transactions_pb2

_STAGE: Final = method("Stage")
_GIVE_UP: Final = method("GiveUpStaged")
_LIST: Final = method("ListSinks")

_Statement = transactions_pb2.Statement

DEFAULT_KEPT_S: Final = 3_600.0
"""What is staged is kept for so long: longer than a batch takes, with all its tasks."""

PUBLISH_PATIENCE_S: Final = 120.0
"""A leader's restart and an election are far shorter; who runs the query tries again after that."""


class StagedAttempt(msgspec.Struct, frozen=True):
    """What one task has staged of a write.

    Attributes:
        attempt: 16 random bytes.
        batches: how many at each replica set.
    """

    attempt: bytes
    batches: Mapping[str, int]


class Sink:
    """What a program writes to in batches that its tasks stage. Made by `Client.sink`; its calls
    may be repeated, from any process.

    A *write* is what is published together: one batch of a query, with 16 random bytes for a name
    (`new_token`), and each task that stages some of it, or repeats that, is an *attempt* with a
    name of its own.
    """

    def __init__(
        self, session: Session, catalog: Catalog, transactions: TransactionCalls, name: str
    ) -> None:
        self._session = session
        self._catalog = catalog
        self._transactions = transactions
        self._name = text_of("name", name) if name else ""

    async def progress(self) -> SinkProgress | None:
        """How far it is; None where nothing was published, or that was forgotten."""
        if not self._name:
            return None
        request = sinks_pb2.ListSinksRequest(
            namespace=self._session.endpoint.namespace, name=self._name
        )
        answer, _ = await self._session.request(self._home, _LIST, request)
        for each in answer.sinks:
            return SinkProgress(each.name, each.query, each.batch, each.published_ms)
        return None

    async def is_published(self, query: str, batch: int, follows: str = "") -> bool:
        """Whether a batch is published already; asked before anything of it is staged.

        Raises `RequestError` where it could not be published: as `publish` does.
        """
        if not self._name:
            return False
        known = await self.progress()
        if is_published(known, query, batch):
            return True
        check_advance(known, self._name, query, batch, follows)
        return False

    @property
    def _home(self) -> str:
        """The driver of all that it publishes, for ever: only there it is known what was."""
        return self._session.topology.metadata

    async def stage(
        self,
        stream: str,
        partition: str,
        batches: Sequence[bytes],
        *,
        write: bytes,
        attempt: bytes,
        first: int,
        kept_s: float = DEFAULT_KEPT_S,
        label: str = "",
    ) -> None:
        """Keep encoded record batches at a partition, in no stream, until they are published.

        Args:
            batches: 2 MiB and `limits.MAX_ITEMS` at most, or one.
            first: how many of the attempt were staged at this partition before.
            kept_s: they go when they are not published for so long after the latest of an attempt.
            label: of the write, for people.

        Raises `NotFoundError` for a stream or a partition that does not exist, `RequestError` for
        an attempt that has expired or was given up.
        """
        item = await self._catalog.stream(stream)
        await self._catalog.partitions(stream, partition)
        request = sinks_pb2.StageRequest(
            stream_id=item.id,
            metadata_index=item.metadata_index,
            write_id=write,
            attempt=attempt,
            first=whole_of("first", first, 0),
            lengths=list(map(len, batches)),
            kept_ms=round(kept_s * 1_000),
            label=label,
        )
        await self._session.request(partition, _STAGE, request, batches)

    async def publish(
        self,
        stream: str,
        staged: Sequence[StagedAttempt],
        *,
        write: bytes,
        query: str = "",
        batch: int = 0,
        follows: str = "",
    ) -> bool:
        """Publish what these attempts have staged, in their order, all or none of it; returns
        whether this call has, and not an earlier one.

        Args:
            query: whose batch it is: a sink belongs to one, or to programs that have none.
            batch: higher than the last one. One that is not is known, and nothing is done.
            follows: the query that this one takes the sink over from; "none" where the sink is not
                known any more.

        Raises:
            RequestError: it is another query's sink; or what was staged has expired.
            PeerError, CommitUnknownError: a replica set did not answer for 120 s; call it again.
        """
        item = await self._catalog.stream(stream)
        statements = _statements(item.id, item.metadata_index, write, staged)
        if self._name:
            advance = _Statement.AdvanceSink(
                namespace=self._session.endpoint.namespace,
                name=self._name,
                query=query,
                batch=whole_of("batch", batch, 0),
                follows=follows,
            )
            statements.append(_Statement(replica_set=self._home, advance_sink=advance))
        if not statements:
            return False
        backoff = Backoff(self._session.ports.random)
        until_s = anyio.current_time() + PUBLISH_PATIENCE_S
        unknown: CommitUnknownError | None = None
        while True:
            try:
                if await self._is_known(query, batch, unknown):
                    return False
                await self._commit(statements)
            except HadronError as error:
                unknown = error if isinstance(error, CommitUnknownError) else unknown
                is_final = not (error.retryable or isinstance(error, CommitUnknownError))
                if is_final and await self._is_known(query, batch, unknown):
                    return False
                if is_final or anyio.current_time() > until_s:
                    raise
            else:
                return True
            await anyio.sleep(backoff.next_s())

    async def _is_known(self, query: str, batch: int, unknown: CommitUnknownError | None) -> bool:
        """Whether it is published. Without a name only its transaction tells."""
        if self._name:
            return is_published(await self.progress(), query, batch)
        if unknown is None or unknown.transaction is None:
            return False
        outcome = await self._transactions.outcome(unknown.transaction)
        if outcome.state == "open":
            raise unknown
        return outcome.state == "committed"

    async def _commit(self, statements: Sequence[transactions_pb2.Statement]) -> None:
        work = self._transactions.begin(TransactionSettings(driver=self._home))
        error: BaseException | None = None
        try:
            for each in statements:
                work.add_statement(each)
            await work.commit()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if error is not None:
                work.rollback()

    async def give_up(self, write: bytes, partitions: Sequence[str]) -> None:
        """What a write has staged at these partitions is not wanted any more, and goes at once.
        What is published stays: it is staged no more."""
        for partition in partitions:
            request = sinks_pb2.GiveUpStagedRequest(write_id=write)
            await self._session.request(partition, _GIVE_UP, request)


def _statements(
    stream_id: int, metadata_index: int, write: bytes, staged: Sequence[StagedAttempt]
) -> list[transactions_pb2.Statement]:
    """One for each replica set."""
    if len(write) != TOKEN_BYTES:
        raise RequestError(f"a write is named by {TOKEN_BYTES} random bytes, not {write!r}")
    by_set: dict[str, _Statement.PublishStaged] = {}
    for each in staged:
        for replica_set, batches in each.batches.items():
            found = by_set.get(replica_set)
            if found is None:
                found = by_set[replica_set] = _Statement.PublishStaged(
                    stream_id=stream_id, metadata_index=metadata_index, write_id=write
                )
            found.attempts.add(attempt=each.attempt, batches=batches)
    return [
        _Statement(replica_set=replica_set, publish_staged=publish)
        for replica_set, publish in sorted(by_set.items())
    ]


def new_token() -> bytes:
    """A name for a write, or for an attempt."""
    return secrets.token_bytes(TOKEN_BYTES)
