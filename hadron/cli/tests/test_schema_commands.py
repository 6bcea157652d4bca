"""`apply`, `get`, `describe` and `delete` of all kinds against a real node, as people run them."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest
from click.shell_completion import BashComplete

from hadron.cli import main
from hadron.cli.root import root
from hadron.node.supervision.cluster import LocalCluster

pytestmark = pytest.mark.usefixtures("environment")

SCHEMA = """\
kind: Namespace
name: shop
---
kind: Stream
name: ticks
namespace: shop
partitions: [local/p0]
---
kind: Queue
name: emails
namespace: shop
replica_set: local/p0
lanes: [{name: priority, weight: 3}, {name: normal}]
lease: 30s
---
kind: Schedule
name: nightly
namespace: shop
cron: 0 3 * * *
target: {queue: emails, lane: normal}
---
kind: Exchange
name: prices
namespace: shop
replica_set: local/p0
---
kind: Endpoint
name: quote
namespace: shop
replica_set: local/p0
---
kind: Token
name: reader
namespace: shop
access: read
"""


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, stdin: str = "", stdout: io.StringIO | None = None) -> Done:
    """A command, without the half second that an interpreter takes to start."""
    out, error = stdout or io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        status = main(list(arguments))
    return Done(status, out.getvalue(), error.getvalue())


def good(*arguments: str, stdin: str = "") -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 0, done
    return done.stdout


def as_json(*arguments: str, stdin: str = "") -> Any:
    return json.loads(good(*arguments, "--output", "json", stdin=stdin))


@pytest.fixture
def declared(environment: None) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - comes first
    """All kinds; what `apply` said when it created them."""
    yield as_json("apply", "-f", "-", stdin=SCHEMA)
    good("delete", "-f", "-", "--allow-destructive", "--ignore-not-found", stdin=SCHEMA)


def test_all_kinds_are_stored_and_those_that_do_nothing_yet_are_named(
    declared: dict[str, Any],
) -> None:
    assert [change["action"] for change in declared["changes"]] == ["created"] * 7
    assert [note.split()[1] for note in declared["notes"]] == ["Queue", "Schedule", "Token"]
    again = run("apply", "-f", "-", stdin=SCHEMA)
    assert [line.split()[-1] for line in again.stdout.splitlines()] == ["unchanged"] * 7
    assert "note: kind Queue is only stored by this version" in again.stderr
    for kind in ("namespaces", "Stream", "queue", "SCHEDULES", "exchange", "endpoints", "token"):
        assert as_json("get", kind, "--namespace", "shop" if kind != "namespaces" else "")
    assert "priority,normal" in good("get", "queues", "-A")
    assert "queue emails normal" in good("get", "schedules", "-A")


def test_what_get_prints_as_yaml_changes_nothing_when_it_is_applied(
    declared: dict[str, Any],
) -> None:
    text = good("get", "all", "-A", "--output", "yaml")
    changes = as_json("apply", "-f", "-", stdin=text)["changes"]
    assert len(changes) == len(declared["changes"]) + 1
    assert {change["action"] for change in changes} == {"unchanged"}
    # Neither does a default that somebody writes out.
    spelled = SCHEMA.replace("lease: 30s", "max_attempts: 5")
    changes = as_json("apply", "-f", "-", stdin=spelled)["changes"]
    assert {change["action"] for change in changes} == {"unchanged"}


def test_a_tokens_secret_is_shown_once_and_stored_nowhere(
    declared: dict[str, Any], cluster: LocalCluster
) -> None:
    (secret,) = [change["secret"] for change in declared["changes"] if "secret" in change]
    assert secret.startswith("hadron_")
    (stored,) = as_json("get", "token", "reader", "-n", "shop")
    assert stored["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    again = run("apply", "-f", "-", stdin=SCHEMA.replace("access: read", "access: write"))
    assert again.returncode == 0
    assert "access: write" in again.stdout
    assert "secret" not in again.stdout
    assert as_json("get", "token", "reader", "-n", "shop")[0]["sha256"] == stored["sha256"]
    files = [path for path in cluster.directory.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_dry_run_makes_no_secret_and_changes_nothing() -> None:
    done = run("apply", "-f", "-", "--dry-run", stdin=SCHEMA)
    assert done.returncode == 0
    assert "Token shop/reader created (dry run)\n" in done.stdout
    assert "  +access: read\n" in done.stdout
    assert "secret" not in done.stdout
    assert "sha256" not in done.stdout
    assert as_json("get", "tokens", "-A") == []


@pytest.mark.long
def test_every_mistake_is_told_at_once_by_file_and_line(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("kind: Exchange\nname: x\nreplica_set: local/p0\ncolour: red\n")
    second.write_text(
        "kind: Stream\nname: s\npartitions:\n- local/p0\n- moon\n---\n"
        "kind: Schedule\nname: n\ncron: 0 3 * * *\ntarget: {queue: absent}\n"
    )
    done = run("apply", "-f", str(first), "-f", str(second))
    assert done.returncode == 1
    heading, *lines = done.stderr.splitlines()
    assert heading == "error: 3 problems in 2 files:"
    assert [line.split(", expected")[0] for line in lines] == [
        f"  {first}:4: unknown key 'colour'",
        f"  {second}:5: partitions[1]: there is no replica set 'moon'",
        f"  {second}:10: target.queue: there is no queue 'absent' in namespace default",
    ]
    # Without the first mistake it is the node that refuses, for the same lines.
    done = run("apply", "-f", str(second))
    assert [line.split(", expected")[0] for line in done.stderr.splitlines()] == [
        f"error: 2 problems in {second}:",
        *(line.split(", expected")[0] for line in lines[1:]),
    ]
    assert as_json("get", "streams", "-A") == []


@pytest.mark.long
def test_mistakes_are_told_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text("kind: Exchange\nname: x\nreplica_set: local/p0\ncolour: red\n")
    done = run("apply", "-f", str(path), "--server", "hadron://127.0.0.1:1")
    assert done.returncode == 1
    assert f"error: {path}:4: unknown key 'colour'" in done.stderr


def test_deleting_says_what_stands_in_the_way(declared: dict[str, Any]) -> None:
    done = run("delete", "queue", "emails", "-n", "shop")
    assert done.returncode == 1
    assert "deleting it loses its jobs, expected --allow-destructive" in done.stderr
    assert "Queue shop/emails: Schedule shop/nightly refers to it" in done.stderr
    described = as_json("describe", "queue", "emails", "-n", "shop")
    assert described["status"]["referred_by"] == ["Schedule shop/nightly"]
    assert good("delete", "schedules", "nightly", "--namespace", "shop", "--dry-run") == (
        "Schedule shop/nightly deleted (dry run)\n"
    )
    assert good("delete", "schedules", "nightly", "--namespace", "shop") == (
        "Schedule shop/nightly deleted\n"
    )
    done = run("delete", "schedules", "nightly", "--namespace", "shop")
    assert done.returncode == 1
    assert "Schedule shop/nightly: it does not exist" in done.stderr
    assert good("delete", "schedule", "nightly", "-n", "shop", "--ignore-not-found") == (
        "nothing to delete\n"
    )
    assert "Stream: 1" in good("describe", "namespace", "shop")
    # The default namespace is one more, the schedule one less.
    assert len(as_json("get", "all", "-A")) == len(declared["changes"])


def test_a_file_is_deleted_as_a_whole_or_not_at_all(
    declared: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA)
    done = run("delete", "-f", str(path))
    assert done.returncode == 1
    assert f"{path}:4: deleting it loses its records" in done.stderr
    assert f"{path}:9: deleting it loses its jobs" in done.stderr
    assert len(as_json("get", "all", "-A")) == len(declared["changes"]) + 1
    deleted = as_json("delete", "-f", str(path), "--allow-destructive")["deleted"]
    assert [item["name"] for item in deleted] == [
        "shop",
        "ticks",
        "emails",
        "nightly",
        "prices",
        "quote",
        "reader",
    ]
    assert [item["name"] for item in as_json("get", "all", "-A")] == ["default"]


@pytest.mark.parametrize(
    "arguments", [[], ["stream"], ["stream", "x", "-f", "f"], ["strem", "x"], ["all", "x"]]
)
def test_deleting_asks_for_one_way_to_say_what(arguments: list[str]) -> None:
    done = run("delete", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_default_namespace_stays() -> None:
    done = run("delete", "namespace", "default")
    assert done.returncode == 1
    assert "the default namespace cannot be deleted" in done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("get str", "stream"),
        ("describe schedules -n shop n", "nightly"),
        ("delete -n shop token ", "reader"),
        ("delete token ", ""),
    ],
)
@pytest.mark.usefixtures("declared")
def test_shells_complete_kinds_and_names(words: str, found: str) -> None:
    *before, last = words.split(" ")
    shell = BashComplete(root, {}, "hadron", "_HADRON_COMPLETE")
    assert [item.value for item in shell.get_completions(before, last)] == [found][: bool(found)]


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_diff_has_colours_on_a_terminal_only(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    done = run("apply", "-f", "-", "--dry-run", stdin=SCHEMA, stdout=Terminal())
    assert done.returncode == 0
    assert "+access: read" in done.stdout
    assert ("\x1b[32m" in done.stdout) == coloured
    assert "\x1b" not in run("apply", "-f", "-", "--dry-run", stdin=SCHEMA).stdout


def test_what_a_shorter_retention_drops_is_said_before(environment: None) -> None:  # noqa: ARG001
    text = "kind: Stream\nname: kept\npartitions: [local/p0]\n"
    good("apply", "-f", "-", stdin=text)
    good("pub", "kept", "a", "b", "c")
    shorter = text + "retention: {max_age: 1ms}\n"
    limited = text + "retention: {max_age: 1d, max_bytes: 1MiB}\n"
    # Within the millisecond or later: what counts is when it is asked for.
    time.sleep(0.01)
    for arguments in ((), ("--dry-run",)):
        done = run("apply", "-f", "-", *arguments, stdin=shorter)
        assert done.returncode == 1
        assert (
            "retention.max_age: 1ms instead of no limit, which drops what is older than 1ms at "
            "once: about 3 of 3 records, expected no limit, or --allow-destructive"
        ) in done.stderr
    older = "Stream default/kept: what is older than 1d goes at once"
    note = f"{older}: about 0 of 3 records, 3 within 1d"
    beyond = "Stream default/kept: what is beyond the newest 1MiB of a partition goes at once"
    insisted = ("apply", "-f", "-", "--dry-run", "--allow-destructive")
    assert run(*insisted, stdin=limited).stderr == f"note: {note}\nnote: {beyond}\n"
    assert as_json(*insisted, stdin=limited)["notes"] == [note, beyond]
    # Nothing goes by this at once, so nobody has to insist; it is said all the same.
    assert run("apply", "-f", "-", stdin=limited).stderr == f"note: {note}\nnote: {beyond}\n"
    # Longer is no loss, and neither is the same again.
    longer = text + "retention: {max_age: 2d, max_bytes: 1MiB}\n"
    for _ in range(2):
        assert run("apply", "-f", "-", stdin=longer) == (0, ANY, "")
    good("apply", "-f", "-", stdin=text)
    good("delete", "-f", "-", "--allow-destructive", stdin=text)
