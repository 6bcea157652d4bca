"""The commands against a real cluster of one node, as people and scripts run them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import hadron
from hadron.cli.tests.support import run_text
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.processes import wait_until

pytestmark = pytest.mark.usefixtures("environment")


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = run_text(*arguments, stdin=stdin)
    done.stderr = complaints(done.stderr)
    return done


def good(*arguments: str, stdin: str = "") -> str:
    done = run(*arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def complaints(error: str) -> str:
    """What a command has said beside that it still waits, as it does on a machine that is busy."""
    return "".join(
        line
        for line in error.splitlines(keepends=True)
        if not line.startswith(("trying ", "waiting for "))
    )


@contextmanager
def program(
    *arguments: str, stdin: int | None = None, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until it is told to stop; one that a failing test leaves is killed."""
    with subprocess.Popen(
        [sys.executable, "-m", "hadron", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def as_json(*arguments: str) -> Any:
    return json.loads(good(*arguments, "--output", "json"))


@pytest.fixture
def stream(
    request: pytest.FixtureRequest,
    environment: None,  # noqa: ARG001 - comes first
) -> str:
    name = f"s-{request.node.name}".replace("[", "-").replace("]", "")[:90]
    good("apply", "-f", "-", stdin=f"kind: Stream\nname: {name}\npartitions: [local/p0]\n")
    return name


def test_publish_and_read_back(stream: str) -> None:
    assert good("pub", stream, "one", "two", "--key", "k", "--type", "a.b") == (
        f"published 2 records to {stream} (local/p0 at 0 to 1)\n"
    )
    assert good("pub", stream, stdin="three\nfour\n").startswith("published 2 records")
    assert good("read", stream) == "one\ntwo\nthree\nfour\n"
    assert good("read", stream, "--partition", "local/p0", "--offset", "1", "--limit", "2") == (
        "two\nthree\n"
    )
    assert good("read", stream, "--from", "-1", "-f", "%o:%s;") == "3:four;"
    assert good("read", stream, "-c", "1", "-f", "%k %y %p %t\\n") == f"k a.b local/p0 {stream}\n"
    lines = good("read", stream, "--output", "json").splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["one", "two", "three", "four"]


def test_publish_files(stream: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"customer": "a", "total": 1.5}\n{"customer": "b", "total": 2}\n')
    answer = as_json("pub", stream, "--file", str(path), "--key-field", "customer")
    assert answer == {
        "stream": stream,
        "count": 2,
        "partitions": [{"partition": "local/p0", "count": 2, "first_offset": 0, "last_offset": 1}],
    }
    lines = good("read", stream, "--output", "json").splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["key"], record["value"]["total"]) for record in records] == [
        ("a", 1.5),
        ("b", 2),
    ]


def test_nothing_is_published_from_nothing(stream: str) -> None:
    assert good("pub", stream) == f"published 0 records to {stream}\n"


def test_a_bad_line_is_named_and_the_rest_counted(stream: str) -> None:
    done = run("pub", stream, "--format", "jsonl", stdin='{"a": 1}\n{"a": \n')
    assert done.returncode == 1
    assert done.stderr.startswith("error: line 2 is not JSON")
    assert "; no records were published before that\nhint: --format lines and" in done.stderr
    assert good("read", stream) == ""


def test_follow_until_the_limit(stream: str) -> None:
    good("pub", stream, "a", "b", "c")
    assert good("sub", stream, "--from", "earliest", "--limit", "2") == "a\nb\n"
    assert good("sub", stream, "--from", "-2", "-e") == "b\nc\n"
    assert good("sub", stream, "-e") == ""
    assert good("sub", stream, "--from", "@0", "-e", "-f", "%o ") == "0 1 2 "


def test_follow_what_comes_and_stop_at_ctrl_c(stream: str) -> None:
    with program("sub", stream, "--from", "earliest") as following:
        assert following.stdout is not None
        for value in ("early", "late"):
            good("pub", stream, value)
            assert following.stdout.readline() == f"{value}\n"
        following.send_signal(signal.SIGINT)
        out, error = following.communicate(timeout=30)
    assert (following.returncode, out, complaints(error).strip()) == (130, "", "")


def test_publishing_that_is_interrupted_tells_how_far_it_was(stream: str) -> None:
    with program("pub", stream, stdin=subprocess.PIPE) as publishing:
        assert publishing.stdin is not None
        publishing.stdin.write("one\n")
        publishing.stdin.flush()
        assert wait_until(lambda: good("read", stream) == "one\n", 30)
        publishing.send_signal(signal.SIGINT)
        out, error = publishing.communicate(timeout=30)
    assert (publishing.returncode, out) == (130, "")
    # It can be read a moment before its publisher has heard of that.
    told = complaints(error).strip()
    assert told == "interrupted; acknowledged before: local/p0 at 0" or re.fullmatch(
        r"interrupted; acknowledged before: nothing\n"
        r"1 record to \S+ may or may not be in the log: .*",
        told,
    )


def test_a_reader_that_leaves_ends_the_command(stream: str) -> None:
    good("pub", stream, *(f"{number:0900}" for number in range(300)))
    with program("read", stream) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == f"{0:0900}\n"
        reading.stdout.close()
        error = reading.stderr.read()
        assert (reading.wait(), complaints(error)) == (141, "")


def test_groups_go_on_where_they_were(stream: str) -> None:
    good("pub", stream, "a", "b", "c")
    assert good("sub", stream, "--group", "g", "-c", "1") == "a\n"
    assert good("sub", stream, "--group", "g", "-c", "1", "--ack", "none") == "b\n"
    # A group that is served still may begin with "c", which it has delivered less often.
    assert sorted(good("sub", stream, "--group", "g", "-c", "2").split()) == ["b", "c"]
    (row,) = as_json("group", "list", "--stream", stream)
    assert (row["group"], row["floor"], row["next_offset"], row["lag"]) == ("g", 3, 3, 0)
    assert stream in good("group", "list")


def test_a_group_keeps_its_options_and_refuses_others(stream: str) -> None:
    good("pub", stream, "a", "b", "c", "d", "e")
    options = ["--order", "key", "--ack-deadline", "30s", "--member", "m", "--heartbeat", "500ms"]
    joined = run("sub", stream, "-G", "g", "--from", "2020-01-01", "-c", "1", *options)
    assert (joined.stdout, joined.stderr) == ("a\n", "")
    assert good("sub", stream, "-G", "g", "-c", "2", "--batch-size", "3") == "b\nc\n"
    (described,) = as_json("group", "describe", "g", "--stream", stream)
    assert (described["options"]["order"], described["group"]["floor"]) == ("key", 3)
    refused = run("sub", stream, "-G", "g", "-c", "1", "--order", "strict")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has order 'key', this member asks for 'strict'" in refused.stderr
    told = run("sub", stream, "-G", "g", "-c", "1", "--from", "earliest")
    assert (told.returncode, told.stdout) == (0, "d\n")
    assert told.stderr.startswith(
        "group 'g' goes on where it was: --from is where a new one begins"
    )


def _find_the_stream_of_a_group(stream: str) -> None:
    own, of = f"own-{stream}", f"of-{stream}"
    assert good("sub", stream, "--group", own, "-c", "1", "--from", "earliest")
    (described,) = as_json("group", "describe", own)
    assert described["group"]["stream"] == stream
    missing = run("group", "describe", of)
    assert f"error: no stream has a group '{of}'" in missing.stderr
    assert "hint: `hadron group list` shows all" in missing.stderr
    good("create", "stream", of)
    good("pub", of, "x")
    assert good("sub", of, "--group", own, "-c", "1", "--from", "earliest")
    several = run("group", "describe", own)
    assert f"2 streams have a group '{own}': {of}, {stream}" in several.stderr
    assert f"hint: say which one: --stream {of}" in several.stderr
    good("group", "delete", own, "--stream", stream)
    good("delete", "stream", of, "--allow-destructive")


def test_groups_are_described_reset_and_deleted(stream: str) -> None:
    good("pub", stream, "a", "b", "c")
    assert good("sub", stream, "--group", "g", "-c", "2") == "a\nb\n"
    assert good("sub", stream, "--group", "g", "-c", "1", "--ack", "none") == "c\n"
    (described,) = as_json("group", "describe", "g", "--stream", stream)
    assert (described["group"]["floor"], described["group"]["lag"]) == (2, 1)
    assert described["options"]["order"] == "none"
    assert described["members"] == []
    assert described["group"]["oldest_age_ms"] > 0
    shown = good("group", "describe", "g", "--stream", stream)
    assert "local/p0: order none" in shown
    _find_the_stream_of_a_group(stream)
    assert "given back: 2 (" in shown
    (moved,) = as_json("group", "reset", "g", "--stream", stream, "--to", "-2")
    assert moved == {"partition": "local/p0", "floor_before": 2, "floor": 1}
    assert good("sub", stream, "--group", "g", "-c", "1") == "b\n"
    good("group", "reset", "g", "--stream", stream, "--to", "2020-01-01")
    assert good("sub", stream, "--group", "g", "-c", "1") == "a\n"
    assert "local/p0" in good("group", "delete", "g", "--stream", stream)
    assert as_json("group", "list", "--stream", stream) == []
    refused = run("group", "describe", "g", "--stream", stream)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has no group 'g'" in refused.stderr
    refused = run("group", "reset", "g", "--stream", stream, "--to", "1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has no group 'g'" in refused.stderr
    refused = run("group", "reset", "a b", "--stream", stream, "--to", "1", "--create")
    assert "'a b' is not a valid name" in refused.stderr
    (made,) = as_json("group", "reset", "g", "--stream", stream, "--to", "1", "--create")
    assert made == {"partition": "local/p0", "floor_before": 1, "floor": 1}
    assert good("sub", stream, "--group", "g", "-c", "1") == "b\n"


def test_who_deletes_a_dead_letter_stream_is_told_whose_it_was(stream: str) -> None:
    letters = f"{stream}-letters"
    url = os.environ["HADRON_URL"]
    spec = StreamSpec(partitions=("local/p0",))
    with hadron.connect_sync(url) as client:
        client.apply([SchemaObject(kind="Stream", name=letters, spec=spec)])
        with client.subscribe(stream, group="g", max_attempts=2, dead_letter=letters):
            pass
    assert "TROUBLE" not in good("group", "list", "--stream", stream)
    tried = run("delete", "stream", letters, "--allow-destructive", "--dry-run")
    assert tried.returncode == 0
    assert f"warning: group g of {stream} has its dead letters in {letters}" in tried.stderr
    done = run("delete", "stream", letters, "--allow-destructive")
    assert (done.returncode, "warning: group g" in done.stderr) == (0, True)
    shown = good("group", "list", "--stream", stream)
    assert "TROUBLE" in shown
    assert (
        f"its dead letter stream {letters!r} was deleted"
        in as_json("group", "list", "--stream", stream)[0]["trouble"]
    )
    shown = good("group", "describe", "g", "--stream", stream)
    assert f"2 attempts; its dead letter stream {letters!r} was deleted: records" in shown


def test_a_group_with_members_is_left_alone(stream: str) -> None:
    good("pub", stream, "a", "b")
    url = os.environ["HADRON_URL"]
    with hadron.connect_sync(url) as client, client.subscribe(stream, group="g") as members:
        next(iter(members))
        (described,) = as_json("group", "describe", "g", "--stream", stream)
        (member,) = described["members"]
        assert (member["in_flight"], member["delivered"]) == (2, 2)
        assert "MEMBER" in good("group", "describe", "g", "--stream", stream)
        for change in (("reset", "g", "--to", "latest"), ("delete", "g")):
            refused = run("group", *change, "--stream", stream)
            assert refused.returncode == 1
            assert "1 member is connected" in refused.stderr
        (moved,) = as_json("group", "reset", "g", "--stream", stream, "--to", "1", "--force")
        assert moved["floor"] == 1
        assert next(iter(members)).offset == 1


def test_a_group_without_limit_acknowledges_what_it_prints(stream: str) -> None:
    good("pub", stream, "a", "b")
    with program("sub", stream, "--group", "g", "--from", "1") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "b\n"
        with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
            assert wait_until(lambda: client.groups(stream)[0].floor == 2, 20)
        following.send_signal(signal.SIGINT)
        _, error = following.communicate(timeout=30)
    assert (following.returncode, complaints(error).strip()) == (130, "")


SCHEMA = textwrap.dedent("""\
    kind: Stream
    name: {name}
    partitions: [local/p0]
    retention: {{max_age: {age}}}
    """)


def test_apply_says_what_changes(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA.format(name="applied", age="7d"))
    assert good("apply", "-f", str(path), "--dry-run").startswith(
        "Stream default/applied created (dry run)\n  --- (nothing)\n"
    )
    assert run("describe", "stream", "applied").returncode == 1
    assert good("apply", "-f", str(path)) == "Stream default/applied created\n"
    assert good("apply", "-f", str(path)) == "Stream default/applied unchanged\n"
    path.write_text(SCHEMA.format(name="applied", age="1d"))
    changed = good("apply", "-f", str(path))
    assert changed.startswith("Stream default/applied changed\n")
    assert "  -  max_age: 7d\n  +  max_age: 1d\n" in changed
    assert "\x1b" not in changed
    (change,) = as_json("apply", "-f", str(path))["changes"]
    assert change["action"] == "unchanged"
    assert change["after"]["retention"] == {"max_age": "1d"}


def test_a_bad_document_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text("kind: Stream\nname: x\npartition: [local/p0]\n")
    done = run("apply", "-f", str(path))
    assert done.returncode == 1
    assert "schema.yaml:3" in done.stderr
    assert "Traceback" not in done.stderr


def test_get_and_describe(stream: str) -> None:
    good("pub", stream, "a", "b")
    assert stream in good("get", "streams")
    (found,) = as_json("get", "Stream", stream)
    assert found["partitions"] == ["local/p0"]
    described = good("describe", "stream", stream)
    assert "partitions:\n- local/p0\n" in described
    assert "records: 2\n" in described
    assert as_json("describe", "stream", stream)["status"]["partitions"][0]["next_offset"] == 2
    assert "default" in good("get", "namespaces")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pub", "absent", "x"], "error: no stream is called 'absent'"),
        (["read", "absent"], "error: no stream is called 'absent'"),
        (["get", "stream", "absent"], "error: there is no Stream 'absent'"),
        (["describe", "pipeline", "absent"], "error: there is no Pipeline 'absent'"),
        (["pipeline", "show", "absent"], "absent"),
        (["pipeline", "instances", "absent"], "absent"),
        (["status", "--server", "http://nowhere"], "error: "),
        (["status", "--context", "nowhere"], "error: there is no context 'nowhere'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_status_1_without_traceback(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_offset_that_is_not_there_is_named(stream: str) -> None:
    done = run("read", stream, "--offset", "99999")
    assert done.returncode == 1
    assert f"there is no offset 99999 in {stream}/local/p0, which has none" in done.stderr
    good("pub", stream, "a", "b")
    done = run("read", stream, "--offset", "3")
    assert "which has offsets 0 to 1\nhint: the next record gets 2; " in done.stderr
    assert good("read", stream, "--offset", "2") == ""


def test_an_unknown_partition_is_named(stream: str) -> None:
    done = run("read", stream, "--partition", "local/p9")
    assert done.returncode == 1
    assert "no partition 'local/p9'" in done.stderr
    assert "local/p0" in done.stderr


def test_status_of_every_node(cluster: LocalCluster) -> None:
    report = as_json("status")
    (node,) = report["nodes"]
    assert report["cluster"] == "local"
    assert (node["node"], node["state"], node["lag"]) == ("n1", "serving", 0)
    assert node["pid"] == cluster.pid("n1")
    assert node["trouble"] == []
    assert "serving" in good("status")


def test_contexts_reach_the_server(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADRON_URL")
    good("context", "set", "here", cluster.url)
    assert "serving" in good("status")
    assert "serving" in good("--context", "here", "status")


PIPELINE = """\
kind: Stream
name: {name}-in
partitions: [local/p0]
---
kind: Pipeline
name: {name}
replica_set: local/p0
input: {name}-in
start: earliest
stages:
  - {{name: only, engine: handler}}
"""


def test_pipelines_are_shown() -> None:
    good("apply", "-f", "-", stdin=PIPELINE.format(name="shown"))
    good("pub", "shown-in", "a", "b")
    assert "shown" in good("get", "pipelines")
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        assert wait_until(lambda: client.pipeline_progress("shown")[0].instances == 2, 20)
        # A runner that names no stages runs all of its engine.
        with client.run_stages("shown", engine="handler") as run:
            assert wait_until(
                lambda: client.pipeline_progress("shown")[0].stages[0].runners == 1, 20
            )
            run.close()
        assert wait_until(lambda: client.pipeline_progress("shown")[0].stages[0].runners == 0, 20)
    (row,) = as_json("pipeline", "show", "shown")
    assert (row["instances"], row["live"], row["stages"][0]["name"]) == (2, 2, "only")
    assert "shown: 0 of 2 instances done, 2 live" in good("pipeline", "show", "shown")
    listed = as_json("pipeline", "instances", "shown", "--status", "live")
    assert [each["root"] for each in listed] == ["shown-in/local/p0/0", "shown-in/local/p0/1"]
    assert "only=" in good("pipeline", "instances", "shown", "--limit", "1")
    assert good("pipeline", "instances", "shown", "--status", "done", "--output", "json") == "[]\n"


def test_attempts_and_how_fast_stages_are_are_shown() -> None:
    good("apply", "-f", "-", stdin=PIPELINE.format(name="tried"))
    good("pub", "tried-in", "a", "b")
    with (
        hadron.connect_sync(os.environ["HADRON_URL"]) as client,
        client.stage("tried", "only", runner="me/7", code_version="v3") as stage,
    ):
        for _ in range(2):
            invocation = next(iter(stage))
            if invocation.root.value == "a":
                invocation.fail("too cold", retryable=False)
            else:
                invocation.complete()
    row = as_json("pipeline", "show", "tried", "1")
    (tried,) = row["stages"][0]["tried"]
    assert tried.pop("ended_ms") > 0
    assert 0 <= tried.pop("took_ms") < 20_000
    assert tried == {"attempt": 1, "runner": "me/7", "code_version": "v3", "reason": "too cold"}
    shown = good("pipeline", "show", "tried", "2").splitlines()
    assert shown[-1].split()[:2] == ["only", "1"]
    assert shown[-1].split()[-3:] == ["me/7", "v3", "done"]
    stats = as_json("pipeline", "stats", "tried")
    (only,) = stats["stages"]
    assert stats["triggered_per_s"] == round(2 / 60, 2)
    assert (only["per_s"], only["done"], only["failed"], only["backlog"]) == (0.03, 1, 1, 0)
    assert 0 <= only["p50_ms"] <= only["p95_ms"] < 20_000
    assert "tried: 0.0 instances/s, 0 live, 1 failed" in good("pipeline", "stats", "tried")


def test_runners_with_different_code_are_told() -> None:
    good("apply", "-f", "-", stdin=PIPELINE.format(name="two"))
    good("pub", "two-in", "a")
    with (
        hadron.connect_sync(os.environ["HADRON_URL"]) as client,
        client.stage("two", "only", code_version="v3") as stage,
    ):
        invocation = next(iter(stage))
        row = as_json("pipeline", "show", "two", f"{invocation.instance_id}")
        assert row["stages"][0]["code_version"] == "v3"
        shown = good("pipeline", "show", "two", "1").splitlines()
        assert shown[-1].split()[-2:] == ["v3", "runs"]
        assert "different code" not in good("pipeline", "show", "two")
        with client.stage("two", "only", code_version="v4"):
            note = "runners of only have different code: v3, v4"
            assert wait_until(lambda: note in good("pipeline", "show", "two"), 20)
            assert note in good("pipeline", "stats", "two")
            (only,) = as_json("pipeline", "stats", "two")["stages"]
            assert only["code_versions"] == ["v3", "v4"]


WAITING = """
kind: Stream
name: {name}-in
partitions: [local/p0]
---
kind: Stream
name: {name}-answers
partitions: [local/p0]
---
kind: Pipeline
name: {name}
replica_set: local/p0
input: {name}-in
start: earliest
stages:
  - {{name: approve, wait: {{signal: true, timeout: 24h, on_timeout: escalate}},
     output: {{stream: {name}-answers}}}}
  - {{name: act, engine: handler, dependencies: [approve]}}
  - {{name: escalate, engine: handler}}
"""


def test_people_signal_stages() -> None:
    good("apply", "-f", "-", stdin=WAITING.format(name="ask"))
    assert "signal: true" in good("get", "pipeline", "ask", "-o", "yaml")
    good("pub", "ask-in", "a")
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        assert wait_until(lambda: client.pipeline_progress("ask")[0].instances == 1, 20)
    shown = " ".join(good("pipeline", "show", "ask", "1").split())
    assert shown.startswith("instance 1 of ask: live, made ")
    assert "of ask-in/local/p0/0" in shown
    assert "approve awaiting 0 - a signal, until 20" in shown
    assert "escalate waiting 0 - that another stage waits for too long" in shown
    (row,) = as_json("pipeline", "show", "ask")
    assert [(each["name"], each["waiting"]) for each in row["stages"]] == [
        ("approve", 1),
        ("act", 0),
        ("escalate", 0),
    ]
    lines = [line.split() for line in good("pipeline", "show", "ask").splitlines()]
    assert ["approve", "1", "0", "0", "0", "0", "0"] in lines
    graph = as_json("describe", "pipeline", "ask")["status"]["graph"]
    assert graph == [
        "approve · waits for a signal for 1d · output to ask-answers",
        "   └─ act · gets approve",
        "   └─ escalate · when approve has waited for too long",
    ]
    told = good("pipeline", "signal", "ask", "1", "approve", '{"by": "ann"}')
    assert told == "signalled: instance 1, stage approve\n"
    again = good("pipeline", "signal", "ask", "1", "approve")
    assert again == "stage approve of instance 1 had been signalled before: that one counts\n"
    said = as_json("read", "ask-answers")
    assert said["value"] == {"by": "ann"}
    (act, approve, escalate) = sorted(
        as_json("pipeline", "show", "ask", "1")["stages"], key=lambda each: each["name"]
    )
    assert (approve["status"], escalate["status"]) == ("done", "skipped")
    assert act["waits_for"] == "a runner with engine handler: there is none"
    for args, error in (
        (("7", "approve"), "has no instance 7: a signal is for one that is there already"),
        (("1", "act"), "stage 'act' of instance 1 of Pipeline default/ask waits for no signal"),
        (("1", "aprove", "x"), "has no stage 'aprove' (did you mean 'approve'?)"),
        (("0", "approve"), "0 is not in the range"),
    ):
        assert error in run("pipeline", "signal", "ask", *args).stderr
    assert "has no instance 9" in run("pipeline", "show", "ask", "9").stderr
    assert as_json("pipeline", "instances", "ask", "--failed") == []


def test_who_signals_what_has_failed_is_told() -> None:
    """That it was taken says only half of it: nothing goes on that waits for it."""
    good(
        "apply",
        "-f",
        "-",
        stdin=WAITING.format(name="late")
        + "  - {name: check, engine: handler, retry: {max_attempts: 1}}\n"
        + "  - {name: confirm, wait: {signal: true}, after: [check]}\n",
    )
    good("pub", "late-in", "a")
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        assert wait_until(lambda: client.pipeline_progress("late")[0].instances == 1, 20)
        for invocation in client.stage("late", "check"):
            invocation.fail("too cold", retryable=False)
            break
    said = run("pipeline", "signal", "late", "1", "approve", "yes")
    assert (said.returncode, said.stdout) == (0, "signalled: instance 1, stage approve\n")
    assert said.stderr == (
        "note: stage approve is done, and instance 1 has failed at stage check; it goes on once it "
        "is retried: hadron pipeline retry late --id 1\n"
    )
    assert run("pipeline", "signal", "late", "1", "confirm").stderr == (
        "note: nothing waits for it now: instance 1 has failed at stage check; it goes on, with "
        "this signal, once it is retried: hadron pipeline retry late --id 1\n"
    )
    again = as_json("pipeline", "signal", "late", "1", "approve")
    assert (again["first"], again["status"]) == (False, "failed")
    assert good("pipeline", "retry", "late", "--id", "1").startswith("1 instance runs again")
    stages = {each["name"]: each for each in as_json("pipeline", "show", "late", "1")["stages"]}
    assert (stages["approve"]["status"], stages["escalate"]["status"]) == ("done", "skipped")
    assert as_json("read", "late-answers")["value"] == "yes"


def test_failed_instances_are_retried() -> None:
    once = "only, engine: handler, retry: {max_attempts: 1}"
    good(
        "apply",
        "-f",
        "-",
        stdin=PIPELINE.replace("only, engine: handler", once)
        .replace("{max_attempts: 1}", "{{max_attempts: 1}}")
        .format(name="again"),
    )
    good("pub", "again-in", "a", "b", "c")
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        assert wait_until(lambda: client.pipeline_progress("again")[0].instances == 3, 20)
        flow = client.pipeline_progress("again")[0].id
        made = [each.created_ms for each in client.instances("again")]
        client.fail_stages(flow, "only", [1, 2], [1, 1], made[:2], "too cold")
    told = good("pipeline", "show", "again")
    assert "hadron pipeline retry again --failed" in told.replace("\n", " ")
    refused = run("pipeline", "retry", "again", "--id", "1", "--id", "3")
    assert refused.returncode == 1
    assert "instance 3 of pipeline 'again' has not failed: it is live" in refused.stderr
    assert run("pipeline", "retry", "again").returncode == 2
    assert run("pipeline", "retry", "again", "--failed", "--id", "1").returncode == 2
    absent = run("pipeline", "retry", "absent", "--failed")
    assert absent.returncode == 1
    assert "no pipeline is called 'absent'" in absent.stderr
    assert "has no instance 77" in run("pipeline", "retry", "again", "--id", "77").stderr
    assert good("pipeline", "retry", "again", "--id", "1").startswith("1 instance runs again")
    assert good("pipeline", "retry", "again", "--id", "1") == "nothing to do: retried already\n"
    some = ("pipeline", "retry", "again", "--failed")
    assert run("pipeline", "retry", "again", "--id", "1", "--stage", "only").returncode == 2
    assert "has no stage 'onyl' (did you mean 'only'?)" in run(*some, "--stage", "onyl").stderr
    assert as_json(*some, "--before", "2001-01-01T00:00:00Z")["retried"] == 0
    assert as_json(*some, "--stage", "only") == {"pipeline": "again", "retried": 1}
    assert good("pipeline", "retry", "again", "--failed") == "nothing of 'again' has failed\n"
    (row,) = as_json("pipeline", "show", "again")
    assert (row["live"], row["failed"]) == (3, 0)
    started = ("pipeline", "start", "again", "--stream", "again-in", "--offset")
    assert good(*started, "0", "--offset", "2") == "started: 4, 5\n"
    refused = run(*started, "9")
    assert refused.returncode == 1
    assert "offset 9 of Stream default/again-in is not there" in refused.stderr
    assert good("pipeline", "cancel", "again", "--id", "5") == "1 instance cancelled\n"
    assert good("pipeline", "cancel", "again", "--id", "5") == "nothing to do\n"
    assert run("pipeline", "cancel", "again").returncode == 2
    assert run("pipeline", "cancel", "again", "--id", "1", "--stage", "only").returncode == 2
    live = ("pipeline", "cancel", "again", "--live")
    absent = run(*live, "--stage", "onyl")
    assert absent.returncode == 1
    assert "pipeline 'again' has no stage 'onyl' (did you mean 'only'?)" in absent.stderr
    for then in ("2001-01-01T00:00:00Z", "2001-01-01", "-1h", "@0"):
        assert as_json(*live, "--before", then)["cancelled"] == 0
    assert as_json(*live, "--stage", "only") == {"pipeline": "again", "cancelled": 4}
    (row,) = as_json("pipeline", "show", "again")
    assert (row["live"], row["cancelled"]) == (0, 5)


def test_backfills_start_where_reading_may() -> None:
    good("apply", "-f", "-", stdin=PIPELINE.format(name="fill"))
    good("pub", "fill-in", "a", "b", "c")
    with hadron.connect_sync(os.environ["HADRON_URL"]) as client:
        assert wait_until(lambda: client.pipeline_progress("fill")[0].instances == 3, 20)
    fill = ("pipeline", "backfill", "fill")
    assert as_json(*fill) == []
    (filling,) = as_json(*fill, "--from", "earliest", "--to", "2", "--again")
    assert (filling["from_offset"], filling["to_offset"], filling["again"]) == (0, 2, True)
    assert as_json("pipeline", "show", "fill")[0]["backfills"][0]["number"] == 1
    assert wait_until(lambda: as_json(*fill)[0]["status"] == "done", 20)
    assert as_json(*fill)[0]["created"] == 2
    assert "backfill 1 is done: it cannot be paused any more" in run(*fill, "--pause", "1").stderr
    told = run(*fill, "--from", "-1", "--to", "1").stderr
    assert "--from is not before --to: in local/p0 they are the offsets 2 and 1" in told
    assert run(*fill, "--from", "yesterday").returncode == 2
    assert run(*fill, "--pause", "1", "--cancel", "1").returncode == 2
    assert run(*fill, "--per-second", "7").returncode == 2
    told = run(*fill, "--from", "2100-01-01T00:00:00Z").stderr
    assert "nothing to do: fill has read up to local/p0 3, and makes instances of all" in told
    ago = as_json(*fill, "--from", "-1h", "--to", "-1", "--again")[1]
    assert (ago["from_offset"], ago["to_offset"]) == (0, 2)
    day = as_json(*fill, "--from", "2013-01-01", "--to", "1", "--again")[2]
    assert (day["from_offset"], day["to_offset"]) == (0, 1)
    assert wait_until(lambda: {each["status"] for each in as_json(*fill)} == {"done"}, 20)
    assert as_json("pipeline", "cancel", "fill", "--live")["cancelled"] == 8
    shown = as_json("pipeline", "instances", "fill", "--status", "cancelled")
    assert [each["id"] for each in shown] == [*range(1, 9)]


def test_dev_serves_in_the_foreground(tmp_path: Path) -> None:
    from hadron.node.supervision.cluster import free_ports

    port, http = free_ports(2)
    given = ("--data", str(tmp_path / "d"), "--port", str(port), "--http-port", str(http))
    with program("dev", *given, stderr=subprocess.DEVNULL) as node:
        assert node.stdout is not None
        assert f"hadron://127.0.0.1:{port}" in node.stdout.readline()
        url = f"hadron://127.0.0.1:{port}"
        with urlopen(f"http://127.0.0.1:{http}/healthz") as answer:
            assert answer.read() == b'{"status":"ok"}'
        assert wait_until(lambda: "serving" in good("status", "--server", url), 30)
        # Whatever its ports are: the directory is what there is one of.
        for more in (given, (*given[:2], "--port", str(free_ports(1)[0]))):
            second = run("dev", *more)
            assert (second.returncode, second.stdout) == (1, "")
            assert second.stderr == (
                f"error: the data directory {tmp_path / 'd'} is in use by process {node.pid}\n"
                "hint: stop that node first, or choose another directory with --data\n"
            )
        node.send_signal(signal.SIGINT)
        assert node.wait(timeout=30) == 0


@pytest.mark.long
@pytest.mark.spark
def test_a_stage_runner_works_until_ctrl_c(tmp_path: Path) -> None:
    from importlib.resources import files

    from hadron.demo.flights import load_flights

    flights = tmp_path / "flights.jsonl"
    flights.write_text("".join(json.dumps(flight) + "\n" for flight in load_flights()[:20]))
    good("apply", "-f", str(files("hadron.demo") / "schema.yaml"))
    good("pub", "flights", "--file", str(flights), "--type", "flight.departed")
    with program("pipeline", "run", "departures") as runner:
        assert runner.stdout is not None
        while (line := runner.stdout.readline()) and not line.startswith("verdict: 20 of 20"):
            assert line.startswith("weather: 20 of 20")
        runner.send_signal(signal.SIGINT)
        out, error = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert out == "completed 40 stages in 2 micro-batches\n"
    assert "finishing what is under way" in error
    assert "Traceback" not in error
    (row,) = as_json("pipeline", "show", "departures")
    assert (row["done"], row["failed"], row["input_lag"]) == (20, 0, 0)


FAULTY = """\
from pyspark.sql import functions as F

def loud(text):
    return text.upper() + "!"

@F.udf("string")
def shout(text: str) -> str:
    {guard}
    return loud(text)

def stage(df):
    return df.select("instance_id", shout("root").alias("value"))
"""
FAULTY_PIPELINE = """\
kind: Stream
name: faulty-in
partitions: [local/p0]
---
kind: Stream
name: faulty-out
partitions: [local/p0]
---
kind: Pipeline
name: faulty
replica_set: local/p0
input: faulty-in
start: earliest
stages:
  - {{name: shout, run: "{module}:stage", output: {{stream: faulty-out}},
     retry: {{max_attempts: 1}}}}
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_from_a_mistake_to_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module whose decorators need Spark chokes on a record and is mended; each record has
    one output in the end."""
    module = "faulty_stages"
    monkeypatch.chdir(tmp_path)
    applied = run("apply", "-f", "-", stdin=FAULTY_PIPELINE.format(module=module))
    assert applied.returncode == 0
    assert "does not import here: ModuleNotFoundError" in applied.stderr
    good("pub", "faulty-in", "one", "two", "three")

    def runs(guard: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / f"{module}.py").write_text(FAULTY.format(guard=guard))
        return subprocess.run(
            [sys.executable, "-m", "hadron", "pipeline", "run", "faulty", "--until-idle"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    done = runs("assert text != 'two', 'no two'")
    assert done.returncode == 1, done
    assert "shout: 2 of 3 in" in done.stdout
    lines = done.stderr.splitlines()
    assert lines.pop(0).startswith("Spark shows its jobs at http://127.0.0.1:")
    lines = [
        line for line in lines if not re.search(r"^stage runs: [0-9,]+ done, [0-9,]+ left, ", line)
    ]
    assert "parting 3 instances to find which of them it is" in lines[0]
    assert "1 instance failed (attempt 1 of 1, given up)" in lines[1]
    assert lines[2].startswith("1 instance failed for good; `hadron pipeline instances faulty")
    assert len(lines) == 3

    assert good("pipeline", "retry", "faulty", "--failed").startswith("1 instance runs again")
    done = runs("pass")
    assert done.returncode == 0
    assert "failed" not in done.stderr
    assert sorted(good("read", "faulty-out").splitlines()) == ["ONE!", "THREE!", "TWO!"]


def test_verify_the_running_cluster(stream: str) -> None:
    good("pub", stream, "one", "two")
    assert good("verify").splitlines()[-1] == "everything is right"
    answer = as_json("verify")
    (node,) = answer["files"]
    assert answer["ok"]
    assert (node["node"], node["running"], node["problems"]) == ("n1", True, [])
    assert node["entries"] == node["last_lsn"] > 0
