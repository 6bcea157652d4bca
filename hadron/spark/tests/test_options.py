"""Options of the connector: what is understood, and how the rest is refused."""

from __future__ import annotations

import re

import pytest

from hadron.model.errors import RequestError
from hadron.spark.source.options import Position, parse_options, parse_sink_options


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADRON_URL", raising=False)
    options = parse_options({"stream": "flights"}, streaming=False)
    assert options.url == "hadron://127.0.0.1:7000"
    assert options.starting == Position("earliest")
    assert options.ending == Position("latest")
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.partitions == ()
    assert parse_options({"stream": "f"}, streaming=True).starting == Position("latest")


def test_everything_that_can_be_said() -> None:
    options = parse_options(
        {
            "Stream": "flights",
            "server": "hadron://a,b:7001/old?tls=1",
            "namespace": "ops",
            "partitions": "local/p0, local/p1",
            "startingoffsets": '{"local/p0": 5, "local/p1": -2}',
            "endingTimestamp": "1700000000000",
            "minPartitions": "8",
            "failOnDataLoss": "False",
            "includeHeaders": "true",
            "timezone": "+02:00",
        },
        streaming=False,
    )
    assert options.url == "hadron://a,b:7001/ops?tls=1"
    assert options.partitions == ("local/p0", "local/p1")
    assert options.starting == Position("offsets", {"local/p0": 5, "local/p1": -2})
    assert options.ending == Position("timestamp", at_ms=1_700_000_000_000)
    assert options.min_partitions == 8
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.time_zone == "+02:00"
    options = parse_options(
        {"stream": "flights", "maxoffsetspertrigger": "100", "groupid": "lag"}, streaming=True
    )
    assert (options.max_offsets_per_trigger, options.group) == (100, "lag")


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADRON_URL", "hadron://elsewhere")
    assert parse_options({"stream": "f"}, streaming=False).url == "hadron://elsewhere"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'stream' is missing"),
        ({"stream": "a b"}, "stream 'a b' is not a valid name"),
        ({"stream": "f", "server": "http://x"}, "not a Hadron URL"),
        ({"stream": "f", "namespace": "../x"}, "namespace '../x'"),
        (
            {"stream": "f", "startingOffset": "earliest"},
            "unknown option 'startingoffset' .did you mean 'startingOffsets'.. .known are server,",
        ),
        ({"steam": "f"}, "'steam' .did you mean 'stream'"),
        ({"path": "f"}, r"'path' .load.. takes no name: .option.\"stream\", NAME"),
        ({"subscribe": "f"}, r"'subscribe' .a stream is .option.\"stream\", NAME"),
        ({"kafka.bootstrap.servers": "x:9092"}, "'kafka.bootstrap.servers' .nodes are .option"),
        ({"stream": "f", "startingOffsets": "first"}, "'startingOffsets' is 'first'"),
        ({"stream": "f", "startingOffsets": '{"p": "1"}'}, "'startingOffsets' is"),
        ({"stream": "f", "startingOffsets": '{"p": -3}'}, "'startingOffsets' is"),
        ({"stream": "f", "startingOffsets": "{}"}, "'startingOffsets' is"),
        ({"stream": "f", "startingOffsets": "latest"}, "would read nothing"),
        (
            {"stream": "f", "endingOffsets": "earliest"},
            "'endingOffsets' is 'earliest' .use latest, or JSON such as",
        ),
        ({"stream": "f", "startingTimestamp": "x"}, "'x' .use an RFC 3339 time .* milliseconds"),
        ({"stream": "f", "startingTimestamp": "2020-01-01"}, "is '2020-01-01'"),
        ({"stream": "f", "endingTimestamp": "0"}, "'endingTimestamp' is '0'"),
        (
            {"stream": "f", "startingTimestamp": "1", "startingOffsets": "earliest"},
            "both startingOffsets and startingTimestamp",
        ),
        ({"stream": "f", "maxOffsetsPerTrigger": "9"}, "'maxOffsetsPerTrigger' is of a streaming"),
        ({"stream": "f", "groupId": "g"}, "'groupId' is for a streaming query"),
        ({"stream": "f", "minPartitions": "many"}, "'minPartitions' is 'many'"),
        ({"stream": "f", "timeZone": "Mars"}, "'timeZone' is 'Mars' .use a name such as"),
        *(
            ({"stream": "f", "timeZone": beyond}, re.escape(f"'timeZone' is '{beyond}' (use a"))
            for beyond in ("+99", "-24:00", "UTC+23:59:99", "-18:00:01", "+02:60", "+00:00:60")
        ),
        ({"stream": "f", "failOnDataLoss": "no"}, "'failOnDataLoss' is 'no'"),
    ],
)
def test_what_makes_no_sense_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_options(given, streaming=False)


@pytest.mark.parametrize("text", ["0", "0s", "0ms"])
def test_what_is_staged_is_kept_for_some_time(text: str) -> None:
    with pytest.raises(RequestError, match=f"'stagingTimeout' is '{text}' .use a time above 0"):
        parse_sink_options({"stream": "f", "stagingTimeout": text}, streaming=False)
    options = parse_sink_options({"stream": "f", "stagingTimeout": "90s"}, streaming=False)
    assert options.kept_s == 90
    assert parse_sink_options({"stream": "f"}, streaming=False).kept_s == 3_600


def test_a_micro_batch_has_a_record_at_least() -> None:
    with pytest.raises(RequestError, match="'maxOffsetsPerTrigger' is '0'"):
        parse_options({"stream": "f", "maxOffsetsPerTrigger": "0"}, streaming=True)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(RequestError, match="no end"):
        parse_options({"stream": "f", "endingOffsets": '{"p": 1}'}, streaming=True)


def test_times_are_written_as_everywhere_else_or_as_in_kafka() -> None:
    for text in ("1357016400000", " 2013-01-01T05:00:00Z"):
        options = parse_options({"stream": "f", "startingTimestamp": text}, streaming=True)
        assert options.starting == Position("timestamp", at_ms=1_357_016_400_000)
