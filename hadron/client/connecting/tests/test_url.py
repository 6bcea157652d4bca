"""How a cluster is named: URLs, and what is wrong with one."""

from __future__ import annotations

import pytest

from hadron.client.connecting.url import Endpoint, parse_url, with_namespace, without_token
from hadron.model.errors import RequestError


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("hadron://127.0.0.1:7001", Endpoint(addresses=("127.0.0.1:7001",))),
        ("hadron://a,b:9,a", Endpoint(addresses=("a:7000", "b:9"))),
        ("hadron://a/ns.x", Endpoint(addresses=("a:7000",), namespace="ns.x")),
        ("hadron://a/", Endpoint(addresses=("a:7000",))),
        ("grpc://a,b:9/x", Endpoint(addresses=("a:7100", "b:9"), namespace="x", over_grpc=True)),
        ("hadron://t0k@a?tls=1", Endpoint(addresses=("a:7000",), token="t0k", tls=True)),
        ("hadron://a?cluster=eu", Endpoint(addresses=("a:7000",), cluster="eu")),
        (
            "hadron://a/x?tls=0&cluster=eu",
            Endpoint(addresses=("a:7000",), namespace="x", cluster="eu"),
        ),
        ("hadron://[::1]:7001,[::2]", Endpoint(addresses=("[::1]:7001", "[::2]:7000"))),
    ],
)
def test_urls(url: str, endpoint: Endpoint) -> None:
    assert parse_url(url) == endpoint


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("127.0.0.1:17000", "write it as hadron://127.0.0.1:17000"),
        ("a,b:7001/ns", "write it as hadron://a,b:7001/ns"),
        ("http://a:7000/", "write it as hadron://a:7000/"),
        (
            "http://127.0.0.1:7200",
            "write it as hadron://127.0.0.1:7000, the node's own port: the one that is given is "
            "for HTTP, as curl speaks it",
        ),
        (
            "a:7201,b:7202/ns",
            "write it as hadron://a:7001,b:7002/ns, the node's own port: the one that is given is "
            "for HTTP, as curl speaks it",
        ),
        (
            "https://a:8080",
            "write it as hadron://a:8080 where that is the node's own port, `address:` in its "
            "configuration (7000), and not the one for HTTP (7200)",
        ),
        ("http://a", "write it as hadron://a"),
        ("t0k@a", "write it as hadron://***@a"),
        ("a b:c:d", "write it as hadron://[token@]host1,host2[/namespace]"),
    ],
)
def test_a_url_without_its_scheme_is_corrected(url: str, meant: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_url(url)
    assert caught.value.hint == meant


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://a", "http://a"),
        ("hadron://", "''"),
        ("hadron://a:port", "'port'"),
        ("hadron://a:0", "'0'"),
        ("hadron://a:70000", "'70000'"),
        ("hadron://::1", "'::1'"),
        ("hadron://a,,b", "''"),
        ("hadron://a/no/slash", "'no/slash'"),
        ("hadron://a?tls=yes", "'tls=yes'"),
        ("hadron://a?ssl=1", "'ssl=1'"),
        ("hadron://a?cluster=", "''"),
    ],
)
def test_bad_urls_are_named(url: str, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_url(url)
    assert named in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "token", ["se#cret", "se@cret", "se/cret", "se?cret", "se//cret", "se\ncret"]
)
@pytest.mark.parametrize("scheme", ["hadron://", "http://", "//", ""])
def test_no_part_of_a_token_is_told(token: str, scheme: str) -> None:
    url = f"{scheme}{token}@host:0"
    assert "cret" not in without_token(url)
    with pytest.raises(RequestError) as raised:
        parse_url(url)
    assert "cret" not in f"{raised.value.message} {raised.value.hint}"


def test_a_url_with_another_namespace() -> None:
    for query in ("", "?tls=1"):
        for namespace in ("", "/", "/old"):
            url = f"grpc://t#1@a:1,b{namespace}{query}"
            assert with_namespace(url, "new") == f"grpc://t#1@a:1,b/new{query}"
            assert parse_url(with_namespace(url, "new")).token == "t#1"
