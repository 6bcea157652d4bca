"""Every mistake in a schema document is told once, with its line and the way out."""

from __future__ import annotations

import pytest

from hadron.model.documents.reading import parse_documents
from hadron.model.errors import SchemaError

GOOD = """\
kind: Stream
name: flights
partitions: [aws.us-east-1/p0, gcp.us-east4/p0]
retention: {max_age: 7d, max_bytes: 10GiB}
---
kind: Pipeline
name: departures
replica_set: aws.us-east-1/p0
input: flights
triggers: [flight.departed]             # dot segments; * = one, > = the rest; none = all
start: earliest
max_parallel: 500
stages:
  - name: weather
    engine: spark
    run: hadron.demo.stages:join_weather     # DataFrame -> DataFrame
    output: {stream: flights-weather}
  - name: verdict
    dependencies: [weather]
    after: []
    delay: 0s
    timeout: 5m
    retry: {max_attempts: 5, backoff: 1s}
    run: hadron.demo.stages:verdict
    output: {stream: verdicts}
"""


STREAM_NAME = "1 to 100 of a-z A-Z 0-9 - _ and dots between non-empty segments"


@pytest.mark.parametrize(
    ("found", "replaced", "problem"),
    [
        # The document.
        (
            "kind: Stream",
            "kind: Steam",
            "1: unknown kind 'Steam' (did you mean 'Stream'?), "
            "expected one of Namespace, Stream, Pipeline",
        ),
        ("kind: Stream\n", "", "1: kind is missing, expected one of Namespace, Stream, Pipeline"),
        ("kind: Stream", "kind: [Stream]", "1: kind is a list, expected text"),
        (
            "kind: Pipeline",
            "kind: Pipeline\nkind: Stream",
            "7: the key 'kind' again (first in line 6), expected each key once",
        ),
        (
            "retention:",
            "retenton:",
            "4: unknown key 'retenton' (did you mean 'retention'?), expected "
            "one of kind, name, namespace, description, partitions, retention",
        ),
        (
            "name: flights",
            "name: flights\nspec: {}",
            "3: unknown key 'spec' (documents are flat: what is under it stands beside `kind`)",
        ),
        (
            "name: flights",
            "name: my flights",
            f"2: name: 'my flights' is not a valid name, expected {STREAM_NAME}",
        ),
        ("name: flights", "name: a..b", "2: name: 'a..b' is not a valid name"),
        ("name: flights", f"name: {'a' * 101}", "2: name: 'aaaa"),
        ("name: flights", "name: a/b", "2: name: 'a/b' is not a valid name"),
        ("name: flights", "name: {a: b}", "2: name is a mapping, expected text"),
        ("name: flights\n", "", f"1: name: missing, expected {STREAM_NAME}"),
        ("name: flights", "name: flights\nnamespace: a b", "3: namespace: 'a b' is not a valid"),
        (
            "name: flights",
            "name: flights\ndescription: [x]",
            "3: description is a list, expected text",
        ),
        (
            "name: flights",
            f"name: flights\ndescription: {'x' * 5001}",
            "3: description: 5001 characters, expected at most 5000 characters",
        ),
        # Streams.
        (
            "[aws.us-east-1/p0, gcp.us-east4/p0]",
            "[]",
            "3: partitions: no partitions, expected at least one replica set's name",
        ),
        (
            "[aws.us-east-1/p0, gcp.us-east4/p0]",
            "local/p0",
            "3: partitions is the text 'local/p0', expected a list, each text",
        ),
        (
            "[aws.us-east-1/p0, gcp.us-east4/p0]",
            "\n  - a/b\n  - a/b",
            "5: partitions[1]: 'a/b' again, expected each partition once",
        ),
        (
            "gcp.us-east4/p0",
            "gcp/us-east4/p0",
            "3: partitions[1]: 'gcp/us-east4/p0' is not a valid "
            "name, expected a replica set's name such as aws.us-east-1/p0",
        ),
        ("gcp.us-east4/p0", "[a]", "3: partitions[1] is a list, expected text"),
        (
            "max_age: 7d",
            "max_age: 7",
            "4: retention.max_age: '7' is not a duration, expected a "
            "duration such as 500ms, 1.5s, 5m, 1h30m or 7d",
        ),
        (
            "10GiB",
            "10 gigs",
            "4: retention.max_bytes: '10 gigs' is not a size, expected a size such "
            "as 512, 64KiB, 1MB or 10GiB",
        ),
        (
            "max_age",
            "max_rage",
            "4: unknown key 'retention.max_rage' (did you mean 'max_age'?), "
            "expected one of max_age, max_bytes",
        ),
        (
            "{max_age: 7d, max_bytes: 10GiB}",
            "7d",
            "4: retention is the text '7d', expected a mapping",
        ),
        # Pipelines.
        (
            "replica_set: aws.us-east-1/p0\n",
            "",
            "6: replica_set: missing, expected a replica set's",
        ),
        (
            "replica_set: aws",
            "replica_set: a/b/aws",
            "8: replica_set: 'a/b/aws.us-east-1/p0' is not",
        ),
        ("input: flights\n", "", "6: input: missing, expected the name of a stream"),
        (
            "input: flights",
            "input: a b",
            "9: input: 'a b' is not a valid name, expected the name of",
        ),
        (
            "[flight.departed]",
            "[flight..x]",
            "10: triggers[0]: 'flight..x' is not a pattern, expected "
            "dot segments such as flight.departed; a whole segment may be *, and the last one >",
        ),
        ("[flight.departed]", "[a, '>.b']", "10: triggers[1]: '>.b' is not a pattern"),
        ("[flight.departed]", "[fl*]", "10: triggers[0]: 'fl*' is not a pattern"),
        ("[flight.departed]", "['']", "10: triggers[0]: '' is not a pattern"),
        ("[flight.departed]", "['a b']", "10: triggers[0]: 'a b' is not a pattern"),
        ("[flight.departed]", "flight", "10: triggers is the text 'flight', expected a list"),
        (
            "start: earliest",
            "start: earlyest",
            "11: start: 'earlyest' is not a start (did you mean "
            "'earliest'?), expected earliest, latest, an offset, or an RFC 3339 time",
        ),
        ("start: earliest", "start: -1", "11: start: '-1' is not a start"),
        ("start: earliest", "start: 2013-01-01", "11: start: '2013-01-01' is not a start"),
        ("max_parallel: 500", "max_parallel: 0", "12: max_parallel: 0, expected 1 to 1000000"),
        (
            "max_parallel: 500",
            "max_parallel: many",
            "12: max_parallel: 'many', expected a whole number",
        ),
        (
            "max_parallel",
            "max_paralel",
            "12: unknown key 'max_paralel' (did you mean 'max_parallel'?)",
        ),
        # Stages.
        ("name: verdict", "name: ver dict", "18: stages[1].name: 'ver dict' is not a valid name"),
        ("name: verdict\n    d", "d", "18: stages[1].name: missing, expected 1 to 100 of"),
        (
            "name: verdict",
            "name: root",
            "18: stages[1].name: 'root' is a column that every stage's "
            "rows have, expected a name other than headers, instance_id, key",
        ),
        (
            "engine: spark",
            "engine: spork",
            "15: stages[0].engine: 'spork' is unknown (did you mean "
            "'spark'?), expected spark or handler",
        ),
        (
            "engine: spark",
            "engine: handler",
            "16: stages[0].run: 'hadron.demo.stages:join_weather', "
            "which only engine spark uses, expected no run with engine handler",
        ),
        (
            "    run: hadron.demo.stages:verdict\n",
            "",
            "18: stages[1].run: missing, expected the stage's function as package.module:function",
        ),
        (
            "stages:verdict",
            "stages.verdict",
            "24: stages[1].run: 'hadron.demo.stages.verdict' does not "
            "name a function, expected package.module:function",
        ),
        (
            "stages:verdict",
            "stages:verdict()",
            "24: stages[1].run: 'hadron.demo.stages:verdict()' does",
        ),
        (
            "stages:verdict",
            "2stages:verdict",
            "24: stages[1].run: 'hadron.demo.2stages:verdict' does",
        ),
        (
            "[weather]",
            "[wether]",
            "19: stages[1].dependencies[0]: there is no stage 'wether' (did you "
            "mean 'weather'?), expected one of weather",
        ),
        (
            "after: []",
            "after: [nothing]",
            "20: stages[1].after[0]: there is no stage 'nothing', expected one of weather",
        ),
        (
            "[weather]",
            "[weather, weather]",
            "19: stages[1].dependencies[1]: 'weather' again, expected each stage once",
        ),
        ("[weather]", "[verdict]", "19: stages[1].dependencies[0]: 'verdict' is the stage itself"),
        (
            "[weather]",
            "weather",
            "19: stages[1].dependencies is the text 'weather', expected a list",
        ),
        (
            "    output: {stream: flights-weather}\n",
            "",
            "18: stages[1].dependencies[0]: stage 'weather' "
            "has no output to depend on, expected an output there, or weather under after",
        ),
        ("delay: 0s", "delay: 5 minutes", "21: stages[1].delay: '5 minutes' is not a duration"),
        (
            "delay: 0s",
            "delay: 3651d",
            "21: stages[1].delay: 3651d is out of range, expected 0s to 3650d",
        ),
        (
            "timeout: 5m",
            "timeout: 0s",
            "22: stages[1].timeout: 0s is out of range, expected 1ms to",
        ),
        ("timeout: 5m", "timeout: [5m]", "22: stages[1].timeout is a list, expected a duration"),
        (
            "max_attempts: 5",
            "max_attempts: 0",
            "23: stages[1].retry.max_attempts: 0, expected 1 to 1000",
        ),
        ("backoff: 1s", "backoff: 1", "23: stages[1].retry.backoff: '1' is not a duration"),
        (
            "backoff: 1s",
            "back_off: 1s",
            "23: unknown key 'stages[1].retry.back_off' (did you mean "
            "'backoff'?), expected one of max_attempts, backoff",
        ),
        (
            "retry: {max_attempts: 5, backoff: 1s}",
            "retry: 5",
            "23: stages[1].retry is the text '5'",
        ),
        (
            "{stream: flights-weather}",
            "flights-weather",
            "17: stages[0].output is the text "
            "'flights-weather', expected a mapping of keys to values",
        ),
        (
            "{stream: flights-weather}",
            "{partition: a/b}",
            "17: stages[0].output.stream: missing, expected the name of a stream",
        ),
        ("{stream: flights-weather}", "{stream: a b}", "17: stages[0].output.stream: 'a b' is not"),
        (
            "{stream: verdicts}",
            "{stream: v, partition: a/b/c}",
            "25: stages[1].output.partition: "
            "'a/b/c' is not a valid name, expected a partition of the stream",
        ),
        (
            "{stream: verdicts}",
            "{stream: v, key: a}",
            "25: unknown key 'stages[1].output.key', expected one of stream, partition",
        ),
        (
            "    delay: 0s",
            "    dealy: 0s",
            "21: unknown key 'stages[1].dealy' (did you mean 'delay'?), "
            "expected one of name, engine, run, schema, dependencies, after, delay, timeout, "
            "retry, output",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(found: str, replaced: str, problem: str) -> None:
    assert found in GOOD
    with pytest.raises(SchemaError) as caught:
        parse_documents(GOOD.replace(found, replaced, 1), "f.yaml")
    assert caught.value.message.startswith(f"f.yaml:{problem}")


@pytest.mark.parametrize("column", ["Root", "KEY", "Instance_Id"])
def test_what_spark_takes_for_another_column_is_no_dependency(column: str) -> None:
    text = GOOD.replace("weather", column).replace(f":join_{column}", ":join")
    with pytest.raises(SchemaError) as caught:
        parse_documents(text, "f.yaml")
    assert (
        f"f.yaml:19: stages[1].dependencies[0]: Spark cannot tell the column '{column}' from "
        f"{column.lower()}, which every stage gets, expected another name for stage '{column}'"
    ) in caught.value.message
    # Nobody asks Spark for it here, nor is there such a column among those that it gives.
    for fine in (
        text.replace("dependencies:", "after:").replace("    after: []\n", ""),
        GOOD.replace("weather", "Value").replace(":join_Value", ":join"),
    ):
        assert len(parse_documents(fine, "f.yaml")) == 2


def test_two_dependencies_that_spark_takes_for_one_column_are_none() -> None:
    more = "  - {name: Weather, run: m:f, output: {stream: w}}\n"
    for engine, wrong in (("spark", True), ("handler", False)):
        stage = f"  - {{name: last, engine: {engine}, dependencies: [weather, Weather]"
        text = GOOD + more + stage + (", run: m:f}\n" if wrong else "}\n")
        if not wrong:
            assert len(parse_documents(text, "f.yaml")) == 2
            continue
        with pytest.raises(SchemaError) as caught:
            parse_documents(text, "f.yaml")
        assert caught.value.message == (
            "f.yaml:27: stages[3].dependencies[1]: Spark cannot tell the column 'Weather' from "
            "weather, expected another name for stage 'Weather', not only in upper or lower case"
        )
