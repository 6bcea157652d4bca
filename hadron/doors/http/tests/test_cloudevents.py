"""The CloudEvents HTTP binding, with the official SDK on the other side."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings import http as binding
from cloudevents.core.v1.event import CloudEvent

STREAM = "/v1/streams/s"
CE_JSON = "application/cloudevents+json"
CE_BATCH = "application/cloudevents-batch+json"


def event(number: int = 1, data: Any = None, **attributes: Any) -> CloudEvent:
    given = {
        "id": f"e-{number}",
        "source": "/tests/ü%",
        "type": "flight.departed",
        "specversion": "1.0",
        "datacontenttype": "application/json",
        "subject": 'UA "1545"',
        "partitionkey": "UA",
        **attributes,
    }
    return CloudEvent(given, {"n": number} if data is None else data)


def same(one: Any, other: Any) -> None:
    assert one.get_attributes() == other.get_attributes()
    assert one.get_data() == other.get_data()


async def read(http: httpx.AsyncClient, offset: int, accept: str = "*/*") -> Any:
    """A record as the SDK takes it."""
    answer = await http.get(f"{STREAM}/records/{offset}", headers={"accept": accept})
    assert answer.status_code == 200, answer.text
    message = binding.HTTPMessage(headers=dict(answer.headers), body=answer.content)
    return binding.from_http_event(message)


@pytest.mark.parametrize("to_message", [binding.to_binary_event, binding.to_structured_event])
@pytest.mark.parametrize("accept", ["*/*", CE_JSON])
async def test_an_event_comes_back_as_it_was(
    http: httpx.AsyncClient, to_message: Any, accept: str
) -> None:
    sent = [
        event(1),
        event(2, {"a": [1, None, {"b": "ü"}]}),
        event(3, "text", datacontenttype="text/plain"),
        event(4, b"\x00\xff", datacontenttype="application/octet-stream"),
        event(5, ownextension="x y", dataschema="https://example.com/schema"),
    ]
    for offset, each in enumerate(sent):
        message = to_message(each)
        answer = await http.post(STREAM, content=message.body, headers=message.headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == each.get_id()
        same(await read(http, offset, accept), each)


async def test_a_batch_comes_in_and_goes_out(http: httpx.AsyncClient) -> None:
    messages = [binding.to_structured_event(event(number)) for number in range(5)]
    body = b"[%b]" % b",".join(message.body for message in messages)
    answer = await http.post(STREAM, content=body, headers={"content-type": CE_BATCH})
    assert answer.json()["count"] == 5
    answer = await http.get(STREAM + "/records", headers={"accept": CE_BATCH})
    assert answer.headers["content-type"] == CE_BATCH
    assert answer.headers["hadron-next"] == "local/p0:5"
    for found, message in zip(answer.json(), messages, strict=True):
        told = binding.HTTPMessage({"content-type": CE_JSON}, json.dumps(found).encode())
        same(binding.from_http_event(told), binding.from_http_event(message))


async def test_a_record_that_is_no_event_is_told_as_one(http: httpx.AsyncClient) -> None:
    await http.post(STREAM, params={"key": "k"}, json={"a": 1})
    for accept in ("*/*", CE_JSON):
        found = await read(http, 0, accept)
        assert found.get_source() == "/s/local/p0"
        assert found.get_type() == "hadron.record"
        assert found.get_data() == {"a": 1}
        assert found.get_extension("partitionkey") == "k"


async def test_an_event_may_be_sent_once(http: httpx.AsyncClient) -> None:
    message = binding.to_structured_event(event(1))
    headers = message.headers | {"idempotency-key": "e-1"}
    for is_again in (False, True):
        told = (await http.post(STREAM, content=message.body, headers=headers)).json()
        assert (told["offset"], told.get("duplicate", False)) == (0, is_again)


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/a"}, b"", 400, "type is"),
        ({"ce-specversion": "2.0"}, b"", 400, "specversion '2.0'"),
        (
            {
                "ce-specversion": "1.0",
                "ce-bad_name": "x",
                "ce-id": "1",
                "ce-source": "/",
                "ce-type": "t",
            },
            b"",
            400,
            "'bad_name' cannot be the name",
        ),
        (
            {"ce-specversion": "1.0", "ce-id": "%ff", "ce-source": "/", "ce-type": "t"},
            b"",
            400,
            "not percent-encoded UTF-8",
        ),
        ({"content-type": CE_JSON}, b"{}", 400, "specversion None"),
        ({"content-type": CE_JSON}, b"[]", 400, "not a CloudEvent"),
        ({"content-type": CE_BATCH}, b"{}", 400, "no batch of CloudEvents"),
        ({"content-type": CE_BATCH}, b'[{"specversion":"1.0"}]', 400, "event 1: "),
        ({"content-type": "application/cloudevents+avro"}, b"x", 415, "is not known"),
    ],
)
async def test_what_is_no_event_is_refused(
    http: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, said: str
) -> None:
    answer = await http.post(STREAM, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]
    assert (await http.get(STREAM + "/records")).json()["records"] == []
