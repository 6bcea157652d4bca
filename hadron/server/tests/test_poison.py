"""Batches whose checksum is right and whose content is not: refused at the door, or logged, and
then every reader gets past them."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.cli.records import RecordPrinter
from hadron.client import Client
from hadron.delivery import letters
from hadron.model.batch import read_head
from hadron.model.errors import DamagedRecordError, InvalidRecordError
from hadron.model.tests import poison
from hadron.node.tests.support import PRODUCE, assert_no_traceback, make_stream, produce
from hadron.server import streams
from hadron.server.tests.test_bad_input import one_node
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import streams_pb2

LOGGED = {**poison.INSIDE, **poison.SINGLE}
ALL = {**poison.AT_THE_DOOR, **LOGGED}


@pytest.mark.parametrize("name", list(poison.AT_THE_DOOR))
async def test_the_leader_refuses_it(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with one_node(tmp_path, caplog) as (_, connection):
        request = streams_pb2.ProduceRequest(stream="events")
        for _ in range(2):
            with pytest.raises(InvalidRecordError, match="its body is none"):
                await connection.request(PRODUCE, request, [poison.AT_THE_DOOR[name]])


@pytest.fixture
def open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that looks at heads only, as an earlier version's did: its log may have anything."""
    monkeypatch.setattr(streams, "judge_batch", read_head)


async def log_poison(nodes: Nodes) -> dict[int, str]:
    """Every kind of it, with a good record in front of and behind each; returns what is where."""
    await make_stream(nodes)
    await make_stream(nodes, "letters")
    found: dict[int, str] = {}
    async with nodes.connection("n1") as connection:
        for name, data in ALL.items():
            await produce(connection, b"good")
            answer, _ = await connection.request(
                PRODUCE, streams_pb2.ProduceRequest(stream="events"), [data]
            )
            found[answer.base_offset] = name
        await produce(connection, b"last")
    return found


@pytest.mark.long
async def test_a_reader_gets_past_it(
    tmp_path: Path, clock: MockClock, open_door: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        found = await log_poison(nodes)
        async with nodes.client() as client:
            (bounds,) = await client.offsets("events")
            good = damaged = 0
            offsets = []
            async for record in client.read("events"):
                offsets.append(record.offset)
                if record.damage:
                    damaged += 1
                    with pytest.raises(DamagedRecordError, match=f"/{record.offset} is damaged"):
                        _ = record.value, record.key
                else:
                    good += record.value in (b"good", b"last")
            assert offsets == list(range(bounds.next_offset))
            assert good == len(ALL) + 1
            assert damaged == sum(read_head(data).n for data in ALL.values()) - 2 * len(
                poison.SINGLE
            )
            # Also from the middle of such a batch, cut at a limit, and following.
            for base in found:
                async for record in client.read("events", offset=base + 1, limit=1):
                    assert record.offset == base + 1
                async for batch in client.read_batches("events", offset=base + 1, limit=1):
                    assert (batch.base_offset, len(batch)) == (base + 1, 1)
            with trio.fail_after(60):
                async for record in client.read("events", follow=True):
                    if not record.damage and record.value == b"last":
                        break
    assert_no_traceback(caplog)


@pytest.mark.long
async def test_a_command_says_what_it_passed_over(
    tmp_path: Path, clock: MockClock, open_door: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        found = await log_poison(nodes)
        async with nodes.client() as client:
            for form, output in (
                (None, None),
                (None, "json"),
                (None, "table"),
                ("cloudevents", None),
                ("%k %K %h %T %y", None),
            ):
                printer = RecordPrinter(form, output, None)
                async for batch in client.read_batches("events"):
                    printer.print(batch.from_offset(0))
                out, err = capfdbinary.readouterr()
                lines = [line for line in err.decode().splitlines() if "passed over" in line]
                # Values go out as they are stored, text that is none too.
                least = len(ALL) - len(poison.SINGLE)
                assert least <= len(lines) <= len(ALL), form
                assert f"{read_head(ALL['a head of five']).n} records from events/" in err.decode()
                if form is None and output is None:
                    assert out.count(b"good") == len(ALL)
            assert found


@pytest.mark.parametrize("batches", [False, True])
async def test_a_group_gets_past_it(
    tmp_path: Path,
    clock: MockClock,
    open_door: None,
    caplog: pytest.LogCaptureFixture,
    batches: bool,
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await log_poison(nodes)
        async with nodes.client() as client:
            (bounds,) = await client.offsets("events")
            seen: list[int] = []
            with trio.fail_after(120):
                async with client.subscribe("events", group="g", start="earliest") as member:
                    if batches:
                        async for batch in member.batches():
                            seen += [record.offset for record in batch.records]
                            await batch.ack()
                            if batch.records[-1].offset == bounds.next_offset - 1:
                                break
                    else:
                        async for delivery in member:
                            seen.append(delivery.offset)
                            assert delivery.damage == delivery.record.damage
                            await delivery.ack()
                            if delivery.offset == bounds.next_offset - 1:
                                break
                    await member.flush()
            assert sorted(set(seen)) == list(range(bounds.next_offset))
            (group,) = await client.groups()
            assert group.floor == bounds.next_offset
    assert_no_traceback(caplog)


async def test_it_becomes_a_dead_letter_like_any_other(
    tmp_path: Path, clock: MockClock, open_door: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        await make_stream(nodes, "letters")
        kinds = {name: data for name, data in ALL.items() if read_head(data).n <= 5}
        async with nodes.connection("n1") as connection:
            for data in kinds.values():
                await connection.request(
                    PRODUCE, streams_pb2.ProduceRequest(stream="events"), [data]
                )
        async with nodes.client() as client:
            (bounds,) = await client.offsets("events")
            async with client.subscribe(
                "events", group="g", start="earliest", max_attempts=1, dead_letter="letters"
            ) as member:
                with trio.fail_after(120):
                    async for delivery in member:
                        await delivery.nack(reason="no good")
                        if delivery.offset == bounds.next_offset - 1:
                            break
                    found = await all_letters(client, bounds.next_offset)
            assert [int(each.headers[letters.ORIGIN_OFFSET]) for each in found] == list(
                range(bounds.next_offset)
            )
            originals = [each async for each in client.read("events")]
            for letter, original in zip(found, originals, strict=True):
                assert letter.headers[letters.REASON] == "no good"
                assert (letters.DAMAGE in letter.headers) == bool(original.damage)
                if not original.damage:
                    assert letter.value == original.value
                whole = letter.headers.get(letters.BODY_OFFSET)
                has_it = whole in (None, letter.headers[letters.ORIGIN_OFFSET])
                if original.damage:
                    # The bytes are there, whatever they are, or where the header says.
                    assert letter.raw == (original.raw if has_it else b"")
                if whole is not None:
                    assert found[int(whole)].raw == original.raw, "one body, in one letter"
            (group,) = await client.groups()
            assert group.floor == bounds.next_offset
    assert_no_traceback(caplog)


async def all_letters(client: Client, count: int) -> list[Any]:
    while True:
        found = [each async for each in client.read("letters")]
        if len(found) >= count:
            return sorted(found, key=lambda each: int(each.headers[letters.ORIGIN_OFFSET]))
        await trio.sleep(0.05)


async def test_a_record_that_is_too_large_for_a_dead_letter_does_not_come_back_for_ever(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight megabytes of nothing, which zstd makes small: nobody's client sends it, a leader takes
    it."""
    data = poison.batch(
        body=poison.values(v=bytes(8 << 20), vo=poison.ints(0, 2, 4, 8 << 20)), zstd=True
    )
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes)
        await make_stream(nodes, "letters")
        async with nodes.connection("n1") as connection:
            await connection.request(PRODUCE, streams_pb2.ProduceRequest(stream="events"), [data])
        async with nodes.client() as client:
            async with client.subscribe(
                "events", group="g", start="earliest", max_attempts=1, dead_letter="letters"
            ) as member:
                with trio.fail_after(60):
                    async for delivery in member:
                        await delivery.nack(reason="too much")
                        if delivery.offset == 2:
                            break
                    found = await all_letters(client, 3)
            assert [len(each.value) for each in found] == [2, 2, 0]
            assert "over the limit" in found[2].headers[letters.DAMAGE]
    assert_no_traceback(caplog)
