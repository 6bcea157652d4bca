"""`hadron call` and `hadron serve`, and what `get` and `describe` show of endpoints."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import trio

import hadron
from hadron.cli.endpoints import calling
from hadron.cli.endpoints.heirs import Heirs
from hadron.cli.endpoints.serving import Asked, _handler, _Worker
from hadron.cli.endpoints.values import parse
from hadron.cli.tests.support import run_bytes, run_text
from hadron.client.endpoints import calls
from hadron.client.endpoints.incoming import IncomingCall
from hadron.model.errors import CallFailedError, InvalidRecordError
from hadron.model.record import JSON
from hadron.model.services import EndpointSpec
from hadron.node.supervision.cluster import LocalCluster

_SCHEMA = """\
kind: Endpoint
name: quote
replica_set: local/p0
---
kind: Endpoint
name: sum
replica_set: local/p0
input: stream
---
kind: Endpoint
name: words
replica_set: local/p0
output: stream
"""


@pytest.fixture(autouse=True)
def declared(environment: None) -> None:  # noqa: ARG001
    assert run_text("apply", "-f", "-", stdin=_SCHEMA).returncode == 0


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`hadron serve`, once it is attached."""
    command = [sys.executable, "-m", "hadron", "serve", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("serving")
            yield process
        finally:
            process.terminate()
            assert process.wait(20) == 0


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def test_a_program_for_each_call() -> None:
    program = (
        "import json, os, sys\n"
        "value = json.load(sys.stdin)\n"
        "if value == 'no': sys.exit('no tea\\nnor water')\n"
        "print(json.dumps([value, os.environ['HADRON_ENDPOINT'], os.environ['TRACEPARENT']]))"
    )
    with serving("quote", "--exec", python(program), "--format", "json"):
        said = run_text("call", "quote", '{"a": 1}', "-H", "traceparent=00-1")
        assert (said.returncode, said.stderr) == (0, "")
        assert json.loads(said.stdout) == [{"a": 1}, "quote", "00-1"]
        shown = run_text("get", "endpoint", "quote").stdout.splitlines()
        assert shown[0].split()[-3:] == ["P50", "P99", "ID"]
        assert shown[1].split()[3:8] == ["single", "single", "1", "0", "0"]
        told = json.loads(run_text("describe", "endpoint", "quote", "-o", "json").stdout)
        live = told["status"]["live"]
        assert (live["servers"][0]["answered"], live["waiting"]) == (1, 0)
        said = run_text("call", "quote", '"no"', "-H", "traceparent=00-1")
        assert said.returncode == 1
        assert "nor water" in said.stderr
        assert "ended with status 1" in said.stderr


def test_a_program_that_leaves_something_behind_answers_all_the_same() -> None:
    """What it has started holds its stderr open."""
    with serving("quote", "--exec", "sh -c 'sleep 600 >/dev/null & cat'", "--format", "json"):
        assert run_text("call", "quote", "7").stdout == "7\n"


def test_bytes_go_through_as_they_are() -> None:
    with serving("quote", "--exec", "tr a-z A-Z", "--format", "raw"):
        said = run_bytes("call", "quote", "-", "--format", "raw", stdin=b"ab\n\xff\0c")
        assert said.stdout == b"AB\n\xff\0C"


def test_a_worker_answers_lines(tmp_path: Path) -> None:
    marks = tmp_path / "starts"
    program = (
        f"import json, sys; open({str(marks)!r}, 'a').write('x')\n"
        "for line in sys.stdin:\n"
        "    value = json.loads(line)\n"
        "    if value == 'end': sys.exit(3)\n"
        "    print(json.dumps({'twice': value * 2}), flush=True)"
    )
    with serving("quote", "--exec", python(program), "--worker"):
        for _ in range(2):
            assert json.loads(run_text("call", "quote", "21").stdout) == {"twice": 42}
        assert marks.read_text() == "x"
        said = run_text("call", "quote", "end")
        assert said.returncode == 1
        assert "has ended with status 3" in said.stderr
        assert json.loads(run_text("call", "quote", "text").stdout) == {"twice": "texttext"}
        assert marks.read_text() == "xx"


@pytest.mark.long
def test_programs_know_the_headers_of_a_call() -> None:
    program = (
        "import json, os, sys\n"
        "headers = json.loads(os.environ['HADRON_HEADERS'])\n"
        "print(json.dumps([headers, os.environ['HADRON_ATTEMPT']]))"
    )
    headers = ("-H", "x-user=Zoë", "-H", "traceparent=00-1")
    told = {"x-user": "Zoë", "traceparent": "00-1"}
    with serving("quote", "--exec", python(program)):
        assert json.loads(run_text("call", "quote", "1", *headers).stdout) == [told, "1"]
        assert json.loads(run_text("call", "quote", "1").stdout) == [{}, "1"]
    with serving("quote", "--exec", "cat", "--worker", "--envelope"):
        said = run_text("call", "quote", '{"a": 1}', *headers, "--timeout", "20s")
        line = json.loads(said.stdout)
        assert 0 < line.pop("left_s") <= 20
        assert line.pop("caller")
        assert line == {"value": {"a": 1}, "headers": told, "attempt": 1}
        raw = run_bytes("call", "quote", "-", "--format", "raw", stdin=b"\xff")
        assert json.loads(raw.stdout)["value"] == "\ufffd"
    said = run_text("serve", "quote", "--exec", "cat", "--envelope")
    assert said.returncode == 2
    assert "--envelope is for --worker" in said.stderr


def test_the_time_of_a_call_is_that_of_the_whole_command() -> None:
    begun_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"hadron://127.0.0.1:{silent.getsockname()[1]}"
        said = run_text("call", "quote", "1", "--timeout", "0.3s", "--server", server)
    assert said.returncode == 1
    assert "no node answered" in said.stderr
    assert "within 0.3 s" in said.stderr
    assert time.monotonic() - begun_s < 5, "a client tries for 10 s"


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["quote", "-"], "the call of 'quote' had not begun after 0.5 s"),
        (["sum"], "was not over in time"),
    ],
)
def test_a_call_whose_input_does_not_end(asked: list[str], said: str) -> None:
    """It ends in time, and not by an abort of the interpreter, in which a thread still reads."""
    command = [sys.executable, "-m", "hadron", "call", *asked, "--timeout", "0.5s"]
    with (
        serving("sum", "--exec", "cat"),
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait(20) == 1, told
    assert said in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"12345678\n\n", "^stdin has more than 9 bytes, and a value"),
        (b"1\n2345678\n0123456789", "^line 3 of stdin has more than 9 bytes, and a value"),
    ],
)
async def test_no_more_is_read_than_a_value_can_be_made_of(
    monkeypatch: pytest.MonkeyPatch, given: bytes, told: str
) -> None:
    class Call:
        def __init__(self) -> None:
            self.sent: list[int] = []

        async def send(self, value: int) -> None:
            self.sent.append(value)

    monkeypatch.setattr(calling, "_MOST_BYTES", 9)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    asked = calling.Asked("e", ["-"], "json", 1.0, "")
    call: Any = Call()
    with pytest.raises(InvalidRecordError, match=told):
        await (calling._one_value(asked) if "line" not in told else calling._send(call, asked))
    assert call.sent == ([1, 2345678] if "line" in told else [])


@pytest.mark.long
@pytest.mark.parametrize("at_once", [True, False])
def test_a_worker_that_says_too_much_answers_nobody_else(tmp_path: Path, at_once: bool) -> None:
    """Its line of its own is taken for the answer at most to the call that it was said for."""
    said_all = tmp_path / "said"
    said_all.touch()
    program = "import os, sys, time\nfor line in sys.stdin:\n    log = b'[\"log\"]\\n'\n" + (
        "    os.write(1, log + line.encode())"
        if at_once
        else "    os.write(1, log); time.sleep(0.2); os.write(1, line.encode())"
    )
    program += f"\n    open({str(said_all)!r}, 'a').write('x')"
    with serving("quote", "--exec", python(program), "--worker"):
        for number in range(3):
            said = run_text("call", "quote", str(number))
            assert said.stdout.strip() in ("", '["log"]')
            assert ("has printed more than one line for a call" in said.stderr) == at_once
            deadline_s = time.monotonic() + 30
            while not at_once and len(said_all.read_text()) <= number:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)


@pytest.mark.long
def test_a_worker_that_is_late_answers_nobody_else() -> None:
    """Its call was given up: another one takes its place before the next call."""
    program = (
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    value = json.loads(line)\n"
        "    time.sleep(value if isinstance(value, float) else 0)\n"
        "    os.write(1, line.encode())"
    )
    with serving("quote", "--exec", python(program), "--worker"):
        late = run_text("call", "quote", "1.5", "--timeout", "0.5s")
        assert late.returncode == 1
        for number in range(3):
            assert run_text("call", "quote", str(number)).stdout == f"{number}\n"
            time.sleep(0.4)


async def test_a_worker_that_ends_between_calls_is_started_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = _Worker(Heirs(io.BytesIO()), ["sh", "-c", 'read -r l; echo "$l"; exit 3'])
    for number in range(3):
        assert await worker.ask(number) == number
        assert worker._process is not None
        await worker._process.wait()
    await worker.stop()
    assert capsys.readouterr().err == "sh is started again: it has ended with status 3\n" * 2


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("options", [["--worker"], []])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_programs_do_not_outlive_who_has_started_them(
    tmp_path: Path, options: list[str], how: signal.Signals
) -> None:
    """With all that they have started, though they hear of no end of their input."""
    pids = tmp_path / "pids"
    program = f"sh -c 'sleep 600 & echo $$ $! >{pids}; wait'"
    command = [sys.executable, "-m", "hadron", "serve", "quote", "--exec", program, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("serving")
        with subprocess.Popen(
            [sys.executable, "-m", "hadron", "call", "quote", "1"], stderr=subprocess.DEVNULL
        ) as call:
            deadline_s = time.monotonic() + 30
            while not pids.exists() or len(pids.read_text().split()) < 2:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            started = [int(each) for each in pids.read_text().split()]
            assert all(map(_runs, started))
            process.send_signal(how)
            while any(map(_runs, started)):
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            call.kill()


@pytest.mark.parametrize("more", [[], ["--worker"]])
def test_a_value_that_is_broken_is_its_callers_fault(
    cluster: LocalCluster, more: list[str]
) -> None:
    async def call() -> None:
        async with hadron.connect(cluster.url) as client:
            with pytest.raises(hadron.CallFailedError, match="said to be JSON") as raised:
                await client._endpoints.call(calls.told("quote", 30.0, "", None), (JSON, b'{"a"'))
            assert raised.value.type == "ValidationError"

    with serving("quote", "--exec", "cat", *more) as process:
        trio.run(call)
        assert run_text("call", "quote", "1").stdout == "1\n"
        process.terminate()
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.long
def test_streams_are_lines() -> None:
    add = "import sys; print(sum(int(line) for line in sys.stdin))"
    with serving("sum", "--exec", python(add)):
        said = run_text("call", "sum", stdin="1\n2\n3\n")
        assert (said.stdout, said.stderr) == ("6\n", "")
        assert run_text("call", "sum", "4", "5").stdout == "9\n"
    split = "import sys; [print(word) for word in sys.stdin.read().split()]"
    with serving("words", "--exec", python(split)):
        assert run_text("call", "words", "a b 3").stdout == '"a"\n"b"\n3\n'


async def test_a_program_that_needs_no_more_input_ends_its_call() -> None:
    """Its caller has not said that this was all, and sends nothing more."""

    async def given() -> AsyncIterator[int]:
        yield 7
        await trio.sleep_forever()

    spec = EndpointSpec(replica_set="local/p0", input="stream")
    asked = Asked("e", "", False, False, "auto", 1, "", "")
    call = IncomingCall("e", {}, "a test", 1, 10.0, trio.current_time)
    with trio.fail_after(20):
        answer = _handler(Heirs(io.BytesIO()), ["head", "-n", "1"], spec, asked)
        assert await answer(given(), call) == 7


def test_what_cannot_be_is_told(cluster: LocalCluster) -> None:
    del cluster
    said = run_text("call", "nothing")
    assert said.returncode == 1
    assert "no endpoint is called 'nothing'" in said.stderr
    assert "`hadron create endpoint nothing`" in said.stderr
    for command in ("get", "describe"):
        assert "`hadron create endpoint nothing`" in run_text(command, "endpoint", "nothing").stderr
    said = run_text("call", "quote", "1", "2")
    assert "takes one value, 2 are given" in said.stderr
    said = run_text("call", "quote", "{", "--format", "json")
    assert "VALUE is no JSON" in said.stderr
    said = run_text("call", "quote", "1")
    assert said.returncode == 1
    assert "nobody serves endpoint default/quote" in said.stderr
    assert "hadron serve quote --exec CMD" in said.stderr
    said = run_text("serve", "sum", "--exec", "cat", "--worker")
    assert "a worker answers each line with a line" in said.stderr
    assert run_text("serve", "quote").returncode == 2
    for program, told in (
        ("/no/such/program", "there is no program '/no/such/program'"),
        ("cat | tr a b", "runs a program and no shell: it would be given '|' as a word"),
        ("cat 'a", "No closing quotation"),
        ("", "--exec names no program"),
    ):
        said = run_text("serve", "quote", "--exec", program)
        assert said.returncode in (1, 2)
        assert told in said.stderr
        assert "defect" not in said.stderr


def test_what_a_handler_raised_is_told_with_its_type_and_endpoint(cluster: LocalCluster) -> None:
    async def sold_out(_value: object) -> None:
        raise CallFailedError("sold out", "order tea", retryable=True, type="SoldOut")

    async def broken(_value: object) -> AsyncIterator[int]:
        yield 1
        raise ValueError("no such word")

    async def both() -> list[CompletedProcess[str]]:
        async with (
            hadron.connect(cluster.url) as client,
            client.serve("quote", sold_out),
            client.serve("words", broken),
        ):
            return [
                await trio.to_thread.run_sync(run_text, "call", name, "1")
                for name in ("quote", "words")
            ]

    quote, words = trio.run(both)
    assert quote.returncode == 1
    assert quote.stderr == (
        "error: endpoint 'quote' failed: SoldOut: sold out\n"
        "hint: order tea; the same command may succeed when it is repeated\n"
    )
    assert words.stdout == "1\n"
    assert words.stderr == "error: endpoint 'words' failed: ValueError: no such word\n"


@pytest.mark.parametrize("kind", ["worker", "program", "lines"])
async def test_junk_that_a_program_prints_is_its_own_fault(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    junk = "starting up " + "x" * 200
    program = ["sh", "-c", f"read -r line; echo '{junk}'; sleep 0.2"]
    output = "stream" if kind == "lines" else "single"
    spec = EndpointSpec(replica_set="local/p0", output=output)
    call = IncomingCall("e", {}, "a test", 1, 10.0, trio.current_time)
    heirs = Heirs(io.BytesIO())
    asked = Asked("e", "", False, False, "json", 1, "", "")

    async def run() -> None:
        if kind == "worker":
            worker = _Worker(heirs, program)
            try:
                await worker.ask(1)
            finally:
                await worker.stop()
        elif kind == "lines":
            _ = [each async for each in _handler(heirs, program, spec, asked)("1", call)]
        else:
            await _handler(heirs, program, spec, asked)("1", call)

    with pytest.raises(CallFailedError) as raised:
        await run()
    error = raised.value
    assert error.type == "ProgramFailed"
    assert error.message.startswith("sh, which serves the endpoint, printed 'starting up xxx")
    assert len(error.message) < 200
    assert "mistake of the server" in error.hint
    assert "for the shell" not in f"{error}"
    assert "starting up" in capsys.readouterr().err


async def test_a_program_of_a_cancelled_call_is_forgotten() -> None:
    """By who would end it with the command: its number may be another's by then."""
    told = io.BytesIO()
    spec = EndpointSpec(replica_set="local/p0")
    asked = Asked("e", "sleep 100", False, False, "auto", 1, "", "")
    answer = _handler(Heirs(told), ["sleep", "100"], spec, asked)
    call = IncomingCall("e", {}, "a test", 1, 10.0, trio.current_time)
    with trio.CancelScope() as scope:

        async def run() -> None:
            await answer("x", call)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while not told.getvalue():  # noqa: ASYNC110 - of another process
                await trio.sleep(0.005)
            scope.cancel()
    (began, ended) = told.getvalue().splitlines()
    assert (began[:1], ended[:1], began[1:]) == (b"+", b"-", ended[1:])


@pytest.mark.parametrize("data", [b"[" * 100_000 + b"]" * 100_000, b'"\xff"', b"1e999"])
def test_what_only_looks_like_json_is_none(data: bytes) -> None:
    with pytest.raises(hadron.HadronError, match=r"^the answer is no JSON"):
        parse(data, "json", "the answer")
    assert parse(data, "auto", "the answer") == (data if b"\xff" in data else data.decode())
