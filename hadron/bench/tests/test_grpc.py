"""`hadron bench grpc`, in small, against a node of its own."""

from __future__ import annotations

import json
import socket
import sys

import pytest
from grpc import insecure_channel

from hadron.bench import grpc
from hadron.bench.grpc import PARTS, Plan
from hadron.cli.bench_doors import grpc_command
from hadron.model.errors import ConfigurationError, HadronError, PeerError


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpc, "_WARM", 1)
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        seconds=0.2,
        rounds=1,
        subscriptions=20,
        parts=tuple(PARTS),
    )
    assert grpc.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "grpc_publish_1_p50_ms",
        "grpc_publish_64_per_s",
        "grpc_call_64_per_s",
        "grpc_bare_64_leader_us",
        "framed_beside_idle_to_alone",
    ):
        assert figures[name] > 0, name
    assert all(each["met"] in (True, False) for each in figures["verdicts"])
    assert len(figures["verdicts"]) >= 4


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hadron.bench.grpc", raising=False)
    monkeypatch.setattr(sys.modules["hadron.bench"], "grpc", None, raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigurationError, match="grpcio is not installed") as raised:
        grpc_command.main(["--nodes", "1"], standalone_mode=False)
    assert "'.[grpc]'" in raised.value.hint


def test_what_grpcio_raises_is_told_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with insecure_channel(address) as channel:
        call = channel.unary_unary("/hadron.v1.Records/Publish")
        with pytest.raises(PeerError, match="answered UNAVAILABLE"), grpc._answers(address):
            call(b"", timeout=30.0)


def test_a_server_that_ends_is_an_error() -> None:
    with pytest.raises(HadronError, match="did not begin, or did not stay"), grpc._server("exit"):
        raise AssertionError("it runs")
