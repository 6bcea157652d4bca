"""PROTOCOL E2, E9: what a transaction was promised when it was prepared is so when it is finished,
whatever comes between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from hadron.model.errors import HadronError, OutcomeUnknownError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.names import COUNTS
from hadron.sim.actors.transactions import Noted
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.transaction_play import Transactor, transactor, until_prepared
from hadron.sim.world.regions import AMERICA, EUROPE

_ORDERS: Final = ("c", "p", "cp", "pc", "pp", "cpp", "ppc")
"""Records of a key that a transaction has, with a condition or plain."""

_GONE: Final = "gone"
_KEPT: Final = "kept"


@region_scenario("E9: a key that is held with a condition is held until the end")
async def keys_that_transactions_hold(play: RegionPlay) -> None:
    """A transaction has prepared records of a key, with a condition and plain, in each order; its
    driver takes its time. Others want to publish records of that key, with a condition and plain,
    alone and in transactions: what a condition relies on nobody changes, and none is taken for true
    while somebody may change it."""
    await _declare(play, COUNTS, keys="indexed")
    async with transactor(play) as client, transactor(play, "x2") as other:
        for number, order in enumerate(_ORDERS):
            key = f"key {number}"

            async def others(key: str = key, order: str = order) -> None:
                await until_prepared(play.america)
                for kind in "cp":
                    for driver in (EUROPE, AMERICA, None):
                        # What is logged at once finds its condition as it is.
                        is_held = "c" in order or (kind == "c" and driver == EUROPE)
                        is_there = await _publish(other, key, kind, driver)
                        if is_there and is_held:
                            raise AssertionError(f"{key} is held by {order}: {kind} of {driver}")

            records = [(COUNTS, key, kind) for kind in order]
            if not await _transact(client, records, EUROPE, pause=others):
                raise AssertionError(f"{order} of {key} was not committed")


@region_scenario("E2: of what is prepared, all that can be done is done", nodes=(1, 3, 1))
async def streams_deleted_while_intents_wait(play: RegionPlay) -> None:
    """A transaction has prepared records for several streams, of several statements each. One of
    the streams is deleted before it is committed; the others get theirs, whole, and none of
    another's."""
    async with transactor(play) as client:
        for number in range(4):
            names = [f"{_GONE}{number}", f"{_KEPT}{number}"]
            for name in names:
                await _declare(play, name)

            async def delete(name: str = names[0]) -> None:
                await until_prepared(play.america)
                await play.delete(name)
                await play.regions.wait_same_schema()

            there = names if number % 2 else names[::-1]
            records = [(name, f"{index}", "p") for index in range(3) for name in (*there, *there)]
            if not await _transact(client, records, EUROPE, pause=delete):
                raise AssertionError("what was prepared was not committed")
            found = [each.value async for each in client.client.read(names[1], partition=AMERICA)]
            if len(found) != len(records) // 2:
                raise AssertionError(f"of {len(records) // 2} records {found} are there")


async def _declare(play: RegionPlay, name: str, keys: str = "") -> None:
    spec = StreamSpec(partitions=(EUROPE, AMERICA), keys=keys)
    assert await play.change([SchemaObject(kind="Stream", name=name, spec=spec)])
    await play.regions.wait_same_schema()


async def _transact(
    client: Transactor,
    records: Sequence[tuple[str, str, str]],
    driver: str,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Publish records in America, each of a stream, a key and a kind; whether that is committed."""
    noted: Noted | None = None
    try:
        async with client.client.transaction(driver=driver) as tx:
            noted = Noted(client.play.history, client.host, tx._work)
            try:
                for stream, key, kind in records:
                    value = client.value()
                    given = await tx.publish(
                        stream, value, key=key, partition=AMERICA, expect_key_offset=_expects(kind)
                    )
                    noted.published(stream, AMERICA, value, given)
                if pause is not None:
                    await pause()
                noted.asks()
                await tx.commit()
            finally:
                noted.end()
    except HadronError as error:
        client.play.regions.trace.log(f"{client.host}: {error}")
    assert noted is not None
    await client.until_known(noted)
    return noted.operation.told == ["committed"]


async def _publish(client: Transactor, key: str, kind: str, driver: str | None) -> bool:
    """One record in America, alone where there is no driver; whether it is there."""
    if driver is not None:
        return await _transact(client, [(COUNTS, key, kind)], driver)
    value = client.value()
    operation = client.play.history.publish(client.host, "", COUNTS, AMERICA, [value])
    async with client.client.producer(COUNTS, delivery_timeout_s=1.0) as producer:
        try:
            receipt = await producer.send(
                value, key=key, partition=AMERICA, expect_key_offset=_expects(kind)
            )
        except OutcomeUnknownError as error:
            client.play.history.unknown(operation, error)
            return False
        except HadronError as error:
            client.play.history.refused(operation, error)
            return False
    operation.partition, operation.runs = receipt.partition, [(receipt.offset, 1)]
    client.play.history.ok(operation)
    return True


def _expects(kind: str) -> int | None:
    return -1 if kind == "c" else None
