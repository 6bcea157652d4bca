"""Records out."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import httpx
import pytest
import trio

from hadron.client.reading.tests.test_changed_streams import make_again, send
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import served
from hadron.doors.http import limits
from hadron.doors.http.reading import Source
from hadron.doors.http.tests.support import NDJSON, Events, http_of, until
from hadron.doors.http.tests.test_events import EVENTS
from hadron.model.errors import NotFoundError
from hadron.testing.nodes import Nodes

RECORDS = "/v1/streams/s/records"


async def fill(http: httpx.AsyncClient, count: int) -> None:
    text = b"\n".join(b"%d" % each for each in range(count))
    assert (await http.post("/v1/streams/s", content=text, headers=NDJSON)).status_code == 200


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, list(range(10))),
        ({"limit": 3}, [0, 1, 2]),
        ({"from": "8"}, [8, 9]),
        ({"from": "10"}, []),
        ({"from": "-2"}, [8, 9]),
        ({"from": "-100"}, list(range(10))),
        ({"from": "latest"}, []),
        ({"from": "@1"}, list(range(10))),
        ({"from": "-1h"}, list(range(10))),
        ({"from": "2100-01-01T00:00:00Z"}, []),
        ({"from": "local/p0:7"}, [7, 8, 9]),
        ({"partition": "local/p0", "from": "9"}, [9]),
    ],
)
async def test_from_where_to_where(
    http: httpx.AsyncClient, params: dict[str, Any], wanted: list[int]
) -> None:
    await fill(http, 10)
    for accept in ("application/json", "application/x-ndjson"):
        answer = await http.get(RECORDS, params=params, headers={"accept": accept})
        assert answer.status_code == 200, answer.text
        if accept == "application/json":
            assert [each["value"] for each in answer.json()["records"]] == wanted
        else:
            assert len(answer.text.splitlines()) == len(wanted)


@pytest.mark.parametrize("http2", [False, True])
async def test_a_head_alone_reads_nothing(
    nodes: Nodes, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, *, http2: bool
) -> None:
    await fill(http, 10)
    accept = {"accept": "application/x-ndjson"}
    with monkeypatch.context() as patched:
        patched.delattr(Source, "batches")
        async with http_of(nodes, "n1", http2=http2) as other:
            answer = await other.head(RECORDS, headers=accept)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"] == accept["accept"]
            answer = await other.head(RECORDS, params={"from": "11"}, headers=accept)
            assert answer.status_code == 416
    assert len((await http.get(RECORDS, headers=accept)).text.splitlines()) == 10


async def test_page_by_page(http: httpx.AsyncClient) -> None:
    await fill(http, 25)
    found, where = [], "earliest"
    while True:
        told = (await http.get(RECORDS, params={"from": where, "limit": 10})).json()
        if not told["records"]:
            break
        found += [each["value"] for each in told["records"]]
        where = told["next"]
    assert found == list(range(25))
    assert where == "local/p0:25"


async def test_a_large_answer_is_cut(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 1_000)
    await fill(http, 100)
    told = (await http.get(RECORDS)).json()
    assert 0 < len(told["records"]) < 100
    assert told["next"] == f"local/p0:{len(told['records'])}"


@pytest.mark.parametrize(
    ("params", "status", "said"),
    [
        ({"from": "11"}, 416, "no offset 11 in s/local/p0, which has offsets 0 to 9"),
        ({"from": "sooner"}, 400, "from='sooner' is no place"),
        ({"from": "local/p0:99"}, 416, "no offset 99 in"),
        ({"from": "local/p9:0"}, 404, "has no partition 'local/p9'"),
        ({"from": "local/p0:1,local/p0:2"}, 400, "is no place"),
        ({"from": "99999999999999999999"}, 400, "is no place"),
        ({"from": "@999999999999999"}, 400, "out of bounds"),
        ({"limit": "0"}, 400, "the parameter limit is '0', and has to be a whole number from 1 to"),
        ({"limit": str(limits.MAX_RECORDS + 1)}, 400, "is over"),
        ({"partition": "no/p0"}, 404, "no/p0"),
        ({"follow": "true"}, 400, "'follow' is no parameter"),
    ],
)
async def test_what_is_wrong_is_said(
    http: httpx.AsyncClient, params: dict[str, str], status: int, said: str
) -> None:
    await fill(http, 10)
    answer = await http.get(RECORDS, params=params)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]


async def test_what_is_accepted(http: httpx.AsyncClient) -> None:
    await fill(http, 1)
    for accept, wanted in (
        ("*/*", "application/json"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("text/html, application/*;q=0.5", "application/json"),
        ("application/json;q=0.1, application/x-ndjson", "application/x-ndjson"),
    ):
        answer = await http.get(RECORDS, headers={"accept": accept})
        assert answer.headers["content-type"] == wanted
    assert (await http.get(RECORDS, headers={"accept": "text/html"})).status_code == 406


async def test_one_record(http: httpx.AsyncClient) -> None:
    await http.post("/v1/streams/s", params={"type": "a.b", "key": "k"}, json={"x": 1})
    answer = await http.get(f"{RECORDS}/0")
    assert answer.json() == {"x": 1}
    assert answer.headers["ce-type"] == "a.b"
    told = (await http.get(f"{RECORDS}/0", headers={"accept": "application/json"})).json()
    assert (told["value"], told["key"]) == ({"x": 1}, "k")
    assert (await http.get(f"{RECORDS}/1")).status_code == 404
    assert (await http.get(f"{RECORDS}/2")).status_code == 416
    assert (await http.get(f"{RECORDS}/{1 << 64}")).status_code == 400
    answer = await http.head(f"{RECORDS}/0")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_an_offset_that_is_not_there_yet_is_told_with_those_that_are(
    http: httpx.AsyncClient,
) -> None:
    """From where to read on, one record alone, and a stream that has none."""
    for has, behind in (("none", 0), ("offset 0 alone", 1), ("offsets 0 to 1", 2)):
        for path, params in ((f"{RECORDS}/5", {}), (RECORDS, {"from": "5"})):
            told = (await http.get(path, params=params)).json()
            assert told["detail"] == f"there is no offset 5 in s/local/p0, which has {has}"
            assert f"the next record gets {behind}" in told["hint"]
        assert "from=latest" in told["hint"]
        assert "from=earliest" in told["hint"]
        assert (await http.post("/v1/streams/s", json=1)).status_code == 200


@pytest.mark.parametrize("offset", ["9" * 5_000, str(1 << 63), "-1", "x", "\u0663"])
async def test_what_is_no_offset_is_told_so(http: httpx.AsyncClient, offset: str) -> None:
    """5,000 digits were a defect of the node's."""
    answer = await http.get(f"{RECORDS}/{offset}")
    assert answer.status_code == 400
    assert "is no offset" in answer.json()["detail"]


@pytest.mark.parametrize("http2", [False, True])
async def test_a_head_says_no_length_that_is_not_known(
    http: httpx.AsyncClient, nodes: Nodes, *, http2: bool
) -> None:
    await fill(http, 3)
    async with http_of(nodes, "n1", http2=http2) as other:
        answer = await other.head(RECORDS, headers={"accept": "application/x-ndjson"})
        assert (answer.status_code, answer.content) == (200, b"")
        assert "content-length" not in answer.headers
        assert (await other.get(RECORDS)).status_code == 200


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/x-ndjson;q=0", 406),
        ("*/*;q=0", 406),
        ("application/*;q=0.5, application/json;q=0", "application/x-ndjson"),
        ("*/*, application/json;q=0.0", "application/x-ndjson"),
        ("application/*;q=0, application/json", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
    ],
)
async def test_what_is_refused_is_not_given(
    http: httpx.AsyncClient, accept: str, wanted: int | str
) -> None:
    answer = await http.get(RECORDS, headers={"accept": accept})
    media = answer.headers["content-type"]
    assert wanted == (media if answer.status_code == 200 else answer.status_code)


async def test_what_retention_has_dropped(http: httpx.AsyncClient, nodes: Nodes) -> None:
    """A reader hears of it; a follower is told what it has missed, and goes on."""
    await fill(http, 10)
    await http.post(
        "/v1/schema",
        json={
            "kind": "Stream",
            "name": "s",
            "partitions": ["local/p0"],
            "retention": {"max_bytes": "1KiB"},
        },
    )
    async with nodes.client() as client:
        first = 0
        with trio.fail_after(60):  # rounds of retention follow the clock, not what is sent
            while first <= 1:
                await client.send("s", b"x" * 600)
                await trio.sleep(0.01)
                first = (await client.offsets("s"))[0].first_offset
    answer = await http.get(RECORDS, params={"from": "1"})
    assert answer.status_code == 416
    assert "retention has dropped it" in answer.json()["hint"]
    follower = Events()
    follower.last_id = "local/p0:1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follow, http, EVENTS)
        await until("a record", lambda: bool(follower.data))
        nursery.cancel_scope.cancel()
    ((name, told),) = follower.others
    assert (name, told["partition"], told["from"]) == ("skipped", "local/p0", 1)
    assert follower.data[0]["offset"] == told["to"]


async def test_what_is_read_partition_after_partition_is_of_one_stream() -> None:
    """Another one had its name before the second of them was read (PROTOCOL D3)."""
    async with served(FakeNode(partitions=("a", "b"))) as (node, client):
        await send(client, "a", b"old")
        source = Source(client, "s", None, "earliest")
        await source.begin()
        async with aclosing(source.batches(None)) as batches:
            (record,) = await anext(batches)
            assert record.value == b"old"
            make_again(node)
            with pytest.raises(NotFoundError):
                await anext(batches)
