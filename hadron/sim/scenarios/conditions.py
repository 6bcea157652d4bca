"""PROTOCOL D: records that are logged under a condition, once under a key, or by a producer with a
name."""

from __future__ import annotations

from hadron.client.terms.results import BatchReceipt
from hadron.model.batch import producer_id_of
from hadron.model.errors import HadronError, KeyReusedError, ProducerFencedError
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.names import send_numbered
from hadron.sim.evidence.history import Publish
from hadron.sim.scenarios.play import Play, scenario

_PRODUCER = b"a producer's id."
_NAME = "billing-3"


@scenario("D5: what was logged is not asked again whether it may be")
async def condition_of_a_record_that_was_logged(play: Play) -> None:
    """A record is logged at the offset that it expects, and the leader is killed, or loses its
    disk; its producer, which has no answer for all that it knows, sends it again."""
    world = play.world
    for number in range(3):
        first = await play.produce(
            str(number), producer=_PRODUCER, sequence=number, expect_offset=2 * number
        )
        await play.produce(f"other {number}")
        if number % 2:
            await play.lose("n1")
        else:
            await world.crash("n1", power=True)
        await world.start("n1")
        await world.wait_serving()
        again = await play.produce(
            str(number), producer=_PRODUCER, sequence=number, expect_offset=2 * number, again=first
        )
        if again.outcome != "ok" or not again.duplicate:
            raise AssertionError(f"what was logged is sent again: {again.outcome}")
        await world.wait_in_step()


@scenario("D5: a refusal is of what is committed")
async def refusal_by_an_uncommitted_record(play: Play) -> None:
    """A record is on n1's disk alone, where another expects to be. Then n1 loses its disk, and the
    record with it: nobody may have been told that it was there."""
    world = play.world
    await play.produce("0")
    await world.wait_in_step()
    play.part("n1")
    await play.produce("X", timeout_s=1.0)
    told = await play.produce("Y", expect_offset=1, timeout_s=1.0)
    if told.outcome == "refused":
        raise AssertionError("a record was refused for one that is not committed")
    await play.lose("n1")
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()
    if (await play.produce("Z", expect_offset=1)).runs != [(1, 1)]:
        raise AssertionError("there is something at the offset")


@scenario("D6: a name is one producer's, wherever its set goes on")
async def zombie_of_a_named_producer(play: Play) -> None:
    """A program with a name is silent for a while, and another one takes the name. The leader is
    killed, or loses its disk; then the first one writes, under each epoch and sequence that it has
    had."""
    world = play.world
    zombies: list[tuple[int, int]] = []
    for number in range(4):
        async with world.client("c1") as client, client.producer(STREAM, name=_NAME) as producer:
            operation = play.history.publish("c1", "", STREAM, world.config.name, (f"of {number}",))
            await send_numbered(producer, f"of {number}", number)
            play.history.unknown(operation, "not what this is about")
            claim = producer._publisher._router.senders[0].accumulator.claim
            assert claim is not None
            epoch = claim.identity.epoch
        if number % 2:
            await play.lose("n1")
        else:
            await world.crash("n1", power=True)
        await world.start("n1")
        await world.wait_serving()
        for old_epoch, sequence in zombies:
            told = await play.produce(
                f"zombie {number} {old_epoch} {sequence}",
                producer=producer_id_of(_NAME),
                epoch=old_epoch,
                sequence=sequence,
            )
            if told.outcome == "ok":
                raise AssertionError(f"a zombie has written at {told.runs}")
        zombies += [(epoch, sequence) for sequence in range(3)]
        await world.wait_in_step()


@scenario("D6: a claim that comes late shuts nobody out")
async def claim_that_comes_late(play: Play) -> None:
    """Two programs ask who has a name, and one of them claims it. What the other one sends then,
    from before, must not shut it out; nor what the first one sends once more."""
    world = play.world
    async with world.client("c1") as client, client.producer(STREAM, name=_NAME):
        pass
    before = await play.claim(_NAME)
    late = await play.claim(_NAME, after=before, token=b"first")
    async with world.client("c2") as client, client.producer(STREAM, name=_NAME) as producer:
        operation = play.history.publish("c2", "", STREAM, world.config.name, ("alive",))
        for after, token in ((before, b"second"), (before, b"first"), (late, b"late")):
            try:
                await play.claim(_NAME, after=after, token=token)
            except ProducerFencedError:
                continue
            raise AssertionError(f"the claim {token!r} came late, and was heard")
        try:
            await producer.send("alive", sequence=1)
        except HadronError as error:
            raise AssertionError(f"who has the name is shut out: {error}") from error
        play.history.unknown(operation, "not what this is about")


@scenario("D7: what is sent again under a key is logged once, whoever sends it, and whoever leads")
async def key_that_is_sent_again(play: Play) -> None:
    """Requests are sent under keys of their own, some of them by a leader that cannot have them
    committed; it is killed, or loses its disk. Somebody else sends them all again, then with
    another content."""
    world = play.world
    sent: dict[str, tuple[Publish, BatchReceipt]] = {}
    for turn in range(4):
        requests = [(f"k{turn}.{number}", f"order {turn}.{number}") for number in range(3)]
        for key, value in requests:
            operation = play.history.publish(
                "c1", "", STREAM, world.config.name, (value, f"{value}, more")
            )
            cut = key.endswith("2")
            if cut:
                play.part("n1")
            receipt = await _send_once(play, operation, key, "c1", timeout_s=1.0 if cut else 30.0)
            sent[key] = operation, receipt or await _again(play, operation, key, turn)
        await world.wait_in_step()
    for key, (operation, receipt) in sent.items():
        told = await _send_once(play, operation, key, "c3")
        assert told is not None
        if (told.base_offset, told.duplicate) != (receipt.base_offset, True):
            raise AssertionError(f"{key} is at {receipt.base_offset}, and now at {told}")
        async with world.client("c3") as client:
            for other in ([f"instead of {key}", "more"], [operation.values[0]]):
                try:
                    logged = await client.send_once(STREAM, other, key=key)
                except KeyReusedError:
                    continue
                raise AssertionError(f"{key} was taken for {other}: {logged}")


async def _again(play: Play, operation: Publish, key: str, turn: int) -> BatchReceipt:
    """Its first sender was not answered, and the leader goes."""
    world = play.world
    if turn % 2:
        await play.lose("n1")
    else:
        await world.crash("n1", power=True)
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()
    receipt = await _send_once(play, operation, key, "c2")
    assert receipt is not None
    return receipt


async def _send_once(
    play: Play, operation: Publish, key: str, host: str, *, timeout_s: float = 30.0
) -> BatchReceipt | None:
    """None when nobody has answered."""
    try:
        async with play.world.client(host, request_timeout_s=timeout_s) as client:
            (receipt,) = await client.send_once(STREAM, operation.values, key=key)
    except HadronError as error:
        play.history.unknown(operation, error)
        return None
    operation.runs = [(receipt.base_offset, receipt.count)]
    operation.duplicate = receipt.duplicate
    play.history.ok(operation)
    return receipt
