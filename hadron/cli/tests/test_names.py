"""A named producer in the shell: an input that is published again is logged once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hadron.cli.heads import numbered
from hadron.cli.tests.test_live import good, run
from hadron.model.errors import RequestError
from hadron.model.record import NewRecord

pytestmark = pytest.mark.usefixtures("environment")


def test_a_file_that_is_published_twice_is_logged_once(tmp_path: Path) -> None:
    good("create", "stream", "orders")
    file = tmp_path / "orders.jsonl"
    lines = [json.dumps({"n": number, "who": f"c{number % 3}"}) for number in range(2_500)]
    file.write_text("\n".join(lines[:1_000]) + "\n")
    pub = ("pub", "orders", "--file", str(file), "--key-field", "who", "--name", "orders-2026")
    assert good(*pub) == "published 1,000 records to orders (local/p0 at 0 to 999)\n"
    assert good(*pub) == "published 0 records to orders; 1,000 had been before, under this name\n"
    # It grows, as a log does.
    file.write_text("\n".join(lines) + "\n")
    told = json.loads(good(*pub, "-o", "json"))
    assert (told["count"], told["before"]) == (1_500, 1_000)
    assert told["partitions"][0]["first_offset"] == 1_000
    read = good("read", "orders", "-f", "%s\\n").splitlines()
    assert [json.loads(each)["n"] for each in read] == list(range(2_500))
    # Another name is another input; without one each run is.
    assert good(*pub[:-1], "other").startswith("published 2,500 records ")
    assert good("pub", "orders", "x").startswith("published 1 record ")


@pytest.mark.parametrize(
    ("suffix", "content", "line", "cut", "expected"),
    [
        ("txt", "one\ntwo\nthree\n", 3, 3, ["one", "two", "three"]),
        ("jsonl", '{"n": 1}\n23\n', 2, 2, ['{"n": 1}', "23"]),
        ("csv", "n\n1\n23\n", 3, 2, ['{"n":"1"}', '{"n":"23"}']),
        # What has its newline has no end all the same: it is in a quoted field.
        ("csv", 'n\n1\n"2\n3"\n', 3, 3, ['{"n":"1"}', '{"n":"2\\n3"}']),
    ],
)
def test_a_line_that_is_still_being_written_is_left_for_the_next_run(
    tmp_path: Path, suffix: str, content: str, line: int, cut: int, expected: list[str]
) -> None:
    stream = f"growing-{suffix}-{cut}"
    good("create", "stream", stream)
    file = tmp_path / f"grows.{suffix}"
    pub = ("pub", stream, "--file", str(file), "--name", "n")
    file.write_text(content[:-cut])
    done = run(*pub)
    assert done.returncode == 0
    assert done.stderr == (
        f"note: {file}, line {line} has no end yet: left for the next run; --take-last takes it as "
        "it is\n"
    )
    assert done.stdout.startswith(f"published {len(expected) - 1} record")
    file.write_text(content)
    assert good(*pub).startswith(f"published 1 record to {stream}")
    assert good("read", stream).splitlines() == expected
    # Who knows that nothing more comes says so.
    file.write_text(content + content.splitlines()[-1].removesuffix('"'))
    if not content.endswith('"\n'):
        assert good(*pub, "--take-last").startswith(f"published 1 record to {stream}")


def test_another_input_under_the_same_name_is_refused(tmp_path: Path) -> None:
    good("create", "stream", "imports")
    first, other = tmp_path / "first.txt", tmp_path / "other.txt"
    first.write_text("a1\na2\na3\na4\n")
    pub = ("pub", "imports", "--name", "import-1", "--file")
    assert good(*pub, str(first)).startswith("published 4 records ")
    for content, told in (
        # What is passed over would be nowhere.
        ("x1\nx2\nx3\nx4\nx5\nx6\n", "the first 4 records are not those that were published"),
        ("a1\nx2\na3\na4\na5\n", "the first 4 records are not those that were published"),
        ("a1\na2\n", "the input has 2 records, and 4 had been published under the name"),
        ("", "the input has 0 records, and 4 had been published under the name"),
    ):
        other.write_text(content)
        refused = run(*pub, str(other))
        assert refused.returncode == 1
        assert told in refused.stderr
        assert "'import-1'" in refused.stderr
    assert good("read", "imports") == "a1\na2\na3\na4\n"
    # It was not spoilt for the input that it is of.
    first.write_text("a1\na2\na3\na4\na5\n")
    assert good(*pub, str(first)).startswith("published 1 record to imports ")


def _published(values: str, lasts: list[int], home: str) -> list[NewRecord]:
    """What `numbered` gives out of these one-letter records, one to a chunk; `home` says of each
    which partition's it is. `lasts` is changed as partitions log them."""
    logged = []
    for (record,) in numbered([[NewRecord(value=each)] for each in values], tuple(lasts), "n"):
        assert record.sequence is not None
        partition = int(home["abcdefxyz".index(record.value)])
        if record.sequence > lasts[partition]:
            lasts[partition] = record.sequence
            logged.append(record)
    return logged


def test_what_any_partition_would_log_waits_for_the_last_known_record() -> None:
    home = "010120222"  # x, y and z go to a partition that has nothing of the name.
    lasts = [-1, -1, -1]
    assert len(_published("abcd", lasts, home)) == 4
    before = list(lasts)
    with pytest.raises(RequestError, match="the first 3 records are not"):
        _published("xbcd", lasts, home)
    with pytest.raises(RequestError, match="the first 4 records are not"):
        _published("abcz", lasts, home)
    with pytest.raises(RequestError, match="has 3 records, and 4 had"):
        _published("abc", lasts, home)
    assert lasts == before
    assert [each.value for each in _published("abcdef", lasts, home)] == ["e", "f"]


def test_a_name_of_a_version_that_kept_no_hash_goes_on_with_its_numbers() -> None:
    chunks = [[NewRecord(value=each)] for each in "abcd"]
    sequences = [each.sequence for (each,) in numbered(chunks, (1, -1), "n")]
    assert sequences == [0, 1, 2, 3]
    with pytest.raises(RequestError, match="has 4 records, and 8 had"):
        list(numbered(chunks, (7, -1), "n"))


def test_what_a_name_may_not_be_used_with() -> None:
    good("create", "stream", "few")
    told = run("pub", "few", "x", "y", "--name", "n").stderr
    assert told.startswith("error: --name is for --file or stdin, not for VALUEs\n")
    condition = ("-l", "-", "--key", "k", "--expect-offset", "0", "--format", "raw")
    told = run("pub", "few", *condition, "--name", "n").stderr
    assert told.startswith("error: --name and a condition exclude each other\n")
    assert "--take-last is for --name" in run("pub", "few", "x", "--take-last").stderr
    refused = run("pub", "few", "--file", "-", "--name", "n", "--failover", "any")
    assert refused.returncode != 0
    assert "failover 'any' of the producer 'n'" in refused.stderr
    long = run("pub", "few", "--file", "-", "--name", "n" * 101)
    assert "101 characters is too long" in long.stderr
    assert good("read", "few") == ""
