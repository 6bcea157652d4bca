"""Who may speak to the door (HTTP H2)."""

from __future__ import annotations

import httpx
import pytest

from hadron.doors.http.guard import Guard
from hadron.doors.http.problems import HttpError


def headers(**given: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), text.encode()) for name, text in given.items()]


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:7200", "127.0.0.1:7200", "[::1]:7200", "[::1]", "10.1.2.3", "N1:7200"],
)
def test_own_names_and_addresses_in_figures(host: str) -> None:
    Guard(["n1"]).check(headers(host=host))
    Guard(["n1"]).check(headers(host=host, origin=f"http://{host}", sec_fetch_site="same-origin"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7200",
        "localhost.evil.example:7200",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "n1.evil.example",
        "localhost:",
        "localhost:80:80",
        "",
        "[::1",
        "2130706433.evil",
    ],
)
def test_a_name_of_somebody_elses_leads_nowhere(host: str) -> None:
    """As after DNS rebinding: the page's own name points to this machine."""
    with pytest.raises(HttpError) as caught:
        Guard(["n1"]).check(headers(host=host))
    assert caught.value.status == 421


@pytest.mark.parametrize(
    "given",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://localhost:7200"},
        {"origin": "http://localhost:7201"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://localhost:7200", "sec_fetch_site": "cross-site"},
    ],
)
def test_a_page_of_another_site_is_kept_out(given: dict[str, str]) -> None:
    with pytest.raises(HttpError) as caught:
        Guard([]).check(headers(host="localhost:7200", **given))
    assert caught.value.status == 403


def test_a_host_must_be_named_once() -> None:
    for given in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        with pytest.raises(HttpError) as caught:
            Guard([]).check(given)
        assert caught.value.status == 400


@pytest.mark.parametrize("path", ["/healthz", "/v1/streams/s/events", "/openapi.json", "/nothing"])
async def test_it_stands_before_everything(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers={"host": "evil.example"})).status_code == 421
    answer = await http.get(path, headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_a_browser_gets_no_leave_to_send(http: httpx.AsyncClient) -> None:
    """No CORS: what a page has to ask for first is refused, and so is what it need not."""
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = await http.options("/v1/streams/s", headers=asked)
    assert answer.status_code == 403
    answer = await http.post(
        "/v1/streams/s", content="x", headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403
    assert (await http.get("/v1/streams/s/records")).json()["records"] == []


async def test_no_answer_is_taken_for_a_page(http: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/v1/streams/s/records", "/nothing"):
        told = (await http.get(path)).headers
        assert told["x-content-type-options"] == "nosniff"
        assert told["cache-control"] == "no-store"


async def test_credentials_that_nobody_checks_are_told_of_once(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    said = "the Authorization header of an HTTP request is checked by nobody"
    assert (await http.get("/v1/streams/s/records")).status_code == 200
    assert said not in caplog.text
    for _ in range(3):
        answer = await http.get("/v1/streams/s/records", headers={"authorization": "Bearer x"})
        assert answer.status_code == 200
    assert caplog.text.count(said) == 1
