"""`hadron group` while a region is away: what the others say, who does not, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from hadron.cli import following
from hadron.cli.commands import group
from hadron.cli.following import Request
from hadron.cli.positions import Position, clock_ms
from hadron.cli.records import RecordPrinter
from hadron.cli.root import run
from hadron.cli.session import Session
from hadron.client import Client
from hadron.client.consuming.tests.test_groups import EU, US, two_regions
from hadron.model.errors import OffsetOutOfRangeError, PeerError
from hadron.model.record import Record
from hadron.model.schema import SchemaObject, StreamSpec


class Blocking:
    """A client's calls for a command that runs in a thread."""

    namespace = "default"

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return trio.from_thread.run(partial(getattr(self._client, name), *args, **kwargs))

        return call


@pytest.mark.long
async def test_commands_while_a_region_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group, "ANSWER_WITHIN_S", 0.5)

    async def hadron(*arguments: str) -> tuple[int, str, str]:
        status = await trio.to_thread.run_sync(run, arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    async with two_regions(tmp_path) as (cluster, client):

        @contextmanager
        def connect(_session: Session, **_: Any) -> Iterator[Blocking]:
            yield Blocking(client)

        monkeypatch.setattr(Session, "connect", connect)
        on_s = ("g", "--stream", "s")
        status, out, error = await hadron("group", "list", "--stream", "s")
        assert (status, error, out.count("\n")) == (0, "", 3)
        await cluster.crash(US)

        status, out, error = await hadron("group", "list", "--stream", "s")
        assert (status, out.count("\n"), EU in out, US in out) == (1, 2, True, False)
        assert error.startswith("error: 1 of 2 partitions could not be asked: us/p0: cannot conn")
        assert "hint: bring them back" in error
        status, out, _ = await hadron("group", "list", "--stream", "s", "--output", "json")
        heard, unheard = json.loads(out)
        assert (status, heard["partition"], heard["floor"]) == (1, EU, 3)
        assert (unheard["partition"], "cannot connect" in unheard["error"]) == (US, True)

        status, out, error = await hadron("group", "describe", *on_s)
        assert (status, f"{EU}: order none" in out, US in error) == (1, True, True)
        status, out, _ = await hadron("group", "describe", *on_s, "--output", "json")
        described, unheard = json.loads(out)
        assert (described["group"]["partition"], unheard["partition"]) == (EU, US)

        status, out, _ = await hadron("describe", "stream", "s", "--output", "json")
        told = json.loads(out)["status"]
        assert status == 0
        assert [(each["partition"], each.get("records")) for each in told["partitions"]] == [
            (EU, 3),
            (US, None),
        ]
        assert "cannot connect" in told["partitions"][1]["error"]
        assert [each["partition"] for each in told["groups"]] == [EU]

        status, out, error = await hadron("group", "reset", *on_s, "--to", "-2")
        assert (status, out.split()[-3:]) == (1, [EU, "3", "1"])
        assert "1 of 2 partitions were not reset, as far as known: us/p0" in error
        assert "hint: repeat it" in error
        status, out, error = await hadron("group", "delete", *on_s, "--output", "json")
        done, undone = json.loads(out)
        assert (status, done) == (1, {"partition": EU})
        assert (undone["partition"], bool(undone["error"])) == (US, True)

        await cluster.start(US)
        await cluster.wait_serving(US)
        status, out, error = await hadron("group", "reset", *on_s, "--to", "-0")
        assert (status, out.split()[-3:], error) == (0, [US, "3", "3"], "")
        status, out, error = await hadron("group", "delete", *on_s)
        assert (status, out, error) == (0, f"DELETED AT\n{US}\n", "")
        status, out, error = await hadron("group", "delete", *on_s)
        assert (status, out) == (1, "")
        assert "no group 'g'" in error


async def test_a_region_that_is_away_can_be_left_out_of_reading(tmp_path: Path) -> None:
    everything = Request(
        stream="s",
        group=None,
        start=None,
        partitions=(),
        ack="none",
        limit=None,
        exit_at_end=True,
        form=None,
        output=None,
    )
    async with (
        two_regions(tmp_path) as (cluster, _),
        cluster.client(request_timeout_s=0.5) as client,
    ):
        await client.stream("s")
        await cluster.crash(US)
        with pytest.raises(PeerError, match="cannot connect") as caught:
            await following.find_starts(client, everything, Position("earliest"))
        assert caught.value.hint.endswith("; --partition reads another one alone")
        one = replace(everything, partitions=(EU,))
        assert await following.find_starts(client, one, Position("earliest")) == {EU: 0}


@pytest.mark.long
async def test_what_other_regions_have_is_printed_before_it_is_said_which_are_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = Request(
        stream="s",
        group=None,
        start=Position("earliest"),
        partitions=(),
        ack="none",
        limit=None,
        exit_at_end=True,
        form="%p %s\\n",
        output=None,
    )

    async def read_all(client: Client, values: list[tuple[str, Any]]) -> None:
        async for record in client.read("s"):
            values += [(record.partition, record.value)]

    async def printed(client: Client, request: Request) -> str:
        with trio.fail_after(60):
            await following._follow(client, request, RecordPrinter("%p %s\\n", None, request.limit))
        return capsys.readouterr().out

    async with (
        two_regions(tmp_path) as (cluster, _),
        cluster.client(request_timeout_s=0.5) as client,
    ):
        whole = sorted((await printed(client, everything)).splitlines())
        assert whole == [f"{partition} {number}" for partition in (EU, US) for number in range(3)]
        # The first in the stream's order, too, keeps nobody waiting.
        for away, there in ((EU, US), (US, EU)):
            await cluster.crash(away)
            with pytest.raises(PeerError) as caught:
                await printed(client, everything)
            assert capsys.readouterr().out == "".join(f"{there} {n}\n" for n in range(3))
            assert caught.value.message.startswith(f"s was not read to its end from {away}: ")
            # The same from a program.
            values: list[tuple[str, Any]] = []
            with trio.fail_after(60), pytest.raises(PeerError):
                await read_all(client, values)
            assert values == [(there, b"%d" % number) for number in range(3)]
            assert caught.value.message.endswith(f"; {there}: everything is printed")
            assert "; --partition reads others alone" in caught.value.hint
            # Whoever follows gets what there is, and the rest when it comes.
            following_all = replace(everything, exit_at_end=False, limit=6)
            said: list[str] = []

            async def follow(request: Request, said: list[str]) -> None:
                said.extend((await printed(client, request)).splitlines())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, following_all, said)
                await cluster.start(away)
            await cluster.wait_serving(away)
            assert sorted(said) == whole


class CutOff:
    """A client that reaches one partition only once it is let."""

    def __init__(self, client: Client, partition: str) -> None:
        self._client, self._partition = client, partition
        self.is_asked, self.is_let = False, trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def offsets(self, stream: str, *, partition: str, at_ms: int | None) -> Any:
        if partition == self._partition:
            self.is_asked = True
            await self.is_let.wait()
        return await self._client.offsets(stream, partition=partition, at_ms=at_ms)


class Printed:
    """In place of a `RecordPrinter`."""

    done = False

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def print_apart(self, records: Iterable[Record]) -> None:
        self.seen += [(record.partition, record.value) for record in records]


async def test_a_group_that_exists_goes_on_wherever_it_is_told_to_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that made it is given again, as after a reboot: retention may have dropped the
    offset, a partition may have been added or be away."""
    request = Request("s", "g", None, (), "auto", 1, False, "%p %s\\n", None)

    async def printed(client: Client, start: Position, *partitions: str) -> str:
        asked = replace(request, start=start, partitions=partitions)
        with trio.fail_after(60):
            await following._consume(client, asked, RecordPrinter(request.form, None, 1))
        said = capsys.readouterr()
        assert said.err.startswith("group 'g' goes on where it was: ")
        return said.out

    async with (
        two_regions(tmp_path) as (cluster, client),
        cluster.client(request_timeout_s=0.5) as impatient,
    ):
        await client.delete_group("s", "g", partitions=[US])
        # At the one that it has not met yet it misses nothing.
        assert await printed(client, Position("last", 1)) == f"{US} 0\n"
        async with client.producer("s", partition=EU) as producer:
            await producer.send(b"3")
        assert await printed(client, Position("offset", 99), EU) == f"{EU} 3\n"
        await cluster.crash(US)
        async with client.producer("s", partition=EU) as producer:
            await producer.send(b"4")
        assert await printed(impatient, Position("offset", 0)) == f"{EU} 4\n"
        with pytest.raises(OffsetOutOfRangeError, match="there is no offset 99"):
            await following._consume(
                client,
                replace(request, group="new", start=Position("offset", 99), partitions=(EU,)),
                RecordPrinter(None, None, 1),
            )


@pytest.mark.parametrize(
    ("start", "values"),
    [
        (None, [b"3", b"4"]),
        (Position("latest"), [b"3", b"4"]),
        (Position("last", 1), [b"2", b"3", b"4"]),
    ],
)
async def test_a_partition_that_was_away_is_followed_from_when_this_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Position | None, values: list[bytes]
) -> None:
    monkeypatch.setattr(following, "_LATE_S", 0.0)
    request = Request("s", None, start, (), "none", None, False, None, None)
    async with two_regions(tmp_path) as (cluster, client), trio.open_nursery() as nursery:
        away, printed = CutOff(client, US), Printed()
        # Records and the command are told apart by milliseconds.
        before_ms = clock_ms()
        await cluster.wait_for("another millisecond", lambda: clock_ms() > before_ms)
        nursery.start_soon(following._follow, cast(Any, away), request, cast(Any, printed))
        await cluster.wait_for("asked", lambda: away.is_asked)
        async with client.producer("s", partition=US) as producer:
            await producer.send(b"3")
            away.is_let.set()
            await producer.send(b"4")
        await cluster.wait_for("printed", lambda: (US, b"4") in printed.seen)
        assert [value for partition, value in printed.seen if partition == US] == values
        nursery.cancel_scope.cancel()


async def test_who_follows_all_partitions_follows_those_that_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LOOK_S", 0.02)
    request = Request("grown", None, Position("latest"), (), "none", None, False, None, None)
    everything, only = Printed(), Printed()

    async def declare(client: Client, *partitions: str) -> None:
        spec = StreamSpec(partitions=partitions)
        await client.apply([SchemaObject(kind="Stream", name="grown", spec=spec)])

    async with (
        two_regions(tmp_path) as (cluster, client),
        cluster.client("other") as other,
        trio.open_nursery() as nursery,
    ):
        await declare(client, EU)
        for asked, printed in ((request, everything), (replace(request, partitions=(EU,)), only)):
            nursery.start_soon(following._follow, client, asked, cast(Any, printed))
        async with other.producer("grown", partition=EU) as eu:
            # Until both are there: they begin at the latest.
            while not (everything.seen and only.seen):
                await eu.send("0")
        await declare(other, EU, US)
        async with other.producer("grown", partition=US) as us:
            # From the first one on, whenever it was heard of.
            await us.send("1")
            await us.send("2")
        await cluster.wait_for("the new one read", lambda: (US, "2") in everything.seen)
        assert [value for partition, value in everything.seen if partition == US] == ["1", "2"]
        assert {partition for partition, _ in only.seen} == {EU}
        nursery.cancel_scope.cancel()
