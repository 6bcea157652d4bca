"""YAML with lines: what is read, where it stands, and what is refused instead of guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model import marked_yaml
from hadron.model.errors import RequestError
from hadron.model.marked_fields import Fields, parse_whole
from hadron.model.marked_yaml import (
    MAX_FILE_BYTES,
    Items,
    Marked,
    Scalar,
    Table,
    line_at,
    parse_yaml,
    read_text,
)
from hadron.model.problems import Problems, did_you_mean, one_of, show_path


def _parse(text: str) -> tuple[list[Marked], list[str]]:
    problems = Problems("f.yaml")
    documents = parse_yaml(text, problems)
    return documents, problems.lines()


def _fields(text: str) -> tuple[Fields, Problems]:
    problems = Problems("f.yaml")
    (root,) = parse_yaml(text, problems)
    return Fields(root, problems), problems


def test_scalars_keep_their_text_and_line() -> None:
    (root,), problems = _parse("a: on\nb: 1:30\nc:\nd: '~'\ne: 2013-01-01\n")
    assert problems == []
    assert isinstance(root, Table)
    assert {key: entry.value for key, entry in root.entries.items()} == {
        "a": Scalar(1, "on", False),
        "b": Scalar(2, "1:30", False),
        "c": Scalar(3, "", True),
        "d": Scalar(4, "~", False),
        "e": Scalar(5, "2013-01-01", False),
    }


def test_documents_have_lines_of_the_file_and_empty_ones_are_left_out() -> None:
    documents, problems = _parse("---\na: 1\n---\n---\n# nothing\n---\n- 2\n---\n")
    assert problems == []
    assert [type(document) for document in documents] == [Table, Items]
    assert [document.line for document in documents] == [2, 7]


def test_values_are_counted_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text was read to its end first, however many it had: 17 s for 1 MiB of commas."""
    monkeypatch.setattr(marked_yaml, "MAX_NODES", 10)
    few = "".join(f"k{number}: {number}\n" for number in range(9))
    documents, problems = _parse(f"{few}---\n{few}")
    assert (len(documents), problems) == (2, [])
    documents, problems = _parse(f"{few}a: 1\n'\n")
    assert documents == []
    assert problems == ["f.yaml:10: more than 10 values, expected a smaller document"]


def test_line_of_a_path_is_its_own_or_the_enclosing_one() -> None:
    (root,), _ = _parse("a:\n  - b: 1\n    c: 2\n  - b: 3\n")
    assert line_at(root, ("a", 0, "c")) == 3
    assert line_at(root, ("a", 1, "b")) == 4
    assert line_at(root, ("a", 1, "c")) == 4
    assert line_at(root, ("a", 7, "c")) == 1
    assert line_at(root, ()) == 1


def test_aliases_are_followed() -> None:
    (root,), problems = _parse("a: &x {b: 1}\nc: *x\n")
    assert problems == []
    assert isinstance(root, Table)
    assert root.entries["c"].value == root.entries["a"].value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: the key 'a' again (first in line 1), expected each"),
        ("a:\n\tb: 1\n", "f.yaml:2: a tab in the indentation, expected spaces"),
        ("a: 1\nb: [1, 2\n", "f.yaml:3: expected ',' or ']', but got '<stream end>' while"),
        ("a: 1\n}\n", "f.yaml:2: "),
        ("a: !secret x\n", "f.yaml:1: the tag '!secret', expected plain values without tags"),
        ("a: !!python/name:os.system ''\n", "f.yaml:1: the tag 'tag:yaml.org,2002:python/name"),
        ("a: !!set {x}\n", "f.yaml:1: the tag 'tag:yaml.org,2002:set', expected"),
        ("? [a]\n: 1\n", "f.yaml:1: a key that is not text, expected a text key"),
        ("~: 1\n", "f.yaml:1: a key that is not text"),
        ("a: &x [1, *x]\n", "f.yaml:1: an alias that contains itself, expected values that end"),
        ("a: *nothing\n", "f.yaml:1: found undefined alias 'nothing', expected valid YAML"),
        ("a: 1\nb: \x00\n", "f.yaml:2: the character '\\x00', which YAML does not allow"),
        ('a: "\\ud800"\n', "f.yaml:1: half of a surrogate pair, expected text that UTF-8 can"),
        ('a: "\\UFFFFFFFF"\n', "f.yaml: text that PyYAML cannot read"),
        ("a: " + "[" * 5_000, "f.yaml: too many nested values, expected a flatter YAML file"),
    ],
)
def test_is_refused_with_its_line(text: str, expected: str) -> None:
    _, problems = _parse(text)
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_an_alias_bomb_is_refused() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
    )
    _, problems = _parse(bomb)
    assert len(problems) == 1
    assert "more than 100000 values, expected a smaller document" in problems[0]


@given(st.text(alphabet="ab:-[]{}&*!|>'\"\\#? \n\t~1\x00\ud7ff", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    documents, problems = _parse(text)
    assert all(isinstance(document, Scalar | Items | Table) for document in documents)
    assert all(problem.startswith("f.yaml") for problem in problems)


def test_a_file_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    problems = Problems("f.yaml")
    assert read_text(file, problems) == "a: 1\n"
    assert not problems


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    binary, large, nameless = tmp_path / "binary", tmp_path / "large", tmp_path / "a\0b"
    binary.write_bytes(b"a: 1\n\xff\xfe\x00")
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    cases = {
        tmp_path / "none": "f.yaml: there is no such file, expected a YAML file",
        tmp_path: "f.yaml: this is a directory, expected a YAML file",
        binary: "f.yaml:2: byte 0xff, which is not UTF-8, expected a YAML text file",
        large: f"f.yaml: more than {MAX_FILE_BYTES} bytes, expected a smaller YAML file",
        nameless: "f.yaml: cannot be read: ",
    }
    for file, expected in cases.items():
        problems = Problems("f.yaml")
        assert read_text(file, problems) == ""
        (line,) = problems.lines()
        assert line.startswith(expected)


def test_fields_read_by_type() -> None:
    fields, problems = _fields("t: x\nn: 5\nl: [a, 1]\nm: {k: v}\ns: [{k: v}]\nnone:\n")
    assert fields.text("t") == "x"
    assert fields.whole("n", 0) == 5
    assert fields.texts("l") == ("a", "1")
    nested, tables = fields.table("m"), fields.tables("s")
    assert nested is not None
    assert tables is not None
    assert nested.text("k") == tables[0].text("k") == "v"
    assert fields.text("none", "default") == "default"
    assert fields.texts("absent") == ()
    fields.finish()
    assert problems.lines() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t: [x]", "f.yaml:1: t is a list, expected text"),
        ("t: {a: x}", "f.yaml:1: t is a mapping, expected text"),
        ("n: five", "f.yaml:1: n: 'five', expected a whole number"),
        ("n: 1.5", "f.yaml:1: n: '1.5', expected a whole number"),
        ("n: 1" + "0" * 30, "f.yaml:1: n: '1000"),
        ("l: x", "f.yaml:1: l is the text 'x', expected a list, each text"),
        ("l:\n - a\n - [b]", "f.yaml:3: l[1] is a list, expected text"),
        ("l:\n - a\n -", "f.yaml:3: l[1] is empty, expected text"),
        ("m: x", "f.yaml:1: m is the text 'x', expected a mapping of keys to values"),
        ("s: {}", "f.yaml:1: s is a mapping, expected a list of mappings"),
        ("s: [x]", "f.yaml:1: s[0] is the text 'x', expected a mapping of keys to values"),
        ("\nmm: {}", "f.yaml:2: unknown key 'mm', expected one of t, n, l, m, s"),
        ("[x]", "f.yaml:1: the document is a list, expected a mapping of keys to values"),
    ],
)
def test_fields_note_what_does_not_fit(text: str, expected: str) -> None:
    fields, problems = _fields(text)
    fields.text("t")
    fields.whole("n", 0)
    fields.texts("l")
    fields.table("m")
    fields.tables("s")
    fields.finish()
    (line,) = problems.lines()
    assert line.startswith(expected)


def test_the_known_keys_are_listed_once() -> None:
    fields, problems = _fields("a: 1\nb: 2\ntt: 3\n")
    fields.text("t")
    fields.finish()
    assert problems.lines() == [
        "f.yaml:1: unknown key 'a', expected one of t",
        "f.yaml:2: unknown key 'b', expected one of the same keys",
        "f.yaml:3: unknown key 'tt', expected one of the same keys",
    ]


def test_required_keys_are_noted_when_missing_or_empty() -> None:
    fields, problems = _fields("a:\n")
    assert fields.required("a", parse_whole, 7, "a number") == 7
    assert fields.required("b", parse_whole, 8, "a number") == 8
    assert problems.lines() == [
        "f.yaml:1: a is missing, expected a number",
        "f.yaml:1: b is missing, expected a number",
    ]


def test_problems_are_listed_in_the_files_order_and_once() -> None:
    problems = Problems("f.yaml")
    problems.raise_as(RequestError)
    problems.add(9, "late", "x")
    problems.add(2, "early", "x")
    problems.add(9, "late", "x")
    with pytest.raises(RequestError) as caught:
        problems.raise_as(RequestError)
    assert caught.value.message == (
        "2 problems in f.yaml:\n  f.yaml:2: early, expected x\n  f.yaml:9: late, expected x"
    )


def test_words_for_messages() -> None:
    assert did_you_mean("durabilty", ["durability", "epoch"]) == " (did you mean 'durability'?)"
    assert did_you_mean("STREAM", ["Stream"]) == " (did you mean 'Stream'?)"
    assert did_you_mean("pbu", ["sub", "pub"]) == " (did you mean 'pub'?)"
    assert did_you_mean("x", ["durability"]) == did_you_mean("x", []) == ""
    assert one_of(["a"]) == "a"
    assert one_of(["a", "b", "c"]) == "a, b or c"
    assert show_path(("stages", 0, "retry", "backoff")) == "stages[0].retry.backoff"
