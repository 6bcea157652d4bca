"""The input table of a stage: right rows, few fetches, bounded memory."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from hadron.model.documents.stages import ROW_COLUMNS
from hadron.model.errors import ClosedError, ConnectionLostError, CorruptionError, NotFoundError
from hadron.model.ids import Ballot
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.model.tests import poison
from hadron.spark import inputs, loading
from hadron.spark.batch_cache import BatchCache, Place
from hadron.spark.failures import StageError
from hadron.spark.loading import Loader
from hadron.spark.tests.fakes import PARTITION, FakeClient, build
from hadron.wire.messages import pipelines_pb2

STAGE = StageSpec(name="s", run="a:b")
BALLOT = Ballot(1, 1)


def references(offsets: list[int], stream: str = "in") -> list[pipelines_pb2.RecordRef]:
    return [
        pipelines_pb2.RecordRef(stream=stream, partition=PARTITION, offset=each) for each in offsets
    ]


async def load(loader: Loader, refs: list[pipelines_pb2.RecordRef]) -> inputs.Rows:
    (rows,) = await loader.load([refs])
    return rows


def client_with(count: int, per_batch: int, stream: str = "in") -> FakeClient:
    client = FakeClient([STAGE])
    for start in range(0, count, per_batch):
        client.publish(
            [
                NewRecord(value=f"v{i}", key=f"k{i}" if i % 2 else None, type=f"t{i % 3}")
                for i in range(start, min(count, start + per_batch))
            ],
            stream,
        )
    return client


async def test_rows_come_in_the_order_of_their_references() -> None:
    client = client_with(100, 7)
    loader = Loader(client)
    wanted = random.Random(1).choices(range(100), k=60)
    rows = await load(loader, references(wanted))
    table = inputs.to_table(STAGE, list(range(60)), rows, [])
    assert table.to_pydict()["root"] == [f"v{i}" for i in wanted]
    assert table.to_pydict()["key"] == [f"k{i}" if i % 2 else None for i in wanted]
    assert table.to_pydict()["type"] == [f"t{i % 3}" for i in wanted]
    assert table.to_pydict()["offset"] == wanted
    assert set(table.to_pydict()["partition"]) == {PARTITION}
    assert table.schema.field("root").type == table.schema.field("key").type == pa.string()


async def test_batches_are_fetched_once() -> None:
    client = client_with(100, 10)
    loader = Loader(client)
    await load(loader, references(list(range(100))))
    assert client.fetches == 1
    await load(loader, references([99, 3, 50]))
    assert client.fetches == 1


async def test_a_cache_that_is_too_small_still_serves() -> None:
    client = client_with(100, 10)
    loader = Loader(client, BatchCache(max_bytes=1))
    rows = await load(loader, references(list(range(100))))
    assert inputs.to_table(STAGE, list(range(100)), rows, [])["offset"].to_pylist() == list(
        range(100)
    )
    assert len(loader._cache._batches) == 1


async def test_what_there_is_no_room_for_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each place there is some, whatever the others have."""
    client = client_with(100, 10)
    client.publish([NewRecord(value="x" * 1000)], "out")
    monkeypatch.setattr(loading, "_MOST_BYTES", 1)
    wanted = random.Random(1).sample(range(100), k=60)
    rows, others = await Loader(client).load([references(wanted), references([0] * 60, "out")])
    assert not others.later
    have = [row for row, offset in enumerate(wanted) if offset < 10]
    assert set(rows.later) == set(range(60)) - set(have)
    some = rows.only([row in have for row in range(60)])
    table = inputs.to_table(STAGE, have, some, [])
    assert table["offset"].to_pylist() == [wanted[row] for row in have]


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    batches = [
        decode_batch(build([NewRecord(value=b"x" * 100)]), base_offset=i, stream="s", partition="p")
        for i in range(3)
    ]
    cache = BatchCache(max_bytes=2 * batches[0].head.raw)
    here = ("s", 3, "p")

    def at(place: Place, offset: int) -> RecordBatch | None:
        found = cache.find(place, offset)
        return found[0] if found is not None else None

    cache.add(here, [batches[0]], BALLOT)
    cache.add(here, [batches[1]], BALLOT)
    assert at(here, 0) is batches[0]
    cache.add(here, [batches[2]], BALLOT)
    assert at(here, 1) is None
    assert at(here, 0) is batches[0]
    assert at(here, 3) is None
    assert at(("s", 3, "q"), 0) is None
    # A stream that was deleted and created again is another one.
    assert at(("s", 9, "p"), 0) is None


def test_what_was_read_later_takes_the_place_of_what_was_known() -> None:
    def batch(base: int, count: int) -> RecordBatch:
        data = build([NewRecord(value="x")] * count)
        return decode_batch(data, base_offset=base, stream="s", partition="p")

    cache, here = BatchCache(), ("s", 3, "p")
    old = cache.add(here, [batch(0, 4), batch(4, 4), batch(8, 4)], BALLOT)
    new = cache.add(here, [batch(5, 2)], BALLOT.recovered())
    found = [cache.find(here, offset) for offset in range(12)]
    assert [each[1] if each else None for each in found] == [
        *[old] * 4,
        None,
        *[new] * 2,
        None,
        *[old] * 4,
    ]
    cache.drop(here, old)
    assert [offset for offset in range(12) if cache.find(here, offset)] == [5, 6]
    cache.drop(here, new)
    assert (cache._bytes, cache._bases) == (0, {})


async def test_what_the_log_has_lost_is_nobody_elses_input() -> None:
    """Offsets are counted again where a set was restored, or has lost a part of its log."""
    client = client_with(20, 10)
    loader = Loader(client)
    client.publish([NewRecord(value="lost")])
    refs = references([3, 20])
    rows = await load(loader, refs)
    assert rows.values().to_pylist() == ["v3", "lost"]
    client.partitions["in", PARTITION].lose(20)
    client.publish([NewRecord(value="another")])
    for _ in range(2):
        rows = await load(loader, refs)
        assert rows.values().to_pylist() == ["v3", "another"]
    assert client.fetches == 2
    # It is too short to have it.
    client.partitions["in", PARTITION].lose(10)
    rows = await load(loader, refs)
    assert set(rows.lost) == {1}


async def test_of_what_is_kept_the_log_is_asked_once_for_each_answer() -> None:
    client = client_with(100, 10)
    loader = Loader(client)
    await load(loader, references(list(range(100))))
    assert (client.fetches, client.asked) == (1, 0)
    await load(loader, references(list(range(100))))
    assert (client.fetches, client.asked) == (1, 1)
    # Whether those are of one history is not known where they came one after the other.
    client.publish([NewRecord(value="more")])
    await load(loader, references([100]))
    await load(loader, references([3, 50, 100]))
    assert (client.fetches, client.asked) == (2, 3)
    # Nobody can say any more of which history that was.
    client.partitions["in", PARTITION].trim(101)
    rows = await load(loader, references([100]))
    assert set(rows.lost) == {0}


async def test_records_that_are_damaged_at_their_source_are_marked() -> None:
    client = client_with(2, 2)
    loader = Loader(client)
    client.partitions["in", PARTITION].append(poison.INSIDE["garbage in zstd"])
    client.publish([NewRecord(value="after it")])
    refs = references([0, 5, 3, 1])
    rows = await load(loader, refs)
    assert set(rows.lost) == {2}
    assert "record in/local/p0/3 is damaged at its source" in rows.lost[2]
    kept = rows.only([True, True, False, True])
    assert inputs.to_table(STAGE, [1, 2, 4], kept, [])["root"].to_pylist() == [
        "v0",
        "after it",
        "v1",
    ]


async def test_records_that_are_gone_are_marked() -> None:
    client = client_with(30, 10)
    loader = Loader(client)
    client.partitions["in", PARTITION].trim(20)
    refs = references([25, 3, 20, 19])
    rows = await load(loader, refs)
    assert set(rows.lost) == {1, 3}
    assert len(set(rows.lost.values())) == 1
    assert "record in/local/p0/3 is not kept any more" in rows.lost[1]
    kept = rows.only([True, False, True, False])
    assert inputs.to_table(STAGE, [1, 3], kept, [])["root"].to_pylist() == ["v25", "v20"]


async def test_records_that_the_log_has_lost_are_not_said_to_have_been_dropped() -> None:
    client = client_with(10, 10)
    client.partitions["in", PARTITION].lose(10)
    rows = await load(Loader(client), references([3, 10, 15]))
    assert set(rows.lost) == {1, 2}
    for reason in rows.lost.values():
        assert "offset 10 is out of range (its log has lost records, by a recovery" in reason


async def test_what_is_wrong_with_one_place_is_so_for_its_rows_alone() -> None:
    """A stream that was deleted, a partition that a stream has no more, a batch that no disk has
    whole any more."""
    client = client_with(30, 10)
    client.gone["out", PARTITION] = NotFoundError("there is no stream 'out'")
    client.gone["in", "local/p1"] = NotFoundError("stream 'in' has no partition 'local/p1'")
    refs = references([25, 3, 4])
    refs += references([7], "out")
    refs += [pipelines_pb2.RecordRef(stream="in", partition="local/p1", offset=2)]
    rows = await load(Loader(client), refs)
    assert set(rows.lost) == {3, 4}
    assert "records of out/local/p0 cannot be read: there is no stream 'out'" in rows.lost[3]
    assert "stream 'in' has no partition 'local/p1'" in rows.lost[4]
    kept = rows.only([True, True, True, False, False])
    assert kept.values().to_pylist() == ["v25", "v3", "v4"]
    client.fail_calls("fetch", CorruptionError("entry 7 is damaged"))
    rows = await load(Loader(client), references([3, 5, 3]))
    assert set(rows.lost) == {0, 2}
    client.fail_calls("fetch", ClosedError("the client is closed"))
    with pytest.raises(ClosedError):
        await load(Loader(client), references([3]))


async def test_many_places_that_are_away_take_no_room_of_the_others(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - pytest-trio takes it from here
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them takes long to say so."""
    client = client_with(10, 10)
    fetch = client.fetch

    async def fetch_slowly(stream: str, partition: str, offset: int, **more: Any) -> Any:
        if partition != PARTITION:
            await trio.sleep(30)
            raise ConnectionLostError("away")
        return await fetch(stream, partition, offset, **more)

    monkeypatch.setattr(client, "fetch", fetch_slowly)
    away = [pipelines_pb2.RecordRef(stream="in", partition=f"us/p{n}", offset=0) for n in range(20)]
    loader = Loader(client)
    await load(loader, away)
    await trio.sleep(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(loader.load, [away], is_patient=False))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            assert not (await load(loader, references([3]))).away
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a", {"b": 1}], ["a", '{"b":1}']),
        ([b"a", b"\xff"], [b"a", b"\xff"]),
        (["a", b"\xff"], [b"a", b"\xff"]),
    ],
)
async def test_values_are_text_unless_one_is_bytes(
    values: list[object], expected: list[object]
) -> None:
    client = FakeClient([STAGE])
    client.publish([NewRecord(value=each) for each in values])
    rows = await load(Loader(client), references([0, 1]))
    assert rows.values().to_pylist() == expected


async def test_bytes_in_other_rows_do_not_matter() -> None:
    client = FakeClient([STAGE])
    client.publish([NewRecord(value="a", key="k"), NewRecord(value=b"\xff", key=b"\xff")])
    rows = await load(Loader(client), references([0]))
    assert rows.values().to_pylist() == ["a"]
    assert rows.keys().to_pylist() == ["k"]


async def test_dependencies_become_columns() -> None:
    client = client_with(4, 2)
    client.publish([NewRecord(value={"n": i}) for i in range(4)], "out")
    loader = Loader(client)
    root = await load(loader, references([0, 1, 2]))
    other = await load(loader, references([3, 1, 2], "out"))
    stage = StageSpec(name="s", run="a:b", dependencies=("first",))
    table = inputs.to_table(stage, [1, 2, 3], root, [other])
    assert table.column_names[:3] == ["instance_id", "root", "first"]
    assert table["first"].to_pylist() == ['{"n":3}', '{"n":1}', '{"n":2}']
    for *others, name in (["offset"], ["headers"], ["Root"], ["Price", "price"]):
        stage = StageSpec(name="s", dependencies=(*others, name))
        with pytest.raises(StageError, match=f"depends on '{name}'"):
            inputs.to_table(stage, [1, 2, 3], root, [other] * (len(others) + 1))


async def test_headers_come_with_their_rows() -> None:
    client = FakeClient([STAGE])
    client.publish([NewRecord(value="a"), NewRecord(value="b", headers={"trace": "7", "by": "x"})])
    client.publish([NewRecord(value="c", headers={"trace": "8"})])
    rows = await load(Loader(client), references([2, 0, 1, 2]))
    table = inputs.to_table(STAGE, [1, 2, 3, 4], rows, [])
    assert table.schema.field("headers").type == pa.map_(pa.string(), pa.string())
    assert [dict(each) for each in table["headers"].to_pylist()] == [
        {"trace": "8"},
        {},
        {"trace": "7", "by": "x"},
        {"trace": "8"},
    ]


def test_no_stage_has_the_name_of_a_column_that_all_get() -> None:
    assert {"instance_id", "root", "value", *inputs.ROOT_COLUMNS} == ROW_COLUMNS
