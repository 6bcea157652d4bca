"""kcat's format tokens, JSON lines, positions, and tables that pipe well."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from hadron.cli.endpoints.calling import _print as _print_answer
from hadron.cli.exchanges import _value_line
from hadron.cli.inputs import Recipe
from hadron.cli.positions import MomentType, Position, PositionType, check_partitions
from hadron.cli.printing import print_rows
from hadron.cli.records import RecordPrinter, compile_format, json_line
from hadron.cli.standard_streams import Stdout
from hadron.client.exchanges.message import Message
from hadron.model import record as record_room
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import HadronError
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch


def record(new: NewRecord) -> Record:
    builder = BatchBuilder()
    builder.add(new, 0)
    batch = decode_batch(builder.build(), base_offset=41, stream="s", partition="local/p0")
    return batch.records()[0]


FULL = NewRecord(
    value={"a": "ü"}, key="k", type="x.y", timestamp_ms=1234, headers={"h": "1", "i": "2"}
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%k %s %o\\n", 'k {"a":"ü"} 41\n'),
        ("%t/%p/%o %T %y", "s/local/p0/41 1234 x.y"),
        ("%K,%S,%h", "1,10,h=1,i=2"),
        ("100%%\\t\\\\%o", "100%\t\\41"),
    ],
)
def test_format_tokens(form: str, expected: str) -> None:
    assert compile_format(form)(record(FULL)).decode() == expected


def test_missing_parts_are_empty_and_bytes_stay_bytes() -> None:
    assert compile_format("[%k|%y|%h|%s]")(record(NewRecord(value=b"\xff\0"))) == b"[|||\xff\0]"


@pytest.mark.parametrize("form", ["%x", "%", "\\q", "a\\"])
def test_unknown_tokens_are_refused(form: str) -> None:
    with pytest.raises(click.BadParameter, match="unknown"):
        compile_format(form)


@pytest.mark.parametrize("form", ["json", "jsonl", "table", "nosuch", "", "100%%\\n"])
def test_a_format_without_a_field_is_refused(form: str) -> None:
    with pytest.raises(click.BadParameter, match=r"names no field.*-o json prints JSON.*%s value"):
        compile_format(form)


def test_json_lines() -> None:
    assert json.loads(json_line(record(FULL))) == {
        "stream": "s",
        "partition": "local/p0",
        "offset": 41,
        "timestamp_ms": 1234,
        "type": "x.y",
        "key": "k",
        "value": {"a": "ü"},
        "headers": {"h": "1", "i": "2"},
        "id": "s/local/p0/41",
    }
    assert json.loads(json_line(record(NewRecord(value=b"text"))))["value"] == "text"
    assert json.loads(json_line(record(NewRecord(value=b"\xff"))))["value_base64"] == "/w=="


def test_events_come_out_as_they_went_in() -> None:
    events: list[dict[str, Any]] = [
        {
            "id": "1",
            "source": "/s",
            "type": "t",
            "partitionkey": "k",
            "subject": "a",
            "time": "2013-01-01T05:17:00Z",
            "tries": 3,
            "data": {"ü": [1, None]},
        },
        {"id": "2", "source": "/s", "type": "t", "datacontenttype": "text/plain", "data": "x"},
        {"id": "3", "source": "/s", "type": "t", "data_base64": "/w=="},
        {"id": "4", "source": "/s", "type": "t"},
    ]
    recipe = Recipe(None, None, "", {})
    for event in events:
        sent = recipe.event(json.dumps({"specversion": "1.0", **event}).encode(), "line 1")
        line = compile_format("cloudevents")(record(sent))
        assert line.endswith(b"\n")
        assert json.loads(line) == {"specversion": "1.0", **event}
    # Any record is one: its place is its source, and what it stands for its id.
    plain = json.loads(compile_format("cloudevents")(record(FULL)))
    assert (plain["source"], plain["type"], plain["data"]) == ("/s/local/p0", "x.y", {"a": "ü"})


def test_the_printer_stops_at_its_limit(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = RecordPrinter("%o\\n", None, 3)
    printer.print([record(FULL)] * 2)
    assert not printer.done
    printer.print([record(FULL)] * 2)
    assert printer.done
    assert capfdbinary.readouterr().out == b"41\n" * 3


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json"])
def test_numbers_keep_their_digits(
    capfdbinary: pytest.CaptureFixture[bytes], content_type: str | None
) -> None:
    """A value is text, as it was stored; where it has several lines, it is put on one."""
    digits = "12345678901234567.89"
    written = b'{"amount": 12345678901234567.89,\r\n "b\\n": [1E2, 1.10]}'
    stored = record(NewRecord(value=msgspec.Raw(written)))
    for output, said in {
        "json": f'"value": {{"amount": {digits}, "b\\n": [1E2, 1.10]}}, "headers": {{}}}}\n',
        "table": f'{{"amount":{digits},"b\\n":[1E2,1.10]}}\n',
    }.items():
        RecordPrinter(None, output, None).print([stored])
        assert capfdbinary.readouterr().out.decode().endswith(said)
    event = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"})
    kind = f', "datacontenttype": "{content_type}"' if content_type else ""
    line = f'{event[:-1]}{kind}, "data": {{"amount": {digits}}}}}'.encode()
    sent = record(Recipe(None, None, "", {}).event(line, "line 1"))
    assert json.loads(sent.value_bytes, parse_float=str) == {"amount": digits}
    again = record(Recipe(None, None, "", {}).event(compile_format("cloudevents")(sent), "line 1"))
    assert (again.encoding, again.value) == (sent.encoding, sent.value)
    assert json.loads(again.value_bytes, parse_float=str) == {"amount": digits}


@pytest.mark.parametrize("output", ["json", "table", "cloudevents"])
def test_what_can_be_read_and_not_be_written_is_passed_over(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """A text is read with as many levels as the stack has left; more of it is in use then."""
    deep = record(NewRecord(value=msgspec.Raw(b"[" * 10_000 + b"]" * 10_000)))
    form = output if output == "cloudevents" else None
    printer = RecordPrinter(form, None if form else output, None)
    with monkeypatch.context() as patched:
        patched.setattr(record_room, "decode_value", lambda *_: [])
        printer.print([deep])
    printer.print([record(FULL)])
    found = capfdbinary.readouterr()
    assert found.out.count(b"\n") == (2 if output == "table" else 1)
    assert b"passed over: record s/local/p0/41 is damaged at the source: its value is nested" in (
        found.err
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("count", [1, 100_000])
def test_a_full_disk_under_records_is_called_stdout(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        printer = RecordPrinter(None, None, None)
        with pytest.raises(HadronError, match="stdout cannot be written: No space left"):
            printer.print([record(FULL)] * count)
        with suppress(OSError):
            full.close()


def test_values_command_no_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe, and whoever asks for a format, gets the bytes."""
    rude = record(NewRecord(value="a\tä\nb\x1b[2J\x9b1m\r"))
    line = "a\tä\nb\x1b[2J\x9b1m\r\n".encode()
    RecordPrinter(None, None, None).print([rude])
    _print_answer(Stdout(), rude.value, "auto")
    assert capfdbinary.readouterr().out == line * 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    RecordPrinter("%s\\n", None, None).print([rude])
    _print_answer(Stdout(), rude.value, "text")
    assert capfdbinary.readouterr().out == line * 2
    RecordPrinter(None, None, None).print([rude, record(NewRecord(value=b"\xff\0"))])
    _print_answer(Stdout(), rude.value, "auto")
    Stdout().write(_value_line(Message(rude)))
    told = "a\tä\nb\\x1b[2J\\x9b1m\\r\n".encode()
    assert capfdbinary.readouterr().out == told + b"\\xff\\x00\n" + told * 2


def test_a_table_of_records_has_one_heading(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = RecordPrinter(None, "table", None)
    printer.print([record(FULL)])
    printer.print([record(NewRecord(value="text"))])
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert [line.split() for line in lines] == [
        ["PARTITION", "OFFSET", "TYPE", "KEY", "VALUE"],
        ["local/p0", "41", "x.y", "k", '{"a":"ü"}'],
        ["local/p0", "41", "-", "-", "text"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position("earliest")),
        ("beginning", Position("earliest")),
        ("end", Position("latest")),
        ("0", Position("offset", 0)),
        ("-10", Position("last", 10)),
        ("@1500", Position("time", 1500)),
        ("s@1500", Position("time", 1500)),
        ("1970-01-01T00:00:02Z", Position("time", 2000)),
        ("1970-01-02", Position("time", 86_400_000)),
    ],
)
def test_positions(text: str, expected: Position) -> None:
    assert PositionType().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("-1h", 3_600_000),
        ("-30m", 1_800_000),
        ("-2d", 172_800_000),
        ("-1h30m", 5_400_000),
        ("-1.5s", 1_500),
        ("-500ms", 500),
        ("-99999d", 1_800_000_000_000),
    ],
)
def test_positions_so_long_ago(text: str, ago_ms: int) -> None:
    now_ms = 1_800_000_000_000
    found = PositionType(lambda: now_ms).convert(text, None, None)
    assert found == Position("time", now_ms - ago_ms)


@pytest.mark.parametrize("text", ["-1x", "-1h30", "-1 hour", "-5H", "-1.2.3h"])
def test_what_is_no_time_ago_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no time ago: .* is not a duration, expected"):
        PositionType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-1h", 1_796_400_000),
        ("@1500", 1500),
        ("1970-01-01T00:00:02Z", 2000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_moments_are_read_as_in_positions(text: str, expected: int) -> None:
    assert MomentType(lambda: 1_800_000_000).convert(text, None, None) == expected
    assert PositionType(lambda: 1_800_000_000).convert(text, None, None).at_ms == expected


@pytest.mark.parametrize("text", ["5", "-5", "earliest", "noon", ""])
def test_moments_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is none of: so long ago"):
        MomentType().convert(text, None, None)


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--1", "2026-13-01"])
def test_positions_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is none of"):
        PositionType().convert(text, None, None)


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (Position("earliest"), 5),
        (Position("latest"), 20),
        (Position("offset", 7), 7),
        (Position("last", 3), 17),
        (Position("last", 99), 5),
        (Position("time", 1), 11),
    ],
)
def test_positions_in_a_partition(position: Position, offset: int) -> None:
    assert position.resolve(5, 20, 11) == offset


def test_partitions_are_read_once_each() -> None:
    known = ["a/p0", "b/p0", "c/p0"]
    assert check_partitions("s", (), known) == known
    assert check_partitions("s", ("b/p0", "a/p0", "b/p0"), known) == ["b/p0", "a/p0"]


def test_tables_are_not_wrapped_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows({"a": "A", "b": ">B"}, [{"a": "x" * 300, "b": 7}, {"a": "", "b": None}], "table")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["x" * 300, "7"]
    assert lines[2].split() == ["-", "-"]


def test_free_text_ends_where_the_terminal_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = {"a": "x" * 10, "b": "why " * 20 + "\nTraceback"}
    print_rows({"b": "~B", "a": "A"}, [row], "table")
    first = ("why " * 20).strip()
    assert capsys.readouterr().out.splitlines()[1] == f"{first}  {row['a']}"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_rows({"a": "A", "b": "~B"}, [row], "table")
    line = capsys.readouterr().out.splitlines()[1]
    assert len(line) <= 40
    assert line.endswith("…")


def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows({"a": "A"}, [{"a": 1, "hidden": [2]}], "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "hidden": [2]}]
