"""Who may speak to this door: no page of somebody else's in a user's browser (HTTP H2). Pure.

A page may send requests to any address that the browser reaches, and read the answers of hosts that
have its own name, which it can point to this machine (DNS rebinding). So a request must name a host
that is this one, whatever its address, and must not come from another site's page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from hadron.doors.http.problems import HttpError
from hadron.model.problems import shorten

_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Of Sec-Fetch-Site; "none" is what a person has typed."""


class Guard:
    """Of one door.

    Args:
        hosts: names that are this node's, besides `localhost`. Addresses in figures are: no name
            of somebody else's leads here then.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})

    def check(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises `HttpError`."""
        host = origin = site = None
        for name, value in headers:
            if name == b"host":
                if host is not None and host != value:
                    raise HttpError(400, "two hosts are named", "name one")
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value.decode("latin-1").strip().lower()
        if host is None:
            raise HttpError(400, "no host is named", "send a Host header")
        named = host.decode("latin-1").strip()
        if not self._is_own(named):
            raise HttpError(
                421,
                f"{shorten(named)} is no host that is served here",
                "use an address in figures, or the name in the node's configuration (`http:`)",
            )
        if origin is not None:
            came_from = origin.decode("latin-1").strip().lower()
            if came_from != f"http://{named.lower()}":
                raise _foreign(f"from a page of {shorten(came_from)}")
        if site is not None and site not in _OWN_SITES:
            raise _foreign("from a page of another site")

    def _is_own(self, named: str) -> bool:
        host, separator, port = named.rpartition(":")
        if not separator or port.endswith("]"):
            host = named
        elif not port.isdecimal():
            return False
        if host.lower() in self._hosts:
            return True
        try:
            ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
        except ValueError:
            return False
        return True


def _foreign(whence: str) -> HttpError:
    return HttpError(403, f"the request comes {whence}", "browsers are kept out (docs/HTTP.md, H2)")
