"""`hadron bench http`, in small, against a node of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from hadron.bench import http
from hadron.bench.http import AT_ONCE, MIN_PER_S, PARTS, Plan
from hadron.bench.report import Part, Verdict
from hadron.model.errors import DeadlineExceededError, PeerError


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "AT_ONCE", (1, 4))
    plan = Plan(
        nodes=1,
        record_bytes=50,
        durability="os",
        seconds=0.2,
        rounds=1,
        records=4_000,
        parts=tuple(PARTS),
    )
    assert http.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    for name in (
        "http_publish_1_p50_ms",
        "http_publish_4_per_s",
        "http_publish_4_leader_us",
        "http_lines_per_s",
    ):
        assert figures[name] > 0, name
    assert [each["met"] in (True, False) for each in figures["verdicts"]] == [True] * 3


def test_the_verdict_is_of_the_load_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = dict.fromkeys(AT_ONCE, MIN_PER_S * 2) | {max(AT_ONCE): MIN_PER_S / 2}
    monkeypatch.setattr(http, "_load", lambda _address, _asked, count, _s: ([0.1], rates[count]))
    plan = Plan(1, 50, "os", 0.2, 1, 4_000, tuple(PARTS))
    [part] = http.measure_publish(".", plan, lambda: 0.0)
    verdict = part.verdicts[-1]
    assert (verdict.what, verdict.is_met) == (f"{max(AT_ONCE)} at a time", False)


@pytest.mark.parametrize("is_met", [True, False])
def test_a_verdict_that_is_not_met_is_no_failure(
    is_met: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Part("Doors", ("", "per second"), verdicts=[Verdict("doors", "3", "≥ 2", is_met)])
    monkeypatch.setattr(http, "PARTS", {"publish": lambda *_: [part]})
    assert http.run(Plan(1, 50, "os", 0.2, 1, 4_000, ("publish",)), "json") == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["met"] is is_met


def test_no_answer_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_load", lambda *_: ([], 0.0))
    plan = Plan(1, 50, "os", 0.2, 1, 4_000, tuple(PARTS))
    with pytest.raises(DeadlineExceededError, match="n1 answered none of 1 requests"):
        http.measure_publish("n1", plan, lambda: 0.0)


@pytest.fixture
def served() -> Iterator[tuple[http.Connection, socket.socket, str]]:
    """A connection, its other side, and the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        connection = http.Connection(address)
        with listener.accept()[0] as server:
            yield connection, server, address
        connection.close()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"]
)
def test_a_connection_that_is_closed_in_mid_answer_is_told(
    said: bytes, served: tuple[http.Connection, socket.socket, str]
) -> None:
    connection, server, address = served
    server.sendall(said)
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerError, match=f"{address} closed the connection in mid-answer"):
        connection.ask(http.request("PUT", "/x", b""))


def test_silence_is_told_with_address_and_seconds(
    served: tuple[http.Connection, socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _, address = served
    monkeypatch.setattr(http, "_ANSWER_S", 0.01)
    connection.sock.settimeout(0.01)
    with pytest.raises(DeadlineExceededError, match=f"{address} did not answer within 0.01 s"):
        connection.ask(http.request("PUT", "/x", b""))


def test_an_address_where_nobody_is_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PeerError, match=f"{address} did not connect: Connection refused"):
        http.Connection(address)
