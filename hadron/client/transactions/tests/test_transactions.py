"""Transactions of a client against a driver that misbehaves, under both event loops."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import pytest

from hadron.client import Client, connect
from hadron.client.tests.support import both, served, start, until
from hadron.client.transactions import contents, driver_call
from hadron.client.transactions.tests.fake_driver import FakeDriver
from hadron.client.transactions.work import Work
from hadron.model.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    ConnectionLostError,
    InvalidRecordError,
    NotFoundError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.wire.messages import check_count, groups_pb2, items_of, transactions_pb2

Statement = transactions_pb2.Statement

ONE = ("local/p0",)
TWO = ("local/p0", "local/p1")


def driver(**options: Any) -> FakeDriver:
    return FakeDriver(**{"partitions": ONE, "streams": ("s", "t"), **options})


# --- committing -----------------------------------------------------------------------------------


@both
async def test_a_block_commits_all_of_it_in_one_message() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        async with client.transaction() as tx:
            assert tx.id is None
            first = await tx.publish("s", b"a", id="mine")
            second = await tx.publish("t", "b", key="k", headers={"h": "x"})
            await tx.publish("s", {"c": 1})
            assert first.receipt is None
            assert node.values("s") == []
        assert (node.values("s"), node.values("t")) == ([b"a", b'{"c":1}'], [b"b"])
        assert (node.messages, len(node.calls)) == (2, 1), "the opening, and all of it"
        assert first.receipt is not None
        assert second.receipt is not None
        assert (first.receipt.id, first.receipt.offset) == ("mine", 0)
        assert second.receipt.id == "t/local/p0/0"
        assert [(each.stream, each.offset) for each in tx.receipts] == [
            ("s", 0), ("s", 1), ("t", 0)
        ]  # fmt: skip
        assert tx.state == "committed"
        assert tx.id == f"local/p0/1.1/{1 << 20}"
        async with client.transaction():
            pass
        assert len(node.outcomes) == 1, "nothing to do is nothing to say"


def test_many_statements_go_in_several_messages() -> None:
    """A driver takes no more of them in one."""
    ranges = [groups_pb2.Range(delivery=1, first_offset=2 * each) for each in range(5_000)]
    acknowledged = Statement(acknowledge=Statement.Acknowledge(ranges=ranges))
    published = [Statement(length=each % 2) for each in range(3_000)]
    statements = [acknowledged, *published, acknowledged, acknowledged]
    bodies = [b"x"] * 1_500
    parts = driver_call._cut(statements, bodies)
    assert [each for some, _ in parts for each in some] == statements
    assert [len(some) for _, some in parts] == [sum(each.length for each in of) for of, _ in parts]
    for some, _ in parts:
        check_count("items", items_of(transactions_pb2.TransactRequest.Part(statements=some)))


@both
async def test_a_few_large_statements_go_in_several_messages() -> None:
    """However few they are, a frame has room for some of them only."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        async with client.transaction() as tx:
            await tx.publish_many("s", ["x" * 1_000_000] * 20)
        assert (tx.state, len(node.values("s"))) == ("committed", 20)
        assert node.messages >= 20


@both
async def test_a_few_statements_that_name_much_go_in_several_messages() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 20_500)
        async with (
            client.subscribe("s", group="g", start="earliest", max_in_flight=20_500) as got,
            client.transaction() as other,
        ):
            await other.publish("t", b"in the same call")
            await other.begin()
            async with client.transaction() as tx:
                # Of each two, so that each is a range by itself.
                for _ in range(10_250):
                    await tx.ack(await anext(got))
                    await anext(got)
            assert (tx.state, other.state, len(node.calls)) == ("committed", "open", 1)
        assert other.state == "committed"


@both
async def test_an_exception_rolls_it_back() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                await until(lambda: bool(node.open))
                await tx.publish("s", b"b")
                raise ZeroDivisionError
        assert tx.state == "rolled back"
        await until(lambda: not node.open)
        assert node.values("s") == []
        assert tx.receipts == []
        with pytest.raises(ClosedError, match=r"is rolled back: local/p0/1\.1/"):
            await tx.publish("s", b"c")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as empty:
                raise ZeroDivisionError
        with pytest.raises(ClosedError, match=r"is rolled back \("):
            await empty.publish("s", b"c")
        async with client.transaction() as other:
            await other.publish("s", b"d")
            await other.rollback()
        assert (other.state, other.id) == ("rolled back", None)


@both
async def test_statements_leave_while_their_program_works() -> None:
    async with served(driver()) as (node, client), client.transaction() as tx:
        assert isinstance(node, FakeDriver)
        await tx.publish("s", b"a")
        await until(lambda: bool(node.open))
        await tx.publish_many("s", [b"x" * 1000] * 2000)
        held = next(iter(node.open.values()))
        await until(lambda: sum(len(batch) for _, batch in held.statements) > 2_000_000)


@both
async def test_many_at_a_time_share_messages_and_one_call() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.block_size = 50
        done: list[str] = []

        async def work(number: int) -> None:
            async with client.transaction() as tx:
                await tx.publish("s", b"%d" % number)
            assert tx.id is not None
            done.append(tx.id)

        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(work, number)
        assert len(set(done)) == 200
        assert len(node.values("s")) == 200
        assert len(node.calls) == 1
        assert node.messages < 100
        assert node.blocks >= 4


# --- records and places ---------------------------------------------------------------------------


@both
async def test_commits_at_the_same_time_share_a_batch() -> None:
    for how in ("committed", "unknown", "refused"):
        await _commit_together(how)


async def _commit_together(how: str) -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        found: dict[int, str] = {}
        outcomes: list[str] = []

        async def work(number: int) -> None:
            try:
                async with client.transaction() as tx:
                    given = [await tx.publish("s", b"%d/%d" % (number, n)) for n in range(2)]
            except ConflictError:
                outcomes.append("refused")
                return
            outcomes.append(tx.state)
            for n, each in enumerate(given):
                assert each.receipt is not None
                found[each.receipt.offset] = f"{number}/{n}"

        await work(0)
        if how == "unknown":
            node.unknown = 100
        elif how == "refused":
            node.refusals.extend([ConflictError("somebody else has it")] * 100)
        async with anyio.create_task_group() as tasks:
            for number in range(1, 9):
                tasks.start_soon(work, number)
        assert len(outcomes) == 9
        assert outcomes.count("refused") == (8 if how == "refused" else 0)
        assert [found[n].encode() for n in range(len(found))] == node.values("s")
        assert len(found) == (2 if how == "refused" else 18)
        assert node.messages <= 5, "the opening, the first, the first of eight, and the rest"


@both
async def test_those_that_share_a_batch_have_numbers_of_one_block() -> None:
    """The next block's follow the last one's where the driver has no other client."""
    fake = driver()
    fake.block_size = 1 << 20
    fake.used_up = fake.block_size - 7
    async with served(fake) as (node, client):
        assert isinstance(node, FakeDriver)
        done: list[str] = []

        async def work(number: int) -> None:
            async with client.transaction() as tx:
                await tx.publish("s", b"%d" % number)
            assert tx.id is not None
            done.append(tx.id)

        await work(0)
        async with anyio.create_task_group() as tasks:
            for number in range(1, 20):
                tasks.start_soon(work, number)
        assert sorted(int(each.rpartition("/")[2]) for each in done) == [
            (2 << 20) + number for number in range(-7, 13)
        ]
        assert len(node.values("s")) == 20


@both
async def test_records_without_a_key_stay_where_the_transaction_is() -> None:
    async with served(driver(partitions=TWO)) as (node, client):
        for _ in range(4):
            async with client.transaction() as tx:
                for number in range(6):
                    await tx.publish("st"[number % 2], b"x")
            assert len({each.partition for each in tx.receipts}) == 1
        both_sets = {name: len(node.values("s", name)) for name in TWO}
        assert both_sets == dict.fromkeys(TWO, 6), "they take turns"
        async with client.transaction(driver=TWO[1]) as tx:
            await tx.publish("s", b"y")
            await tx.publish("s", b"z", partition=TWO[0])
        assert [each.partition for each in tx.receipts] == [TWO[1], TWO[0]]


@both
async def test_keys_go_where_a_producer_sends_them() -> None:
    async with served(driver(partitions=TWO)) as (_, client):
        async with client.producer("s") as producer:
            sent = [await producer.send(b"x", key=f"k{n}") for n in range(20)]
        async with client.transaction() as tx:
            given = [await tx.publish("s", b"x", key=f"k{n}") for n in range(20)]
        assert [each.partition for each in sent] == [
            each.receipt.partition for each in given if each.receipt is not None
        ]
        async with client.transaction(region="local", partitioner="round_robin") as tx:
            for n in range(20):
                await tx.publish("s", b"x", key=f"k{n}")
        assert len({each.partition for each in tx.receipts}) == 1


@both
async def test_bulk_and_serializers() -> None:
    async with served(driver()) as (node, client):
        async with client.transaction(value_serializer=json.dumps) as tx:
            many = await tx.publish_many("s", ({"n": n} for n in range(300)))
            await tx.publish("s", [1])
        assert [each.count for each in many.receipts] == [300]
        assert node.values("s")[-1] == b"[1]"
        async with client.transaction(codec="zstd") as tx:
            many = await tx.publish_many("t", [b"x" * 100] * 10_000 + [NewRecord(value="y")])
        assert sum(each.count for each in many.receipts) == 10_001
        assert len(node.values("t")) == 10_001


@both
async def test_what_cannot_be_sent_is_not_in_it() -> None:
    async with served(driver()) as (node, client):
        async with client.transaction() as tx:
            await tx.publish("s", b"a")
            with pytest.raises(NotFoundError, match="no stream is called 'nowhere'"):
                await tx.publish("nowhere", b"b")
            with pytest.raises(NotFoundError, match="no partition 'local/p7'"):
                await tx.publish("s", b"b", partition="local/p7")
            with pytest.raises(RecordTooLargeError, match="2000016 bytes"):
                await tx.publish("s", b"x" * 2_000_000)
            with pytest.raises(InvalidRecordError):
                await tx.publish("s", object())
            with pytest.raises(RequestError, match="a str cannot be acknowledged"):
                await tx.ack("delivery")  # type: ignore[arg-type]
        assert node.values("s") == [b"a"]
        with pytest.raises(NotFoundError, match="no replica set is called 'local/p7'"):
            async with client.transaction(driver="local/p7") as tx:
                pass
        with pytest.raises(RequestError, match="partitioner 'hash' is unknown"):
            client.transaction(partitioner="hash")  # type: ignore[arg-type]


@both
async def test_half_of_a_bulk_is_not_committed() -> None:
    async with served(driver()) as (node, client):
        with pytest.raises(InvalidRecordError):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"before")
                with pytest.raises(InvalidRecordError):
                    await tx.publish_many("s", [b"a", object()])
        assert tx.state == "rolled back"
        assert node.values("s") == []

        def numbers() -> Any:
            yield b"1"
            raise ZeroDivisionError

        with pytest.raises(RequestError, match="raised ZeroDivisionError"):  # noqa: PT012
            async with client.transaction() as tx:
                with pytest.raises(ZeroDivisionError):
                    await tx.publish_many("s", numbers())
        assert node.values("s") == []


@both
async def test_half_of_what_was_cancelled_is_not_committed() -> None:
    """Its program goes on, as it gave up waiting only, and leaves the block as if all were well."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        waiting: list[Any] = []
        node.give_block = waiting.append  # type: ignore[assignment, method-assign]
        many = [NewRecord(b"x" * 1_000)] * 1_000
        for is_bulk in (True, False):
            with pytest.raises(RequestError, match="cancelled before it was done"):  # noqa: PT012
                async with client.transaction() as tx:
                    with anyio.move_on_after(0.1) as scope:
                        if is_bulk:
                            await tx.publish_many("s", many)
                        else:
                            await tx.publish("s", b"x" * 600_000)
                    assert scope.cancelled_caught
                    await tx.publish("s", b"the end")
        assert node.values("s") == []


@both
async def test_limits_are_told_and_roll_it_back() -> None:
    async with served(driver()) as (node, client):
        with pytest.raises(RequestError, match="more than 67108864 bytes") as caught:
            async with client.transaction() as tx:
                await tx.publish_many("s", [b"x" * 1_000_000] * 80)
        assert not caught.value.retryable
        assert "several transactions" in caught.value.hint
        assert node.values("s") == []


@both
async def test_too_many_statements_roll_it_back() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "MAX_TRANSACTION_STATEMENTS", 100)
        await _say_too_much()


async def _say_too_much() -> None:
    async with served(driver()) as (node, client):
        with pytest.raises(RequestError, match="more than 100 statements") as caught:  # noqa: PT012
            async with client.transaction() as tx:
                for number in range(101):
                    await tx.publish_many("s", [b"%d" % number])
        assert not caught.value.retryable
        assert "several transactions" in caught.value.hint
        assert tx.state == "rolled back"
        assert node.values("s") == []


def test_too_many_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_TRANSACTION_STATEMENTS", 10)
    place = contents.Place("local/p0", contents.StreamName("s", 1, 1))
    made = contents.Contents()
    for _ in range(10):
        made.add_values(place, [b"x"], 5, 1)
    with pytest.raises(RequestError, match="more than 10 statements"):
        made.add_values(place, [b"x"], 5, 1)


# --- acknowledging --------------------------------------------------------------------------------


async def fill(client: Client, count: int, stream: str = "s") -> None:
    async with client.producer(stream) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


@both
async def test_deliveries_and_batches_are_acknowledged_with_it() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 100)
        async with client.subscribe("s", group="g", batch_size=40) as subscription:
            batch = await subscription.poll_batch()
            assert batch is not None
            async with client.transaction() as tx:
                await tx.ack(batch)
                with pytest.raises(RequestError, match="was acknowledged before"):
                    await tx.ack(batch)
                delivery = await subscription.poll()
                assert delivery is not None
                await tx.publish("t", b"out")
                await tx.ack(delivery)
                assert node.groups["s", "local/p0", "g"].floor == 0
            assert node.groups["s", "local/p0", "g"].floor == 41
            assert tx.receipts[0].stream == "t"
            with pytest.raises(RequestError, match="was acknowledged before"):
                async with client.transaction() as tx:
                    await tx.ack(delivery)


@both
async def test_after_a_rollback_it_is_as_if_nothing_was_said() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 3)
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            node.refusals.append(ConflictError("transaction x/1.1/5 holds it"))
            with pytest.raises(ConflictError, match=r"x/1\.1/5") as caught:
                async with client.transaction() as tx:
                    await tx.ack(delivery)
            assert caught.value.retryable
            async with client.transaction() as tx:
                await tx.ack(delivery)
        assert node.groups["s", "local/p0", "g"].floor == 1


@both
async def test_a_delivery_of_another_client_s_member_is_refused() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 1)
        async with (
            connect(f"hadron://{node.address}") as other,
            other.subscribe("s", group="g") as subscription,
        ):
            delivery = await subscription.__anext__()
            with pytest.raises(RequestError, match="a member of another client"):
                async with client.transaction() as tx:
                    await tx.ack(delivery)
            async with other.transaction() as tx:
                await tx.ack(delivery)


# --- trouble --------------------------------------------------------------------------------------


@both
async def test_who_goes_on_after_a_rollback_hears_of_it() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        with pytest.raises(ConflictError):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                await until(lambda: bool(node.open))
                node.roll_back(next(iter(node.open)), ConflictError("x/1.1/5 holds it"))
                await until(lambda: tx.state == "rolled back")
                with pytest.raises(ConflictError, match=r"x/1\.1/5"):
                    await tx.publish("s", b"b")
        assert node.values("s") == []


@both
async def test_a_lost_call_rolls_back_what_is_open() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        with pytest.raises(ConnectionLostError, match=r"was rolled back") as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                await until(lambda: bool(node.open))
                node.cut()
                await until(lambda: tx.state == "rolled back")
        assert caught.value.retryable
        assert node.values("s") == []
        async with client.transaction() as tx:
            await tx.publish("s", b"b")
        assert node.values("s") == [b"b"]


@both
async def test_a_commit_whose_answer_is_lost_is_asked_for() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.cut_after = 1
        async with client.transaction() as tx:
            await tx.publish("s", b"a")
        assert (tx.state, tx.receipts[0].offset) == ("committed", 0)
        node.cut_before = 1
        with pytest.raises(ConnectionLostError, match="was rolled back") as caught:
            async with client.transaction() as tx:
                await tx.publish("s", b"b")
        assert caught.value.retryable
        node.unknown, node.undecided = 1, 2
        async with client.transaction() as tx:
            await tx.publish("s", b"c")
        assert tx.receipts[0].offset == 1
        assert node.values("s") == [b"a", b"c"]
        assert all(final for _, final in node.asked)


@both
async def test_what_nobody_tells_in_time_is_unknown_and_may_be_asked_for_later() -> None:
    async with served(driver(), request_timeout_s=0.3) as (node, client):
        assert isinstance(node, FakeDriver)
        node.unknown, node.undecided = 1, 1_000
        with pytest.raises(CommitUnknownError, match="may or may not be committed") as caught:
            async with client.transaction() as tx:
                published = await tx.publish("s", b"a")
        assert caught.value.transaction == tx.id
        assert not caught.value.retryable
        assert published.receipt is None
        assert (await client.outcome(caught.value.transaction)).state == "open"
        node.undecided = 0
        outcome = await client.outcome(caught.value.transaction)
        assert outcome.is_committed
        assert [(each.stream, each.base_offset) for each in outcome.receipts] == [("s", 0)]
        assert published.receipt is not None
        assert tx.state == "committed"
        # The client does not remember it any more; the driver does, and who holds it.
        assert await client.outcome(caught.value.transaction) == outcome
        with pytest.raises(RequestError, match="is not a transaction's id"):
            await client.outcome("nonsense")
        assert (await client.outcome("local/p0/1.1/99")).state == "aborted"


@both
async def test_receipts_of_an_outcome_name_the_streams_while_the_program_holds_it() -> None:
    async with served(driver(partitions=TWO)) as (node, client):
        async with client.transaction() as tx:
            await tx.publish("s", b"a", partition=TWO[0])
            await tx.publish_many("t", [b"b", b"c"], partition=TWO[1])
        assert tx.id is not None
        outcome = await client.outcome(tx.id)
        assert [(each.stream, each.partition, each.count) for each in outcome.receipts] == [
            ("s", TWO[0], 1),
            ("t", TWO[1], 2),
        ]
        assert [each.offset for each in tx.receipts] == [0, 0, 1]
        async with connect(f"hadron://{node.address}") as other:
            theirs = await other.outcome(tx.id)
        assert sorted((each.stream, each.partition) for each in theirs.receipts) == [
            ("", TWO[0]),
            ("", TWO[1]),
        ]


@both
async def test_what_is_committed_or_may_be_is_not_rolled_back() -> None:
    async with served(driver(), request_timeout_s=0.3) as (node, client):
        assert isinstance(node, FakeDriver)
        async with client.transaction() as tx:
            await tx.publish("s", b"a")
            await tx.commit()
            with pytest.raises(ClosedError, match=r"is committed: local/p0/1\.1/"):
                await tx.rollback()
        with pytest.raises(ClosedError, match="is committed"):
            await tx.rollback()
        async with client.transaction() as tx:
            await tx.publish("s", b"b")
            await tx.rollback()
            await tx.rollback()
        await tx.rollback()
        node.unknown, node.undecided = 1, 1_000
        with pytest.raises(CommitUnknownError):
            async with client.transaction() as tx:
                await tx.publish("s", b"c")
        with pytest.raises(CommitUnknownError, match="may or may not be committed"):
            await tx.rollback()


@pytest.mark.long
@both
async def test_a_commit_does_not_wait_for_a_participant_that_is_away() -> None:
    async with served(driver(partitions=TWO)) as (node, client):
        assert isinstance(node, FakeDriver)
        node.unknown, node.unfinished = 1, [TWO[1]]
        async with client.transaction() as tx:
            await tx.publish("s", b"a", partition=TWO[0])
            late = await tx.publish("s", b"b", partition=TWO[1])
        assert tx.state == "committed"
        assert late.receipt is None
        assert [each.partition for each in tx.receipts] == [TWO[0]]


@both
async def test_a_silent_driver_is_given_up() -> None:
    async with served(driver(), request_timeout_s=1.0) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver_call, "_WATCH_S", 0.05)
            with pytest.raises(ConnectionLostError, match="did not answer"):
                async with client.transaction() as tx:
                    await tx.publish("s", b"a")


@both
async def test_sets_that_did_not_answer_the_driver_are_named_beside_it() -> None:
    async with served(driver(partitions=TWO), request_timeout_s=1.0) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver_call, "_WATCH_S", 0.05)
            words = f"{TWO[0]} did not answer for 1 s, or {TWO[1]} did not answer it"
            with pytest.raises(ConnectionLostError, match=words):  # noqa: PT012
                async with client.transaction() as tx:
                    await tx.publish("s", b"a", partition=TWO[0])
                    await tx.publish("s", b"b", partition=TWO[1])


@both
async def test_who_gives_up_waiting_for_a_commit_hears_of_it_at_the_end_of_the_block() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        with pytest.raises(CommitUnknownError, match="nobody waited") as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                with anyio.move_on_after(0.05):
                    await tx.commit()
                assert tx.state == "not known to be committed or not"
        assert caught.value.transaction == tx.id


@both
async def test_who_gives_up_before_its_commit_was_said_has_committed_nothing() -> None:
    """Its driver cannot be asked yet: the end of the block must not commit what was given up."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        waiting: list[Any] = []
        give_block = node.give_block
        node.give_block = waiting.append  # type: ignore[assignment, method-assign]
        with pytest.raises(RequestError, match="commit was cancelled before"):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                with anyio.move_on_after(0.1) as scope:
                    await tx.commit()
                assert scope.cancelled_caught
                assert tx.state == "rolled back"
                node.give_block = give_block  # type: ignore[method-assign]
                for each in waiting:
                    give_block(each)
        async with client.transaction() as tx:
            await tx.publish("s", b"b")
        assert node.values("s") == [b"b"]


@both
async def test_who_gives_up_while_its_outcome_is_asked_for_hears_the_same() -> None:
    """The call was lost; that error says that nothing was done, and that it may be tried again."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.unknown, node.undecided = 1, 1_000
        with pytest.raises(CommitUnknownError, match="nobody waited") as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                with anyio.move_on_after(0.3):
                    await tx.commit()
                assert node.asked
        assert caught.value.transaction == tx.id
        node.undecided = 0
        assert (await client.outcome(caught.value.transaction)).is_committed
        assert tx.state == "committed", "it is remembered"


def test_who_gives_up_in_the_moment_of_the_answer_has_committed() -> None:
    """The answer and the end of its patience come in one turn of asyncio's loop."""

    async def scene() -> None:
        async with served(driver()) as (node, client):
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
                committing = asyncio.ensure_future(tx.commit())
                end = Work._end

                def end_and_cancel(work: Work, *given: Any) -> None:
                    end(work, *given)
                    committing.cancel()

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Work, "_end", end_and_cancel)
                    with pytest.raises(asyncio.CancelledError):
                        await committing
            assert tx.state == "committed"
            assert node.values("s") == [b"a"]

    anyio.run(scene, backend="asyncio")


@pytest.mark.long
@both
async def test_many_that_wait_are_all_asked_for_in_time() -> None:
    """A driver that answers nothing owes as much to the last of them as to the first."""
    async with served(driver(), request_timeout_s=2.0) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        ended: list[ConnectionLostError] = []

        async def one() -> None:
            with pytest.raises(ConnectionLostError, match="did not answer") as caught:
                async with client.transaction() as tx:
                    await tx.publish("s", b"a")
            ended.append(caught.value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver_call, "_WATCH_S", 0.2)
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(one)
        assert len(ended) == 100


@both
async def test_a_cancelled_commit_leaves_the_rest_working() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        with anyio.move_on_after(0.1):
            async with client.transaction() as tx:
                await tx.publish("s", b"a")
        assert tx.state == "not known to be committed or not"
        node.release()
        async with client.transaction() as tx:
            await tx.publish("s", b"b")
        assert node.values("s") == [b"a", b"b"]


@both
async def test_several_tasks_may_fill_it_until_one_ends_it() -> None:
    async with served(driver()) as (node, client):
        async with client.transaction() as tx, anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(tx.publish, "s", b"%d" % number)
        assert len(node.values("s")) == 20
        with pytest.raises(ClosedError, match=r"is committed: local/p0/1\.1/"):
            await tx.publish("s", b"late")
        with pytest.raises(ClosedError, match="is committed"):
            await tx.commit()


@both
async def test_closing_the_client_ends_it() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        node.hold = True
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                async with client.transaction() as tx:
                    await tx.publish("s", b"a")

            outcome = await start(tasks, work)
            await until(lambda: bool(node.waiting))
            await client.close()
            await until(lambda: bool(outcome))
        assert isinstance(outcome[0], CommitUnknownError)


# --- people ---------------------------------------------------------------------------------------


@both
async def test_listing_and_resolving() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        async with client.transaction() as one, client.transaction() as two:
            await one.publish("s", b"a")
            await two.publish("s", b"b")
            await until(lambda: len(node.open) == 2)
            listed = await client.transactions()
            assert [each.transaction for each in listed] == sorted(filter(None, (one.id, two.id)))
            assert (listed[0].phase, listed[0].age_s, listed[0].is_driver) == ("open", 1.5, True)
            assert one.id is not None
            await client.resolve_transaction(one.id)
            await client.resolve_transaction(one.id, "give_up", participant="local/p0")
            with pytest.raises(RequestError, match="'roll_back' has no participant"):
                await client.resolve_transaction(one.id, participant="local/p0")
            with pytest.raises(RequestError, match="'force_abort' needs a participant"):
                await client.resolve_transaction(one.id, "force_abort")
            with pytest.raises(NotFoundError, match="local/p9"):
                await client.transactions("local/p9")
        assert [each.act for each in node.resolved] == [1, 2]
