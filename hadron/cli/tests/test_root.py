"""What every command shares: help, exit statuses, the form of errors, a quick start."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import IO

import click
import pytest

from hadron.cli import main
from hadron.cli.commands import sub
from hadron.cli.following import Request
from hadron.cli.root import COMMANDS, report
from hadron.cli.session import Session
from hadron.client.connecting.contexts import LOCAL_CLUSTER
from hadron.client.connecting.url import DEFAULT_URL
from hadron.demo import run as demo_run
from hadron.model.errors import PeerError, RequestError
from hadron.model.ids import Ballot
from hadron.node.config import render
from hadron.node.supervision.cluster import LocalCluster, write_config
from hadron.node.supervision.local_fleet import write_configs
from hadron.node.world import SystemDisk
from hadron.spark import extra
from hadron.storage.identity import IdentityFile


def commands() -> list[tuple[str, click.Command]]:
    """Every command and subcommand with its full name."""
    found: list[tuple[str, click.Command]] = []
    for name in COMMANDS:
        command = importlib.import_module(f"hadron.cli.commands.{name}").command
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {sub}", each) for sub, each in command.commands.items()]
    return found


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hadron", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def in_a_shell(
    line: str, home: Path, stdout: IO[bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """`hadron LINE`, redirections and all, with contexts of its own."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m hadron {line}', sys.executable],
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        timeout=60,
    )


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_has_help_with_an_example(name: str, command: click.Command) -> None:
    assert "Example" in (command.help or ""), name
    assert f"hadron {name.split()[0]}" in (command.help or ""), name


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("status", {"REPLICA SET", "NODE", "ADDRESS", "STATE", "PID"}),
        ("verify", {"REPLICA SET", "NODE", "FILE"}),
    ],
)
def test_help_explains_the_columns_that_are_numbers(name: str, plain: set[str]) -> None:
    module = importlib.import_module(f"hadron.cli.commands.{name}")
    headings = {heading.lstrip(">~") for heading in module._COLUMNS.values()}
    lines = (module.command.help or "").splitlines()
    for heading in headings - plain:
        assert any(line.strip().startswith(f"{heading}  ") for line in lines), heading


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = importlib.import_module(f"hadron.cli.commands.{name}").command
    assert command.short_help == COMMANDS[name]


def test_help_lists_commands_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    script = (
        "import sys; from hadron.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('rich', 'trio', 'anyio', 'msgspec', 'yaml', 'google', 'hadron')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    needed = [
        "hadron",
        "hadron.cli",
        "hadron.cli.completing",
        "hadron.cli.root",
        "hadron.cli.session",
        "hadron.cli.standard_streams",
    ]
    assert done.stderr.strip() == str(needed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["pub"],
        ["node"],
        ["get", "teapots"],
        ["read"],
        ["sub", "s", "--from", "yesterday"],
        ["sub", "s", "-f", "%q"],
        ["pub", "s", "-l", "a.csv", "--delimiter", ";;"],
        ["pub", "s", "x", "--delimiter", ";"],
        ["context", "use"],
        ["sub", "s", "--group", "g", "-e"],
        ["sub", "s", "--order", "key"],
        ["sub", "s", "-G", "g", "--ack-deadline", "30"],
        ["bench", "--nodes", "1", "groups"],
        ["pipeline", "show", "--watch"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "\nhint: hadron" in captured.err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["stauts"], "no such command 'stauts' (did you mean 'status'?)"),
        (["pbu", "orders"], "no such command 'pbu' (did you mean 'pub'?)"),
        (["group", "lsit"], "no such command 'lsit' (did you mean 'list'?)"),
        (["--sever", "x", "status"], "no such option '--sever' (did you mean '--server'?)"),
        (["pub", "--keyfield", "x"], "no such option '--keyfield' (did you mean '--key-field'?)"),
        (["sub", "s", "--gruop", "g"], "no such option '--gruop' (did you mean '--group'?)"),
        (["pub", "s", "--acks", "majorty"], "'majorty' is not one of 'majority'"),
        (["pub", "s", "--nonsense"], "no such option '--nonsense'\n"),
        (
            ["pub", "--stream", "hello", "x"],
            "no such option '--stream' (STREAM is an argument: give it without '--stream')\n",
        ),
        (
            ["create", "queue", "jobs"],
            "no such command 'queue' (there are endpoint, exchange, namespace, stream)\n",
        ),
        (["queue"], "no such command 'queue'\n"),
    ],
)
def test_a_near_miss_is_answered_with_the_right_name(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["get", "groups"], "see `hadron group --help`"),
        (["sub", "s", "-G", "g", "--ack-deadline", "30"], "such as 500ms, 30s or 5m"),
    ],
)
def test_a_mistake_that_newcomers_make_names_the_way_out(
    arguments: list[str], way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert way_out in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--time", "yesterday"], "the time 'yesterday' is not RFC 3339"),
        (["--extension", "A=1"], "'A' cannot be the name of a CloudEvents extension"),
        (["--subject", "x"], "a CloudEvent needs --source and --type"),
        (["--time", "2013-01-01T05:17:00Z", "--source", "/x"], "a CloudEvent needs --source and"),
    ],
)
def test_a_wrong_value_of_an_event_is_told_before_what_is_missing(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pub", "orders", "x", *options]) != 0
    assert capsys.readouterr().err.startswith(f"error: {told}")


@pytest.mark.parametrize(
    ("line", "told", "status"),
    [
        ("create stream a*b", "'NAME': stream 'a*b' is not a valid name; use 1 to 100 of", 2),
        ("create namespace a*b", "'NAME': namespace 'a*b' is not a valid name; use 1 to", 2),
        ("create stream s -p ,", "'--partitions' / '-p': ',' names no replica set", 2),
        ("tx show p0/1", "'TRANSACTION': 'p0/1' is not a transaction's id; ", 2),
        ("tx resolve p0/0.1/1", "'TRANSACTION': 'p0/0.1/1' is not a transaction's id: epoch", 2),
        ("exchange pub e a..b x", "'TOPIC': 'a..b' is not a topic; write 1 to 16", 2),
        ("exchange pub e a { --format jsonl", "value 1", 1),
        ("exchange sub e a.>.b", "'[PATTERN]...': 'a.>.b' is not a pattern", 2),
        ("pipeline show p x", "'[ID]': 'x' is not a whole number", 2),
        ("bench --seconds x", "'--seconds': 'x' is not a number", 2),
        ("call e { --format json", "VALUE", 1),
        ("pub s --file nowhere", "nowhere: No such file or directory", 1),
        ("pub s { --format jsonl", "value 1", 1),
        ("pipeline signal p 1 s { --format json", "value 1", 1),
        ("pipeline signal p 1 s --format json", "--format is of a VALUE", 2),
        ("node --config c", "--name is needed", 2),
        ("node", "--config and --name are needed", 2),
        ("context set lab hadron://a:b", "'b' in 'hadron://a:b' is not a port", 1),
    ],
)
def test_what_is_wrong_with_a_value_is_told_before_anybody_is_asked(
    line: str, told: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--server", "hadron://127.0.0.1:1", *line.split()]) == status
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.removeprefix("error: ").removeprefix("invalid value for ").startswith(told)
    assert status == 1 or rest[0].startswith("hint: hadron ")


def test_a_set_that_is_named_is_in_no_new_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["--config", str(tmp_path / "new")]
    assert main(["cluster", "up", *new, "--replica-set", "eu/p0"]) == 1
    assert f"there is no cluster in {tmp_path / 'new'}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("command", "flags"), [("retry", "--failed"), ("cancel", "--live, --failed")]
)
def test_instances_are_chosen_in_one_way(
    command: str, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their ids, or by what has become of them; nothing is asked before that is clear."""

    def told(*options: str) -> str:
        assert main(["--server", "hadron://127.0.0.1:1", "pipeline", command, "p", *options]) != 0
        return capsys.readouterr().err

    assert told().startswith(f"error: say which instances: {flags} or --id ID\n")
    twice = "error: --failed and --id are given: give one of them\n"
    assert told("--failed", "--id", "1").startswith(twice)
    if "," in flags:
        several = told(*flags.split(", "))
        assert several.startswith("error: --live and --failed are given: give one of them\n")
    among = f"--stage and --before choose among {flags.replace(', ', ' or ')} ones"
    assert told("--id", "1", "--stage", "only").startswith(f"error: {among}\n")
    assert told("--failed", "--before", "noon").startswith(
        "error: invalid value for '--before': 'noon' is none of: so long ago (-1h, -30m, -2d), "
    )


def test_every_partition_that_is_named_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Request] = []
    monkeypatch.setattr(sub, "follow_stream", lambda _url, request: asked.append(request))
    named = ["-p", "a/p0", "-p", "b/p0"]
    assert main(["read", "s", *named]) == 0
    assert [request.partitions for request in asked] == [("a/p0", "b/p0")]
    assert main(["read", "s", "--latest-of", "k", *named]) == 2
    assert "--latest-of is one record: at most one --partition" in capsys.readouterr().err


def test_listed_instances_have_one_status(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--server", "hadron://127.0.0.1:1", "pipeline", "instances", "p"]
    for given in (["--status", "done", "--failed"], ["--failed", "--status", "done"]):
        assert main([*asked, *given]) == 2
        told = "error: --failed is --status failed, and --status done is given: give one of them"
        assert told in capsys.readouterr().err


def test_errors_say_what_happened_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(RequestError("no such thing: 'x'", "ask for 'y'")) == 1
    assert capsys.readouterr().err == "error: no such thing: 'x'\nhint: ask for 'y'\n"
    assert report(BaseExceptionGroup("tasks", [PeerError("gone", "")])) == 1
    assert capsys.readouterr().err.startswith("error: gone\nhint: the same command may succeed")
    assert report(ZeroDivisionError("oops")) == 1
    assert "this is a defect in hadron: ZeroDivisionError: oops" in capsys.readouterr().err


@pytest.mark.parametrize("redirected", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--version", 0),
        ("get --help", 0),
        ("context list -o json", 0),
        ("nonsense", 2),
        ("apply -f -", 1),
        ("context use nowhere", 1),
    ],
)
def test_closed_standard_streams_are_no_defects(
    command: str, status: int, redirected: str, tmp_path: Path
) -> None:
    done = in_a_shell(f"{command} {redirected}", tmp_path)
    assert done.returncode == status
    assert "defect" not in done.stderr
    assert bool(done.stderr) == (status != 0 and "2>&-" not in redirected)


@pytest.mark.parametrize(
    ("command", "said"), [("pub s", "nothing to publish"), ("apply -f -", "stdin is closed")]
)
def test_a_closed_stdin_is_named(command: str, said: str, tmp_path: Path) -> None:
    assert said in in_a_shell(f"{command} <&-", tmp_path).stderr


def test_what_is_opened_does_not_become_stdout() -> None:
    script = "import os, hadron.cli as c; c.main(['--version']); os._exit(os.open('/', 0) < 3)"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "{script}" <&- >&- 2>&-', sys.executable], check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["--help", "get --help", "--version", "context list"])
def test_a_reader_that_goes_away_is_status_141(command: str, tmp_path: Path) -> None:
    # The pipe has no reader before the command starts.
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = in_a_shell(command, tmp_path, stdout=out)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_under_stdout_is_said_once(tmp_path: Path) -> None:
    done = in_a_shell("context list > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_arguments_that_are_no_text_are_named(tmp_path: Path) -> None:
    done = in_a_shell(r"""context use "$(printf '\377')" """, tmp_path)
    assert done.returncode == 1
    assert "defect" not in done.stderr


def test_kcats_offset_is_told_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sub", "s", "-o", "-10"]) == 2
    assert "is not one of 'table', 'json'; where to start is --from" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_output_has_its_letter_wherever_it_is(name: str, command: click.Command) -> None:
    letters = {letter: each.name for each in command.params for letter in each.opts}
    assert letters.get("-o") == letters.get("--output"), name


def test_a_directory_of_no_demo_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--verify", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"no demo has left its files in {tmp_path}: it has no cluster.yaml" in told
    assert "`hadron demo --keep` prints" in told


@pytest.mark.parametrize("end", [KeyboardInterrupt(), PeerError("gone", retryable=False)])
def test_a_demo_that_fails_says_where_its_files_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise end

    monkeypatch.setattr(extra, "check_extra", lambda: None)
    monkeypatch.setattr(demo_run, "run", fail)
    # The command has one of its own.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--keep"]) != 0
    [kept] = tmp_path.glob("hadron-demo-*")
    assert f"its files: {kept}\n" in capsys.readouterr().err
    assert main(["demo"]) != 0
    assert "its files" not in capsys.readouterr().err


def test_errors_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        report(PeerError("it said \x1b]0;owned\x07\nand\x9b2J", "or\r not", retryable=False)) == 1
    )
    said = "error: it said \\x1b]0;owned\\x07\nand\\x9b2J\nhint: or\\r not\n"
    assert capsys.readouterr().err == said


def test_an_interrupt_while_modules_are_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "hadron.cli.root", Interrupted("hadron.cli.root"))
    assert main(["status"]) == 130


def test_interrupts_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(KeyboardInterrupt()) == 130
    assert report(BaseExceptionGroup("tasks", [ValueError(), KeyboardInterrupt()])) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.long
def test_no_traceback_without_debug(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("cluster: x\nreplicaset: {}\n")
    quiet = run("node", "--config", str(config), "--name", "n1")
    assert quiet.returncode == 2
    assert quiet.stderr.startswith("error: ")
    assert "bad.yaml:2" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    loud = run("node", "--config", str(config), "--name", "n1", "--debug")
    assert loud.returncode == 1
    assert "Traceback" in loud.stderr


def test_a_local_cluster_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("HADRON_URL", "HADRON_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    assert Session().url == DEFAULT_URL
    write_config(tmp_path / LOCAL_CLUSTER, 2, "os", [7100, 7101])
    assert Session().url == "hadron://127.0.0.1:7100,127.0.0.1:7101?cluster=local"
    assert Session(server="hadron://other").url == "hadron://other"


def test_a_missing_file_is_an_error_like_any_other() -> None:
    done = run("apply", "-f", "no-such-file.yaml")
    assert done.returncode == 1
    assert done.stderr == "error: no-such-file.yaml: there is no such file, expected a YAML file\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "hadron", "node", "--settings"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_settings_are_printed_with_their_help() -> None:
    done = run("node", "--settings")
    assert done.returncode == 0
    assert "HADRON_DURABILITY" in done.stdout
    assert "\x1b" not in done.stdout


def test_completion_code_is_for_this_program() -> None:
    done = run("completion", "bash")
    assert done.returncode == 0
    assert "_HADRON_COMPLETE=bash_complete" in done.stdout
    completed = run(_HADRON_COMPLETE="bash_complete", COMP_WORDS="hadron pi", COMP_CWORD="1")
    assert completed.stdout.split() == ["plain,pipeline"]


def test_a_mistyped_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADRON_URI", "hadron://elsewhere")
    assert main(["node", "--settings"]) == 0
    assert capsys.readouterr().err == (
        "warning: HADRON_URI is no variable that hadron knows (did you mean 'HADRON_URL'?)\n"
    )


def test_help_says_what_protects_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["node", "--help"]):
        assert main(arguments) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "There is no authentication and no TLS yet: whoever reaches" in told


def test_a_bad_file_is_as_final_as_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_configs(tmp_path, {"meta": 1})["meta"]
    assert main(["node", "--config", str(file), "--name", "n9"]) == 2
    assert "error: there is no node 'n9'" in capsys.readouterr().err
    file.write_text("cluster: [")
    assert main(["node", "--config", str(file), "--name", "n1"]) == 2
    assert f"error: {file}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--name", "n1"], ["--check"], ["--check", "--name", "n1"]], ids=" ".join
)
def test_a_file_that_is_not_there_is_told_alike(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "nope.yaml"
    assert main(["node", "--config", str(file), *words]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        f"error: {file}: there is no such file, expected a YAML file\n",
    )


def test_a_file_is_checked_without_a_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = write_configs(tmp_path, {"meta": 1, "eu/p0": 2})
    before = sorted(tmp_path.rglob("*"))
    assert main(["node", "--check", "--config", str(tmp_path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["valid"]
    assert len(told["files"]) == 2
    assert main(["node", "--check", "--config", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("valid\n")
    assert "eu/p0 of cluster local, epoch 1, n1 leads\n  n1 (leader) at 127.0.0.1:" in told.out
    assert not told.err
    eu = files["eu/p0"]
    eu.write_text(eu.read_text().replace("name: n2", "name: n2, listen: '0.0.0.0:1'"))
    assert main(["node", "--check", "--config", str(eu), "--name", "n2"]) == 0
    told = capsys.readouterr()
    assert "n1 (leader)" not in told.out
    assert "warning: n2 listens on 0.0.0.0:1: there is no authentication" in told.err
    assert main(["node", "--check", "--config", str(eu), "--name", "n3"]) == 2
    assert "there is no node 'n3'" in capsys.readouterr().err
    eu.write_text(eu.read_text().replace("role: leader", "role: leeder"))
    assert main(["node", "--check", "--config", str(tmp_path)]) == 2
    assert f"error: {eu}:" in capsys.readouterr().err
    assert main(["node", "--check", "--config", str(tmp_path), "-o", "json"]) == 2
    told = capsys.readouterr()
    wrong = json.loads(told.out)
    assert not wrong["valid"]
    assert wrong["error"].startswith(f"{eu}:")
    assert wrong["error"] in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_check_finds_anothers_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = write_configs(tmp_path, {"meta": 1, "eu/p0": 1})
    with LocalCluster(tmp_path, config=files["meta"]) as cluster:
        data = cluster.config.leader.data
    text = files["eu/p0"].read_text().replace("var/eu-p0-n1", str(data))
    files["eu/p0"].write_text(text)
    assert main(["node", "--check", "--config", str(files["eu/p0"])]) == 1
    assert "belongs to node n1 of meta in cluster local, not to node n1 of eu/p0" in (
        capsys.readouterr().err
    )


def test_a_check_says_what_the_promise_of_the_disk_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A start with the file would; and nothing is written to find out."""
    file = write_configs(tmp_path, {"meta": 1})["meta"]
    checked = ["node", "--check", "--config", str(file)]
    with LocalCluster(tmp_path, config=file) as cluster:
        config = replace(cluster.config, epoch=5)
        assert main(checked) == 0, "while it runs, too"
    file.write_text(render(config))
    identity = IdentityFile(config.leader.data, "local", "meta", "n1", SystemDisk())
    identity.promise(Ballot(5, 1), config.digest)
    identity.close()
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert main(checked) == main([*checked, "--name", "n1"]) == 0
    new = replace(config.leader, name="n2", address="127.0.0.2:1", data=tmp_path / "n2")
    nodes = (replace(config.leader, role="replica"), new)
    for changed, says in (
        (
            replace(config, epoch=4),
            "n1: the configuration has epoch 4, this node has promised epoch 5",
        ),
        (replace(config, nodes=nodes), "n1: epoch 5 was promised to another configuration"),
    ):
        file.write_text(render(changed))
        capsys.readouterr()
        assert main([*checked, "--name", "n1"]) == 1
        assert says in capsys.readouterr().err
        assert main([*checked, "--output", "json"]) == 1
        assert says in json.loads(capsys.readouterr().out)["error"]
    file.write_text(render(replace(config, epoch=6, nodes=nodes)))
    assert main(checked) == 0
    file.write_text(render(config))
    after = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert after == before


def test_why_a_node_has_stopped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = write_configs(tmp_path, {"meta": 1, "eu/p0": 2})
    for name, words in {
        "meta-n1": "INFO serving\n",
        "eu-p0-n1": "error: the disk is full\nhint: make room\n",
        "eu-p0-n2": "error: an old one\n2026-11-22T12:00:00.000Z INFO serving again\n",
    }.items():
        (tmp_path / "var").mkdir(exist_ok=True)
        (tmp_path / "var" / f"{name}.log").write_text(words)
    assert main(["cluster", "status", "--config", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.count(" stopped: ") == 1
    assert told.endswith("\neu/p0 n1 stopped: the disk is full\n")
    assert main(["cluster", "status", "--config", str(files["eu/p0"]), "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["last_words"] for row in rows] == ["the disk is full", ""]
