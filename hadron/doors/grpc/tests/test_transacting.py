"""Transactions whose outcome nobody has waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from hadron.client.transactions.driver_call import COMMIT, DriverCall
from hadron.doors.grpc import transacting
from hadron.doors.grpc.tests.inner import InnerCall, a_door
from hadron.doors.grpc.tests.support import RECORDS
from hadron.doors.grpc.transacting import Transacting
from hadron.wire._pb import records_pb2 as pb


async def test_an_outcome_frees_deliveries_in_any_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = DriverCall.say

    def lose_commit(driver: DriverCall, *what: Any) -> None:
        if COMMIT not in what:
            say(driver, *what)

    async with a_door(tmp_path) as (door, client, _):
        await client.apply([{"kind": "Namespace", "name": "other"}])
        inner = await door._clients.of("other")
        await inner.create_stream("s")
        await inner.send("s", "a")
        opening = pb.ConsumeRequest.Open(namespace="other", stream="s", group="g")
        member = InnerCall(door, RECORDS + "Subscribe", pb.ConsumeRequest(open=opening))
        await member.until(2)
        opened, delivered = map(pb.ConsumeEvent.FromString, member.answers)

        monkeypatch.setattr(DriverCall, "say", lose_commit)
        token, ids = opened.opened.subscription, [delivered.delivery.id]
        call = InnerCall(
            door,
            RECORDS + "Transact",
            pb.StatementRequest(begin=pb.StatementRequest.Begin(namespace="other")),
            pb.StatementRequest(ack=pb.StatementRequest.Ack(subscription=token, ids=ids)),
            pb.StatementRequest(commit=pb.StatementRequest.Commit()),
        )
        await call.until(3)
        committing = pb.StatementEvent.FromString(call.answers[2]).committing
        assert committing.transaction
        call.cancel()
        await trio.testing.wait_all_tasks_blocked()

        asked = pb.TransactionOutcomeRequest(transaction=committing.transaction)
        outcome = InnerCall(door, RECORDS + "Outcome", asked)
        assert await outcome.wait() == "OK"
        state = pb.TransactionOutcomeResponse.FromString(outcome.answers[0]).state
        assert state == pb.TransactionOutcomeResponse.ABORTED
        member.say(pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(ids=ids, delay_ms=0)))
        await member.until(3)
        again = pb.ConsumeEvent.FromString(member.answers[2]).delivery
        assert (again.record.value.text, again.attempt) == ("a", 2)
        member.cancel()


def test_so_many_namespaces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transacting, "_MAX_DOUBTFUL", 3)
    nothing: Any = None
    served = Transacting(nothing, nothing)
    for number in range(10):
        served._doubt(str(number), "other")
    assert list(served._doubtful) == ["7", "8", "9"]
