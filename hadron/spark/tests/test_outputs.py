"""What a stage function returned, turned into completions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hadron.model.limits import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from hadron.model.pipelines import Output as OutputSpec
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.spark.outputs import Output, encode, match_rows, pack
from hadron.spark.stage import StageResult

STAGE = StageSpec(name="s", run="a:b", output=OutputSpec(stream="out"))


def result(
    ids: list[int] | list[int | None], values: list[Any], *, is_json: bool = False, **more: Any
) -> StageResult:
    table = pa.table({"instance_id": pa.array(ids, pa.int64()), "value": values, **more})
    return StageResult(table, is_json)


def matched(given: StageResult, ids: list[int], stage: StageSpec = STAGE) -> Any:
    return match_rows(stage, given, ids, [1] * len(ids))


def read_back(outputs: list[Output]) -> list[Any]:
    data = encode(outputs, 5)
    assert data is not None
    return [record.value for record in decode_batch(data).records()]


def test_rows_are_brought_into_the_order_of_the_instances() -> None:
    found = matched(result([3, 1, 2], ["c", "a", "b"]), [1, 2, 3])
    assert [each.instance_id for each in found.outputs] == [1, 2, 3]
    assert read_back(found.outputs) == ["a", "b", "c"]
    assert (found.odd, found.failed, found.dropped) == ([], [], "")


def test_how_values_are_stored() -> None:
    values = ["plain", '{"a": [1]}', " [1, 2]", "{broken", "12", "", None]
    outputs = matched(result(list(range(7)), values), list(range(7))).outputs
    assert read_back(outputs) == ["plain", {"a": [1]}, [1, 2], "{broken", "12", "", None]
    outputs = matched(result([1, 2], [b"{}", b"\xff"]), [1, 2]).outputs
    assert read_back(outputs) == [b"{}", b"\xff"]
    given = result([1, 2, 3], ['{"a":1}', "12", None], is_json=True)
    outputs = matched(given, [1, 2, 3]).outputs
    assert read_back(outputs) == [{"a": 1}, 12, None]


def test_what_is_nested_too_deeply_is_text() -> None:
    deep = "[" * 2_000 + "]" * 2_000
    outputs = matched(result([1, 2], [deep, '{"a":' * 2_000]), [1, 2]).outputs
    assert read_back(outputs) == [deep, '{"a":' * 2_000]


def test_json_that_its_readers_could_not_decode_is_text() -> None:
    """Its syntax is right: who only looks whether it is JSON takes it for some."""
    texts = ['{"a":1e999}', "[-1e400]", "[" + "1" * 5_000 + "]"]
    outputs = matched(result([1, 2, 3], texts), [1, 2, 3]).outputs
    assert read_back(outputs) == texts


def test_a_variant_with_too_many_levels_is_refused_alone() -> None:
    deep = "[" * 2_000 + "]" * 2_000
    flat = "[" + "[1]," * 500 + "2]"
    found = matched(result([1, 2, 3], ["1", deep, flat], is_json=True), [1, 2, 3])
    assert [each.instance_id for each in found.outputs] == [1, 3]
    assert (
        "'s' returned a value that readers could not decode: maximum rec" in found.failed[0].reason
    )


@pytest.mark.parametrize("column", ["value", "key", "type", "partition", "error", "headers"])
def test_text_that_is_none_fails_its_instance_alone(column: str) -> None:
    """Spark's strings may be any bytes, such as binary that was cast."""
    bad = pa.array([b"\xff" * 30]).view(pa.string())
    if column == "headers":
        bad = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), bad)
    columns = {
        "value": pa.array(["a", "b", "c"]),
        column: pa.concat_arrays([pa.nulls(1, bad.type), bad, pa.nulls(1, bad.type)]),
    }
    given = StageResult(pa.table({"instance_id": pa.array([1, 2, 3]), **columns}), False)
    found = matched(given, [1, 2, 3])
    assert [each.instance_id for each in found.outputs] == [1, 3]
    (refused,) = found.failed
    assert refused.instance_id == 2
    said = f"… as a string in the column {column}, which is not UTF-8 (decode it"
    assert str(b"\xff" * 20) + said in refused.reason
    # Nobody takes it, so it does not matter.
    quiet = matched(given, [1, 2, 3], StageSpec(name="s", run="a:b"))
    assert len(quiet.outputs) == (2 if column == "error" else 3)


def test_keys_types_and_partitions() -> None:
    given = result([1, 2], ["a", "b"], key=["k", None], type=[None, "t"], partition=["x", None])
    assert matched(given, [1, 2]).outputs == [
        Output(1, 1, "x", NewRecord(value="a", key="k")),
        Output(2, 1, "", NewRecord(value="b", type="t")),
    ]
    fixed = StageSpec(name="s", run="a:b", output=OutputSpec(stream="out", partition="y"))
    outputs = matched(result([1, 2], ["a", "b"], partition=["x", None]), [1, 2], fixed).outputs
    assert [each.partition for each in outputs] == ["x", "y"], "a row's own goes before its stage's"


def test_headers() -> None:
    headers = pa.array([[("a", "1")], None, []], pa.map_(pa.string(), pa.string()))
    outputs = matched(result([1, 2, 3], ["x", "y", "z"], headers=headers), [1, 2, 3]).outputs
    assert [each.record.headers for each in outputs] == [{"a": "1"}, None, None]


def test_what_a_column_may_hold_and_no_record_is_refused_alone() -> None:
    kind = pa.map_(pa.string(), pa.string())
    headers = pa.array([None, [("a", None)], None, None], kind)
    given = result(
        [1, 2, 3, 4],
        ["x", "y", "z", "w"],
        headers=headers,
        type=["a.b", "a.b", "not a type", ""],
        key=[None, None, None, "k" * MAX_RECORD_BYTES],
    )
    completions, refused = pack(matched(given, [1, 2, 3, 4]).outputs, 5)
    assert [each.instance_id for one in completions for each in one.outputs] == [1]
    assert [each.instance_id for each in refused] == [2, 3, 4]
    assert "header 'a' is null" in refused[0].reason
    assert "'not a type' is not a type" in refused[1].reason
    assert "over the limit" in refused[2].reason


def test_an_error_fails_its_instance_alone() -> None:
    found = matched(result([1, 2, 3], ["a", None, "c"], error=[None, "no fuel", None]), [1, 2, 3])
    assert [each.instance_id for each in found.outputs] == [1, 3]
    assert [(each.instance_id, each.reason) for each in found.failed] == [
        (2, "function 'a:b' of stage 's' says: no fuel")
    ]


def test_missing_and_doubled_rows_are_odd() -> None:
    found = matched(result([1, 3, 3, 4], ["a", "b", "c", "d"]), [1, 2, 3, 4])
    assert [each.instance_id for each in found.outputs] == [1, 4]
    assert [each.instance_id for each in found.odd] == [2, 3]
    assert "no row for this instance (return" in found.odd[0].reason
    assert "several rows for this instance (return" in found.odd[1].reason


def test_rows_of_strangers_are_dropped_and_told() -> None:
    found = matched(result([1, 9, None, 8], ["a", "b", "n", "c"]), [1, 2])
    assert [each.instance_id for each in found.outputs] == [1]
    assert [each.instance_id for each in found.odd] == [2]
    assert read_back(found.outputs) == ["a"]
    assert "nobody's, 1 without an id and some of instances that it was not given: 8, 9 (pass" in (
        found.dropped
    )
    assert found.odd[0].reason.endswith(found.dropped)


def test_nothing_returned_at_all() -> None:
    found = matched(result([], pa.array([], pa.string())), [1, 2])
    assert found.outputs == []
    assert len(found.odd) == 2


def test_a_stage_without_an_output() -> None:
    stage = StageSpec(name="s", run="a:b")
    table = pa.table({"instance_id": pa.array([2, 1], pa.int64())})
    outputs = matched(StageResult(table, False), [1, 2], stage).outputs
    completions, refused = pack(outputs, 5)
    assert [(each.instance_id, each.record) for each in outputs] == [(1, None), (2, None)]
    assert [each.data for each in completions] == [None]
    assert refused == []


def outputs_of(values: list[Any], partitions: list[str] | None = None) -> list[Output]:
    return [
        Output(i, 1, partitions[i] if partitions else "", NewRecord(value=value))
        for i, value in enumerate(values)
    ]


def test_completions_are_split_by_partition() -> None:
    completions, _ = pack(outputs_of(["a", "b", "c"], ["x", "y", "x"]), 5)
    assert [[each.instance_id for each in one.outputs] for one in completions] == [[0, 2], [1]]


def test_completions_fit_into_batches() -> None:
    values = [bytes([i]) * 300_000 for i in range(20)] + [b"x" * (MAX_RECORD_BYTES - 16)]
    completions, refused = pack(outputs_of(values), 5)
    assert refused == []
    assert [each.instance_id for one in completions for each in one.outputs] == list(range(21))
    for one in completions:
        assert one.data is not None
        assert len(one.data) <= MAX_BATCH_BYTES
        assert decode_batch(one.data).count == len(one.outputs)


def test_long_types_are_split_too() -> None:
    outputs = [
        Output(i, 1, "", NewRecord(value=b"", type=f"{i}." + "t" * 10_000)) for i in range(400)
    ]
    completions, refused = pack(outputs, 5)
    assert refused == []
    assert len(completions) > 1
    assert [each.instance_id for one in completions for each in one.outputs] == list(range(400))


def test_a_type_that_is_none_is_refused_alone() -> None:
    """The leader would refuse the whole batch, again and again."""
    outputs = [Output(i, 1, "", NewRecord(value=b"", type=kind)) for i, kind in enumerate("a*b")]
    completions, refused = pack(outputs, 5)
    assert [each.instance_id for one in completions for each in one.outputs] == [0, 2]
    assert [(each.instance_id, "'*' is not a type" in each.reason) for each in refused] == [
        (1, True)
    ]


def test_a_value_over_the_limit_is_refused_alone() -> None:
    completions, refused = pack(outputs_of([b"a", b"x" * (MAX_RECORD_BYTES + 1), b"b"]), 5)
    assert [each.instance_id for one in completions for each in one.outputs] == [0, 2]
    assert [each.instance_id for each in refused] == [1]
    assert "over the limit" in refused[0].reason
