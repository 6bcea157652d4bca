"""`hadron tx`: what is open, what became of it, and ending by hand what a lost set has left."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.cli.commands import tx
from hadron.cli.root import run
from hadron.cli.session import Session
from hadron.cli.tests.test_group import Blocking
from hadron.client.sinks.sink import StagedAttempt, new_token
from hadron.model.batch_building import encode_values
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.transacting import End, driving, publish, rows
from hadron.testing.nodes import running_cluster

META, EU, US = "meta", "eu/p0", "us/p0"

Hadron = Callable[..., Awaitable[tuple[int, str, str]]]
"""Runs a command: its status, and what it says."""


@pytest.mark.long
async def test_looking_at_transactions_and_ending_one_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tx, "ANSWER_WITHIN_S", 0.5)

    async def hadron(*arguments: str) -> tuple[int, str, str]:
        status = await trio.to_thread.run_sync(run, arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    async with (
        running_cluster(tmp_path, {META: 1, EU: 1, US: 1}) as cluster,
        cluster.client(request_timeout_s=6.0) as client,
    ):

        @contextmanager
        def connect(_session: Session, **_: Any) -> Iterator[Blocking]:
            yield Blocking(client)

        monkeypatch.setattr(Session, "connect", connect)
        spec = StreamSpec(partitions=(EU, US))
        await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
        stream_id = (await client.stream("s")).id
        for name in (EU, US):
            await client.offsets("s", partition=name)
        assert (await hadron("tx", "list"))[0] == 0
        async with driving(cluster, EU) as driver:
            done, rolled, open_one = [await driver.number() for _ in range(3)]
            driver.say(
                done, publish(EU, stream_id, b"a"), publish(US, stream_id, b"b"), end=End.COMMIT
            )
            await driver.answer(done)
            ids = [str(driver.id(each)) for each in (done, rolled, open_one)]
            driver.say(rolled, publish(EU, stream_id, b"c"))
            driver.say(open_one, publish(US, stream_id, b"d"))
            await cluster.wait_for("an intent", lambda: rows(cluster, US, "intent") == 1)

            status, out, _ = await hadron("tx", "list", "-o", "json")
            listed = {(each["transaction"], each["role"]): each for each in json.loads(out)}
            assert status == 0
            assert {(ids[1], "driver"), (ids[2], "driver"), (ids[2], "participant")} <= set(listed)
            assert listed[ids[2], "participant"]["phase"] == "prepared"
            assert listed[ids[2], "participant"]["waits_for"] == {EU: "it has not decided"}
            status, out, _ = await hadron("tx", "list", "--replica-set", EU)
            assert status == 0
            assert "participant" not in out
            assert ids[1] in out

            status, out, _ = await hadron("tx", "show", ids[0], "-o", "json")
            assert json.loads(out)["state"] == "committed"
            assert {each["partition"] for each in json.loads(out)["receipts"]} == {EU, US}
            assert (await hadron("tx", "show", ids[1]))[1] == f"{ids[1]}: open\n"
            assert (await hadron("tx", "show", "nonsense"))[0] == 2
            assert await hadron("tx", "resolve", ids[1]) == (0, f"{ids[1]} is rolled back\n", "")
            assert "aborted" in (await hadron("tx", "show", ids[1]))[1]
            assert (await hadron("tx", "resolve", ids[1]))[0] == 1
            await _not_forced(hadron, ids[2])
            assert rows(cluster, US, "intent") == 1
            await cluster[EU].crash()

        await _forced(hadron, ids[2])
        assert rows(cluster, US, "intent") == 0


async def _not_forced(hadron: Hadron, transaction: str) -> None:
    """While its driver answers."""
    for option, name, words in (
        ("--force-abort", US, "answers: it is not decided"),
        ("--force-commit", US, "answers: it is not decided"),
        ("--force-abort", EU, "is no participant of it"),
    ):
        forced = ("tx", "resolve", transaction, option, name, "--accept-torn")
        status, _, error = await hadron(*forced)
        assert status == 1
        assert words in error


async def _forced(hadron: Hadron, transaction: str) -> None:
    """Once its driver is gone."""
    status, out, error = await hadron("tx", "list")
    assert status == 1
    assert transaction in out
    assert EU in error
    status, _, error = await hadron("tx", "resolve", transaction, "--force-abort", US)
    assert status == 2
    assert "say --accept-torn" in error
    forced = ("tx", "resolve", transaction, "--force-abort", US, "--accept-torn")
    dropped = f"what {transaction} had prepared at {US} is dropped\n"
    assert await hadron(*forced) == (0, dropped, "")
    assert (await hadron(*forced, "--give-up", US))[0] == 2


async def test_sinks_and_what_is_staged_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hadron(*arguments: str) -> str:
        assert await trio.to_thread.run_sync(run, arguments) == 0
        return capsys.readouterr().out

    async with running_cluster(tmp_path, {META: 1, EU: 1}) as cluster, cluster.client() as client:

        @contextmanager
        def connect(_session: Session, **_: Any) -> Iterator[Blocking]:
            yield Blocking(client)

        monkeypatch.setattr(Session, "connect", connect)
        spec = StreamSpec(partitions=(EU,))
        await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
        await client.offsets("s", partition=EU)
        sink, write, other = client.sink("flights"), new_token(), new_token()
        for each in (write, other):
            batch = encode_values([b"x"], 1)
            await sink.stage("s", EU, [batch], write=each, attempt=each, first=0, label="a test")
        staged = [StagedAttempt(write, {EU: 1})]
        assert await sink.publish("s", staged, write=write, query="q", batch=7, follows="none")
        (left,) = json.loads(await hadron("tx", "staged", "-o", "json"))
        assert (left["write"], left["label"], left["records"]) == (other.hex(), "a test", 1)
        assert (await hadron("tx", "sinks")).splitlines()[1].split()[:3] == ["flights", "q", "7"]
