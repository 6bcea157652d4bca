"""Sinks over several replica sets: nobody reads what is staged, all of it is published or nothing,
and whoever has lost an answer finds out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hadron.client import Client
from hadron.client.sinks.sink import Sink, StagedAttempt, new_token
from hadron.client.transactions.work import Work
from hadron.model.batch_building import encode_values
from hadron.model.errors import ConnectionLostError, RequestError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.transacting import rows
from hadron.testing.nodes import running_cluster

META, EU, US = "meta", "eu/p0", "us/p0"


class Play:
    """Two sets with partitions, and a third one that knows the sinks."""

    def __init__(self, cluster: Any, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def staged(
        self, sink: Sink, write: bytes, *texts: str, kept_s: float = 3_600.0
    ) -> StagedAttempt:
        """The same at both."""
        attempt = new_token()
        for partition in (EU, US):
            for first, text in enumerate(texts):
                await sink.stage(
                    "s",
                    partition,
                    [encode_values([text.encode()], 1)],
                    write=write,
                    attempt=attempt,
                    first=first,
                    kept_s=kept_s,
                )
        return StagedAttempt(attempt, {EU: len(texts), US: len(texts)})

    async def read(self) -> list[str]:
        """What both partitions have, which is the same."""
        found: dict[str, list[str]] = {}
        for partition in (EU, US):
            read = self.client.read("s", partition=partition)
            found[partition] = [record.value.decode() async for record in read]
        assert found[EU] == found[US]
        return found[EU]


@asynccontextmanager
async def playing(directory: Path) -> AsyncIterator[Play]:
    async with (
        running_cluster(directory, {META: 1, EU: 1, US: 1}) as cluster,
        cluster.client() as client,
    ):
        spec = StreamSpec(partitions=(EU, US))
        await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
        for name in (EU, US):
            await client.offsets("s", partition=name)
        yield Play(cluster, client)


@pytest.mark.long
async def test_a_batch_is_published_at_all_partitions_once(tmp_path: Path) -> None:
    async with playing(tmp_path) as play:
        sink = play.client.sink("flights")
        write, again = new_token(), new_token()
        lost = await play.staged(sink, write, "lost")
        attempt = await play.staged(sink, write, "a", "b")
        assert await play.read() == []
        assert not await sink.is_published("q", 0)
        assert await sink.publish("s", [attempt], write=write, query="q", batch=0)
        assert await play.read() == ["a", "b"]
        assert await sink.is_published("q", 0)
        repeated = await play.staged(sink, again, "a", "b")
        assert not await sink.publish("s", [repeated], write=again, query="q", batch=0)
        assert not await sink.publish("s", [attempt], write=write, query="q", batch=0)
        await sink.give_up(write, [EU, US])
        await sink.give_up(again, [EU, US])
        await play.cluster.wait_for("what lost to go", lambda: not rows(play.cluster, EU, "staged"))
        assert await play.read() == ["a", "b"]
        (known,) = await play.client.sinks()
        assert (known.name, known.query, known.batch) == ("flights", "q", 0)
        with pytest.raises(RequestError, match="is query q's"):
            await sink.is_published("another", 1)
        with pytest.raises(RequestError):
            await sink.publish("s", [lost], write=write, query="q", batch=1)


async def test_nothing_is_published_where_one_set_has_lost_it(tmp_path: Path) -> None:
    async with playing(tmp_path) as play:
        sink = play.client.sink("flights")
        write = new_token()
        attempt = await play.staged(sink, write, "a")
        await sink.give_up(write, [US])
        with pytest.raises(RequestError, match="is not staged on us/p0"):
            await sink.publish("s", [attempt], write=write, query="q", batch=0)
        assert await play.read() == []
        assert await sink.progress() is None


@pytest.mark.parametrize("name", ["flights", ""])
async def test_a_lost_answer_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commit = Work.commit
    times = 0

    async def lossy(work: Work) -> None:
        nonlocal times
        times += 1
        await commit(work)
        if times == 1 and name:
            raise ConnectionLostError("made to fail", retryable=True)

    monkeypatch.setattr(Work, "commit", lossy)
    async with playing(tmp_path) as play:
        sink = play.client.sink(name)
        write = new_token()
        attempt = await play.staged(sink, write, "a")
        published = await sink.publish("s", [attempt], write=write, query="q", batch=0)
        assert published == (not name)
        assert times == 1
        assert await play.read() == ["a"]


@pytest.mark.long
async def test_what_nobody_publishes_expires(tmp_path: Path) -> None:
    async with playing(tmp_path) as play:
        sink = play.client.sink()
        write = new_token()
        await play.staged(sink, write, "a", kept_s=0.2)
        kept = await play.staged(sink, new_token(), "b")
        for name in (EU, US):
            await play.cluster.wait_for(
                "one to go", lambda at=name: rows(play.cluster, at, "staged") == 1
            )
        found = await play.client.staged()
        assert {each.attempt for each in found} == {kept.attempt.hex()}
        assert {each.replica_set for each in found} == {EU, US}
        await play.cluster.wait_for("its bodies to go", lambda: rows(play.cluster, EU, "body") < 6)
