"""What `Client` offers of sinks: a module of its own because that one is long."""

from __future__ import annotations

from typing import Final

from hadron.client.connecting.leaders import LOOK_HINT, ask_each, check_complete
from hadron.client.connecting.session import Session
from hadron.client.schema.catalog import Catalog
from hadron.client.sinks.sink import Sink
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.results import StagedWrite
from hadron.client.transactions.calls import TransactionCalls
from hadron.model.sinks import SinkProgress
from hadron.wire.messages import method, sinks_pb2

_LIST_SINKS: Final = method("ListSinks")
_LIST_STAGED: Final = method("ListStaged")


class SinkMethods:
    """These calls of a client; its blocking face has them as well."""

    _session: Session
    _catalog: Catalog
    _transactions: TransactionCalls

    def sink(self, name: str = "") -> Sink:
        """What is written by many tasks, and published at once: Spark's `df.write`.

        Args:
            name: of what is written, the same for each run: it keeps how far its query is, so that
                a batch that comes again is known. "" is for what is written once.
        """
        return Sink(self._session, self._catalog, self._transactions, name)

    async def sinks(self) -> list[SinkProgress]:
        """All sinks of the namespace, and how far each is."""
        request = sinks_pb2.ListSinksRequest(namespace=self._session.endpoint.namespace)
        home = self._session.topology.metadata
        answer, _ = await self._session.request(home, _LIST_SINKS, request)
        found = [
            SinkProgress(each.name, each.query, each.batch, each.published_ms)
            for each in answer.sinks
        ]
        return await self._catalog.listed(found)

    async def staged(self, *, within_s: float | None = None) -> list[StagedWrite]:
        """What tasks have staged and nobody has published, at each leader. Raises
        `IncompleteError` as `groups` does."""
        within_s = patience_of(within_s, "within_s")
        names = self._session.topology.names()

        async def ask(name: str) -> list[StagedWrite]:
            found: list[StagedWrite] = []
            request = sinks_pb2.ListStagedRequest()
            while True:
                answer, _ = await self._session.request(
                    name, _LIST_STAGED, request, timeout_s=within_s
                )
                found += [_staged(name, each) for each in answer.attempts]
                if not answer.next:
                    return found
                request.after = answer.next

        answers, failed = await ask_each(self._session, names, ask)
        listed = [each for name in names for each in answers.get(name, ())]
        check_complete(listed, failed, len(names), "could not be asked", LOOK_HINT)
        return listed


def _staged(replica_set: str, each: sinks_pb2.ListStagedResponse.Attempt) -> StagedWrite:
    return StagedWrite(
        replica_set,
        each.write_id.hex(),
        each.attempt.hex(),
        each.label,
        each.stream_id,
        each.batches,
        each.records,
        each.bytes,
        each.age_ms / 1_000,
        each.left_ms / 1_000,
    )
