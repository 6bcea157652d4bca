"""Records in, by HTTP: whatever they are written as, and read back as what they were."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.client.producing import once
from hadron.doors import clients
from hadron.doors.http import bodies, limits, publishing
from hadron.doors.http.tests.support import NDJSON, http_of, nodes_with_doors, serving
from hadron.model import cloudevents
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record import NewRecord

STREAM = "/v1/streams/s"


async def values(http: httpx.AsyncClient) -> list[Any]:
    answer = await http.get(STREAM + "/records", params={"limit": 10_000})
    assert answer.status_code == 200, answer.text
    return [each.get("value", each.get("value_base64")) for each in answer.json()["records"]]


async def test_a_value_of_each_kind(http: httpx.AsyncClient) -> None:
    sent = [
        (b'{"a": 1.50, "b": [12345678901234567890]}', "application/json"),
        (b"plain", "text/plain; charset=utf-8"),
        (b"\x00\xff", "application/octet-stream"),
        (b"a=b", "application/x-www-form-urlencoded"),
        (b"\x89PNG", "image/png"),
        (b"null", "application/json"),
        (b'{"x":1}', "application/vnd.own+json"),
    ]
    for number, (body, media) in enumerate(sent):
        answer = await http.post(STREAM, content=body, headers={"content-type": media})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["stream"], told["partition"], told["offset"]) == ("s", "local/p0", number)
    for number, (body, media) in enumerate(sent):
        answer = await http.get(f"{STREAM}/records/{number}")
        assert answer.content == body
        wanted = "text/plain" if "form" in media else media.partition(";")[0]
        assert answer.headers["content-type"].partition(";")[0] == wanted
    answer = await http.get(STREAM + "/records")
    assert '{"a": 1.50, "b": [12345678901234567890]}' in answer.text, "numbers keep their digits"


async def test_what_a_record_has_besides_its_value(http: httpx.AsyncClient) -> None:
    given = {"key": "UA", "type": "flight.departed", "id": "f-1", "timestamp_ms": "17"}
    answer = await http.post(STREAM, params=given, json=1)
    assert answer.json()["id"] == "f-1"
    (record,) = (await http.get(STREAM + "/records")).json()["records"]
    assert (record["key"], record["type"], record["id"]) == ("UA", "flight.departed", "f-1")
    assert record["timestamp_ms"] == 17


async def test_ndjson_is_a_record_a_line(http: httpx.AsyncClient) -> None:
    text = b'{"n":1}\n\n"two"\r\n [3] \nnull'
    answer = await http.post(STREAM, content=text, headers=NDJSON)
    told = answer.json()
    assert told["count"] == 4
    assert told["partitions"] == [
        {"partition": "local/p0", "count": 4, "first_offset": 0, "last_offset": 3}
    ]
    assert await values(http) == [{"n": 1}, "two", [3], None]


async def test_ndjson_goes_while_it_comes(http: httpx.AsyncClient) -> None:
    """The first lines are in the log before the last one is sent; lines may be cut anywhere."""
    seen = trio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"n": 0}\n{"n"'
        while len(await values(http)) < 1:  # noqa: ASYNC110 - what is waited for is at the node
            await trio.sleep(0.01)
        seen.set()
        yield b': 1}\n{"n": 2}'

    answer = await http.post(STREAM, content=body(), headers=NDJSON)
    assert answer.json()["count"] == 3
    assert seen.is_set()
    assert [each["n"] for each in await values(http)] == [0, 1, 2]


async def test_much_ndjson_is_held_in_pieces(http: httpx.AsyncClient) -> None:
    lines = [b'{"n":%d,"pad":"%b"}' % (number, b"x" * 80) for number in range(40_000)]
    answer = await http.post(STREAM, content=b"\n".join(lines), headers=NDJSON)
    assert answer.json()["count"] == 40_000
    read = await http.get(STREAM + "/records", headers={"accept": "application/x-ndjson"})
    found = [json.loads(line)["value"]["n"] for line in read.text.splitlines()]
    assert found == list(range(40_000))


async def test_a_line_may_be_a_whole_record(http: httpx.AsyncClient) -> None:
    text = b'{"value":1,"key":"a","type":"b.c","headers":{"h":"x"}}\n{"value":"two"}\n'
    answer = await http.post(STREAM, params={"lines": "records"}, content=text, headers=NDJSON)
    assert answer.json()["count"] == 2
    first, second = (await http.get(STREAM + "/records")).json()["records"]
    assert (first["value"], first["key"], first["type"]) == (1, "a", "b.c")
    assert first["headers"] == {"h": "x"}
    assert second["value"] == "two"


@pytest.mark.parametrize(
    ("lines", "text", "said"),
    [
        ("values", b'1\n2\n{"a":}\n', "line 3 is no JSON"),
        ("values", b"1\n[2\n3]\n", "line 2 is no JSON"),
        ("values", b'1\n"\xff"\n', "line 2 is no JSON"),
        ("records", b'{"value":1}\n{"key":"a"}\n', "line 2: no record"),
        ("records", b'{"value":1}\n{"value":1,"extra":2}\n', "line 2: no record"),
        (
            "records",
            b'{"value":1,"key":[1,"a"]}\n',
            "line 1: no record: Expected `str | null`, got `array` - at `$.key`, which is [1, 'a']",
        ),
        (
            "records",
            b'{"value":1,"key":5,\n',
            "line 1: no record: Expected `str | null`, got `int` - at `$.key`",
        ),
        ("records", b'{"value":1}\n{"value":1,"type":"a b"}\n', "line 2: 'a b' is not a type"),
    ],
)
async def test_a_line_that_is_none_is_named(
    http: httpx.AsyncClient, lines: str, text: bytes, said: str
) -> None:
    answer = await http.post(STREAM, params={"lines": lines}, content=text, headers=NDJSON)
    problem = answer.json()
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["detail"].startswith(said)
    assert not problem["retryable"]
    assert problem["published"] == len(await values(http))


async def test_a_line_that_never_ends_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        STREAM, content=b"1\n" + b"2" * (limits.MAX_LINE_BYTES + 1), headers=NDJSON
    )
    assert answer.status_code == 413
    assert answer.json()["published"] == 1


@pytest.mark.parametrize(
    ("params", "headers", "body", "status", "said"),
    [
        ({}, {"content-type": "application/json"}, b"{", 400, "the body is no JSON"),
        ({}, {"content-type": "application/json"}, b"[" * 100_000, 400, "the body is no JSON"),
        ({}, {"content-type": "text/plain"}, b"\xff", 400, "no text in UTF-8"),
        ({}, {"content-type": "text/plain; charset=latin-1"}, b"a", 415, "the charset is"),
        ({"tpye": "x"}, {}, b"a", 400, "'tpye' is no parameter of this (did you mean 'type'?)"),
        ({"timestamp_ms": "soon"}, {}, b"a", 400, "is 'soon', and has to be a whole number"),
        ({"expect_offset": "-1"}, {}, b"a", 400, "has to be a whole number from 0 to 9223"),
        ({"partition": "none/p9"}, {}, b"a", 404, "has no partition 'none/p9'"),
        ({"namespace": "nowhere"}, {}, b"a", 404, "nowhere"),
        ({"namespace": "a b"}, {}, b"a", 400, "is not a valid name"),
        ({"type": "a b"}, {}, b"a", 400, "is not a type"),
        ({}, {"idempotency-key": "x" * 256}, b"a", 400, "the Idempotency-Key"),
        ({"key": "k"}, NDJSON, b"1", 400, "key 'k' is of one record"),
        ({}, {"content-encoding": "gzip"}, b"\x1f\x8b", 415, "in 'gzip' is not unpacked here"),
        ({"expect_offset": str(1 << 63)}, {}, b"a", 400, "the parameter expect_offset is '922"),
    ],
)
async def test_what_is_wrong_is_said(
    http: httpx.AsyncClient,
    params: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    status: int,
    said: str,
) -> None:
    answer = await http.post(STREAM, params=params, headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]
    assert await values(http) == []


async def test_a_key_that_is_no_text_is_shown(http: httpx.AsyncClient) -> None:
    answer = await http.post(f"{STREAM}?key=%ff", content=b"a")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("the query 'key=%ff' is no list of parameters")
    assert "percent-encoded" in answer.json()["hint"]


async def test_a_record_that_is_too_large(http: httpx.AsyncClient) -> None:
    answer = await http.post(STREAM, content=b"x" * (1 << 20))
    assert answer.status_code == 413
    assert answer.json()["code"] == "RecordTooLargeError"
    assert (await http.post(STREAM, content=b"small")).status_code == 200


async def test_conditions(http: httpx.AsyncClient) -> None:
    assert (await http.post(STREAM, params={"expect_offset": 0}, json=1)).status_code == 200
    answer = await http.post(STREAM, params={"expect_offset": 0}, json=2)
    problem = answer.json()
    assert (answer.status_code, problem["expected"], problem["actual"]) == (412, 0, 1)
    await http.put("/v1/streams/keyed", json={"keys": "indexed"})
    given = {"key": "a", "expect_key_offset": "-1"}
    assert (await http.post("/v1/streams/keyed", params=given, json=1)).status_code == 200
    assert (await http.post("/v1/streams/keyed", params=given, json=1)).status_code == 412


async def test_a_value_that_is_too_large_is_not_decoded(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB of it kept everybody waiting for a second, and were no record then."""
    monkeypatch.setattr(bodies, "json_of_body", never)
    monkeypatch.setattr(bodies, "_binary_event", never)
    for headers in ({}, {"ce-specversion": "1.0"}):
        headers = {"content-type": "application/json"} | headers
        answer = await http.post(STREAM, content=b"1" * (MAX_RECORD_BYTES + 1), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "RecordTooLargeError")


def never(*_args: Any) -> Any:
    raise AssertionError


async def turns(work: Callable[[], Awaitable[Any]]) -> int:
    """How often others go on while that is done."""
    count = 0

    async def go_on() -> None:
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        await work()
        nursery.cancel_scope.cancel()
    return count


@pytest.mark.parametrize("lines", ["values", "records"])
async def test_others_go_on_while_lines_become_records(lines: Any) -> None:
    body = b'{"value":1}\n' * 2_000
    query = publishing.PublishQuery(lines=lines)
    assert await turns(lambda: publishing._lines(body, query)) >= 40


async def test_others_go_on_while_events_become_records() -> None:
    event = b'{"specversion":"1.0","id":"1","source":"/","type":"a"}'
    body = b"[" + b",".join([event] * 2_000) + b"]"
    assert await turns(lambda: bodies.events_of(body)) >= 40


async def test_others_go_on_while_records_become_a_batch_that_is_sent_once() -> None:
    assert await turns(lambda: once._batch([NewRecord(1)] * 2_000, "k", 0)) >= 10


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/x-ndjson", b"1\n" * (limits.MAX_WHOLE_RECORDS + 1)),
        ("application/x-ndjson", b"\n" * (limits.MAX_WHOLE_RECORDS + 1)),
        (bodies.CE_BATCH, b"[" + b"{}," * limits.MAX_WHOLE_RECORDS + b"{}]"),
    ],
)
async def test_what_is_too_much_as_a_whole_is_refused_before_records_are_made(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, media: str, body: bytes
) -> None:
    """16 MiB of lines of two bytes took 1.5 GB, and nobody else had a turn for seconds."""
    monkeypatch.setattr(publishing, "_json_record", never)
    monkeypatch.setattr(cloudevents, "to_record", never)
    headers = {"idempotency-key": "k", "content-type": media}
    answer = await http.post(STREAM, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "RecordTooLargeError")


class TestOnce:
    async def test_a_key_is_logged_once(self, http: httpx.AsyncClient) -> None:
        headers = {"idempotency-key": "order-1"}
        first = (await http.post(STREAM, json={"n": 1}, headers=headers)).json()
        again = (await http.post(STREAM, json={"n": 1}, headers=headers)).json()
        assert again.pop("duplicate")
        assert again == first
        assert await values(http) == [{"n": 1}]

    async def test_a_quoted_key_is_the_same(self, http: httpx.AsyncClient) -> None:
        await http.post(STREAM, json=1, headers={"idempotency-key": "k"})
        again = await http.post(STREAM, json=1, headers={"idempotency-key": '"k"'})
        assert again.json()["duplicate"]

    @pytest.mark.parametrize("params", [{}, {"key": "other"}, {"type": "other"}])
    async def test_other_content_is_refused(
        self, http: httpx.AsyncClient, params: dict[str, str]
    ) -> None:
        headers = {"idempotency-key": "order-1"}
        await http.post(STREAM, json={"n": 1}, headers=headers)
        body = {"n": 1} if params else {"n": 2}
        answer = await http.post(STREAM, json=body, headers=headers, params=params)
        assert (answer.status_code, answer.json()["code"]) == (422, "KeyReusedError")
        assert await values(http) == [{"n": 1}]

    @pytest.mark.parametrize("media", ["text/plain", "application/x-ndjson"])
    @pytest.mark.parametrize("condition", ["expect_offset", "expect_key_offset"])
    async def test_a_condition_beside_it_is_refused(
        self, http: httpx.AsyncClient, media: str, condition: str
    ) -> None:
        headers = {"idempotency-key": "order-1", "content-type": media}
        params: dict[str, str | int] = {condition: 7, "key": "k"}
        answer = await http.post(STREAM, content=b"1", headers=headers, params=params)
        assert answer.status_code == 400
        assert f"{condition} 7 beside an Idempotency-Key" in answer.json()["detail"]
        assert await values(http) == []

    async def test_several_records_are_one_sending(self, http: httpx.AsyncClient) -> None:
        headers = NDJSON | {"idempotency-key": "batch"}
        for is_again in (False, True):
            told = (await http.post(STREAM, content=b"1\n2\n3\n", headers=headers)).json()
            assert told["count"] == 3
            assert told.get("duplicate", False) == is_again
        answer = await http.post(STREAM, content=b"1\n2\n", headers=headers)
        assert answer.status_code == 422
        assert await values(http) == [1, 2, 3]


async def test_a_stream_that_is_made_again_is_another_one(http: httpx.AsyncClient) -> None:
    await http.post(STREAM, json=1, headers={"idempotency-key": "k"})
    gone = await http.delete("/v1/schema/stream/s", params={"allow_destructive": "true"})
    assert gone.status_code == 200, gone.text
    assert (await http.post(STREAM, json=1)).status_code == 404
    await http.put(STREAM)
    told = (await http.post(STREAM, json=1, headers={"idempotency-key": "k"})).json()
    assert (told["offset"], "duplicate" in told) == (0, False)


@pytest.mark.long
async def test_what_is_not_logged_in_time_is_not_logged_later(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door's producer went on for two minutes when its caller had long been answered."""
    monkeypatch.setattr(clients, "REQUEST_S", 2.0)
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with serving(nodes), http_of(nodes, "n2") as http:
        assert (await http.post(STREAM, content=b"before")).status_code == 200
        await nodes.crash("n1")
        late = await http.post(STREAM, content=b"late")
        assert late.status_code == 504
        assert "not sent, and not in the log" in late.json()["detail"]
        await nodes.restart("n1")
        await nodes.wait_serving()
        assert (await http.post(STREAM, content=b"behind")).status_code == 200
        assert len(await values(http)) == 2
