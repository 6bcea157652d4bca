"""Transact: statements one after the other, all done at the end, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hadron.client.client import Client
from hadron.client.transactions.transaction import Transaction
from hadron.doors.clients import Clients
from hadron.doors.grpc.consuming import Consuming, Member
from hadron.doors.grpc.messages import fields_of, new_record
from hadron.doors.grpc.requests import (
    parse,
    parse_split,
    published,
    receive_one,
    receive_opening,
    senseless,
)
from hadron.doors.grpc.rpc import Talk
from hadron.doors.grpc.turns import Turns
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.wire._pb import records_pb2 as pb

_ACCEPTED = pb.StatementEvent(accepted=pb.StatementEvent.Accepted()).SerializeToString()
_ROLLED_BACK = pb.StatementEvent(rolled_back=pb.StatementEvent.RolledBack()).SerializeToString()

_Outcome = pb.TransactionOutcomeResponse
_STATES: Final = {
    "open": _Outcome.OPEN,
    "committed": _Outcome.COMMITTED,
    "aborted": _Outcome.ABORTED,
    "forgotten": _Outcome.FORGOTTEN,
}

_MAX_DOUBTFUL: Final = 1_000
"""Transactions without a known outcome whose namespace is remembered: as many as its client does
(`client.transactions.calls`)."""

_Claims: TypeAlias = dict[Member, list[int]]
"""Which deliveries a transaction acknowledges. Until it is committed they are out, so that they may
be dealt with otherwise once it is rolled back."""


class Transacting:
    """At one door."""

    def __init__(self, clients: Clients, consuming: Consuming) -> None:
        self._clients = clients
        self._consuming = consuming
        self._doubtful: dict[str, str] = {}
        """By transaction, the namespace whose client has begun it, and knows what it has claimed:
        that is for it to let go once the outcome is known."""

    async def transact(self, talk: Talk) -> None:
        asked = await receive_opening(talk, pb.StatementRequest, "begin")
        client = await self._clients.of(asked.namespace or DEFAULT_NAMESPACE)
        claims: _Claims = {}
        try:
            async with client.transaction(driver=asked.driver or None) as transaction:
                await talk.send(_ACCEPTED)
                await self._serve(talk, client, transaction, claims)
        finally:
            _let_go(claims, committed=False)

    async def _serve(
        self, talk: Talk, client: Client, transaction: Transaction, claims: _Claims
    ) -> None:
        """Up to its end. A statement counts as held until it is part of the transaction."""
        while (data := await talk.take()) is not None:
            request, bodies = parse_split(pb.StatementRequest, "publish", data, 1)
            kind = request.WhichOneof("said")
            if bodies:
                kind = "several things" if kind or bodies[1:] else "publish"
            if kind == "commit":
                if (name := await transaction.begin()) is not None:
                    self._doubt(name, client.namespace)
                    await talk.send(_committing(name))
                await transaction.commit()
                self._doubtful.pop(name or "", None)
                _let_go(claims, committed=True)
                await talk.send(_committed(transaction))
                return
            if kind == "rollback":
                await transaction.rollback()
                _let_go(claims, committed=False)
                await talk.send(_ROLLED_BACK)
                return
            if kind == "publish":
                await _publish(client, transaction, bodies[0])
            elif kind == "ack":
                member = self._consuming.member(request.ack.subscription, client)
                await _ack(member, transaction, claims, request.ack.ids)
            else:
                raise senseless(
                    talk, kind, "after `begin` say publish, ack, commit or rollback, each by itself"
                )
            talk.rpc.consumed(len(data))
            await talk.send(_ACCEPTED)
        # An error, so that leaving the block rolls it back.
        raise RequestError(
            "the call ended without a commit, and is rolled back", "end it with `commit`"
        )

    def _doubt(self, transaction: str, namespace: str) -> None:
        self._doubtful[transaction] = namespace
        if len(self._doubtful) > _MAX_DOUBTFUL:
            del self._doubtful[next(iter(self._doubtful))]

    async def outcome(self, talk: Talk) -> None:
        request = await receive_one(talk, pb.TransactionOutcomeRequest)
        namespace = self._doubtful.get(request.transaction, DEFAULT_NAMESPACE)
        try:
            client = await self._clients.of(namespace)
        except NotFoundError:
            # It was deleted, and its groups with it. Any client may ask.
            client = await self._clients.of(DEFAULT_NAMESPACE)
        outcome = await client.outcome(request.transaction)
        answer = _Outcome(state=_STATES[outcome.state], unfinished=outcome.unfinished)
        await talk.send(answer.SerializeToString())


async def _publish(client: Client, transaction: Transaction, data: bytes) -> None:
    what = "a statement with {} records"
    asked, parts = published(pb.PublishRequest, "records", data, what)
    if asked.namespace not in ("", client.namespace):
        raise RequestError(
            f"a transaction of namespace {client.namespace!r} publishes to "
            f"{asked.namespace[:100]!r}",
            "one transaction is of one namespace",
        )
    turns = Turns()
    for part in parts:
        await turns.step(len(part))
        record = new_record(parse(pb.PublishedRecord, part))
        await transaction.publish(asked.stream, record.value, **fields_of(record))


async def _ack(
    member: Member, transaction: Transaction, claims: _Claims, ids: Sequence[int]
) -> None:
    claimed = member.claim(ids)
    claims.setdefault(member, []).extend(claimed)
    turns = Turns()
    for delivery in claimed.values():
        await turns.step(0)
        await transaction.ack(delivery)


def _let_go(claims: _Claims, *, committed: bool) -> None:
    while claims:
        member, ids = claims.popitem()
        member.unclaim(ids, committed=committed)


def _committing(transaction: str) -> bytes:
    committing = pb.StatementEvent.Committing(transaction=transaction)
    return pb.StatementEvent(committing=committing).SerializeToString()


def _committed(transaction: Transaction) -> bytes:
    committed = pb.StatementEvent.Committed(transaction=transaction.id or "")
    for receipt in transaction.receipts:
        committed.receipts.add(
            stream=receipt.stream, partition=receipt.partition, offset=receipt.offset
        )
    return pb.StatementEvent(committed=committed).SerializeToString()
