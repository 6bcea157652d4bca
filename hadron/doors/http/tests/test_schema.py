"""What is declared, over HTTP; status and health."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron import __version__
from hadron.doors.http import schema
from hadron.doors.http.tests.support import http_of, nodes_with_doors, until
from hadron.model.documents.reading import declared
from hadron.testing.nodes import Nodes

YAML = {"content-type": "application/yaml"}
DOCUMENT = {"kind": "Stream", "name": "t", "partitions": ["local/p0"]}


async def test_a_stream_is_created_once(http: httpx.AsyncClient) -> None:
    for _ in range(2):
        answer = await http.put("/v1/streams/t", json={"retention": {"max_age": "7d"}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["retention"] == {"max_age": "7d"}
    assert (await http.get("/v1/streams/t")).json() == answer.json()
    answer = await http.put("/v1/streams/t", json={"retention": {"max_age": "8d"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "SchemaError")
    assert answer.json()["hint"].startswith("POST /v1/schema ")
    assert (await http.get("/v1/streams/none")).status_code == 404
    assert (await http.put("/v1/streams/t", content=b"{}")).status_code == 415


@pytest.mark.parametrize("is_yaml", [False, True])
async def test_others_go_on_while_documents_are_read(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, *, is_yaml: bool
) -> None:
    goes_on = threading.Event()

    def slow(given: Any) -> Any:
        assert goes_on.wait(60), "nobody else has a turn"
        return declared(given)

    monkeypatch.setattr(schema, "declared", slow)
    text = "kind: Stream\nname: t\npartitions: [local/p0]\n"
    async with trio.open_nursery() as nursery:
        found: list[httpx.Response] = []

        async def apply() -> None:
            options: Any = {"content": text, "headers": YAML} if is_yaml else {"json": DOCUMENT}
            found.append(await http.post("/v1/schema", **options))

        nursery.start_soon(apply)
        assert (await http.get("/healthz")).status_code == 200
        assert not found
        goes_on.set()
    assert [each.status_code for each in found] == [200]


async def test_documents_are_applied_and_deleted(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/schema", params={"dry_run": "true"}, json=DOCUMENT)
    assert answer.json()["changes"][0]["action"] == "created"
    assert answer.json()["dry_run"] is True
    assert (await http.get("/v1/streams/t")).status_code == 404
    for text, action in (("created", "created"), ("unchanged", "unchanged")):
        answer = await http.post("/v1/schema", json=[DOCUMENT])
        assert answer.json()["changes"][0]["action"] == action, text
        assert "dry_run" not in answer.json()
    yaml = "kind: Stream\nname: u\npartitions: [local/p0]\n"
    answer = await http.post("/v1/schema", content=yaml, headers=YAML)
    assert answer.status_code == 200, answer.text
    found = (await http.get("/v1/schema", params={"kind": "streams"})).json()["objects"]
    assert [each["name"] for each in found] == ["s", "t", "u"]
    assert (await http.delete("/v1/schema/stream/t")).status_code == 422
    destructive = {"allow_destructive": "true"}
    dry = destructive | {"dry_run": "true"}
    answer = await http.delete("/v1/schema/stream/t", params=dry)
    assert (answer.json()["dry_run"], answer.json()["objects"][0]["name"]) == (True, "t")
    answer = await http.delete("/v1/schema/stream/t", params=destructive)
    assert answer.json()["objects"][0]["name"] == "t"
    assert "dry_run" not in answer.json()
    assert (await http.delete("/v1/schema/strem/t")).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "way"),
    [
        ("DELETE", "streams/s", "DELETE /v1/schema/stream/NAME"),
        ("DELETE", "endpoints/quote", "DELETE /v1/schema/endpoint/NAME"),
        ("DELETE", "exchanges/prices", "DELETE /v1/schema/exchange/NAME"),
        ("PUT", "endpoints/quote", "POST /v1/schema"),
        ("PATCH", "streams/s", "POST /v1/schema"),
    ],
)
async def test_where_it_is_declared_is_told_who_looks_elsewhere(
    http: httpx.AsyncClient, method: str, path: str, way: str
) -> None:
    answer = await http.request(method, f"/v1/{path}")
    assert answer.status_code == 405
    assert f"; {way} " in answer.json()["hint"]


async def test_what_is_declared_is_listed_by_kind(http: httpx.AsyncClient) -> None:
    endpoint = {"kind": "Endpoint", "name": "quote", "replica_set": "local/p0"}
    assert (await http.post("/v1/schema", json=[endpoint])).status_code == 200
    listed = {
        kind: [each["name"] for each in (await http.get(f"/v1/{kind}")).json()["objects"]]
        for kind in ("streams", "endpoints", "exchanges")
    }
    assert listed == {"streams": ["s"], "endpoints": ["quote"], "exchanges": []}


@pytest.mark.parametrize(
    "path", ["streams", "endpoints", "exchanges", "schema", "streams/s", "streams/s/records"]
)
async def test_a_namespace_that_is_not_there_is_not_an_empty_one(
    http: httpx.AsyncClient, path: str
) -> None:
    answer = await http.get(f"/v1/{path}", params={"namespace": "shop"})
    told = answer.json()
    assert (answer.status_code, told["code"]) == (404, "NotFoundError")
    assert told["detail"] == "there is no namespace 'shop'"
    assert "`hadron create namespace shop`" in told["hint"]
    documents = [{"kind": "Namespace", "name": "shop"}]
    assert (await http.post("/v1/schema", json=documents)).status_code == 200
    answer = await http.get(f"/v1/{path}", params={"namespace": "shop"})
    assert (answer.status_code == 200) == (path.count("/") == 0), answer.text


async def test_fields_that_there_are_not_are_told_with_those_that_there_are(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.put("/v1/streams/t", json={"partitons": []})
    assert (answer.status_code, answer.json()["hint"]) == (
        400,
        "there are: partitions, retention, description, keys",
    )
    answer = await http.get("/v1/streams/s/records", params={"limt": "1"})
    assert answer.status_code == 400
    assert "limit" in answer.json()["hint"]
    answer = await http.post(
        "/v1/streams/s?lines=records",
        content=b'{"valu": 1}\n',
        headers={"content-type": "application/x-ndjson"},
    )
    assert answer.status_code == 400
    assert answer.json()["hint"].startswith("there are: value, ")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"kind: Strem\nname: x\n", YAML, 422),
        (b"a: [", YAML, 422),
        (b"\xff", YAML, 400),
        (b"[1]", {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "application/json"}, 422),
        (b"kind: Stream", {"content-type": "text/plain"}, 415),
    ],
)
async def test_what_is_no_document_is_refused(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = await http.post("/v1/schema", content=body, headers=headers)
    assert answer.status_code == status, answer.text


async def test_status(http: httpx.AsyncClient, nodes: Nodes) -> None:
    told = (await http.get("/v1/status")).json()
    assert (told["node"], told["role"], told["state"]) == ("n1", "leader", "serving")
    assert told["version"] == __version__
    assert isinstance(told["committed_lsn"], int)
    assert told["connections"] == 0, "the door's own is none"
    told = (await http.get("/v1/topology")).json()
    assert told["replica_sets"][0]["nodes"][0]["address"] == nodes.node("n1").address


async def test_a_node_is_ready_once_its_leader_answers(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    await nodes.start("n2")
    async with http_of(nodes, "n2") as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert "waiting for the leader" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "1"
        await nodes.start("n1", "n3")
        await nodes.wait_serving()
        await nodes.wait_for("following", lambda: nodes.status("n2").state == "following")
        assert (await http.get("/readyz")).status_code == 200
        await nodes.crash("n1")
        await until("noticed", lambda: nodes.status("n2").state != "following")
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
