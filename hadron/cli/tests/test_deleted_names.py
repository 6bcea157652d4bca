"""What was deleted is called by its name wherever it is still spoken of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hadron.cli.tests.support import run_text

pytestmark = pytest.mark.usefixtures("environment")

STREAMS = "kind: Stream\nname: {}\npartitions: [local/p0]\n"


def good(*arguments: str, stdin: str = "") -> str:
    done = run_text(*arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_a_groups_dead_letter_stream() -> None:
    good("apply", "-f", "-", stdin="---\n".join(map(STREAMS.format, ("orders", "rejected"))))
    good("pub", "orders", "one")
    good("sub", "orders", "-G", "g", "--max-attempts", "3", "--dead-letter", "rejected", "-c", "1")
    assert "3 attempts, then to rejected" in good("group", "describe", "g", "--stream", "orders")
    assert run_text("delete", "stream", "rejected", "--allow-destructive").returncode == 0
    assert "3 attempts; its dead letter stream 'rejected' was deleted" in good(
        "group", "describe", "g", "--stream", "orders"
    )


def test_a_stream_that_is_followed() -> None:
    good("apply", "-f", "-", stdin=STREAMS.format("short-lived"))
    good("pub", "short-lived", "one")
    with subprocess.Popen(
        [sys.executable, "-m", "hadron", "sub", "short-lived", "--from", "earliest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        good("delete", "stream", "short-lived", "--allow-destructive")
        _, said = following.communicate(timeout=60)
    assert following.returncode == 1
    assert said.startswith("error: Stream default/short-lived was deleted\nhint: ")
