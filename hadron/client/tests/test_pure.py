"""The small pure parts: URLs, topology, partitioning, records, slices, acks."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.client.acks import MAX_SETTLED, AckBuffer, AckRange, LateAcks
from hadron.client.records import check_record, new_record
from hadron.client.slicing import slice_batch
from hadron.client.topology import Topology
from hadron.client.url import Endpoint, parse_url
from hadron.model.batch import BatchBuilder, decode_batch
from hadron.model.errors import InvalidRecordError, RequestError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.record import NewRecord, decode_value, encode_value
from hadron.wire.messages import cluster_pb2


class Name(str):
    """As of Django, numpy and the like: a str to `isinstance`, and no type that msgspec encodes."""

    __slots__ = ()


class Octets(bytes):
    pass


class Number(int):
    pass


class Mode(str, Enum):  # noqa: UP042 - an older one's str() is not its text
    FAST = "fast"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("hadron://127.0.0.1:7001", Endpoint(addresses=("127.0.0.1:7001",))),
        ("hadron://a,b:9,a", Endpoint(addresses=("a:7000", "b:9"))),
        ("hadron://a/ns.x", Endpoint(addresses=("a:7000",), namespace="ns.x")),
        ("hadron://a/", Endpoint(addresses=("a:7000",))),
        ("hadron://t0k@a?tls=1", Endpoint(addresses=("a:7000",), token="t0k", tls=True)),
        ("hadron://[::1]:7001,[::2]", Endpoint(addresses=("[::1]:7001", "[::2]:7000"))),
    ],
)
def test_urls(url: str, endpoint: Endpoint) -> None:
    assert parse_url(url) == endpoint


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://a", "http://a"),
        ("hadron://", "''"),
        ("hadron://a:port", "'port'"),
        ("hadron://a:0", "'0'"),
        ("hadron://a:70000", "'70000'"),
        ("hadron://::1", "'::1'"),
        ("hadron://a,,b", "''"),
        ("hadron://a/no/slash", "'no/slash'"),
        ("hadron://a?tls=yes", "'tls=yes'"),
        ("hadron://a?ssl=1", "'ssl=1'"),
    ],
)
def test_bad_urls_are_named(url: str, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_url(url)
    assert named in caught.value.message
    assert caught.value.hint


def answer(epoch: int, leader: str, *, by: str = "") -> cluster_pb2.TopologyResponse:
    """A statement about p, by its node `by` or a stranger."""
    nodes = [
        cluster_pb2.Node(
            name=name, role="leader" if name == leader else "replica", address=f"{name}:1"
        )
        for name in ("n1", "n2", "n3")
    ]
    return cluster_pb2.TopologyResponse(
        replica_sets=[cluster_pb2.ReplicaSet(name="p", epoch=epoch, nodes=nodes)],
        metadata="p", replica_set="p" if by else "", node=by,
    )


def test_the_higher_epoch_wins_whoever_says_it() -> None:
    topology = Topology()
    topology.merge(answer(2, "n2"))
    topology.merge(answer(1, "n1"))
    assert topology.leader("p") == "n2:1"
    topology.merge(answer(3, "n3"))
    assert topology.leader("p") == "n3:1"
    assert topology.leader("q") is None
    assert topology.addresses(["seed:1"]) == ["seed:1", "n1:1", "n2:1", "n3:1"]


def test_a_configuration_begins_with_its_leader() -> None:
    """n3 was started early with the file by which n2 leads; n1 serves on."""
    topology = Topology()
    topology.merge(answer(1, "n1", by="n1"))
    topology.merge(answer(2, "n2", by="n3"))
    topology.merge(answer(1, "n1", by="n2"))
    assert topology.rule("p") == (1, "n1")
    topology.merge(answer(2, "n2", by="n2"))
    assert topology.rule("p") == (2, "n2")
    # The old leader comes back with its old file.
    topology.merge(answer(1, "n1", by="n1"))
    assert topology.rule("p") == (2, "n2")


def test_an_old_leader_that_does_not_answer_is_not_waited_for() -> None:
    topology = Topology()
    topology.merge(answer(1, "n1", by="n1"))
    topology.merge(answer(2, "n2", by="n3"))
    topology.doubt("p")
    assert topology.rule("p") == (2, "n2")
    topology.merge(answer(1, "n1", by="n1"))
    assert topology.rule("p") == (1, "n1")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"value": 1, "key": 5}, "int"),
        ({"value": 1, "type": 5}, "type"),
        ({"value": 1, "type": "x" * 300}, "300"),
        ({"value": 1, "headers": {"a": 1}}, "'a'"),
        ({"value": 1, "headers": {1: "a"}}, "header"),
        ({"value": 1, "timestamp_ms": 1 << 63}, str(1 << 63)),
        ({"value": 1, "timestamp_ms": "now"}, "'now'"),
        ({"value": "\ud800"}, "Unicode"),
        ({"value": 1, "key": "\ud800"}, "Unicode"),
        ({"value": 1, "id": b"x"}, "id"),
        ({"value": 1, "type": b""}, "type"),
        *(({"value": 1, "type": wrong}, "is not a type") for wrong in (
            "bad type", "a..b", ".a", "a.", "*", ">", "a.*", "a.>", "a\tb", "a\n",
        )),
        ({"value": 1, "timestamp_ms": True}, "bool"),
        ({"value": 1, "timestamp_ms": 1.5}, "timestamp_ms 1.5"),
        ({"value": 1, "timestamp_ms": datetime(2013, 1, 1)}, "time zone"),
        ({"value": Name("\ud800")}, "Unicode"),
    ],
)
def test_records_that_would_not_encode_are_refused_alone(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRecordError, match=named):
        check_record(NewRecord(**fields))


@pytest.mark.parametrize("good", ["a", "order.placed", "urn:a/b#1", "größe.neu", "a-b_c.D9"])
def test_types_that_others_have_are_types(good: str) -> None:
    assert check_record(NewRecord(value=1, type=good)).type == good


def test_parts_of_a_record_are_plain_whatever_they_were_given_as() -> None:
    key: Any = bytearray(b"k")
    record = check_record(NewRecord(
        value=1, key=key, type=Mode.FAST, id=Name("i"), timestamp_ms=Number(7),
        headers={Name("a"): Name("b")},
    ))
    assert record == NewRecord(
        value=1, key=b"k", type="fast", id="i", timestamp_ms=7, headers={"a": "b"}
    )
    assert record.headers is not None
    parts = [record.key, record.type, record.id, record.timestamp_ms, *record.headers.items()]
    kinds = [set(map(type, part)) if isinstance(part, tuple) else type(part) for part in parts]
    assert kinds == [bytes, str, str, int, {str}]
    for sent, plain in ((Name("k"), "k"), (Octets(b"k"), b"k"), (memoryview(b"k"), b"k")):
        found = check_record(NewRecord(value=1, key=sent)).key  # type: ignore[arg-type]
        assert found == plain
        assert type(found) is type(plain)
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    fields: dict[str, Any] = {"value": 1, "type": None, "id": None, "timestamp_ms": noon}
    assert check_record(NewRecord(**fields)) == NewRecord(value=1, timestamp_ms=1_357_041_600_000)
    ours = NewRecord(value=1, key="k", type="t", id="i", timestamp_ms=7, partition="p")
    assert check_record(ours) is ours


def test_subclasses_of_text_and_bytes_are_values() -> None:
    for sent, plain in (
        (Name("x"), "x"), (Mode.FAST, "fast"), (Octets(b"x"), b"x"), (memoryview(b"x"), b"x"),
        ({"a": [Name("x")]}, {"a": ["x"]}), ({Name("a"): 1}, {"a": 1}), ({1: 2}, {"1": 2}),
        ({"a": Octets(b"x")}, {"a": "eA=="}), ({"1": 1, 2: None}, {"1": 1, "2": None}),
    ):
        found = decode_value(*encode_value(sent))
        assert found == plain
        assert type(found) is type(plain)


class Broken:
    def model_dump(self, **_: Any) -> Any:
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({(1, 2): 3}, r"its key \(1, 2\) is no text but tuple"),
        ({None: 1}, "its key None is no text but NoneType"),
        ({"a": {True: 1}}, r"at \['a'\]: its key True is no text but bool"),
        ([{1: "a", "1": "b"}], r"at \[0\]: its keys 1 and '1' are the same in JSON"),
        ({"a": {"b": [0, object()]}}, r"at \['a'\]\['b'\]\[1\]: object is no JSON value"),
        ({"a": [None, float("nan")]}, r"at \['a'\]\[1\]: .* NaN"),
        ({"a": "\ud800"}, r"at \['a'\]: .*surrogates"),
        (Broken(), "nothing"),
    ],
)
def test_what_is_no_json_is_named_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(InvalidRecordError, match=why):
        encode_value(value)


def test_a_new_record_is_not_given_its_fields_twice() -> None:
    record = NewRecord(value=1, key="k")
    assert new_record(record, None, "", None, None, "") is record
    with pytest.raises(InvalidRecordError):
        new_record(record, "other", "", None, None, "")


_records = st.lists(
    st.builds(
        NewRecord,
        value=st.one_of(st.binary(max_size=5), st.text(max_size=5), st.integers(-9, 9)),
        key=st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=3)),
        type=st.sampled_from(["", "a", "b.c"]),
        timestamp_ms=st.sampled_from([1, 2]),
        headers=st.sampled_from([None, {"h": "1"}]),
        id=st.sampled_from(["", "id"]),
    ),
    min_size=1,
    max_size=8,
)


@given(records=_records, data=st.data(), codec=st.sampled_from(["none", "zstd"]))
def test_a_slice_has_exactly_its_records(
    records: list[NewRecord], data: st.DataObject, codec: str
) -> None:
    builder = BatchBuilder()
    for record in records:
        builder.add(record, 7)
    whole = decode_batch(
        builder.build(codec=codec), base_offset=100, stream="s", partition="p"
    )
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    part = slice_batch(whole, start, stop)

    def seen(records: list[Any]) -> list[Any]:
        return [
            (r.value, r.key, r.type, r.timestamp_ms, dict(r.headers), r.id, r.offset)
            for r in records
        ]

    assert seen(part.records()) == seen(whole.records(start, stop))
    assert part.value_bytes() == whole.value_bytes()[start:stop]


@given(order=st.permutations(range(12)), taken_after=st.sets(st.integers(0, 11)))
def test_acks_in_any_order_become_the_fewest_ranges(
    order: list[int], taken_after: set[int]
) -> None:
    buffer = AckBuffer()
    ranges: list[AckRange] = []
    for count, offset in enumerate(order):
        buffer.add(1 + offset // 6, offset, offset, NO_BALLOT)
        if count in taken_after:
            ranges.extend(buffer.take())
    assert buffer.count == sum(1 for count in range(12) if count > max(taken_after, default=-1))
    last = buffer.take()
    acked = [n for entry in (*ranges, *last) for n in range(entry.first, entry.last + 1)]
    assert sorted(acked) == list(range(12))
    assert all(entry.delivery == 1 + entry.first // 6 for entry in (*ranges, *last))
    if not taken_after:
        assert last == [AckRange(1, 0, 5), AckRange(2, 6, 11)]


@pytest.mark.parametrize("attempt", [1, 2])
def test_another_record_at_the_offset_is_not_the_one_that_was_dealt_with(attempt: int) -> None:
    """The log was restored, or has lost its tail: each batch there is of another ballot."""
    late, old, now = LateAcks(), Ballot(1, 3), Ballot(2, 2)
    late.add(old, [AckRange(7, 4, 5, Ballot(1, 1)), AckRange(8, 6, 9, old)])
    assert late.claim(0, 5, now, attempt, Ballot(1, 1)) == [4, 5]
    assert late.claim(6, 7, now, attempt, Ballot(2, 1)) == []
    assert late.claim(8, 9, now, attempt, old) == [8, 9]


def test_refusals_are_counted_of_more_than_is_remembered() -> None:
    late, ballot = LateAcks(), Ballot(1, 1)
    ranges = [AckRange(1, 0, MAX_SETTLED - 1), AckRange(2, MAX_SETTLED, MAX_SETTLED + 4)]
    late.add(ballot, ranges)
    assert late.take() == [(ballot, ranges)]
    late.answered(ranges, [(MAX_SETTLED, MAX_SETTLED + 4)], 0)
    assert late.lost == 5
