"""Consuming by long poll."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.doors import clients
from hadron.doors.http.consumers import Consumer
from hadron.doors.http.tests.support import http_of, nodes_with_doors, serving
from hadron.testing.nodes import Nodes

GROUP = "/v1/streams/s/groups/g"


async def publish(http: httpx.AsyncClient, *values: Any) -> None:
    for value in values:
        assert (await http.post("/v1/streams/s", json=value)).status_code == 200


async def poll(http: httpx.AsyncClient, consumer: str = "c", **asked: Any) -> list[dict[str, Any]]:
    answer = await http.post(f"{GROUP}/poll", json={"consumer": consumer, "wait_s": 5} | asked)
    assert answer.status_code == 200, answer.text
    told: list[dict[str, Any]] = answer.json()["records"]
    return told


async def settle(
    http: httpx.AsyncClient, what: str, *records: dict[str, Any], consumer: str = "c", **asked: Any
) -> dict[str, Any]:
    ids = [each["delivery"] for each in records]
    answer = await http.post(
        f"{GROUP}/{what}", json={"consumer": consumer, "deliveries": ids} | asked
    )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def refused(http: httpx.AsyncClient, record: dict[str, Any]) -> list[str]:
    """What is unknown of a record that is acknowledged, where nothing is settled."""
    asked = {"consumer": "c", "deliveries": [record["delivery"]]}
    answer = await http.post(f"{GROUP}/ack", json=asked)
    assert answer.status_code == 409, answer.text
    assert "nothing was settled" in answer.json()["detail"]
    unknown: list[str] = answer.json()["unknown_deliveries"]
    return unknown


async def floor(http: httpx.AsyncClient) -> int:
    found = (await http.get("/v1/streams/s/groups")).json()["groups"]
    return int(found[0]["floor"])


async def test_records_are_given_and_acknowledged(http: httpx.AsyncClient) -> None:
    await publish(http, "a", "b", "c")
    first = await poll(http, max_records=2)
    assert [each["value"] for each in first] == ["a", "b"]
    assert await settle(http, "ack", *first) == {"settled": 2, "unknown": []}
    assert await floor(http) == 2, "answered once it is committed"
    assert [each["value"] for each in await poll(http)] == ["c"]


@pytest.mark.parametrize("what", ["ack", "nack", "extend"])
async def test_who_looks_at_the_status_alone_takes_nothing_for_settled(
    http: httpx.AsyncClient, what: str
) -> None:
    await publish(http, "a", "b")
    records = await poll(http, max_records=2)
    ids = [each["delivery"] for each in records]

    async def ask(*deliveries: str) -> httpx.Response:
        asked = {"consumer": "c", "deliveries": deliveries}
        return await http.post(f"{GROUP}/{what}", json=asked)

    for wrong in ("x", "local/p0:0", "local/p0:x:1", "a//b:0:1", ":0:1", f"local/p0:{10**19}:1"):
        answer = await ask(ids[0], wrong)
        assert answer.status_code == 400
        assert answer.json()["detail"] == f"'{wrong}' is no delivery"
    never = "local/p0:55:99"
    answer = await ask(never)
    assert (answer.status_code, answer.json()["retryable"]) == (409, False)
    assert answer.json()["unknown_deliveries"] == [never]
    told = (await ask(*ids, never)).json()
    assert told == {"settled": 2, "unknown": [never]}


async def test_a_poll_waits_for_a_record(http: httpx.AsyncClient) -> None:
    found: list[Any] = []

    async def wait() -> None:
        found.extend(await poll(http, wait_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(0.1)
        assert not found
        await publish(http, "late")
    assert [each["value"] for each in found] == ["late"]


async def test_nothing_comes_in_time(http: httpx.AsyncClient) -> None:
    assert await poll(http, wait_s=0.05) == []


async def test_what_is_given_back_comes_again(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (given,) = await poll(http)
    assert given["attempt"] == 1
    assert await settle(http, "nack", given, delay_s=0) == {"settled": 1, "unknown": []}
    (again,) = await poll(http)
    assert (again["value"], again["attempt"]) == ("a", 2)
    assert await refused(http, given) == [given["delivery"]]
    assert (await settle(http, "extend", again))["settled"] == 1
    await settle(http, "ack", again)
    assert await poll(http, wait_s=0.05) == []


async def test_a_lost_answer_costs_no_record(http: httpx.AsyncClient) -> None:
    """Who was told nothing asks for what it was given, as itself; after its time, others get it."""
    await publish(http, "a")
    assert len(await poll(http)) == 1
    assert await poll(http, wait_s=0.05) == []
    (again,) = await poll(http, again=True)
    assert again["value"] == "a"


async def test_what_comes_again_costs_no_attempt(http: httpx.AsyncClient) -> None:
    await publish(http, *range(9))
    first = await poll(http, max_records=4)
    for _ in range(4):
        assert await poll(http, again=True, max_records=4) == first
    assert (await settle(http, "ack", *first))["settled"] == 4
    rest = await poll(http, max_records=9)
    assert [each["value"] for each in rest] == [4, 5, 6, 7]
    assert {each["attempt"] for each in rest} == {1}
    assert [each["value"] for each in await poll(http, again=True, max_records=2)] == [4, 5]


async def test_what_others_have_dealt_with_does_not_come_again(http: httpx.AsyncClient) -> None:
    """A consumer that acknowledges nothing, whose records the deadline gives to another one."""
    await publish(http, *range(2))
    assert len(await poll(http, "lazy", max_records=2, ack_deadline_s=0.3)) == 2
    assert len(await poll(http, "lazy", again=True)) == 2
    for left in (1, 0):
        dealt = await poll(http, "good", max_records=1, wait_s=30)
        await settle(http, "ack", *dealt, consumer="good")
        assert await floor(http) == 2 - left
    assert await poll(http, "lazy", again=True, wait_s=0) == []


async def test_what_nobody_has_asked_for_is_there_for_others(http: httpx.AsyncClient) -> None:
    await publish(http, *range(9))
    assert [each["value"] for each in await poll(http, "one", max_records=2)] == [0, 1]
    assert [each["value"] for each in await poll(http, "two", max_records=9)] == list(range(2, 9))


async def test_an_old_id_acknowledges_nothing_new(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (old,) = await poll(http)
    answer = await http.post(f"{GROUP}/reset", json={"to": "earliest", "force": True})
    assert answer.status_code == 200
    (new,) = await poll(http)
    assert (new["offset"], new["attempt"]) == (old["offset"], old["attempt"])
    assert await refused(http, old) == [old["delivery"]]
    await http.delete(f"{GROUP}/consumers/c")
    (newest,) = await poll(http, wait_s=30)
    assert await refused(http, new) == [new["delivery"]]
    assert (await settle(http, "ack", newest))["settled"] == 1


async def test_who_leaves_leaves_its_records_to_others(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    assert len(await poll(http, "one")) == 1
    assert (await http.delete(f"{GROUP}/consumers/one")).status_code == 204
    assert [each["value"] for each in await poll(http, "two", wait_s=30)] == ["a"]


async def test_who_is_silent_has_left(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (given,) = await poll(http, "one", idle_s=1)
    assert [each["value"] for each in await poll(http, "two", wait_s=30)] == ["a"]
    answer = await http.post(
        f"{GROUP}/ack", json={"consumer": "one", "deliveries": [given["delivery"]]}
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "NotFoundError")
    assert "'one' of group 'g' of stream 's' has left" in answer.json()["detail"]


async def test_who_has_never_polled_here_is_told_so(http: httpx.AsyncClient) -> None:
    for path, more in (("ack", {}), ("nack", {}), ("extend", {}), ("consumers/nobody", None)):
        if more is None:
            answer = await http.delete(f"{GROUP}/{path}")
        else:
            asked = {"consumer": "nobody", "deliveries": ["local/p0:0:1"]}
            answer = await http.post(f"{GROUP}/{path}", json=asked)
        told = answer.json()
        assert answer.status_code == 404
        assert "nobody has polled here under this name" in told["detail"]
        assert "delivered again" not in told["detail"]
        assert told["hint"].startswith("poll first")


async def test_who_hangs_up_takes_no_record_along(http: httpx.AsyncClient) -> None:
    with trio.move_on_after(0.3):
        await poll(http, "gone", wait_s=60)
    await publish(http, "a")
    assert [each["value"] for each in await poll(http, "gone", wait_s=30)] == ["a"]


async def test_who_hangs_up_as_a_record_comes_costs_it_no_attempt(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was one more for each page that was closed, and then it was a dead letter unseen."""
    has_come = trio.Event()
    take = Consumer.poll

    async def slow(self: Consumer, *args: Any) -> None:
        await take(self, *args)
        has_come.set()
        await trio.sleep_forever()

    await publish(http, "a")
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "poll", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(http, "gone"))
            await has_come.wait()
            nursery.cancel_scope.cancel()
    (given,) = await poll(http, "gone", wait_s=30)
    assert (given["value"], given["attempt"]) == ("a", 1)


@pytest.mark.long
async def test_one_poll_at_a_time(http: httpx.AsyncClient) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: poll(http, wait_s=2))
        await trio.sleep(0.2)
        answer = await http.post(f"{GROUP}/poll", json={"consumer": "c"})
        assert answer.status_code == 409
        assert "polling already" in answer.json()["detail"]


async def test_a_consumer_counts_for_who_has_made_it(
    nodes: Nodes, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its poll, and so does what it takes of its program's share of namespaces."""
    monkeypatch.setattr(clients, "_MAX_OF_PEER", 1)
    async with nodes.client() as client:
        for name in ("one", "two"):
            partitions = [nodes.config.name]
            await client.apply(
                [
                    {"kind": "Namespace", "name": name},
                    {"kind": "Stream", "namespace": name, "name": "s", "partitions": partitions},
                ]
            )

    async def poll_in(namespace: str) -> int:
        asked = {"consumer": "c", "wait_s": 0}
        answer = await http.post(f"{GROUP}/poll", params={"namespace": namespace}, json=asked)
        return answer.status_code

    assert await poll_in("one") == 200
    assert await poll_in("two") == 503
    await http.delete(f"{GROUP}/consumers/c", params={"namespace": "one"})
    assert await poll_in("two") == 200


async def test_a_consumer_names_itself(http: httpx.AsyncClient) -> None:
    """One that was given a name with each poll would leave its records with the first of them."""
    for asked in ({}, {"consumer": ""}):
        answer = await http.post(f"{GROUP}/poll", json=asked)
        assert answer.status_code == 400
        assert "consumer" in answer.json()["detail"]
    told = (await http.post(f"{GROUP}/poll", json={})).json()
    assert told["hint"].startswith("consumer: the name that it gives itself, as worker-1")
    assert (await http.get("/v1/streams/s/groups")).json() == {"groups": []}


async def test_a_group_keeps_what_it_was_made_with(http: httpx.AsyncClient) -> None:
    await poll(http, order="key", wait_s=0)
    answer = await http.post(f"{GROUP}/poll", json={"consumer": "d", "order": "strict"})
    assert answer.status_code == 400
    shown = (await http.get(GROUP)).json()["partitions"]
    assert shown[0]["options"]["order"] == "key"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"max_records": 0}, 400),
        ({"wait_s": 61}, 400),
        ({"consumer": "a/b"}, 400),
        ({"start": "local/p0:1"}, 400),
        ({"nonsense": 1}, 400),
    ],
)
async def test_what_is_wrong_is_refused(
    http: httpx.AsyncClient, asked: dict[str, Any], status: int
) -> None:
    answer = await http.post(f"{GROUP}/poll", json={"consumer": "c"} | asked)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"max_in_flight": 7},
            "consumer 'c' has joined with max_in_flight 5, this poll asks for 7",
        ),
        ({"idle_s": 7}, "has joined with idle_s 60, this poll asks for 7"),
        ({"start": "latest"}, "has joined with start 'earliest', this poll asks for 'latest'"),
        ({"order": "strict"}, "group 'g' has order 'key', this poll asks for 'strict'"),
        ({"ack_deadline_s": 30}, "group 'g' has ack_deadline_s 20.5, this poll asks for 30"),
        ({"max_attempts": 2, "dead_letter": "x"}, "has max_attempts 0, this poll asks for 2"),
        ({"ephemeral": True}, "has ephemeral false, this poll asks for true"),
    ],
)
async def test_options_that_cannot_be_had_any_more_are_refused(
    http: httpx.AsyncClient, other: dict[str, Any], said: str
) -> None:
    """By who polls already, whose poll would say nothing of them, as by who joins."""
    first: dict[str, Any] = {
        "order": "key",
        "ack_deadline_s": 20.5,
        "max_in_flight": 5,
        "wait_s": 0,
    }
    for asked in (first, first, {"wait_s": 0}):
        await poll(http, **asked)
    answer = await http.post(f"{GROUP}/poll", json={"consumer": "c", "wait_s": 0} | other)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]
    assert "leave" in answer.json()["hint"]
    await poll(http, **first)
    if "group" in said:
        answer = await http.post(f"{GROUP}/poll", json={"consumer": "d", "wait_s": 0} | other)
        assert answer.status_code == 400
        assert said.partition(", this")[0] in answer.json()["detail"]


async def test_json_must_be_said_to_be_json(http: httpx.AsyncClient) -> None:
    answer = await http.post(f"{GROUP}/poll", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


async def test_for_people(http: httpx.AsyncClient) -> None:
    await publish(http, *range(5))
    records = await poll(http)
    await settle(http, "ack", *records)
    answer = await http.post(f"{GROUP}/reset", json={"to": "1"})
    assert answer.status_code == 400, "a member is there"
    answer = await http.post(f"{GROUP}/reset", json={"to": "1", "force": True})
    assert answer.json()["partitions"] == [{"partition": "local/p0", "floor_before": 5, "floor": 1}]
    # On its way back it would be none of those that the group's end sends away.
    with trio.fail_after(60):
        while not (await http.get(GROUP)).json()["partitions"][0]["members"]:  # noqa: ASYNC110
            await trio.sleep(0.01)
    answer = await http.delete(GROUP, params={"force": "true"})
    assert answer.json() == {"partitions": ["local/p0"]}
    assert (await http.get(GROUP)).status_code == 404


async def test_a_member_outlives_its_leader(tmp_path: Path, nursery: trio.Nursery) -> None:
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with serving(nodes) as http, http_of(nodes, "n2") as other:
        await publish(http, "a", "b")
        (first, *_) = await poll(other, max_records=1)
        await settle(other, "ack", first)
        await nodes.restart("n1")
        await nodes.wait_serving()
        assert [each["value"] for each in await poll(other, wait_s=30)] == ["b"]


async def test_who_polls_keeps_the_client_of_its_namespace(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_MAX_CLIENTS", 1)
    documents = [{"kind": "Namespace", "name": name} for name in ("shop", "other")]
    assert (await http.post("/v1/schema", json=documents)).status_code == 200
    http.params = httpx.QueryParams(namespace="shop")
    assert (await http.put("/v1/streams/s")).status_code == 200
    await publish(http, "a")
    [record] = await poll(http)
    refused = await http.get("/v1/streams", params={"namespace": "other"})
    assert refused.status_code == 503
    assert await settle(http, "ack", record) == {"settled": 1, "unknown": []}
    assert (await http.delete(f"{GROUP}/consumers/c")).status_code == 204
    for _ in range(100):
        answer = await http.get("/v1/streams", params={"namespace": "other"})
        if answer.status_code != 503:
            break
        await trio.sleep(0.05)
    assert answer.status_code == 200
