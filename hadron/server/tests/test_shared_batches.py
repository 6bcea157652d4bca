"""Transactions that share a statement, as the wire has them: what no client says of them ends its
call with an error that names it, and what is refused rolls back each of them."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.model.batch_building import encode_values
from hadron.model.errors import FrameError, HadronError
from hadron.model.limits import MAX_TOGETHER
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.transacting import (
    OUTCOME,
    End,
    RawClient,
    State,
    Stated,
    Statement,
    acknowledge,
    publish,
)
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import common_pb2, error_from_message, transaction_to, transactions_pb2

HOME = "local/p0"
PLAIN, INDEXED, GONE = "plain", "indexed", "gone"


class _Served:
    def __init__(self, nodes: Nodes, ids: dict[str, int], client: RawClient) -> None:
        self.nodes = nodes
        self.ids = ids
        self.client = client

    def publish(self, stream: str = PLAIN, *, key: str | None = None, at: str = HOME) -> Stated:
        """Three records."""
        return publish(at, self.ids[stream], b"a", b"b", b"c", key=key)

    async def values(self) -> list[Any]:
        async with self.nodes.client("reader") as client:
            return [record.value async for record in client.read(PLAIN)]

    async def outcome(self, number: int) -> transactions_pb2.OutcomeResponse:
        request = transactions_pb2.OutcomeRequest(
            transaction=transaction_to(self.client.id(number)), final=True
        )
        async with self.nodes.connection("n1", "who asks") as connection:
            answer, _ = await connection.request(OUTCOME, request, timeout_s=30)
        assert isinstance(answer, transactions_pb2.OutcomeResponse)
        return answer


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[_Served]:
    async with running_nodes(directory, 1) as nodes:
        async with nodes.client() as client:
            await client.apply(
                [
                    SchemaObject(
                        kind="Stream",
                        name=name,
                        spec=StreamSpec(
                            partitions=(HOME,), keys="indexed" if name == INDEXED else ""
                        ),
                    )
                    for name in (PLAIN, INDEXED, GONE)
                ]
            )
            ids = {name: (await client.stream(name)).id for name in (PLAIN, INDEXED, GONE)}
            await client.delete([("Stream", "default", GONE)], allow_destructive=True)
        async with nodes.connection("n1", "transacting") as connection:
            yield _Served(nodes, ids, RawClient(connection))


def _with_condition(what: _Served) -> Stated:
    statement, batch = what.publish(INDEXED, key="k")
    statement.publish.expect_key_offset = 17
    return statement, batch


Say = Callable[[_Served, int], None]

WRONG: dict[str, tuple[Say, str]] = {
    "too many": (
        lambda what, number: what.client.say(
            number, what.publish(), end=End.COMMIT, records=[1] * (MAX_TOGETHER + 1)
        ),
        f"{MAX_TOGETHER + 1} transactions .*: at most {MAX_TOGETHER} do",
    ),
    "none of its records": (
        lambda what, number: what.client.say(
            number, what.publish(), end=End.COMMIT, records=(0, 3, 0)
        ),
        "3 transactions .*: 2 of them have 0 records",
    ),
    "not from the beginning": (
        lambda what, number: what.client.say(
            number, what.publish(), first=5, end=End.COMMIT, records=(1, 2)
        ),
        "2 transactions .*: statement 5 is not their first",
    ),
    "left open": (
        lambda what, number: what.client.say(number, what.publish(), records=(1, 2)),
        "their end is 0, and not 1",
    ),
    "rolled back": (
        lambda what, number: what.client.say(
            number, what.publish(), end=End.ROLLBACK, records=(1, 2)
        ),
        "their end is 2, and not 1",
    ),
    "no statement": (
        lambda what, number: what.client.say(number, end=End.COMMIT, records=(1, 2)),
        "they have 0 statements, not one",
    ),
    "two statements": (
        lambda what, number: what.client.say(
            number, what.publish(), what.publish(), end=End.COMMIT, records=(3, 3)
        ),
        "they have 2 statements, not one",
    ),
    "elsewhere": (
        lambda what, number: what.client.say(
            number, what.publish(at="mars/p0"), end=End.COMMIT, records=(1, 2)
        ),
        f"it is of 'mars/p0', and {HOME} is asked",
    ),
    "acknowledges": (
        lambda what, number: what.client.say(
            number,
            acknowledge(HOME, what.ids[PLAIN], common_pb2.Ballot(epoch=1)),
            end=End.COMMIT,
            records=(1, 2),
        ),
        "it is 'acknowledge', and not 'publish'",
    ),
    "nothing at all": (
        lambda what, number: what.client.say(
            number, (Statement(replica_set=HOME), b""), end=End.COMMIT, records=(1, 2)
        ),
        "it is None, and not 'publish'",
    ),
    "a condition": (
        lambda what, number: what.client.say(
            number, _with_condition(what), end=End.COMMIT, records=(1, 2)
        ),
        "it expects a key at offset 17",
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_no_client_says(tmp_path: Path, clock: MockClock, name: str) -> None:
    say, words = WRONG[name]
    async with served(tmp_path) as what:
        number = await what.client.number()
        say(what, number)
        with pytest.raises(FrameError, match=words) as caught:
            await what.client.answer(number)
        assert f"from number {number} on" in caught.value.message
        for each in (number, number + 1):
            assert (await what.outcome(each)).state == State.ABORTED
        assert await what.values() == []


REFUSED: dict[str, tuple[Callable[[_Served], Stated], tuple[int, ...], str]] = {
    "fewer records": (_Served.publish, (1, 1), "have 2 records, and their batch has 3"),
    "more records": (_Served.publish, (1, 2, 1), "have 4 records, and their batch has 3"),
    "an index of keys": (
        lambda what: what.publish(INDEXED, key="k"),
        (1, 2),
        "2 transactions .* cannot share an AppendGuarded",
    ),
    "a stream that is deleted": (lambda what: what.publish(GONE), (1, 2), "gone was deleted"),
    "a producer's": (lambda what: _of_a_producer(what.ids[PLAIN]), (1, 2), "producer"),
}


def _of_a_producer(stream_id: int) -> Stated:
    batch = encode_values([b"a", b"b", b"c"], 1, producer_id=b"p" * 16, sequence=0)
    return (
        Statement(
            replica_set=HOME, length=len(batch), publish=Statement.Publish(stream_id=stream_id)
        ),
        batch,
    )


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(tmp_path: Path, clock: MockClock, name: str) -> None:
    stated, records, words = REFUSED[name]
    async with served(tmp_path) as what:
        client, first = what.client, await what.client.number()
        numbers = range(first, first + len(records))
        client.say(first, stated(what), end=End.COMMIT, records=records)
        for number in numbers:
            answer = await client.answer(number)
            with pytest.raises(HadronError, match=words):
                raise error_from_message(answer.rolled_back.error)
            assert (await what.outcome(number)).state == State.ABORTED
        assert await what.values() == []
        # The call goes on, behind them.
        client.say(numbers[-1], what.publish(), end=End.COMMIT)
        client.say(numbers[-1] + 1, what.publish(), end=End.COMMIT, records=(1, 2))
        assert (await client.answer(numbers[-1] + 1)).committed.transactions == 2
        assert await what.values() == [b"a", b"b", b"c"]
        for number, offset, count in ((numbers[-1] + 1, 0, 1), (numbers[-1] + 2, 1, 2)):
            outcome = await what.outcome(number)
            (result,) = outcome.results[0].results
            assert (outcome.state, result.base_offset, result.count) == (
                State.COMMITTED,
                offset,
                count,
            )
