"""What a shell's user does: creates without files, asks for names, pipes, gives up, looks back."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import yaml

from hadron.cli.tests.support import run_bytes, run_text
from hadron.node.supervision.cluster import LocalCluster, free_ports

pytestmark = pytest.mark.usefixtures("environment")


def hadron(
    *arguments: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return run_bytes(*arguments, stdin=stdin, **environment)


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    """A command with redirections, as bash has them."""
    return subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m hadron {command}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )


def good(*arguments: str, stdin: bytes = b"", **environment: str) -> bytes:
    done = hadron(*arguments, stdin=stdin, **environment)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def refused(*arguments: str, stdin: bytes = b"") -> str:
    done = hadron(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, b""), done
    return done.stderr.decode()


def completed(line: str, **environment: str) -> set[str]:
    """What a shell offers at the end of `line`."""
    words = line.split(" ")
    asked = {
        "_HADRON_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = run_text(**asked, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return {each.removeprefix("plain,") for each in done.stdout.split()}


class TestCreate:
    def test_a_stream_where_there_is_one_replica_set(self) -> None:
        assert good("create", "stream", "made") == b"Stream default/made created\n"
        assert good("pub", "made", "x").startswith(b"published 1 record to made (local/p0")
        # As `client.create_stream` has it.
        for _ in range(2):
            assert good("create", "stream", "made") == b"Stream default/made unchanged\n"
        other = ("create", "stream", "made", "--max-age", "7d")
        assert refused(*other).startswith(
            "error: Stream default/made exists with other settings: retention is not set, here it "
            "is {max_age: 7d}\nhint: `hadron describe stream made`"
        )
        assert good(*other, "--if-not-exists") == b"Stream default/made exists\n"

    def test_its_document(self) -> None:
        document = good(
            "create",
            "stream",
            "kept",
            "-p",
            "local/p0",
            "--max-age",
            "7d",
            "--max-bytes",
            "10GiB",
            "--description",
            "d: e",
            "--dry-run",
            "-o",
            "yaml",
        )
        assert yaml.safe_load(document) == {
            "kind": "Stream",
            "name": "kept",
            "description": "d: e",
            "partitions": ["local/p0"],
            "retention": {"max_age": "7d", "max_bytes": "10GiB"},
        }
        assert b"kept" not in good("get", "streams")
        good("apply", "-f", "-", stdin=document)
        assert good("get", "stream", "kept", "-o", "yaml") == document

    @pytest.mark.long
    def test_endpoints_and_exchanges(self) -> None:
        assert good("create", "endpoint", "rows", "--stream-output", "--idempotent") == (
            b"Endpoint default/rows created\n"
        )
        again = ("create", "endpoint", "rows", "--stream-output")
        assert "other settings: idempotent is true, here it is not set\n" in refused(*again)
        busy = (
            "create",
            "endpoint",
            "busy",
            "--idempotent",
            "--hedge-after",
            "200ms",
            "--max-waiting",
        )
        assert yaml.safe_load(good(*busy, "0", "-o", "yaml")) == {
            "kind": "Endpoint",
            "name": "busy",
            "replica_set": "local/p0",
            "idempotent": True,
            "hedge_after": "200ms",
            "max_waiting": 0,
        }
        told = refused("create", "endpoint", "lost", "--hedge-after", "1s")
        assert told.startswith("error: Endpoint lost: --hedge-after: a call would run twice"), told
        good("create", "stream", "told")
        topic = ("create", "exchange", "all", "--from-stream", "told", "--topic", "all.{type}")
        assert yaml.safe_load(good(*topic, "-o", "yaml"))["topic"] == "all.{type}"
        told = refused("create", "exchange", "lost", "--topic", "x")
        assert told.startswith("error: Exchange lost: --topic: 'x', and no from_stream"), told
        bridge = ("create", "exchange", "prices", "--from-stream", "told", "-o", "yaml")
        assert yaml.safe_load(good(*bridge)) == {
            "kind": "Exchange",
            "name": "prices",
            "replica_set": "local/p0",
            "from_stream": "told",
        }
        assert good(*bridge[:-2]) == b"Exchange default/prices unchanged\n"
        missing = ("create", "exchange", "lost", "--from-stream", "nowhere")
        told = refused(*missing)
        assert told.startswith("error: Exchange default/lost: --from-stream: "), told
        assert "nowhere" in told
        twice = ("create", "exchange", "lost", "--from-stream", "told", "--to-stream", "told")
        told = refused(*twice)
        assert told.startswith("error: Exchange lost: --to-stream: 'told', from which"), told
        told = refused("create", "endpoint", "lost", "--stream-input", "--idempotent")
        assert told.startswith("error: Endpoint lost: --idempotent: true with a streamed"), told
        told = refused("create", "stream", "lost", "--partitions", "nowhere/p0")
        assert "Stream default/lost: --partitions: there is no replica set 'nowhere/p0'" in told

    def test_a_document_without_partitions_means_the_only_replica_set(self) -> None:
        document = b"kind: Stream\nname: bare\n"
        for action in (b"created (dry run)", b"created", b"unchanged"):
            dry = ["--dry-run"] if b"dry" in action else []
            told = good("apply", "-f", "-", *dry, stdin=document)
            assert b"Stream default/bare " + action in told
        assert yaml.safe_load(good("get", "stream", "bare", "-o", "yaml"))["partitions"] == [
            "local/p0"
        ]
        assert refused("apply", "-f", "-", stdin=document + b"partitions: []\n") == (
            "error: stdin:3: partitions: no partitions, expected at least one replica set's name\n"
        )

    def test_a_namespace_and_what_is_in_it(self, cluster: LocalCluster) -> None:
        good("create", "namespace", "shop")
        good("create", "stream", "carts", "--namespace", "shop")
        url = f"{cluster.url}/shop"
        good("create", "stream", "orders", HADRON_URL=url)
        shown = json.loads(good("get", "streams", "-o", "json", HADRON_URL=url))
        assert [each["name"] for each in shown] == ["carts", "orders"]
        assert b"carts" not in hadron("get", "streams").stdout
        assert b"carts" in good("get", "streams", "-A")
        assert b"orders" in good("get", "all", "--namespace", "shop")
        assert "in namespace 'default'\nhint: `hadron get streams --all-namespaces`" in refused(
            "get", "stream", "orders"
        )

    def test_an_empty_namespace_is_told(self) -> None:
        assert good("create", "namespace", "empty") == b"Namespace empty created\n"
        assert good("create", "namespace", "empty") == b"Namespace empty unchanged\n"
        assert "exists with other settings: description is not set, here it is x" in refused(
            "create", "namespace", "empty", "--description", "x"
        )
        done = hadron("get", "streams", "-n", "empty")
        assert done.returncode == 0
        assert done.stderr == b"nothing in namespace 'empty'; --all-namespaces shows all\n"

    @pytest.mark.parametrize(
        "words",
        [
            "pub hello x",
            "sub hello",
            "read hello",
            "get streams",
            "get stream hello",
            "describe stream hello",
            "group list --stream hello",
            "pipeline show",
            "pipeline show late",
            "delete stream hello",
            "create stream hello",
        ],
    )
    def test_a_missing_namespace_is_told_as_that(self, cluster: LocalCluster, words: str) -> None:
        told = refused(*words.split(), "--server", f"{cluster.url}/nons")
        assert "there is no namespace 'nons'" in told
        if "delete" not in words:
            assert "`hadron create namespace nons` makes it" in told

    def test_a_name_that_is_nearly_there_is_named(self) -> None:
        assert hadron("create", "stream", "orders-made").returncode == 0
        assert "'orders-mad' in namespace 'default' (did you mean 'orders-made'?)" in refused(
            "pub", "orders-mad", "x"
        )

    def test_what_is_missing_is_told_with_the_way_to_it(self) -> None:
        assert refused("pub", "nope", "x") == (
            "error: no stream is called 'nope' in namespace 'default'\n"
            "hint: create it with `hadron create stream nope`, declare it with `hadron apply`, or "
            "look with `hadron get streams`\n"
        )
        for words in (["show"], ["instances"]):
            assert refused("pipeline", *words, "nopp") == (
                "error: no pipeline is called 'nopp' in namespace 'default'\n"
                "hint: declare it with `hadron apply`, or look with `hadron get pipelines`\n"
            )
        assert refused("delete", "stream", "nope") == (
            "error: Stream default/nope: it does not exist\nhint: look with `hadron get streams`\n"
        )
        assert refused("describe", "namespace", "nope") == (
            "error: there is no Namespace 'nope'\nhint: `hadron get namespaces` lists all; or "
            "create it with `hadron create namespace nope`, declare it with `hadron apply`\n"
        )


class TestCompletion:
    def test_names(self, cluster: LocalCluster) -> None:
        good("create", "stream", "alpha")
        good("create", "stream", "beta")
        good("pub", "alpha", "x")
        good("sub", "alpha", "-G", "readers", "-c", "1")
        assert {"alpha", "beta"} <= completed("hadron pub ")
        assert completed("hadron read al") == {"alpha"}
        assert completed("hadron get streams be") == {"beta"}
        assert "readers" in completed("hadron sub alpha --group ")
        assert completed("hadron group describe rea") == {"readers"}
        assert completed("hadron group list --stream al") == {"alpha"}
        assert completed("hadron pub alpha -p ") == {"local/p0"}
        assert completed("hadron create stream s --partitions local/p0,lo") == {"local/p0,local/p0"}
        good("context", "set", "lab", cluster.url)
        assert completed("hadron context use ") == {"lab"}
        assert completed("hadron --context ") == {"lab"}
        nobody = "hadron://127.0.0.1:1"
        assert "alpha" in completed(f"hadron --server {cluster.url} pub ", HADRON_URL=nobody)
        assert "alpha" in completed("hadron --context lab pub ", HADRON_URL=nobody)

    @pytest.mark.parametrize("url", ["hadron://127.0.0.1:1", "no url at all"])
    def test_without_a_server_there_is_silence(self, url: str) -> None:
        assert completed("hadron pub ", HADRON_URL=url) == set()

    def test_a_server_that_says_nothing_is_not_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"hadron://127.0.0.1:{server.getsockname()[1]}"
            began = time.monotonic()
            assert completed("hadron pub ", HADRON_URL=url) == set()
        # On a busy machine; a request would take 30 s.
        assert time.monotonic() - began < 10


class TestRecords:
    @pytest.fixture
    def stream(self, request: pytest.FixtureRequest) -> Iterator[str]:
        name = request.node.name[:90]
        good("create", "stream", name)
        yield name
        good("delete", "stream", name, "--allow-destructive")

    def test_any_bytes_are_one_record(self, stream: str) -> None:
        content = bytes(range(256)) * 1_000
        good("pub", stream, "--format", "raw", "--id", "a", stdin=content)
        assert good("read", stream, "-f", "%s") == content
        (line,) = good("read", stream, "-o", "json").splitlines()
        assert json.loads(line)["id"] == "a"
        assert good("read", stream, "-f", "%i") == b"a"

    def test_ids_without_one_say_where_the_record_is(self, stream: str) -> None:
        good("pub", stream, "x")
        assert json.loads(good("read", stream, "-o", "json"))["id"] == f"{stream}/local/p0/0"

    def test_a_time_ago(self, stream: str) -> None:
        good("pub", stream, "x")
        assert good("read", stream, "--from", "-1h") == b"x\n"
        assert good("sub", stream, "--from", "-2d", "-e") == b"x\n"
        done = hadron("read", stream, "--from", "-1x")
        assert b"'-1x' is no time ago: '1x' is not a duration, expected" in done.stderr

    def test_it_gives_up_in_time(self) -> None:
        (port,) = free_ports(1)
        said = refused("pub", "s", "x", "--timeout", "1s", "--server", f"hadron://127.0.0.1:{port}")
        assert "within 1 s" in said

    def test_what_nobody_can_see_is_not_acknowledged(self, stream: str) -> None:
        good("pub", stream, "x")
        told = shell(f"sub {stream} -G seen --from earliest -c 1 >&-")
        assert (told.returncode, told.stderr) == (
            1,
            b"error: stdout is closed\nhint: print to /dev/null what nobody is to see\n",
        )
        assert good("sub", stream, "-G", "seen", "--from", "earliest", "-c", "1") == b"x\n"

    def test_a_full_stdout_is_no_record_that_was_not_published(self, stream: str) -> None:
        told = shell(f"pub {stream} x > /dev/full")
        assert told.returncode == 1
        assert told.stderr.startswith(
            b"error: stdout cannot be written: No space left on device; published 1 to "
        )
        assert good("read", stream) == b"x\n"

    @pytest.mark.long
    def test_a_reader_that_goes_away_ends_a_quiet_stream(self, stream: str) -> None:
        good("pub", stream, "x")
        for group in ((), ("-G", "quiet")):
            with subprocess.Popen(
                [sys.executable, "-m", "hadron", "sub", stream, "--from", "earliest", *group],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as following:
                assert following.stdout is not None
                assert following.stderr is not None
                assert following.stdout.readline() == b"x\n"
                following.stdout.close()
                assert following.wait(timeout=60) == 141
                assert following.stderr.read() == b""

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("pub s --file a --file b", b"is given 2 times, expected one"),
            ("read s --offset 1 --from 2", b"is given 2 times, expected one"),
            ("sub s --from 1 --from 2", b"is given 2 times, expected one"),
            ("sub s --group=", b"--group has no name"),
            ("read s -f %s -o json", b"--format and --output exclude each other"),
        ],
    )
    def test_what_would_not_be_done_is_refused(self, words: str, told: bytes) -> None:
        done = hadron(*words.split())
        assert (done.returncode, done.stdout) == (2, b"")
        assert told in done.stderr

    def test_a_table_has_a_line_for_each_record(self, stream: str) -> None:
        good("pub", stream, "--format", "raw", stdin=b"a\nb\x1b]0;title\x07")
        lines = good("read", stream, "-o", "table").splitlines()
        assert len(lines) == 2
        assert lines[1].endswith(rb"a\nb\x1b]0;title\x07")
