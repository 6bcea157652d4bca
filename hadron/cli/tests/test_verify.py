"""`hadron verify` on files: what it prints, and the status it ends with."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from hadron.cli import main
from hadron.cli.commands import verify
from hadron.node.verified import Verified, VerifiedFile
from hadron.serving.tests.stack import leading
from hadron.storage.database import open_writer
from hadron.storage.identity import Owner
from hadron.storage.report import Report


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A closed node's data directory with a few records."""
    async with leading(tmp_path / "n1") as stack:
        stream = await stack.stream("events")
        for number in range(5):
            await stack.append(stream, b"value %d" % number)
    return tmp_path / "n1"


async def test_two_good_copies(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(directory, tmp_path / "n2")
    assert main(["verify", str(directory), str(tmp_path / "n2")]) == 0
    heading, first, *_, agreed, last = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["REPLICA", "SET", "NODE"]
    assert first.split()[:2] == ["local/p0", "n1"]
    # Two of one name: the directories tell which.
    both = f"n1 ({directory}), n1 ({tmp_path}/n2)"
    assert agreed.startswith(f"{both} agree up to entry 7 (chain ")
    assert last == "everything is right"


async def test_a_backup_beside_a_damaged_file_makes_nothing_right(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(directory / "monday"), "--data", str(directory)]) == 0
    with (directory / "hadron.db").open("r+b") as file:
        file.write(bytes(4096))
    capsys.readouterr()
    assert main(["verify", str(directory)]) == 1
    assert capsys.readouterr().out.endswith("1 problem found\n")
    assert main(["verify", str(directory / "monday")]) == 0


async def test_damage_is_named_and_fails(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        db.execute("UPDATE hadron_body SET bytes = zeroblob(length(bytes)) WHERE lsn = 4")
    assert main(["verify", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "problem at n1: the body of entry 4 does not match its hash\n" in out
    assert out.endswith("1 problem found\n")
    assert main(["verify", str(directory / "hadron.db"), "--output", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    (found,) = answer["files"][0]["problems"]
    assert (found["table"], found["lsn"]) == ("hadron_body", 4)


def test_a_running_cluster_is_told_without_what_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(last_lsn=53, committed_lsn=53, applied_lsn=53, entries=53)
    report.add("the body of entry 9 does not match its hash", table="hadron_body", lsn=9)
    file = VerifiedFile(
        Path("n2:7000"),
        Owner("local", "local/p0", "n2", b""),
        True,
        report,
        remedy="is being repaired from another member",
    )
    monkeypatch.setattr(verify, "_verify_live", lambda _url: Verified([file]))
    assert main(["verify", "--server", "hadron://n1:7000"]) == 1
    heading, _row, problem, remedy, last = capsys.readouterr().out.splitlines()
    assert "ROWS" not in heading
    # It may stand below COMMITTED: the node goes on.
    assert "CHECKED TO  COMMITTED" in heading
    assert "LAST" not in heading
    assert problem == "problem at n2: the body of entry 9 does not match its hash"
    assert remedy == "n2 is being repaired from another member; run `hadron verify` again"
    assert last == "1 problem found"


def test_what_was_not_looked_at_is_not_called_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(last_lsn=53, committed_lsn=53, applied_lsn=53, entries=53)
    report.skipped.append("the integrity check of a table, too large for a node that runs")
    file = VerifiedFile(Path("n2:7000"), Owner("local", "local/p0", "n2", b""), True, report)
    monkeypatch.setattr(verify, "_verify_live", lambda _url: Verified([file]))
    assert main(["verify", "--server", "hadron://n1:7000"]) == 0
    *_, undone, right, way_out = capsys.readouterr().out.splitlines()
    assert undone.startswith("n2: not done: the integrity check of a table")
    assert right == "everything that was looked at is right"
    assert way_out.endswith("stop a node, and run `hadron verify` with its directory")


def test_nothing_to_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "there is no" in capsys.readouterr().err


async def test_what_was_not_compared_is_said(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "hadron.db"
    shutil.copy(directory / "hadron.db", alone)
    assert main(["verify", str(directory), str(alone)]) == 0
    *_, first, second, last = capsys.readouterr().out.splitlines()
    assert first == f"{alone} was not compared: nothing beside it tells whose it is"
    assert second == "n1 was not compared: no other file of local/p0 was given"
    assert last == "everything that was looked at is right"
    main(["verify", str(directory), str(alone), "--output", "json"])
    assert [each["nodes"] for each in json.loads(capsys.readouterr().out)["not_compared"]] == [
        [str(alone)],
        ["n1"],
    ]


def test_entries_with_the_same_problem_are_told_as_a_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report()
    for lsn in (404, 405, 406, 408):
        report.add(f"entry {lsn} cannot be read: the page is damaged", lsn=lsn)
    for lsn in (409, 410):
        report.add(f"entry {lsn}: the body is another", lsn=lsn)
    report.add("entries are missing")
    report.add("entries are missing")
    verify.print_problems("n1", report)
    assert capsys.readouterr().out.splitlines() == [
        "problem at n1: entries 404\N{EN DASH}406 cannot be read: the page is damaged",
        "problem at n1: entry 408 cannot be read: the page is damaged",
        "problem at n1: entries 409\N{EN DASH}410: the body is another",
        "problem at n1: entries are missing",
        "problem at n1: entries are missing",
    ]
