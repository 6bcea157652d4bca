"""Records that their producers have damaged: every door says that they are there."""

from __future__ import annotations

import base64
import json

import httpx

from hadron.doors.damage import told_raw
from hadron.doors.http.bodies import CE_BATCH, CE_JSON
from hadron.doors.http.tests.support import NDJSON
from hadron.doors.http.tests.test_groups import poll
from hadron.doors.http.tests.test_reading import RECORDS
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record_batch import decode_batch
from hadron.model.tests import poison
from hadron.node.tests.support import PRODUCE
from hadron.testing.nodes import Nodes
from hadron.wire.messages import streams_pb2

WHOLE = poison.INSIDE["headers out of order"]
SINGLE = poison.SINGLE["text that is none"]


async def fill(nodes: Nodes, http: httpx.AsyncClient) -> None:
    """Offsets 0 to 2 are of a batch that cannot be taken apart, 4 is a value that is no text."""
    async with nodes.connection("n1") as connection:
        for data in (WHOLE, SINGLE):
            await connection.request(PRODUCE, streams_pb2.ProduceRequest(stream="s"), [data])
    assert (await http.post("/v1/streams/s", content=b"6", headers=NDJSON)).status_code == 200


async def test_records_say_what_damages_them_and_have_their_bytes(
    http: httpx.AsyncClient, nodes: Nodes
) -> None:
    await fill(nodes, http)
    body = decode_batch(WHOLE).raw
    for accept in ("application/json", "application/x-ndjson"):
        answer = await http.get(RECORDS, headers={"accept": accept})
        told = (
            answer.json()["records"]
            if accept == "application/json"
            else [json.loads(line) for line in answer.text.splitlines()]
        )
        assert [bool(each.get("damage")) for each in told] == [1, 1, 1, 0, 1, 0, 0]
        # A body that all of them share is told once.
        raw = [base64.b64decode(each.get("raw_base64", "")) for each in told]
        assert raw == [body, b"", b"", b"", b"\xff\xfe", b"", b""]
    one = (await http.get(f"{RECORDS}/1")).json()
    assert base64.b64decode(one["raw_base64"]) == body


async def test_members_of_groups_get_them_too(http: httpx.AsyncClient, nodes: Nodes) -> None:
    await fill(nodes, http)
    first, *_ = await poll(http, start="earliest")
    assert first["damage"]
    assert base64.b64decode(first["raw_base64"]) == decode_batch(WHOLE).raw


async def test_events_tell_how_many_are_passed_over(http: httpx.AsyncClient, nodes: Nodes) -> None:
    await fill(nodes, http)
    batch = {"accept": CE_BATCH}
    answer = await http.get(RECORDS, headers=batch)
    assert answer.headers["hadron-passed-over"] == "4"
    assert len(answer.json()) == 3
    only = await http.get(RECORDS, params={"limit": 2}, headers=batch)
    assert (only.json(), only.headers["hadron-passed-over"]) == ([], "2")
    assert only.headers["hadron-next"] == "local/p0:2"
    good = await http.get(RECORDS, params={"from": "5"}, headers=batch)
    assert "hadron-passed-over" not in good.headers
    one = await http.get(f"{RECORDS}/0", headers={"accept": CE_JSON})
    assert one.status_code == 422
    assert "raw_base64" in one.json()["hint"]
    assert "record.raw" not in one.text


def test_no_more_of_it_is_told_than_a_record_may_have() -> None:
    first, second, _ = decode_batch(poison.batch(packed=b"\xc1" * (3 << 20))).records()
    assert first.damage
    assert len(first.raw) > MAX_RECORD_BYTES == len(told_raw(first))
    assert (told_raw(second), told_raw(second, alone=True)) == (b"", told_raw(first))
