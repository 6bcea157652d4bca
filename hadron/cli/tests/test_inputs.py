"""Arguments, files and stdin become the records that people mean."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hadron.cli import inputs
from hadron.cli.commands import pub
from hadron.cli.inputs import Recipe, Source, one_value
from hadron.client.terms.results import BatchReceipt
from hadron.model.errors import HadronError, InvalidRecordError, PeerError, RecordFates
from hadron.model.record import JSON, NewRecord, decode_value, encode_value

PLAIN = Recipe(None, None, "", {})


def read(path: Path, recipe: Recipe = PLAIN, form: str | None = None) -> list[NewRecord]:
    source = Source.choose((), str(path), form)
    return [record for chunk in source.chunks(recipe) for record in chunk]


def sent(records: Iterable[NewRecord]) -> list[Any]:
    """What readers get."""
    return [decode_value(*encode_value(record.value)) for record in records]


def values(path: Path, form: str | None = None) -> list[Any]:
    return sent(read(path, form=form))


def test_arguments_are_text() -> None:
    (chunk,) = Source.choose(("a", "ü", "{}"), None, None).chunks(PLAIN)
    assert [record.value for record in chunk] == ["a", "ü", "{}"]


def test_arguments_are_json_when_asked() -> None:
    (chunk,) = Source.choose(('{"a": 1}', "[2]"), None, "jsonl").chunks(PLAIN)
    assert sent(chunk) == [{"a": 1}, [2]]


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ('{"by": "ann"}', None, {"by": "ann"}),
        ("[1]", None, [1]),
        ("yes", None, "yes"),
        ("17", None, "17"),
        ("{n}", None, "{n}"),
        ("-", None, "-"),
        ("", None, ""),
        ('{"by": "ann"}', "lines", '{"by": "ann"}'),
        ("17", "json", 17),
        ("a", "raw", b"a"),
        ("\udcff", None, b"\xff"),
    ],
)
def test_one_value_is_json_where_it_looks_like_some(
    text: str, form: str | None, expected: Any
) -> None:
    assert decode_value(*encode_value(one_value(text, form))) == expected


def test_digits_of_one_value_stay_as_they_are_written() -> None:
    assert encode_value(one_value('{"n": 1.50}', None))[1] == b'{"n": 1.50}'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("log.txt", b"one\ntwo\r\n\nlast", ["one", "two", "", "last"]),
        ("raw.bin", b"\xff\xfe\nx\n", [b"\xff\xfe", "x"]),
        ("a.jsonl", b'{"a": 1}\n\n[2]\n"text"\n', [{"a": 1}, [2], "text"]),
        ("a.ndjson", b"null", [None]),
        ("A.JSONL", b"[1]\n[2]\n", [[1], [2]]),
        ("A.Csv", b"x\n1\n", [{"x": "1"}]),
        ("a.json", b'\xef\xbb\xbf{\n "a": [1,\n  2]\n}\n', [{"a": [1, 2]}]),
        ("a.csv", b'x,y\n1,"two\nlines"\n', [{"x": "1", "y": "two\nlines"}]),
        ("empty.csv", b"", []),
        ("empty.txt", b"", []),
    ],
)
def test_the_file_name_decides(
    tmp_path: Path, name: str, content: bytes, expected: list[Any]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert values(path) == expected
    for suffix in ("gz", "GZ"):
        packed = tmp_path / f"{name}.{suffix}"
        packed.write_bytes(gzip.compress(content))
        assert values(packed) == expected


def test_the_format_given_wins(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    assert values(path, "lines") == ["a,b", "1,2"]


def test_long_files_keep_every_line(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    lines = [f"{number:0900}" for number in range(3_000)]
    path.write_text("\n".join(lines))
    assert values(path) == lines


def test_records_get_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "x"}\n{"id": 7}\n{"id": null}\n')
    records = read(path, Recipe(None, "id", "thing.made", {"a": "b"}))
    assert [record.key for record in records] == ["x", "7", None]
    assert {record.type for record in records} == {"thing.made"}
    assert records[0].headers == {"a": "b"}


def test_a_key_that_is_no_text_keeps_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fields = ["12345678901234567.1", "12345678901234567.3", "1.10", "1e40", "true", '[1.10,"é" ]']
    path.write_text("".join(f'{{"\\u0069d" : {field} }}\n' for field in fields))
    keys = [record.key for record in read(path, Recipe(None, "id", "", {}))]
    assert keys == [*fields[:-1], '[1.10, "é"]']


@pytest.mark.parametrize(
    ("name", "content", "recipe", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', PLAIN, "line 2 is not JSON"),
        ("a.jsonl", '{"a": 1}\n', Recipe(None, "b", "", {}), "line 1 has no field 'b'"),
        ("a.csv", "x,y\n1,2\n3\n", PLAIN, "line 3 has 1 fields, the heading has 2"),
        ("a.csv", 'x,y\n"1\n2\n', PLAIN, "line 2 is not CSV: a quoted field that begins in its"),
        ("a.csv", 'x\n"1\n2\n3"4\n', PLAIN, "line 4, in the row from line 2 is not CSV"),
        ("a.csv", 'x,y\n"1\n\n",2\n3\n', PLAIN, "line 5 has 1 fields, the heading has 2"),
        ("a.csv", 'x,y\n1\n"1\n\n",2\n', PLAIN, "line 2 has 1 fields, the heading has 2"),
        ("a.csv", "\nx,y\n1,2\n", PLAIN, "line 1 is empty"),
        ("a.csv", "\ufeff\r\nx,y\n", PLAIN, "line 1 is empty"),
        ("a.csv", "x\n" + "y" * (1 << 20), PLAIN, "line 2 cannot be sent"),
        ("a.csv", 'x\n"' + "y\n" * (2 << 20), PLAIN, "the row from line 2 cannot be sent: it has"),
        ("a.csv", "x,y,x\n1,2,3\n", PLAIN, "line 1 names 'x' twice"),
        ("a.jsonl", '{"a": 1}\n{"b": {"c": 1, "c": 2}}\n', PLAIN, "line 2 has the field 'c' twice"),
        ("a.jsonl", '{"a": [NaN]}\n', PLAIN, "line 1 is not JSON: it has neither NaN nor"),
        ("a.jsonl", '{"a": 1e400}\n', PLAIN, "line 1 is not JSON: Number out of range"),
        ("a.jsonl", '"\\ud800"\n', PLAIN, "line 1 is not JSON"),
        ("a.jsonl", "[" * 200_000, PLAIN, "line 1 is not JSON: maximum recursion depth"),
        (
            "a.txt",
            "a\n" + "x" * (3 << 20),
            PLAIN,
            "line 2 cannot be sent: it has more than the 1048576",
        ),
        ("a.txt", "a\n", Recipe(None, None, "t" * 300, {}), "line 1 cannot be sent: a type of 300"),
    ],
)
def test_malformed_input_is_refused_by_line(
    tmp_path: Path, name: str, content: str, recipe: Recipe, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InvalidRecordError, match=message):
        read(path, recipe)


def test_a_csv_file_of_another_encoding_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"name\nAnna\nRen\xe9e\n")
    with pytest.raises(InvalidRecordError, match="line 3 is not UTF-8: it has the byte 0xe9 at"):
        read(path, PLAIN)


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("latin-1", r"a\.jsonl, line 2 is not UTF-8: it has the byte 0xe9 at position 10"),
        ("utf-16", "line 1 is not UTF-8: it has the byte 0xff at position 0"),
    ],
)
def test_json_of_another_encoding_is_told_by_its_line(
    tmp_path: Path, encoding: str, told: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": "Anna"}\n{"n": "Ren\xe9e"}\n', encoding=encoding)
    with pytest.raises(InvalidRecordError, match=told) as caught:
        read(path, PLAIN)
    assert ("UTF-16" in caught.value.hint) == (encoding == "utf-16")


@pytest.mark.parametrize(("delimiter", "said"), [(";", ";"), ("\t", "\\t"), ("|", "|")])
def test_csv_with_another_delimiter(
    tmp_path: Path, delimiter: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"x{delimiter}y\n1{delimiter}2\n")
    assert len(read(path)) == 1
    assert f"a.csv, line 1 names one field, {f'x{delimiter}y'!r}; if it is several, say " in (
        told := capsys.readouterr().err
    )
    assert told.endswith(f"--delimiter '{said}'\n")
    [chunk] = Source.choose((), str(path), None, delimiter).chunks(PLAIN)
    assert [json.loads(encode_value(each.value)[1]) for each in chunk] == [{"x": "1", "y": "2"}]
    assert capsys.readouterr().err == ""


def test_json_goes_out_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"price": 1.10}\n  [0.1234567890123456789, 1E2] \r\n')
    stored = [encode_value(record.value) for record in read(path)]
    assert stored == [(JSON, b'{"price": 1.10}'), (JSON, b"[0.1234567890123456789, 1E2]")]


def test_a_json_file_is_one_record_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n  "price": 1.10,\n  "who": "a  b\\n"\n}\n')
    [record] = read(path, Recipe(None, "who", "", {}))
    assert encode_value(record.value) == (JSON, b'{"price":1.10,"who":"a  b\\n"}')
    assert record.key == "a  b\n"
    assert Source.choose((), str(path), None).is_one
    (chunk,) = Source.choose(('{"a": 1}', "2"), None, "json").chunks(PLAIN)
    assert sent(chunk) == [{"a": 1}, 2]
    # Many tools write JSON lines under this name.
    for content, hint in (('{"a": 1}\n{"a": 2}\n', "--format jsonl"), ("{", "--format lines")):
        path.write_text(content)
        with pytest.raises(InvalidRecordError, match=r"a\.json is not JSON") as caught:
            read(path)
        assert caught.value.hint.startswith(hint)


def test_raw_is_one_record_whatever_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\x00\r\n\xff\n\n" + gzip.compress(b"packed")
    path = tmp_path / "picture.csv.gz"
    path.write_bytes(content)
    assert [record.value for record in read(path, form="raw")] == [content]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    (chunk,) = Source.choose((), None, "raw").chunks(PLAIN)
    assert [record.value for record in chunk] == [content]
    (chunk,) = Source.choose(("a", "b"), None, "raw").chunks(PLAIN)
    assert [record.value for record in chunk] == [b"a", b"b"]
    path.write_bytes(b"")
    assert [record.value for record in read(path, form="raw")] == [b""]
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(InvalidRecordError, match="has more than the 1048576 bytes"):
        read(path, form="raw")


@pytest.mark.parametrize(
    "content", [b"not packed\n", gzip.compress(b"x\n" * 9_000)[:30]], ids=["not packed", "cut"]
)
def test_a_file_that_does_not_unpack_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidRecordError, match=r"a\.txt\.gz is not a whole gzip file"):
        read(path)


@pytest.mark.parametrize(("given", "path", "form"), [(("a",), "file", None), (("a",), None, "csv")])
def test_contradictions_are_usage_errors(
    given: tuple[str, ...], path: str | None, form: str | None
) -> None:
    with pytest.raises(click.UsageError):
        Source.choose(given, path, form)


@pytest.mark.parametrize("given", [(), ("-",)])
def test_stdin_is_read_without_waiting_for_its_end(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reading, open(write_end, "wb", buffering=0) as writing:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(reading))
        chunks = Source.choose(given, None, None).chunks(PLAIN)
        writing.write(b"first\nhalf a")
        assert [record.value for record in next(chunks)] == ["first"]
        writing.write(b" line\n")
        assert [record.value for record in next(chunks)] == ["half a line"]
        writing.close()
        assert list(chunks) == []


def test_csv_is_read_as_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reading, open(write_end, "wb", buffering=0) as writing:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(reading))
        chunks = Source.choose((), None, "csv").chunks(PLAIN)
        for written, expected in (
            (b"x,y\n1,a\n2,", [{"x": "1", "y": "a"}]),
            (b'"b\nc"\n3,"d\n', [{"x": "2", "y": "b\nc"}]),
            (b'\n""\n"\n4,5" long\n"6', [{"x": "3", "y": 'd\n\n"\n'}, {"x": "4", "y": '5" long'}]),
            (b'\n",""\n7,"8\n', [{"x": "6\n", "y": ""}]),
        ):
            writing.write(written)
            assert sent(next(chunks)) == expected
        writing.write(b"9\n")
        writing.write(b'0"')
        writing.close()
        assert [sent(chunk) for chunk in chunks] == [[{"x": "7", "y": "8\n9\n0"}]]


def test_a_csv_field_may_be_as_long_as_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "x\n" * 200_000
    path.write_text(f'\ufeff"a, b",c\n"{long}",1\n')
    assert values(path) == [{"a, b": long, "c": "1"}]


def test_a_failure_in_the_middle_tells_what_became_of_every_record() -> None:
    class Failing:
        fates: RecordFates | None = RecordFates(1_024, 0, 24)

        def send_many(self, chunk: list[NewRecord]) -> list[BatchReceipt]:
            if len(chunk) == 2:
                return [BatchReceipt("s", "eu/p0", 0, len(chunk), 0, False)]
            error = PeerError("not sent, and not in the log: 24 records to s/eu/p0", "make room")
            error.fates = self.fates
            raise error

    producer: Any = Failing()
    record = NewRecord(value=b"")

    def told(*chunks: int) -> str:
        with pytest.raises(HadronError) as caught:
            pub._publish(producer, [[record] * count for count in chunks])
        assert caught.value.hint == "make room"
        return caught.value.message.removeprefix("not sent, and not in the log: 24 records to ")

    assert told(2, 1_048) == (
        "s/eu/p0; in all 1026 records were published, 24 were not; nothing after these was tried"
    )
    producer.fates = RecordFates(1_000, 24, 24)
    assert told(1_048) == (
        "s/eu/p0; in all 1000 records were published, 24 were not, 24 may or may not have been; "
        "nothing after these was tried"
    )
    assert told(1) == "s/eu/p0"
    producer.fates = None
    assert told(2, 1_048) == "s/eu/p0; 2 records were published before that"


@pytest.mark.parametrize("form", ["lines", "csv"])
@pytest.mark.parametrize("path", ["-", "a.txt"])
def test_an_input_that_breaks_off_is_named_with_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, form: str
) -> None:
    class Broken(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if data := super().read1(size):
                return data
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    class Producer:
        def send_many(self, chunk: list[NewRecord]) -> list[BatchReceipt]:
            return [BatchReceipt("s", "eu/p0", 0, len(chunk), 0, False)]

    producer: Any = Producer()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(inputs, "_open", lambda *_, **__: Broken(b"a\nb\nc\n"))
    chunks = Source.choose((), path, form).chunks(PLAIN)
    count = "3 records were" if form == "lines" else "2 records were"
    named = "stdin" if path == "-" else path
    with pytest.raises(HadronError) as caught:
        pub._publish(producer, chunks)
    assert caught.value.message == (
        f"{named} cannot be read: {os.strerror(errno.EIO)}; {count} published before that"
    )


def test_nothing_to_publish_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    with pytest.raises(click.UsageError, match="nothing to publish"):
        Source.choose((), None, None)


def test_cloudevents_bring_their_attributes_along(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text(
        '{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "partitionkey": "k",'
        ' "data": [1]}\n\n{"specversion": "1.0", "id": "2", "source": "/s", "type": ""}\n'
    )
    chunk = Source.choose((), str(path), "cloudevents").chunks(Recipe(None, None, "", {"a": "b"}))
    with pytest.raises(InvalidRecordError, match=r"line 3: .*type"):
        next(chunk)
    path.write_text(path.read_text().splitlines()[0])
    [record] = read(path, Recipe(None, None, "", {"a": "b"}), "cloudevents")
    assert (record.id, record.key, record.type) == ("1", "k", "t")
    assert encode_value(record.value) == (JSON, b"[1]")
    assert record.headers == {"specversion": "1.0", "source": "/s", "a": "b"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "--subject", "x"], "--source and --type"),
        (["a", "--source", "/s"], "--source and --type"),
        (["a", "b", "--id", "1"], "--id is for one VALUE"),
        (["a", "b", "--format", "raw", "--id", "1"], "--id is for one VALUE"),
        (["a", "--format", "cloudevents", "--source", "/s", "--type", "t"], "all attributes"),
        (["a", "--format", "cloudevents", "--type", "t"], "all attributes, --id and --type too"),
        (["a", "--format", "cloudevents", "--id", "1"], "all attributes, --id and --type too"),
        (["-", "--file", "x"], "give - for stdin or --file, not both"),
        (["a", "-E", "x"], "NAME=VALUE"),
        (["a", "-H", "b=1", "-H", "b=2"], "'b' is given twice"),
        (["a", "-E", "b=1", "-E", "b=1"], "'b' is given twice"),
        (["a", "--timeout", "0s"], "no time at all"),
        (["a", "--format", "raw", "--key-field", "b"], "needs --format json, jsonl or csv"),
    ],
)
def test_options_that_make_no_event_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(pub.command, ["s", *arguments])
    assert (result.exit_code, said in result.output) == (2, True)
