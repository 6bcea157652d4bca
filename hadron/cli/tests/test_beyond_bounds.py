"""Numbers that no message takes, and text that is none, are refused as what they are: input."""

from __future__ import annotations

import pytest

from hadron.cli.tests.support import run_bytes, run_text
from hadron.cli.tests.test_live import PIPELINE, good

pytestmark = pytest.mark.usefixtures("environment")

_ABOVE = str(1 << 63)
_LAST = str((1 << 63) - 1)

COMMANDS = (
    ("read", "edge-in", "--from"),
    ("read", "edge-in", "--from", "@{}"),
    ("read", "edge-in", "--from", "-{}"),
    ("read", "edge-in", "--limit"),
    ("sub", "edge-in", "-e", "--from"),
    ("sub", "edge-in", "-e", "--from", "@{}"),
    ("pub", "edge-in", "x", "--expect-offset"),
    ("pub", "edge-in", "x", "--key", "k", "--expect-key-offset"),
    ("pipeline", "start", "edge", "--stream", "edge-in", "--offset"),
    ("pipeline", "show", "edge"),
    ("pipeline", "instances", "edge", "--after-id"),
    ("pipeline", "retry", "edge", "--id"),
    ("pipeline", "signal", "edge", "{}", "only"),
    ("pipeline", "backfill", "edge", "--from", "{}", "--to", "latest"),
    ("pipeline", "backfill", "edge", "--from", "0", "--to", "{}"),
    ("pipeline", "backfill", "edge", "--pause"),
    ("pipeline", "backfill", "edge", "--from", "0", "--per-second"),
    ("group", "reset", "g", "--to"),
)


@pytest.fixture
def edge(environment: None) -> None:  # noqa: ARG001 - comes first
    good("apply", "-f", "-", stdin=PIPELINE.format(name="edge"))


@pytest.mark.usefixtures("edge")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_number_that_no_message_takes_is_refused(command: tuple[str, ...]) -> None:
    given = command if any("{}" in each for each in command) else (*command, "{}")
    for number in (_ABOVE, "9" * 20):
        done = run_text(*(each.format(number) for each in given))
        assert (done.returncode, f"{number} is too large" in done.stderr) == (2, True), done.stderr
    for number in (_LAST, "9" * 5_000):
        done = run_text(*(each.format(number) for each in given))
        assert "a defect in hadron" not in done.stderr
        assert "Traceback" not in done.stderr
        assert "internal" not in done.stderr, done.stderr


def test_stdin_of_another_encoding_is_told_by_its_line() -> None:
    applied = run_bytes("apply", "-f", "-", stdin=b"kind: Stream\nname: caf\xe9\n")
    assert applied.returncode == 1
    assert b"stdin:2: byte 0xe9, which is not UTF-8" in applied.stderr
    asked = run_bytes("sql", "-", stdin=b"SELECT 1,\n'caf\xe9'")
    assert asked.returncode == 1
    assert b"stdin, line 2: byte 0xe9, which is not UTF-8" in asked.stderr


def test_stdin_is_read_up_to_a_bound() -> None:
    much = b"#" * (5 << 20)
    assert (
        b"bytes, expected a smaller YAML file" in run_bytes("apply", "-f", "-", stdin=much).stderr
    )
    assert b"stdin has more than" in run_bytes("sql", "-", stdin=much).stderr
