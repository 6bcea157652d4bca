"""Replica sets behind the fault proxy: what cuts between them do, from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import hadron
from hadron.client import Client
from hadron.client.client import nodes_of
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.fleet import FaultyFleet
from hadron.wire.messages import method, schema_pb2

META, EU = "meta", "eu/p0"


@pytest.mark.long
async def test_a_set_is_cut_off_from_another_and_from_a_client(tmp_path: Path) -> None:
    with FaultyFleet(tmp_path, {META: 1, EU: 1}, durability="os", clients=("c1",)) as fleet:
        assert set(fleet.routes(EU)) == {fleet[META].address("n1")}
        assert set(fleet.routes("c1")) == {fleet[each].address("n1") for each in fleet}
        async with (
            hadron.connect(fleet.url, ports=fleet.ports("anybody")) as client,
            hadron.connect(
                fleet.url, ports=fleet.ports("c1"), connect_timeout_s=0.5, request_timeout_s=0.5
            ) as cut_off,
        ):
            await wait_index(client, fleet[EU].address("n1"), await declare(client, "first"))
            fleet.cut(EU, META)
            index = await declare(client, "second")
            with pytest.raises(HadronError):
                await wait_index(client, fleet[EU].address("n1"), index, 0.3)
            async with client.producer("first", partition=EU) as producer:
                await producer.send(b"a")
            # The metadata set's node would carry it there, but cannot reach it either.
            fleet.cut("c1", EU)
            with pytest.raises(HadronError):
                await cut_off.offsets("first")
            fleet.heal_all()
            await wait_index(client, fleet[EU].address("n1"), index)
            with trio.fail_after(30):
                # It notices the healing by trying.
                while True:
                    try:
                        assert (await cut_off.offsets("first"))[0].next_offset == 1
                    except HadronError:
                        continue
                    break


async def declare(client: Client, name: str) -> int:
    """Declare a stream on `EU`; returns the metadata index after it."""
    spec = StreamSpec(partitions=(EU,))
    applied = await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])
    return applied.metadata_index


async def wait_index(client: Client, address: str, index: int, within_s: float = 30) -> None:
    """Until a node stands at `index`. Raises `MetadataBehindError`."""
    connection = await nodes_of(client).connect(address)
    await connection.request(
        method("GetObjects"),
        schema_pb2.GetObjectsRequest(min_index=index, max_wait_ms=round(within_s * 1_000)),
    )
