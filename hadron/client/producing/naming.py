"""A producer's name, claimed at each partition that the producer may use (PROTOCOL D6).

A claim names the one that it knows to be the latest: the first time it asks for that, and later it
is its own. So a claim that comes late, or again, shuts nobody out who has come after it.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from hadron.client.connecting.session import Session
from hadron.client.producing.accumulator import Claim
from hadron.client.producing.outgoing_batch import Identity
from hadron.model.batch import producer_id_of
from hadron.model.errors import HadronError, ProducerFencedError
from hadron.model.limits import TOKEN_BYTES
from hadron.wire.calling import Caller
from hadron.wire.messages import method, streams_pb2

_CLAIM: Final = method("ClaimProducer")

_TRIES: Final = 10
"""Two that open at the same time claim in turn, and one of them is the last."""

_CLAIM_TIMEOUT_S: Final = 6.0
"""A leader without a majority says so after 5 s."""


class Naming:
    """Claims one name of one stream's producer.

    Attributes:
        claims: by partition, as they were first.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self.claims: dict[str, Claim] = {}
        self._token = session.ports.random.token_bytes(TOKEN_BYTES // 2)

    async def open(self, opening: streams_pb2.ProduceRequest, partitions: list[str]) -> None:
        """Claim the name at those of these where it is not yet; whoever had it there is shut out
        from then on.

        Raises what a leader that is away comes to: then it is claimed at some, and not at others.
        """
        troubles: list[HadronError] = []

        async def claim(partition: str) -> None:
            try:
                self.claims[partition] = await self._first(opening, partition)
            except HadronError as error:
                troubles.append(error)

        async with anyio.create_task_group() as tasks:
            for partition in partitions:
                if partition not in self.claims:
                    tasks.start_soon(claim, partition)
        if troubles:
            raise troubles[0]

    async def _first(self, opening: streams_pb2.ProduceRequest, partition: str) -> Claim:
        request = self._request(opening)
        request.partition = partition
        for left in reversed(range(_TRIES)):
            latest, _ = await self._session.request(partition, _CLAIM, request)
            claiming = streams_pb2.ClaimProducerRequest(
                after=latest.claim, token=self._session.ports.random.token_bytes(TOKEN_BYTES)
            )
            claiming.MergeFrom(request)
            try:
                answer, _ = await self._session.request(partition, _CLAIM, claiming)
            except ProducerFencedError:
                if not left:
                    raise
            else:
                return self._claim(answer)
        raise AssertionError

    async def claim(
        self, connection: Caller, opening: streams_pb2.ProduceRequest, own: Claim
    ) -> Claim:
        """Claim the name once more, if nobody else has. Raises `ProducerFencedError` if so."""
        request = self._request(opening)
        request.partition = opening.partition
        request.after = own.identity.epoch
        # Of the claim that follows this one: whoever repeats the question has it.
        request.token = own.identity.epoch.to_bytes(TOKEN_BYTES // 2, "big") + self._token
        answer, _ = await connection.request(_CLAIM, request, timeout_s=_CLAIM_TIMEOUT_S)
        return self._claim(answer)

    def _request(self, opening: streams_pb2.ProduceRequest) -> streams_pb2.ClaimProducerRequest:
        return streams_pb2.ClaimProducerRequest(
            namespace=opening.namespace,
            stream=opening.stream,
            stream_id=opening.stream_id,
            metadata_index=opening.metadata_index,
            name=self._name,
        )

    def _claim(self, answer: Any) -> Claim:
        return Claim(Identity(producer_id_of(self._name), answer.claim), answer.last_sequence)
