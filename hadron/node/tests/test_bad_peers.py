"""A peer that says what no node says ends its call or its link, and no node (BOUNDS W5)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import PeerError
from hadron.model.transactions import TransactionId
from hadron.node.tests.support import fetch, make_stream, produce
from hadron.node.tests.test_transactions import EU, META, US, make_streams
from hadron.node.tests.transacting import publish
from hadron.replication import service
from hadron.replication.membership import identity_message
from hadron.state.leadership import Configuration
from hadron.testing.nodes import running_cluster, running_nodes
from hadron.wire.messages import (
    ballot_to,
    method,
    position_to,
    replication_pb2,
    transaction_to,
    transactions_pb2,
)

HANDSHAKE, APPEND, COORDINATE = method("Handshake"), method("Append"), method("Coordinate")


@pytest.mark.parametrize(
    ("ahead", "now_ms", "message"),
    [(1, 5, "arrived with chain"), (1, -1, "stamp -1 is out of range"), (0, 5, "is missing")],
    ids=["chain", "stamp", "committed"],
)
async def test_a_bad_entry_of_the_leader(
    tmp_path: Path, clock: MockClock, ahead: int, now_ms: int, message: str
) -> None:
    """Also in the place of one that is committed: that is not thrown away for it."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"a")
        await nodes.wait_in_step()
        leader, replica = nodes.node("n1"), nodes.node("n2")
        own, membership = leader.member.identity, leader.host.membership
        head = replica.member._follower.head
        greeting = identity_message(
            membership,
            uuid=own.uuid,
            boot=own.boot,
            start=leader.member._links._own_identity().start,
            is_member=True,
            disk=own.disk,
        )
        async with nodes.connection("n2", host="n1") as connection:
            await connection.request(HANDSHAKE, greeting)
            entry = replication_pb2.Entry(
                lsn=head.lsn + ahead,
                ballot=ballot_to(own.promised),
                now_ms=now_ms,
                command=b"x",
                chain=bytes(16),
            )
            request = replication_pb2.AppendRequest(
                ballot=ballot_to(own.promised), previous=position_to(head), entries=[entry]
            )
            with pytest.raises(PeerError, match=message):
                await connection.request(APPEND, request)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"b")
            assert await fetch(connection) == [b"a", b"b"]
        await nodes.wait_in_step()
        assert not nodes.failures


async def test_a_number_in_a_handshake_that_no_log_has(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader starts while a peer answers so: that link is down, and says why."""

    def damaged(configuration: Configuration) -> replication_pb2.Configuration:
        return replication_pb2.Configuration(epoch=configuration.epoch, lsn=1 << 63)

    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n1")
        with monkeypatch.context() as patch:
            patch.setattr(service, "configuration_to", damaged)
            await nodes.start("n1")
            told = "lsn 9223372036854775808 is out of range"
            await nodes.wait_for(
                "told", lambda: any(told in peer.trouble for peer in nodes.status("n1").peers)
            )
        await nodes.wait_serving()
        assert not nodes.failures


@pytest.mark.parametrize("first", [(1 << 63) - 1, 1 << 63])
async def test_a_statements_number_that_no_driver_gives(
    tmp_path: Path, clock: MockClock, first: int
) -> None:
    """Behind others of its transaction, which are here."""
    async with running_cluster(tmp_path, {META: 1, EU: 1, US: 1}) as cluster:
        ids = await make_streams(cluster)
        transaction = TransactionId(EU, 1, 99, 5)
        statement, batch = publish(US, ids[US], b"b")
        answers: list[Any] = []
        ended = trio.Event()
        async with cluster[US].connection("n1") as connection:
            call = connection.call(
                COORDINATE,
                transactions_pb2.CoordinateRequest(cluster="test", speaker=EU, replica_set=US),
                on_message=lambda answer, _: answers.append(answer),
                on_end=lambda _: ended.set(),
                end=False,
            )

            def prepare(number: int) -> None:
                wired = transactions_pb2.TransactionMessage(transaction=transaction_to(transaction))
                wired.prepare.first = number
                wired.prepare.statements.add().CopyFrom(statement)
                request = transactions_pb2.CoordinateRequest(messages=[wired])
                call.send(request, [batch])

            prepare(0)
            await cluster[US].wait_for("prepared", lambda: _said(answers, "prepared"))
            prepare(first)
            await cluster[US].wait_for(
                "answered", lambda: ended.is_set() or _said(answers, "prepare_refused")
            )
        await trio.sleep(1.0)
        assert not cluster[US].failures
        assert cluster[US].running


def _said(answers: list[Any], kind: str) -> bool:
    return any(each.WhichOneof("kind") == kind for answer in answers for each in answer.messages)
