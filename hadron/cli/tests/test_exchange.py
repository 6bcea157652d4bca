"""`hadron exchange`, and what `get` and `describe` say of exchanges."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from hadron.cli.tests.support import run_text
from hadron.cli.tests.test_live import program
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.processes import wait_until

pytestmark = pytest.mark.usefixtures("environment")


def _follow(cluster: LocalCluster, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hadron", "--server", cluster.url, "exchange", "sub", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _status(name: str) -> dict[str, Any]:
    shown = run_text("describe", "exchange", name, "-o", "json")
    assert shown.returncode == 0, shown.stderr
    status: dict[str, Any] = json.loads(shown.stdout)["status"]
    return status


def _wait_subscribed(name: str, count: int) -> None:
    end = time.monotonic() + 30
    while _status(name)["subscriptions"] != count:
        assert time.monotonic() < end, "nobody has subscribed"


def _wait_published(name: str, count: int) -> None:
    assert wait_until(lambda: _status(name)["published"] == count, 30)


def _declare(name: str) -> None:
    text = f"kind: Exchange\nname: {name}\nreplica_set: local/p0\n"
    assert run_text("apply", "-f", "-", stdin=text).returncode == 0


def test_publish_and_follow(cluster: LocalCluster) -> None:
    _declare("prices")
    with _follow(cluster, "prices", "eu.*", "-c", "4", "-o", "json") as following:
        _wait_subscribed("prices", 1)
        done = run_text("exchange", "pub", "prices", "eu.ibm", "1", "2", "-k", "k", "-H", "h=x")
        assert (done.returncode, done.stdout) == (0, "published 2 messages: 2 deliveries\n")
        done = run_text("exchange", "pub", "prices", "us.ibm", "3")
        assert done.stdout == "published 1 message: 0 deliveries\n"
        done = run_text(
            "exchange", "pub", "prices", "eu.sap", "--format", "jsonl", "-o", "json",
            stdin='{"bid": 1}\n[2]\n',
        )  # fmt: skip
        assert json.loads(done.stdout) == {"published": 2, "deliveries": 2, "dropped": 0}
        out, error = following.communicate(timeout=30)
    assert following.returncode == 0, error
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["topic"], each["value"]) for each in found] == [
        ("eu.ibm", "1"),
        ("eu.ibm", "2"),
        ("eu.sap", {"bid": 1}),
        ("eu.sap", [2]),
    ]
    assert (found[0]["key"], found[0]["headers"], found[0]["missed"]) == ("k", {"h": "x"}, 0)


def test_describe_and_get_say_who_is_there(cluster: LocalCluster) -> None:
    _declare("news")
    with _follow(cluster, "news", "a.>", "--group", "g") as following:
        _wait_subscribed("news", 1)
        assert run_text("exchange", "pub", "news", "a.b", "x").returncode == 0
        status = _status("news")
        assert (status["published"], status["deliveries"], status["dropped"]) == (1, 1, 0)
        (listed,) = status["listed"]
        assert (listed["patterns"], listed["group"]) == (["a.>"], "g")
        shown = run_text("get", "exchanges")
        row = next(line for line in shown.stdout.splitlines() if " news " in line)
        assert "SUBSCRIPTIONS" in shown.stdout
        assert row.split()[:4] == ["default", "news", "local/p0", "1"]
        following.terminate()
        following.communicate(timeout=30)


@pytest.mark.parametrize("by_signal", [False, True])
def test_publishing_that_ends_early_tells_how_far_it_was(by_signal: bool) -> None:
    name = f"cut-{by_signal}".lower()
    _declare(name)
    arguments = ("exchange", "pub", name, "a", "--format", "jsonl")
    done = run_text(*arguments, stdin="1\n{\n")
    assert done.returncode == 1
    assert "line 2 is not JSON" in done.stderr
    assert "; no messages were published before that\n" in done.stderr
    with program(*arguments, stdin=subprocess.PIPE) as publishing:
        assert publishing.stdin is not None
        for number in (1, 2):
            publishing.stdin.write(f"{number}\n")
            publishing.stdin.flush()
            _wait_published(name, number)
        if by_signal:
            publishing.send_signal(signal.SIGINT)
        else:
            publishing.stdin.write("{\n")
            publishing.stdin.flush()
        out, error = publishing.communicate(timeout=30)
    assert (publishing.returncode, out) == (130 if by_signal else 1, "")
    if by_signal:
        # The second one's answer may still have been on its way.
        assert re.search(r"^interrupted; (1 message was|2 messages were) published", error, re.M)
    else:
        assert "; 2 messages were published before that\n" in error


@pytest.mark.parametrize(
    ("arguments", "told", "status"),
    [
        (("pub", "nowhere", "a", "x"), "no exchange is called 'nowhere'", 1),
        (("pub", "prices", "a..b", "x"), "'a..b' is not a topic", 2),
        (("sub", "prices", "a.>.b"), "'a.>.b' is not a pattern", 2),
        (("sub", "nowhere"), "no exchange is called 'nowhere'", 1),
    ],
)
def test_what_cannot_be_is_told(arguments: tuple[str, ...], told: str, status: int) -> None:
    _declare("prices")
    done = run_text("exchange", *arguments)
    assert done.returncode == status
    assert told in done.stderr
    assert ("`hadron create exchange nowhere`" in done.stderr) == ("nowhere" in arguments)
