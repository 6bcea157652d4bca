"""Transactions over whole nodes: statements on several replica sets, all of them done or none."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import (
    ConnectionLostError,
    FrameError,
    HadronError,
    NotFoundError,
    NotReadyError,
    RequestError,
    UnreachableError,
)
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import TransactionId
from hadron.node.tests.transacting import (
    Act,
    Breaker,
    End,
    RawClient,
    State,
    acknowledge,
    all_over,
    committed,
    driving,
    eventually,
    led_by,
    listed,
    outcome,
    publish,
    resolve,
    rows,
    subscribed,
)
from hadron.partition.controller import Controller
from hadron.state.machine import Command
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import FinishTransaction, ForgetTransactions, WriteIntents
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.connection import Connection
from hadron.wire.messages import Method, method, streams_pb2, transaction_to, transactions_pb2

META, EU, US = "meta", "eu/p0", "us/p0"
SETS = {META: 1, EU: 1, US: 1}


async def make_streams(cluster: Cluster) -> dict[str, int]:
    """A stream on each set; returns their ids, which all of them know."""
    async with cluster.client() as client:
        await client.apply(
            [
                SchemaObject(kind="Stream", name=_name(each), spec=StreamSpec(partitions=(each,)))
                for each in (EU, US)
            ]
        )
        for each in (EU, US):
            async with client.producer(_name(each)) as producer:
                await producer.send(b"before")
        return {each: (await client.stream(_name(each))).id for each in (EU, US)}


def _name(replica_set: str) -> str:
    return f"on-{replica_set[:2]}"


async def values(cluster: Cluster, replica_set: str) -> list[Any]:
    """All that can be read there, but for the first record."""
    async with cluster.client("reader") as client:
        return [record.value async for record in client.read(_name(replica_set))][1:]


async def until_over(cluster: Cluster, *sets: str) -> None:
    """Nothing of any transaction is left but what drivers remember."""
    names = sets or (EU, US)
    await cluster.wait_for("no intent, lock or participation", lambda: all_over(cluster, names))


# --- what they do ---------------------------------------------------------------------------------


async def test_all_of_it_is_done_where_the_receipts_say(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            done = await client.commit(
                publish(EU, ids[EU], b"a", b"b"),
                publish(US, ids[US], b"c"),
                publish(EU, ids[EU], b"d"),
            )
            assert done == {EU: [1, 3], US: [1]}
            assert await values(cluster, EU) == [b"a", b"b", b"d"]
            assert await values(cluster, US) == [b"c"]
            # A set that neither drives nor takes part hears of nothing.
            assert rows(cluster, META, "participation") == 0
        await until_over(cluster)


async def test_one_set_alone_needs_one_entry(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            await client.number()
            before = cluster[EU].status("n1").last_lsn
            assert await client.commit(publish(EU, ids[EU], b"a"), publish(EU, ids[EU], b"b")) == {
                EU: [1, 2]
            }
            assert cluster[EU].status("n1").last_lsn == before + 1
            assert await client.commit() == {}


async def test_records_bring_their_keys_to_a_stream_with_an_index(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        spec = StreamSpec(partitions=(EU, US), keys="indexed")
        async with cluster.client() as client:
            await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
            stream_id = (await client.stream("s")).id
            for name in (EU, US):
                await client.offsets("s", partition=name)
            async with driving(cluster, EU) as driver:
                done = await driver.commit(
                    publish(EU, stream_id, b"a", key="k"), publish(US, stream_id, b"b", key="k")
                )
                assert done == {EU: [0], US: [0]}
            for name, value in ((EU, b"a"), (US, b"b")):
                found = await client.latest("s", "k", partition=name)
                assert found is not None
                assert found.value == value
        await until_over(cluster)


async def test_a_third_set_may_drive(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, META) as client:
            done = await client.commit(publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            assert done == {EU: [1], US: [1]}
            found = await outcome(cluster, client.id(client.block.first_number))
            assert found.state == State.COMMITTED
            assert {each.replica_set for each in found.results} == {EU, US}
        await until_over(cluster)


async def test_nothing_of_what_is_rolled_back_is_ever_read(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)
            assert await values(cluster, US) == []
            client.say(number, first=2, end=End.ROLLBACK)
            with pytest.raises(RequestError, match="its client has rolled it back"):
                committed(await client.answer(number))
            assert (await outcome(cluster, client.id(number))).state == State.ABORTED
            await until_over(cluster)
            assert await client.commit(publish(US, ids[US], b"c")) == {US: [1]}
        assert (await values(cluster, EU), await values(cluster, US)) == ([], [b"c"])


async def test_a_calls_end_is_the_end_of_what_it_did_not_commit(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)
        await until_over(cluster)
        assert (await outcome(cluster, client.id(number))).state == State.ABORTED
        assert (await values(cluster, EU), await values(cluster, US)) == ([], [])
        async with driving(cluster, EU) as another:
            # A number of a call that has ended counts for nothing.
            await another.number()
            another.say(number, publish(EU, ids[EU], b"a"), end=End.COMMIT)
            assert (await another.answer(number)).HasField("unfit")
        assert await values(cluster, EU) == []


async def test_what_is_refused_at_the_door_ends_its_transaction_only(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            open_one = await client.number()
            client.say(open_one, publish(EU, ids[EU], b"fine"))
            broken, batch = publish(US, ids[US], b"broken")
            batch = batch[:-1] + bytes([batch[-1] ^ 1])
            for refused in (
                publish(EU, 99, b"no such stream"),
                publish(US, 99, b"no such stream there"),
                # Of the other set.
                publish(US, ids[EU], b"elsewhere"),
                publish(EU, ids[US], b"elsewhere"),
                (broken, batch),
                publish("mars/p0", ids[EU], b"nowhere"),
            ):
                with pytest.raises(HadronError) as caught:
                    await client.commit(publish(EU, ids[EU], b"bad"), refused)
                assert caught.value.message
            client.say(open_one, publish(US, ids[US], b"fine too"), first=1, end=End.COMMIT)
            assert committed(await client.answer(open_one)) == {EU: [1], US: [1]}
        await until_over(cluster)
        assert await values(cluster, EU) == [b"fine"]
        assert await values(cluster, US) == [b"fine too"]


async def test_many_at_a_time_share_a_call_and_a_link(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        before = cluster.network.dials("eu-p0-n1", "us-p0-n1")
        async with driving(cluster, EU) as client:
            numbers = [await client.number() for _ in range(200)]
            for number in numbers:
                client.say(
                    number,
                    publish(EU, ids[EU], b"%d" % number),
                    publish(US, ids[US], b"%d" % number),
                    end=End.COMMIT,
                )
            done = {number: committed(await client.answer(number)) for number in numbers}
        await until_over(cluster)
        here, there = await values(cluster, EU), await values(cluster, US)
        assert len(here) == len(there) == 200
        for number, places in done.items():
            assert here[places[EU][0] - 1] == there[places[US][0] - 1] == b"%d" % number
        # Not one each. Some: while the disk is slow the clock jumps, and links are found silent.
        assert cluster.network.dials("eu-p0-n1", "us-p0-n1") <= before + 20


async def test_a_transaction_larger_than_a_frame(tmp_path: Path, clock: MockClock) -> None:
    """Several entries of intents there, and more than the deciding entry takes here."""
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        big = b"x" * 700_000
        async with driving(cluster, EU) as client:
            number = await client.number()
            for index in range(6):
                client.say(number, publish(US, ids[US], big), first=index)
            client.say(number, publish(EU, ids[EU], b"small"), first=6, end=End.COMMIT)
            done = committed(await client.answer(number))
        assert done == {EU: [1], US: [1, 2, 3, 4, 5, 6]}
        assert await values(cluster, US) == [big] * 6
        await until_over(cluster)


# --- acknowledgements -----------------------------------------------------------------------------


@pytest.mark.parametrize("home", [EU, US])
async def test_what_was_delivered_is_acknowledged_with_what_is_made_of_it(
    tmp_path: Path, clock: MockClock, home: str
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, home) as client, subscribed(cluster, EU, ids[EU]) as member:
            delivery = await member.delivery()
            done = await client.commit(
                acknowledge(EU, ids[EU], member.ballot, delivery),
                publish(US, ids[US], b"made of it"),
            )
            assert done == {EU: [-1], US: [1]}
            assert await member.floor(cluster) == 1
            # Nobody has it any more.
            with pytest.raises(RequestError):
                await client.commit(
                    acknowledge(EU, ids[EU], member.ballot, delivery),
                    publish(US, ids[US], b"made of it again"),
                )
        await until_over(cluster)
        assert await values(cluster, US) == [b"made of it"]


@pytest.mark.parametrize("home", [EU, US])
async def test_a_delivery_that_is_over_is_not_acknowledged(
    tmp_path: Path, clock: MockClock, home: str
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, home) as client:
            async with subscribed(cluster, EU, ids[EU]) as member:
                delivery = await member.delivery()
            async with subscribed(cluster, EU, ids[EU]) as other:
                again = await other.delivery()
                assert again.delivery > delivery.delivery
                with pytest.raises(RequestError, match=r"nobody holds|has no members"):
                    await client.commit(
                        acknowledge(EU, ids[EU], member.ballot, delivery),
                        publish(US, ids[US], b"of the first one"),
                    )
                await client.commit(
                    acknowledge(EU, ids[EU], other.ballot, again),
                    publish(US, ids[US], b"of the second one"),
                )
        await until_over(cluster)
        assert await values(cluster, US) == [b"of the second one"]


async def test_what_no_client_says_claims_nothing(tmp_path: Path, clock: MockClock) -> None:
    """The first part of a transaction ends in a way that is none: nobody would ever let go what it
    has claimed by then."""
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with subscribed(cluster, EU, ids[EU]) as member:
            delivery = await member.delivery()
            stated = acknowledge(EU, ids[EU], member.ballot, delivery)
            async with driving(cluster, EU) as client:
                number = await client.number()
                client.say(number, stated, end=99)
                with pytest.raises(FrameError, match="is no end of a transaction"):
                    await client.answer(number)
            async with driving(cluster, EU) as client:
                await client.commit(stated)


@pytest.mark.parametrize("home", [EU, US])
@pytest.mark.parametrize(("is_committed", "is_said"), [(False, False), (False, True), (True, True)])
async def test_what_a_transaction_acknowledges_is_given_to_nobody_meanwhile(
    tmp_path: Path, clock: MockClock, home: str, *, is_committed: bool, is_said: bool
) -> None:
    """Not even when its member goes, and before there is anything in the log. If it is rolled back
    it is delivered again, unless its member has acknowledged it as well."""
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with cluster.client("p") as producing, producing.producer(_name(EU)) as producer:
            await producer.send(b"another")
        async with driving(cluster, home) as client:
            async with subscribed(cluster, EU, ids[EU]) as member:
                delivery = await member.delivery()
                number = await client.number()
                client.say(number, acknowledge(EU, ids[EU], member.ballot, delivery))
                if home == US:
                    await cluster.wait_for("a lock", lambda: rows(cluster, EU, "lock") == 1)
                else:
                    await outcome(cluster, client.id(number), final=False)
                if is_said:
                    # Its member cannot end it either.
                    member.acknowledge(delivery)
                    assert await member.refused() == [delivery]
            async with subscribed(cluster, EU, ids[EU]) as other:
                following = await other.delivery()
                assert following.first_offset == 1
                with pytest.raises(HadronError, match=str(client.id(number))):
                    await client.commit(acknowledge(EU, ids[EU], other.ballot, delivery))
                end = End.COMMIT if is_committed else End.ROLLBACK
                client.say(number, first=1, end=end)
                await client.answer(number)
                other.acknowledge(following)
                assert await other.refused() == []
                if is_committed or is_said:
                    assert await other.floor(cluster) == 2
                else:
                    again = await other.delivery()
                    assert again.first_offset == 0
                    assert again.delivery > following.delivery
        await until_over(cluster)


async def test_a_connection_that_breaks_while_a_link_is_made(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link's call ends before it is there; the link is made anew, and nothing is lost."""
    broken: list[Connection] = []
    make = Connection.call

    def call(self: Connection, asked: Method, *args: Any, **options: Any) -> Any:
        made = make(self, asked, *args, **options)
        if asked.name == "Coordinate" and len(broken) < 2:
            broken.append(self)
            self.close(ConnectionLostError("it broke just then"))
        return made

    monkeypatch.setattr(Connection, "call", call)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            await client.commit(publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
        await until_over(cluster)
        assert len(broken) == 2
        assert await values(cluster, US) == [b"b"]


# --- leaders that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_logged", [False, True], ids=["before it is logged", "unheard"])
@pytest.mark.parametrize(
    ("who", "what"),
    [
        (US, WriteIntents),
        (EU, Decide),
        (US, FinishTransaction),
        (EU, NoteFinished),
        (US, ForgetTransactions),
    ],
)
async def test_a_leader_fails_at_each_step(
    tmp_path: Path,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    what: type[Command],
    *,
    is_logged: bool,
) -> None:
    """Whoever fails, and whether its last entry is there or not: all is done, or nothing."""
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            breaker.crash(cluster[who], "n1", at=what, is_logged=is_logged)
            client.say(
                number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"), end=End.COMMIT
            )
            await breaker.crashed()
            answer = None if who == EU else await _answer_after_restart(cluster, client, number)
        if who == EU:
            await cluster[EU].start("n1")
        await cluster.wait_serving(EU, US)
        found = await _final(cluster, client.id(number))
        if answer is not None:
            is_committed = answer.HasField("committed")
            assert is_committed == (found.state == State.COMMITTED)
        if what is Decide:
            assert found.state == (State.COMMITTED if is_logged else State.ABORTED)
        await until_over(cluster)
        done = found.state == State.COMMITTED
        assert done or found.state == State.ABORTED
        assert await values(cluster, EU) == ([b"a"] if done else [])
        assert await values(cluster, US) == ([b"b"] if done else [])
        if done:
            found = await outcome(cluster, client.id(number))
            assert {each.replica_set: each.results[0].base_offset for each in found.results} == {
                EU: 1,
                US: 1,
            }
            assert not found.unfinished
        async with driving(cluster, US) as client:
            await client.commit(publish(EU, ids[EU], b"c"), publish(US, ids[US], b"d"))
        await until_over(cluster)


async def test_a_prepare_that_is_sent_again_stands_whatever_became_of_its_group(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader where it acknowledges fails before it has answered; the group's member has gone
    with it, so what comes again could not be prepared now."""
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, US) as client:
            async with subscribed(cluster, EU, ids[EU]) as member:
                delivery = await member.delivery()
                number = await client.number()
                breaker.crash(cluster[EU], "n1", at=WriteIntents, is_logged=True)
                client.say(
                    number,
                    acknowledge(EU, ids[EU], member.ballot, delivery),
                    publish(US, ids[US], b"made of it"),
                    end=End.COMMIT,
                )
                await breaker.crashed()
            await cluster[EU].start("n1")
            await cluster.wait_serving(EU)
            assert committed(await client.answer(number)) == {EU: [-1], US: [1]}
        await until_over(cluster)
        assert await values(cluster, US) == [b"made of it"]
        async with subscribed(cluster, EU, ids[EU]) as member:
            assert await member.floor(cluster) == 1


async def _answer_after_restart(cluster: Cluster, client: RawClient, number: int) -> Any:
    await cluster[US].start("n1")
    return await client.answer(number)


async def _final(
    cluster: Cluster, transaction: TransactionId, connection: Connection | None = None
) -> Any:
    """What became of it, for good."""
    found: Any = None

    async def is_final() -> bool:
        nonlocal found
        found = await outcome(cluster, transaction, connection=connection)
        return bool(found.state != State.OPEN)

    await eventually("decided", is_final)
    return found


async def test_a_driver_goes_on_with_what_it_has_decided(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)
            # It has heard of the intent.
            await client.commit(publish(US, ids[US], b"first"))
            await cluster[US].crash()
            client.say(number, first=2, end=End.COMMIT)
            await cluster.wait_for("a decision", lambda: rows(cluster, EU, "decision") == 2)
            assert await values(cluster, EU) == [b"a"]
            await cluster[EU].restart("n1")
        await cluster[EU].wait_serving()
        found = await outcome(cluster, client.id(number))
        assert (found.state, list(found.unfinished)) == (State.COMMITTED, [US])
        await cluster.wait_for(
            "a word in the status", lambda: _tells(cluster, EU, f"{US} is to finish")
        )
        await cluster[US].start()
        await until_over(cluster)
        assert await values(cluster, US) == [b"first", b"b"]
        await cluster.wait_for("no word", lambda: not _tells(cluster, EU, f"{US} is to finish"))


def _tells(cluster: Cluster, replica_set: str, words: str) -> bool:
    return any(words in each for each in cluster[replica_set].status("n1").cluster_trouble)


async def test_a_participant_waits_for_its_driver_and_says_so(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(US, ids[US], b"a"))
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)
            await cluster[EU].crash()
        await cluster.wait_for(
            "a word in the status", lambda: _tells(cluster, US, f"{EU} is to decide")
        )
        assert rows(cluster, US, "intent") == 1
        await cluster[EU].start()
        await until_over(cluster)
        assert await values(cluster, US) == []
        await cluster.wait_for("no word", lambda: not _tells(cluster, US, f"of {EU} wait"))


@pytest.mark.long
async def test_nothing_is_called_aborted_by_a_leader_that_a_majority_has_left(
    tmp_path: Path, clock: MockClock
) -> None:
    """PROTOCOL E1."""
    async with running_cluster(tmp_path, {META: 1, EU: 3, US: 1}) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(US, ids[US], b"a"), first=0)
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)
        transaction = client.id(number)
        for other in ("n2", "n3"):
            cluster.network.cut("eu-p0-n1", f"eu-p0-{other}")
        with pytest.raises(HadronError):
            await outcome(cluster, transaction)
        cluster.network.heal_all()
        await cluster[EU].wait_serving()
        assert (await _final(cluster, transaction)).state == State.ABORTED
        await until_over(cluster)


@pytest.mark.long
@pytest.mark.parametrize("is_decided", [False, True])
async def test_a_driver_that_was_deposed(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_decided: bool
) -> None:
    """What it had decided is done by the next one; what it decides after that counts nowhere."""
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, {META: 1, EU: 3, US: 1}) as cluster:
        ids = await make_streams(cluster)
        nodes = cluster[EU]

        def isolate() -> None:
            others = [host for host in cluster.hosts() if host != "eu-p0-n1"]
            cluster.network.isolate("eu-p0-n1", *others)

        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            await client.commit(publish(US, ids[US], b"first"))
            if is_decided:
                breaker.call(Decide, isolate)
            else:
                isolate()
            client.say(number, first=2, end=End.COMMIT)
            if is_decided:
                await cluster.wait_for("a decision", lambda: rows(cluster, EU, "decision") == 2)
            config = led_by(nodes.config, "n2", epoch=2)
            nodes.configs |= dict.fromkeys(("n2", "n3"), config)
            nodes.config = config
            await nodes.restart("n2", "n3")
            await nodes.wait_serving()
            async with nodes.connection("n2") as connection:
                found = await _final(cluster, client.id(number), connection)
                assert found.state == (State.COMMITTED if is_decided else State.ABORTED)
            await cluster.wait_for("nothing left", lambda: all_over(cluster, (US,)))
            there = [b"first", b"b"] if is_decided else [b"first"]
            assert await values(cluster, US) == there
            cluster.network.heal_all()
            await cluster.wait_for("the client to hear", lambda: client.has_heard(number))
            if number in client.answers:
                assert client.answers[number].HasField("commit_unknown")
        nodes.configs["n1"] = config
        await nodes.restart("n1")
        await nodes.wait_in_step("n1", "n2", "n3")
        assert await values(cluster, US) == there
        assert await values(cluster, EU) == ([b"a"] if is_decided else [])


# --- the way between leaders ----------------------------------------------------------------------


@pytest.mark.long
async def test_a_way_that_is_cut_rolls_back_what_cannot_be_prepared(
    tmp_path: Path, clock: MockClock
) -> None:
    """What arrives after that is a copy that nobody wants, and goes."""
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            await client.commit(publish(US, ids[US], b"before the cut"))
            cluster.cut(cluster.hosts(EU), cluster.hosts(US))
            with pytest.raises(UnreachableError):
                await client.commit(publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"))
            cluster.network.heal_all()
            await client.commit(publish(EU, ids[EU], b"c"), publish(US, ids[US], b"d"))
        await until_over(cluster)
        assert await values(cluster, EU) == [b"c"]
        assert await values(cluster, US) == [b"before the cut", b"d"]


@pytest.mark.long
async def test_what_is_decided_is_done_once_the_way_is_back(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            breaker.call(Decide, lambda: cluster.cut(cluster.hosts(EU), cluster.hosts(US)))
            client.say(
                number, publish(EU, ids[EU], b"a"), publish(US, ids[US], b"b"), end=End.COMMIT
            )
            await cluster.wait_for("a decision", lambda: rows(cluster, EU, "decision") == 1)
            await trio.sleep(20)
            assert number not in client.answers
            assert await values(cluster, US) == []
            cluster.network.heal_all()
            assert committed(await client.answer(number)) == {EU: [1], US: [1]}
        await until_over(cluster)
        assert await values(cluster, US) == [b"b"]


@pytest.mark.long
async def test_others_go_on_while_one_set_is_away(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        await cluster[US].crash()
        async with driving(cluster, META) as client:
            lost = await client.number()
            client.say(lost, publish(US, ids[US], b"a"), publish(EU, ids[EU], b"a"), end=End.COMMIT)
            assert await client.commit(publish(EU, ids[EU], b"b")) == {EU: [1]}
            with pytest.raises(UnreachableError):
                committed(await client.answer(lost))
        assert await values(cluster, EU) == [b"b"]


async def test_who_speaks_for_another_set_is_cut_short(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        statement, batch = publish(EU, ids[EU], b"a")
        for transaction, error in (
            (TransactionId(META, 1, 1, 1), RequestError),
            (TransactionId("mars/p0", 1, 1, 1), NotReadyError),
        ):
            wired = transactions_pb2.TransactionMessage(transaction=transaction_to(transaction))
            wired.prepare.statements.add().CopyFrom(statement)
            request = transactions_pb2.CoordinateRequest(
                cluster="test",
                speaker=US if error is RequestError else "mars/p0",
                replica_set=EU,
                messages=[wired],
            )
            async with (
                cluster[EU].connection("n1") as connection,
                connection.open_stream(method("Coordinate"), request, [batch]) as call,
            ):
                with pytest.raises(error):
                    async for _ in call:
                        pass
        assert rows(cluster, EU, "intent") == 0


# --- asking, and operators ------------------------------------------------------------------------


async def test_outcomes(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"))
            transaction = client.id(number)
            looked = await outcome(cluster, transaction, final=False)
            assert looked.state == State.OPEN
            # Whoever asks for the last word has given it up.
            assert (await outcome(cluster, transaction)).state == State.ABORTED
            assert (await client.answer(number)).HasField("rolled_back")
            unused = client.id(number + 7)
            assert (await outcome(cluster, unused, final=False)).state == State.OPEN
            assert (await outcome(cluster, unused)).state == State.ABORTED
            client.say(unused.number, publish(EU, ids[EU], b"late"), end=End.COMMIT)
            assert (await client.answer(unused.number)).HasField("unfit")
        with pytest.raises(NotFoundError, match="ask us/p0"):
            await _ask_elsewhere(cluster, transaction._replace(replica_set=US))
        assert await values(cluster, EU) == []


async def _ask_elsewhere(cluster: Cluster, transaction: TransactionId) -> None:
    async with cluster[EU].connection("n1") as connection:
        await outcome(cluster, transaction, connection=connection)


async def test_lists_come_in_pages(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client, driving(cluster, US) as other:
            driven = [await client.number() for _ in range(5)]
            for number in driven:
                client.say(number, publish(EU, ids[EU], b"a"), publish(META, ids[EU], b""))
            for number in driven:
                # Nothing is on META, so that it has refused.
                await client.answer(number)
            driven = [await client.number() for _ in range(5)]
            for number in driven:
                client.say(number, publish(EU, ids[EU], b"a"))
            held = [await other.number() for _ in range(4)]
            for number in held:
                other.say(number, publish(EU, ids[EU], b"b"), publish(EU, ids[EU], b"c"))
            await cluster.wait_for("intents", lambda: rows(cluster, EU, "intent") == 4)
            for limit in (0, 1, 2, 5, 9):
                found = await listed(cluster, EU, limit=limit)
                assert [each.transaction.number for each in found] == [*driven, *held], limit
                assert [each.is_driver for each in found] == [True] * 5 + [False] * 4
                assert {each.phase for each in found} == {"open", "prepared"}
                assert [each.statements for each in found] == [1] * 5 + [2] * 4
        await until_over(cluster)


@pytest.mark.long
async def test_an_operator_ends_what_a_lost_driver_has_begun(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            aborted, forced = await client.number(), await client.number()
            client.say(aborted, publish(US, ids[US], b"a"))
            client.say(forced, publish(US, ids[US], b"b"))
            await cluster.wait_for("intents", lambda: rows(cluster, US, "intent") == 2)
            await cluster[EU].crash()
        await resolve(cluster, US, client.id(aborted), Act.FORCE_ABORT)
        await resolve(cluster, US, client.id(forced), Act.FORCE_COMMIT)
        with pytest.raises(NotFoundError):
            await resolve(cluster, US, client.id(aborted), Act.FORCE_ABORT)
        assert rows(cluster, US, "intent") == 0
        assert await values(cluster, US) == [b"b"]


@pytest.mark.long
async def test_what_was_committed_by_force_does_not_stay_for_ever(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its driver comes back without having decided it."""
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            torn = await client.number()
            client.say(torn, publish(US, ids[US], b"a"))
            await cluster.wait_for("intents", lambda: rows(cluster, US, "intent") == 1)
            await cluster[EU].crash()
        for _ in range(2):
            # An operator's client says it again when its answer was lost.
            await resolve(cluster, US, client.id(torn), Act.FORCE_COMMIT)
            assert [each.phase for each in await listed(cluster, US)] == ["finished"]
        with pytest.raises(RequestError, match="was committed"):
            await resolve(cluster, US, client.id(torn), Act.FORCE_ABORT)
        await cluster[EU].restart("n1")
        await cluster.wait_for("its driver", lambda: rows(cluster, US, "participation") == 0)
        assert f"transaction {client.id(torn)} is torn" in caplog.text
        assert await values(cluster, US) == [b"a"]


async def test_an_operator_rolls_back_or_gives_up_a_lost_set(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with driving(cluster, EU) as client:
            number = await client.number()
            client.say(number, publish(EU, ids[EU], b"a"))
            await resolve(cluster, EU, client.id(number), Act.ROLL_BACK)
            with pytest.raises(RequestError, match="an operator has rolled it back"):
                committed(await client.answer(number))
            number = await client.number()
            breaker.crash(cluster[US], "n1", at=FinishTransaction, is_logged=False)
            client.say(
                number, publish(EU, ids[EU], b"b"), publish(US, ids[US], b"c"), end=End.COMMIT
            )
            await breaker.crashed()
            with pytest.raises(RequestError):
                await resolve(cluster, EU, client.id(number), Act.ROLL_BACK)
            await resolve(cluster, EU, client.id(number), Act.GIVE_UP, US)
            answer = await client.answer(number)
            given_up = {each.replica_set: each for each in answer.committed.results}[US]
            assert [each.deleted for each in given_up.results] == [True]
        assert await values(cluster, EU) == [b"b"]
        await cluster[US].restart("n1")
        await cluster.wait_serving()
        with trio.fail_after(60):
            while await values(cluster, US) != [b"c"]:  # noqa: ASYNC110 - another node's stream
                await trio.sleep(0.1)


async def test_who_asks_for_outcomes_without_a_majority_keeps_nobody_from_reading(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await make_streams(cluster)
        # What was published is on the disk only, then, and a transaction of before is over.
        async with driving(cluster, EU) as client:
            transaction = client.id(await client.number())
        await cluster[EU].restart("n1")
        await cluster.wait_serving()
        asked = 0

        async def away(*_args: Any, **_options: Any) -> None:
            nonlocal asked
            asked += 1
            await trio.sleep_forever()

        monkeypatch.setattr(Controller, "confirm_leadership", away)
        async with (
            cluster[EU].connection("n1") as one,
            cluster[EU].connection("n1") as two,
            cluster[EU].connection("n1") as reader,
            trio.open_nursery() as nursery,
        ):
            for connection in (one, two) * 4:
                nursery.start_soon(partial(outcome, cluster, transaction, connection=connection))
            await cluster.wait_for("all ask", lambda: asked == 8)
            fetch = streams_pb2.FetchRequest(stream=_name(EU))
            _, records = await reader.request(method("Fetch"), fetch, timeout_s=1)
            assert records
            nursery.cancel_scope.cancel()
