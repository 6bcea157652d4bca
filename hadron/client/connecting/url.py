"""Where a client connects to: `hadron://[token@]host1,host2[/namespace][?cluster=NAME][&tls=1]`,
or `grpc://…`.

A module of its own because the CLI, the Spark connector and the client read the same form, and a
mistyped address should be told apart from a node that is down before anything is dialed.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Final

import msgspec

from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE, check_name

_log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 7000
DEFAULT_URL: Final = f"hadron://127.0.0.1:{DEFAULT_PORT}"

DEFAULT_GRPC_PORT: Final = 7100

DEFAULT_HTTP_PORT: Final = 7200
"""Which no client of this kind speaks to: for errors."""

CHECKED_BY_NOBODY: Final = (
    "is checked by nobody: there is no authentication yet, and whoever reaches a node can read and "
    "write everything"
)
"""What is said once of credentials, wherever some are given."""

_SCHEME: Final = "hadron://"
_SCHEMES: Final = {_SCHEME: DEFAULT_PORT, "grpc://": DEFAULT_GRPC_PORT}
_HTTP_PORT: Final = re.compile(r":(7[23]\d\d)(?=[,/?]|$)")
_FORM: Final = "write it as hadron://[token@]host1,host2[/namespace]"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL.

    Attributes:
        addresses: `host:port` of nodes to ask first; any node of the cluster will do.
        namespace: where stream and pipeline names are looked up.
        token: who is asking; "" for nobody in particular.
        tls: whether connections are encrypted.
        cluster: the cluster that is meant, whoever is at these addresses; "" for whichever that is.
        over_grpc: the addresses are those of nodes' doors for gRPC, and only they are reached.
    """

    addresses: tuple[str, ...]
    namespace: str = DEFAULT_NAMESPACE
    token: str = ""
    tls: bool = False
    cluster: str = ""
    over_grpc: bool = False


def without_token(url: str) -> str:
    """The URL as it may be shown."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    _, at, hosts = rest.rpartition("@")
    return f"{scheme}{slashes}***@{hosts}" if at else url


def parse_url(url: str) -> Endpoint:
    """Parse a client URL. Raises `RequestError` naming the part that is wrong."""
    if not isinstance(url, str):
        raise RequestError(f"{url!r} is not a Hadron URL", _FORM)
    shown = without_token(url)
    scheme = next(filter(url.startswith, _SCHEMES), None)
    if scheme is None:
        raise RequestError(f"{shown!r} is not a Hadron URL", _corrected(url) or _FORM)
    rest, _, query = url[len(scheme) :].partition("?")
    authority, _, namespace = rest.partition("/")
    if "@" in namespace or "@" in query:
        # A part of the token would be told as a host, a namespace or a setting that is wrong.
        raise RequestError(f"{shown!r} has a token with / or ? in it", "a token has neither")
    token, _, hosts = authority.rpartition("@")
    addresses = tuple(_address(shown, host, _SCHEMES[scheme]) for host in hosts.split(","))
    if namespace:
        check_name("namespace", namespace)
    settings = _settings(shown, query)
    return Endpoint(
        addresses=tuple(dict.fromkeys(addresses)),
        namespace=namespace or DEFAULT_NAMESPACE,
        token=token,
        tls=settings.get("tls") == "1",
        cluster=settings.get("cluster", ""),
        over_grpc=scheme != _SCHEME,
    )


def with_namespace(url: str, namespace: str) -> str:
    """The URL with another namespace. Raises what `parse_url` raises."""
    parse_url(url)
    scheme, _, rest = url.partition("://")
    rest, asks, query = rest.partition("?")
    return f"{scheme}://{rest.partition('/')[0]}/{namespace}{asks}{query}"


def _corrected(url: str) -> str:
    """How to write what has no scheme, or another one; "" when that is not all."""
    scheme, _, rest = url.rpartition("://")
    is_http = scheme in ("http", "https")
    own = _HTTP_PORT.sub(_own_port, rest)
    meant = _SCHEME + own
    try:
        endpoint = parse_url(meant)
    except RequestError:
        return ""
    shown = f"write it as {without_token(meant)}"
    if own != rest:
        return f"{shown}, the node's own port: the one that is given is for HTTP, as curl speaks it"
    if is_http and not all(each.endswith(f":{DEFAULT_PORT}") for each in endpoint.addresses):
        return (
            f"{shown} where that is the node's own port, `address:` in its configuration "
            f"({DEFAULT_PORT}), and not the one for HTTP ({DEFAULT_HTTP_PORT})"
        )
    return shown


def _own_port(found: re.Match[str]) -> str:
    """Of the node that serves HTTP there: as `hadron dev`, `hadron cluster up` and the example
    configurations choose both."""
    return f":{int(found[1]) - DEFAULT_HTTP_PORT + DEFAULT_PORT}"


def endpoint_of(url: str) -> Endpoint:
    """What `url` names, for a client of this version. Raises `RequestError` for what it cannot do,
    and says once per process what it does not."""
    endpoint = parse_url(url)
    if endpoint.tls:
        raise RequestError(
            f"{without_token(url)!r} asks for TLS, which this version does not speak",
            "leave ?tls=1 out inside a trusted network; elsewhere put a tunnel between",
        )
    if endpoint.token:
        _warn_of_token()
    return endpoint


@functools.cache
def _warn_of_token() -> None:
    """Once per process."""
    _log.warning("the token in the URL %s", CHECKED_BY_NOBODY)


def _address(url: str, text: str, default_port: int) -> str:
    """One `host[:port]` with the port filled in; `[::1]:7000` for IPv6."""
    host, separator, port = text, "", ""
    if not text.endswith("]"):
        host, separator, port = text.rpartition(":")
        if not separator:
            host, port = text, ""
    if not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise RequestError(f"{text!r} in {url!r} is not a host", _FORM)
    if separator and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise RequestError(f"{port!r} in {url!r} is not a port", "use a number from 1 to 65535")
    return f"{host}:{port or default_port}"


def _settings(url: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        name, _, value = item.partition("=")
        if name == "cluster":
            check_name("cluster", value)
        elif name != "tls" or value not in ("0", "1"):
            raise RequestError(
                f"{item!r} in {url!r} is not a setting", "there are cluster=NAME and tls=1"
            )
        found[name] = value
    return found
